"""Plots of a run's rewards, one PNG each. They need matplotlib.

Colours are those of Okabe and Ito, which people who don't see all colours can tell apart; lines differ by dash, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .findings import RewardAnalysis
from .shown_text import head

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, BLACK = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#000000",
)
_LINES = [
    (BLUE, "-"),
    (VERMILION, "--"),
    (GREEN, "-."),
    (BLACK, ":"),
    (PURPLE, "-"),
    (ORANGE, "--"),
    (SKY, "-."),
    (BLUE, ":"),
]
_MAX_POINTS = 4000


def save_plots(analysis: RewardAnalysis, folder: Path) -> dict[str, str]:
    """Draw what there is to draw.

    Args:
        analysis: what was found.
        folder: where the files go.

    Returns:
        The file name of each plot, and what it shows.

    Raises:
        ImportError: matplotlib isn't there.
    """
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    drawn: dict[str, str] = {}
    for name, (draw, told) in _PLOTS.items():
        figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
        axes = figure.add_subplot()
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if draw(axes, analysis):
            figure.savefig(folder / name, metadata={"Software": None})
            drawn[name] = told
        else:
            (folder / name).unlink(missing_ok=True)  # of an analysis before
    return drawn


def _over_updates(axes: Axes, analysis: RewardAnalysis) -> bool:
    updates = [u.update for u in analysis.updates]
    if not updates:
        return False
    marker = "o" if len(updates) < 30 else None
    low, high = [u.low for u in analysis.updates], [u.high for u in analysis.updates]
    axes.fill_between(updates, low, high, color=SKY, alpha=0.35, linewidth=0, label="5th to 95th percentile")
    axes.plot(updates, [u.mean for u in analysis.updates], color=BLUE, marker=marker, markersize=3, label="mean")
    axes.plot(updates, [u.median for u in analysis.updates], color=VERMILION, linestyle="--", label="median")
    _label(axes, "Reward over the updates", "update", "reward of an episode")
    _legend(axes)
    _whole_numbers(axes.xaxis)
    return True


def _distribution(axes: Axes, analysis: RewardAnalysis) -> bool:
    rewards = np.array([row.reward for row in analysis.rows])
    if not len(rewards):
        return False
    third = max(1, len(analysis.updates) // 3)
    bins = np.histogram_bin_edges(rewards, bins=30).tolist()
    if len(analysis.updates) >= 3:
        first = {u.update for u in analysis.updates[:third]}
        last = {u.update for u in analysis.updates[-third:]}
        parts = [("first third of the updates", first, ORANGE, "--"), ("last third", last, BLUE, "-")]
    else:
        parts = [("all updates", {u.update for u in analysis.updates}, BLUE, "-")]
    for label, chosen, color, style in parts:
        values = [row.reward for row in analysis.rows if row.update in chosen]
        if values:
            weights = np.full(len(values), 100 / len(values))
            axes.hist(values, bins=bins, weights=weights, color=color, alpha=0.25)
            shares = np.histogram(values, bins=bins, weights=weights)[0]
            axes.stairs(shares, bins, color=color, linestyle=style, linewidth=1.6, label=label)
    _label(axes, "Distribution of rewards", "reward of an episode", "share of the episodes (%)")
    _legend(axes)
    return True


def _by_length(axes: Axes, analysis: RewardAnalysis) -> bool:
    tokens = np.array([row.num_tokens for row in analysis.rows], dtype=np.float64)
    rewards = np.array([row.reward for row in analysis.rows])
    if len(tokens) < 2 or np.ptp(tokens) == 0:
        return False
    random = np.random.default_rng(0)
    shown = random.permutation(len(tokens))[:_MAX_POINTS]
    jitter = random.uniform(-0.25, 0.25, len(shown))
    alpha = min(0.6, max(0.08, 200 / len(shown)))
    axes.scatter(tokens[shown] + jitter, rewards[shown], s=8, color=BLUE, alpha=alpha, linewidths=0, label="episode")
    order = np.argsort(tokens, kind="stable")
    tenths = [part for part in np.array_split(order, 10) if len(part)]
    axes.plot(
        [tokens[part].mean() for part in tenths],
        [rewards[part].mean() for part in tenths],
        color=VERMILION,
        marker="D",
        markersize=4,
        label="mean of each tenth by length",
    )
    rho = analysis.length.spearman
    told = "" if math.isnan(rho) else f" (Spearman {rho:+.2f})"
    _label(axes, f"Reward by length{told}", "sampled tokens of an episode", "reward of an episode")
    for handle in _legend(axes).legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
    return True


def _kinds(axes: Axes, analysis: RewardAnalysis) -> bool:
    contrasts = analysis.contrasts[::-1]
    if not contrasts:
        return False
    places = np.arange(len(contrasts))
    axes.barh(places + 0.2, [c.difference for c in contrasts], height=0.38, color=BLUE, label="over all episodes")
    inside = [0.0 if math.isnan(c.inside) else c.inside for c in contrasts]
    axes.barh(places - 0.2, inside, height=0.38, color=ORANGE, hatch="//", edgecolor="white", label="within groups")
    axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.set_yticks(places.tolist(), [f"{c.feature} ({c.share:.0%})" for c in contrasts])
    _label(axes, "What kinds of response earn more than the others", "difference in mean reward", "")
    _legend(axes)
    return True


def _parts_over_updates(axes: Axes, analysis: RewardAnalysis) -> bool:
    strongest = sorted(analysis.parts, key=lambda part: (-part.num_episodes, -part.std, part.name))[: len(_LINES)]
    if not strongest:
        return False
    for part, (color, style) in zip(strongest, _LINES, strict=False):
        points = [(u.update, u.parts[part.name]) for u in analysis.updates if part.name in u.parts]
        marker = "o" if len(points) < 30 else None
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=color, linestyle=style, marker=marker, markersize=3, label=_text(part.name))
    _label(axes, "Parts of the reward over the updates", "update", "mean of the part")
    _legend(axes, "outside right upper")
    _whole_numbers(axes.xaxis)
    return True


def _signal(axes: Axes, analysis: RewardAnalysis) -> bool:
    points = [(u.update, 100 * u.without_signal) for u in analysis.updates if not math.isnan(u.without_signal)]
    if not points:
        return False
    marker = "o" if len(points) < 30 else None
    axes.plot(*zip(*points, strict=True), color=VERMILION, marker=marker, markersize=3)
    axes.set_ylim(-2, 102)
    _label(axes, "Groups whose episodes all earned the same", "update", "share of the groups (%)")
    _whole_numbers(axes.xaxis)
    return True


_Draw = Callable[["Axes", RewardAnalysis], bool]
_PLOTS: dict[str, tuple[_Draw, str]] = {
    "rewards.png": (_over_updates, "Reward over the updates"),
    "distribution.png": (_distribution, "Distribution of rewards"),
    "length.png": (_by_length, "Reward by length"),
    "kinds.png": (_kinds, "What kinds of response earn more than the others"),
    "parts.png": (_parts_over_updates, "Parts of the reward over the updates"),
    "signal.png": (_signal, "Groups whose episodes all earned the same"),
}


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _legend(axes: Axes, place: Any = "outside lower center") -> Any:
    """A legend beside the axes, where it hides nothing."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure.legend(loc=place, ncols=1 if "right" in place else 3, frameon=False)


def _whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _text(name: str) -> str:
    """A name as a label: no formula, no glyph that the font lacks, and not hidden by a leading underscore."""
    shown = head(name, 30).encode("ascii", "backslashreplace").decode().replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
