"""The command line: `turngym train | eval | check | check-tokens | reward | envs`.

Each command is a module with `run(argv) -> int`, imported only when it is called. A mistake of the user is one line on
standard error and exit code 2; a run that had to stop, or a check that failed, is exit code 1.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from ...envs.errors import ConfigError, DataError, TemplateError, TurngymError, UnknownEnvError

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("train", "train a policy in an environment"),
    "eval": ("evaluate", "play an environment's held-out tasks with a policy"),
    "check": ("check", "check an environment"),
    "check-tokens": ("check_tokens", "check a tokenizer and its chat template"),
    "reward": ("reward", "try, attack and rescore rewards"),
    "envs": ("envs", "list the environments"),
}
"""Command -> its module and what it does."""

_MISTAKES = (ConfigError, DataError, UnknownEnvError, TemplateError)
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells use it."""
BROKEN_PIPE = 141
"""Exit code where the output can't be written any more, as shells use it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    name, *rest = arguments
    if name == "--version":
        print(f"turngym {_version()}")
        return 0
    if name not in COMMANDS:
        return _say("turngym", f"there is no command {name!r}; {_nearest(name)}", 2)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    # Before torch is imported: its threads otherwise spin while they wait, and slow each other on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        code = import_module(f".{COMMANDS[name][0]}", __name__).run(rest)
        sys.stdout.flush()
        return code
    except TurngymError as error:
        return _say(f"turngym {name}", " ".join(str(error).split()), 2 if isinstance(error, _MISTAKES) else 1)
    except BrokenPipeError:  # whoever read the output has gone, as in `turngym envs | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        hint = "; go on with --resume" if name == "train" else ""
        return _say(f"turngym {name}", f"interrupted{hint}", INTERRUPTED)


def _say(who: str, message: str, code: int) -> int:
    print(f"{who}: error: {message}" if code != INTERRUPTED else f"{who}: {message}", file=sys.stderr)
    return code


def _help() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:{width}}{what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: turngym COMMAND [--flag value ...]",
            "",
            "Train language-model agents in multi-step environments.",
            "",
            *lines,
            "",
            "turngym COMMAND --help shows its flags; turngym --version the version.",
        ]
    )


def _nearest(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"


def _version() -> str:
    try:
        return version("turngym")
    except PackageNotFoundError:
        return "(run from the tree, not installed)"
