"""Copies published weights into an engine's own model: all of them or none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch

from ...envs.errors import EngineError


@torch.no_grad()
def load_weights(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy tensors into the parameters and persistent buffers of the same names.

    Of names that share one tensor (tied embeddings) one is enough; where several are given they must agree.

    Args:
        model: what is written to; its types and devices stay.
        tensors: name -> tensor, under the names of `model.state_dict()`.

    Raises:
        EngineError: a name is unknown or missing, or a shape differs, or tied tensors disagree. Nothing was copied.
    """
    own = model.state_dict()
    _refuse("are not in the engine's model", [name for name in tensors if name not in own])
    _refuse("are missing", [" = ".join(names) for names in _tied(own) if not any(name in tensors for name in names)])
    _refuse(
        "have another shape",
        [
            f"{name} {tuple(tensor.shape)}, in the engine {tuple(own[name].shape)}"
            for name, tensor in tensors.items()
            if tensor.shape != own[name].shape
        ],
    )
    _refuse(
        "are one tensor in the engine and differ",
        [" = ".join(names) for names in _tied(own) if not _agree([tensors[name] for name in names if name in tensors])],
    )
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


def _tied(tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Names that share a tensor, together."""
    names_of = defaultdict(list)
    for name, tensor in tensors.items():
        names_of[tensor.device, tensor.data_ptr(), tensor.shape].append(name)
    return list(names_of.values())


def _agree(tensors: list[torch.Tensor]) -> bool:
    first = tensors[0]
    return all(t.data_ptr() == first.data_ptr() or torch.equal(t, first) for t in tensors[1:])


def _refuse(what: str, names: Iterable[str]) -> None:
    names = list(names)
    if names:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise EngineError(
            f"published weights don't fit, nothing was changed: {', '.join(names[:5])}{more} {what}; "
            "publish the state dict of the model that the engine was made from"
        )
