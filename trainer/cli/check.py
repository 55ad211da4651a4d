"""`turngym check`."""

from __future__ import annotations

from collections.abc import Sequence

from .flags import FlagParser, parse


def run(argv: Sequence[str]) -> int:
    """Check an environment; returns the exit code: 1 where a check failed."""
    parser = FlagParser("turngym check", "Checks an environment: small named checks; what fails says what to change.")
    parser.add_argument("env", type=str, help="an id, module:Class or file.py:Class")
    parser.add_argument("--seed", type=int, default=0, help="seed of what the checks draw")
    parser.add_argument("--only", type=list[str], default=[], metavar="NAME ...", help="make these checks only")
    flags = parse(parser, argv)
    from ...envs.checks import check_env

    report = check_env(flags["env"], seed=flags["seed"], only=flags["only"] or None)
    print(report)
    return 0 if report.passed else 1
