import asyncio
import inspect
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.envs.errors import ConfigError, InvalidRewardError, RewardError
from turngym.envs.rewards import (
    CompositeReward,
    GroupReward,
    MathReward,
    RewardFunction,
    RewardOutput,
    Trajectory,
    score_group,
)
from turngym.envs.rewards.base import is_async, label_of, labelled, plain_outside_loop, score_of

from .judge_server import Asked, JudgeServer, Reply, judge_of, rated
from .scored import outputs_of

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


class Everywhere(RewardFunction):
    """Gives the length of the response once as many calls as `together` are under way at the same time."""

    def __init__(self, together: int = 1) -> None:
        super().__init__()
        self.together = together
        self.num_calls = 0
        self.threads: set[str] = set()

    @plain_outside_loop
    async def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        """How long it is."""
        self.num_calls += 1
        self.threads.add(threading.current_thread().name)
        while self.num_calls < self.together:  # noqa: ASYNC110 - the other calls
            await asyncio.sleep(0)
        if not trajectory.response:
            raise RewardError("there is nothing")
        return RewardOutput(reward=len(trajectory.response))


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
        RewardFunction()  # pyright: ignore[reportAbstractUsage]
    with pytest.raises(TypeError, match="compute_rewards"):
        GroupReward()  # pyright: ignore[reportAbstractUsage]


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


@pytest.mark.parametrize("clip", [-1, (1, 0), (math.nan, 1), math.nan, "x", (1.0,), (None, 1.0), (0, 1, 2), {}])
def test_a_clip_that_leaves_nothing_is_refused(clip: Any):
    with pytest.raises(ConfigError) as caught:
        Fixed(1, clip=clip)
    assert str(caught.value) == f"clip={clip!r} must be a magnitude of at least 0, or (least, greatest)"


@pytest.mark.parametrize("scale", [None, "2", math.nan, math.inf, True])
def test_a_scale_that_is_no_finite_number_is_refused(scale: Any):
    with pytest.raises(ConfigError) as caught:
        Fixed(1, scale=scale)
    assert str(caught.value) == f"scale={scale!r} must be a finite number"


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


# Called where no event loop runs, as in a script.


def test_an_async_reward_gives_its_output_where_no_loop_runs():
    reward = Everywhere()
    assert reward.compute_reward(FOUR) == reward(FOUR) == RewardOutput(1.0)
    assert reward.threads == {threading.current_thread().name}
    with pytest.raises(RewardError, match=r"^there is nothing$"):
        reward.compute_reward(Trajectory())


async def test_an_async_reward_gives_a_coroutine_on_a_loop():
    reward = Everywhere()
    pending = reward.compute_reward(FOUR)
    assert inspect.iscoroutine(pending)
    assert reward.num_calls == 0
    assert await pending == await reward(FOUR) == RewardOutput(1.0)


def test_it_keeps_its_name_and_counts_as_async():
    assert (Everywhere.compute_reward.__name__, Everywhere.compute_reward.__doc__) == (
        "compute_reward",
        "How long it is.",
    )
    methods = [reward.compute_reward for reward in (Everywhere(), Later(), Fixed(1))]
    assert [is_async(method) for method in methods] == [True, True, False]


async def test_a_group_is_scored_on_the_loop_and_all_at_once():
    reward = Everywhere(together=64)
    outputs = outputs_of(await score_group(reward, [Trajectory(response="x" * (n + 1)) for n in range(64)]))
    assert [output.reward for output in outputs] == [float(n + 1) for n in range(64)]
    assert reward.threads == {threading.current_thread().name}


async def test_an_error_on_a_loop_names_the_reward():
    (scored,) = await score_group(Everywhere(), [Trajectory()])
    assert isinstance(scored, RewardError)
    assert str(scored) == "Everywhere: there is nothing"


async def test_a_plain_reward_that_asks_an_async_one_gets_its_output():
    class Half(RewardFunction):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Everywhere()

        def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
            return RewardOutput(reward=self.inner.compute_reward(trajectory).reward / 2)

    outputs = outputs_of(await score_group(Half(), [Trajectory(response="x" * (n + 1)) for n in range(8)]))
    assert [output.reward for output in outputs] == [(n + 1) / 2 for n in range(8)]


def by_length(asked: Asked) -> Reply:
    return rated(1 + len(asked.text) % 10)


def test_judges_and_mathematics_and_a_composite_of_them_give_outputs_in_a_script():
    trajectory = Trajectory(prompt="Halve it.", response=r"It is \boxed{\frac{x}{2}}.", label="0.5x")
    with JudgeServer(lambda asked: rated(10)) as server:
        judge, right = judge_of(server), MathReward()
        composite = CompositeReward([(judge, 0.25), (right, 0.5), (Fixed(1.0), 0.25)])
        for _ in range(2):  # each call has a loop of its own
            assert judge.compute_reward(trajectory).reward == 1.0
            assert right.compute_reward(trajectory).reward == 1.0
            assert composite.finished(composite.compute_reward(trajectory)).reward == 1.0
            assert composite(trajectory).metadata["MathReward"] == 1.0
        assert len(server.asked) == 6


async def test_on_a_loop_they_are_awaited():
    with JudgeServer(by_length) as server:
        composite = CompositeReward([(judge_of(server), 0.5), (MathReward(), 0.5)])
        trajectories = [Trajectory(response="So " * n + "it is 4.", label="4") for n in range(16)]
        pending = composite.compute_reward(trajectories[0])
        assert inspect.isawaitable(pending)
        alone = [await pending, *[await composite(trajectory) for trajectory in trajectories[1:]]]
        together = outputs_of(await score_group(composite, trajectories))
        assert [output.reward for output in together] == [output.reward for output in alone]
        assert {output.metadata["MathReward"] for output in together} == {1.0}
        await composite.aclose()
