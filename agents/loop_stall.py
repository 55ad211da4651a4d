"""Measures the event loop's longest stall: how long nobody else got a turn."""

from __future__ import annotations

import asyncio
from typing import Self


class LoopStall:
    """A heartbeat on the running event loop that measures by how much it comes late.

    Whatever keeps the loop busy delays the next beat by as long. A stall is measured up to `interval_s` too short: it
    may begin right after a beat.

    >>> async def longest():
    ...     async with LoopStall() as stall:
    ...         await asyncio.sleep(0)
    ...         return stall.longest_s
    >>> asyncio.run(longest()) >= 0
    True

    Args:
        interval_s: seconds between two beats.
    """

    def __init__(self, *, interval_s: float = 0.01) -> None:
        self.interval_s = interval_s
        self._longest_s = 0.0
        self._due = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beating: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self.reset()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._longest_s = self.longest_s
        self._stop()
        self._loop = None

    @property
    def longest_s(self) -> float:
        """Seconds of the longest stall since the last reset, one that is just over included."""
        late = 0.0 if self._loop is None else self._loop.time() - self._due
        return max(self._longest_s, late)

    def reset(self) -> float:
        """Begin anew from this moment, and give the longest stall before it in seconds. Call it on the loop."""
        longest_s = self.longest_s if self._beating is not None else self._longest_s
        self._stop()
        self._longest_s = 0.0
        if self._loop is not None:
            self._schedule(self._loop)
        return longest_s

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + self.interval_s
        self._beating = loop.call_at(self._due, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        late = loop.time() - self._due
        if late > self._longest_s:
            self._longest_s = late
        self._schedule(loop)

    def _stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
