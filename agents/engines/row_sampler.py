"""Samples one token for each row of a batch, each row by its own parameters and its own random stream.

Axes: B rows still running, V vocabulary, S stop tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...envs.sampling import SamplingParams

_BLOCK = 64  # random numbers drawn per row at a time


class RowSampler:
    """Turns logits into tokens for rows with different parameters.

    A row samples from `softmax(logits / temperature)` cut to its `top_k` most likely tokens and then to the smallest
    set that holds `top_p` of what is left, by inverting its cumulative distribution at a uniform number. Token i of a
    row takes the i-th number of a Philox stream keyed by the row's seed, so that a row's randomness does not depend on
    the rows beside it. Temperature 0 takes the most likely token, whose logprob is then 0.

    Source of the generator: Salmon, Moraes, Dror, Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3",
    https://doi.org/10.1145/2063384.2063405.

    Args:
        sampling: [B] parameters of each row.
        seeds: [B] seed of each row's stream; taken modulo 2**128.
        device: where the logits are.
    """

    def __init__(self, sampling: Sequence[SamplingParams], seeds: Sequence[int], device: torch.device) -> None:
        self._device = device
        self._streams = [np.random.Generator(np.random.Philox(key=seed % 2**128)) for seed in seeds]
        self._uniforms = torch.empty(0)  # [B, _BLOCK] float64
        self._temperature = self._column([params.temperature or 1.0 for params in sampling])
        self._is_greedy = self._column([params.temperature == 0 for params in sampling])
        cut = [params.is_truncated and params.temperature > 0 for params in sampling]
        self._is_cut = torch.tensor(cut)
        self._top_k = self._column([params.top_k or 2**62 for params in sampling])
        self._top_p = self._column([params.top_p for params in sampling])
        self._step = 0
        self._refresh()

    def _column(self, values: Sequence[float | bool]) -> torch.Tensor:
        return torch.tensor(values, device=self._device)[:, None]

    def _refresh(self) -> None:
        """Note which of the rarer paths any row needs, so that a step need not ask the device."""
        self._cut_rows = self._is_cut.nonzero()[:, 0].to(self._device)
        self._any_greedy = bool(self._is_greedy.any())
        self._all_greedy = bool(self._is_greedy.all())

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Go on with these rows only, in this order."""
        indices = rows.tolist()
        self._streams = [self._streams[index] for index in indices]
        self._uniforms = self._uniforms[rows]
        self._temperature = self._temperature[rows]
        self._is_greedy = self._is_greedy[rows]
        self._is_cut = self._is_cut[indices]
        self._top_k = self._top_k[rows]
        self._top_p = self._top_p[rows]
        self._refresh()

    def sample(self, logits_BV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, KeptSets | None]:
        """Sample the next token of each row.

        Args:
            logits_BV: [B, V] logits of any floating type.

        Returns:
            [B] token ids, [B] float32 logprobs of the distribution that was sampled, and the kept sets of the rows
            that were cut.
        """
        uniforms = self._next_uniforms()
        logits_BV = logits_BV.float()
        if self._all_greedy:
            tokens = logits_BV.argmax(-1)
            return tokens, torch.zeros_like(tokens, dtype=torch.float32), None
        scaled_BV = logits_BV / self._temperature
        kept = None
        if len(self._cut_rows):
            kept = self._cut(scaled_BV)
        logprobs_BV = scaled_BV.log_softmax(-1)
        cumulative_BV = logprobs_BV.exp().cumsum(-1, dtype=torch.float64)
        # A number below 1 times the total stays below the total: the index found is one at which the sum grows.
        tokens_B1 = torch.searchsorted(cumulative_BV, uniforms * cumulative_BV[:, -1:], right=True)
        logprobs_B1 = logprobs_BV.gather(-1, tokens_B1)
        if self._any_greedy:
            tokens_B1 = torch.where(self._is_greedy, logits_BV.argmax(-1, keepdim=True), tokens_B1)
            logprobs_B1 = logprobs_B1.masked_fill(self._is_greedy, 0.0)
        return tokens_B1[:, 0], logprobs_B1[:, 0], kept

    def _next_uniforms(self) -> torch.Tensor:
        """[B, 1] the next number of each row's stream."""
        column = self._step % _BLOCK
        if column == 0:
            block = np.stack([stream.random(_BLOCK) for stream in self._streams])
            self._uniforms = torch.from_numpy(block).to(self._device)
        self._step += 1
        return self._uniforms[:, column : column + 1]

    def _cut(self, scaled_BV: torch.Tensor) -> KeptSets:
        """Apply top-k, then top-p, in place."""
        rows = self._cut_rows
        values, order = scaled_BV[rows].sort(dim=-1, descending=True, stable=True)
        ranks = torch.arange(values.shape[-1], device=self._device)
        values = values.masked_fill(ranks >= self._top_k[rows], -torch.inf)
        probabilities = values.softmax(-1, dtype=torch.float64)
        before = probabilities.cumsum(-1) - probabilities
        is_out = (before >= self._top_p[rows]) | values.isneginf()
        is_out[:, 0] = False
        values = values.masked_fill(is_out, -torch.inf)
        scaled_BV[rows] = torch.empty_like(values).scatter_(-1, order, values)
        num_kept = (~is_out).sum(-1)
        return KeptSets(rows, order, num_kept)


class KeptSets:
    """What top-p and top-k kept at one step.

    Args:
        rows: [C] rows that were cut.
        order: [C, V] their tokens, most likely first.
        num_kept: [C] how many of them were kept.
    """

    def __init__(self, rows: torch.Tensor, order: torch.Tensor, num_kept: torch.Tensor) -> None:
        longest = int(num_kept.max())
        self._rows = rows.tolist()
        self._ids = order[:, :longest].to(torch.int32).cpu().numpy()
        self._num_kept = num_kept.tolist()

    def items(self) -> list[tuple[int, tuple[int, ...]]]:
        """(row, kept token ids in ascending order) of each row that was cut."""
        return [
            (row, tuple(sorted(ids[:count].tolist())))
            for row, ids, count in zip(self._rows, self._ids, self._num_kept, strict=True)
        ]
