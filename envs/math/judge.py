"""math-verify in a process of its own.

math-verify limits its time with signals: that works in a main thread only, and disturbs whoever else uses SIGALRM. An
expression that a policy wrote can also keep sympy busy for hours, or fill the memory. So a child process compares, in
its main thread, with limits of time and memory; where it overruns, it is killed and the expressions count as different.
It starts with the first comparison and ends with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import selectors
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from ..errors import EnvError
from ..threads import run_in_thread

PROGRAM = Path(__file__).with_name("judge_process.py")
ANSWER_S = 10.0
"""Seconds after which the child is killed; its own limits come first unless one operation alone takes longer."""
START_S = 120.0
"""Seconds for the child to start, importing sympy on a loaded machine."""


async def equal(label: str, answer: str) -> bool:
    """Whether math-verify finds an answer equal to the label.

    Raises:
        EnvError: the child process doesn't start.
    """
    return await run_in_thread(_judge.equal, label, answer)


class _Judge:
    """The child process, asked by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def equal(self, label: str, answer: str) -> bool:
        with self._lock:
            child = self._running() or self._start()
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                child.stdin.write(json.dumps([label, answer]).encode() + b"\n")
                child.stdin.flush()
                reply = _read_line(child.stdout, ANSWER_S)
            except OSError:
                reply = b""
            if not reply:
                self._stop()
            return reply == b"1\n"

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
            child.communicate()


def _read_line(stream: IO[bytes], seconds: float) -> bytes:
    """One short line, or nothing where it takes too long or the stream has ended."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return stream.readline() if selector.select(seconds) else b""


_judge = _Judge()
atexit.register(_judge.kill)
