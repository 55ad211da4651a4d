"""Notices environments that block the event loop, while they do."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .rollout import Rollout
    from .stats import ExecutorStats

INTERVAL_S = 0.25
"""How often the loop is asked for a sign of life."""

BLOCKED_S = 1.0
"""How long it may take to give one."""


class LoopWatch:
    """A thread that asks the event loop for signs of life, and names the environment that keeps it from giving one.

    Inside its process a call that blocks the loop can't be stopped: it is only noticed.

    Args:
        running: which episode each task plays.
        stats: where a blocking call is counted.
        blocked_s: how long the loop may stay silent.
    """

    def __init__(
        self, running: Mapping[asyncio.Task[Any], Rollout], stats: ExecutorStats, *, blocked_s: float = BLOCKED_S
    ) -> None:
        self._running = running
        self._stats = stats
        self._blocked_s = blocked_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch the running loop. Does nothing where it is watched already."""
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(
                target=self._watch, args=(loop, threading.get_ident()), name="turngym-loop-watch", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        while not self._stopped.wait(INTERVAL_S):
            beat = threading.Event()
            try:
                loop.call_soon_threadsafe(beat.set)
            except RuntimeError:  # the loop is closed
                return
            if not beat.wait(self._blocked_s):
                self._accuse(loop, loop_thread)
            while not beat.wait(INTERVAL_S):
                if self._stopped.is_set() or loop.is_closed():
                    return

    def _accuse(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        task = asyncio.current_task(loop)
        rollout = None if task is None else self._running.get(task)
        calls = None if rollout is None else rollout.calls
        if calls is None or calls.where == "generate":
            return
        calls.is_blocking = True
        frame = sys._current_frames().get(loop_thread)  # noqa: SLF001 - documented, for this very purpose
        at = "unknown" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self._stats.add_blocked(calls.where, at)
