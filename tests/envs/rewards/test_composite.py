import math
import pickle
from typing import Any

import numpy as np
import pytest
from turngym.envs.errors import ConfigError, InvalidRewardError, RewardError
from turngym.envs.rewards import (
    CompositeReward,
    FormatReward,
    FunctionReward,
    KeywordReward,
    LengthReward,
    RewardFunction,
    RewardOutput,
    Trajectory,
    score_group,
)

TEXT = Trajectory(response="therefore 4")


class Fixed(RewardFunction):
    def __init__(self, given: Any, reward_range: tuple[float, float] = (-math.inf, math.inf), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.given = given
        self.reward_range = reward_range

    def compute_reward(self, trajectory: Trajectory) -> Any:
        return self.given


def test_weights_are_not_normalised_unless_told():
    parts = [(Fixed(1.0), 2.0), (Fixed(0.5), 6.0)]
    assert CompositeReward(parts)(TEXT).reward == 5.0
    assert CompositeReward(parts, normalize=True)(TEXT).reward == 0.625
    assert CompositeReward(rewards=parts, normalize=True).weights == [0.25, 0.75]
    assert CompositeReward(parts, True).weights == [0.25, 0.75]


def test_weights_may_be_numbers_of_numpy():
    assert CompositeReward([(Fixed(1.0), np.float32(0.5)), (Fixed(1.0), np.int64(2))])(TEXT).reward == 2.5


def test_each_part_stands_in_the_metadata():
    reward = CompositeReward(
        [
            (LengthReward(target=2), 0.5),
            (KeywordReward(required=["therefore", "x"]), 0.3),
            (LengthReward(target=2), 0.2),
        ]
    )
    output = reward(TEXT)
    assert output.reward == pytest.approx(0.85)
    assert output.metadata == {
        "LengthReward": 1.0,
        "LengthReward/num_words": 2,
        "KeywordReward": 0.5,
        "KeywordReward/required_share": 0.5,
        "KeywordReward/bonus_found": 0,
        "KeywordReward/penalty_found": 0,
        "LengthReward_2": 1.0,
        "LengthReward_2/num_words": 2,
    }
    assert output.score is None


def test_repeated_names_are_numbered_past_those_taken():
    names = ["a", "a", "a_2", "a", "b"]
    reward = CompositeReward([(Fixed(index, name=name), 1.0) for index, name in enumerate(names)])
    assert reward(TEXT).metadata == {"a": 0, "a_2": 1, "a_2_2": 2, "a_3": 3, "b": 4}


def test_parts_count_after_their_own_scale_and_clip():
    output = CompositeReward([(Fixed(3.0, scale=2.0, clip=5.0), 0.5)], scale=2.0, clip=(0.0, 4.0))(TEXT)
    assert output == RewardOutput(4.0, metadata={"Fixed": 5.0})


def test_token_rewards_are_added_with_the_weights():
    parts = [
        (Fixed(RewardOutput(1.0, [1.0, 0.0, 2.0])), 0.5),
        (Fixed(1.0), 9.0),
        (Fixed(RewardOutput(1.0, [0.0, 1.0, -1.0])), -1.0),
    ]
    assert CompositeReward(parts)(TEXT).token_rewards == [0.5, -1.0, 2.0]
    assert CompositeReward(parts[1:2])(TEXT).token_rewards == []


async def test_token_rewards_of_different_lengths_name_both():
    parts = [(Fixed(RewardOutput(1.0, [1.0] * count), name=f"of_{count}"), 1.0) for count in (3, 3, 2)]
    message = (
        "of_3 gave 3 token rewards and of_2 gave 2; parts that give any must give as many, one for each action token"
    )
    with pytest.raises(InvalidRewardError) as caught:
        CompositeReward(parts)(TEXT)
    assert str(caught.value) == message
    (scored,) = await score_group(CompositeReward(parts), [TEXT])
    assert isinstance(scored, InvalidRewardError)
    assert str(scored) == f"CompositeReward: {message}"


def test_parts_may_be_anything_that_can_serve():
    def batch(prompts: list[str], completions: list[str]) -> list[float]:
        return [1.0 for _ in completions]

    reward = CompositeReward(
        [
            (lambda response: 1.0, 1.0),
            (FunctionReward(fn=lambda trajectory: 1.0), 1.0),
            (KeywordReward, 1.0),
            (batch, 1.0),
            [lambda response, label=None: True, 1],
            (CompositeReward([(FormatReward(), 1.0)]), 1.0),
        ]
    )
    assert reward(TEXT).reward == 6.0


@pytest.mark.parametrize(
    ("weights", "ranges", "expected"),
    [
        ((1.0,), ((0, 1),), (0.0, 1.0)),
        ((0.5, 0.5), ((0, 1), (0, 1)), (0.0, 1.0)),
        ((1.0, -1.0), ((0, 1), (0, 1)), (-1.0, 1.0)),
        ((2.0, -3.0), ((-1, 1), (0, 2)), (-8.0, 2.0)),
        ((0.0, 1.0), ((-math.inf, math.inf), (0, 1)), (0.0, 1.0)),
        ((1.0, -1.0), ((0, 1), (0, math.inf)), (-math.inf, 1.0)),
    ],
)
def test_the_range_follows_from_the_parts(weights: Any, ranges: Any, expected: tuple[float, float]):
    parts = [(Fixed(0.0, span), weight) for span, weight in zip(ranges, weights, strict=True)]
    assert CompositeReward(parts).reward_range == expected


def test_the_range_counts_the_scale_and_clip_of_parts():
    assert CompositeReward([(Fixed(0, (0, 1), scale=-2.0), 1.0)]).reward_range == (-2.0, 0.0)
    assert CompositeReward([(Fixed(0, clip=3.0), 1.0)]).reward_range == (-3.0, 3.0)
    assert CompositeReward([(Fixed(0, (0, 10), clip=(1.0, 3.0)), 2.0)]).reward_range == (2.0, 6.0)
    assert CompositeReward([(Fixed(0, scale=0.0), 1.0)]).reward_range == (0.0, 0.0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((5,), "rewards=5 must be a list: CompositeReward([(reward, weight), ...])"),
        (({"a": 1.0},), "rewards={'a': 1.0} must be a list: CompositeReward([(reward, weight), ...])"),
        (([],), "a composite needs at least one part: CompositeReward([(reward, weight), ...])"),
        ((["ab"],), "'ab' is no part; each must be (reward, weight)"),
        (([(len, 1, 2)],), f"{(len, 1, 2)!r} is no part; each must be (reward, weight)"),
        (([(KeywordReward, "1")],), "a weight='1' must be a finite number"),
        (([(KeywordReward, math.inf)],), "a weight=inf must be a finite number"),
        (([(3, 1.0)],), "3 is no reward; give a RewardFunction, or a function such as fn(response, label)"),
        (
            ([(KeywordReward, 1.0), (KeywordReward, -1.0)], True),
            "weights that add up to 0 can't be normalised; their sum must be positive",
        ),
    ],
)
def test_composites_that_make_no_sense_are_refused(args: Any, message: str):
    with pytest.raises(ConfigError) as caught:
        CompositeReward(*args)
    assert str(caught.value) == message


async def test_a_sum_that_overflows_is_that_trajectorys_failure():
    big = Fixed(1e308)
    (scored,) = await score_group(CompositeReward([(big, 1.0), (big, 1.0)]), [TEXT])
    assert isinstance(scored, RewardError)
    assert str(scored) == "CompositeReward: reward is nan; it must be finite"


def test_a_composite_survives_pickling():
    reward = CompositeReward([(LengthReward(), 0.5), (KeywordReward(["a"]), 0.5)])
    assert pickle.loads(pickle.dumps(reward))(TEXT) == reward(TEXT)
