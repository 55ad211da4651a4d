"""What rewards that are made of other rewards have in common.

A combinator says which part is to score which trajectories, and what to make of the results. It never calls a part. So
it needn't know whether a part is async, blocks or sees groups, and its parts fail one trajectory at a time:

    class Sum(CombinedReward):
        def combine(self, trajectories):
            first, second = yield [(part, trajectories) for part in self.rewards.values()]
            return each(lambda a, b: RewardOutput(reward=a.reward + b.reward), first, second)
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import math
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeGuard

from ..errors import InvalidRewardError, RewardError
from .base import Clip, GroupReward, RewardFunction, clip_bounds, labelled
from .types import RewardOutput, Trajectory

Scored: TypeAlias = RewardOutput | RewardError
"""What scoring a trajectory came to."""

Asked: TypeAlias = Sequence[tuple[RewardFunction, Sequence[Trajectory]]]
"""Parts, each with the trajectories that it is to score."""

Steps: TypeAlias = Generator[Asked, Sequence[Sequence[Scored]], Sequence[Scored]]
"""Yields what is asked, is sent one result for each trajectory of each part asked, returns the rewards."""


_Chunk: TypeAlias = list[Scored] | Coroutine[Any, Any, list[Scored]]
"""What one call into a part came to, or what it will."""


class CombinedReward(GroupReward):
    """A reward made of others. Subclasses write `combine`.

    `score_group` has all that is asked for at one time scored at the same time. Called directly, it calls its parts one
    after the other, needs no event loop, and is awaitable only where a part is.

    Args:
        rewards: the parts, by name.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Attributes:
        compares: whether what a trajectory earns depends on its siblings, beyond what its parts make of them.
    """

    compares: ClassVar[bool] = True

    def __init__(
        self,
        rewards: Mapping[str, RewardFunction],
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(name, scale, clip)
        self.rewards = dict(rewards)

    @abstractmethod
    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        """Ask the parts, and combine what they give: one reward, or error, for each trajectory."""

    def compute_rewards(self, trajectories: Sequence[Trajectory]) -> Sequence[Scored] | Awaitable[Sequence[Scored]]:
        """The combined reward of each trajectory."""
        steps = self.combine(trajectories)
        asked, rewards = advance(steps, None)
        while asked is not None:
            answers = _called(asked)
            if _coroutines(answers):
                return _go_on(steps, answers)
            asked, rewards = advance(steps, _joined(answers))
        return rewards

    async def start(self) -> None:
        """Start every part."""
        for reward in self.rewards.values():
            await reward.start()

    async def aclose(self) -> None:
        """Close every part."""
        for reward in self.rewards.values():
            await reward.aclose()


def advance(steps: Steps, answers: Any) -> tuple[Asked | None, Sequence[Scored]]:
    """What `combine` asks for next, or None and the rewards that it came to."""
    try:
        return steps.send(answers), ()
    except StopIteration as end:
        return None, end.value


def entry_of(reward: RewardFunction) -> str:
    """The method that scoring calls: the most derived of `combine`, `compute_rewards` and `compute_reward`."""
    names = ("combine", "compute_rewards", "compute_reward")
    return next(name for kind in type(reward).__mro__ for name in names if name in vars(kind))


def sees_groups(reward: RewardFunction) -> TypeGuard[GroupReward]:
    """Whether a reward is called with whole groups."""
    return isinstance(reward, GroupReward) and entry_of(reward) != "compute_reward"


def compares_episodes(reward: RewardFunction) -> bool:
    """Whether a reward, or a part of it, needs the other episodes of the group."""
    if isinstance(reward, CombinedReward) and entry_of(reward) == "combine":
        return reward.compares or any(compares_episodes(part) for part in reward.rewards.values())
    return sees_groups(reward)


def each(make: Callable[..., RewardOutput], *columns: Iterable[Any]) -> list[Scored]:
    """`make` of each row of the columns; where the row holds an error, or `make` raises one, that error."""
    rows = zip(*columns, strict=True)
    return [_made(make, row) for row in rows]


def part_metadata(name: str, output: RewardOutput) -> dict[str, Any]:
    """A part's reward under its name, and its own metadata under `name/key`."""
    return {name: output.reward, **{f"{name}/{key}": value for key, value in output.metadata.items()}}


def range_of(reward: RewardFunction) -> tuple[float, float]:
    """Least and greatest reward after scale and clip."""
    low, high = sorted(bound * reward.scale if reward.scale else 0.0 for bound in reward.reward_range)
    least, greatest = clip_bounds(reward.clip)
    return min(max(low, least), greatest), min(max(high, least), greatest)


def weighted_sum(weights: Iterable[float], values: Iterable[float]) -> float:
    """The sum of the products, exact up to its rounding; nothing counts with the weight 0."""
    try:
        return math.fsum(w * value for w, value in zip(weights, values, strict=True) if w)
    except (OverflowError, ValueError):
        return math.nan


def weighted_range(weights: Sequence[float], ranges: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least and greatest weighted sum of what lies in the ranges."""
    lows = [low if w > 0 else high for w, (low, high) in zip(weights, ranges, strict=True)]
    highs = [high if w > 0 else low for w, (low, high) in zip(weights, ranges, strict=True)]
    return weighted_sum(weights, lows), weighted_sum(weights, highs)


def weighted_tokens(parts: Mapping[str, tuple[float, RewardOutput]]) -> list[float]:
    """The token rewards of weighted parts, added; a part without any adds none.

    Raises:
        InvalidRewardError: two parts have a different number of them.
    """
    given = {name: part for name, part in parts.items() if part[1].token_rewards}
    counts = {name: len(output.token_rewards) for name, (_, output) in given.items()}
    if len(set(counts.values())) > 1:
        first, second = next((a, b) for a in counts for b in counts if counts[a] != counts[b])
        raise InvalidRewardError(
            f"{first} gave {counts[first]} token rewards and {second} gave {counts[second]}; "
            "parts that give any must give as many, one for each action token"
        )
    columns = zip(*(output.token_rewards for _, output in given.values()), strict=True)
    return [weighted_sum([w for w, _ in given.values()], column) for column in columns]


def _made(make: Callable[..., RewardOutput], row: tuple[Any, ...]) -> Scored:
    for item in row:
        if isinstance(item, RewardError):
            return item
    try:
        return make(*row)
    except RewardError as error:
        return error


def _called(asked: Asked) -> list[list[_Chunk]]:
    """For each part, what its calls give, made here and now; coroutines where it is async."""
    answers: list[list[_Chunk]] = []
    for part, trajectories in asked:
        answers.append([])
        for some in _calls(part, trajectories):
            try:
                answers[-1].append(_chunk(part, some))
            except Exception as error:
                if not _coroutines(answers):
                    raise
                answers[-1].append(_raised(error))  # later, so that what was begun is awaited
    return answers


def _calls(part: RewardFunction, trajectories: Sequence[Trajectory]) -> list[Sequence[Trajectory]]:
    """What each call into a part gets: all of the trajectories where it sees groups, else one."""
    if sees_groups(part):
        return [trajectories] if trajectories else []
    return [[trajectory] for trajectory in trajectories]


def _chunk(part: RewardFunction, some: Sequence[Trajectory]) -> _Chunk:
    try:
        given = part.compute_rewards(some) if sees_groups(part) else part.compute_reward(*some)
    except RewardError as error:
        return [labelled(error, part) for _ in some]
    return _finished_later(part, given, len(some)) if inspect.isawaitable(given) else _finished(part, given, len(some))


def _finished(part: RewardFunction, given: Any, count: int) -> list[Scored]:
    try:
        return part.finished_group(given, count) if sees_groups(part) else [part.finished(given)]
    except RewardError as error:
        return [error] * count


async def _finished_later(part: RewardFunction, given: Awaitable[Any], count: int) -> list[Scored]:
    try:
        return _finished(part, await given, count)
    except RewardError as error:
        return [labelled(error, part)] * count


async def _raised(error: Exception) -> list[Scored]:
    raise error


async def _go_on(steps: Steps, answers: list[list[_Chunk]]) -> Sequence[Scored]:
    while True:
        asked, rewards = advance(steps, _joined(await _settled(answers)))
        if asked is None:
            return rewards
        answers = _called(asked)


async def _settled(answers: list[list[_Chunk]]) -> list[list[list[Scored]]]:
    """The answers with every coroutine awaited, all at the same time."""
    results: list[list[Scored]] = []
    for result in await asyncio.gather(*_coroutines(answers), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    left = iter(results)
    return [[chunk if isinstance(chunk, list) else next(left) for chunk in chunks] for chunks in answers]


def _coroutines(answers: list[list[_Chunk]]) -> list[Coroutine[Any, Any, list[Scored]]]:
    return [chunk for chunks in answers for chunk in chunks if not isinstance(chunk, list)]


def _joined(answers: list[list[Any]]) -> list[list[Scored]]:
    return [list(itertools.chain(*chunks)) for chunks in answers]
