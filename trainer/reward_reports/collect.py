"""Reads a run's episodes for the analysis of rewards: exact numbers of each update, and a sample of whole groups."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...agents.episode import Episode
from ...envs.tasks import Task
from ..trajectories import prompt_of
from .features import EpisodeRow, features_of, holds_label, is_cut, opening_of
from .log import by_name, parts_of_turn, value_of_turn
from .statistics import is_constant
from .stored_groups import Split, StoredGroup, StoredUpdate, stored_updates

MAX_PARTS = 30
"""Parts of the reward that are looked at: those that most episodes of an update have."""
_KEPT_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFigures:
    """One update, over all of its episodes.

    Attributes:
        update: its number.
        num_episodes: episodes that were played to an end.
        num_failed: attempts that the infrastructure, or the reward, failed.
        mean: of what the episodes earned.
        std: their standard deviation (population).
        low: their 5th percentile.
        median: the 50th.
        high: the 95th.
        without_signal: share of the groups of two or more whose episodes all earned the same.
        num_tokens: sampled tokens of an episode, mean.
        cut: share of the episodes that ended at a limit of tokens.
        parts: mean of each part of the reward.
    """

    update: int
    num_episodes: int
    num_failed: int
    mean: float
    std: float
    low: float
    median: float
    high: float
    without_signal: float
    num_tokens: float
    cut: float
    parts: dict[str, float]


@dataclass(slots=True, kw_only=True)
class Collected:
    """What was read of a run.

    Attributes:
        updates: every update in which an episode was played, in order.
        groups: a sample of its groups, in the order they were played; all of them where they are few enough.
        num_episodes: episodes that were played to an end.
        num_groups: their groups.
        num_with_siblings: groups of two episodes or more.
        num_without_signal: those of them whose episodes all earned the same.
        endings: episodes by ending, failed attempts included.
        failures: failed attempts by error.
    """

    updates: list[UpdateFigures] = field(default_factory=list)
    groups: list[list[EpisodeRow]] = field(default_factory=list)
    num_episodes: int = 0
    num_groups: int = 0
    num_with_siblings: int = 0
    num_without_signal: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def num_failed(self) -> int:
        """Attempts that the infrastructure, or the reward, failed."""
        return sum(self.failures.values())


def collect(
    run: Path | str, *, split: Split = "train", tasks: Mapping[str, Task] | None = None, max_episodes: int = 20_000
) -> Collected:
    """Read a run, one file at a time.

    Args:
        run: its folder.
        split: which of its files.
        tasks: its tasks by id, where they are known: prompts that weren't stored, and labels, are taken from them.
        max_episodes: most episodes in the sample of groups. It is drawn evenly, and the same one each time.

    Raises:
        DataError: the folder has no such files, or one can't be read.
    """
    found = Collected()
    sample = _GroupSample(max_episodes)
    for update in stored_updates(run, split):
        _count(found, update)
        rows = [[_row(update.update, e, (tasks or {}).get(e.task_id)) for e in g.episodes] for g in update.groups]
        if rows:
            found.updates.append(_figures(update, rows))
        for group in rows:
            sample.add(group)
    found.groups = sample.groups()
    return found


def _count(found: Collected, update: StoredUpdate) -> None:
    for group in update.groups:
        found.num_groups += 1
        found.num_episodes += len(group.episodes)
        if len(group.episodes) > 1:
            found.num_with_siblings += 1
            found.num_without_signal += _is_without_signal(group)
        found.endings.update(episode.ending.value for episode in group.episodes)
    found.endings.update(episode.ending.value for episode in update.failed)
    found.failures.update(e.failure.error for e in update.failed if e.failure is not None)


def _is_without_signal(group: StoredGroup) -> bool:
    return is_constant(np.array([episode.reward for episode in group.episodes]))


def _figures(update: StoredUpdate, groups: list[list[EpisodeRow]]) -> UpdateFigures:
    rows = list(itertools.chain.from_iterable(groups))
    rewards = np.array([row.reward for row in rows])
    low, median, high = np.percentile(rewards, [5, 50, 95]).tolist()
    compared = [group for group in update.groups if len(group.episodes) > 1]
    parts = by_name((row.parts for row in rows), MAX_PARTS)
    return UpdateFigures(
        update=update.update,
        num_episodes=len(rows),
        num_failed=len(update.failed),
        mean=float(rewards.mean()),
        std=float(rewards.std()),
        low=low,
        median=median,
        high=high,
        without_signal=float(np.mean([_is_without_signal(g) for g in compared])) if compared else float("nan"),
        num_tokens=float(np.mean([row.num_tokens for row in rows])),
        cut=float(np.mean([row.features["cut by length"] for row in rows])),
        parts={name: float(np.mean(values)) for name, values in parts.items()},
    )


def _row(update: int, episode: Episode, task: Task | None) -> EpisodeRow:
    prompt = episode.prompt if task is None else prompt_of(episode, task)
    responses = [turn.action_text for turn in episode.turns]
    response = "\n".join(responses)
    values = [value for turn in episode.turns if (value := value_of_turn(turn)) is not None]
    parts = by_name((parts_of_turn(turn) for turn in episode.turns), MAX_PARTS)
    return EpisodeRow(
        update=update,
        slot=episode.slot,
        member=episode.member,
        episode_id=episode.episode_id,
        task_id=episode.task_id,
        reward=episode.reward,
        score=episode.score,
        is_right=None if task is None else holds_label(response, task.options.get("label")),
        value=sum(values) if values else None,
        parts={name: float(np.mean(numbers)) for name, numbers in parts.items()},
        ending=episode.ending.value,
        num_turns=len(episode.turns),
        num_tokens=episode.num_action_tokens,
        num_words=len(response.split()),
        num_chars=len(response),
        features=features_of(responses, prompt, is_cut=is_cut(episode)),
        opening=opening_of(response),
        prompt=prompt[:_KEPT_CHARS],
        response=response[:_KEPT_CHARS],
    )


class _GroupSample:
    """Whole groups, each kept with the same chance, of at most so many episodes together.

    Every group gets a random key, and those of the greatest keys leave while there are too many episodes.
    """

    def __init__(self, max_episodes: int) -> None:
        self._max_episodes = max_episodes
        self._random = np.random.default_rng(0)
        self._kept: list[tuple[float, int, list[EpisodeRow]]] = []
        self._num_episodes = 0
        self._num_groups = 0

    def add(self, group: list[EpisodeRow]) -> None:
        heapq.heappush(self._kept, (-float(self._random.random()), self._num_groups, group))
        self._num_groups += 1
        self._num_episodes += len(group)
        while self._num_episodes > self._max_episodes and len(self._kept) > 1:
            self._num_episodes -= len(heapq.heappop(self._kept)[2])

    def groups(self) -> list[list[EpisodeRow]]:
        return [group for _, _, group in sorted(self._kept, key=lambda kept: kept[1])]
