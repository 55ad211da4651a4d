"""Scoring a group: every kind of reward called the way it wants, failures kept apart, the event loop never blocked."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from ..errors import RewardError
from ..threads import run_in_thread
from .base import GroupReward, RewardFunction, label_of
from .types import RewardOutput, Trajectory

Scored = RewardOutput | RewardError
"""What scoring a trajectory came to."""


async def score_group(
    reward: RewardFunction, trajectories: Sequence[Trajectory], *, timeout_s: float | None = None
) -> list[Scored]:
    """Score the trajectories of one group.

    A reward that sees groups is called once, any other once for each trajectory, all at the same time. Plain `def`
    methods run on threads; one that overruns is left behind.

    Args:
        reward: what scores.
        trajectories: the episodes of one task, in a fixed order.
        timeout_s: seconds that each call may take, or None; disregarded where the reward limits itself.

    Returns:
        For each trajectory its output, or the error that its scoring failed with.
    """
    if not trajectories:
        return []
    if isinstance(reward, GroupReward):
        try:
            given = await _limited(_call(reward.compute_rewards, trajectories), reward, timeout_s)
            return list(reward.finished_group(given, len(trajectories)))
        except RewardError as error:
            return [error] * len(trajectories)
    async with asyncio.TaskGroup() as together:
        scoring = [together.create_task(score_one(reward, t, timeout_s=timeout_s)) for t in trajectories]
    return [task.result() for task in scoring]


async def score_one(reward: RewardFunction, trajectory: Trajectory, *, timeout_s: float | None = None) -> Scored:
    """Score one trajectory. Arguments and result as those of `score_group`."""
    try:
        return reward.finished(await _limited(_call(reward.compute_reward, trajectory), reward, timeout_s))
    except RewardError as error:
        return error


async def _call(method: Any, *args: Any) -> Any:
    if inspect.iscoroutinefunction(method):
        return await method(*args)
    given = await run_in_thread(method, *args)
    return await given if inspect.isawaitable(given) else given


async def _limited(awaitable: Any, reward: RewardFunction, timeout_s: float | None) -> Any:
    """Await a call into a reward; whatever it raises becomes a `RewardError` that names the reward."""
    try:
        async with asyncio.timeout(None if reward.limits_itself else timeout_s) as limit:
            return await awaitable
    except RewardError as error:
        raise type(error)(f"{label_of(reward)}: {error}") from error
    except Exception as error:  # the reward's own, of any class
        if isinstance(error, TimeoutError) and limit.expired():
            raise RewardError(f"{label_of(reward)} took longer than {timeout_s:g} s") from None
        raise RewardError(f"{label_of(reward)} raised {type(error).__name__}: {error}") from error
