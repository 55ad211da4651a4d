"""Engines that come with turngym. Each imports its backend only when it is asked for."""

from typing import TYPE_CHECKING, Any

from .scripted import ScriptedEngine

if TYPE_CHECKING:
    from .transformers import TransformersEngine

__all__ = ["ScriptedEngine", "TransformersEngine"]


def __getattr__(name: str) -> Any:
    if name == "TransformersEngine":
        from .transformers import TransformersEngine

        return TransformersEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
