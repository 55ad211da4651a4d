"""How rewards, ranks and groups differ between what a run's episodes got and what another reward gives them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .shown_text import head
from .statistics import Floats, is_constant, mean_or_nan, ranks, spearman

NUM_MOVERS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoredEpisode:
    """One episode.

    Attributes:
        episode_id: its id.
        task_id: its task.
        update: the update that it was played for.
        response: the beginning of its response.
        old: what it got in the run.
        new: what the other reward gives it, or None where it couldn't be scored.
        error: why it couldn't.
    """

    episode_id: str
    task_id: str
    update: int
    response: str
    old: float
    new: float | None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mover:
    """An episode whose rank changed much.

    Attributes:
        episode: the episode.
        old_rank: its share of the way from the lowest rank (0) to the highest (1), in the run.
        new_rank: the same, with the other reward.
    """

    episode: RescoredEpisode
    old_rank: float
    new_rank: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreReport:
    """What another reward would have changed. NaN stands for what can't be told.

    Only episodes that could be scored are compared, and groups by those of them. Shares of groups are shares of
    `num_compared`.

    Attributes:
        run: the run's folder.
        name: the other reward.
        num_episodes: episodes that were to be scored.
        num_groups: their groups.
        num_scored: episodes that were scored.
        errors: of the others, how many by error.
        old_mean: mean in the run.
        old_std: its standard deviation (population).
        new_mean: mean with the other reward.
        new_std: its standard deviation.
        spearman: rank correlation of old and new, over all episodes.
        spearman_inside: mean over groups of the rank correlation within the group, where both vary.
        num_compared: groups of two scored episodes or more.
        best_changes: share of the groups none of whose best episodes is a best one with the other reward.
        signal_appears: share of the groups whose episodes all got the same, and don't with the other reward.
        signal_disappears: share of the groups where it is the other way round.
        flips: share of the episodes of compared groups whose advantage changes from plus to minus or back.
        movers: the episodes whose overall rank changed most; none where all got the same, before or after.
        episodes: all of them, group by group.
    """

    run: Path
    name: str
    num_episodes: int
    num_groups: int
    num_scored: int
    errors: dict[str, int]
    old_mean: float
    old_std: float
    new_mean: float
    new_std: float
    spearman: float
    spearman_inside: float
    num_compared: int
    best_changes: float
    signal_appears: float
    signal_disappears: float
    flips: float
    movers: tuple[Mover, ...]
    episodes: tuple[tuple[RescoredEpisode, ...], ...] = field(default=(), repr=False)

    def as_text(self) -> str:
        """The report in lines for a terminal; what doesn't print in responses is spelled out."""
        lines = [
            f"{head(str(self.run), 200)} scored again with {head(self.name, 80)}: {self.num_scored} of "
            f"{self.num_episodes} episodes in {self.num_groups} groups",
            *(f"  couldn't be scored: {count} times {head(error, 160)}" for error, count in self.errors.items()),
        ]
        if not self.num_scored:
            return "\n".join(lines)
        groups = f"of {self.num_compared} groups"
        lines += [
            "",
            "            mean      std",
            f"  run    {self.old_mean:>8.3f} {self.old_std:>8.3f}",
            f"  again  {self.new_mean:>8.3f} {self.new_std:>8.3f}",
            "",
            f"  rank correlation, all episodes   {_number(self.spearman)}",
            f"  rank correlation within groups   {_number(self.spearman_inside)}  (mean over groups where both vary)",
            f"  another best episode             {_percent(self.best_changes)}  {groups}",
            f"  signal appears                   {_percent(self.signal_appears)}  {groups}",
            f"  signal disappears                {_percent(self.signal_disappears)}  {groups}",
            f"  advantage changes its sign       {_percent(self.flips)}  of their episodes",
        ]
        if self.movers:
            lines += ["", "  biggest changes of rank (0 lowest, 1 highest)", "    run  again  reward          episode"]
        for mover in self.movers:
            episode = mover.episode
            assert episode.new is not None
            lines.append(
                f"   {mover.old_rank:.2f}   {mover.new_rank:.2f}  {f'{episode.old:.3g} -> {episode.new:.3g}':15} "
                f"{head(episode.episode_id, 40)}  {head(episode.response, 60)}"
            )
        return "\n".join(lines)


def report_of(groups: Sequence[Sequence[RescoredEpisode]], *, run: Path, name: str) -> RescoreReport:
    """Compare old and new rewards.

    Args:
        groups: the episodes of each group.
        run: the run's folder.
        name: the other reward.
    """
    scored = [[episode for episode in group if episode.new is not None] for group in groups]
    flat = [episode for group in scored for episode in group]
    old, new = _values(flat)
    compared = [_values(group) for group in scored if len(group) > 1]
    errors = Counter(e.error for group in groups for e in group if e.new is None)
    inside = [c for o, n in compared if not math.isnan(c := spearman(o, n))]
    signals = [(not is_constant(o), not is_constant(n)) for o, n in compared]
    return RescoreReport(
        run=run,
        name=name,
        num_episodes=sum(map(len, groups)),
        num_groups=len(groups),
        num_scored=len(flat),
        errors=dict(errors.most_common()),
        old_mean=mean_or_nan(old),
        old_std=float(old.std()) if flat else math.nan,
        new_mean=mean_or_nan(new),
        new_std=float(new.std()) if flat else math.nan,
        spearman=spearman(old, new),
        spearman_inside=mean_or_nan(inside),
        num_compared=len(compared),
        best_changes=mean_or_nan([not (_best(o) & _best(n)).any() for o, n in compared]),
        signal_appears=mean_or_nan([n and not o for o, n in signals]),
        signal_disappears=mean_or_nan([o and not n for o, n in signals]),
        flips=mean_or_nan([flip for o, n in compared for flip in (_signs(o) * _signs(n) < 0).tolist()]),
        movers=_movers(flat, old, new),
        episodes=tuple(tuple(group) for group in groups),
    )


def _values(episodes: Sequence[RescoredEpisode]) -> tuple[Floats, Floats]:
    old = np.array([episode.old for episode in episodes], dtype=np.float64)
    return old, np.array([episode.new for episode in episodes], dtype=np.float64)


def _best(values: Floats) -> np.ndarray:
    """Which are the greatest, but for rounding."""
    return values >= values.max() - 1e-9 * np.abs(values).max()


def _signs(values: Floats) -> Floats:
    """Signs of the advantages against the group's mean; zero where they differ by rounding only."""
    distance = values - values.mean()
    return np.where(np.abs(distance) <= 1e-9 * np.abs(values).max(), 0.0, np.sign(distance))


def _movers(episodes: Sequence[RescoredEpisode], old: Floats, new: Floats) -> tuple[Mover, ...]:
    if is_constant(old) or is_constant(new):
        return ()
    old_ranks, new_ranks = ranks(old) / (len(old) - 1), ranks(new) / (len(new) - 1)
    order = np.argsort(-np.abs(new_ranks - old_ranks), kind="stable")[:NUM_MOVERS].tolist()
    return tuple(
        Mover(episode=episodes[i], old_rank=float(old_ranks[i]), new_rank=float(new_ranks[i]))
        for i in order
        if old_ranks[i] != new_ranks[i]
    )


def _number(value: float) -> str:
    return "     -" if math.isnan(value) else f"{value:+6.3f}"


def _percent(value: float) -> str:
    return "    -" if math.isnan(value) else f"{value:5.0%}"
