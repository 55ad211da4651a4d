"""`turngym reward rescore`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....envs.errors import ConfigError
from ..flags import FlagParser, parse
from .given import add_reward, reward_of

_EXAMPLE = (
    "Scores a finished run's stored episodes again, with no model, and shows how rewards, ranks and groups would have "
    "changed."
)


def run(argv: Sequence[str]) -> int:
    """Rescore a run; returns the exit code."""
    parser = FlagParser("turngym reward rescore", _EXAMPLE)
    parser.usage = "turngym reward rescore RUN --reward REWARD [--flag value ...]"
    parser.add_argument("run", type=str, help="the run's folder")
    add_reward(parser, "--reward")
    parser.add_argument("--limit", type=int | None, default=None, metavar="N", help="at most so many episodes")
    flags = parse(parser, argv)
    folder = Path(flags["run"])
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder; give the run's folder, such as runs/NAME")
    if flags["limit"] is not None and flags["limit"] < 1:
        raise ConfigError(f"--limit {flags['limit']} must be at least 1")
    reward = reward_of(flags)
    from ...reward_reports.rescore import rescore

    report = rescore(folder, reward, limit=flags["limit"], timeout_s=flags["reward_timeout_s"])
    print(report.as_text())
    return 0
