"""Training: the loop, and what it is made of. Torch is imported with the first name that needs it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .advantages import AdvantageConfig, group_advantages
    from .config import TrainConfig
    from .evaluate import Estimate, EvalReport, pass_at_k
    from .loop import Trainer
    from .metrics import METRICS
    from .policy import Policy
    from .progress import RunProgress
    from .run_report import RunReport, UpdateReport
    from .samples import Sample, samples_from_groups
    from .tiny import TinyConfig, make_tiny
    from .update import UpdateConfig, Updater

_HOMES = {
    "Trainer": "loop",
    "TrainConfig": "config",
    "RunReport": "run_report",
    "UpdateReport": "run_report",
    "RunProgress": "progress",
    "METRICS": "metrics",
    "EvalReport": "evaluate",
    "Estimate": "evaluate",
    "pass_at_k": "evaluate",
    "Policy": "policy",
    "Sample": "samples",
    "samples_from_groups": "samples",
    "AdvantageConfig": "advantages",
    "group_advantages": "advantages",
    "UpdateConfig": "update",
    "Updater": "update",
    "TinyConfig": "tiny",
    "make_tiny": "tiny",
}

__all__ = [
    "Trainer",
    "TrainConfig",
    "RunReport",
    "UpdateReport",
    "RunProgress",
    "METRICS",
    "EvalReport",
    "Estimate",
    "pass_at_k",
    "Policy",
    "Sample",
    "samples_from_groups",
    "AdvantageConfig",
    "group_advantages",
    "UpdateConfig",
    "Updater",
    "TinyConfig",
    "make_tiny",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
