import inspect
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.envs.errors import ConfigError, InvalidRewardError, RewardError
from turngym.envs.rewards import GroupReward, RewardFunction, RewardOutput, Trajectory
from turngym.envs.rewards.base import label_of, labelled, score_of

FOUR = Trajectory(response="4")


class Fixed(RewardFunction):
    def __init__(self, value: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.value = value

    def compute_reward(self, trajectory: Trajectory) -> Any:
        return self.value


class WithoutConstructor(RewardFunction):
    def __init__(self, value: float):
        self.value = value

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        return RewardOutput(self.value)


class Later(RewardFunction):
    async def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        return RewardOutput(reward=0.5)


class Ranked(GroupReward):
    def compute_rewards(self, trajectories: Sequence[Trajectory]) -> list[float]:
        lengths = sorted(len(trajectory.response) for trajectory in trajectories)
        return [float(lengths.index(len(trajectory.response))) for trajectory in trajectories]


class Given(GroupReward):
    def __init__(self, given: Any) -> None:
        self.given = given

    def compute_rewards(self, trajectories: Sequence[Trajectory]) -> Any:
        return self.given


def test_subclasses_need_not_call_the_constructor():
    reward = WithoutConstructor(0.5)
    assert reward(FOUR) == RewardOutput(0.5)
    assert (reward.name, label_of(reward), reward.scale, reward.clip) == ("", "WithoutConstructor", 1.0, None)
    assert reward.reward_range == (-math.inf, math.inf)


def test_a_reward_is_named_after_its_class():
    assert Fixed(1).name == "Fixed"
    assert Fixed(1, name="mine").name == "mine"


def test_compute_reward_must_be_written():
    with pytest.raises(TypeError, match="compute_reward"):
        RewardFunction()
    with pytest.raises(TypeError, match="compute_rewards"):
        GroupReward()


@given(
    st.floats(-10, 10),
    st.floats(-10, 10),
    st.one_of(st.none(), st.floats(0, 10), st.tuples(st.floats(-10, 0), st.floats(0, 10))),
)
def test_a_reward_is_scaled_and_then_clipped(value: float, scale: float, clip: Any):
    low, high = (-math.inf, math.inf) if clip is None else clip if isinstance(clip, tuple) else (-clip, clip)
    assert Fixed(value, scale=scale, clip=clip)(FOUR).reward == min(max(value * scale, low), high)


def test_token_rewards_are_scaled_and_not_clipped():
    reward = Fixed(RewardOutput(3.0, [1.0, 2.0], {"a": 1}, 0.5), scale=2.0, clip=1.0)
    assert reward(FOUR) == RewardOutput(1.0, [2.0, 4.0], {"a": 1}, 0.5)


def test_an_output_that_is_given_again_is_not_scaled_twice():
    reward = Fixed(RewardOutput(1.0, [1.0]), scale=2.0)
    assert reward(FOUR) == reward(FOUR) == RewardOutput(2.0, [2.0])
    assert reward.value == RewardOutput(1.0, [1.0])


@pytest.mark.parametrize("clip", [-1, (1, 0), (math.nan, 1), math.nan])
def test_a_clip_that_leaves_nothing_is_refused(clip: Any):
    with pytest.raises(ConfigError) as caught:
        Fixed(1, clip=clip)
    assert str(caught.value) == f"clip={clip!r} must be a magnitude of at least 0, or (least, greatest)"


def test_numbers_are_outputs():
    assert Fixed(1)(FOUR) == Fixed(True)(FOUR) == Fixed(RewardOutput(1.0))(FOUR) == RewardOutput(1.0)


def test_what_is_no_reward_names_the_reward():
    with pytest.raises(InvalidRewardError, match=r"^mine: reward is NoneType None; it must be one number$"):
        Fixed(None, name="mine")(FOUR)
    with pytest.raises(RewardError, match=r"^Fixed: reward is nan; it must be finite$"):
        Fixed(math.nan)(FOUR)


def test_an_output_is_checked_again_when_it_is_given():
    output = RewardOutput(1.0)
    output.token_rewards.append(math.inf)
    with pytest.raises(RewardError, match=r"^Fixed: a token reward is inf; it must be finite$"):
        Fixed(output)(FOUR)


async def test_an_async_reward_is_awaited():
    pending = Later(scale=2.0)(FOUR)
    assert inspect.isawaitable(pending)
    assert await pending == RewardOutput(1.0)


def test_a_group_of_one_is_what_one_trajectory_gets():
    assert Ranked()(FOUR) == RewardOutput(0.0)


async def test_an_async_group_reward_is_awaited_for_one():
    class RankedLater(GroupReward):
        async def compute_rewards(self, trajectories: Sequence[Trajectory]) -> list[float]:
            return [0.5 for _ in trajectories]

    assert await RankedLater()(FOUR) == RewardOutput(0.5)


@pytest.mark.parametrize(
    ("given", "what"),
    [([1.0, 2.0], "list of 2"), ([], "list of 0"), (1.0, "float"), (None, "NoneType"), ("four", "str of 4")],
)
def test_a_group_reward_gives_one_reward_for_each(given: Any, what: str):
    with pytest.raises(InvalidRewardError) as caught:
        Given(given)(FOUR)
    assert str(caught.value) == (
        f"Given: compute_rewards gave {what} for 1 trajectories; it must give a sequence with one reward for each"
    )


def test_an_error_in_the_place_of_a_reward_fails_that_trajectory():
    scored = Given([0.5, RewardError("no answer"), None, math.nan]).finished_group(
        [0.5, RewardError("no answer"), None, math.nan], 4
    )
    assert scored[0] == RewardOutput(0.5)
    assert [f"{type(item).__name__} {item}" for item in scored[1:]] == [
        "RewardError Given: no answer",
        "InvalidRewardError Given: reward is NoneType None; it must be one number",
        "RewardError Given: reward is nan; it must be finite",
    ]
    with pytest.raises(RewardError, match=r"^no answer$"):
        Given([RewardError("no answer")])(FOUR)


def test_a_labelled_error_keeps_its_class_and_cause():
    error = InvalidRewardError("bad")
    named = labelled(error, Fixed(1))
    assert (type(named), str(named), named.__cause__) == (InvalidRewardError, "Fixed: bad", error)


@pytest.mark.parametrize(
    ("output", "score"),
    [
        (RewardOutput(0.5), 0.5),
        (RewardOutput(3.0, score=0.25), 0.25),
        (RewardOutput(3.0, score=0.0), 0.0),
        (RewardOutput(3.0), 1.0),
        (RewardOutput(-3.0), 0.0),
    ],
)
def test_the_score_is_its_own_or_the_reward_clamped(output: RewardOutput, score: float):
    assert score_of(output, "some") == score


def test_a_clamped_score_is_warned_of_once(caplog: pytest.LogCaptureFixture):
    for reward in (7.0, 8.0, -1.0):
        score_of(RewardOutput(reward), "warned-of")
    score_of(RewardOutput(9.0), "another")
    assert caplog.messages == [
        "warned-of gave the score 7, which is clamped to [0, 1]; this is said once",
        "another gave the score 9, which is clamped to [0, 1]; this is said once",
    ]


async def test_closing_and_starting_do_nothing_by_default():
    reward = Fixed(1)
    await reward.start()
    await reward.aclose()
    await reward.aclose()


def test_a_scale_that_overflows_is_refused():
    with pytest.raises(RewardError, match=r"^Fixed: .*inf"):
        Fixed(1e308, scale=10.0)(FOUR)
