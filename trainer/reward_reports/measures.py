"""Measures what a run's episodes show about its reward."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .collect import Collected, UpdateFigures
from .features import FAULTS, SHAPES, EpisodeRow
from .findings import Contrast, Drift, LengthFinding, Opening, PartFinding, RewardAnalysis
from .log import by_name
from .statistics import (
    Floats,
    Integers,
    group_means,
    is_constant,
    mean_or_nan,
    pearson,
    skewness,
    spearman,
    variance_parts,
)
from .stored_groups import Split
from .suspicion import suspect

NUM_EXAMPLES = 5
MAX_OPENINGS = 8
_MAX_PARTS = 30


def findings(found: Collected, *, run: Path, split: Split, notes: Sequence[str] = ()) -> RewardAnalysis:
    """The numbers behind the report. Of no episode at all most are NaN.

    Args:
        found: what was read of the run.
        run: its folder.
        split: which of its episodes were read.
        notes: what couldn't be looked at, and why.
    """
    rows = list(itertools.chain.from_iterable(found.groups))
    numbers = np.repeat(np.arange(len(found.groups)), [len(group) for group in found.groups]).astype(np.int64)
    rewards = np.array([row.reward for row in rows], dtype=np.float64)
    percentiles = np.percentile(rewards, [5, 25, 50, 75, 95]).tolist() if rows else [math.nan] * 5
    by_reward = sorted(_opening_findings(rows), key=lambda opening: (opening.mean, opening.opening))
    return RewardAnalysis(
        run=run,
        split=split,
        num_episodes=found.num_episodes,
        num_groups=found.num_groups,
        num_failed=found.num_failed,
        mean=mean_or_nan(rewards),
        std=float(rewards.std()) if rows else math.nan,
        variance=float(rewards.var()) if rows else math.nan,
        skewness=skewness(rewards),
        least=float(rewards.min()) if rows else math.nan,
        greatest=float(rewards.max()) if rows else math.nan,
        percentiles=tuple(percentiles),
        spread=variance_parts(rewards, numbers),
        length=_length(rows, rewards, numbers),
        contrasts=_contrasts(rows, rewards, numbers),
        parts=_parts(rows, rewards, numbers),
        worst_openings=tuple(o for o in by_reward[:MAX_OPENINGS] if o.mean < rewards.mean()),
        best_openings=tuple(o for o in by_reward[: -MAX_OPENINGS - 1 : -1] if o.mean > rewards.mean()),
        worst=_examples(rows, 1),
        best=_examples(rows, -1),
        suspicion=suspect(rows, numbers.tolist()),
        without_signal=found.num_without_signal / found.num_with_siblings if found.num_with_siblings else math.nan,
        endings=dict(found.endings.most_common()),
        failures=dict(found.failures.most_common()),
        updates=tuple(found.updates),
        drift=_drift(found.updates),
        notes=tuple(notes),
        rows=tuple(rows),
        groups=tuple(numbers.tolist()),
    )


def _contrasts(rows: Sequence[EpisodeRow], rewards: Floats, groups: Integers) -> tuple[Contrast, ...]:
    contrasts: list[Contrast] = []
    std = rewards.std() if rows else 0.0
    centred = _inside(rewards, groups)
    for feature in (*SHAPES, *FAULTS):
        has = np.array([row.features[feature] for row in rows], dtype=np.bool_)
        if not has.any() or has.all():
            continue
        with_, without = float(rewards[has].mean()), float(rewards[~has].mean())
        distance = _inside(has.astype(np.float64), groups)
        varying = float((distance**2).sum())
        contrasts.append(
            Contrast(
                feature=feature,
                share=float(has.mean()),
                mean_with=with_,
                mean_without=without,
                difference=with_ - without,
                effect=(with_ - without) / float(std) if not is_constant(rewards) else 0.0,
                inside=float((distance * centred).sum()) / varying if varying > 1e-9 else math.nan,
            )
        )
    return tuple(sorted(contrasts, key=lambda contrast: -abs(contrast.effect)))


def _parts(rows: Sequence[EpisodeRow], rewards: Floats, groups: Integers) -> tuple[PartFinding, ...]:
    indexed = [{name: float(index) for name in row.parts} for index, row in enumerate(rows)]
    parts: list[PartFinding] = []
    for name, places in by_name(indexed, _MAX_PARTS).items():
        at = np.array(places, dtype=np.int64)
        values = np.array([rows[index].parts[name] for index in at.tolist()])
        parts.append(
            PartFinding(
                name=name,
                num_episodes=len(values),
                mean=float(values.mean()),
                std=float(values.std()),
                pearson=pearson(values, rewards[at]),
                inside=_correlation_inside(values, rewards[at], groups[at]),
            )
        )
    return tuple(parts)


def _length(rows: Sequence[EpisodeRow], rewards: Floats, groups: Integers) -> LengthFinding:
    tokens = np.array([row.num_tokens for row in rows], dtype=np.float64)
    turns = np.array([row.num_turns for row in rows], dtype=np.float64)
    by_length = rewards[np.argsort(tokens, kind="stable")]
    first, middle, last = (mean_or_nan(third) for third in np.array_split(by_length, 3))
    return LengthFinding(
        pearson=pearson(tokens, rewards),
        spearman=spearman(tokens, rewards),
        inside=_correlation_inside(tokens, rewards, groups),
        turns=spearman(turns, rewards),
        thirds=(first, middle, last),
    )


def _inside(values: Floats, groups: Integers) -> Floats:
    return values - group_means(values, groups) if len(values) else values


def _correlation_inside(x: Floats, y: Floats, groups: Integers) -> float:
    """Pearson's correlation between siblings; NaN where they don't differ."""
    x_in, y_in = _inside(x, groups), _inside(y, groups)
    if not len(x) or is_constant(x_in, float(np.abs(x).max())) or is_constant(y_in, float(np.abs(y).max())):
        return math.nan
    return pearson(x_in, y_in)


def _opening_findings(rows: Sequence[EpisodeRow]) -> list[Opening]:
    """Openings of at least 1 % of the episodes, and of five."""
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        rewards[row.opening].append(row.reward)
    least = max(5, math.ceil(len(rows) / 100))
    return [
        Opening(opening=opening, num_episodes=len(earned), mean=float(np.mean(earned)))
        for opening, earned in rewards.items()
        if len(earned) >= least
    ]


def _examples(rows: Sequence[EpisodeRow], sign: int) -> tuple[EpisodeRow, ...]:
    """Episodes of the least (sign 1) or greatest (sign -1) rewards, no response twice; equals in random order."""
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    chosen: dict[str, EpisodeRow] = {}
    for index in sorted(order, key=lambda index: sign * rows[index].reward):
        chosen.setdefault(rows[index].response, rows[index])
        if len(chosen) == NUM_EXAMPLES:
            break
    return tuple(chosen.values())


def _drift(updates: Sequence[UpdateFigures]) -> Drift | None:
    if len(updates) < 3:
        return None
    first, last = updates[: len(updates) // 3], updates[-(len(updates) // 3) :]
    variances = [_variance_of_mean([u.mean for u in part]) for part in (first, last)]
    return Drift(
        first_mean=mean_or_nan([u.mean for u in first]),
        last_mean=mean_or_nan([u.mean for u in last]),
        change_error=math.sqrt(sum(variances)),
        first_std=mean_or_nan([u.std for u in first]),
        last_std=mean_or_nan([u.std for u in last]),
        first_tokens=mean_or_nan([u.num_tokens for u in first]),
        last_tokens=mean_or_nan([u.num_tokens for u in last]),
    )


def _variance_of_mean(values: Sequence[float]) -> float:
    return float(np.var(values, ddof=1)) / len(values) if len(values) > 1 else math.nan
