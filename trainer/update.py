"""One update: samples in, better weights out.

samples -> by episode into `num_minibatches` optimizer steps, `num_epochs` times over
step    -> each token's share in the loss, decided over the whole step
        -> micro-batches: logprobs -> loss -> gradients, added up
        -> clip, AdamW; skipped and named if anything isn't finite
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from ..envs.errors import ConfigError
from .losses import Aggregation, LossInputs, policy_loss, token_weights
from .optim import OptimConfig, Optimizer, first_not_finite
from .packing import MicroBatch, micro_batches
from .policy import Policy, TokenScores
from .samples import Sample

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConfig:
    """How samples change the weights.

    Attributes:
        optim: the optimizer.
        clip_low: how far the ratio of probabilities may fall below 1.
        clip_high: how far it may rise above 1.
        aggregation: how tokens share in the loss; see `losses.token_weights`.
        constant: the denominator of `aggregation="constant"`.
        num_epochs: how often each sample is used.
        num_minibatches: optimizer steps per epoch; episodes are shared out evenly and never torn apart.
        micro_batch_tokens: tokens that are computed at once, padding included. Changes time and memory, not the result.
        mismatch_tolerance: logprobs of engine and trainer that differ by more count in `mismatch_share`.
    """

    optim: OptimConfig = field(default_factory=OptimConfig)
    clip_low: float = 0.2
    clip_high: float = 0.2
    aggregation: Aggregation = "token_mean"
    constant: int | None = None
    num_epochs: int = 1
    num_minibatches: int = 1
    micro_batch_tokens: int = 4096
    mismatch_tolerance: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("num_epochs", "num_minibatches", "micro_batch_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be at least 1")
        if not 0 <= self.clip_low <= 1:
            raise ConfigError(f"clip_low={self.clip_low!r} must lie in [0, 1]")
        if not self.clip_high >= 0:
            raise ConfigError(f"clip_high={self.clip_high!r} must be at least 0")
        token_weights({}, self.aggregation, constant=self.constant)


class _Seen(NamedTuple):
    """What metrics need of a micro-batch's tokens, [N] each, without gradient."""

    versions: torch.Tensor
    mismatch: torch.Tensor
    entropy: torch.Tensor
    ratio: torch.Tensor
    is_clipped: torch.Tensor
    kl: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What an update did.

    Attributes:
        metrics: numbers to log. `loss`, `grad_norm` and `lr` are of the last step that was taken; `mismatch_*` compare
            the trainer's logprobs before the update with the engine's, on tokens that the present version sampled;
            `ratio_*`, `clip_share`, `approx_kl` and `entropy` are over the tokens of all steps. A number of which
            there is none is left out.
        bad_tensors: for each skipped step, the first tensor that wasn't finite.
    """

    metrics: dict[str, float]
    bad_tensors: tuple[str, ...] = ()


class Updater:
    """Trains a policy, update by update.

    Args:
        policy: its weights change in place.
        config: how.

    Attributes:
        num_skipped: optimizer steps skipped so far, because something wasn't finite.
    """

    def __init__(self, policy: Policy, config: UpdateConfig) -> None:
        self.policy = policy
        self.config = config
        self.optimizer = Optimizer(policy.model, config.optim)
        self.num_skipped = 0

    def update(self, samples: Sequence[Sample], *, version: int | None = None) -> UpdateResult:
        """Train on the samples of one update.

        Args:
            samples: in any order; the result doesn't depend on it, up to rounding.
            version: the policy's version before this update; tokens of other versions are left out of `mismatch_*`.
                None compares all tokens.

        Returns:
            What was done. Without any trained token nothing is, and the metrics say so. A step whose advantages are
            all zero leaves the weights as they are.
        """
        trained = [sample for sample in samples if sample.num_trained_tokens]
        steps = _minibatches(trained, self.config.num_minibatches) * self.config.num_epochs
        before = self._score_all(trained) if len(steps) > 1 else None
        seen: list[_Seen] = []
        bad_tensors: list[str] = []
        metrics: dict[str, float] = {}
        for step in steps:
            of_step, metrics_of_step, bad = self._step(step)
            seen += of_step
            metrics |= metrics_of_step
            if bad is not None:
                bad_tensors.append(bad)
        metrics |= {
            "tokens": float(sum(sample.num_trained_tokens for sample in trained)),
            "episodes": float(len({sample.episode_id for sample in trained})),
            "optimizer_steps": float(len(steps) - len(bad_tensors)),
            "skipped_steps": float(len(bad_tensors)),
        }
        if seen:
            metrics |= _token_metrics(seen)
            metrics |= _mismatch(before or seen, version, self.config.mismatch_tolerance)
        return UpdateResult(metrics=metrics, bad_tensors=tuple(bad_tensors))

    def state_dict(self) -> dict[str, Any]:
        """Everything that later updates depend on, besides the weights."""
        return {"optimizer": self.optimizer.state_dict(), "num_skipped": self.num_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.num_skipped = int(state["num_skipped"])

    def _step(self, samples: Sequence[Sample]) -> tuple[list[_Seen], dict[str, float], str | None]:
        """One optimizer step: what was seen, its metrics, and the name of the tensor that made it be skipped."""
        seen: list[_Seen] = []
        loss = 0.0
        for batch in self._micro_batches(samples):
            with torch.set_grad_enabled(batch.has_gradient):
                scores = self.policy.logprobs(batch)
                part, tokens = self._loss(batch, scores)
            if not torch.isfinite(part):
                return seen, {}, self._skip([("logprobs", scores.logprobs), ("loss", part)])
            if batch.has_gradient:
                part.backward()
            loss += float(part.detach())
            seen.append(tokens)
        grad_norm = self.optimizer.clip_gradients()
        if not math.isfinite(grad_norm):
            named = self.policy.model.named_parameters()
            return seen, {}, self._skip([(f"gradient of {name}", p.grad) for name, p in named])
        metrics = {"loss": loss, "grad_norm": grad_norm, "lr": self.optimizer.learning_rate}
        self.optimizer.step()
        return seen, metrics, None

    def _loss(self, batch: MicroBatch, scores: TokenScores) -> tuple[torch.Tensor, _Seen]:
        outputs = policy_loss(
            LossInputs(
                logprobs=scores.logprobs,
                sampled_logprobs=batch.sampled_logprobs,
                advantages=batch.advantages.to(scores.logprobs.dtype),
                weights=batch.weights.to(scores.logprobs.dtype),
            ),
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
        )
        mismatch = (scores.logprobs.detach() - batch.sampled_logprobs).abs()
        return outputs.loss, _Seen(
            versions=batch.versions,
            mismatch=mismatch,
            entropy=scores.entropy,
            ratio=outputs.ratio,
            is_clipped=outputs.is_clipped,
            kl=outputs.kl,
        )

    def _micro_batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        counts: Counter[str] = Counter()
        for sample in samples:
            counts[sample.episode_id] += sample.num_trained_tokens
        weights = token_weights(counts, self.config.aggregation, constant=self.config.constant)
        batches = micro_batches(samples, max_tokens=self.config.micro_batch_tokens, weights=weights)
        return [batch.to(self.policy.device) for batch in batches]

    @torch.no_grad()
    def _score_all(self, samples: Sequence[Sample]) -> list[_Seen]:
        """Score every token under the weights as they are."""
        return [self._loss(batch, self.policy.logprobs(batch))[1] for batch in self._micro_batches(samples)]

    def _skip(self, suspects: list[tuple[str, torch.Tensor | None]]) -> str:
        """Drop the step; returns the name of the first tensor that isn't finite, the weights' first."""
        bad = first_not_finite([*self.policy.model.named_parameters(), *suspects]) or "the norm of the gradient"
        self.optimizer.forget_gradients()
        self.num_skipped += 1
        _LOG.warning("optimizer step skipped (%d so far): %s is not finite", self.num_skipped, bad)
        return bad


def _minibatches(samples: Sequence[Sample], num: int) -> list[list[Sample]]:
    """Share whole episodes out, in the order of their slots: siblings stay together where the numbers allow it."""
    episodes: dict[tuple[int, str], list[Sample]] = {}
    for sample in samples:
        episodes.setdefault((sample.slot, sample.episode_id), []).append(sample)
    order = sorted(episodes)
    num = min(num, len(order))
    bounds = [len(order) * i // num for i in range(num + 1)] if num else []
    return [[s for key in order[a:b] for s in episodes[key]] for a, b in pairwise(bounds)]


def _token_metrics(seen: Sequence[_Seen]) -> dict[str, float]:
    ratio = torch.cat([part.ratio for part in seen])
    return {
        "ratio_mean": float(ratio.mean()),
        "ratio_max": float(ratio.max()),
        "clip_share": float(torch.cat([part.is_clipped for part in seen]).float().mean()),
        "approx_kl": float(torch.cat([part.kl for part in seen]).mean()),
        "entropy": float(torch.cat([part.entropy for part in seen]).mean()),
    }


def _mismatch(seen: Sequence[_Seen], version: int | None, tolerance: float) -> dict[str, float]:
    mismatch = torch.cat([part.mismatch for part in seen])
    if version is not None:
        mismatch = mismatch[torch.cat([part.versions for part in seen]) == version]
    if not len(mismatch):
        return {}
    return {
        "mismatch_mean": float(mismatch.mean()),
        "mismatch_max": float(mismatch.max()),
        "mismatch_share": float((mismatch > tolerance).float().mean()),
    }
