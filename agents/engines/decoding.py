"""Runs one batch of requests through a transformers model's `generate`.

Axes: U different prompts, B rows still running, L prompt length, T length so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers.decoders import DecodeStream

from ...envs.types import FinishReason
from ..engine import Generation, VersionSpan
from .row_sampler import KeptSets, RowSampler

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.generation import GenerationMixin

    from .request_queue import PendingRequest

    class _CausalModel(PreTrainedModel, GenerationMixin): ...


class BatchRun:
    """One batch: prefill of its different prompts, then decoding until every row is done.

    Rows with the same prompt, as the siblings of a group have in their first turn, share its prefill. Rows that are
    done leave the batch as soon as they are half of it.

    Args:
        model: the model, in evaluation mode.
        tokenizer: decodes rows that have stop strings.
        batch: the requests; their prompts are not empty and fit.
        version: the policy version of the model's weights.
    """

    def __init__(
        self,
        model: _CausalModel,
        tokenizer: PreTrainedTokenizerBase | None,
        batch: Sequence[PendingRequest],
        version: int,
    ) -> None:
        self._model = model
        self._batch = batch
        self._version = version
        self._device = model.device
        sampling = [pending.request.sampling for pending in batch]
        self._sampler = RowSampler(sampling, [pending.seed for pending in batch], self._device)
        self._budgets = torch.tensor([pending.max_tokens for pending in batch], device=self._device)
        longest = max(len(params.stop_token_ids) for params in sampling)
        stops = [[*params.stop_token_ids, *[-1] * (longest - len(params.stop_token_ids))] for params in sampling]
        self._stop_ids = torch.tensor(stops, dtype=torch.long, device=self._device)  # [B, S], padded with -1
        self._matchers = {
            row: StopStringMatcher(tokenizer, params.stop)
            for row, params in enumerate(sampling)
            if params.stop and tokenizer is not None
        }
        self._record = _BatchRecord(len(batch))

    @torch.inference_mode()
    def run(self) -> list[Generation]:
        """Sample every row to its end."""
        prompts = [tuple(pending.request.prompt_token_ids) for pending in self._batch]
        index_of = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
        self._prompt_of_row = [index_of[prompt] for prompt in prompts]
        input_ids, attention_mask = _left_padded(list(index_of), self._device)
        self._model.generate(
            input_ids=input_ids,
            attention_mask=attention_mask,
            custom_generate=self._decode,
            max_new_tokens=max(pending.max_tokens for pending in self._batch),
            do_sample=False,
        )
        return self._record.generations(self._version)

    def _decode(self, _model: _CausalModel, input_ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """The decoding loop, in place of the one that `generate` would run."""
        cache, attention_mask = kwargs["past_key_values"], kwargs["attention_mask"]
        positions = (attention_mask.cumsum(-1) - 1).clamp_(min=0)
        logits_UV = self._forward(input_ids, attention_mask, positions, cache)
        rows = torch.arange(len(self._batch), device=self._device)
        if len(input_ids) < len(rows):
            prompt_of_row = torch.tensor(self._prompt_of_row, device=self._device)
            cache.batch_select_indices(prompt_of_row)
            logits_BV, attention_mask, positions = (
                t[prompt_of_row] for t in (logits_UV, attention_mask, positions[:, -1:])
            )
        else:
            logits_BV, positions = logits_UV, positions[:, -1:]
        is_done = torch.zeros(len(rows), dtype=torch.bool, device=self._device)
        while True:
            tokens = self._step(logits_BV, rows, is_done)
            num_left = len(rows) - int(is_done.sum())
            if num_left == 0:
                return input_ids
            if num_left <= len(rows) // 2:
                left = (~is_done).nonzero()[:, 0]
                cache.batch_select_indices(left)
                self._sampler.keep_rows(left)
                self._budgets, self._stop_ids = self._budgets[left], self._stop_ids[left]
                rows, tokens, is_done = rows[left], tokens[left], is_done[left]
                attention_mask, positions = attention_mask[left], positions[left]
            attention_mask = torch.cat([attention_mask, attention_mask.new_ones(len(rows), 1)], dim=-1)
            positions = torch.where(is_done[:, None], positions, positions + 1)
            logits_BV = self._forward(tokens[:, None], attention_mask, positions, cache)

    def _forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, positions: torch.Tensor, cache: Any
    ) -> torch.Tensor:
        """Logits after the last position."""
        output = self._model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def _step(self, logits_BV: torch.Tensor, rows: torch.Tensor, is_done: torch.Tensor) -> torch.Tensor:
        """Sample a token for each row, note it, and mark the rows that are done with it."""
        tokens, logprobs, kept = self._sampler.sample(logits_BV)
        is_stop = (tokens[:, None] == self._stop_ids).any(-1)
        self._record.add(rows, tokens, logprobs, kept)
        if self._matchers:
            is_stop |= self._matches(rows, tokens, is_done)
        is_over = is_stop | (self._record.num_steps >= self._budgets)
        if any(pending.is_dropped for pending in self._batch):
            is_over |= torch.tensor([self._batch[row].is_dropped for row in rows.tolist()], device=self._device)
        self._record.end(rows, is_over & ~is_done, is_stop)
        is_done |= is_over
        return tokens

    def _matches(self, rows: torch.Tensor, tokens: torch.Tensor, is_done: torch.Tensor) -> torch.Tensor:
        """[B] whether a stop string is now in the row's text."""
        found = [
            not done and row in self._matchers and self._matchers[row].push(token)
            for row, token, done in zip(rows.tolist(), tokens.tolist(), is_done.tolist(), strict=True)
        ]
        return torch.tensor(found, device=self._device)


class StopStringMatcher:
    """Finds stop strings in text that grows token by token, also where one spans several tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self._backend: Any = tokenizer.backend_tokenizer  # pyright: ignore[reportAttributeAccessIssue]
        self._stream = DecodeStream(skip_special_tokens=False)
        self._stop = stop
        self._overlap = max(map(len, stop)) - 1
        self._tail = ""

    def push(self, token_id: int) -> bool:
        """Append a token. Returns whether the text now contains a stop string."""
        piece = self._stream.step(self._backend, token_id)
        if not piece:
            return False
        text = self._tail + piece
        self._tail = text[max(0, len(text) - self._overlap) :]
        return any(stop in text for stop in self._stop)


class _BatchRecord:
    """What a batch sampled, step by step, kept on the device until the end."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._steps: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._kept: dict[int, list[tuple[int, ...]]] = {}
        self._ends: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    def add(self, rows: torch.Tensor, tokens: torch.Tensor, logprobs: torch.Tensor, kept: KeptSets | None) -> None:
        self._steps.append((rows, tokens, logprobs))
        if kept is not None:
            row_ids = rows.tolist()
            for row, ids in kept.items():
                self._kept.setdefault(row_ids[row], []).append(ids)

    def end(self, rows: torch.Tensor, is_over: torch.Tensor, is_stop: torch.Tensor) -> None:
        self._ends.append((rows, is_over, is_stop))

    def generations(self, version: int) -> list[Generation]:
        shape = (self._num_rows, self.num_steps)
        tokens, logprobs = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
        lengths, is_stop = np.zeros(self._num_rows, dtype=np.int64), np.zeros(self._num_rows, dtype=np.bool_)
        for step, ((rows, step_tokens, step_logprobs), (_, over, stop)) in enumerate(
            zip(self._steps, self._ends, strict=True)
        ):
            rows, over = rows.cpu().numpy(), over.cpu().numpy()
            tokens[rows, step] = step_tokens.cpu().numpy()
            logprobs[rows, step] = step_logprobs.cpu().numpy()
            lengths[rows[over]] = step + 1
            is_stop[rows[over]] = stop.cpu().numpy()[over]
        return [
            self._generation(row, tokens[row, :n].tolist(), logprobs[row, :n].tolist(), bool(is_stop[row]), version)
            for row, n in enumerate(lengths.tolist())
        ]

    def _generation(
        self, row: int, tokens: list[int], logprobs: list[float], is_stop: bool, version: int
    ) -> Generation:
        kept = self._kept.get(row)
        finish_reason: FinishReason = "stop" if is_stop else "length"
        return Generation(
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            finish_reason=finish_reason,
            versions=(VersionSpan(version, len(tokens)),),
            kept_token_ids=None if kept is None else tuple(kept[: len(tokens)]),
        )


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """[U, L] token ids, padded with 0, and their mask."""
    longest = max(map(len, prompts))
    token_ids = np.zeros((len(prompts), longest), dtype=np.int64)
    mask = np.zeros((len(prompts), longest), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        token_ids[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = 1
    return torch.from_numpy(token_ids).to(device), torch.from_numpy(mask).to(device)
