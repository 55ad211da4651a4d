"""A limit of turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import ConfigError
from ..instance import AgentInstance
from ..types import Action, Observation, StepResult, as_step_result
from .base import Wrapper


class TimeLimit(Wrapper):
    """Truncates an episode after a number of turns.

    A limit sets `truncated` and never `terminated`: the task itself isn't over, its future is unknown.

    Args:
        env: the environment.
        max_turns: the turn whose result is truncated, counted from 1.

    Raises:
        ConfigError: `max_turns` is no integer of at least 1.
    """

    def __init__(self, env: AgentInstance, max_turns: int) -> None:
        if not isinstance(max_turns, int) or isinstance(max_turns, bool) or max_turns < 1:
            raise ConfigError(f"max_turns={max_turns!r} must be an integer of at least 1")
        super().__init__(env)
        self.max_turns = max_turns
        self._num_turns = 0

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode and count from zero."""
        self._num_turns = 0
        return await self.env.reset(seed=seed, options=options)

    async def step(self, action: Action) -> StepResult | tuple[Observation, float, bool, bool, Mapping[str, Any]]:
        """Play one action; the last one allowed is truncated unless it terminates."""
        returned = await self.env.step(action)
        self._num_turns += 1
        if self._num_turns < self.max_turns:
            return returned
        result = as_step_result(returned, self.name)
        return result if result.terminated else replace(result, truncated=True)
