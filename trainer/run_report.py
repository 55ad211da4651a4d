"""What callers of the loop get: a report after each update, and one of the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..agents.group import Group
from .evaluate import EvalReport


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What one update did; given to callbacks.

    Attributes:
        update: its number, from 0.
        version: published updates, this one included.
        metrics: numbers by the names of `turngym.trainer.METRICS`; `metrics["rewards"]` lists this update's rewards.
        groups: the episodes, as they were played.
    """

    update: int
    version: int
    metrics: dict[str, Any]
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What a run came to.

    Attributes:
        out: its folder.
        policy: the folder with the trained policy.
        version: updates done.
        before: the evaluation before the first update, or None where an earlier one made it.
        after: the evaluation after the last one, or None.
        reward_analysis: what `save_reward_analysis` wrote, or None.
    """

    out: Path
    policy: Path
    version: int
    before: EvalReport | None
    after: EvalReport | None
    reward_analysis: Path | None = None
