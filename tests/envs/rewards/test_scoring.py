import asyncio
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.envs.errors import InvalidRewardError, RewardError
from turngym.envs.rewards import (
    CompositeReward,
    GroupReward,
    RewardFunction,
    RewardOutput,
    Trajectory,
    as_reward,
    score_group,
    score_one,
)
from turngym.envs.rewards.combined import CombinedReward, Scored, Steps, each, entry_of


def trajectories(*responses: str) -> list[Trajectory]:
    return [Trajectory(response=response) for response in responses]


def shown(scored: Sequence[Scored]) -> list[float | str]:
    return [f"{type(item).__name__}: {item}" if isinstance(item, RewardError) else item.reward for item in scored]


class Meeting(RewardFunction):
    """Blocks until as many calls as the barrier holds are here at once."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count)

    def compute_reward(self, trajectory: Trajectory) -> float:
        self.barrier.wait(timeout=60)
        return 1.0


class Blocking(RewardFunction):
    """Blocks until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.is_entered = threading.Event()

    def compute_reward(self, trajectory: Trajectory) -> float:
        self.is_entered.set()
        self.gate.wait(timeout=60)
        return 1.0


class GroupOf(GroupReward):
    def __init__(self, given: Any) -> None:
        self.given = given

    def compute_rewards(self, trajectories: Sequence[Trajectory]) -> Any:
        if isinstance(self.given, BaseException):
            raise self.given
        return self.given


def fails_on(bad: str, error: BaseException) -> RewardFunction:
    def fussy(response: str) -> float:
        if response == bad:
            raise error
        return float(len(response))

    return as_reward(fussy)


async def test_one_that_fails_does_not_hurt_the_others():
    scored = await score_group(fails_on("bad", KeyError("answer")), trajectories("a", "bad", "ccc"))
    assert shown(scored) == [1.0, "RewardError: fussy raised KeyError: 'answer'", 3.0]
    assert isinstance(scored[1], RewardError)
    assert isinstance(scored[1].__cause__, KeyError)


async def test_a_reward_error_keeps_its_class_and_gets_the_name():
    for kind in (RewardError, InvalidRewardError):
        scored = await score_group(fails_on("bad", kind("no column")), trajectories("bad", "a"))
        assert shown(scored) == [f"{kind.__name__}: fussy: no column", 1.0]


async def test_what_exits_ends_only_its_episode():
    scored = await score_group(fails_on("bad", SystemExit(3)), trajectories("bad", "a"))
    assert isinstance(scored[0], RewardError)
    assert shown(scored)[1] == 1.0
    assert "SystemExit" in str(scored[0])


async def test_an_async_reward_that_exits_or_cancels_itself_ends_only_its_episode():
    async def fussy(response: str) -> float:
        if response == "exit":
            raise SystemExit(3)
        if response == "cancel":
            raise asyncio.CancelledError
        return 1.0

    assert shown(await score_group(as_reward(fussy), trajectories("exit", "a", "cancel"))) == [
        "RewardError: fussy raised SystemExit: 3",
        1.0,
        "RewardError: fussy was cancelled by something inside it",
    ]


async def test_a_bad_number_is_that_episodes_failure():
    scored = await score_group(as_reward(lambda response: math.nan if response == "b" else 1.0), trajectories("a", "b"))
    assert shown(scored) == [1.0, "RewardError: function: reward is nan; it must be finite"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1.0, 2], [1.0, 2.0]),
        ((RewardOutput(0.5), True), [0.5, 1.0]),
        ([1.0, math.nan], [1.0, "RewardError: GroupOf: reward is nan; it must be finite"]),
        ([None, 1.0], ["InvalidRewardError: GroupOf: reward is NoneType None; it must be one number", 1.0]),
        ([RewardError("no answer"), 1.0], ["RewardError: GroupOf: no answer", 1.0]),
        (ValueError("all of it"), ["RewardError: GroupOf raised ValueError: all of it"] * 2),
        (InvalidRewardError("all of it"), ["InvalidRewardError: GroupOf: all of it"] * 2),
        (
            [1.0],
            [
                "InvalidRewardError: GroupOf: compute_rewards gave list of 1 for 2 trajectories; "
                "it must give a sequence with one reward for each"
            ]
            * 2,
        ),
    ],
)
async def test_a_group_reward_is_called_once_and_may_fail_some(given: Any, expected: list[float | str]):
    assert shown(await score_group(GroupOf(given), trajectories("a", "b"))) == expected


async def test_a_group_reward_sees_the_group_in_order():
    seen: list[list[str]] = []

    def batch(prompts: list[str], completions: list[str]) -> list[float]:
        seen.append(completions)
        return [float(len(text)) for text in completions]

    assert shown(await score_group(as_reward(batch), trajectories("a", "bb", "ccc"))) == [1.0, 2.0, 3.0]
    assert seen == [["a", "bb", "ccc"]]


async def test_nothing_to_score_calls_nothing():
    assert await score_group(GroupOf(AssertionError("called")), []) == []
    assert await score_group(CompositeReward([(GroupOf(AssertionError("called")), 1.0)]), []) == []


async def test_scale_and_clip_count_here_too():
    reward = as_reward(lambda response: 3.0)
    reward.scale, reward.clip = 2.0, 5.0
    assert shown(await score_group(reward, trajectories("a"))) == [5.0]
    assert shown([await score_one(reward, Trajectory())]) == [5.0]
    group = GroupOf([3.0])
    group.scale, group.clip = 2.0, 5.0
    assert shown(await score_group(group, trajectories("a"))) == [5.0]
    assert shown([await score_one(group, Trajectory())]) == [5.0]


async def test_blocking_rewards_run_side_by_side():
    assert shown(await score_group(Meeting(8), trajectories(*"abcdefgh"))) == [1.0] * 8


async def test_a_blocking_reward_leaves_the_loop_free():
    reward = Blocking()
    scoring = asyncio.create_task(score_group(reward, trajectories("a", "b")))
    await asyncio.to_thread(reward.is_entered.wait)
    for _ in range(100):
        await asyncio.sleep(0)  # the loop turns while the reward blocks
    assert not scoring.done()
    reward.gate.set()
    assert shown(await scoring) == [1.0, 1.0]


async def test_async_rewards_run_on_the_loop_side_by_side():
    here = threading.current_thread()
    arrived = asyncio.Event()
    count = 0

    async def reward(response: str) -> float:
        nonlocal count
        assert threading.current_thread() is here
        count += 1
        if count == 4:
            arrived.set()
        await arrived.wait()
        return 1.0

    assert shown(await score_group(as_reward(reward), trajectories(*"abcd"))) == [1.0] * 4


async def test_a_reward_that_overruns_fails_its_episode_only():
    gate = threading.Event()

    def slow(response: str) -> float:
        if response == "slow":
            gate.wait(timeout=60)
        return 1.0

    try:
        scored = await score_group(as_reward(slow), trajectories("a", "slow", "b"), timeout_s=1.0)
    finally:
        gate.set()
    assert shown(scored) == [1.0, "RewardError: slow took longer than 1 s", 1.0]


async def test_an_async_reward_that_overruns_is_cancelled():
    cancelled = asyncio.Event()

    async def slow(response: str) -> float:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 1.0

    assert shown(await score_group(as_reward(slow), trajectories("a"), timeout_s=0.01)) == [
        "RewardError: slow took longer than 0.01 s"
    ]
    assert cancelled.is_set()


async def test_a_timeout_of_the_reward_itself_is_its_own_error():
    scored = await score_group(fails_on("bad", TimeoutError("the server")), trajectories("bad"), timeout_s=60)
    assert shown(scored) == ["RewardError: fussy raised TimeoutError: the server"]


async def test_a_reward_that_limits_itself_is_not_limited():
    class Queued(RewardFunction):
        limits_itself = True

        async def compute_reward(self, trajectory: Trajectory) -> float:
            for _ in range(10):
                await asyncio.sleep(0)
            return 1.0

    assert shown(await score_group(Queued(), trajectories("a"), timeout_s=0.0)) == [1.0]


async def test_cancelling_leaves_no_call_behind():
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(response: str) -> float:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 1.0

    scoring = asyncio.create_task(score_group(as_reward(slow), trajectories("a")))
    await entered.wait()
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring
    assert cancelled.is_set()


@given(st.lists(st.text(), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_scoring_does_not_matter(responses: list[str], random: Any):
    reward = CompositeReward([(lambda response: float(len(response)), 0.5), (lambda response: 1.0, -1.0)])
    order = list(range(len(responses)))
    random.shuffle(order)
    straight = asyncio.run(score_group(reward, trajectories(*responses)))
    shuffled = asyncio.run(score_group(reward, trajectories(*(responses[index] for index in order))))
    assert shuffled == [straight[index] for index in order]


# Rewards that are made of others.


async def test_parts_that_block_run_side_by_side():
    reward = CompositeReward([(Meeting(4), 0.5), (Meeting(4), 0.5)])
    assert shown(await score_group(reward, trajectories(*"abcd"))) == [1.0] * 4


async def test_different_parts_run_side_by_side():
    meeting = Meeting(2)
    assert shown(await score_group(CompositeReward([(meeting, 0.5), (meeting, 0.5)]), trajectories("a"))) == [1.0]
    assert shown([await score_one(CompositeReward([(meeting, 0.5), (meeting, 0.5)]), Trajectory())]) == [1.0]


async def test_a_part_that_fails_fails_that_trajectory_and_is_named():
    reward = CompositeReward([(fails_on("bad", ValueError("no")), 1.0), (lambda response: 1.0, 1.0)])
    assert shown(await score_group(reward, trajectories("a", "bad"))) == [
        2.0,
        "RewardError: CompositeReward: fussy raised ValueError: no",
    ]
    outer = CompositeReward([(reward, 1.0)], name="outer")
    assert shown(await score_group(outer, trajectories("bad", "a"))) == [
        "RewardError: outer: CompositeReward: fussy raised ValueError: no",
        2.0,
    ]


async def test_a_part_that_overruns_is_named():
    blocking = Blocking()
    try:
        scored = await score_group(CompositeReward([(blocking, 1.0)]), trajectories("a"), timeout_s=0.01)
    finally:
        blocking.gate.set()
    assert shown(scored) == ["RewardError: CompositeReward: Blocking took longer than 0.01 s"]


async def test_a_part_that_sees_groups_sees_the_group():
    def share(prompts: list[str], completions: list[str]) -> list[float]:
        total = sum(map(len, completions))
        return [len(text) / total for text in completions]

    reward = CompositeReward([(share, 1.0), (lambda response: 1.0, 1.0)])
    assert shown(await score_group(reward, trajectories("a", "bbb"))) == [1.25, 1.75]


async def test_an_overridden_compute_reward_is_honoured():
    class Doubled(CompositeReward):
        def compute_reward(self, trajectory: Trajectory) -> Any:
            output = super().compute_reward(trajectory)
            assert isinstance(output, RewardOutput)
            output.reward *= 2
            return output

    reward = Doubled([(lambda response: 1.0, 1.0)])
    assert entry_of(reward) == "compute_reward"
    assert shown(await score_group(reward, trajectories("a", "b"))) == [2.0, 2.0]
    assert shown(await score_group(CompositeReward([(reward, 3.0)]), trajectories("a", "b"))) == [6.0, 6.0]
    assert CompositeReward([(reward, 3.0)])(Trajectory()).reward == 6.0


async def test_an_overridden_compute_rewards_is_honoured():
    class First(CompositeReward):
        def compute_rewards(self, trajectories: Sequence[Trajectory]) -> Any:
            return [5.0] * len(trajectories)

    reward = First([(lambda response: 1.0, 1.0)])
    assert entry_of(reward) == "compute_rewards"
    assert shown(await score_group(reward, trajectories("a", "b"))) == [5.0, 5.0]
    assert shown([await score_one(reward, Trajectory())]) == [5.0]


class Sum(CombinedReward):
    """The example of the module's docstring."""

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        first, second = yield [(part, trajectories) for part in self.rewards.values()]
        return each(lambda a, b: RewardOutput(reward=a.reward + b.reward), first, second)


async def test_a_combinator_is_a_generator():
    reward = Sum({"a": as_reward(lambda response: 1.0), "b": fails_on("bad", KeyError("no"))}, scale=2.0)
    assert shown(await score_group(reward, trajectories("a", "bad", "bb"))) == [
        4.0,
        "RewardError: Sum: fussy raised KeyError: 'no'",
        6.0,
    ]
    assert reward(Trajectory(response="a")).reward == 4.0


class Raising(CombinedReward):
    def __init__(self, error: Exception) -> None:
        super().__init__({})
        self.error = error

    def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
        if trajectories:
            raise self.error
        yield []
        return []


async def test_a_combinator_that_raises_fails_the_group():
    assert (
        shown(await score_group(Raising(ValueError("oh")), trajectories("a", "b")))
        == ["RewardError: Raising raised ValueError: oh"] * 2
    )
    assert shown([await score_one(Raising(InvalidRewardError("oh")), Trajectory())]) == [
        "InvalidRewardError: Raising: oh"
    ]


async def test_a_combinator_that_forgets_one_breaks_the_contract():
    class Forgetful(CombinedReward):
        def combine(self, trajectories: Sequence[Trajectory]) -> Steps:
            yield []
            return [RewardOutput(1.0)]

    message = (
        "InvalidRewardError: Forgetful: compute_rewards gave list of 1 for 2 trajectories; "
        "it must give a sequence with one reward for each"
    )
    assert shown(await score_group(Forgetful({}), trajectories("a", "b"))) == [message] * 2


async def test_starting_and_closing_reach_every_part():
    class Open(RewardFunction):
        calls = ()

        def compute_reward(self, trajectory: Trajectory) -> float:
            return 1.0

        async def start(self) -> None:
            self.calls = (*self.calls, "start")

        async def aclose(self) -> None:
            self.calls = (*self.calls, "aclose")

    parts = [Open(), Open()]
    reward = CompositeReward([(CompositeReward([(parts[0], 1.0)]), 1.0), (parts[1], 1.0)])
    await reward.start()
    await reward.aclose()
    assert [part.calls for part in parts] == [("start", "aclose")] * 2


# The same, called directly.


def test_synchronous_parts_need_no_loop():
    reward = CompositeReward([(GroupOf([1.0]), 1.0), (CompositeReward([(lambda response: 1.0, 2.0)]), 1.0)])
    assert reward(Trajectory()).reward == 3.0
    assert reward.compute_rewards([Trajectory()]) == [reward.compute_reward(Trajectory())]


async def test_an_async_part_makes_it_awaitable():
    async def later(response: str) -> float:
        await asyncio.sleep(0)
        return 1.0

    async def refuses(response: str) -> float:
        raise RewardError("no answer")

    async def breaks(response: str) -> float:
        raise KeyError("answer")

    composite = CompositeReward([(later, 1.0), (lambda response: 1.0, 2.0), (later, 3.0)])
    assert (await composite(Trajectory())).reward == 6.0
    assert (await CompositeReward([(composite, 2.0)])(Trajectory())).reward == 12.0
    with pytest.raises(RewardError, match=r"^refuses: no answer$"):
        await CompositeReward([(later, 1.0), (refuses, 1.0)])(Trajectory())
    with pytest.raises(KeyError):
        await CompositeReward([(breaks, 1.0), (later, 1.0)])(Trajectory())


async def test_a_part_that_raises_raises_its_own_error():
    async def later(response: str) -> float:
        return 1.0

    broken = fails_on("bad", KeyError("answer"))
    with pytest.raises(KeyError, match="answer"):
        CompositeReward([(broken, 1.0), (later, 1.0)])(Trajectory(response="bad"))
    pending = CompositeReward([(later, 1.0), (broken, 1.0)])(Trajectory(response="bad"))
    with pytest.raises(KeyError, match="answer"):
        await pending
    with pytest.raises(RewardError, match=r"^fussy: no$"):
        CompositeReward([(fails_on("bad", RewardError("no")), 1.0)])(Trajectory(response="bad"))


def test_each_keeps_errors_where_they_are():
    error = RewardError("no")
    made = each(lambda a, b: RewardOutput(a + b), [1, 2, 3], [1, error, math.inf])
    assert made[:2] == [RewardOutput(2), error]
    assert str(made[2]) == "reward is inf; it must be finite"
