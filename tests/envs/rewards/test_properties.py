"""Rules that hold for every input, whatever a model writes."""

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from turngym.envs.rewards import (
    CompositeReward,
    FormatReward,
    KeywordReward,
    LengthReward,
    RewardFunction,
    RewardOutput,
    Trajectory,
    score_group,
)
from turngym.envs.rewards.choosing import CurriculumReward, MultiTaskReward
from turngym.envs.rewards.combinators import FlooredReward, GatedReward, NormalizedReward, ScaledReward
from turngym.envs.rewards.patterns import (
    BinaryReward,
    ContinuousReward,
    GraduatedReward,
    MultiAspectReward,
    ShapedReward,
)


def vowels(response: str) -> float:
    return sum(character in "aeiou" for character in response) / max(len(response), 1)


def cased(response: str) -> float:
    """A reward beyond [0, 1], below zero too."""
    return float(sum(character.isupper() - character.islower() for character in response))


READY: dict[str, Callable[[], RewardFunction]] = {
    "gaussian": lambda: LengthReward(target=3, tolerance=2),
    "linear": lambda: LengthReward(target=3, tolerance=2, reward_type="linear"),
    "format": lambda: FormatReward(["a", "Answer:"], [r"\d", "b+"]),
    "keywords": lambda: KeywordReward(["a", "β"], ["b", "1", "中"], ["c", "."]),
    "parts of words": lambda: KeywordReward(["a", "β"], ["b", "1", "中"], ["c", "."], whole_words=False),
    "binary": BinaryReward,
    "checked": lambda: BinaryReward(vowels),
    "graduated": GraduatedReward,
    "relative": lambda: GraduatedReward(relative=True),
    "continuous": ContinuousReward,
    "aspects": lambda: MultiAspectReward(relevance=cased),
    "shaped": lambda: ShapedReward(LengthReward(target=3), hallucination=vowels),
    "floored": lambda: FlooredReward(KeywordReward(["a"])),
    "gated": lambda: GatedReward(FormatReward(["a"]), KeywordReward(["b"])),
    "gated below zero": lambda: GatedReward(FormatReward(["a"]), ScaledReward(KeywordReward(["b"]), to_range=(-1, 1))),
    "centred": lambda: NormalizedReward(LengthReward(target=3, tolerance=2), divide_by_deviation=False),
    "normalised": lambda: NormalizedReward(LengthReward(target=3, tolerance=2)),
    "scaled": lambda: ScaledReward(LengthReward(target=3, tolerance=2), to_range=(-3, 0.1)),
    "composite": lambda: CompositeReward([(KeywordReward(["a"]), 0.7), (LengthReward(target=3), -0.3)]),
    "normalised weights": lambda: CompositeReward([(KeywordReward(["a"]), 0.1), (LengthReward(), 0.2)], normalize=True),
    "tasks": lambda: MultiTaskReward({"a": KeywordReward(["a"])}, default=LengthReward(scale=-2.0)),
    "curriculum": lambda: CurriculumReward(
        {"a": KeywordReward(["a"]), "b": LengthReward()}, [(0, {"a": 1.0}), (5, {"a": 0.3, "b": -0.7})]
    ),
}
"""Every ready reward that needs no model. What is added here is checked by all that follows."""

EXAMPLES = 25
"""For each ready reward."""

TEXTS = st.one_of(
    st.text(),
    st.text(alphabet="abc βABΒ1.-+e,/ \n\t中\u0301\u200b\ud800"),
    st.lists(st.sampled_from(["a", "Answer:", "b", "1e999", "-3.5", "½", "first", "then", "\n"])).map(" ".join),
)
LABELS = st.one_of(st.integers(), st.integers().map(str), st.floats(allow_nan=False, allow_infinity=False))


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    return Trajectory(
        prompt=draw(TEXTS),
        response=draw(TEXTS),
        label=draw(LABELS),
        columns={"task": draw(st.sampled_from("ab"))},
        update=draw(st.integers(0, 10)),
    )


GROUPS = st.lists(trajectories(), min_size=1, max_size=5)


def rewards_of(reward: RewardFunction, group: list[Trajectory]) -> list[float]:
    outputs = asyncio.run(score_group(reward, group))
    assert all(isinstance(output, RewardOutput) for output in outputs), outputs
    return [output.reward for output in outputs if isinstance(output, RewardOutput)]


@pytest.mark.parametrize("name", READY)
@settings(max_examples=EXAMPLES)
@given(group=GROUPS)
def test_every_reward_is_in_its_stated_range(name: str, group: list[Trajectory]):
    reward = READY[name]()
    low, high = reward.reward_range
    assert all(low <= value <= high for value in rewards_of(reward, group))
    assert all(low <= reward(trajectory).reward <= high for trajectory in group)


@pytest.mark.parametrize("name", READY)
def test_every_reward_states_a_finite_range_but_one_divided_by_a_deviation(name: str):
    assert all(map(math.isfinite, READY[name]().reward_range)) == (name != "normalised")


@pytest.mark.parametrize("name", READY)
@settings(max_examples=EXAMPLES)
@given(group=GROUPS, data=st.data())
def test_the_order_of_scoring_does_not_matter(name: str, group: list[Trajectory], data: st.DataObject):
    reward = READY[name]()
    order = data.draw(st.permutations(range(len(group))))
    straight = rewards_of(reward, group)
    assert rewards_of(reward, [group[index] for index in order]) == [straight[index] for index in order]


@pytest.mark.parametrize("name", [name for name in READY if name not in ("centred", "normalised")])
@settings(max_examples=EXAMPLES)
@given(group=GROUPS)
def test_calling_a_reward_gives_what_scoring_gives(name: str, group: list[Trajectory]):
    reward = READY[name]()
    assert rewards_of(reward, group) == [reward(trajectory).reward for trajectory in group]


WEIGHTS = st.floats(-10, 10)
TOKENS = st.lists(st.floats(-5, 5), min_size=2, max_size=2)


@given(st.lists(st.tuples(st.floats(-5, 5), WEIGHTS, TOKENS | st.just([])), min_size=1, max_size=5), st.booleans())
def test_a_composite_is_the_weighted_sum_of_its_parts(parts: list[tuple[float, float, list[float]]], normalize: bool):
    total = sum(weight for _, weight, _ in parts)
    if normalize and total < 0.1:
        return
    rewards = [(_giving(RewardOutput(value, tokens)), weight) for value, weight, tokens in parts]
    output = CompositeReward(rewards, normalize)(Trajectory())
    divisor = total if normalize else 1.0
    assert output.reward == pytest.approx(sum(value * weight for value, weight, _ in parts) / divisor, abs=1e-9)
    expected = [sum(weight * tokens[place] for _, weight, tokens in parts if tokens) / divisor for place in range(2)]
    assert output.token_rewards == (pytest.approx(expected, abs=1e-9) if any(t for _, _, t in parts) else [])
    values = [value for name, value in output.metadata.items()]
    assert values == [value for value, _, _ in parts]


@given(st.floats(-2, 2), st.floats(-5, 5), TOKENS | st.just([]), st.none() | st.floats(0, 1), st.floats(-2, 2))
def test_gating_never_raises_a_reward_or_a_score(
    gate: float, reward: float, tokens: list[float], score: float | None, threshold: float
):
    inner = RewardOutput(reward, tokens, score=score)
    gated = GatedReward(_giving(gate), _giving(inner), threshold)(Trajectory())
    assert gated.reward <= reward
    assert all(mine <= its for mine, its in zip(gated.token_rewards, tokens, strict=True))
    assert _score(gated) <= _score(inner)
    if gate >= threshold:
        assert (gated.reward, gated.token_rewards, gated.score) == (reward, tokens, score)
    else:
        assert gated.reward == min(reward, 0.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=16))
def test_a_normalised_group_has_mean_zero_and_deviation_one_or_nothing(values: list[float]):
    reward = NormalizedReward(lambda trajectory: trajectory.columns["value"])
    group = [Trajectory(columns={"value": value}) for value in values]
    rewards = rewards_of(reward, group)
    assert math.fsum(rewards) == pytest.approx(0.0, abs=1e-6)
    assert all(abs(value) <= math.sqrt(len(values) - 1) + 1e-6 for value in rewards)
    if any(rewards):
        assert math.fsum(value * value for value in rewards) / len(rewards) == pytest.approx(1.0)
        in_order = sorted(zip(values, rewards, strict=True))
        assert all(a <= b for (_, a), (_, b) in itertools.pairwise(in_order))
    if len(set(values)) == 1:
        assert rewards == [0.0] * len(values)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=16))
def test_a_centred_group_has_mean_zero(values: list[float]):
    reward = NormalizedReward(lambda trajectory: trajectory.columns["value"], divide_by_deviation=False)
    rewards = rewards_of(reward, [Trajectory(columns={"value": value}) for value in values])
    assert math.fsum(rewards) == pytest.approx(0.0, abs=1e-6)


@given(st.floats(-5, 5), st.floats(0.01, 1))
def test_a_floor_only_raises_a_reward(reward: float, floor: float):
    floored = FlooredReward(_giving(reward), floor)(Trajectory())
    assert floored.reward >= max(reward, floor) > 0
    assert floored.score == reward


def _giving(value: Any) -> Any:
    return lambda response: value


def _score(output: RewardOutput) -> float:
    return min(max(output.reward if output.score is None else output.score, 0.0), 1.0)
