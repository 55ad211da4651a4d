"""math-verify in processes of its own.

math-verify limits its time with signals: that works in a main thread only, and disturbs whoever else uses SIGALRM. An
expression that a policy wrote can also keep sympy busy for hours, or fill the memory. So child processes compare, each
comparison with limits of time and memory; where it overruns, the expressions count as different. They start with the
first comparisons, more of them only while all are busy, and end with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
from enum import Enum
from pathlib import Path
from queue import PriorityQueue
from typing import IO

from ..errors import ConfigError, EnvError
from ..threads import run_in_thread

PROGRAM = Path(__file__).with_name("judge_process.py")
ANSWER_S = 10.0
"""Seconds after which a child that doesn't answer is killed; on a machine that isn't overloaded, its own limit of less
than a second of computing comes first."""
START_S = 120.0
"""Seconds for the child to start, importing sympy on a loaded machine."""
NUM_PROCESSES = max(1, min(4, (os.cpu_count() or 1) // 2))
"""How many children there are at most, where nothing else is asked for."""


class Outcome(Enum):
    """What a comparison came to."""

    EQUAL = "equal"
    DIFFERENT = "different"
    OVERRAN = "overran"
    LOST = "lost"
    """No result: the child was killed, or didn't answer in time."""


async def equal(label: str, answer: str) -> bool:
    """Whether math-verify finds an answer equal to the label, within its limits.

    Raises:
        EnvError: the child process doesn't start.
    """
    return await shared.compare(label, answer) is Outcome.EQUAL


class Judges:
    """Child processes that compare at the same time.

    Args:
        num_processes: how many there are at most.
        first: one that is there already.
    """

    def __init__(self, num_processes: int = NUM_PROCESSES, first: _Judge | None = None) -> None:
        if num_processes < 1:
            raise ConfigError(f"num_processes={num_processes!r} must be at least 1")
        self._judges = [first or _Judge(), *(_Judge() for _ in range(num_processes - 1))]
        self._idle: PriorityQueue[int] = PriorityQueue()
        for index in range(num_processes):
            self._idle.put(index)

    async def compare(self, label: str, answer: str) -> Outcome:
        """What math-verify says of an answer and the label.

        Raises:
            EnvError: the child process doesn't start.
        """
        return await run_in_thread(self._compare, label, answer)

    async def start(self) -> None:
        """Start one child, so that the first comparison doesn't have to wait for it.

        Raises:
            EnvError: it doesn't start.
        """
        await self.compare("x", "x")

    def kill(self) -> None:
        """End the children without waiting for comparisons that are under way. They start again when needed."""
        for judge in self._judges:
            judge.kill()

    def _compare(self, label: str, answer: str) -> Outcome:
        index = self._idle.get()
        try:
            return self._judges[index].compare(label, answer)
        finally:
            self._idle.put(index)


class _Judge:
    """A child process, asked by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def equal(self, label: str, answer: str) -> bool:
        return self.compare(label, answer) is Outcome.EQUAL

    def compare(self, label: str, answer: str) -> Outcome:
        with self._lock:
            child = self._running() or self._start()
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                child.stdin.write(json.dumps([label, answer]).encode() + b"\n")
                child.stdin.flush()
                reply = _read_line(child.stdout, ANSWER_S)
            except (OSError, ValueError):  # it was killed: its streams are broken, or closed
                reply = b""
            if not reply:
                self._stop()
            return Outcome(reply.decode().strip() or "lost")

    def kill(self) -> None:
        """End the child without waiting for a comparison that is under way."""
        child = self._child
        if child is not None:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # what was not sent can't be sent any more
                        stream.close()

    def _running(self) -> subprocess.Popen[bytes] | None:
        if self._child is not None and self._child.poll() is not None:
            self._stop()
        return self._child

    def _start(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)],  # -P: nothing that lies beside the program shadows what it imports
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._child = child
        assert child.stdout is not None
        if _read_line(child.stdout, START_S) != b"ready\n":
            self._stop()
            raise EnvError(
                f"the process that runs math-verify doesn't start; see what `{sys.executable} {PROGRAM}` says"
            )
        return child

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()


def _read_line(stream: IO[bytes], seconds: float) -> bytes:
    """One short line, or nothing where it takes too long or the stream has ended."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline() if selector.select(seconds) else b""


_judge = _Judge()
shared = Judges(first=_judge)
"""Those that everything uses which doesn't ask for its own."""
atexit.register(shared.kill)
