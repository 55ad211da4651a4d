"""Whether a reward pays for length or format rather than for the task: a rule, with its thresholds.

The rule looks at episodes that said something, and weren't cut at a limit of tokens: that nothing earns nothing is no
sign of gaming. Those that were cut stay where they earn no less than the others, as they do where length pays. It
compares shares of the rewards' variance, each an adjusted R^2:

    form     what the form of a response explains, over all tasks together: once its length (tokens a turn, squared and
             as logarithm, and words a turn), once its format (`reward_features.SHAPES`)
    inside   the same after each group's means are subtracted: between answers to the same task
    task     what the task explains: the greatest of
             - the intraclass correlation, the share that lies between tasks,
             - what the environment's score explains, unless that is the reward itself over again,
             - what the label explains: whether the response gives it

and warns where, of at least `MIN_EPISODES` episodes,

    form >= MIN_SHARE   and   inside >= MIN_INSIDE   and   form > task

The second condition spares rewards that go with length only because some tasks are harder and take longer. It falls
away where no group has two episodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from .features import SHAPES, EpisodeRow, length_features
from .statistics import Floats, explained, spearman, variance_parts

MIN_EPISODES = 50
MIN_SHARE = 0.25
MIN_INSIDE = 0.1
_COPIED = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """Shares of the rewards' variance; NaN where one can't be told.

    Attributes:
        num_episodes: episodes that were compared.
        holds_cut: whether those that were cut at a limit of tokens are among them.
        length: explained by length.
        length_inside: the same within groups.
        form: explained by format.
        form_inside: the same within groups.
        between_tasks: intraclass correlation.
        by_score: explained by the environment's score.
        by_label: explained by whether the response gives the label.
        warnings: what is wrong, in sentences; empty where nothing is.
    """

    num_episodes: int
    holds_cut: bool = False
    length: float = math.nan
    length_inside: float = math.nan
    form: float = math.nan
    form_inside: float = math.nan
    between_tasks: float = math.nan
    by_score: float = math.nan
    by_label: float = math.nan
    warnings: tuple[str, ...] = ()

    @property
    def task(self) -> float:
        """The most that the task explains in one way; 0 where nothing is known."""
        return max((v for v in (self.between_tasks, self.by_score, self.by_label) if not math.isnan(v)), default=0.0)


def suspect(rows: Sequence[EpisodeRow], groups: Sequence[int]) -> Suspicion:
    """Compare what form and task explain of what episodes earned.

    Args:
        rows: the episodes.
        groups: for each the number of its group, from 0.
    """
    holds_cut = _cut_earns(rows)
    chosen = [i for i, row in enumerate(rows) if not row.features["empty"] and (holds_cut or not _is_cut(row))]
    rows = [rows[index] for index in chosen]
    numbers = np.unique([groups[index] for index in chosen], return_inverse=True)[1].reshape(-1).astype(np.int64)
    rewards = np.array([row.reward for row in rows], dtype=np.float64)
    length = np.array([length_features(row.turn_tokens, row.turn_words) for row in rows], dtype=np.float64)
    form = np.array([[row.features[name] for name in SHAPES] for row in rows], dtype=np.float64)
    if len(rows) < MIN_EPISODES:
        return Suspicion(num_episodes=len(rows), holds_cut=holds_cut)
    found = Suspicion(
        num_episodes=len(rows),
        holds_cut=holds_cut,
        length=explained(rewards, length),
        length_inside=explained(rewards, length, groups=numbers),
        form=explained(rewards, form),
        form_inside=explained(rewards, form, groups=numbers),
        between_tasks=variance_parts(rewards, numbers).icc,
        by_score=_by_score(rows, rewards),
        by_label=_by_outcome([None if row.is_right is None else float(row.is_right) for row in rows], rewards),
    )
    warnings = []
    if _is_suspect(found.length, found.length_inside, found.task):
        warnings.append(_warning("Length", found.length, found.length_inside, found.task, _direction(rows, rewards)))
    if _is_suspect(found.form, found.form_inside, found.task):
        told = _strongest(form, rewards)
        warnings.append(_warning("Format", found.form, found.form_inside, found.task, told))
    return replace(found, warnings=tuple(warnings))


def _cut_earns(rows: Sequence[EpisodeRow]) -> bool:
    """Whether episodes that were cut earn no less than those that said something and weren't."""
    cut = [row.reward for row in rows if _is_cut(row)]
    others = [row.reward for row in rows if not _is_cut(row) and not row.features["empty"]]
    return bool(cut) and (not others or fmean(cut) >= fmean(others))


def _is_cut(row: EpisodeRow) -> bool:
    return row.features["cut by length"]


def _is_suspect(share: float, inside: float, task: float) -> bool:
    return share >= MIN_SHARE and share > task and (math.isnan(inside) or inside >= MIN_INSIDE)


def _warning(what: str, share: float, inside: float, task: float, told: str) -> str:
    within = "" if math.isnan(inside) else f" ({inside:.0%} within groups)"
    return (
        f"{what} explains {share:.0%} of the variance of what responses earn{within}, and the task {task:.0%}: {told}. "
        "Read the responses that earn most; the reward may pay for form"
    )


def _direction(rows: Sequence[EpisodeRow], rewards: Floats) -> str:
    correlation = spearman(np.array([row.turn_tokens for row in rows]), rewards)
    if abs(correlation) < 0.3:
        return "responses of some lengths earn more than shorter and longer ones"
    return "longer responses earn more" if correlation > 0 else "shorter responses earn more"


def _strongest(form: Floats, rewards: Floats) -> str:
    alone = [explained(rewards, form[:, [index]]) for index in range(form.shape[1])]
    best = int(np.nanargmax(alone))
    has = form[:, best] > 0
    more = "more" if rewards[has].mean() > rewards[~has].mean() else "less"
    return f"responses with {list(SHAPES)[best]} earn {more}"


def _by_score(rows: Sequence[EpisodeRow], rewards: Floats) -> float:
    """What the score explains, unless it is what the reward or the run's own reward gave, clamped."""
    scored = [row for row in rows if row.score is not None]
    for given in ([row.reward for row in scored], [row.value for row in scored]):
        same = [
            value is not None and abs((row.score or 0.0) - min(max(value, 0.0), 1.0)) < _COPIED
            for row, value in zip(scored, given, strict=True)
        ]
        if sum(same) >= 0.99 * len(same):
            return math.nan
    return _by_outcome([row.score for row in rows], rewards)


def _by_outcome(outcomes: Sequence[float | None], rewards: Floats) -> float:
    """What an outcome explains of the rewards, over the episodes that have it."""
    known = [index for index, outcome in enumerate(outcomes) if outcome is not None]
    if len(known) < MIN_EPISODES:
        return math.nan
    return explained(rewards[known], np.array([[outcomes[index]] for index in known], dtype=np.float64))
