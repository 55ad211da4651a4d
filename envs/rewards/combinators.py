"""Rewards that change what another one gives: floors, gates, normalisation, scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError
from .arguments import interval, number
from .base import Clip
from .combined import CombinedReward, Scored, Steps, each, part_metadata, range_of
from .composite import numbered
from .functions import as_reward
from .types import RewardOutput, Trajectory

MIN_DEVIATION = 1e-8
"""Rewards that deviate less than this, and than this share of the greatest, count as equal: it is rounding."""


class FlooredReward(CombinedReward):
    """A reward that never falls below a floor. Best where a reward of exactly zero would end learning.

        max(floor, reward)

    The score stays what it was, so that a failure that earns the floor still counts as one. Token rewards stay too.
    Range: the reward's, no lower than the floor.

    >>> FlooredReward(lambda response: 0.0)(Trajectory(response="4")).reward
    0.1

    Args:
        reward: whatever `as_reward` takes.
        floor: the least reward, greater than zero.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.
    """

    compares = False

    def __init__(
        self,
        reward: Any,
        floor: float = 0.1,
        *,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        part = as_reward(reward)
        super().__init__({part.name: part}, name, scale, clip)
        self.floor = number(floor, "floor", above=0)
        low, high = range_of(part)
        self.reward_range = (max(low, self.floor), max(high, self.floor))

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        """The greater of reward and floor, for each trajectory."""
        ((name, part),) = self.rewards.items()
        (given,) = yield [(part, trajectories)]
        return each(lambda output: _changed(name, output, max(output.reward, self.floor)), given)


class GatedReward(CombinedReward):
    """A reward that counts only where another is high enough. Best where the wrong format makes an answer worthless.

        reward if gate >= threshold, else min(0, reward)

    Gating never raises a reward: where the gate is shut, a negative reward stays. A reward that can't be negative isn't
    asked for then, which saves what it costs. A shut gate makes the score 0. Range: the reward's, with 0.

    >>> gated = GatedReward(gate=lambda response: "=" in response, reward=lambda response: 0.7)
    >>> gated(Trajectory(response="2 + 2 = 4")).reward, gated(Trajectory(response="4")).reward
    (0.7, 0.0)

    Args:
        gate: such as a `FormatReward`; whatever `as_reward` takes.
        reward: what counts; whatever `as_reward` takes.
        threshold: from where on the gate is open.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.
    """

    compares = False

    def __init__(
        self,
        gate: Any,
        reward: Any,
        threshold: float = 0.8,
        *,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(numbered([as_reward(gate), as_reward(reward)]), name, scale, clip)
        self.threshold = number(threshold, "threshold")
        _, part = self.rewards.values()
        low, high = range_of(part)
        self._is_harmless = low >= 0
        self.reward_range = (min(low, 0.0), high)

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        """The reward of each trajectory, behind the gate."""
        gate, part = self.rewards.values()
        (gates,) = yield [(gate, trajectories)]
        wanted = [index for index, scored in enumerate(gates) if self._matters(scored)]
        (given,) = yield [(part, [trajectories[index] for index in wanted])]
        answers = dict(zip(wanted, given, strict=True))
        return each(self._gated, gates, [answers.get(index) for index in range(len(trajectories))])

    def _matters(self, gate: Scored) -> bool:
        """Whether the reward behind the gate can make a difference."""
        return isinstance(gate, RewardOutput) and (gate.reward >= self.threshold or not self._is_harmless)

    def _gated(self, gate: RewardOutput, output: RewardOutput | None) -> RewardOutput:
        gate_name, name = self.rewards
        is_open = gate.reward >= self.threshold
        metadata = {"is_open": is_open, **part_metadata(gate_name, gate)}
        if output is None:
            return RewardOutput(reward=0.0, metadata=metadata, score=0.0)
        metadata |= part_metadata(name, output)
        if is_open:
            return RewardOutput(output.reward, output.token_rewards, metadata, output.score)
        tokens = [min(value, 0.0) for value in output.token_rewards]
        return RewardOutput(min(output.reward, 0.0), tokens, metadata, score=0.0)


class NormalizedReward(CombinedReward):
    """A reward relative to its group's. Best where only the comparison means something, as with a judge's taste.

        (reward - mean of the group) / standard deviation of the group (of the population)

    Equal rewards give exactly 0, and so does a group of one. Episodes whose scoring failed count for nothing. The score
    stays what it was. Token rewards are divided too, and not centred. Range: sqrt(n - 1) in magnitude, for groups of n,
    so none that holds for all; without the division, that of a difference of two rewards.

    Args:
        reward: whatever `as_reward` takes.
        divide_by_deviation: False only takes the mean off.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.
    """

    def __init__(
        self,
        reward: Any,
        divide_by_deviation: bool = True,
        *,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        part = as_reward(reward)
        super().__init__({part.name: part}, name, scale, clip)
        self.divide_by_deviation = divide_by_deviation
        if not divide_by_deviation:
            low, high = range_of(part)
            self.reward_range = (low - high, high - low)

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        """The reward of each trajectory, relative to the group's."""
        ((name, part),) = self.rewards.items()
        (given,) = yield [(part, trajectories)]
        values = [output.reward for output in given if isinstance(output, RewardOutput)]
        centre = math.fsum(values) / max(len(values), 1)
        slope = self._slope(values, centre)
        return each(lambda output: _changed(name, output, (output.reward - centre) * slope, slope), given)

    def _slope(self, values: Sequence[float], centre: float) -> float:
        deviation = math.hypot(*sorted(value - centre for value in values)) / math.sqrt(max(len(values), 1))
        if deviation < MIN_DEVIATION * max([1.0, *map(abs, values)]):
            return 0.0
        return 1 / deviation if self.divide_by_deviation else 1.0


class ScaledReward(CombinedReward):
    """A reward carried from one range to another. Best for giving rewards of different ranges the same weight.

        to_low + (reward - from_low) * (to_high - to_low) / (from_high - from_low)

    Rewards outside of the first range land outside of the second. Token rewards are stretched and not shifted. The
    score is the place in the first range, unless the reward states one. Range: the reward's own, carried over.

    >>> ScaledReward(lambda response: 7.0, from_range=(1, 10))(Trajectory(response="4")).reward
    0.6666666666666666

    Args:
        reward: whatever `as_reward` takes.
        from_range: (least, greatest); by default the reward's own range.
        to_range: (least, greatest).
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Raises:
        ConfigError: a range is none, or the reward has no bounds and `from_range` isn't given.
    """

    compares = False

    def __init__(
        self,
        reward: Any,
        from_range: tuple[float, float] | None = None,
        to_range: tuple[float, float] = (0.0, 1.0),
        *,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        part = as_reward(reward)
        super().__init__({part.name: part}, name, scale, clip)
        own = range_of(part)
        if from_range is None and not all(map(math.isfinite, own)):
            raise ConfigError(f"{part.name} doesn't say what range its rewards have; give from_range=(least, greatest)")
        self.from_range = interval(own if from_range is None else from_range, "from_range")
        self.to_range = interval(to_range, "to_range")
        self.reward_range = (self._scaled(own[0]), self._scaled(own[1]))

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        """The reward of each trajectory in the other range."""
        ((name, part),) = self.rewards.items()
        (given,) = yield [(part, trajectories)]
        slope = (self.to_range[1] - self.to_range[0]) / (self.from_range[1] - self.from_range[0])
        return each(lambda output: self._output(name, output, slope), given)

    def _output(self, name: str, output: RewardOutput, slope: float) -> RewardOutput:
        changed = _changed(name, output, self._scaled(output.reward), slope)
        if output.score is None:
            changed.score = min(max(self._place(output.reward), 0.0), 1.0)
        return changed

    def _place(self, value: float) -> float:
        return (value - self.from_range[0]) / (self.from_range[1] - self.from_range[0])

    def _scaled(self, value: float) -> float:
        return self.to_range[0] + self._place(value) * (self.to_range[1] - self.to_range[0])


def _changed(name: str, output: RewardOutput, reward: float, slope: float = 1.0) -> RewardOutput:
    """An output with another reward; what it was stands in the metadata, and the score stays."""
    score = output.reward if output.score is None else output.score
    tokens = [value * slope for value in output.token_rewards]
    return RewardOutput(reward, tokens, part_metadata(name, output), score)
