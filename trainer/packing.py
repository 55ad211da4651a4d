"""Micro-batches: samples of like length, padded on the right, cut by a budget of tokens.

Legend of axes: B rows, T columns, N trained tokens of the micro-batch (row after row), K ids of all their kept sets.

A row ends before its last trained token: what follows predicts nothing that is trained. With causal attention nothing
that stands to the left of the padding sees it, so that no attention mask is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from .samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Samples as tensors.

    Attributes:
        token_ids: [B, T] int64, padded on the right with 0.
        rows: [N] int64, the row of each trained token.
        columns: [N] int64, the position whose hidden state predicts it: one before its own.
        targets: [N] int64, the trained tokens.
        temperatures: [N] float32.
        kept_counts: [N] int64, the size of each token's kept set; 0 where the whole vocabulary was kept.
        kept_ids: [K] int64, the kept sets one after another.
        sampled_logprobs: [N] float32, the engine's.
        versions: [N] int64, the policy version that sampled each token.
        advantages: [N] float64.
        weights: [N] float64, each token's share in the loss.
    """

    token_ids: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    targets: torch.Tensor
    temperatures: torch.Tensor
    kept_counts: torch.Tensor
    kept_ids: torch.Tensor
    sampled_logprobs: torch.Tensor
    versions: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor

    @property
    def num_tokens(self) -> int:
        """How many tokens are trained."""
        return len(self.targets)

    @property
    def has_gradient(self) -> bool:
        """Whether any advantage isn't zero. Without one the loss has no gradient, and needs no backward pass."""
        return bool(self.advantages.any())

    def to(self, device: torch.device | str) -> MicroBatch:
        """The same on another device."""
        return MicroBatch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def micro_batches(samples: Iterable[Sample], *, max_tokens: int, weights: Mapping[str, float]) -> list[MicroBatch]:
    """Cut samples into micro-batches of at most `max_tokens` tokens, padding included.

    Longest first, so that the first micro-batch is the largest; equally long ones keep their order. Those whose
    advantages are all zero come last, among themselves. A sample that is longer than the budget is alone. Samples
    without trained tokens are left out.

    Args:
        samples: what an optimizer step trains.
        max_tokens: largest B times T.
        weights: share in the loss of each trained token, by episode id.
    """
    trained = [sample for sample in samples if sample.loss_mask.any()]
    batches: list[MicroBatch] = []
    for teaches in (True, False):
        order = [s for s in trained if bool(s.advantages[s.loss_mask].any()) is teaches]
        order.sort(key=_row_length, reverse=True)
        start = 0
        while start < len(order):
            size = max(1, max_tokens // _row_length(order[start]))
            batches.append(collate(order[start : start + size], weights=weights))
            start += size
    return batches


def collate(samples: Sequence[Sample], *, weights: Mapping[str, float]) -> MicroBatch:
    """One micro-batch of all the samples, in their order.

    Args:
        samples: each with a trained token.
        weights: share in the loss of each trained token, by episode id.
    """
    token_ids = np.zeros((len(samples), max(map(_row_length, samples))), dtype=np.int64)
    for row, sample in enumerate(samples):
        length = _row_length(sample)
        token_ids[row, :length] = sample.token_ids[:length]
    trained = [sample.loss_mask for sample in samples]
    counts = np.array([mask.sum() for mask in trained])
    kept_sets = [ids for sample in samples for ids in _kept_sets(sample)]

    def gather(name: str) -> np.ndarray:
        return np.concatenate([getattr(sample, name)[mask] for sample, mask in zip(samples, trained, strict=True)])

    arrays = {
        "token_ids": token_ids,
        "rows": np.repeat(np.arange(len(samples)), counts),
        "columns": np.concatenate([np.flatnonzero(mask) for mask in trained]) - 1,
        "targets": gather("token_ids"),
        "temperatures": gather("temperatures"),
        "kept_counts": np.array([len(ids) for ids in kept_sets], dtype=np.int64),
        "kept_ids": np.concatenate([*kept_sets, np.empty(0, dtype=np.int64)]),
        "sampled_logprobs": gather("sampled_logprobs"),
        "versions": gather("versions").astype(np.int64),
        "advantages": gather("advantages"),
        "weights": np.repeat([weights[sample.episode_id] for sample in samples], counts),
    }
    return MicroBatch(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def _row_length(sample: Sample) -> int:
    return int(np.flatnonzero(sample.loss_mask)[-1])


def _kept_sets(sample: Sample) -> Sequence[np.ndarray]:
    """The kept set of each trained token; empty ones stand for the whole vocabulary."""
    if sample.kept_token_ids is None:
        return [np.empty(0, dtype=np.int64)] * sample.num_trained_tokens
    trained = sample.loss_mask[sample.action_mask]
    return [ids for ids, is_trained in zip(sample.kept_token_ids, trained, strict=True) if is_trained]
