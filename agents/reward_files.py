"""Reward files: a user's file as a reward, run in worker processes."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..envs.errors import ConfigError, RewardError
from ..envs.rewards.base import GroupReward, RewardFunction
from ..envs.rewards.types import RewardOutput, Trajectory
from .reward_choice import is_single, split_location
from .reward_worker_process import Hello, RewardSetup
from .reward_workers import RewardWorkers

logger = logging.getLogger("turngym.rewards")

_warned: set[str] = set()


def load_reward_file(
    path: str | Path,
    name: str | None = None,
    *,
    num_workers: int = 1,
    timeout_s: float = 120.0,
    real_imports: bool = False,
) -> RewardFunction:
    """A file's reward. The file is loaded in worker processes only, once in each, when the reward is started.

    Which of its objects that is: `name`; else the first of `reward_func`, `custom_reward_function`, `reward_function`,
    `reward_fn`, `reward`; else the only `RewardFunction` that the file makes, or defines; else its only function. It
    may be anything that `as_reward` takes.

    Args:
        path: a `.py` file, or `FILE:NAME`.
        name: which of its objects.
        num_workers: how many processes.
        timeout_s: seconds that one call may take from when a worker begins with it; infinity sets no limit.
        real_imports: as for `load_user_module`.

    Returns:
        A `FileGroupReward` where the file's reward sees groups, or might; else a `FileReward`. Its `start` raises
        `ConfigError` where the file can't be used.

    Raises:
        ConfigError: there is no such file, or an argument is out of range.
    """
    file, name = split_location(path, name)
    if num_workers < 1:
        raise ConfigError(f"num_workers={num_workers} must be at least 1")
    if not timeout_s > 0:
        raise ConfigError(f"timeout_s={timeout_s} must be above 0 seconds; inf sets no limit")
    kind = FileReward if is_single(file, name) else FileGroupReward
    return kind(RewardSetup(str(file.resolve()), name, real_imports, num_workers), timeout_s=timeout_s)


class _FromFile(RewardFunction):
    """What both kinds of rewards from files have in common."""

    limits_itself = True

    def __init__(self, setup: RewardSetup, *, timeout_s: float) -> None:
        file = Path(setup.path).name
        super().__init__(file if setup.name is None else f"{file}:{setup.name}")
        self.workers = RewardWorkers(setup, timeout_s=timeout_s)

    async def start(self) -> None:
        """Start the worker processes, and load the file in each; also where they were closed, or in another event loop.

        Raises:
            ConfigError: the file can't be loaded, or holds no reward; the message names file, line and cause.
            RewardError: a worker process can't start.
        """
        if self.workers.is_closed:
            self.workers = RewardWorkers(self.workers.setup, timeout_s=self.workers.timeout_s)
        await self._hello()

    async def aclose(self) -> None:
        """End the worker processes. May be called more than once."""
        await self.workers.aclose()

    async def _hello(self) -> Hello:
        path = self.workers.setup.path
        if path not in _warned:
            _warned.add(path)
            logger.warning("%s runs in processes of its own, with your rights and no sandbox; this is said once", path)
        hello = await self.workers.start()
        self.reward_range = hello.reward_range
        return hello

    def __reduce__(self) -> tuple[Any, ...]:
        setup = self.workers.setup
        load = functools.partial(
            load_reward_file,
            num_workers=setup.num_workers,
            timeout_s=self.workers.timeout_s,
            real_imports=setup.real_imports,
        )
        return load, (setup.path, setup.name)


class FileReward(_FromFile):
    """A file's reward that looks at one trajectory at a time. Made by `load_reward_file`.

    Args:
        setup: names the file.
        timeout_s: as for `load_reward_file`.
    """

    async def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        """What the file's reward gives, with its own scale and clip."""
        hello = await self._hello()
        if hello.sees_groups:
            raise RewardError(f"{hello.label} sees groups, which the file's text doesn't show; define it in one place")
        return _only(await self.workers.score([trajectory]))


class FileGroupReward(_FromFile, GroupReward):
    """A file's reward that sees the whole group, or one of which the file's text doesn't show that it doesn't.

    One that turns out to look at single trajectories is called for each of them, on all workers at once.

    Args:
        setup: names the file.
        timeout_s: as for `load_reward_file`.
    """

    async def compute_rewards(self, trajectories: Sequence[Trajectory]) -> list[RewardOutput | RewardError]:
        """What the file's reward gives, with its own scale and clip, or the errors that it failed with."""
        hello = await self._hello()
        if hello.sees_groups:
            return await self.workers.score(trajectories)
        async with asyncio.TaskGroup() as together:
            scoring = [together.create_task(self._one(trajectory)) for trajectory in trajectories]
        return [task.result() for task in scoring]

    async def _one(self, trajectory: Trajectory) -> RewardOutput | RewardError:
        try:
            return (await self.workers.score([trajectory]))[0]
        except RewardError as error:
            return error


def _only(outputs: list[RewardOutput | RewardError]) -> RewardOutput:
    (output,) = outputs
    if isinstance(output, RewardError):
        raise output
    return output
