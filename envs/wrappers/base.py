"""The base of all wrappers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..instance import AgentInstance
from ..types import Action, Observation, StepResult

if TYPE_CHECKING:
    import numpy as np

    from ..tasks import Task


class Wrapper(AgentInstance):
    """An environment around an environment. Everything that a subclass doesn't override reaches `env`.

    Args:
        env: what is wrapped; where its methods are plain `def`, it runs on a thread.
    """

    awaits_env: ClassVar[bool] = True
    """Whether the wrapper awaits what it wraps, so that plain `def` methods need a thread in between."""

    def __init__(self, env: AgentInstance) -> None:
        from ..threads import as_async  # which is a wrapper, too

        self.env = as_async(env) if self.awaits_env else env
        self.action_space = env.action_space
        self.observation_space = env.observation_space
        self.metadata = env.metadata
        self.spec = env.spec

    @property
    def unwrapped(self) -> AgentInstance:
        """The environment inside all wrappers."""
        return self.env.unwrapped

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode."""
        return await self.env.reset(seed=seed, options=options)

    async def step(self, action: Action) -> StepResult | tuple[Observation, float, bool, bool, Mapping[str, Any]]:
        """Play one action."""
        return await self.env.step(action)

    async def close(self) -> None:
        """Close the environment."""
        await self.env.close()

    def render(self) -> str | None:
        """The environment's current state as text."""
        return self.env.render()

    def demonstrations(  # pyright: ignore[reportIncompatibleMethodOverride]  # a wrapper is met as an instance
        self, task: Task, rng: np.random.Generator
    ) -> Sequence[str] | None:
        """Actions that solve the task, as the environment knows them."""
        return self.env.demonstrations(task, rng)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self.env!r}>"
