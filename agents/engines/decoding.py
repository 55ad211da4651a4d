"""Runs one batch of requests through a transformers model's `generate`.

Axes: U different prompts, B rows still running, L prompt length, T length so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tokenizers.decoders import DecodeStream

from ..engine import Generation, VersionSpan
from .kv_cache import cut_prefix, empty_cache, joined_cache
from .prefix_store import Prefix, PrefixStore
from .row_sampler import KeptSets, RowSampler

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .request_queue import PendingRequest


class BatchRun:
    """One batch: prefill of what is new in its prompts, then decoding until every row is done.

    Rows that go on from a prefix compute the tokens after it only; of the others, those with the same prompt, as the
    siblings of a group have in their first turn, share its prefill. Rows that are done leave the batch as soon as they
    are half of it.

    Args:
        model: the model, in evaluation mode.
        tokenizer: decodes rows that have stop strings.
        batch: the requests; their prompts are not empty and fit.
        prefixes: what each row's prompt goes on from; or empty, and every row reads its whole prompt.
        store: takes what the rows leave for their episodes' next turns.
        version: the policy version of the model's weights.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase | None,
        batch: Sequence[PendingRequest],
        *,
        prefixes: Sequence[Prefix],
        store: PrefixStore,
        version: int,
    ) -> None:
        self._model = model
        self._prefixes = prefixes
        self._store = store
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
        self._model.generate(
            **self._inputs(),
            custom_generate=self._decode,
            max_new_tokens=max(pending.max_tokens for pending in self._batch),
            do_sample=False,
            use_cache=True,
        )
        return self._record.generations(self._version)

    def _inputs(self) -> dict[str, Any]:
        """What the model reads first: the different prompts, or what follows the prefixes that are there."""
        prompts = [tuple(pending.request.prompt_token_ids) for pending in self._batch]
        if self._prefixes:
            cache, prefix_mask = joined_cache(self._model.config, self._prefixes)
            tails = [prompt[len(prefix.token_ids) :] for prompt, prefix in zip(prompts, self._prefixes, strict=True)]
            input_ids, mask = _left_padded(tails, self._device)
            mask = torch.cat([prefix_mask, mask], dim=-1)
            return {"input_ids": input_ids, "attention_mask": mask, "past_key_values": cache}
        place_of = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
        self._place_of_row = [place_of[prompt] for prompt in prompts]
        input_ids, mask = _left_padded(list(place_of), self._device)
        return {"input_ids": input_ids, "attention_mask": mask, "past_key_values": empty_cache(self._model.config)}

    def _decode(self, _model: Any, input_ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """The decoding loop, in place of the one that `generate` would run."""
        cache = kwargs["past_key_values"]
        attention_mask = kwargs["attention_mask"]  # None where nothing is padded
        num_kept, num_new = cache.get_seq_length(), input_ids.shape[1]
        if attention_mask is None:
            positions = torch.arange(num_kept, num_kept + num_new, device=self._device).expand(len(input_ids), -1)
        else:
            positions = (attention_mask.cumsum(-1) - 1).clamp_(min=0)[:, num_kept:]
        logits = self._forward(input_ids, attention_mask, positions, cache)
        positions = positions[:, -1:]
        rows = torch.arange(len(self._batch), device=self._device)
        if len(input_ids) < len(rows):
            places = torch.tensor(self._place_of_row, device=self._device)
            cache.batch_select_indices(places)
            logits, positions = logits[places], positions[places]
            attention_mask = None if attention_mask is None else attention_mask[places]
        is_done = torch.zeros(len(rows), dtype=torch.bool, device=self._device)
        while True:
            tokens = self._step(logits, rows, is_done)
            num_left = len(rows) - int(is_done.sum())
            if num_left <= len(rows) // 2:
                self._keep_prefixes(cache, attention_mask, rows, is_done)
            if num_left == 0:
                return input_ids
            if num_left <= len(rows) // 2:
                left = (~is_done).nonzero()[:, 0]
                cache.batch_select_indices(left)
                self._sampler.keep_rows(left)
                self._budgets, self._stop_ids = self._budgets[left], self._stop_ids[left]
                rows, tokens, is_done, positions = rows[left], tokens[left], is_done[left], positions[left]
                attention_mask = None if attention_mask is None else attention_mask[left]
            if attention_mask is not None:
                attention_mask = torch.cat([attention_mask, attention_mask.new_ones(len(rows), 1)], dim=-1)
            positions = torch.where(is_done[:, None], positions, positions + 1)
            logits = self._forward(tokens[:, None], attention_mask, positions, cache)

    def _keep_prefixes(
        self, cache: Any, attention_mask: torch.Tensor | None, rows: torch.Tensor, is_done: torch.Tensor
    ) -> None:
        """Keep what the rows that are done have computed, for their episodes' next turns."""
        sampled = self._record.table()
        for place, (row, done) in enumerate(zip(rows.tolist(), is_done.tolist(), strict=True)):
            request = self._batch[row].request
            if not done or not self._store.wants(request.episode_id):
                continue
            read = sampled.token_ids[row, : sampled.lengths[row] - 1].tolist()  # the last one was never read
            prefix = cut_prefix(cache, place, attention_mask, (*request.prompt_token_ids, *read))
            if prefix is not None:
                self._store.put(request.episode_id, prefix)

    def _forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None, positions: torch.Tensor, cache: Any
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
        sampled = self._sampler.sample(logits_BV)
        tokens = sampled[0]
        is_stop = (tokens[:, None] == self._stop_ids).any(-1)
        if self._matchers:
            is_stop |= self._matches(rows, tokens, is_done)
        is_over = is_stop | (self._record.num_steps + 1 >= self._budgets)
        if any(pending.is_dropped for pending in self._batch):
            is_over |= torch.tensor([self._batch[row].is_dropped for row in rows.tolist()], device=self._device)
        self._record.add(rows, sampled, is_over & ~is_done, is_stop)
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
        self._backend: Any = tokenizer.backend_tokenizer
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


class _Table(NamedTuple):
    """What was sampled so far: [B, T] token ids and logprobs, [B] lengths and whether a stop ended the row."""

    token_ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]
    lengths: npt.NDArray[np.int64]
    is_stop: npt.NDArray[np.bool_]


class _BatchRecord:
    """What a batch sampled, step by step, left on the device until somebody asks."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._steps: list[tuple[torch.Tensor, ...]] = []  # rows, tokens, logprobs, ends here?, by a stop?
        self._kept: dict[int, list[tuple[int, ...]]] = {}

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    def add(
        self,
        rows: torch.Tensor,
        sampled: tuple[torch.Tensor, torch.Tensor, KeptSets | None],
        is_end: torch.Tensor,
        is_stop: torch.Tensor,
    ) -> None:
        tokens, logprobs, kept = sampled
        self._steps.append((rows, tokens, logprobs, is_end, is_stop))
        if kept is not None:
            row_ids = rows.tolist()
            for place, ids in kept.items():
                self._kept.setdefault(row_ids[place], []).append(ids)

    def table(self) -> _Table:
        shape = (self._num_rows, self.num_steps)
        table = _Table(
            np.zeros(shape, dtype=np.int64),
            np.zeros(shape, dtype=np.float32),
            np.zeros(self._num_rows, dtype=np.int64),
            np.zeros(self._num_rows, dtype=np.bool_),
        )
        for step, columns in enumerate(self._steps):
            rows, tokens, logprobs, is_end, is_stop = (column.cpu().numpy() for column in columns)
            table.token_ids[rows, step] = tokens
            table.logprobs[rows, step] = logprobs
            table.lengths[rows[is_end]] = step + 1
            table.is_stop[rows[is_end]] = is_stop[is_end]
        return table

    def generations(self, version: int) -> list[Generation]:
        table = self.table()
        return [
            Generation(
                token_ids=tuple(table.token_ids[row, :length].tolist()),
                logprobs=tuple(table.logprobs[row, :length].tolist()),
                finish_reason="stop" if table.is_stop[row] else "length",
                versions=(VersionSpan(version, length),),
                kept_token_ids=tuple(self._kept[row][:length]) if row in self._kept else None,
            )
            for row, length in enumerate(table.lengths.tolist())
        ]


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """[U, L] token ids, padded with 0, and their mask."""
    longest = max(map(len, prompts))
    token_ids = np.zeros((len(prompts), longest), dtype=np.int64)
    mask = np.zeros((len(prompts), longest), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        token_ids[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = 1
    return torch.from_numpy(token_ids).to(device), torch.from_numpy(mask).to(device)
