"""Statistics of rewards that numpy doesn't have: skewness, ranks, correlations, and shares of variance explained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

EQUAL = 1e-9
"""Values closer than this, relative to their size, count as equal."""


def is_constant(values: Floats, size: float | None = None) -> bool:
    """Whether all values are equal, but for rounding: relative to `size`, by default the greatest magnitude."""
    if len(values) == 0:
        return True
    return bool(np.ptp(values) <= EQUAL * (np.abs(values).max() if size is None else size))


def skewness(values: Floats) -> float:
    """Third standardised moment of the values; NaN where they don't vary.

    >>> skewness(np.array([0.0, 0.0, 3.0])).__round__(3)
    0.707
    """
    if is_constant(values):
        return math.nan
    return float((_standardised(values - values.mean()) ** 3).mean())


def ranks(values: Floats) -> Floats:
    """Ranks from 0; equal values share the mean of theirs.

    >>> ranks(np.array([3.0, 1.0, 1.0])).tolist()
    [2.0, 0.5, 0.5]
    """
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    return (last - (counts - 1) / 2)[inverse.reshape(-1)]


def pearson(x: Floats, y: Floats) -> float:
    """Pearson's correlation; NaN where one of them doesn't vary."""
    if len(x) < 2 or is_constant(x) or is_constant(y):
        return math.nan
    return float(np.clip((_standardised(x - x.mean()) * _standardised(y - y.mean())).mean(), -1.0, 1.0))


def spearman(x: Floats, y: Floats) -> float:
    """Spearman's correlation: Pearson's of the ranks."""
    return pearson(ranks(x), ranks(y))


def _standardised(centred: Floats) -> Floats:
    """Values of mean 0 brought to standard deviation 1; tiny ones don't vanish when they are squared."""
    centred = centred / np.abs(centred).max()
    return centred / centred.std()


def group_means(values: Floats, groups: Integers) -> Floats:
    """For each value the mean of its group. Groups are numbered from 0."""
    sums = np.bincount(groups, weights=values)
    return (sums / np.maximum(np.bincount(groups), 1))[groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceParts:
    """Where the variance of grouped values lies, after a one-way analysis of variance.

    Attributes:
        between: variance of the groups' true means (never below 0).
        within: variance of a value about its group's mean.
        icc: between / (between + within), the intraclass correlation ICC(1); NaN where nothing varies, or no group has
            two values, or there is one group.
    """

    between: float
    within: float
    icc: float


def variance_parts(values: Floats, groups: Integers) -> VarianceParts:
    """Variance between and within groups, and the intraclass correlation.

    With mean squares MSB = sum_g n_g (mean_g - mean)^2 / (k - 1) and MSW = sum (y - mean_g)^2 / (N - k), and
    n0 = (N - sum n_g^2 / N) / (k - 1): within = MSW, between = max(0, (MSB - MSW) / n0).

    Args:
        values: [N] one per episode.
        groups: [N] the number of its group, from 0.

    Source:
        Donner, A. (1986). A review of inference procedures for the intraclass correlation coefficient in the one-way
        random effects model. https://doi.org/10.2307/1403259
    """
    count = len(values)
    sizes = np.bincount(groups)
    sizes = sizes[sizes > 0]
    k = len(sizes)
    if k < 2 or count == k:
        return VarianceParts(between=math.nan, within=math.nan, icc=math.nan)
    means, mean = group_means(values, groups), values.mean()
    within = float(((values - means) ** 2).sum() / (count - k))
    mean_square_between = float(((means - mean) ** 2).sum() / (k - 1))
    n0 = (count - float((sizes.astype(np.float64) ** 2).sum()) / count) / (k - 1)
    between = max(0.0, (mean_square_between - within) / n0)
    total = between + within
    icc = math.nan if is_constant(values) or total == 0 else between / total
    return VarianceParts(between=between, within=within, icc=icc)


def explained(y: Floats, features: npt.NDArray[np.float64], *, groups: Integers | None = None) -> float:
    """Share of the variance of y that a linear model of the features explains: adjusted R^2, not below 0.

    1 - (RSS / (N - p - 1)) / (TSS / (N - 1)), where p counts the features that aren't linear in one another. With
    `groups`, each group's means are subtracted first, and both denominators lose the groups' k - 1.

    >>> x = np.arange(10.0)
    >>> explained(2 * x + 1, x[:, None]).__round__(6)
    1.0

    Args:
        y: [N].
        features: [N, F].
        groups: [N] the number of each value's group, from 0, or None.

    Returns:
        NaN where y doesn't vary, or N is too small.

    Source:
        Ezekiel, M. (1930). Methods of Correlation Analysis. Wiley: adjusted R^2.
    """
    groups = np.zeros(len(y), dtype=np.int64) if groups is None else groups
    lost = len(np.unique(groups))
    size = float(np.abs(y).max(initial=0.0))
    y = y - group_means(y, groups)
    if len(y) <= lost + 1 or is_constant(y, size):
        return math.nan
    centred = [(feature - group_means(feature, groups), feature) for feature in features.T]
    varying = [_standardised(c) for c, feature in centred if not is_constant(c, float(np.abs(feature).max()))]
    if not varying:
        return 0.0
    columns, y = np.stack(varying, axis=1), _standardised(y)
    coefficients, _, rank, _ = np.linalg.lstsq(columns, y, rcond=1e-8)
    residual = float(((y - columns @ coefficients) ** 2).sum())
    freedom = len(y) - lost - int(rank)
    if freedom <= 0:
        return math.nan
    total = float((y**2).sum())
    return max(0.0, 1.0 - (residual / freedom) / (total / (len(y) - lost)))


def mean_or_nan(values: Any) -> float:
    """The mean, or NaN of nothing."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()) if array.size else math.nan
