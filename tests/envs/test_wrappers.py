import asyncio
from typing import Any

import numpy as np
import pytest
from turngym.envs import (
    Action,
    AgentInstance,
    ConfigError,
    EnvClosedError,
    EnvError,
    EpisodeEndedError,
    InvalidStepError,
    OrderEnforcing,
    PolicyFault,
    ResetNeededError,
    StepResult,
    StepTimeout,
    StepTimeoutError,
    Task,
    TimeLimit,
    Wrapper,
    make,
)

GO = Action(text="go")


class Walk(AgentInstance):
    """Terminates at its third step."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_closed = 0

    async def reset(self, *, seed=None, options=None):
        self.num_steps = 0
        return "start", {"seed": seed, **(options or {})}

    async def step(self, action):
        self.num_steps += 1
        return f"step {self.num_steps}", 1, self.num_steps == 3, False, {}

    async def close(self):
        self.num_closed += 1

    def render(self):
        return f"at {self.num_steps}"

    @classmethod
    def demonstrations(cls, task, rng):
        return ["go"] * 3


class Returns(Walk):
    """Returns what it is told to."""

    def __init__(self, reset=("start", {}), step=None) -> None:
        super().__init__()
        self.returned_by_reset, self.returned_by_step = reset, step

    async def reset(self, *, seed=None, options=None) -> Any:
        return self.returned_by_reset

    async def step(self, action) -> Any:
        return self.returned_by_step


async def test_a_wrapper_passes_everything_on():
    walk = Walk()
    env = Wrapper(Wrapper(walk))
    assert await env.reset(seed=4, options={"a": 1}) == ("start", {"seed": 4, "a": 1})
    assert await env.step(GO) == ("step 1", 1, False, False, {})
    assert env.render() == "at 1"
    assert env.demonstrations(Task(id="t"), np.random.default_rng(0)) == ["go"] * 3
    assert env.unwrapped is walk
    assert env.name == "Walk"
    assert env.action_space is walk.action_space
    await env.close()
    assert walk.num_closed == 1


async def test_leaving_the_context_closes():
    async with Wrapper(Walk()) as env:
        pass
    assert isinstance(env.unwrapped, Walk)
    assert env.unwrapped.num_closed == 1


async def test_order_brings_tuples_into_one_form():
    env = OrderEnforcing(Walk())
    await env.reset()
    assert await env.step(GO) == StepResult(observation="step 1", reward=1.0)


async def test_step_before_reset_is_refused():
    with pytest.raises(ResetNeededError, match=r"^Walk: step before reset; call reset first$"):
        await OrderEnforcing(Walk()).step(GO)


def test_render_before_reset_is_refused():
    with pytest.raises(ResetNeededError, match=r"^Walk: render before reset; call reset first$"):
        OrderEnforcing(Walk()).render()


async def test_step_after_the_end_is_refused_until_reset():
    env = OrderEnforcing(Walk())
    await env.reset()
    for _ in range(3):
        await env.step(GO)
    with pytest.raises(EpisodeEndedError, match=r"^Walk: step after the episode ended; call reset to begin another$"):
        await env.step(GO)
    assert env.render() == "at 3"
    await env.reset()
    await env.step(GO)


async def test_a_policy_fault_ends_the_episode():
    class Strict(Walk):
        async def step(self, action) -> Any:
            raise PolicyFault("not a move", -1.0)

    env = OrderEnforcing(Strict())
    await env.reset()
    with pytest.raises(PolicyFault, match=r"^not a move$"):
        await env.step(GO)
    with pytest.raises(EpisodeEndedError):
        await env.step(GO)


async def test_nothing_but_close_follows_close():
    env = OrderEnforcing(Walk())
    await env.reset()
    await env.close()
    await env.close()
    with pytest.raises(EnvClosedError, match=r"^Walk: step after close; make a new instance$"):
        await env.step(GO)
    with pytest.raises(EnvClosedError, match=r"^Walk: reset after close; make a new instance$"):
        await env.reset()
    with pytest.raises(EnvClosedError, match=r"^Walk: render after close; make a new instance$"):
        env.render()


async def test_a_failed_reset_begins_no_episode():
    env = OrderEnforcing(Returns(reset="start"))
    with pytest.raises(
        InvalidStepError, match=r"^Returns: reset returned str 'start'; return the tuple \(observation, info\)$"
    ):
        await env.reset()
    with pytest.raises(ResetNeededError):
        await env.step(GO)


async def test_resets_info_must_be_a_mapping():
    with pytest.raises(InvalidStepError, match=r"^Returns: reset's info is NoneType None; it must be a mapping$"):
        await OrderEnforcing(Returns(reset=("start", None))).reset()


async def test_a_wrong_step_is_named():
    env = OrderEnforcing(Returns(step=3))
    await env.reset()
    with pytest.raises(InvalidStepError, match=r"^Returns: step returned int 3; return a StepResult"):
        await env.step(GO)


async def test_sys_exit_in_an_env_is_an_error_of_that_env():
    class Quits(Walk):
        async def step(self, action):
            raise SystemExit(3)

    env = OrderEnforcing(Quits())
    await env.reset()
    with pytest.raises(EnvError, match=r"^Quits: step raised SystemExit: 3$"):
        await env.step(GO)


async def test_a_time_limit_truncates_and_never_terminates():
    env = OrderEnforcing(TimeLimit(Walk(), 2))
    await env.reset()
    first, second = await env.step(GO), await env.step(GO)
    assert (first.terminated, first.truncated) == (False, False)
    assert (second.terminated, second.truncated) == (False, True)
    with pytest.raises(EpisodeEndedError):
        await env.step(GO)


async def test_a_task_that_ends_in_its_last_turn_is_terminated_only():
    env = OrderEnforcing(TimeLimit(Walk(), 3))
    await env.reset()
    last = [await env.step(GO) for _ in range(3)][-1]
    assert (last.terminated, last.truncated) == (True, False)


async def test_a_time_limit_counts_each_episode_anew():
    env = TimeLimit(Walk(), 2)
    for _ in range(2):
        await env.reset()
        results = [await env.step(GO) for _ in range(2)]
        assert [tuple(result)[3] for result in results] == [False, True]


@pytest.mark.parametrize("max_turns", [0, -1, 2.5, True, None, "3"])
def test_a_bad_limit_of_turns_is_refused(max_turns):
    with pytest.raises(ConfigError) as caught:
        TimeLimit(Walk(), max_turns)
    assert str(caught.value) == f"max_turns={max_turns!r} must be an integer of at least 1"


@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), float("nan"), None, "3", True])
def test_a_bad_limit_of_seconds_is_refused(seconds):
    with pytest.raises(ConfigError) as caught:
        StepTimeout(Walk(), seconds)
    assert str(caught.value) == f"seconds={seconds!r} must be a positive, finite number"


@pytest.mark.parametrize("call", ["reset", "step", "close"])
async def test_a_call_that_hangs_is_given_up_and_named(call: str):
    cancelled = []

    async def hang(*args, **kwargs):
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(call)

    walk = Walk()
    setattr(walk, call, hang)
    env = StepTimeout(walk, 0.01)
    with pytest.raises(StepTimeoutError) as caught:
        await (env.step(GO) if call == "step" else getattr(env, call)())
    assert str(caught.value) == f"Walk: {call} took longer than 0.01 s"
    assert cancelled == [call]


async def test_what_comes_back_late_is_dropped():
    class Stubborn(Walk):
        async def step(self, action) -> Any:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            return "late", 1.0, False, False, {}

    with pytest.raises(StepTimeoutError, match=r"^Stubborn: step took longer than 0\.01 s$"):
        await StepTimeout(Stubborn(), 0.01).step(GO)


async def test_an_envs_own_timeout_error_is_left_alone():
    class Late(Walk):
        async def step(self, action):
            raise TimeoutError("the server didn't answer")

    with pytest.raises(TimeoutError, match="the server didn't answer") as caught:
        await StepTimeout(Late(), 60).step(GO)
    assert not isinstance(caught.value, StepTimeoutError)


async def test_cancelling_reaches_the_env_and_is_no_timeout():
    entered = asyncio.Event()

    class Waits(Walk):
        async def step(self, action) -> Any:
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(StepTimeout(Waits(), 60).step(GO))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_limits_in_time_change_nothing():
    env = StepTimeout(make("GuessNumber-v0"), 60)
    async with env:
        observation, _ = await env.reset(options={"low": 1, "high": 9, "secret": 4})
        assert observation == "Guess a number from 1 to 9."
        assert (await env.step(Action(text="4"))).score == 1.0  # pyright: ignore[reportAttributeAccessIssue]
