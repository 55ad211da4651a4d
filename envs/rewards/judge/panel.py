"""`JudgePanel`: several judges on one response."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal

from ...errors import ConfigError, InvalidRewardError, RewardError
from ..arguments import number
from ..base import Clip
from ..combined import CombinedReward, Scored, Steps, part_metadata, range_of
from ..composite import numbered
from ..functions import as_reward
from ..types import RewardOutput, Trajectory

_SUMMED = ("prompt_tokens", "completion_tokens", "requests", "retries", "cached", "cost")


class JudgePanel(CombinedReward):
    """The mean or median of several judges, which are asked at the same time.

    Each judge's reward stands in `metadata` under its name (a repeated name is numbered), its own metadata under
    `name/key`, and what they took together under `prompt_tokens`, `cost` and so on.

    >>> panel = JudgePanel([lambda response: 0.2, lambda response: 0.4, lambda response: 0.9], combine="median")
    >>> panel(Trajectory(response="4")).reward
    0.4

    Args:
        judges: the judges, or (judge, weight) of each, with weights over 0. A judge is whatever `as_reward` takes.
        combine: `mean` is the weighted mean. `median` is the weighted median, which one judge of three can't move far;
            where half of the weight lies on either side, it is the middle between the two judges there.
        min_judges: where some fail, so many must be left, which are combined without the others; by default, all of
            them must answer.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Raises:
        ConfigError: there are no judges, or an argument can't be used.
    """

    compares = False

    def __init__(
        self,
        judges: Sequence[Any],
        *,
        combine: Literal["mean", "median"] = "mean",
        min_judges: int | None = None,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        pairs = [judge if isinstance(judge, tuple | list) else (judge, 1.0) for judge in judges]
        if not pairs or any(len(pair) != 2 for pair in pairs):
            raise ConfigError("a panel needs at least one judge: JudgePanel([judge, ...]) or [(judge, weight), ...]")
        if combine not in ("mean", "median"):
            raise ConfigError(f"combine={combine!r} must be 'mean' or 'median'")
        if min_judges is not None and not (isinstance(min_judges, int) and 1 <= min_judges <= len(pairs)):
            raise ConfigError(f"min_judges={min_judges!r} must be an integer from 1 to {len(pairs)}, all judges")
        super().__init__(numbered([as_reward(pair[0]) for pair in pairs]), name, scale, clip)
        weights = [number(pair[1], "a weight", above=0) for pair in pairs]
        self.weights = dict(zip(self.rewards, weights, strict=True))
        self.min_judges = len(pairs) if min_judges is None else min_judges
        self.combined_by = combine
        ranges = [range_of(judge) for judge in self.rewards.values()]
        self.reward_range = (min(low for low, _ in ranges), max(high for _, high in ranges))

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        """What the judges that answered come to, for each trajectory."""
        given = yield [(judge, trajectories) for judge in self.rewards.values()]
        return [self._verdict(dict(zip(self.rewards, answers, strict=True))) for answers in zip(*given, strict=True)]

    def _verdict(self, answers: dict[str, Scored]) -> Scored:
        outputs = {name: answer for name, answer in answers.items() if isinstance(answer, RewardOutput)}
        errors = [answer for answer in answers.values() if isinstance(answer, RewardError)]
        for error in errors:
            if isinstance(error, InvalidRewardError):
                return error
        if len(outputs) < self.min_judges:
            if len(errors) == 1:
                return errors[0]
            return RewardError(
                f"{len(outputs)} of {len(answers)} judges answered, and {self.min_judges} must; the others failed: "
                + "; ".join(str(error) for error in errors)
            )
        metadata = {
            key: value for name, output in outputs.items() for key, value in part_metadata(name, output).items()
        }
        metadata["failed_judges"] = len(errors)
        for key in _SUMMED:
            taken = [output.parts[key] for output in outputs.values() if key in output.parts]
            if taken:
                metadata.setdefault(key, sum(taken))
        combined = weighted_mean if self.combined_by == "mean" else weighted_median
        rewards = [output.reward for output in outputs.values()]
        return RewardOutput(reward=combined(rewards, [self.weights[name] for name in outputs]), metadata=metadata)


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The mean, each value counting by its weight. It lies within the values, rounding or not."""
    total = math.fsum(weights)
    mean = math.fsum(value * (weight / total) for value, weight in zip(values, weights, strict=True))
    return min(max(mean, min(values)), max(values))


def weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The value with half of the weight on either side, or the middle between two.

    >>> weighted_median([0.25, 1.0, 0.5, 0.75], [1, 1, 1, 1]), weighted_median([0.25, 1.0, 0.5], [1, 5, 1])
    (0.625, 1.0)
    """
    ordered = sorted(zip(values, weights, strict=True))
    half = math.fsum(weights) / 2
    for index, upto in enumerate(accumulate(weight for _, weight in ordered)):
        if math.isclose(upto, half):
            return (ordered[index][0] + ordered[index + 1][0]) / 2
        if upto > half:
            return ordered[index][0]
    return ordered[-1][0]
