"""Keys and values of live episodes, kept between their turns so that a turn computes its new tokens only.

Axes: H heads, T tokens of one row, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..engine import GenerateRequest


class Prefix(NamedTuple):
    """Tokens that an episode's context begins with, and what attention remembers of them.

    Attributes:
        token_ids: [T] the tokens.
        layers: per layer, its keys and its values, [T, H, D] each.
    """

    token_ids: tuple[int, ...]
    layers: tuple[tuple[torch.Tensor, ...], ...]

    @property
    def num_bytes(self) -> int:
        """Size of keys and values."""
        return sum(part.nbytes for layer in self.layers for part in layer)


class PrefixStore:
    """The prefix of each live episode, under a limit of memory.

    Args:
        max_bytes: most memory to hold; what comes when it is full is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._prefixes: dict[str, Prefix] = {}
        self._live: set[str] = set()

    def begin(self, episode_id: str) -> None:
        """The episode is live: its prefix is worth keeping."""
        self._live.add(episode_id)

    def end(self, episode_id: str) -> None:
        """The episode asks for nothing more."""
        self._live.discard(episode_id)

    def clear(self) -> None:
        """Forget every prefix: the weights have changed."""
        self._prefixes.clear()
        self._num_bytes = 0

    def take(self, requests: Sequence[GenerateRequest]) -> list[Prefix | None]:
        """Remove and return the prefix that each request's prompt goes on from; forget those of ended episodes."""
        for ended in self._prefixes.keys() - self._live:
            self._remove(ended)
        return [self._take(request.episode_id, request.prompt_token_ids) for request in requests]

    def _take(self, episode_id: str, prompt: Sequence[int]) -> Prefix | None:
        prefix = self._remove(episode_id)
        if prefix is None or len(prefix.token_ids) >= len(prompt):
            return None
        return prefix if tuple(prompt[: len(prefix.token_ids)]) == prefix.token_ids else None

    def _remove(self, episode_id: str) -> Prefix | None:
        prefix = self._prefixes.pop(episode_id, None)
        if prefix is not None:
            self._num_bytes -= prefix.num_bytes
        return prefix

    def wants(self, episode_id: str) -> bool:
        """Whether a prefix of this episode would be kept."""
        return episode_id in self._live and self._num_bytes < self._max_bytes

    def put(self, episode_id: str, prefix: Prefix) -> None:
        """Keep a prefix for the episode's next turn."""
        self._remove(episode_id)
        self._num_bytes += prefix.num_bytes
        self._prefixes[episode_id] = prefix
