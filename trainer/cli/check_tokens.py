"""`turngym check-tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ...envs.errors import ConfigError
from .flags import FlagParser, parse


def run(argv: Sequence[str]) -> int:
    """Check a tokenizer and its chat template; returns the exit code: 1 where a check failed."""
    parser = FlagParser(
        "turngym check-tokens", "Checks whether a tokenizer's chat template can be continued token for token."
    )
    parser.add_argument("--model", type=str, help="a transformers folder or a Hub name")
    parser.add_argument(
        "--on_rewrite",
        type=Literal["append", "fork", "error"],
        default="error",
        metavar="append|fork|error",
        help="what is done where the template rewrites history; such a template fails the check only by `error`",
    )
    flags = parse(parser, argv)
    if flags["model"] is None:
        raise ConfigError("--model is missing; give a transformers folder or a Hub name")
    from rich.console import Console

    from ...agents.check_tokens import check_tokens

    report = check_tokens(flags["model"], on_rewrite=flags["on_rewrite"])
    Console(highlight=False).print(report)
    return 0 if report.passed else 1
