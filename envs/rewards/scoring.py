"""Scoring a group: every kind of reward called the way it wants, failures kept apart, the event loop never blocked."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from ..errors import RewardError
from ..threads import run_in_thread
from .base import RewardFunction, is_async, label_of, labelled
from .combined import Asked, CombinedReward, Scored, Steps, advance, entry_of, sees_groups
from .types import Trajectory


async def score_group(
    reward: RewardFunction, trajectories: Sequence[Trajectory], *, timeout_s: float | None = None
) -> list[Scored]:
    """Score the trajectories of one group.

    A reward that sees groups is called once, any other once for each trajectory, all at the same time. One that is made
    of others isn't called: each of its parts is. Plain `def` methods run on threads; one that overruns is left behind.

    Args:
        reward: what scores.
        trajectories: the episodes of one task, in a fixed order.
        timeout_s: seconds that each call may take, or None; disregarded where the reward limits itself.

    Returns:
        For each trajectory its output, or the error that its scoring failed with.
    """
    if not trajectories:
        return []
    if isinstance(reward, CombinedReward) and entry_of(reward) == "combine":
        return await _score_combined(reward, trajectories, timeout_s)
    if sees_groups(reward):
        try:
            given = await _limited(_call(reward.compute_rewards, trajectories), reward, timeout_s)
            return reward.finished_group(given, len(trajectories))
        except RewardError as error:
            return [error] * len(trajectories)
    async with asyncio.TaskGroup() as together:
        scoring = [together.create_task(score_one(reward, t, timeout_s=timeout_s)) for t in trajectories]
    return [task.result() for task in scoring]


async def score_one(reward: RewardFunction, trajectory: Trajectory, *, timeout_s: float | None = None) -> Scored:
    """Score one trajectory. Arguments and result as those of `score_group`."""
    if isinstance(reward, CombinedReward) and entry_of(reward) == "combine":
        return (await _score_combined(reward, [trajectory], timeout_s))[0]
    try:
        return reward.finished(await _limited(_call(reward.compute_reward, trajectory), reward, timeout_s))
    except RewardError as error:
        return error


async def _score_combined(
    reward: CombinedReward, trajectories: Sequence[Trajectory], timeout_s: float | None
) -> list[Scored]:
    """Score every part that `combine` asks for, and let it combine the results."""
    steps, answers = reward.combine(trajectories), None
    while True:
        try:
            asked, rewards = _advanced(reward, steps, answers)
            if asked is None:
                return reward.finished_group(rewards, len(trajectories))
        except RewardError as error:
            return [error] * len(trajectories)
        async with asyncio.TaskGroup() as together:
            scoring = [together.create_task(score_group(part, some, timeout_s=timeout_s)) for part, some in asked]
        answers = [task.result() for task in scoring]


def _advanced(reward: CombinedReward, steps: Steps, answers: Any) -> tuple[Asked | None, Sequence[Scored]]:
    try:
        return advance(steps, answers)
    except RewardError as error:
        raise labelled(error, reward) from error
    except Exception as error:  # a user's callable that `combine` called
        raise RewardError(f"{label_of(reward)} raised {type(error).__name__}: {error}") from error


async def _call(method: Any, *args: Any) -> Any:
    if is_async(method):
        return await method(*args)
    given = await run_in_thread(method, *args)
    return await given if inspect.isawaitable(given) else given


async def _limited(awaitable: Any, reward: RewardFunction, timeout_s: float | None) -> Any:
    """Await a call into a reward; whatever it raises becomes a `RewardError` that names the reward."""
    limit = asyncio.timeout(None if reward.limits_itself else timeout_s)
    try:
        async with limit:
            return await awaitable
    except RewardError as error:
        raise type(error)(f"{label_of(reward)}: {error}") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RewardError(f"{label_of(reward)} was cancelled by something inside it") from error
    except (Exception, SystemExit) as error:  # the reward's own, of any class
        if isinstance(error, TimeoutError) and limit.expired():
            raise RewardError(f"{label_of(reward)} took longer than {timeout_s:g} s") from None
        raise RewardError(f"{label_of(reward)} raised {type(error).__name__}: {error}") from error
