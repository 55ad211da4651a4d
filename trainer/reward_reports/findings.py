"""What a run's episodes show about its reward, as records."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .collect import UpdateFigures
from .features import EpisodeRow
from .statistics import VarianceParts
from .stored_groups import Split
from .suspicion import Suspicion


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """What a kind of response earns, and the others.

    Attributes:
        feature: the kind.
        share: share of the episodes.
        mean_with: what they earn.
        mean_without: what the others earn.
        difference: mean_with - mean_without.
        effect: the difference over the rewards' standard deviation.
        inside: the difference between siblings: of the rewards' and the feature's distance from their group's means.
    """

    feature: str
    share: float
    mean_with: float
    mean_without: float
    difference: float
    effect: float
    inside: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFinding:
    """A part of the reward.

    Attributes:
        name: the part.
        num_episodes: episodes that have it.
        mean: of its values.
        std: their standard deviation.
        pearson: correlation with what the episodes earned.
        inside: the same between siblings, each group's means subtracted.
    """

    name: str
    num_episodes: int
    mean: float
    std: float
    pearson: float
    inside: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Responses that begin alike.

    Attributes:
        opening: their first words.
        num_episodes: how many there are.
        mean: what they earn.
    """

    opening: str
    num_episodes: int
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How rewards changed from the first third of the updates to the last.

    Attributes:
        first_mean: mean of the updates' means, in the first third.
        last_mean: in the last.
        change_error: standard error of their difference, over updates.
        first_std: mean of the updates' standard deviations, in the first third.
        last_std: in the last.
        first_tokens: mean of the sampled tokens of an episode, in the first third.
        last_tokens: in the last.
    """

    first_mean: float
    last_mean: float
    change_error: float
    first_std: float
    last_std: float
    first_tokens: float
    last_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFinding:
    """How rewards go with the sampled tokens of an episode.

    Attributes:
        pearson: correlation.
        spearman: correlation of the ranks.
        inside: Pearson's between siblings, each group's means subtracted.
        turns: Spearman's of the rewards with the number of turns.
        thirds: mean reward of the shortest third of the episodes, the middle one, and the longest.
    """

    pearson: float
    spearman: float
    inside: float
    turns: float
    thirds: tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardAnalysis:
    """What a run's episodes show about its reward. NaN stands for what can't be told.

    Attributes:
        run: its folder.
        split: which of its episodes.
        num_episodes: episodes that were played to an end.
        num_groups: their groups.
        num_failed: attempts that failed.
        mean: of what the sampled episodes earned; all numbers from here to `examples` are the sample's.
        std: standard deviation (population).
        variance: its square.
        skewness: third standardised moment.
        least: least reward.
        greatest: greatest.
        percentiles: the 5th, 25th, 50th, 75th and 95th.
        spread: variance between and within groups.
        length: how rewards go with length.
        contrasts: what kinds of response earn, the greatest effect first.
        parts: the reward's parts.
        worst_openings: how responses begin that earn least, and less than the mean.
        best_openings: how responses begin that earn most, and more than the mean.
        worst: examples of what earns least.
        best: examples of what earns most.
        suspicion: whether form explains more than the task.
        without_signal: share of all groups of two or more whose episodes all earned the same.
        endings: all episodes by ending, failed attempts included.
        failures: all failed attempts by error.
        updates: every update.
        drift: what changed, or None of fewer than three updates.
        notes: what couldn't be looked at, and why.
        rows: the sample.
        groups: for each of `rows` the number of its group.
    """

    run: Path
    split: Split
    num_episodes: int
    num_groups: int
    num_failed: int
    mean: float
    std: float
    variance: float
    skewness: float
    least: float
    greatest: float
    percentiles: tuple[float, ...]
    spread: VarianceParts
    length: LengthFinding
    contrasts: tuple[Contrast, ...]
    parts: tuple[PartFinding, ...]
    worst_openings: tuple[Opening, ...]
    best_openings: tuple[Opening, ...]
    worst: tuple[EpisodeRow, ...]
    best: tuple[EpisodeRow, ...]
    suspicion: Suspicion
    without_signal: float
    endings: dict[str, int]
    failures: dict[str, int]
    updates: tuple[UpdateFigures, ...]
    drift: Drift | None
    notes: tuple[str, ...] = ()
    rows: tuple[EpisodeRow, ...] = field(default=(), repr=False)
    groups: tuple[int, ...] = field(default=(), repr=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the reward, in sentences."""
        return self.suspicion.warnings
