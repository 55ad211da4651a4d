"""Environments and engines that fail in the middle of a group: the run goes on, the failure is named, nothing leaks."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from turngym.agents import (
    AgentExecutor,
    Ending,
    EpisodeWriter,
    ExecutorConfig,
    GenerateRequest,
    Generation,
    Group,
    Renderer,
    ScriptedEngine,
    VersionSpan,
    read_episodes,
)
from turngym.envs import EnvFactory, SamplingParams, Task

pytestmark = pytest.mark.usefixtures("no_tasks_left", "nothing_left")

TASK = Task(id="task")

FAULTY = '''
import asyncio, os, threading, time
from turngym.envs import AgentInstance, EnvError, PolicyFault, StepResult

class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")

async def fault(name):
    if name == "raises":
        raise ValueError("the disk is full")
    if name == "hangs":
        await asyncio.Event().wait()
    if name == "swallows":
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
    if name == "exits":
        raise SystemExit(3)
    if name == "cancels itself":
        raise asyncio.CancelledError
    if name == "unprintable":
        raise Unprintable
    return {
        "wrong type": "not a step",
        "nan reward": ("", float("nan"), False, False, {}),
        "huge token rewards": StepResult(observation="", token_rewards=[1e39]),
        "no unicode": StepResult(observation="\\ud800"),
        "too many token rewards": StepResult(observation="", token_rewards=[0.0] * 100),
    }.get(name)

class Env(AgentInstance):
    """Does what its action says on its second turn; ends after its third."""

    async def reset(self, *, seed=None, options=None):
        self.turn = 0
        return "Begin.", {}

    async def step(self, action):
        self.turn += 1
        if self.turn == 2:
            result = await fault(action.text)
            if result is not None:
                return result
        if action.text == "policy fault":
            raise PolicyFault("too many files", reward=-0.5)
        if action.text == "bad policy fault":
            raise PolicyFault("too many files", reward=float("inf"))
        return StepResult(observation="Go on.", reward=1.0, terminated=self.turn == 3)

class Plain(Env):
    """The same in plain methods, which run on a thread."""

    release = threading.Event()

    def reset(self, *, seed=None, options=None):
        self.turn = 0
        return "Begin.", {}

    def step(self, action):
        self.turn += 1
        if self.turn == 2 and action.text == "raises":
            raise ValueError("the disk is full")
        if self.turn == 2 and action.text == "hangs":
            self.release.wait(20)
        return StepResult(observation="Go on.", reward=1.0, terminated=self.turn == 3)

class Resetting(Env):
    async def reset(self, *, seed=None, options=None):
        await fault(options["fault"])
        return 5, {}

class Unmade(Env):
    def __init__(self):
        raise OSError("no licence")

class Unclosable(Env):
    async def close(self):
        raise OSError("busy")

class UnclosableHanging(Env):
    async def close(self):
        await asyncio.Event().wait()
'''


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("envs") / "faulty.py"
    path.write_text(FAULTY)
    return path


def second_member_plays(name: str, tokenizer: PreTrainedTokenizerFast) -> ScriptedEngine:
    """Every first attempt of member 1 plays `name`, everything else plays `fine`."""

    def action(request: GenerateRequest) -> str:
        return name if request.episode_id.endswith("-0001-00") else "fine"

    return ScriptedEngine(action, tokenizer)


Play = Callable[..., Any]


@pytest.fixture(params=[pytest.param(0, id="in-process"), pytest.param(1, id="in-a-worker", marks=pytest.mark.slow)])
def play(
    request: pytest.FixtureRequest, faulty: Path, byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> Play:
    async def play_group(
        action: str, env: str = "Env", options: Any = None, **config: Any
    ) -> tuple[Group, AgentExecutor]:
        settings = ExecutorConfig(env_workers=request.param, step_timeout_s=0.3, close_timeout_s=0.3, **config)
        engine = second_member_plays(action, byte_tokenizer)
        async with AgentExecutor(EnvFactory(id=f"{faulty}:{env}"), engine, byte_renderer, settings) as executor:
            return await executor.run_group(Task(id="task", options=options or {}), 3), executor

    return play_group


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        ("raises", "ValueError", "the disk is full"),
        ("hangs", "StepTimeoutError", r".*Env: step took longer than 0.3 s"),
        ("swallows", "StepTimeoutError", r".*Env: step took longer than 0.3 s"),
        ("exits", "EnvError", r".*Env: step raised SystemExit: 3"),
        ("unprintable", "Unprintable", r"<its str\(\) raised ValueError>"),
        ("wrong type", "InvalidStepError", r".*Env: step returned str 'not a step'; return a StepResult, .*"),
        ("nan reward", "InvalidStepError", r".*Env: reward is nan; it must be a finite number"),
        ("huge token rewards", "InvalidStepError", r".*Env: a reward is 1e\+39; float32 must hold it"),
        ("too many token rewards", "RecordError", "100 token_rewards and 23 action tokens in turn 1; .*"),
    ],
)
async def test_a_fault_in_a_step_is_named_and_the_group_is_refilled(
    play: Play, action: str, error: str, message: str
) -> None:
    group, executor = await play(action)
    assert not group.is_short
    assert [episode.ending for episode in group.episodes] == [Ending.TERMINATED] * 3
    assert [episode.attempt for episode in group.episodes] == [0, 1, 0]
    (failed,) = group.failed
    assert failed.is_failed
    assert failed.ending is Ending.ENV_FAILED
    assert failed.failure.error == error
    assert re.fullmatch(message, failed.failure.message)
    assert failed.failure.turn == 1
    assert executor.stats.failures == {error: 1}
    assert executor.stats.failure_rate == 1 / 4


async def test_feedback_that_is_no_unicode_does_no_harm(play: Play, tmp_path: Path) -> None:
    group, _ = await play("no unicode")
    assert not group.failed
    assert group.episodes[1].turns[1].feedback == "\ud800"
    (stored, *_) = read_episodes(EpisodeWriter(tmp_path).write(group.episodes[1:]))
    assert stored.turns[1].feedback == r"\ud800"


async def test_a_failed_step_keeps_the_action_that_it_failed_on(play: Play) -> None:
    group, _ = await play("raises")
    failed = group.failed[0]
    assert [turn.action_text for turn in failed.turns] == ["raises", "raises"]
    assert [turn.reward for turn in failed.turns] == [1.0, 0.0]
    assert 'raise ValueError("the disk is full")' in failed.failure.traceback


async def test_a_policy_fault_truncates_and_is_trained(play: Play) -> None:
    group, executor = await play("policy fault")
    assert not group.failed
    faulty = group.episodes[1]
    assert faulty.ending is Ending.POLICY_FAULT
    assert faulty.failure.kind == "policy"
    assert faulty.failure.message == "too many files"
    assert [turn.reward for turn in faulty.turns] == [-0.5]
    assert executor.stats.num_failed == 0


async def test_a_policy_fault_with_a_reward_that_is_no_number_is_the_envs_failure(play: Play) -> None:
    group, _ = await play("bad policy fault")
    assert group.failed[0].failure.error == "InvalidStepError"


@pytest.mark.parametrize(
    ("env", "options", "where", "error"),
    [
        ("Resetting", {"fault": "raises"}, "reset", "ValueError"),
        ("Resetting", {"fault": "hangs"}, "reset", "StepTimeoutError"),
        ("Resetting", {"fault": None}, "reset", "InvalidStepError"),
        ("Unmade", {}, "make", "OSError"),
    ],
)
async def test_a_fault_before_the_first_turn_is_named(
    play: Play, env: str, options: dict[str, Any], where: str, error: str
) -> None:
    group, executor = await play("fine", env, options, max_refills=1)
    assert group.is_short
    assert len(group.failed) == 6
    assert {(episode.failure.where, episode.failure.error) for episode in group.failed} == {(where, error)}
    assert executor.stats.failures == {error: 6}


@pytest.mark.parametrize(("env", "error"), [("Unclosable", "OSError"), ("UnclosableHanging", "StepTimeoutError")])
async def test_an_env_that_cannot_be_closed_is_counted_and_costs_nothing_else(
    play: Play, env: str, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    group, executor = await play("fine", env)
    assert [episode.ending for episode in group.episodes] == [Ending.TERMINATED] * 3
    assert not group.failed
    assert executor.stats.unclosed == {error: 3}
    assert f"{env}: an episode couldn't be closed in close" in caplog.text


@pytest.mark.parametrize(("action", "error"), [("raises", "ValueError"), ("hangs", "StepTimeoutError")])
async def test_plain_methods_fail_alike_and_a_hanging_thread_is_counted(play: Play, action: str, error: str) -> None:
    group, executor = await play(action, "Plain")
    assert not group.is_short
    assert executor.stats.failures == {error: 1}
    if executor.config.env_workers == 0:
        assert executor.stats.abandoned_threads == (action == "hangs")


async def test_an_env_that_cancels_itself_is_not_taken_for_the_caller(
    faulty: Path, byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = second_member_plays("cancels itself", byte_tokenizer)
    async with AgentExecutor(f"{faulty}:Env", engine, byte_renderer) as executor:
        group = await executor.run_group(TASK, 2)
    assert not group.is_short
    failure = group.failed[0].failure
    assert failure is not None
    assert failure.message == f"{faulty}:Env: step cancelled itself"


async def test_a_cancellation_that_the_env_swallows_still_cancels(
    faulty: Path, byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    is_second = asyncio.Event()

    def action(request: GenerateRequest) -> str:
        if request.request_id.endswith("/1"):
            is_second.set()
        return "swallows"

    engine = ScriptedEngine(action, byte_tokenizer)
    async with AgentExecutor(f"{faulty}:Env", engine, byte_renderer) as executor:
        playing = asyncio.create_task(executor.run_episode(TASK))
        await is_second.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing


class Engine:
    """An engine that answers with whatever it was given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.num_requests = 0

    async def generate(self, request: GenerateRequest) -> Any:
        self.num_requests += 1
        if self.answer == "hang":
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def publish(self, weights: Any, version: int) -> None: ...

    async def close(self) -> None: ...


def generation(num_tokens: int, logprob: float = -1.0, finish_reason: Any = "stop") -> Generation:
    return Generation(
        token_ids=(65,) * num_tokens,
        logprobs=(logprob,) * num_tokens,
        finish_reason=finish_reason,
        versions=(VersionSpan(0, num_tokens),),
    )


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (OSError("no route"), "OSError", "no route"),
        ("hang", "EngineError", "the engine gave no answer within 0.05 s"),
        (None, "EngineError", "request .*: the engine gave NoneType; generate must return a Generation"),
        (generation(9), "EngineError", "request .*: the engine gave 9 tokens, and max_tokens is 8"),
        (generation(2, float("nan")), "EngineError", "request .*: the engine gave a logprob that is not finite; .*"),
        (generation(2, finish_reason="abort"), "EngineError", "request .*: the engine aborted the request"),
    ],
)
async def test_what_the_engine_does_wrong_is_the_engines_failure(
    faulty: Path, byte_renderer: Renderer, answer: Any, error: str, message: str
) -> None:
    config = ExecutorConfig(turn_timeout_s=0.05, max_refills=1, sampling=SamplingParams(max_tokens=8))
    engine = Engine(answer)
    async with AgentExecutor(f"{faulty}:Env", engine, byte_renderer, config) as executor:
        group = await executor.run_group(TASK, 1)
    assert engine.num_requests == 2
    assert group.is_short
    assert {episode.ending for episode in group.failed} == {Ending.ENGINE_FAILED}
    failure = group.failed[0].failure
    assert failure is not None
    assert (failure.kind, failure.where, failure.error) == ("infra", "generate", error)
    assert re.fullmatch(message, failure.message)


async def test_the_episodes_limit_of_time_truncates_what_has_acted_and_fails_what_has_not(
    faulty: Path, byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    config = ExecutorConfig(episode_timeout_s=0.1, max_refills=0)
    hanging = second_member_plays("hangs", byte_tokenizer)
    async with AgentExecutor(f"{faulty}:Env", hanging, byte_renderer, config) as executor:
        acted = (await executor.run_group(TASK, 2)).episodes[1]
    async with AgentExecutor(f"{faulty}:Env", Engine("hang"), byte_renderer, config) as executor:
        waited = (await executor.run_group(TASK, 1)).failed[0]
    assert acted.ending is Ending.TIME_LIMIT
    assert acted.failure is not None
    assert acted.failure.kind == "policy"
    assert len(acted.turns) == 2
    assert waited.ending is Ending.ENGINE_FAILED


async def test_an_env_that_blocks_the_loop_is_noticed_named_and_failed(
    tmp_path: Path, byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "blocking.py"
    path.write_text(
        FAULTY + "\n\nclass Blocking(Env):\n    async def step(self, action):\n        time.sleep(1.7)\n"
        "        return await super().step(action)\n"
    )
    config = ExecutorConfig(step_timeout_s=1.0, max_refills=0)
    engine = ScriptedEngine(["fine"], byte_tokenizer)
    async with AgentExecutor(f"{path}:Blocking", engine, byte_renderer, config) as executor:
        group = await executor.run_group(TASK, 1)
        assert executor.stats.blocked == {"step": 1}
    failure = group.failed[0].failure
    assert failure is not None
    assert failure.error == "StepTimeoutError"
    assert "kept the event loop for itself; give it a worker process" in failure.message
    assert f"Blocking: step blocks the event loop, and with it every other episode ({path}:" in caplog.text


async def test_failures_that_go_with_long_actions_are_warned_of_once(
    faulty: Path, byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture
) -> None:
    def action(request: GenerateRequest) -> str:
        return "raises" + " " * 0 if request.episode_id.endswith("1-00") else "ok"

    with caplog.at_level(logging.WARNING, logger="turngym.executor"):
        engine = ScriptedEngine(action, byte_tokenizer)
        async with AgentExecutor(f"{faulty}:Env", engine, byte_renderer) as executor:
            await executor.run_many([Task(id=str(i)) for i in range(12)])
            assert "long actions" not in caplog.text
            for slot in range(100, 112):
                await executor.run_group(TASK, 2, slot=slot)
    warnings = [record.message for record in caplog.records if "fails on long actions" in record.message]
    assert len(warnings) == 1
    assert "raise PolicyFault in step" in warnings[0]
