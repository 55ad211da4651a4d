"""One environment per check, broken in one way: exactly that check fails, with exactly this message."""

import asyncio
import itertools
import math
import random
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gymnasium.spaces import Text
from turngym.envs import (
    Action,
    AgentInstance,
    ListTaskSource,
    OrderEnforcing,
    PolicyFault,
    StepResult,
    Task,
    UnicodeText,
)
from turngym.envs.checks import CheckLimits, check_env

TASKS = ListTaskSource([Task(id=f"{n} + 1", options={"n": n, "tags": ["sum"]}) for n in range(20, 26)], held_out=2)


class Adder(AgentInstance):
    """Asks for n + 1, twice at most, and waits a little in each step. Nothing is wrong with it."""

    reward_range: ClassVar[tuple[float, float]] = (-0.1, 1.0)

    async def reset(self, *, seed=None, options=None) -> Any:
        self.n = (options or {}).get("n", 0)
        self.attempt = 0
        return f"What is {self.n} + 1?", {}

    async def step(self, action: Action) -> Any:
        await asyncio.sleep(0)
        self.attempt += 1
        is_right = action.text == str(self.n + 1)
        return StepResult(
            observation="Right." if is_right else "Wrong.",
            reward=1.0 if is_right else -0.1,
            terminated=is_right or self.attempt == 2,
            score=float(is_right),
        )

    @classmethod
    def demonstrations(cls, task, rng) -> Any:
        return [str(task.options["n"] + 1)]


def failure(env: Callable[[], Any], check: str, **arguments: Any) -> str:
    """The message of the one check that fails."""
    report = check_env(env, **{"tasks": TASKS, "limits": CheckLimits(call_s=5.0, max_turns=20), **arguments})
    assert [result.name for result in report.failures] == [check], str(report)
    return report.failures[0].message


def ordered(make: Callable[[], AgentInstance]) -> Callable[[], AgentInstance]:
    return lambda: OrderEnforcing(make())


def test_a_good_environment_passes_every_check():
    report = check_env(ordered(Adder), tasks=TASKS)
    assert report.passed, str(report)
    assert not [result.name for result in report.results if result.skipped]


def test_instance_of_another_class():
    message = failure(dict, "instance")
    assert message == "the factory gave dict; it must give an instance of a class derived from AgentInstance"


def test_instance_that_is_the_same_one_each_time():
    shared = Adder()
    message = failure(lambda: shared, "instance")
    assert message == "the factory gave the same instance twice; it must make a new one each time it is called"


def test_instance_that_can_not_be_made():
    def make() -> AgentInstance:
        raise OSError("no display")

    message = failure(make, "instance")
    assert message == (
        "making an instance raised OSError: no display; the factory must give one when called without arguments"
    )


def test_reset_without_seed():
    class Env(Adder):
        async def reset(self, *, options=None):  # pyright: ignore[reportIncompatibleMethodOverride]
            return "", {}

    message = failure(ordered(Env), "reset")
    assert message == ("reset takes no argument 'seed'; write async def reset(self, *, seed=None, options=None)")


def test_reset_that_returns_the_observation_alone():
    class Env(Adder):
        async def reset(self, *, seed=None, options=None):
            return "What?"

    message = failure(ordered(Env), "reset")
    assert message == "reset returned str 'What?'; return the tuple (observation, info)"


def test_reset_whose_info_is_no_mapping():
    class Env(Adder):
        async def reset(self, *, seed=None, options=None):
            return "What?", None

    message = failure(ordered(Env), "reset")
    assert message == "reset's info is NoneType None; it must be a mapping, such as {}"


def test_reset_whose_observation_is_no_text():
    class Env(Adder):
        async def reset(self, *, seed=None, options=None):
            return 3.5, {}

    message = failure(ordered(Env), "reset")
    assert message == (
        "reset: observation is float 3.5; return a str, a Verbatim, a chat message, a list of chat messages, "
        "or a sequence of token ids"
    )


def test_reset_that_needs_options_where_there_are_none():
    class Env(Adder):
        async def reset(self, *, seed=None, options=None):
            return str((options or {})["n"]), {}

    message = failure(ordered(Env), "reset", tasks=None)
    assert message == (
        "reset raised KeyError: 'n' for task 'seed 0' with the options {}; "
        "if it needs a task's options, pass tasks= or register it with tasks="
    )


def test_step_that_returns_a_4_tuple():
    class Env(Adder):
        async def step(self, action):
            return "Wrong.", 0.0, False, {}

    message = failure(ordered(Env), "step")
    assert message == (
        "task '20 + 1': step, after demonstration '21' raised InvalidStepError: Env: step returned tuple "
        "('Wrong.', 0.0, False, {}); return a StepResult, or the tuple "
        "(observation, reward, terminated, truncated, info); step must answer whatever the policy writes, "
        "or raise PolicyFault where the policy is to blame"
    )


def test_step_whose_flag_is_no_bool():
    class Env(Adder):
        async def step(self, action):
            return "Wrong.", 0.0, "no", False, {}

    message = failure(ordered(Env), "step")
    assert message == "task '20 + 1', turn 1, demonstration '21': terminated is str 'no'; it must be True or False"


def test_step_whose_observation_is_none():
    class Env(Adder):
        async def step(self, action):
            return None, 0.0, False, False, {}

    message = failure(ordered(Env), "step")
    assert message == (
        "task '20 + 1', turn 1, demonstration '21': observation is NoneType None; return a str, a Verbatim, "
        "a chat message, a list of chat messages, or a sequence of token ids"
    )


def test_step_that_hangs_is_named():
    class Env(Adder):
        async def step(self, action):
            await asyncio.Event().wait()

    message = failure(ordered(Env), "step", limits=CheckLimits(call_s=0.5), only=("reset", "step", "spaces"))
    assert message == (
        "task '20 + 1': step, after demonstration '21' raised StepTimeoutError: Env: step took longer than 0.5 s; "
        "step must answer whatever the policy writes, or raise PolicyFault where the policy is to blame"
    )


def test_observation_outside_its_space():
    class Env(Adder):
        observation_space = UnicodeText(8)

    message = failure(ordered(Env), "spaces")
    assert message == (
        "task '20 + 1', reset: the observation 'What is 20 + 1?' isn't in observation_space UnicodeText(8); "
        "widen the space (UnicodeText holds any text), or shorten the observation"
    )


def test_space_that_is_none():
    class Env(Adder):
        action_space: Any = str

    message = failure(ordered(Env), "spaces")
    assert message == "action_space is type <class 'str'>; it must be a gymnasium.spaces.Space"


def test_raw_environment_fails_the_two_checks_of_order():
    report = check_env(Adder, tasks=TASKS)
    remedy = "make instances with turngym.envs.make, or return OrderEnforcing(instance)"
    assert {result.name: result.message for result in report.failures} == {
        "step_before_reset": "step before reset raised AttributeError: 'Adder' object has no attribute 'attempt'; "
        f"it must raise ResetNeededError: {remedy}",
        "step_after_end": "step after the episode's end returned StepResult; "
        f"it must raise EpisodeEndedError: {remedy}",
    }


def test_episode_without_end():
    class Env(Adder):
        async def step(self, action):
            is_right = action.text == str(self.n + 1)
            return StepResult(observation="", terminated=is_right, score=float(is_right))

    message = failure(ordered(Env), "ends")
    assert message == (
        "20 turns of an empty action didn't end the episode (without a max_turns of its own); wrap it in TimeLimit("
        "env, max_turns), or give its class or registration a max_turns and make it with turngym.envs.make"
    )


def test_options_that_are_changed():
    class Env(Adder):
        async def step(self, action):
            self.tags.append(action.text)
            return await super().step(action)

        async def reset(self, *, seed=None, options=None):
            self.tags = (options or {})["tags"]
            return await super().reset(seed=seed, options=options)

    message = failure(ordered(Env), "options")
    assert message == (
        "task '20 + 1': option 'tags' was ['sum'] before the episode and is ['sum', 'Hello.', '1'] after it; "
        "copy what you change: siblings get the same options"
    )


def test_options_that_must_be_a_dict():
    class Env(Adder):
        async def reset(self, *, seed=None, options=None):
            if not isinstance(options, dict):
                raise TypeError("options must be a dict")
            return await super().reset(seed=seed, options=options)

    message = failure(ordered(Env), "options")
    assert message == (
        "task '20 + 1': reset raised TypeError: options must be a dict with read-only options, as training passes "
        "them; take any Mapping, and copy what you change"
    )


def test_close_before_reset():
    class Env(Adder):
        async def close(self):
            del self.n

    message = failure(ordered(Env), "close")
    assert message == (
        "close before reset raised AttributeError: 'Env' object has no attribute 'n'; "
        "close must do nothing where nothing is open"
    )


def test_close_twice():
    class Env(Adder):
        num_open = 1

        async def close(self):
            self.num_open -= 1
            if self.num_open < 0:
                raise RuntimeError("closed already")

    message = failure(ordered(Env), "close")
    assert message == (
        "close a second time before reset raised RuntimeError: closed already; "
        "close must do nothing where nothing is open"
    )


def test_tasks_that_can_not_be_pickled():
    class Source(ListTaskSource):
        def __init__(self):
            super().__init__([TASKS.task(0)])
            self.open = lambda: None

    message = failure(ordered(Adder), "picklable", tasks=Source())
    assert re.fullmatch(
        r"pickling Source raised .+; keep only plain data in it: it is sent to other processes", message
    )


def test_tasks_that_change_when_pickled():
    class Source(ListTaskSource):
        def __reduce__(self):
            return ListTaskSource, ([Task(id=f"other {n}") for n in range(6)],)

    message = failure(ordered(Adder), "picklable", tasks=Source([TASKS.task(index) for index in range(6)]))
    assert message == "Source gives other tasks after pickling; keep its seed in its state"


def test_seed_that_is_ignored():
    class Env(Adder):
        async def reset(self, *, seed=None, options=None):
            await super().reset(seed=seed, options=options)
            return f"Round {next(self.rounds)}: {self.n} + 1?", {}

        rounds = itertools.count()

    message = failure(ordered(Env), "same_seed")
    assert re.fullmatch(
        r"the same seed 0, options and actions gave another episode: task '20 \+ 1', observation of reset: "
        r"'Round \d+: 20 \+ 1\?' became 'Round \d+: 20 \+ 1\?'; draw everything from a generator made in reset "
        r"from seed, or register it with deterministic=False",
        message,
    )


def test_state_left_from_the_episode_before():
    class Env(Adder):
        num_steps = 0

        async def step(self, action):
            self.num_steps += 1
            return StepResult(
                observation=f"Step {self.num_steps}.", terminated=True, score=float(action.text == str(self.n + 1))
            )

    message = failure(ordered(Env), "reset_again", only=("same_seed", "reset_again", "interleaved", "leaks"))
    assert message == (
        "an instance that has played before plays otherwise than a new one: task '20 + 1', observation of turn 1: "
        "'Step 1.' became 'Step 2.'; set everything that an episode changes in reset"
    )


def test_generator_that_instances_share():
    class Env(Adder):
        generator = random.Random()

        async def reset(self, *, seed=None, options=None):
            self.generator.seed(seed)
            return await super().reset(seed=seed, options=options)

        async def step(self, action):
            await super().step(action)
            is_right = action.text == str(self.n + 1)
            return StepResult(
                observation=str(self.generator.random()),
                terminated=is_right or self.attempt == 2,
                score=float(is_right),
            )

    message = failure(ordered(Env), "interleaved")
    assert re.fullmatch(
        r"an episode played among 64 others differs from the same one alone: task '20 \+ 1', observation of turn 1: "
        r"'[\d.e-]+' became '[\d.e-]+'; keep its state, and its generator, on the instance, not in the class, the "
        r"module or a default argument",
        message,
    )


def test_lock_that_a_cancelled_step_keeps():
    class Env(Adder):
        is_busy: ClassVar[list[bool]] = [False]

        async def step(self, action):
            if self.is_busy[0]:
                raise RuntimeError("busy")
            self.is_busy[0] = True
            result = await super().step(action)
            self.is_busy[0] = False
            return result

    message = failure(ordered(Env), "cancel", only=("step", "cancel"))
    assert message == (
        "after a cancelled step, the same instance plays otherwise: task '20 + 1', observation of turn 1: 'Wrong.' "
        "became step, after probe 'Hello.' raised RuntimeError: busy; undo what is half done, and release "
        "locks, in finally"
    )


def test_cancellation_that_is_swallowed():
    class Env(Adder):
        async def step(self, action):
            try:
                return await super().step(action)
            except asyncio.CancelledError:
                return StepResult(observation="", truncated=True)

    message = failure(ordered(Env), "cancel")
    assert message == ("step was cancelled and returned; let asyncio.CancelledError pass, and tidy up in finally")


def test_step_that_blocks_the_event_loop():
    class Env(Adder):
        async def step(self, action):
            if action.text == "Hello.":
                time.sleep(0.3)  # noqa: ASYNC251 - the fault
            return await super().step(action)

    message = failure(ordered(Env), "loop", only=("loop",), limits=CheckLimits(stall_s=0.15))
    assert re.fullmatch(
        r"step, after probe 'Hello\.' blocked the event loop for \d\.\d\d s \(limit 0\.15 s\), and every other episode "
        r"with it; await what takes long, or write the method as a plain def, which runs on a thread",
        message,
    )


def test_a_stall_that_comes_once_or_on_a_thread_is_let_pass():
    class Once(Adder):
        calls: ClassVar[list[str]] = []

        async def step(self, action):
            if not self.calls:
                self.calls.append(action.text)
                time.sleep(0.3)  # noqa: ASYNC251 - what a first import does
            return await super().step(action)

    class Plain(Adder):
        def step(self, action):  # pyright: ignore[reportIncompatibleMethodOverride]
            if action.text == "Hello.":
                time.sleep(0.3)
            return StepResult(observation="", terminated=True)

    for env in (Once, Plain):
        report = check_env(ordered(env), tasks=TASKS, only=("loop",), limits=CheckLimits(stall_s=0.15))
        assert report.passed, str(report)


def test_task_that_is_left_running():
    class Env(Adder):
        async def reset(self, *, seed=None, options=None):
            self.clock = asyncio.create_task(_tick())
            return await super().reset(seed=seed, options=options)

    async def _tick() -> None:
        await asyncio.Event().wait()

    message = failure(ordered(Env), "leaks", only=("leaks",), limits=CheckLimits(tidy_s=0.05))
    assert re.fullmatch(
        r"3 episodes left 3 × asyncio task test_task_that_is_left_running\.<locals>\._tick behind after close; close "
        r"must end and close whatever reset and step opened, also in the middle of an episode",
        message,
    )


def test_thread_that_is_left_running():
    release = threading.Event()

    class Env(Adder):
        async def reset(self, *, seed=None, options=None):
            threading.Thread(target=release.wait, name="watcher", daemon=True).start()
            return await super().reset(seed=seed, options=options)

    try:
        message = failure(ordered(Env), "leaks", only=("leaks",), limits=CheckLimits(tidy_s=0.05))
    finally:
        release.set()
    assert message.startswith("3 episodes left 3 × thread watcher behind after close; ")


def test_file_that_is_left_open(tmp_path: Path):
    path = tmp_path / "log.txt"
    opened: list[Any] = []

    class Env(Adder):
        async def reset(self, *, seed=None, options=None):
            opened.append(path.open("a"))
            return await super().reset(seed=seed, options=options)

    try:
        message = failure(ordered(Env), "leaks", only=("leaks",), limits=CheckLimits(tidy_s=0.05))
    finally:
        for file in opened:
            file.close()
    assert message.startswith(f"3 episodes left 3 × open file {path} behind after close; ")


def test_process_that_is_left_running():
    processes: list[subprocess.Popen[bytes]] = []

    class Env(Adder):
        async def reset(self, *, seed=None, options=None):
            processes.append(subprocess.Popen(["sleep", "60"]))  # noqa: ASYNC220 - quick enough
            return await super().reset(seed=seed, options=options)

    try:
        message = failure(ordered(Env), "leaks", only=("leaks",), limits=CheckLimits(tidy_s=0.05))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert message.startswith("3 episodes left 3 × child process sleep behind after close; ")


def test_action_that_crashes_it():
    class Env(Adder):
        async def step(self, action):
            return await super().step(Action(text=str(int(action.text)) if action.text.isdecimal() else ""))

    message = failure(ordered(Env), "any_action")
    assert message == (
        "task '20 + 1': step, after a very long action (digits) '9999999999999999999999999999999999999999'… "
        "(100,000 characters) raised ValueError: Exceeds the limit (4300 digits) for integer string conversion: value "
        "has 100000 digits; use sys.set_int_max_str_digits() to increase the limit; a policy writes anything: answer "
        "what can't be read with feedback, or raise PolicyFault"
    )


def test_reward_that_is_nan():
    class Env(Adder):
        async def step(self, action):
            result = await super().step(action)
            return result if action.text != "nan" else (result.observation, math.nan, True, False, {})

    message = failure(ordered(Env), "rewards")
    assert message == (
        "task '20 + 1', turn 1, garbage 'nan': reward is nan; it must be a finite number; "
        "guard against NaN and overflow before the reward is given"
    )


def test_reward_outside_the_range():
    class Env(Adder):
        reward_range = (0.0, 1.0)

    message = failure(ordered(Env), "rewards")
    assert message == (
        "task '20 + 1', turn 1, probe 'Hello.': the turn earned -0.1, outside reward_range (0, 1); "
        "correct the reward, or register the environment with the range it has"
    )


def test_score_above_one():
    class Env(Adder):
        async def step(self, action):
            result = await super().step(action)
            score = 2.0 if result.reward == 1 else 0.0
            return StepResult(observation="", reward=result.reward, terminated=result.terminated, score=score)

    message = failure(ordered(Env), "scores")
    assert message == (
        "task '20 + 1', turn 1, demonstration '21': score is 2.0; it must lie in [0, 1], or be None; "
        "divide it by the best that can be reached"
    )


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (["22"], "task '20 + 1': the demonstration scored 0; solve the task, or score its solution 1"),
        (
            ["21", "22"],
            "task '20 + 1': the episode ended after 1 of 2 demonstrated actions; "
            "end the demonstration with the action that solves the task",
        ),
        ("21", "task '20 + 1': demonstrations gave str '21'; return a list of strings"),
        (["2é"], "task '20 + 1': the demonstrated action '2é' isn't in action_space Text(1, 9, charset=0123456789)"),
    ],
)
def test_demonstration_that_does_not_solve(actions: object, expected: str):
    class Env(Adder):
        action_space = Text(9, charset="0123456789")

        @classmethod
        def demonstrations(cls, task, rng):
            return actions

    assert failure(ordered(Env), "demonstrations") == expected


def test_demonstration_that_raises():
    class Env(Adder):
        @classmethod
        def demonstrations(cls, task, rng):
            return [task.options["answer"]]

    message = failure(ordered(Env), "demonstrations")
    assert message == (
        "task '20 + 1': demonstrations raised KeyError: 'answer'; return the actions that solve the task, "
        "or None where there are none"
    )


def test_demonstration_without_score_that_does_not_terminate():
    class Env(Adder):
        async def step(self, action):
            observation, reward, _, truncated, info = await super().step(action)
            return observation, reward, False, truncated or self.attempt == 2, info

    message = failure(ordered(Env), "demonstrations")
    assert message == (
        "task '20 + 1': the demonstration gave no score and didn't terminate the episode; "
        "give score=1 where the task is solved"
    )


def test_demonstration_without_score_that_earns_less_than_the_top():
    class Env(Adder):
        reward_range = (-0.1, 2.0)

        async def step(self, action):
            result = await super().step(action)
            return tuple(result)

    message = failure(ordered(Env), "demonstrations")
    assert message == (
        "task '20 + 1': the demonstration's last turn earned 1 and gave no score; give score=1 where the task is "
        "solved, or the top of reward_range, 2"
    )


def pays(text: Callable[[str, int], bool]) -> Callable[[], AgentInstance]:
    """An adder whose grader also takes what the function takes, given an action and n + 1."""

    class Env(Adder):
        async def step(self, action):
            is_right = text(action.text, self.n + 1)
            return await super().step(Action(text=str(self.n + 1)) if is_right else action)

    return ordered(Env)


@pytest.mark.parametrize(
    ("grader", "expected"),
    [
        (lambda text, label: not text.strip(), "an empty action ''"),
        (lambda text, label: text == "nan", "garbage 'nan'"),
        (lambda text, label: not text.isascii(), r"an empty action '\u200b'"),
        (lambda text, label: str(label - 1) in text and "+" in text, "an echo of the prompt 'What is 20 + 1?'"),
        (
            lambda text, label: str(label) in text,
            "a very long action (all numbers) '987654323 0 1 2 3 4 5 6 7 8 9 10 11 12 1'… (100,000 characters)",
        ),
        (lambda text, label: len(text) > 5000, f"a very long action (letters) '{'x' * 40}'… (100,000 characters)"),
    ],
)
def test_cheap_action_that_is_paid(grader: Callable[[str, int], bool], expected: str):
    message = failure(pays(grader), "cheap_rewards")
    assert message == (
        f"task '20 + 1', turn 1, {expected} earned 1; an action that does no work must earn nothing: make the grader "
        "stricter, or, if every action earns that much, say so with the lower end of reward_range"
    )


def test_policy_fault_that_is_paid():
    class Env(Adder):
        async def step(self, action):
            if len(action.text) > 1000:
                raise PolicyFault("too long", 0.5)
            return await super().step(action)

    assert failure(ordered(Env), "cheap_rewards").startswith(
        f"task '20 + 1', turn 1, a very long action (letters) '{'x' * 40}'… (100,000 characters) earned 0.5; "
    )


def test_cheap_action_that_is_scored():
    class Env(Adder):
        async def step(self, action):
            result = await super().step(action)
            score = 1.0 if result.reward == 1 else 0.5
            return StepResult(observation="", reward=result.reward, terminated=result.terminated, score=score)

    message = failure(ordered(Env), "cheap_rewards")
    assert message == (
        "task '20 + 1', turn 1, an empty action '' scored 0.5; an action that does no work must score 0: "
        "make the grader stricter"
    )


def test_a_reward_that_every_action_earns_is_no_cheap_reward_where_the_range_says_so():
    class Env(Adder):
        reward_range = (0.1, 1.1)

        async def step(self, action):
            result = await super().step(action)
            return StepResult(
                observation="", reward=max(0.1, result.reward), terminated=result.terminated, score=result.score
            )

    assert check_env(ordered(Env), tasks=TASKS, only=("rewards", "cheap_rewards")).passed
