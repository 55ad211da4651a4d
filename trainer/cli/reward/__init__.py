"""`turngym reward run | try | rescore | attack`: rewards outside of training.

Each command is a module with `run(argv) -> int`, imported only when it is called.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib import import_module

from ....envs.errors import ConfigError

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("script", "run a script of your own, with the imports that reward files have"),
    "try": ("tried", "score examples, and compare with what was expected"),
    "rescore": ("rescored", "score a finished run's episodes again, with another reward"),
    "attack": ("attacked", "try known gaming strategies on a reward"),
}
"""Command -> its module and what it does."""


def run(argv: Sequence[str]) -> int:
    """Run one of the commands; returns the exit code."""
    if not argv:
        print(_help())
        return 0
    name, *rest = argv
    if name in ("-h", "--help", "help"):
        print(_help())
        raise SystemExit(0)
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        raise ConfigError(f"there is no command `turngym reward {name}`; {hint}")
    return import_module(f".{COMMANDS[name][0]}", __name__).run(rest)


def _help() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:{width}}{what}" for name, (_, what) in COMMANDS.items()]
    usage = "usage: turngym reward COMMAND ..."
    return "\n".join(
        [usage, "", "Try a reward, and find out how it is gamed.", "", *lines, "", "Each COMMAND has --help."]
    )
