"""`--log_rewards`: what an update's episodes earned, as a distribution: in all, by part, and by task."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...agents.episode import Turn
from ...agents.group import Group
from ...envs.rewards.types import parts_of
from ...envs.tasks import Task
from .shown_text import head

PERCENTILES = (5, 25, 50, 75, 95)
NUM_BINS = 10
MAX_PARTS = 50
"""Parts that are logged: those that most outputs have."""
MAX_TASKS = 20
"""Kinds of task that are logged: those of most episodes."""
_STATISTICS = ("mean", "std", "min", "max")
_NAME_CHARS = 60
_SHADES = " .:-=+*#@"


def reward_metrics(groups: Sequence[Group]) -> dict[str, Any]:
    """The distribution of one update's rewards, as flat numbers; nothing where no episode was played.

    Keys:
        reward/p05, p25, p50, p75, p95: percentiles of what the episodes earned.
        reward/hist_0 to hist_9: episodes in ten equal bins between reward/hist_low and reward/hist_high. These are 0
            and 1 where every reward lies there, else the least and the greatest.
        reward/PART_mean, _std, _min, _max: of a part, over the outputs that have it. An output is what the reward gave
            for an episode, or for a turn where turns are scored.
        reward_of/KIND_mean, _std, _min, _max, _episodes: what the episodes of one kind of task earned; see `task_kind`.
    """
    earned = [(group.task, episode.reward) for group in groups for episode in group.episodes]
    if not earned:
        return {}
    rewards = np.array([reward for _, reward in earned])
    metrics: dict[str, Any] = {
        f"reward/p{percent:02}": float(np.percentile(rewards, percent)) for percent in PERCENTILES
    }
    metrics |= _histogram(rewards)
    for name, values in _parts(groups).items():
        metrics |= _statistics(f"reward/{name}", values)
    kinds = ({kind: reward} for task, reward in earned if (kind := task_kind(task)) is not None)
    for name, values in by_name(kinds, MAX_TASKS).items():
        metrics |= {**_statistics(f"reward_of/{name}", values), f"reward_of/{name}_episodes": len(values)}
    return metrics


def part_means(groups: Sequence[Group]) -> dict[str, float]:
    """The mean of each part alone, by the key that `reward_metrics` gives it."""
    return {f"reward/{name}_mean": float(np.mean(values)) for name, values in _parts(groups).items()}


def log_lines(metrics: Mapping[str, Any]) -> list[str]:
    """What `reward_metrics` gave, in a few aligned lines for a terminal; empty where it gave nothing.

    The histogram is drawn between its bounds; darker is more.
    """
    if "reward/p50" not in metrics:
        return []
    counts = [metrics[f"reward/hist_{index}"] for index in range(NUM_BINS)]
    percentiles = " ".join(f"p{percent:02} {metrics[f'reward/p{percent:02}']:.3f}" for percent in PERCENTILES)
    bounds = f"{metrics['reward/hist_low']:.3g} [{_shaded(counts)}] {metrics['reward/hist_high']:.3g}"
    rows = [(f"part {name}", numbers, "") for name, numbers in _rows(metrics, "reward/")]
    rows += [
        (f"task {name}", numbers, f"  episodes {metrics[f'reward_of/{name}_episodes']}")
        for name, numbers in _rows(metrics, "reward_of/")
    ]
    width = max((len(head(name, 40)) for name, _, _ in rows), default=0)
    lines = [f"  {head(name, 40):{width}}  {numbers}{more}" for name, numbers, more in rows]
    return [f"  rewards  {percentiles}  {bounds}", *lines]


def task_kind(task: Task) -> str | None:
    """What tasks are told apart by: the column `task`, else what stands before the first `/` of the id, else nothing.

    >>> task_kind(Task(id="math-1/1 + 1 = ?")), task_kind(Task(id="7", options={"task": "sums"}))
    ('math-1', 'sums')
    """
    column = task.options.get("task")
    if isinstance(column, str | int) and str(column).strip():
        return str(column)
    kind, slash, _ = task.id.partition("/")
    return kind if slash and kind else None


def parts_of_turn(turn: Turn) -> dict[str, float]:
    """The parts of the reward that a turn's info holds; none where it holds no reward."""
    metadata = output_of(turn).get("metadata")
    return parts_of(metadata) if isinstance(metadata, Mapping) else {}


def value_of_turn(turn: Turn) -> float | None:
    """What the run's reward gave for a turn, or None where it gave nothing."""
    value = output_of(turn).get("value")
    return parts_of({"value": value}).get("value")


def output_of(turn: Turn) -> Mapping[str, Any]:
    """What the run's reward left in a turn's info; empty where there is nothing in that form."""
    output = turn.info.get("reward")
    return output if isinstance(output, Mapping) else {}


def by_name(rows: Iterable[Mapping[str, float]], most: int) -> dict[str, list[float]]:
    """The values of each name, for the names that most rows have; sorted by name. Long names are cut."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            values[head(name, _NAME_CHARS)].append(value)
    counts = Counter({name: len(found) for name, found in values.items()})
    chosen = sorted(counts, key=lambda name: (-counts[name], name))[:most]
    return {name: values[name] for name in sorted(chosen)}


def _parts(groups: Sequence[Group]) -> dict[str, list[float]]:
    outputs = (parts_of_turn(turn) for group in groups for episode in group.episodes for turn in episode.turns)
    return by_name(outputs, MAX_PARTS)


def _statistics(prefix: str, values: Sequence[float]) -> dict[str, float]:
    array = np.array(values)
    numbers = array.mean(), array.std(), array.min(), array.max()
    return {f"{prefix}_{name}": float(number) for name, number in zip(_STATISTICS, numbers, strict=True)}


def _histogram(rewards: np.ndarray) -> dict[str, float]:
    least, greatest = float(rewards.min()), float(rewards.max())
    low, high = (0.0, 1.0) if least >= 0 and greatest <= 1 else (least, greatest)
    if low == high:  # one value outside [0, 1]: all in the first bin
        counts = [len(rewards), *([0] * (NUM_BINS - 1))]
    else:
        counts = np.histogram((rewards - low) / (high - low), bins=NUM_BINS, range=(0, 1))[0].tolist()
    named = {f"reward/hist_{index}": count for index, count in enumerate(counts)}
    return {"reward/hist_low": low, "reward/hist_high": high, **named}


def _rows(metrics: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """The name and the four numbers of each part, or of each kind of task."""
    for key in metrics:
        if key.startswith(prefix) and key.endswith("_mean"):
            base = key.removesuffix("_mean")
            yield base[len(prefix) :], " ".join(f"{name} {metrics[f'{base}_{name}']:.3f}" for name in _STATISTICS)


def _shaded(counts: Sequence[int]) -> str:
    """Counts as marks of growing darkness; only none at all is blank."""
    most = max(counts)
    return "".join(_SHADES[math.ceil(count / most * (len(_SHADES) - 1)) if most else 0] for count in counts)
