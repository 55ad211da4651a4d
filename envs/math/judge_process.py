"""The process behind `judge`: answers each line `[label, answer]` with `equal`, `different` or `overran`.

A fork of it compares, which the system ends where a comparison exceeds its limits, whatever sympy is doing. The next
fork is there at once, with everything imported. The file is run as a script, so that it needs to import nothing of
turngym.
"""

import json
import os
import resource
import signal
import socket
import sys
from typing import TextIO

from math_verify import parse, verify

COMPARE_S = 0.9
"""Seconds of computing that a comparison may take. Time that the machine spends on something else doesn't count."""
MEMORY_BYTES = 2**30
MAX_COMPARISONS = 500
"""After as many a fork is replaced, so that what sympy remembers doesn't grow."""
WARM_UP = (
    ("x^{2} - 2x + 1", "(x-1)(x+1)"),
    (r"-\frac{1}{2} + 0.5", r"2\sqrt{3} - 1"),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    ("(1,2]", r"[0, \infty)"),
    (r"(-\infty, 3) \cup (4, 5]", "(0,1)"),
    (r"(\frac{1}{2}, 3)", r"(3, \pi/2)"),
    ("(1, 2, 3)", "1, 2, 3"),
    (r"\{1,2\}", r"\pm 1"),
    ("y = 2x + 1", "x > 3"),
    (r"x \le 3", r"1 < x \le 2"),
    (r"\begin{pmatrix}1 & 2 \\ 3 & 4\end{pmatrix}", r"\begin{bmatrix}0 & 2 \\ 3 & 4\end{bmatrix}"),
    (r"\sin{x} + \cos^2 x", r"\ln 4 + \log_2 3"),
    ("e^{2x}", "e^{x}e^{x}"),
    ("3 + 2i", "x = 1, x = 2"),
)
"""What is compared first: it fills the caches that every fork then has."""


def main() -> None:
    """Answer until the input ends."""
    for label, answer in WARM_UP:
        is_equal(label, answer)
    print("ready", flush=True)
    fork = None
    for line in sys.stdin:
        if fork is None or fork.num_left == 0:
            fork = Fork()
        reply = fork.ask(line)
        if not reply:
            reply = "overran\n" if fork.ended_by() == signal.SIGPROF else "different\n"
            fork = None
        sys.stdout.write(reply)
        sys.stdout.flush()


class Fork:
    """A child of this process that compares, one pair after the other."""

    def __init__(self) -> None:
        self.num_left = MAX_COMPARISONS
        here, there = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            here.close()
            os.close(0)  # nobody may take it for this process
            os.close(1)
            try:
                serve(there.makefile("r"), there.makefile("w"))
            finally:
                os._exit(0)
        there.close()
        self.questions, self.replies = here.makefile("w"), here.makefile("r")
        here.close()

    def ask(self, line: str) -> str:
        """The reply to a line; nothing where the fork ended instead."""
        self.num_left -= 1
        self.questions.write(line)
        self.questions.flush()
        try:
            reply = self.replies.readline()
        except ConnectionError:
            reply = ""
        if self.num_left == 0 and reply:
            self.ended_by()
        return reply

    def ended_by(self) -> int:
        """The signal that ended the fork, or 0, once it has ended; it does so when it is asked no more."""
        self.questions.close()
        self.replies.close()
        status = os.waitpid(self.pid, 0)[1]
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def serve(questions: TextIO, replies: TextIO) -> None:
    """Compare until there are no more questions; each of them within the limits."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in questions:
        signal.setitimer(signal.ITIMER_PROF, COMPARE_S)
        try:
            reply = "equal" if is_equal(*json.loads(line)) else "different"
        except Exception:  # noqa: BLE001 - of sympy, on what a policy wrote
            reply = "different"
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(reply, file=replies, flush=True)


def is_equal(label: str, answer: str) -> bool:
    """Whether math-verify finds both equal; its own limits of time are off."""
    gold, target = (parse(f"${text}$", parsing_timeout=0) for text in (label, answer))
    return verify(gold, target, timeout_seconds=0)


if __name__ == "__main__":
    main()
