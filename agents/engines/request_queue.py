"""The requests that wait for an engine, and the rule for when which of them run together."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass, field

from ..engine import GenerateRequest, Generation


@dataclass(eq=False, slots=True, kw_only=True)
class PendingRequest:
    """A request and the caller that waits for it.

    Attributes:
        request: what was asked.
        max_tokens: most tokens to sample: the request's own limit, cut to the model's context.
        seed: seed of the request's random stream.
        future: what the caller awaits.
        is_dropped: whether the caller is gone; its row may stop early.
    """

    request: GenerateRequest
    max_tokens: int
    seed: int
    future: asyncio.Future[Generation]
    is_dropped: bool = field(default=False)


class RequestQueue:
    """Waiting requests and live episodes. Not thread-safe: the owner holds a lock.

    Without determinism, whatever waits runs next, oldest first. In deterministic mode nothing runs until every live
    episode waits (or has ended); then everything that waits runs, ordered by episode id and cut into batches in that
    order, so that batches do not depend on the order of arrival.

    Args:
        max_batch_size: most rows of one batch.
        deterministic: whether batches wait for every live episode.
    """

    def __init__(self, *, max_batch_size: int, deterministic: bool) -> None:
        self._max_batch_size = max_batch_size
        self._deterministic = deterministic
        self._waiting: dict[PendingRequest, None] = {}
        self._num_waiting: Counter[str] = Counter()
        self._live: set[str] = set()
        self._outstanding: set[str] = set()  # live episodes none of whose requests wait

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, episode_id: str) -> None:
        """The episode is live from now on."""
        self._live.add(episode_id)
        if not self._num_waiting[episode_id]:
            self._outstanding.add(episode_id)

    def end(self, episode_id: str) -> None:
        """The episode asks for nothing more."""
        self._live.discard(episode_id)
        self._outstanding.discard(episode_id)

    def add(self, pending: PendingRequest) -> None:
        """The request waits from now on."""
        episode_id = pending.request.episode_id
        self._waiting[pending] = None
        self._num_waiting[episode_id] += 1
        self._outstanding.discard(episode_id)

    def remove(self, pending: PendingRequest) -> bool:
        """The request waits no longer. Returns whether it did."""
        if pending not in self._waiting:
            return False
        del self._waiting[pending]
        episode_id = pending.request.episode_id
        self._num_waiting[episode_id] -= 1
        if not self._num_waiting[episode_id]:
            del self._num_waiting[episode_id]
            if episode_id in self._live:
                self._outstanding.add(episode_id)
        return True

    def is_ready(self) -> bool:
        """Whether something may run now."""
        return bool(self._waiting) and not (self._deterministic and self._outstanding)

    def take(self) -> list[list[PendingRequest]]:
        """Remove and return the batches that run next, in order."""
        if self._deterministic:
            taken = sorted(self._waiting, key=lambda p: (p.request.episode_id, p.request.request_id))
        else:
            taken = list(itertools.islice(self._waiting, self._max_batch_size))
        for pending in taken:
            self.remove(pending)
        size = self._max_batch_size
        return [taken[start : start + size] for start in range(0, len(taken), size)]

    def clear(self) -> list[PendingRequest]:
        """Remove and return everything that waits."""
        taken = list(self._waiting)
        for pending in taken:
            self.remove(pending)
        return taken
