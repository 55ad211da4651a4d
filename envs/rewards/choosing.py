"""Rewards that depend on what is trained: on the row's task, or on the update."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import ConfigError, InvalidRewardError
from .arguments import number
from .base import Clip, RewardFunction
from .combined import CombinedReward, Scored, Steps, each, part_metadata, range_of, weighted_range
from .composite import summed
from .functions import as_reward
from .types import RewardOutput, Trajectory

Weights: TypeAlias = Mapping[str, float]
Stages: TypeAlias = Sequence[tuple[int, Weights]]

DEFAULT = "default"
"""What the reward for every other task is called."""


class MultiTaskReward(CombinedReward):
    """A reward for each task, chosen by a column of the row. Best for data sets that mix tasks.

        rewards[row[column]]

    Range: from the least to the greatest of all of them.

    Args:
        rewards: for each task, as text, whatever `as_reward` takes.
        column: the column that names the task.
        default: the reward of every other task; without one, such a row is an error.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Raises:
        ConfigError: there are no rewards, or a task is called like the default.
    """

    compares = False

    def __init__(
        self,
        rewards: Mapping[str, Any],
        column: str = "task",
        default: Any = None,
        *,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(_by_name(rewards), name, scale, clip)
        self.column = column
        self.has_default = default is not None
        if self.has_default:
            if DEFAULT in self.rewards:
                raise ConfigError(f"a task can't be called {DEFAULT!r} where a default is given")
            self.rewards[DEFAULT] = as_reward(default)
        ranges = [range_of(part) for part in self.rewards.values()]
        self.reward_range = (min(low for low, _ in ranges), max(high for _, high in ranges))

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        """The reward of each trajectory's task."""
        tasks = [self._task(trajectory) for trajectory in trajectories]
        used = [name for name in self.rewards if name in tasks]
        picked = {name: [i for i, task in enumerate(tasks) if task == name] for name in used}
        given = yield [(self.rewards[name], [trajectories[i] for i in picked[name]]) for name in used]
        answers: list[Scored | None] = [None] * len(trajectories)
        for name, scored in zip(used, given, strict=True):
            for index, answer in zip(picked[name], scored, strict=True):
                answers[index] = answer
        return each(_chosen, tasks, answers)

    def _task(self, trajectory: Trajectory) -> str | InvalidRewardError:
        task = trajectory.columns.get(self.column)
        if str(task) in self.rewards and task is not None:
            return str(task)
        if self.has_default:
            return DEFAULT
        known = ", ".join(map(repr, self.rewards))
        if self.column not in trajectory.columns:
            there = ", ".join(map(repr, trajectory.columns)) or "none"
            return InvalidRewardError(
                f"the row has no column {self.column!r}, which names the task ({known}); its columns: {there}"
            )
        return InvalidRewardError(f"there is no reward for the task {task!r}; there are {known}, and no default")


class CurriculumReward(CombinedReward):
    """A weighted sum whose weights change with the update. Best for teaching the format first and the task next.

        sum of weight(update) * reward, over the parts

    A part whose weight is 0 isn't asked for. Range: over all stages; none where a function gives the weights.

    >>> rewards = {"format": lambda response: 1.0, "task": lambda response: 0.5}
    >>> curriculum = CurriculumReward(rewards, [(0, {"format": 1.0}), (10, {"format": 0.5, "task": 0.5})])
    >>> [curriculum(Trajectory(response="4", update=update)).reward for update in (0, 9, 10)]
    [1.0, 1.0, 0.75]

    Args:
        rewards: the parts by name, each whatever `as_reward` takes.
        stages: (first update, weights by name) of each stage, the first from update 0; a name left out weighs 0. Or a
            function of the update that gives the weights, quickly.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Raises:
        ConfigError: there are no rewards, the stages aren't in order, or a weight is for no part.
    """

    compares = False

    def __init__(
        self,
        rewards: Mapping[str, Any],
        stages: Stages | Callable[[int], Weights],
        *,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(_by_name(rewards), name, scale, clip)
        self.stages = stages if callable(stages) else _stages(stages, self.rewards)
        if not callable(self.stages):
            ranges = [range_of(part) for part in self.rewards.values()]
            bounds = [weighted_range([w.get(n, 0.0) for n in self.rewards], ranges) for _, w in self.stages]
            self.reward_range = (min(low for low, _ in bounds), max(high for _, high in bounds))

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        """The weighted sum for each trajectory, at its update."""
        weights = [self._weights(trajectory) for trajectory in trajectories]
        picked = {
            name: [i for i, w in enumerate(weights) if isinstance(w, Mapping) and w.get(name)] for name in self.rewards
        }
        given = yield [(part, [trajectories[i] for i in picked[name]]) for name, part in self.rewards.items()]
        outputs: list[dict[str, Scored]] = [{} for _ in trajectories]
        for name, scored in zip(self.rewards, given, strict=True):
            for index, answer in zip(picked[name], scored, strict=True):
                outputs[index][name] = answer
        return [_weighted(w, answers) for w, answers in zip(weights, outputs, strict=True)]

    def _weights(self, trajectory: Trajectory) -> Weights | InvalidRewardError:
        if trajectory.update is None:
            return InvalidRewardError(
                "the trajectory has no update, which the weights depend on; training sets it, "
                "and elsewhere Trajectory(update=...) does"
            )
        if callable(self.stages):
            return _checked_weights(self.stages(trajectory.update), self.rewards, f"at update {trajectory.update}")
        place = bisect.bisect_right([start for start, _ in self.stages], trajectory.update)
        return self.stages[max(place - 1, 0)][1]


def _chosen(task: str, output: RewardOutput) -> RewardOutput:
    return RewardOutput(output.reward, output.token_rewards, part_metadata(task, output), output.score)


def _weighted(weights: Weights | InvalidRewardError, answers: Mapping[str, Scored]) -> Scored:
    if isinstance(weights, InvalidRewardError):
        return weights

    def add(*outputs: RewardOutput) -> RewardOutput:
        return summed({name: (weights[name], output) for name, output in zip(answers, outputs, strict=True)})

    return each(add, *([answer] for answer in answers.values()))[0] if answers else RewardOutput(reward=0.0)


def _by_name(rewards: Mapping[str, Any]) -> dict[str, RewardFunction]:
    if not isinstance(rewards, Mapping) or not rewards:
        raise ConfigError(f"rewards={rewards!r} must be a dict of rewards by name, with at least one")
    return {str(name): as_reward(reward) for name, reward in rewards.items()}


def _stages(stages: Stages, rewards: Mapping[str, RewardFunction]) -> Stages:
    for stage in stages if isinstance(stages, Sequence) else [stages]:
        if not isinstance(stage, tuple | list) or len(stage) != 2 or not isinstance(stage[0], int):
            raise ConfigError(f"{stage!r} is no stage; each must be (first update, weights by name)")
    checked = [(start, _checked_weights(weights, rewards, f"from update {start}")) for start, weights in stages]
    starts = [start for start, _ in checked]
    if not starts or starts[0] != 0 or any(a >= b for a, b in itertools.pairwise(starts)):
        raise ConfigError(f"the stages begin at the updates {starts}; they must begin at 0 and then increase")
    return checked


def _checked_weights(weights: Any, rewards: Mapping[str, RewardFunction], when: str) -> dict[str, float]:
    if not isinstance(weights, Mapping):
        raise ConfigError(f"the weights {when} are {weights!r}; they must be a dict of numbers by name")
    for name in weights:
        if name not in rewards:
            raise ConfigError(f"the weights {when} hold {name!r}; there are {', '.join(map(repr, rewards))}")
    return {name: number(weight, f"the weight of {name!r} {when}") for name, weight in weights.items()}
