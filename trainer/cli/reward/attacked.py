"""`turngym reward attack`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...reward_reports.shown_text import head
from ..flags import FlagParser, parse
from .given import add_reward, call_timeout_s, file_of, reward_of, with_reward

if TYPE_CHECKING:
    from ....envs.rewards.attacking import AttackReport, AttackResult
    from ....envs.rewards.base import RewardFunction

_EXAMPLE = (
    "Tries known gaming strategies on a reward, and shows the best that each earns next to what honest responses earn. "
    "Every response is scored as in training; with a judge that may cost money."
)

_MESSAGE_CHARS = 2000
_NAMES = 3


def run(argv: Sequence[str]) -> int:
    """Attack a reward; returns the exit code: 1 where nothing could be scored; with --strict, where an attack wins."""
    parser = FlagParser("turngym reward attack", _EXAMPLE)
    parser.usage = "turngym reward attack REWARD [--flag value ...]"
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
    if not report.is_known:
        return 1
    return 1 if flags["strict"] and (report.winners(flags["threshold"]) or report.unknown) else 0


def _words(reward: RewardFunction, flags: Mapping[str, Any]) -> list[str]:
    from ....envs.rewards.attacks import words_in_file, words_of

    file = file_of(flags["reward"])
    return words_of(reward) + ([] if file is None else words_in_file(file))


def _print(report: AttackReport, threshold: float) -> None:
    from rich.console import Console

    from .shown import make_table, number, say, shown

    console = Console(highlight=False)
    wide = max(16, console.width - 46)
    table = make_table("attack", "best", "mean", "response that earned the most")
    honest = [report.honest] if report.honest.rewards or report.honest.errors else []
    for result in (*honest, *report.results):
        if result.best is None:
            table.add_row(result.name, "failed" if result.errors else "-", "", "" if result.errors else "not tried")
        else:
            table.add_row(result.name, number(result.best, 3), number(result.mean, 3), shown(result.response, wide))
    console.print(table)
    for text in _failures([*honest, *report.results]):
        say(console, text)
    if report.by_score:
        say(console, "The reward compares episodes: its scores are shown, not its rewards.")
    say(console, _verdict(report, threshold))


def _failures(results: Sequence[AttackResult]) -> list[str]:
    """A line for each first failure of an attack; attacks that failed in the same way share one."""
    alike: dict[str, list[AttackResult]] = {}
    for result in results:
        if result.errors:
            alike.setdefault(head(str(result.errors[0]), _MESSAGE_CHARS), []).append(result)
    lines = []
    for message, failed in alike.items():
        more = f" and {len(failed) - _NAMES} more" if len(failed) > _NAMES else ""
        names = ", ".join(result.name for result in failed[:_NAMES])
        num_failed, num_tried = sum(len(r.errors) for r in failed), sum(r.num_tried for r in failed)
        lines.append(f"{names}{more}: {num_failed} of {num_tried} failed: {message}")
    return lines


def _verdict(report: AttackReport, threshold: float) -> str:
    winners, count = report.winners(threshold), len(report.results)
    names, verb = ", ".join(result.name for result in winners), "earns" if len(winners) == 1 else "earn"
    if not report.is_known:
        return "Nothing could be scored; give --examples with the columns that the reward needs."
    unknown = f"; {len(report.unknown)} could not be scored" if report.unknown else ""
    if not winners:
        honest = report.honest.best
        doubt = "" if honest is None or honest >= threshold else "; nor does an honest response, so this says little"
        hint = ": give --examples with better ones, or another --threshold" if doubt else ""
        return f"None of {count} attacks earns {threshold:g} or more{unknown}{doubt}{hint}."
    return f"{len(winners)} of {count} attacks {verb} {threshold:g} or more{unknown}: {names}"
