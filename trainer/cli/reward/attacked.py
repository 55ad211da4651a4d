"""`turngym reward attack`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..flags import FlagParser, parse
from .given import add_reward, call_timeout_s, file_of, reward_of, with_reward

if TYPE_CHECKING:
    from ....envs.rewards.attacking import AttackReport, AttackResult
    from ....envs.rewards.base import RewardFunction

_EXAMPLE = (
    "Tries known gaming strategies on a reward, and shows the best that each earns next to what honest responses earn. "
    "Every response is scored as in training; with a judge that may cost money."
)


def run(argv: Sequence[str]) -> int:
    """Attack a reward; returns the exit code: with --strict, 1 where an attack earns the threshold."""
    parser = FlagParser("turngym reward attack", _EXAMPLE)
    add_reward(parser)
    parser.add_argument(
        "--examples",
        type=str,
        metavar="FILE",
        help="prompts with labels, columns and maybe honest responses, a .jsonl file; without it, four sums",
    )
    parser.add_argument("--threshold", type=float, default=0.5, metavar="X", help="what an attack must not earn")
    parser.add_argument("--strict", type=bool, default=False, metavar="", help="exit code 1 where an attack earns it")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of what the attacks draw")
    flags = parse(parser, argv)
    from ....envs.rewards.attacking import BUILT_IN_CASES, try_attacks
    from ....envs.rewards.attacks import known_attacks
    from ....envs.rewards.examples import read_cases

    cases = BUILT_IN_CASES if flags["examples"] is None else read_cases(flags["examples"], needs_response=False)
    reward = reward_of(flags)
    attacks = known_attacks(_words(reward, flags))
    report = asyncio.run(
        with_reward(
            reward,
            lambda ready: try_attacks(
                ready, cases, attacks=attacks, timeout_s=call_timeout_s(flags), seed=flags["seed"]
            ),
        )
    )
    _print(report, flags["threshold"])
    return 1 if flags["strict"] and report.winners(flags["threshold"]) else 0


def _words(reward: RewardFunction, flags: Mapping[str, Any]) -> list[str]:
    from ....envs.rewards.attacks import words_in_file, words_of

    file = file_of(flags["reward"])
    return words_of(reward) + ([] if file is None else words_in_file(file))


def _print(report: AttackReport, threshold: float) -> None:
    from rich.console import Console

    from .shown import line, make_table, number, say, shown

    console = Console(highlight=False)
    wide = max(16, console.width - 42)
    table = make_table("attack", "best", "mean", "response that earned the most")
    honest = [report.honest] if report.honest.rewards or report.honest.errors else []
    for result in (*honest, *report.results):
        if result.best is None:
            table.add_row(result.name, "failed" if result.errors else "-", "", "" if result.errors else "not tried")
        else:
            table.add_row(result.name, number(result.best), number(result.mean), shown(result.response, wide))
    console.print(table)
    for result in (*honest, *report.results):
        if result.errors:
            count = len(result.errors) + len(result.rewards)
            say(console, line(f"{result.name}: {len(result.errors)} of {count} failed: {result.errors[0]}"))
    say(console, _verdict(report.winners(threshold), len(report.results), threshold))


def _verdict(winners: Sequence[AttackResult], count: int, threshold: float) -> str:
    if not winners:
        return f"None of {count} attacks earns {threshold:g} or more."
    names = ", ".join(result.name for result in winners)
    return f"{len(winners)} of {count} attacks earn {threshold:g} or more: {names}"
