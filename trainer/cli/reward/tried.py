"""`turngym reward try`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....envs.errors import ConfigError
from ...reward_reports.shown_text import head
from ..flags import FlagParser, parse
from .given import add_reward, call_timeout_s, reward_of, with_reward

if TYPE_CHECKING:
    from ....envs.rewards.examples import CaseResult

_EXAMPLE = (
    "Scores example responses and compares with what was expected; exit code 1 where something is off. The file holds "
    'one case a line: {"prompt": "2 + 2?", "response": "4", "label": "4", "expected": 1}. "expected" may also hold '
    'numbers by part, {"reward": 1, "format": 0.5}; cases with the same "group" are scored together; other columns are '
    "the row's."
)

_MESSAGE_CHARS = 2000
_LINES = 5


def run(argv: Sequence[str]) -> int:
    """Try a reward; returns the exit code: 1 where something is off."""
    parser = FlagParser("turngym reward try", _EXAMPLE)
    parser.usage = "turngym reward try REWARD --examples FILE [--flag value ...]"
    add_reward(parser)
    parser.add_argument("--examples", type=str, metavar="FILE", help="the cases, a .jsonl file")
    parser.add_argument("--tolerance", type=float, default=1e-6, metavar="X", help="how far a number may be off")
    flags = parse(parser, argv)
    if flags["examples"] is None:
        raise ConfigError("--examples is missing; give a .jsonl file with one case a line")
    if not flags["tolerance"] >= 0:
        raise ConfigError(f"--tolerance {flags['tolerance']:g} must be at least 0")
    from ....envs.rewards.examples import read_cases, try_cases

    cases = read_cases(flags["examples"])
    reward = reward_of(flags)
    results = asyncio.run(
        with_reward(
            reward,
            lambda ready: try_cases(ready, cases, tolerance=flags["tolerance"], timeout_s=call_timeout_s(flags)),
        )
    )
    _print(results)
    return 1 if any(result.is_off for result in results) else 0


def _print(results: Sequence[CaseResult]) -> None:
    """A row for each number of each case, then what failed and how many are off."""
    from rich.console import Console

    from .shown import make_table, number, say, shown

    console = Console(highlight=False)
    wide = max(16, console.width - 50)
    table = make_table("line", "response", "part", "reward", "expected", "")
    for result in results:
        first = (str(result.case.line), shown(result.case.response or "", wide))
        if result.error is not None:
            expected = result.case.expected.get("reward")
            table.add_row(*first, "reward", "failed", "" if expected is None else number(expected), "off")
        for comparison in result.comparisons:
            expected = "" if comparison.expected is None else number(comparison.expected)
            verdict = "" if comparison.expected is None else "off" if comparison.is_off else "ok"
            table.add_row(*first, shown(comparison.part, 18), number(comparison.given), expected, verdict)
            first = ("", "")
    console.print(table)
    for text in _failures(results):
        say(console, text)
    num_off = sum(result.is_off for result in results)
    say(console, f"{len(results)} case{'s' * (len(results) != 1)}, {num_off} off")


def _failures(results: Sequence[CaseResult]) -> list[str]:
    """What scoring failed with; cases that failed in the same way share a line."""
    alike: dict[str, list[int]] = {}
    for result in results:
        if result.error is not None:
            alike.setdefault(head(str(result.error), _MESSAGE_CHARS), []).append(result.case.line)
    texts = []
    for message, lines in alike.items():
        more = f" and {len(lines) - _LINES} more" if len(lines) > _LINES else ""
        named = ", ".join(map(str, lines[:_LINES]))
        texts.append(f"line{'s' * (len(lines) != 1)} {named}{more} failed: {message}")
    return texts
