"""How checks are made and reported, whatever the environment does."""

import asyncio
import functools
import pickle
import threading
from collections.abc import Iterator
from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from turngym.envs import (
    AgentInstance,
    ConfigError,
    EnvError,
    EnvFactory,
    ListTaskSource,
    OrderEnforcing,
    PolicyFault,
    StepResult,
    Task,
    UnknownEnvError,
    Verbatim,
    make,
    register,
    task_source,
)
from turngym.envs.checks import CheckLimits, CheckReport, CheckResult, acheck_env, check_env
from turngym.envs.rewards import LengthReward

ALL = """
instance reset step spaces step_before_reset step_after_end ends options close picklable same_seed reset_again
interleaved cancel loop leaks any_action rewards scores demonstrations cheap_rewards
""".split()  # noqa: SIM905 - short enough to read
TASKS = ListTaskSource([Task(id="only")])


class Once(AgentInstance):
    """Ends with the first action, and knows no tasks and no demonstrations."""

    async def reset(self, *, seed=None, options=None) -> Any:
        return f"Seed {seed}.", {}

    async def step(self, action) -> Any:
        return StepResult(observation="", terminated=True)


def once() -> AgentInstance:
    return OrderEnforcing(Once())


def verdicts(report: CheckReport) -> dict[str, str]:
    return {result.name: result.verdict for result in report.results}


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Frees the threads that a test's environment blocks, and sees them end."""
    event = threading.Event()
    yield event
    event.set()
    for thread in threading.enumerate():
        if thread.name == "turngym-check":
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize("env", ["Math-v0", "GuessNumber-v0"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_shipped_environments_pass_every_check_and_skip_none(env: str, seed: int):
    report = check_env(env, seed=seed)
    assert report.env == env
    assert [result.name for result in report.results] == ALL
    assert [result for result in report.results if not result.passed] == []


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_every_level_of_math_passes(level: int):
    report = check_env("Math-v0", tasks=task_source("Math-v0", level=level))
    assert all(result.passed for result in report.results), str(report)


def test_a_factory_that_calls_make_is_known_by_its_spec():
    report = check_env(lambda: make("GuessNumber-v0"))
    assert report.env == "GuessNumber-v0"
    assert verdicts(report)["demonstrations"] == "ok"
    assert check_env(EnvFactory(id="GuessNumber-v0"), only=("picklable",)).results[-1].message == ""


def test_arguments_of_a_factory_reach_the_tasks():
    assert check_env(EnvFactory(id="Math-v0", kwargs={"level": 3, "max_attempts": 2})).passed
    with pytest.raises(ConfigError, match="level=99"):
        check_env(EnvFactory(id="Math-v0", kwargs={"level": 99}))


async def test_check_env_refuses_to_block_a_running_loop():
    with pytest.raises(EnvError) as raised:
        check_env("GuessNumber-v0")
    assert str(raised.value) == (
        "check_env was called inside a running event loop, which it would block; use await acheck_env(…)"
    )


async def test_acheck_env_lets_the_running_loop_go_on():
    num_turns = 0

    async def other() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0.001)

    task = asyncio.create_task(other())
    report = await acheck_env("GuessNumber-v0")
    task.cancel()
    assert report.passed
    assert num_turns > 1


async def test_acheck_env_that_is_cancelled_stops_checking():
    reached, ended = threading.Event(), threading.Event()

    class Slow(Once):
        async def step(self, action):
            reached.set()
            try:
                return await asyncio.Event().wait()
            finally:
                ended.set()

    task = asyncio.create_task(acheck_env(lambda: OrderEnforcing(Slow())))
    await asyncio.to_thread(reached.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 10)


def test_what_can_not_be_checked_is_skipped_with_the_reason():
    report = check_env(once, only=("demonstrations", "picklable"))
    assert verdicts(report) == {"instance": "ok", "picklable": "ok", "demonstrations": "skipped"}
    assert report.results[-1].message == (
        "there are no tasks to demonstrate; pass tasks=, or register the environment with tasks="
    )
    report = check_env(once, tasks=TASKS, only=("demonstrations",))
    assert report.results[-1].message == "the environment has no demonstrations (of task 'only')"
    assert report.passed
    assert report.summary == "Once: 1 passed, 0 failed, 1 skipped"


def test_an_environment_that_is_not_deterministic_is_asked_for_no_repetition():
    spec = register("checks/Dice-v0", entry_point=Once, deterministic=False, max_turns=3)
    report = check_env(spec.id)
    skipped = {result.name: result.message for result in report.results if result.skipped}
    assert report.passed
    assert skipped.pop("demonstrations")
    assert skipped == dict.fromkeys(("same_seed", "interleaved"), "its spec says deterministic=False")


def test_an_episode_that_never_ends_can_not_be_stepped_after_its_end():
    class Endless(Once):
        async def step(self, action):
            return StepResult(observation="")

    report = check_env(lambda: OrderEnforcing(Endless()), only=("step_after_end",))
    assert report.results[-1].skipped
    assert report.results[-1].message.startswith("no episode ended")


def test_checks_that_need_a_failed_one_are_skipped():
    class Mute(Once):
        async def reset(self, *, seed=None, options=None):
            raise OSError("no network")

    report = check_env(lambda: OrderEnforcing(Mute()))
    assert [result.name for result in report.failures] == ["reset"]
    assert {result.message for result in report.results if result.skipped} == {"needs reset, which failed"}


@pytest.mark.parametrize("call", ["reset", "step", "close"])
def test_a_call_that_blocks_the_event_loop_for_good_is_named_and_left_behind(call: str, release: threading.Event):
    class Stuck(Once):
        async def reset(self, *, seed=None, options=None):
            return await super().reset() if call != "reset" else release.wait()

        async def step(self, action):
            return await super().step(action) if call != "step" else release.wait()

        async def close(self):
            if call == "close":
                release.wait()

    report = check_env(lambda: OrderEnforcing(Stuck()), limits=CheckLimits(call_s=0.3))
    assert len(report.failures) == 1
    assert len(report.results) == len(ALL)
    assert call in report.failures[0].message
    assert report.failures[0].message.endswith(
        "has blocked the event loop for more than 0.3 s; await what takes long, or write the method as a plain def, "
        "which runs on a thread"
    )
    assert report.results[-1].message == f"not made: {report.failures[0].name} never came back"


def test_a_factory_that_blocks_is_named(release: threading.Event):
    def build() -> AgentInstance:
        release.wait()
        return once()

    report = check_env(build, limits=CheckLimits(call_s=0.2))
    assert report.failures[0].name == "instance"
    assert report.failures[0].message.startswith("making an instance has blocked the event loop for more than 0.2 s; ")


def test_a_step_that_can_not_be_cancelled_is_left_behind():
    class Deaf(Once):
        async def step(self, action):
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue

    limits = CheckLimits(call_s=0.4, total_s=0.5)
    report = check_env(lambda: OrderEnforcing(Deaf()), only=("reset", "step", "spaces"), limits=limits)
    assert verdicts(report) == {"instance": "ok", "reset": "ok", "step": "FAILED", "spaces": "skipped"}
    assert report.failures[0].message == (
        "step, after probe 'Hello.' went on after it was cancelled; let asyncio.CancelledError pass"
    )


def test_a_close_that_hangs_is_waited_for_once_outside_its_own_check():
    class Hanging(Once):
        async def close(self):
            await asyncio.Event().wait()

    report = check_env(lambda: OrderEnforcing(Hanging()), only=("close", "spaces"), limits=CheckLimits(call_s=0.5))
    assert {result.name: result.message for result in report.failures} == {
        "close": "close before reset raised StepTimeoutError: Hanging: close took longer than 0.5 s; "
        "close must do nothing where nothing is open"
    }


def test_checks_not_made_in_time_are_skipped():
    class Slow(Once):
        async def step(self, action):
            await asyncio.sleep(0.15)
            return StepResult(observation="", terminated=True)

    report = check_env(lambda: OrderEnforcing(Slow()), only=("step", "spaces"), limits=CheckLimits(total_s=0.2))
    assert verdicts(report) == {"instance": "ok", "step": "skipped", "spaces": "skipped"}
    assert report.results[-1].message == "the 0.2 s for all checks were over"


def test_a_factory_that_can_not_be_pickled_gets_a_note():
    report = check_env(lambda: once(), only=("picklable",))
    assert report.results[-1].passed
    assert report.results[-1].verdict == "note"
    assert report.results[-1].message.endswith(
        "so --env_workers can't be used; a class or function of a module can, and so can EnvFactory"
    )


@pytest.mark.parametrize(
    "observation",
    [
        Verbatim("Go", Verbatim.data("!")),
        {"role": "tool", "content": "Go."},
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}],
        [5, 6, 7],
        np.array([5, 6, 7]),
    ],
    ids=repr,
)
def test_every_kind_of_observation_passes(observation: object):
    class Kind(Once):
        async def reset(self, *, seed=None, options=None):
            return observation, {}

        async def step(self, action):
            return observation, -1.0, False, True, {}

    assert check_env(lambda: OrderEnforcing(Kind())).passed


def test_a_policy_fault_is_an_answer():
    class Strict(Once):
        async def step(self, action):
            raise PolicyFault("not a move", -1.0)

    report = check_env(lambda: OrderEnforcing(Strict()))
    assert report.passed, str(report)
    assert verdicts(report)["step_after_end"] == "skipped"


def test_a_plain_def_environment_passes():
    class Plain(AgentInstance):
        def reset(self, *, seed=None, options=None):  # pyright: ignore[reportIncompatibleMethodOverride]
            return "Go.", {}

        def step(self, action):  # pyright: ignore[reportIncompatibleMethodOverride]
            return "", 0.0, True, False, {}

        def close(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            pass

    spec = register("checks/Plain-v0", entry_point=Plain, replace=True)
    assert check_env(spec.id).passed


def test_sys_exit_in_an_environment_ends_its_check_alone():
    class Quitter(Once):
        async def step(self, action):
            raise SystemExit(3)

    report = check_env(lambda: OrderEnforcing(Quitter()))
    assert [result.name for result in report.failures] == ["step"]
    assert "SystemExit: 3" in report.failures[0].message


def test_wrong_arguments_are_refused_at_once():
    with pytest.raises(ConfigError, match="there is no check 'colour'; there are instance, reset, "):
        check_env(once, only=("colour",))
    with pytest.raises(UnknownEnvError, match="Math-v9"):
        check_env("Math-v9")
    with pytest.raises(ConfigError, match="the source of tasks is empty; give one with at least one task"):
        check_env(once, tasks=ListTaskSource([]))
    with pytest.raises(ConfigError, match="call_s=0 must be greater than 0"):
        CheckLimits(call_s=0)


REPORT = CheckReport(
    env="Lab-v0",
    results=(
        CheckResult(name="reset", passed=True),
        CheckResult(name="picklable", passed=True, message="no workers"),
        CheckResult(name="close", passed=False, message=" ".join(["long"] * 30)),
        CheckResult(name="scores", passed=False, skipped=True, message="needs step, which failed"),
    ),
)


def test_a_report_is_an_aligned_table():
    assert str(REPORT).splitlines() == [
        "Lab-v0: 2 passed, 1 failed, 1 skipped",
        "reset      ok",
        "picklable  note     no workers",
        "close      FAILED   " + " ".join(["long"] * 18),
        "                    " + " ".join(["long"] * 12),
        "scores     skipped  needs step, which failed",
    ]


def test_a_report_prints_with_rich():
    console = Console(file=StringIO(), width=100)
    console.print(REPORT)
    printed = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "picklable  note     no workers" in printed
    assert "FAILED" in printed


def test_a_failed_report_raises_its_messages():
    with pytest.raises(EnvError) as raised:
        REPORT.raise_if_failed()
    assert str(raised.value) == "Lab-v0: 2 passed, 1 failed, 1 skipped\nclose: " + " ".join(["long"] * 30)
    CheckReport(env="Lab-v0", results=REPORT.results[:2]).raise_if_failed()
    assert pickle.loads(pickle.dumps(REPORT)) == REPORT


@pytest.mark.parametrize("on", ["episode", "turn"])
def test_an_attached_reward_is_not_held_against_the_environment(on: str):
    kwargs = {"reward": LengthReward(target_length=1, tolerance=3, scale=3.0), "reward_on": on}
    for factory in (EnvFactory(id="Math-v0", kwargs=kwargs), functools.partial(make, "Math-v0", **kwargs)):
        report = check_env(factory, only=["rewards", "scores", "demonstrations", "cheap_rewards"])
        assert [result for result in report.results if result.verdict == "failed"] == []
        assert verdicts(report) | {"cheap_rewards": "skipped"} == verdicts(report)


def test_the_score_of_an_attached_reward_need_not_be_1_for_a_demonstration():
    def dull(response: str) -> float:
        return 0.3 + 0 * len(response)

    factory = EnvFactory(id="SingleTurn-v0", kwargs={"reward": dull})
    rows = ListTaskSource([Task(id="only", options={"prompt": "2 + 2?", "demonstrations": ["4"]})])
    report = check_env(factory, tasks=rows, only=["demonstrations"])
    assert verdicts(report)["demonstrations"] == "ok"
