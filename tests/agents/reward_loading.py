"""What the tests of rewards from files share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from turngym.agents import load_reward_file
from turngym.envs.errors import RewardError
from turngym.envs.rewards import RewardOutput, Trajectory


@asynccontextmanager
async def loaded(path: Path | str, name: str | None = None, **settings: Any) -> AsyncIterator[Any]:
    """A reward from a file, started, and closed in the end."""
    reward = load_reward_file(path, name, **settings)
    try:
        await reward.start()
        yield reward
    finally:
        await reward.aclose()


def responses(*texts: str, label: Any = None) -> list[Trajectory]:
    return [Trajectory(prompt="Say: ", response=text, label=label) for text in texts]


def outputs_of(scored: Sequence[RewardOutput | RewardError]) -> list[RewardOutput]:
    """What scoring came to, where nothing may fail."""
    assert all(isinstance(one, RewardOutput) for one in scored), scored
    return [one for one in scored if isinstance(one, RewardOutput)]


async def until(condition: Callable[[], Any]) -> None:
    """Wait for what another process does."""
    while not condition():  # noqa: ASYNC110 - another process sets no event
        await asyncio.sleep(0.01)
