import math
import pickle
from typing import Any

import pytest
from turngym.envs.errors import ConfigError, InvalidRewardError, RewardError
from turngym.envs.rewards import RewardFunction, RewardOutput, Trajectory, score_group
from turngym.envs.rewards.patterns import (
    BinaryReward,
    ContinuousReward,
    GraduatedReward,
    MultiAspectReward,
    ShapedReward,
    default_clarity,
    default_conciseness,
    has_steps,
)

NO_LABEL = "the row has neither a label nor a column 'answer'; choose it with --label_key"


def said(text: str, label: Any = None) -> Trajectory:
    return Trajectory(response=text, label=label)


def giving(value: Any) -> Any:
    return lambda response: value


@pytest.mark.parametrize(
    ("text", "label", "reward"),
    [
        ("The answer is 4.", "4", 1.0),
        ("The answer is 4.0", 4, 1.0),
        ("The answer is 4.1", "4", 0.0),
        ("four", "4", 0.0),
        ("", "4", 0.0),
        ("Paris", "paris", 1.0),
        ("London", "paris", 0.0),
    ],
)
def test_binary_compares_to_the_label(text: str, label: Any, reward: float):
    output = BinaryReward()(said(text, label))
    assert output == RewardOutput(reward, metadata={"check": reward})


@pytest.mark.parametrize("passes", [True, 1, 0.5, 7.0, RewardOutput(1.0)])
def test_binary_is_one_where_the_check_passes(passes: Any):
    assert BinaryReward(giving(passes))(said("x")).reward == 1.0


@pytest.mark.parametrize("fails", [False, 0, 0.49, -1.0])
def test_binary_is_zero_where_it_does_not(fails: Any):
    assert BinaryReward(giving(fails))(said("x")).reward == 0.0


async def test_a_check_takes_what_it_names_and_may_be_async():
    async def check(response: str, label: str) -> bool:
        return response == label

    pending: Any = BinaryReward(check)(said("4", "4"))
    assert (await pending).reward == 1.0
    (scored,) = await score_group(BinaryReward(check), [said("5", "4")])
    assert scored == RewardOutput(0.0, metadata={"check": 0.0})


async def test_a_check_that_gives_nothing_is_a_failure():
    (scored,) = await score_group(BinaryReward(giving(None)), [said("x")])
    assert isinstance(scored, InvalidRewardError)
    assert str(scored) == "BinaryReward: function: reward is NoneType None; it must be one number"


@pytest.mark.parametrize(
    ("text", "label", "reward"),
    [
        ("3", 3, 1.0),
        ("3.1", 3, 0.5),
        ("2.9", "3", 0.5),
        ("It is 3.05, I think", "3", 0.5),
        ("3.11", 3, 0.0),
        ("103", 100, 0.0),
        ("0.1", 0, 0.5),
        ("-0.05", "0", 0.5),
        ("none", 3, 0.0),
        ("paris", "Paris", 1.0),
        ("rome", "Paris", 0.0),
        ("London 2024", "Paris 2024", 0.0),
        ("paris 2024", "Paris 2024", 1.0),
        ("$1,000.05", "1000", 0.5),
        ("0.30", 0.3, 1.0),
        ("1/3", "1/3", 1.0),
        ("1e400", 3, 0.0),
        ("3", 10**400, 0.0),
    ],
)
def test_graduated_gives_half_for_what_is_close(text: str, label: Any, reward: float):
    assert GraduatedReward()(said(text, label)).reward == reward


@pytest.mark.parametrize(
    ("text", "label", "reward"),
    [("110", 100, 0.5), ("90", 100, 0.5), ("111", 100, 0.0), ("-110", -100, 0.5), ("0.01", 0, 0.0), ("0", 0, 1.0)],
)
def test_graduated_may_measure_in_parts_of_the_label(text: str, label: Any, reward: float):
    assert GraduatedReward(relative=True)(said(text, label)).reward == reward


def test_graduated_takes_another_distance():
    assert GraduatedReward(close=5)(said("104", 100)).reward == 0.5
    assert GraduatedReward(close=0)(said("100", 100)).reward == 1.0
    assert GraduatedReward()(said("3.25", 3)).metadata == {"has_number": True, "error": 0.25}
    with pytest.raises(ConfigError, match=r"^close=-1 must be at least 0$"):
        GraduatedReward(close=-1)


@pytest.mark.parametrize(
    ("text", "label", "reward"),
    [
        ("100", 100, 1.0),
        ("about 90", "100", 0.9),
        ("150", 100, 0.5),
        ("0", 100, 0.0),
        ("-500", 100, 0.0),
        ("none", 100, 0.0),
        ("1e400", -(10**400), 0.0),
    ],
)
def test_continuous_falls_with_the_distance(text: str, label: Any, reward: float):
    assert ContinuousReward()(said(text, label)).reward == pytest.approx(reward)


def test_continuous_takes_another_scale():
    assert ContinuousReward(max_error=10)(said("98", 100)).reward == 0.8
    with pytest.raises(ConfigError, match=r"^max_error=0 must be greater than 0$"):
        ContinuousReward(max_error=0)


def test_continuous_needs_a_number_to_measure_from():
    with pytest.raises(InvalidRewardError) as caught:
        ContinuousReward()(said("4", "Paris"))
    assert str(caught.value) == "the label 'Paris' holds no number, so there is no distance; use BinaryReward"


@pytest.mark.parametrize("reward", [BinaryReward(), GraduatedReward(), ContinuousReward()])
async def test_what_compares_needs_a_label(reward: RewardFunction):
    (scored,) = await score_group(reward, [said("4")])
    assert isinstance(scored, InvalidRewardError)
    assert str(scored).endswith(NO_LABEL)


def test_aspects_have_the_documented_weights():
    reward = MultiAspectReward(relevance=giving(0.5), clarity=giving(1.0), conciseness=giving(0.0))
    output = reward(said("4", "4"))
    assert output.reward == pytest.approx(0.4 * 1 + 0.3 * 0.5 + 0.2 * 1 + 0.1 * 0)
    assert output.metadata == {"correctness": 1.0, "relevance": 0.5, "clarity": 1.0, "conciseness": 0.0}
    assert reward.weights == {"correctness": 0.4, "relevance": 0.3, "clarity": 0.2, "conciseness": 0.1}
    assert reward.reward_range == (0.0, 1.0)


def test_aspects_are_clamped_and_the_user_may_change_them():
    reward = MultiAspectReward(giving(7.0), correctness=giving(-3.0), weights={"relevance": 0.5, "clarity": 0})
    output = reward(said("4"))
    assert output.metadata == {"correctness": 0.0, "relevance": 1.0, "clarity": 1.0, "conciseness": 1.0}
    assert output.reward == pytest.approx(0.6)
    assert reward.reward_range == (0.0, 1.0)


def test_an_empty_response_earns_nothing_by_default():
    assert MultiAspectReward(giving(0.0))(said("", "4")).reward == 0.0


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"style": 1.0}, "there is no aspect 'style'; there are correctness, relevance, clarity, conciseness"),
        ({"clarity": -1.0}, "the weight of clarity=-1.0 must be at least 0"),
    ],
)
def test_weights_are_for_aspects(weights: dict[str, float], message: str):
    with pytest.raises(ConfigError) as caught:
        MultiAspectReward(giving(1.0), weights=weights)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("", 0.0),
        ("...", 0.0),
        ("Short. Sentences. Here.", 1.0),
        ("word " * 25, 1.0),
        ("word " * 30, 0.8),
        ("word " * 50, 0.0),
        ("word " * 500, 0.0),
        ("word " * 40 + ". " + "word " * 20, 0.8),
        ("word " * 40 + "\n" + "word " * 20, 0.8),
    ],
)
def test_clarity_by_default_is_short_sentences(response: str, value: float):
    assert default_clarity(response) == pytest.approx(value)


@pytest.mark.parametrize(("count", "value"), [(0, 0.0), (1, 1.0), (100, 1.0), (150, 0.5), (200, 0.0), (10**5, 0.0)])
def test_conciseness_by_default_is_a_hundred_words(count: int, value: float):
    assert default_conciseness("word " * count) == pytest.approx(value)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("", False),
        ("4", False),
        ("Therefore 4.", False),
        ("First add. Then divide.", True),
        ("Because 2 is even, it is 4, THEREFORE 4.", True),
        ("Step 1: add\nStep 2: divide", True),
        ("1. add\n2. divide", True),
        ("- add\n- divide", True),
        ("1.5\n2.5", False),
        ("strengthen the authentic", False),
    ],
)
def test_reasoning_steps_are_recognised(response: str, expected: bool):
    assert has_steps(response) is expected


@pytest.mark.parametrize(
    ("num_words", "reasoning", "made_up", "reward"),
    [
        (0, False, False, 1.0),
        (100, False, False, 0.9),
        (250, False, False, 0.75),
        (0, True, False, 1.1),
        (0, False, True, 0.8),
        (100, True, True, 0.8),
        (100, 0.5, 0.5, 0.85),
        (100, 7.0, 7.0, 0.8),
        (10**5, False, False, 0.0),
    ],
)
def test_shaped_corrects_the_base(num_words: int, reasoning: float, made_up: float, reward: float):
    shaped = ShapedReward(giving(1.0), hallucination=giving(made_up), reasoning=giving(reasoning))
    output = shaped(said("word " * num_words))
    assert output.reward == pytest.approx(reward)
    assert output.score == 1.0
    assert output.metadata == {
        "base": 1.0,
        "reasoning": float(reasoning),
        "hallucination": float(made_up),
        "num_words": num_words,
        "length_penalty": pytest.approx(min(num_words / 1000, 1.0)),
    }


def test_shaped_needs_no_hallucination_check():
    output = ShapedReward(giving(0.5))(said("First this. Then that."))
    assert output.reward == pytest.approx(0.5 + 0.1 - 0.004)
    assert "hallucination" not in output.metadata


def test_shaped_keeps_token_rewards_and_score_of_the_base():
    output = ShapedReward(giving(RewardOutput(0.5, [1.0, 2.0], score=0.25)))(said(""))
    assert (output.token_rewards, output.score) == ([1.0, 2.0], 0.25)


def test_the_range_of_shaped_is_that_of_its_base_corrected():
    class Unit(RewardFunction):
        reward_range = (0.0, 1.0)

        def compute_reward(self, trajectory: Trajectory) -> float:
            return 1.0

    assert ShapedReward(Unit()).reward_range == (-1.0, 1.1)
    assert ShapedReward(Unit(), giving(0)).reward_range == (-1.2, 1.1)
    assert ShapedReward(Unit(), max_length_penalty=0.5).reward_range == (-0.5, 1.1)
    assert ShapedReward(giving(1)).reward_range == (-math.inf, math.inf)


async def test_a_failing_check_is_that_trajectorys_failure():
    def hallucination(response: str) -> float:
        raise KeyError(response)

    def fussy(response: str) -> float:
        return hallucination(response) if response == "bad" else 0.0

    scored = await score_group(ShapedReward(giving(1.0), fussy), [said(""), said("bad")])
    assert isinstance(scored[0], RewardOutput)
    assert isinstance(scored[1], RewardError)
    assert str(scored[1]) == "ShapedReward: fussy raised KeyError: 'bad'"


def test_patterns_survive_pickling():
    for reward in (BinaryReward(), GraduatedReward(), ContinuousReward(), ShapedReward(GraduatedReward())):
        assert pickle.loads(pickle.dumps(reward))(said("4", "4")) == reward(said("4", "4"))
