"""The reward contract: `RewardFunction`, and `GroupReward` for those that compare the episodes of a group."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ..errors import ConfigError, InvalidRewardError, RewardError
from .arguments import number
from .types import RewardOutput, Trajectory, as_finite

logger = logging.getLogger("turngym.rewards")

Clip: TypeAlias = float | tuple[float, float] | None
Given: TypeAlias = RewardOutput | float
"""What a reward may give for a trajectory."""


class RewardFunction(ABC):
    """A reward. Subclasses write `compute_reward`; they need not call this constructor.

    >>> class Polite(RewardFunction):
    ...     def compute_reward(self, trajectory):
    ...         return RewardOutput(reward=float("please" in trajectory.response))
    >>> Polite(scale=2.0)(Trajectory(response="Yes, please.")).reward
    2.0

    `compute_reward` may be async. A plain `def` runs on a thread, so that it may block; it is then called from several
    threads at once.

    Args:
        name: what messages and metrics call it; by default its class.
        scale: what the reward is multiplied by where it is called.
        clip: then, the bound of its magnitude, or its least and greatest value; None doesn't clip.

    Attributes:
        reward_range: least and greatest reward that `compute_reward` gives.
        limits_itself: whether it limits the time of its own calls, as one does that queues them; nobody else then does.
        wraps_async: whether its plain methods do nothing but call an async function, so that they need no thread.
    """

    name: str = ""
    scale: float = 1.0
    clip: Clip = None
    reward_range: tuple[float, float] = (-math.inf, math.inf)
    limits_itself: bool = False
    wraps_async: bool = False

    def __init__(self, name: str | None = None, scale: float = 1.0, clip: Clip = None) -> None:
        self.name = type(self).__name__ if name is None else name
        self.scale = number(scale, "scale")
        self.clip = clip
        clip_bounds(clip)

    @abstractmethod
    def compute_reward(self, trajectory: Trajectory) -> Given | Awaitable[Given]:
        """The reward of one trajectory, before scale and clip. May be async, and may return a plain number."""

    def __call__(self, trajectory: Trajectory) -> Any:
        """The reward of one trajectory, scaled and clipped; awaitable where `compute_reward` is async.

        Raises:
            RewardError: it gave something that can't be used as a reward.
        """
        given = self.compute_reward(trajectory)
        return self._finished_later(given) if inspect.isawaitable(given) else self.finished(given)

    async def start(self) -> None:  # noqa: B027 - most need nothing
        """Get ready, so that what can't work is told early. Called before the first reward; may be called again."""

    async def aclose(self) -> None:  # noqa: B027 - most rewards hold nothing open
        """Let go of whatever is open. May be called more than once."""

    def finished(self, given: Any) -> RewardOutput:
        """What `compute_reward` gave, checked, scaled and clipped.

        Raises:
            InvalidRewardError: it is neither a `RewardOutput` nor a number.
            RewardError: a number isn't finite.
        """
        try:
            output = given if isinstance(given, RewardOutput) else RewardOutput(reward=as_finite(given, "reward"))
            output = replace(output)  # its numbers may have been changed since it was checked
            low, high = clip_bounds(self.clip)
            reward = min(max(output.reward * self.scale, low), high)
            return replace(output, reward=reward, token_rewards=[value * self.scale for value in output.token_rewards])
        except RewardError as error:
            raise type(error)(f"{label_of(self)}: {error}") from None

    async def _finished_later(self, given: Awaitable[Any]) -> RewardOutput:
        return self.finished(await given)


class GroupReward(RewardFunction):
    """A reward that sees the whole group: the trajectories of one task, in a fixed order.

    Subclasses write `compute_rewards`; a group of one is what `compute_reward` gives it.
    """

    @abstractmethod
    def compute_rewards(
        self, trajectories: Sequence[Trajectory]
    ) -> Sequence[RewardOutput | RewardError | float] | Awaitable[Sequence[RewardOutput | RewardError | float]]:
        """The reward of each trajectory, in their order; an error in its place fails that trajectory. May be async."""

    def compute_reward(self, trajectory: Trajectory) -> Given | Awaitable[Given]:
        """The reward of a trajectory that is alone."""
        given = self.compute_rewards([trajectory])
        return self._only_later(given) if inspect.isawaitable(given) else self._only(given)

    def finished_group(self, given: Any, count: int) -> list[RewardOutput | RewardError]:
        """What `compute_rewards` gave for `count` trajectories, checked, scaled and clipped.

        Returns:
            For each trajectory its output, or the error that it failed with.

        Raises:
            InvalidRewardError: it isn't one reward for each trajectory.
        """
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != count:
            size = f" of {len(given)}" if isinstance(given, Sequence) else ""
            raise InvalidRewardError(
                f"{label_of(self)}: compute_rewards gave {type(given).__name__}{size} for {count} trajectories; "
                "it must give a sequence with one reward for each"
            )
        return [self._finished_or_failed(item) for item in given]

    def _finished_or_failed(self, item: Any) -> RewardOutput | RewardError:
        if isinstance(item, RewardError):
            return labelled(item, self)
        try:
            return self.finished(item)
        except RewardError as error:
            return error

    def _only(self, given: Any) -> Any:
        if not isinstance(given, Sequence) or len(given) != 1:
            return self.finished_group(given, 1)  # it raises
        if isinstance(given[0], RewardError):
            raise given[0]
        return given[0]

    async def _only_later(self, given: Awaitable[Any]) -> Any:
        return self._only(await given)


def plain_outside_loop(method: Callable[[Any, Trajectory], Coroutine[Any, Any, RewardOutput]]) -> Callable[..., Any]:
    """Let an async `compute_reward` be called where no event loop runs, as in a script: it then gives the output.

    Where one runs it gives a coroutine, as any async method does.
    """

    @functools.wraps(method)
    def call(self: Any, trajectory: Trajectory) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(method(self, trajectory))
        return method(self, trajectory)

    call.__dict__[_ASYNC] = True
    return call


def is_async(method: Any) -> bool:
    """Whether a method of a reward gives a coroutine on an event loop, and is to be called there."""
    wraps_async = getattr(getattr(method, "__self__", None), "wraps_async", False)
    return wraps_async or inspect.iscoroutinefunction(method) or hasattr(method, _ASYNC)


_ASYNC = "gives_coroutine_on_loop"


def label_of(reward: RewardFunction) -> str:
    """What messages and metrics call a reward."""
    return reward.name or type(reward).__name__


def labelled(error: RewardError, reward: RewardFunction) -> RewardError:
    """A reward's error with its name in front."""
    named = type(error)(f"{label_of(reward)}: {error}")
    named.__cause__ = error
    return named


def score_of(output: RewardOutput, label: str, env_score: float | None = None) -> float:
    """The score of what was scored: the output's own, else the environment's, else the output's reward.

    It is clamped to [0, 1], with one warning a reward.
    """
    given = next(score for score in (output.score, env_score, output.reward) if score is not None)
    if not 0 <= given <= 1 and label not in _warned:
        _warned.add(label)
        logger.warning("%s gave the score %g, which is clamped to [0, 1]; this is said once", label, given)
    return min(max(given, 0.0), 1.0)


_warned: set[str] = set()


def clip_bounds(clip: Clip) -> tuple[float, float]:
    """Least and greatest value that a clip leaves.

    Raises:
        ConfigError: there is none.
    """
    if clip is None:
        return -math.inf, math.inf
    bounds: Any = (-clip, clip) if isinstance(clip, int | float) else clip
    try:
        low, high = map(float, bounds)
        if low <= high:
            return low, high
    except (TypeError, ValueError):
        pass
    raise ConfigError(f"clip={clip!r} must be a magnitude of at least 0, or (least, greatest)")
