"""The key-value cache of one batch: with room to grow, joined from prefixes, and cut into them again.

Axes: B rows, P prefix length, H heads, T positions of the cache, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from .prefix_store import Prefix

_ROOM = 32  # positions allocated ahead


class RoomyLayer(DynamicLayer):
    """A layer that writes a new token into room it has, where `DynamicLayer` copies all that came before.

    `keys` and `values` are views of the filled part of two larger tensors.
    """

    keys: Any
    values: Any
    _storage: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values [B, H, new, D]. Returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        keys, values = self._storage_for(key_states, value_states, start, end)
        keys[:, :, start:end], values[:, :, start:end] = key_states, value_states
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values

    def _storage_for(
        self, key_states: torch.Tensor, value_states: torch.Tensor, start: int, end: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Two tensors with room for `end` positions, of which `start` are filled."""
        old = self._storage
        if old is not None and old[0].shape[-2] >= end and self._is_in(old[0]):
            return old
        new = _with_room(key_states, end), _with_room(value_states, end)
        if start:
            new[0][:, :, :start], new[1][:, :, :start] = self.keys, self.values
        self._storage = new
        return new

    def _is_in(self, storage: torch.Tensor) -> bool:
        """Whether the keys are still a view made here; a selection of rows is another tensor."""
        return self.keys.data_ptr() == storage.data_ptr() and len(self.keys) == len(storage)


def _with_room(like: torch.Tensor, length: int) -> torch.Tensor:
    num_rows, num_heads, _, head_size = like.shape
    return like.new_empty(num_rows, num_heads, length + max(_ROOM, length // 2), head_size)


def empty_cache(model_config: Any) -> DynamicCache:
    """A cache for one batch; layers of other kinds than plain attention stay as they are."""
    cache = DynamicCache(config=model_config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def joined_cache(model_config: Any, prefixes: Sequence[Prefix]) -> tuple[DynamicCache, torch.Tensor]:
    """One cache that holds the prefixes, padded on the left, and its [U, P] mask."""
    cache = empty_cache(model_config)
    for index, of_rows in enumerate(zip(*(prefix.layers for prefix in prefixes), strict=True)):
        keys, values = (
            pad_sequence(list(part), batch_first=True, padding_side="left").transpose(1, 2)
            for part in zip(*of_rows, strict=True)
        )
        cache.update(keys, values, index)
    lengths = torch.tensor([len(prefix.token_ids) for prefix in prefixes])
    longest = int(lengths.max())
    mask = torch.arange(longest) >= longest - lengths[:, None]
    return cache, mask.long().to(prefixes[0].layers[0][0].device)


def cut_prefix(cache: Any, row: int, mask: torch.Tensor | None, token_ids: tuple[int, ...]) -> Prefix | None:
    """The row's part of a cache, without padding; None for a kind of cache that can't be cut into rows.

    Args:
        cache: the cache of a batch.
        row: which row of it.
        mask: [B, T] 1 on the positions of the cache that hold a token of the row; None where all do.
        token_ids: the tokens that these positions hold; what comes after them is left out.
    """
    if any(type(layer) is not RoomyLayer for layer in cache.layers):
        return None
    places = slice(len(token_ids)) if mask is None else mask[row].nonzero()[: len(token_ids), 0]
    layers = [
        tuple(
            part[row][:, places].transpose(0, 1).clone(memory_format=torch.contiguous_format)
            for part in (layer.keys, layer.values)
        )
        for layer in cache.layers
    ]
    return Prefix(token_ids, tuple(layers))
