"""Limits of time around the calls of one episode, cheap enough for every turn."""

from __future__ import annotations

import asyncio
import math

LATE_S = 0.1
"""A timer that fires this much too late was held up by something that blocked the loop."""

AGAIN_S = 10.0
"""When a call that swallowed its cancellation is cancelled again."""


class Deadline:
    """Cancels the task of an episode while one of its calls is overdue.

    `asyncio.timeout` makes and cancels a timer for each call. Here one timer serves all calls of an episode: a call
    only notes when it is due, and a timer that fires too early is set again. A call that swallows its cancellation is
    cancelled again.

    Args:
        episode_timeout_s: seconds that the whole episode may take.
    """

    __slots__ = ("_base", "_due", "_fired", "_handle", "_loop", "_spared", "_task", "episode_due")

    def __init__(self, episode_timeout_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._base = task.cancelling()
        self._due = math.inf
        self._fired = 0
        self._spared = False
        self._handle: asyncio.TimerHandle | None = None
        self.episode_due = self._loop.time() + episode_timeout_s

    def start(self, limit_s: float) -> None:
        """The call that begins now may take `limit_s` seconds, and no more than what the episode has left."""
        self._due = due = min(self._loop.time() + limit_s, self.episode_due)
        self._spared = False
        if self._handle is None:
            if due < math.inf:
                self._handle = self._loop.call_at(due, self._fire)
        elif due < self._handle.when():
            self._handle.cancel()
            self._handle = self._loop.call_at(due, self._fire)

    def stop(self) -> None:
        """The call is over."""
        self._due = math.inf

    def end_episode(self) -> None:
        """What follows has its own limits, and is cancelled only by cancellations to come."""
        self.episode_due = math.inf
        self._base = self._task.cancelling()

    def close(self) -> None:
        """Let go of the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    @property
    def is_overdue(self) -> bool:
        """Whether the call that goes on has had its time."""
        return self._loop.time() >= self._due

    @property
    def is_episode_over(self) -> bool:
        """Whether the episode has no time left."""
        return self._loop.time() >= self.episode_due

    @property
    def is_cancelled(self) -> bool:
        """Whether the task is being cancelled, by this deadline or by somebody else."""
        return self._task.cancelling() > self._base

    def take_expiry(self) -> bool:
        """Whether the deadline, and nobody else, cancelled the task. The cancellation is taken back."""
        fired, self._fired = self._fired, 0
        for _ in range(fired):
            self._task.uncancel()
        return fired > 0 and not self.is_cancelled

    def _fire(self) -> None:
        handle, now = self._handle, self._loop.time()
        assert handle is not None
        self._handle = None
        if now < self._due:
            if self._due < math.inf:
                self._handle = self._loop.call_at(self._due, self._fire)
        elif now - handle.when() > LATE_S and not self._spared:  # what became ready meanwhile goes first
            self._spared = True
            self._handle = self._loop.call_at(now + LATE_S, self._fire)
        else:
            self._fired += 1
            self._task.cancel()
            self._handle = self._loop.call_at(now + AGAIN_S, self._fire)
