"""The usual shapes of a reward: right or wrong, by degrees, by distance, by aspects, with corrections."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError, InvalidRewardError
from .answers import check_answer
from .arguments import number
from .base import Clip, RewardFunction
from .combined import CombinedReward, Steps, each, part_metadata, range_of, weighted_sum
from .composite import summed
from .functions import FunctionReward, as_reward
from .numbers import Number, last_number
from .types import RewardOutput, Trajectory, truth_of

ASPECT_WEIGHTS = {"correctness": 0.4, "relevance": 0.3, "clarity": 0.2, "conciseness": 0.1}
"""What each aspect of `MultiAspectReward` weighs."""

CLEAR_SENTENCE_WORDS = 25
CONCISE_WORDS = 100
STEPS_NEEDED = 2

_SENTENCE_END = re.compile(r"[.!?。！？।\n]")
_STEP = re.compile(
    r"^[ \t]{0,8}(?:step[ \t]{1,4}\d{1,3}\b|\d{1,3}[.)](?=[ \t])|[-*•](?=[ \t]))", re.IGNORECASE | re.MULTILINE
)
_CONNECTIVE = re.compile(r"\b(?:first|second|then|next|therefore|because|since|thus|hence|so|finally)\b", re.IGNORECASE)


class BinaryReward(CombinedReward):
    """Right or wrong: 1 or 0. Best where a checker can tell, and the policy is sometimes right.

        1 if check >= 0.5, else 0

    Range: [0, 1].

    >>> BinaryReward(lambda response, label: response == label)(Trajectory(response="4", label="4")).reward
    1.0

    Args:
        check: gives a truth value or a number; whatever `as_reward` takes. By default the response is compared to the
            label, as by `check_answer`.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.
    """

    compares = False

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        check: Any = None,
        *,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__({"check": _or_label(check, "check")}, name, scale, clip)

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        """1 or 0 for each trajectory."""
        (given,) = yield [(self.rewards["check"], trajectories)]
        return each(_binary, given)


class GraduatedReward(RewardFunction):
    """Full credit for the right number, half for a close one. Best where nearly right is worth telling from wrong.

        1 if number == label, 0.5 if |number - label| <= close, else 0

    The last number of the response counts. A label that is more than a number is compared as text: 1 or 0. Both are as
    in `check_answer`. Range: [0, 1].

    >>> [GraduatedReward()(Trajectory(response=text, label=3)).reward for text in ("3", "3.1", "3.2", "?")]
    [1.0, 0.5, 0.0, 0.0]

    Args:
        close: the greatest distance that counts as close: of the numbers themselves, inclusive.
        relative: measure the distance in parts of |label|.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        close: float = 0.1,
        *,
        relative: bool = False,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(name, scale, clip)
        self.close = number(close, "close", least=0)
        self.relative = relative

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        """The credit for the response's last number."""
        right = is_right(trajectory)
        truth, found = _stated_number(truth_of(trajectory)), last_number(trajectory.response)
        if truth is None:
            return RewardOutput(reward=right)
        if found is None:
            return RewardOutput(reward=0.0, metadata={"has_number": False})
        limit = self.close * abs(truth) if self.relative else self.close
        error = abs(found - truth)
        # 3.1 - 3 is a little more than 0.1 in binary.
        is_close = error <= limit + 4 * math.ulp(max(abs(found), abs(truth)))
        reward = 1.0 if right else 0.5 if is_close else 0.0
        return RewardOutput(reward=reward, metadata={"has_number": True, "error": error})


class ContinuousReward(RewardFunction):
    """Credit that falls with the distance to the label. Best for estimates, where every step nearer should count.

        max(0, 1 - |number - label| / max_error)

    The last number of the response counts; without one the reward is 0. Range: [0, 1].

    >>> ContinuousReward()(Trajectory(response="It is about 90.", label=100)).reward
    0.9

    Args:
        max_error: the distance from which on there is no credit.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        max_error: float = 100.0,
        *,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(name, scale, clip)
        self.max_error = number(max_error, "max_error", above=0)

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        """The credit for the response's last number.

        Raises:
            InvalidRewardError: the label isn't there, or holds no number.
        """
        label = truth_of(trajectory)
        truth, found = last_number(str(label)), last_number(trajectory.response)
        if truth is None:
            raise InvalidRewardError(f"the label {label!r} holds no number, so there is no distance; use BinaryReward")
        if found is None:
            return RewardOutput(reward=0.0, metadata={"has_number": False})
        error = abs(found - truth)
        return RewardOutput(reward=max(0.0, 1 - error / self.max_error), metadata={"has_number": True, "error": error})


class MultiAspectReward(CombinedReward):
    """Correctness, relevance, clarity and conciseness in one. Best for open questions that have a right answer.

        0.4 * correctness + 0.3 * relevance + 0.2 * clarity + 0.1 * conciseness

    Each aspect is clamped to [0, 1], and stands in `metadata` under its name. Range: [0, the sum of the weights].

    Args:
        relevance: how much the response is about the prompt; whatever `as_reward` takes.
        correctness: by default 1 if the response agrees with the label, as by `check_answer`, else 0.
        clarity: by default 1 where sentences have at most 25 words on average, falling to 0 at 50; 0 without words.
        conciseness: by default 1 for at most 100 words, falling to 0 at 200; 0 without words.
        weights: of the aspects whose weight is to be another.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Raises:
        ConfigError: a weight is negative or for no aspect.
    """

    compares = False

    def __init__(
        self,
        relevance: Any,
        *,
        correctness: Any = None,
        clarity: Any = None,
        conciseness: Any = None,
        weights: Mapping[str, float] | None = None,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        aspects = {
            "correctness": _or_label(correctness, "correctness"),
            "relevance": as_reward(relevance),
            "clarity": as_reward(default_clarity if clarity is None else clarity),
            "conciseness": as_reward(default_conciseness if conciseness is None else conciseness),
        }
        super().__init__(aspects, name, scale, clip)
        for aspect in weights or {}:
            if aspect not in aspects:
                raise ConfigError(f"there is no aspect {aspect!r}; there are {', '.join(aspects)}")
        chosen = ASPECT_WEIGHTS | dict(weights or {})
        self.weights = {aspect: number(chosen[aspect], f"the weight of {aspect}", least=0) for aspect in aspects}
        self.reward_range = (0.0, weighted_sum(self.weights.values(), [1.0] * len(aspects)))

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        """The weighted aspects of each trajectory."""
        given = yield [(part, trajectories) for part in self.rewards.values()]
        return each(self._sum, *given)

    def _sum(self, *outputs: RewardOutput) -> RewardOutput:
        clamped = [RewardOutput(_clamped(o.reward), o.token_rewards, o.metadata) for o in outputs]
        return summed({name: (self.weights[name], o) for name, o in zip(self.rewards, clamped, strict=True)})


class ShapedReward(CombinedReward):
    """A reward with small corrections. Best where the base says what matters, and bad habits should cost a little.

        base - min(0.1 * words / 100, 1) + 0.1 * reasoning - 0.2 * hallucination

    `reasoning` and `hallucination` are clamped to [0, 1]. The score is the base's. Range: the base's, less 1.2 at the
    lower end and more 0.1 at the upper.

    >>> ShapedReward(lambda response: 1.0)(Trajectory(response="word " * 200)).reward
    0.8

    Args:
        base: whatever `as_reward` takes.
        hallucination: how much of the response is made up, or whether something is; whatever `as_reward` takes. None
            takes nothing off.
        reasoning: how far, or whether, the response reasons in steps; whatever `as_reward` takes. By default whether it
            has two lines that begin as list items or `Step 1`, or two words such as `because` and `therefore`.
        length_penalty: for every 100 words, in proportion.
        reasoning_bonus: for reasoning steps, however many.
        hallucination_penalty: for hallucination.
        max_length_penalty: what length costs at most.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.
    """

    compares = False

    def __init__(
        self,
        base: Any,
        hallucination: Any = None,
        reasoning: Any = None,
        *,
        length_penalty: float = 0.1,
        reasoning_bonus: float = 0.1,
        hallucination_penalty: float = 0.2,
        max_length_penalty: float = 1.0,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        parts = {"base": as_reward(base), "reasoning": as_reward(has_steps if reasoning is None else reasoning)}
        if hallucination is not None:
            parts["hallucination"] = as_reward(hallucination)
        super().__init__(parts, name, scale, clip)
        self.length_penalty = number(length_penalty, "length_penalty", least=0)
        self.reasoning_bonus = number(reasoning_bonus, "reasoning_bonus", least=0)
        self.hallucination_penalty = number(hallucination_penalty, "hallucination_penalty", least=0)
        self.max_length_penalty = number(max_length_penalty, "max_length_penalty", least=0)
        low, high = range_of(parts["base"])
        made_up = 0.0 if hallucination is None else 1.0
        self.reward_range = (self._shaped(low, self.max_length_penalty, 0, made_up), self._shaped(high, 0, 1, 0))

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        """The corrected reward of each trajectory."""
        given = yield [(part, trajectories) for part in self.rewards.values()]
        return each(self._output, trajectories, *given)

    def _output(self, trajectory: Trajectory, base: RewardOutput, *others: RewardOutput) -> RewardOutput:
        num_words = len(trajectory.response.split())
        length = min(self.length_penalty * num_words / 100, self.max_length_penalty)
        reasoning, made_up = (*(_clamped(output.reward) for output in others), 0.0)[:2]
        outputs = zip(self.rewards, (base, *others), strict=True)
        metadata = {key: value for name, output in outputs for key, value in part_metadata(name, output).items()}
        metadata |= {"num_words": num_words, "length_penalty": length}
        score = base.reward if base.score is None else base.score
        return RewardOutput(self._shaped(base.reward, length, reasoning, made_up), base.token_rewards, metadata, score)

    def _shaped(self, base: float, length: float, reasoning: float, made_up: float) -> float:
        factors = (1.0, -1.0, self.reasoning_bonus, -self.hallucination_penalty)
        return weighted_sum(factors, (base, length, reasoning, made_up))


def default_clarity(response: str) -> float:
    """1 where sentences have at most 25 words on average, falling to 0 at 50."""
    lengths = [len(sentence.split()) for sentence in _SENTENCE_END.split(response)]
    lengths = [length for length in lengths if length]
    return _fading(sum(lengths) / len(lengths), CLEAR_SENTENCE_WORDS) if lengths else 0.0


def default_conciseness(response: str) -> float:
    """1 for at most 100 words, falling to 0 at 200."""
    num_words = len(response.split())
    return _fading(num_words, CONCISE_WORDS) if num_words else 0.0


def has_steps(response: str) -> bool:
    """Whether a response shows at least two steps of reasoning: lines that begin as steps, or words that join them."""
    return len(_STEP.findall(response)) >= STEPS_NEEDED or len(_CONNECTIVE.findall(response)) >= STEPS_NEEDED


def is_right(trajectory: Trajectory) -> bool:
    """Whether the response agrees with the label, as by `check_answer`.

    Raises:
        InvalidRewardError: there is no label.
    """
    return check_answer(trajectory.response, truth_of(trajectory)) == 1.0


def _or_label(given: Any, name: str) -> RewardFunction:
    return FunctionReward(is_right, name) if given is None else as_reward(given)


def _binary(check: RewardOutput) -> RewardOutput:
    return RewardOutput(reward=check.reward >= 0.5, metadata=part_metadata("check", check))


def _stated_number(label: Any) -> float | None:
    """A label that is a number and nothing else."""
    stated = Number.of(label) if isinstance(label, str | int | float) and not isinstance(label, bool) else None
    return None if stated is None else stated.as_float()


def _fading(count: float, limit: float) -> float:
    return _clamped(2 - count / limit)


def _clamped(value: float) -> float:
    return min(max(value, 0.0), 1.0)
