"""The environment contract: `AgentInstance`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import gymnasium

from .types import Action, Observation, StepResult

if TYPE_CHECKING:
    import numpy as np

    from .registry import EnvSpec
    from .tasks import Task


class UnicodeText(gymnasium.spaces.Text):
    """Any string of at most `max_length` characters.

    Gymnasium's `Text` admits letters and digits only; an agent reads and writes all of Unicode.
    """

    def __init__(self, max_length: int = 2**20) -> None:
        super().__init__(max_length)

    def contains(self, x: Any) -> bool:
        """Whether x is a string that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"


class AgentInstance(ABC):
    """One episode at a time of a multi-turn environment: Gymnasium's shape, async.

    Subclasses write `reset` and `step`; either may be a plain `def`, which then runs on a thread of its own. `close`
    may be called at any time and more than once. `snapshot` and `restore` are reserved names.

    >>> class Echo(AgentInstance):
    ...     async def reset(self, *, seed=None, options=None):
    ...         return "Say hello.", {}
    ...
    ...     async def step(self, action):
    ...         is_solved = "hello" in action.text.lower()
    ...         return "", float(is_solved), True, False, {}

    Attributes:
        action_space: what `action.text` may be.
        observation_space: what the observation's text may be.
        metadata: `render_modes` and anything else, as in Gymnasium.
        spec: the specification it was made from, or None where it was made by hand.
    """

    action_space: gymnasium.spaces.Space[Any] = UnicodeText()
    observation_space: gymnasium.spaces.Space[Any] = UnicodeText()
    metadata: Mapping[str, Any] = MappingProxyType({"render_modes": []})
    spec: EnvSpec | None = None

    @abstractmethod
    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: seeds everything that the episode draws; the same seed and options give the same episode.
            options: the task's row: prompt, label and other columns, or the environment's own parameters.

        Returns:
            What the policy reads first, and an info dict.
        """

    @abstractmethod
    async def step(self, action: Action) -> StepResult | tuple[Observation, float, bool, bool, Mapping[str, Any]]:
        """Play one action. Returns a `StepResult` or Gymnasium's 5-tuple."""

    async def close(self) -> None:  # noqa: B027 - most environments hold nothing open
        """Let go of everything that is open. May be called more than once."""

    @property
    def unwrapped(self) -> AgentInstance:
        """The environment inside all wrappers."""
        return self

    @property
    def name(self) -> str:
        """What messages call it: its id where it has one, else its class."""
        return self.spec.id if self.spec is not None else type(self.unwrapped).__name__

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def render(self) -> str | None:
        """The current state as text, or None where there is nothing to show."""
        return None

    @classmethod
    def demonstrations(cls, task: Task, rng: np.random.Generator) -> Sequence[str] | None:
        """Actions that solve the task, in order, or None where the environment knows none.

        The warm start learns from them, `check_env` plays them, the docs show them.
        """
        del task, rng
        return None
