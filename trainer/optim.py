"""The optimizer: AdamW, its warm-up, and its state for checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..envs.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """AdamW's settings.

    Attributes:
        learning_rate: step size after the warm-up.
        betas: decay of the two moments.
        eps: added to the denominator.
        weight_decay: decoupled decay of matrices; vectors (norms, biases) never decay.
        warmup_steps: optimizer steps over which the learning rate rises linearly from `learning_rate / warmup_steps`.
        max_grad_norm: gradients are scaled down to this global norm.

    Source:
        Loshchilov, I., Hutter, F. (2019). Decoupled weight decay regularization. https://arxiv.org/abs/1711.05101
    """

    learning_rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.learning_rate < 0:
            raise ConfigError(f"learning_rate={self.learning_rate!r} must be at least 0")
        if self.warmup_steps < 0:
            raise ConfigError(f"warmup_steps={self.warmup_steps!r} must be at least 0; 0 starts at the full rate")
        if not self.max_grad_norm > 0:
            raise ConfigError(f"max_grad_norm={self.max_grad_norm!r} must be above 0; inf doesn't clip")


class Optimizer:
    """AdamW over a model's parameters, with warm-up and clipping by global norm.

    Args:
        model: its parameters that require a gradient are trained.
        config: the settings.

    Attributes:
        num_steps: steps taken so far.
    """

    def __init__(self, model: nn.Module, config: OptimConfig) -> None:
        self.config = config
        self.num_steps = 0
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._adamw = torch.optim.AdamW(
            [
                {"params": [p for p in self._parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
                {"params": [p for p in self._parameters if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.eps,
            fused=True,
        )

    @property
    def learning_rate(self) -> float:
        """Step size of the next step."""
        warmup = self.config.warmup_steps
        return self.config.learning_rate * min(1.0, (self.num_steps + 1) / warmup if warmup else 1.0)

    def clip_gradients(self) -> float:
        """Scale the gradients down to the largest norm allowed; returns their norm before."""
        return float(nn.utils.clip_grad_norm_(self._parameters, self.config.max_grad_norm))

    def step(self) -> None:
        """Apply the gradients and forget them."""
        for group in self._adamw.param_groups:
            group["lr"] = self.learning_rate
        self._adamw.step()
        self.num_steps += 1
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Drop the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on, besides the weights."""
        return {"adamw": self._adamw.state_dict(), "num_steps": self.num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._adamw.load_state_dict(state["adamw"])
        self.num_steps = int(state["num_steps"])


def first_not_finite(tensors: Iterable[tuple[str, torch.Tensor | None]]) -> str | None:
    """Name of the first tensor that holds a NaN or an infinity, or None."""
    return next((name for name, t in tensors if t is not None and not torch.isfinite(t).all()), None)
