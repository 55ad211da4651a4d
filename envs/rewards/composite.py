"""The weighted sum of rewards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

from ..errors import ConfigError
from .arguments import number
from .base import Clip, RewardFunction
from .combined import (
    CombinedReward,
    Steps,
    each,
    part_metadata,
    range_of,
    weighted_range,
    weighted_sum,
    weighted_tokens,
)
from .functions import as_reward
from .types import RewardOutput, Trajectory


class CompositeReward(CombinedReward):
    """The weighted sum of rewards. Best for goals that can be traded against each other.

        sum of weight * reward, over the parts

    Token rewards are added with the same weights. Each part's reward stands in `metadata` under its name, without its
    weight; a repeated name is numbered. The range follows from the parts' ranges and the weights.

    >>> reward = CompositeReward([(lambda response: 1.0, 0.75), (lambda response: 0.0, 0.25)])
    >>> reward(Trajectory(response="4"))
    RewardOutput(reward=0.75, token_rewards=[], metadata={'function': 1.0, 'function_2': 0.0}, score=None)

    Args:
        rewards: (reward, weight) of each part; a reward is whatever `as_reward` takes. Weights may be negative.
        normalize: divide the weights by their sum.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Raises:
        ConfigError: there are no parts, a part isn't (reward, weight), or the weights can't be normalised.
    """

    compares = False

    def __init__(
        self,
        rewards: Sequence[tuple[Any, SupportsFloat] | list[Any]],
        normalize: bool = False,
        *,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        parts, weights = _parts(rewards)
        super().__init__(numbered(parts), name, scale, clip)
        total = math.fsum(weights)
        if normalize and total <= 0:
            raise ConfigError(f"weights that add up to {total:g} can't be normalised; their sum must be positive")
        self.weights = [weight / total for weight in weights] if normalize else weights
        self.reward_range = weighted_range(self.weights, [range_of(part) for part in parts])

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        """The weighted sum for each trajectory."""
        given = yield [(part, trajectories) for part in self.rewards.values()]
        return each(self._sum, *given)

    def _sum(self, *outputs: RewardOutput) -> RewardOutput:
        return summed(dict(zip(self.rewards, zip(self.weights, outputs, strict=True), strict=True)))


def summed(parts: Mapping[str, tuple[float, RewardOutput]]) -> RewardOutput:
    """The weighted sum of parts.

    Args:
        parts: weight and output of each, by name.

    Raises:
        InvalidRewardError: two parts have a different number of token rewards.
        RewardError: the sum isn't finite.
    """
    metadata = {key: value for name, (_, output) in parts.items() for key, value in part_metadata(name, output).items()}
    reward = weighted_sum([weight for weight, _ in parts.values()], [output.reward for _, output in parts.values()])
    return RewardOutput(reward=reward, token_rewards=weighted_tokens(parts), metadata=metadata)


def numbered(rewards: Sequence[RewardFunction]) -> dict[str, RewardFunction]:
    """Rewards by their names; one that is taken gets `_2`, `_3`, ..."""
    named: dict[str, RewardFunction] = {}
    for reward in rewards:
        name, count = reward.name, 1
        while name in named:
            count += 1
            name = f"{reward.name}_{count}"
        named[name] = reward
    return named


def _parts(given: Any) -> tuple[list[RewardFunction], list[float]]:
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise ConfigError(f"rewards={given!r:.80} must be a list: CompositeReward([(reward, weight), ...])")
    pairs = list(given)
    if not pairs:
        raise ConfigError("a composite needs at least one part: CompositeReward([(reward, weight), ...])")
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ConfigError(f"{pair!r} is no part; each must be (reward, weight)")
    rewards, weights = zip(*pairs, strict=True)
    return [as_reward(reward) for reward in rewards], [number(weight, "a weight") for weight in weights]
