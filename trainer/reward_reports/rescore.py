"""Scores a finished run's stored episodes again with another reward, without a model: what would have changed."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...agents.episode import Episode
from ...agents.group import Group
from ...envs.errors import ConfigError, DataError
from ...envs.rewards.base import RewardFunction
from ...envs.tasks import Task
from ..outside_loop import call_outside_loop
from ..reward_scorer import RewardOn, RewardScorer
from ..together import run_together
from .log import value_of_turn
from .rescore_report import RescoredEpisode, RescoreReport, report_of
from .run_tasks import config_of, tasks_of
from .stored_groups import Split, StoredGroup, read_update, stored_files

CONCURRENCY = 256
"""Episodes that are scored at once."""


def rescore(
    run: Path | str,
    reward: RewardFunction,
    *,
    limit: int | None = None,
    split: Split = "train",
    tasks: Mapping[str, Task] | None = None,
    timeout_s: float | None = None,
) -> RescoreReport:
    """Score a finished run's stored episodes again, group by group, as training would have.

    What the run's own reward gave is compared with what this one gives; where the run had none, what its episodes
    earned. Episodes that failed aren't scored. An episode that can't be scored is counted, and is no zero.

    Args:
        run: its folder.
        reward: the other reward. What it holds open is closed at the end.
        limit: most episodes, in whole groups spread evenly over the updates; all of them by default.
        split: `train` or `eval` episodes.
        tasks: the run's tasks by id; by default they are found again from its settings.
        timeout_s: seconds that one call of the reward may take; by default the run's own limit.

    Raises:
        DataError: the folder has no episodes, all of them failed, or their tasks aren't found again.
        InvalidRewardError: the reward broke its contract.
        ConfigError: the reward can't work, or no whole group is within the limit.
    """
    known = tasks_of(run, split=split) if tasks is None else tasks
    settings = _settings(run)
    scorer = RewardScorer(reward, on=settings[0], timeout_s=settings[1] if timeout_s is None else timeout_s)
    rescored = call_outside_loop(lambda: asyncio.run(_rescore(run, scorer, known, limit=limit, split=split)))
    return report_of(rescored, run=Path(run), name=reward.name or type(reward).__name__)


def _settings(run: Path | str) -> tuple[RewardOn, float]:
    """What the run's reward scored, and how long a call of it could take. Token rewards are no must here."""
    try:
        config = config_of(run).reward
    except DataError:  # the tasks were given, so that the settings may be missing
        return "episode", 120.0
    return "episode" if config.reward_on == "episode" else "turn", config.reward_timeout_s


async def _rescore(
    run: Path | str, scorer: RewardScorer, tasks: Mapping[str, Task], *, limit: int | None, split: Split
) -> list[list[RescoredEpisode]]:
    await scorer.start()
    try:
        rescored: list[list[RescoredEpisode]] = []
        num_files, num_groups = len(stored_files(run, split)), 0
        for number, path in enumerate(stored_files(run, split), start=1):
            groups = read_update(path).groups
            num_groups += len(groups)
            if limit is not None:
                left = math.ceil(limit * number / num_files) - sum(map(len, rescored))
                groups = _up_to(groups, left)
            for chunk in _chunks(groups):
                rescored += await run_together(_score(scorer, group, tasks) for group in chunk)
        if not num_groups:
            raise DataError(f"{run} holds failed episodes only, and these aren't scored again; train on, then score")
        if not rescored:
            raise ConfigError(f"limit {limit} is less than the episodes of any group; raise it")
        return rescored
    finally:
        await scorer.aclose()


def _up_to(groups: tuple[StoredGroup, ...], num_episodes: int) -> tuple[StoredGroup, ...]:
    """The first whole groups of at most so many episodes."""
    totals = itertools.accumulate(len(group.episodes) for group in groups)
    return tuple(group for group, total in zip(groups, totals, strict=True) if total <= num_episodes)


def _chunks(groups: tuple[StoredGroup, ...]) -> list[list[StoredGroup]]:
    """Groups that are scored together."""
    chunks: list[list[StoredGroup]] = []
    size = CONCURRENCY
    for group in groups:
        if size + len(group.episodes) > CONCURRENCY:
            chunks.append([])
            size = 0
        chunks[-1].append(group)
        size += len(group.episodes)
    return chunks


async def _score(scorer: RewardScorer, stored: StoredGroup, tasks: Mapping[str, Task]) -> list[RescoredEpisode]:
    task = tasks.get(stored.task_id)
    if task is None:
        raise DataError(f"task {stored.task_id!r} isn't among the tasks that were given")
    plain = tuple(_without_output(episode) for episode in stored.episodes)
    group = Group(task=task, slot=stored.slot, size=len(plain), episodes=plain)
    scored = await scorer.score(group, update=stored.update)
    new = {episode.episode_id: _value(episode) for episode in scored.episodes}
    errors = {e.episode_id: e.failure.message for e in scored.failed if e.failure is not None}
    return [
        RescoredEpisode(
            episode_id=episode.episode_id,
            task_id=episode.task_id,
            update=stored.update,
            response="\n".join(turn.action_text for turn in episode.turns)[:400],
            old=episode.reward if (value := _value(episode)) is None else value,
            new=new.get(episode.episode_id),
            error=errors.get(episode.episode_id, "there was nothing to score: it has no turns"),
        )
        for episode in stored.episodes
    ]


def _value(episode: Episode) -> float | None:
    """What a reward gave an episode, summed over its turns, or None where none did."""
    values = [value for turn in episode.turns if (value := value_of_turn(turn)) is not None]
    return math.fsum(values) if values else None


def _without_output(episode: Episode) -> Episode:
    """The episode without what the run's reward left in it, so that only the new one's is found there."""
    turns = tuple(
        replace(turn, info={key: value for key, value in turn.info.items() if key != "reward"})
        if "reward" in turn.info
        else turn
        for turn in episode.turns
    )
    return replace(episode, turns=turns)
