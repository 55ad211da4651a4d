import math
import pickle
from typing import Any

import pytest
from turngym.envs.errors import ConfigError, RewardError
from turngym.envs.rewards import LengthReward, RewardFunction, RewardOutput, Trajectory, score_group
from turngym.envs.rewards.combinators import FlooredReward, GatedReward, NormalizedReward, ScaledReward

TEXT = Trajectory(response="4")


class Fixed(RewardFunction):
    def __init__(self, given: Any, reward_range: tuple[float, float] = (-math.inf, math.inf), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.given = given
        self.reward_range = reward_range
        self.num_calls = 0

    def compute_reward(self, trajectory: Trajectory) -> Any:
        self.num_calls += 1
        return self.given


def column(trajectory: Trajectory) -> Any:
    """The reward that the row states."""
    return trajectory.columns["reward"]


def group(*rewards: Any) -> list[Trajectory]:
    return [Trajectory(response="x", columns={"reward": reward}) for reward in rewards]


async def scored(reward: RewardFunction, trajectories: list[Trajectory]) -> list[float | str]:
    return [
        item.reward if isinstance(item, RewardOutput) else str(item) for item in await score_group(reward, trajectories)
    ]


@pytest.mark.parametrize(("inner", "reward"), [(0.0, 0.1), (-5.0, 0.1), (0.05, 0.1), (0.1, 0.1), (0.7, 0.7)])
def test_a_floored_reward_is_never_below_its_floor(inner: float, reward: float):
    output = FlooredReward(Fixed(inner))(TEXT)
    assert output == RewardOutput(reward, metadata={"Fixed": inner}, score=inner)


def test_a_floor_lifts_neither_scores_nor_token_rewards():
    output = FlooredReward(Fixed(RewardOutput(0.0, [0.5, -0.5], score=0.25)), floor=0.3)(TEXT)
    assert output == RewardOutput(0.3, [0.5, -0.5], {"Fixed": 0.0}, 0.25)


def test_a_floor_must_be_above_zero():
    with pytest.raises(ConfigError, match=r"^floor=0 must be greater than 0$"):
        FlooredReward(Fixed(1), floor=0)


def test_the_range_of_floored_starts_at_the_floor():
    assert FlooredReward(Fixed(0, (0, 1))).reward_range == (0.1, 1)
    assert FlooredReward(Fixed(0, (-1, 0))).reward_range == (0.1, 0.1)
    assert FlooredReward(Fixed(0, (0.5, 1))).reward_range == (0.5, 1)


@pytest.mark.parametrize(
    ("gate", "inner", "reward"),
    [(1.0, 0.7, 0.7), (0.8, 0.7, 0.7), (0.79, 0.7, 0.0), (0.0, -0.5, -0.5), (1.0, -0.5, -0.5), (0.0, 0.0, 0.0)],
)
def test_a_gate_shuts_below_its_threshold(gate: float, inner: float, reward: float):
    output = GatedReward(Fixed(gate, name="gate"), Fixed(inner, name="task"))(TEXT)
    assert output.reward == reward
    assert output.metadata == {"is_open": gate >= 0.8, "gate": gate, "task": inner}
    assert output.score == (None if gate >= 0.8 else 0.0)


def test_behind_a_shut_gate_a_reward_that_cannot_be_negative_is_not_asked_for():
    task = Fixed(0.7, (0.0, 1.0), name="task")
    assert GatedReward(Fixed(0.0, name="gate"), task)(TEXT) == RewardOutput(
        0.0, metadata={"is_open": False, "gate": 0.0}, score=0.0
    )
    assert task.num_calls == 0
    assert GatedReward(Fixed(1.0), task)(TEXT).reward == 0.7
    assert task.num_calls == 1


def test_an_open_gate_changes_nothing_and_a_shut_one_takes_token_rewards():
    inner = RewardOutput(0.5, [1.0, -1.0], {"a": 1}, score=0.75)
    opened = GatedReward(Fixed(1.0), Fixed(inner))(TEXT)
    assert (opened.reward, opened.token_rewards, opened.score) == (0.5, [1.0, -1.0], 0.75)
    assert opened.metadata == {"is_open": True, "Fixed": 1.0, "Fixed_2": 0.5, "Fixed_2/a": 1}
    shut = GatedReward(Fixed(0.0), Fixed(inner))(TEXT)
    assert (shut.reward, shut.token_rewards, shut.score) == (0.0, [0.0, -1.0], 0.0)


def test_the_threshold_and_range_of_a_gate():
    assert GatedReward(Fixed(0.5), Fixed(1.0), threshold=0.5)(TEXT).reward == 1.0
    assert GatedReward(Fixed(0), Fixed(0, (0.25, 1))).reward_range == (0.0, 1)
    assert GatedReward(Fixed(0), Fixed(0, (-2, -1))).reward_range == (-2, -1)
    with pytest.raises(ConfigError, match=r"^threshold='high' must be a finite number$"):
        GatedReward(Fixed(0), Fixed(0), threshold="high")  # pyright: ignore[reportArgumentType]


async def test_a_failing_gate_or_reward_fails_its_trajectory():
    def fussy(trajectory: Trajectory) -> float:
        if trajectory.columns["reward"] == 2:
            raise RewardError("no answer")
        return 1.0

    trajectories = group(0, 1, 2)
    assert await scored(GatedReward(fussy, column), trajectories) == [0.0, 1.0, "GatedReward: fussy: no answer"]
    assert await scored(GatedReward(column, fussy), trajectories) == [0.0, 1.0, "GatedReward: fussy: no answer"]


async def test_a_group_is_normalised():
    assert await scored(NormalizedReward(column), group(1, 2, 3, 6)) == pytest.approx(
        [-2 / math.sqrt(3.5), -1 / math.sqrt(3.5), 0.0, 3 / math.sqrt(3.5)]
    )
    assert await scored(NormalizedReward(column, divide_by_deviation=False), group(1, 2, 3, 6)) == [-2, -1, 0, 3]


@pytest.mark.parametrize("divide_by_deviation", [True, False])
@pytest.mark.parametrize(
    "rewards", [(0.1,), (0.1, 0.1, 0.1), (0.0, 0.0), (1e300, 1e300), (0.3, 0.1 + 0.2), (1e9, 1e9 + 1e-6)]
)
async def test_equal_rewards_are_exactly_zero(rewards: tuple[float, ...], divide_by_deviation: bool):
    reward = NormalizedReward(column, divide_by_deviation)
    assert await scored(reward, group(*rewards)) == [0.0] * len(rewards)


def test_alone_a_normalised_reward_is_zero():
    assert NormalizedReward(column)(group(0.7)[0]).reward == 0.0


async def test_failures_count_for_nothing_in_a_group():
    assert await scored(NormalizedReward(column, False), group(1, math.nan, 3)) == [
        -1.0,
        "NormalizedReward: column: reward is nan; it must be finite",
        1.0,
    ]
    (failed,) = await scored(NormalizedReward(column), group(None))
    assert str(failed).startswith("NormalizedReward: column: reward is NoneType None")


async def test_normalising_keeps_scores_and_divides_token_rewards():
    outputs = await score_group(
        NormalizedReward(column), group(RewardOutput(0.0, [1.0], {"a": 1}, 0.5), RewardOutput(4.0, [2.0]))
    )
    assert outputs == [
        RewardOutput(-1.0, [0.5], {"column": 0.0, "column/a": 1}, 0.5),
        RewardOutput(1.0, [1.0], {"column": 4.0}, 4.0),
    ]


def test_the_range_of_a_difference():
    assert NormalizedReward(Fixed(0, (0, 2)), False).reward_range == (-2, 2)
    assert NormalizedReward(Fixed(0, (0, 2))).reward_range == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("inner", "from_range", "to_range", "reward", "score"),
    [
        (1, (1, 10), (0, 1), 0.0, 0.0),
        (10, (1, 10), (0, 1), 1.0, 1.0),
        (5.5, (1, 10), (0, 1), 0.5, 0.5),
        (0.75, (0, 1), (-1, 1), 0.5, 0.75),
        (12, (0, 10), (0, 1), 1.2, 1.0),
        (-12, (0, 10), (0, 1), -1.2, 0.0),
    ],
)
def test_a_reward_is_carried_to_another_range(inner: Any, from_range: Any, to_range: Any, reward: float, score: float):
    output = ScaledReward(Fixed(inner), from_range, to_range)(TEXT)
    assert output.reward == pytest.approx(reward)
    assert output.score == pytest.approx(score)
    assert output.metadata == {"Fixed": inner}


def test_scaling_stretches_token_rewards_and_keeps_a_score():
    output = ScaledReward(Fixed(RewardOutput(0.5, [1.0, -1.0], score=0.25)), (0, 1), (-5, 5))(TEXT)
    assert output == RewardOutput(0.0, [10.0, -10.0], {"Fixed": 0.5}, 0.25)


def test_the_first_range_is_the_rewards_own():
    reward = ScaledReward(LengthReward(scale=4.0), to_range=(-1, 1))
    assert (reward.from_range, reward.reward_range) == ((0.0, 4.0), (-1.0, 1.0))
    assert ScaledReward(Fixed(0, (0, 20)), (0, 10)).reward_range == (0.0, 2.0)
    assert ScaledReward(Fixed(0), (0, 10)).reward_range == (-math.inf, math.inf)
    with pytest.raises(ConfigError) as caught:
        ScaledReward(Fixed(0))
    assert str(caught.value) == "Fixed doesn't say what range its rewards have; give from_range=(least, greatest)"


@pytest.mark.parametrize("span", [(1, 1), (2, 1), (0,), 1.0, "01", None])
def test_a_range_goes_from_least_to_greatest(span: Any):
    with pytest.raises(ConfigError) as caught:
        ScaledReward(Fixed(0), (0, 1), to_range=span)
    assert str(caught.value) == f"to_range={span!r} must be (least, greatest), the first less than the second"


def test_combinators_survive_pickling():
    inner = LengthReward(target=1)
    for reward in (FlooredReward(inner), GatedReward(inner, inner), NormalizedReward(inner), ScaledReward(inner)):
        assert pickle.loads(pickle.dumps(reward))(TEXT) == reward(TEXT)
