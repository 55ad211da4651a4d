"""The order of calls, and the one place where what an environment returns is brought into one checked form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import EnvClosedError, EnvError, EpisodeEndedError, InvalidStepError, PolicyFault, ResetNeededError
from ..instance import AgentInstance
from ..types import Action, Observation, StepResult, as_step_result, check_observation
from .base import Wrapper

_FRESH, _PLAYING, _ENDED, _CLOSED = range(4)


class OrderEnforcing(Wrapper):
    """Refuses calls out of order, and checks what `reset` and `step` return.

    Raises:
        ResetNeededError: `step` or `render` before `reset`.
        EpisodeEndedError: `step` after the episode ended, by its result or by `PolicyFault`.
        EnvClosedError: `reset`, `step` or `render` after `close`.
        InvalidStepError: `reset` or `step` returned something that breaks the contract.
    """

    def __init__(self, env: AgentInstance) -> None:
        super().__init__(env)
        self._state = _FRESH
        self._name = env.name

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode."""
        if self._state == _CLOSED:
            raise self._closed("reset")
        self._state = _FRESH
        try:
            returned = await self.env.reset(seed=seed, options=options)
        except SystemExit as error:  # must not end the run
            raise EnvError(f"{self._name}: reset raised SystemExit: {error}") from error
        observation, info = _as_reset_result(returned, self._name)
        self._state = _PLAYING
        return observation, info

    async def step(self, action: Action) -> StepResult:
        """Play one action."""
        if self._state != _PLAYING:
            raise self._out_of_order("step")
        try:
            returned = await self.env.step(action)
        except PolicyFault:  # it ends the episode
            self._state = _ENDED
            raise
        except SystemExit as error:
            raise EnvError(f"{self._name}: step raised SystemExit: {error}") from error
        result = as_step_result(returned, self._name)
        if result.terminated or result.truncated:
            self._state = _ENDED
        return result

    async def close(self) -> None:
        """Close the environment; further calls of `close` reach it, too."""
        self._state = _CLOSED
        await self.env.close()

    def render(self) -> str | None:
        """The environment's current state as text."""
        if self._state in (_FRESH, _CLOSED):
            raise self._out_of_order("render")
        return self.env.render()

    def _out_of_order(self, call: str) -> EnvError:
        if self._state == _CLOSED:
            return self._closed(call)
        if self._state == _ENDED:
            return EpisodeEndedError(f"{self._name}: {call} after the episode ended; call reset to begin another")
        return ResetNeededError(f"{self._name}: {call} before reset; call reset first")

    def _closed(self, call: str) -> EnvError:
        return EnvClosedError(f"{self._name}: {call} after close; make a new instance")


def _as_reset_result(value: object, where: str) -> tuple[Observation, dict[str, Any]]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise InvalidStepError(
            f"{where}: reset returned {type(value).__name__} {value!r:.80}; return the tuple (observation, info)"
        )
    observation, info = value
    check_observation(observation, where)
    if not isinstance(info, Mapping):
        raise InvalidStepError(f"{where}: reset's info is {type(info).__name__} {info!r:.80}; it must be a mapping")
    return observation, info if type(info) is dict else dict(info)
