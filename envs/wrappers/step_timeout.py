"""A limit of seconds for each call into an environment."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from ..errors import ConfigError, StepTimeoutError
from ..instance import AgentInstance
from ..types import Action, Observation, StepResult
from .base import Wrapper
from .within import within

T = TypeVar("T")


class StepTimeout(Wrapper):
    """Gives up on a `reset`, `step` or `close` that takes too long.

    An async method is cancelled; one that doesn't end then is left where it waits. A plain `def` method goes on in a
    thread that is abandoned. An async method that blocks the event loop can't be given up on inside its process: run
    such environments in worker processes.

    Args:
        env: the environment, as `make` returns it.
        seconds: the longest that one call may take.

    Raises:
        ConfigError: `seconds` is no positive, finite number.
        StepTimeoutError: from the call that took too long; names environment, call and seconds.
    """

    def __init__(self, env: AgentInstance, seconds: float) -> None:
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < math.inf:
            raise ConfigError(f"seconds={seconds!r} must be a positive, finite number")
        super().__init__(env)
        self.seconds = seconds

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode, within the limit."""
        return await self._limit("reset", self.env.reset(seed=seed, options=options))

    async def step(self, action: Action) -> StepResult | tuple[Observation, float, bool, bool, Mapping[str, Any]]:
        """Play one action, within the limit."""
        return await self._limit("step", self.env.step(action))

    async def close(self) -> None:
        """Close the environment, within the limit."""
        await self._limit("close", self.env.close())

    async def _limit(self, call: str, awaitable: Awaitable[T]) -> T:
        limited = within(awaitable, self.seconds)
        try:
            return await limited
        except TimeoutError:
            if not limited.is_over:  # the environment's own
                raise
            raise StepTimeoutError(f"{self.name}: {call} took longer than {self.seconds:g} s") from None
