"""Environments in worker processes: crashes and blocked loops are contained, rightly blamed, and leave nothing open."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from turngym.agents import AgentExecutor, Ending, ExecutorConfig, GenerateRequest, Renderer, ScriptedEngine
from turngym.agents.factories import worker_setup
from turngym.envs import AgentInstance, EnvFactory, StepResult, Task, make, register
from turngym.envs.errors import ConfigError, EnvWorkerError
from turngym.envs.math import MathEnv

pytestmark = pytest.mark.usefixtures("no_tasks_left", "nothing_left")

ENV = '''
import asyncio, os, subprocess, sys, time
from pathlib import Path
from turngym.envs import AgentInstance, StepResult

class Env(AgentInstance):
    """Does what its action says; ends after its second turn."""

    async def reset(self, *, seed=None, options=None):
        self.turn = 0
        return "Begin.", {"torch": "torch" in sys.modules, "pid": os.getpid(), "label": (options or {}).get("label")}

    async def step(self, action):
        self.turn += 1
        if action.text == "dies":
            os._exit(3)
        if action.text == "blocks":
            time.sleep(60)
        if action.text == "waits":
            await asyncio.sleep(60)
        if action.text.startswith("starts "):
            child = subprocess.Popen(["sleep", "60"])
            Path(action.text.removeprefix("starts ")).write_text(str(child.pid))
        if action.text == "unpicklable":
            return StepResult(observation="", info={"lock": asyncio.Lock, "function": lambda: 0})
        return StepResult(observation="Go on.", reward=1.0, terminated=self.turn == 2, score=1.0)
'''


@pytest.fixture(scope="module")
def env_id(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("envs") / "contained.py"
    path.write_text(ENV)
    return f"{path}:Env"


def plays(actions: dict[int, str], tokenizer: PreTrainedTokenizerFast, *, always: bool = False) -> ScriptedEngine:
    """Members play what `actions` says in their first attempt (or always), and `fine` otherwise."""

    def action(request: GenerateRequest) -> str:
        _, _, member, attempt = request.episode_id.split("-")
        return actions.get(int(member), "fine") if always or attempt == "00" else "fine"

    return ScriptedEngine(action, tokenizer)


async def test_episodes_are_played_in_other_processes_without_torch(
    env_id: str, byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    config = ExecutorConfig(env_workers=2)
    async with AgentExecutor(env_id, plays({}, byte_tokenizer), byte_renderer, config) as executor:
        group = await executor.run_group(Task(id="t", options={"label": "42"}), 4)
    pids = {episode.reset_info["pid"] for episode in group.episodes}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert all(episode.reset_info["label"] == "42" for episode in group.episodes)
    assert not any(episode.reset_info["torch"] for episode in group.episodes)
    assert [turn.reward for episode in group.episodes for turn in episode.turns] == [1.0] * 8
    assert [episode.score for episode in group.episodes] == [1.0] * 4


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        ("dies", "EnvWorkerError", "the episode's worker process ended with exit code 3 in step"),
        ("blocks", "StepTimeoutError", "step took longer than 0.5 s"),
    ],
)
async def test_a_lost_process_is_replaced_and_only_the_culprit_pays(
    env_id: str,
    byte_renderer: Renderer,
    byte_tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    error: str,
    message: str,
) -> None:
    monkeypatch.setattr("turngym.agents.workers.PING_S", 0.3)
    config = ExecutorConfig(env_workers=1, step_timeout_s=0.5, max_refills=1)
    engine = plays({0: "waits" if action == "dies" else "fine", 1: action}, byte_tokenizer)
    async with AgentExecutor(env_id, engine, byte_renderer, config) as executor:
        group = await executor.run_group(Task(id="t"), 3)
        assert executor.stats.worker_restarts == 1
    assert not group.is_short
    assert [episode.ending for episode in group.episodes] == [Ending.TERMINATED] * 3
    culprit = next(episode for episode in group.failed if episode.member == 1)
    assert culprit.failure is not None
    assert culprit.failure.error == error
    assert culprit.failure.message == f"{env_id}: {message}"
    bystanders = [episode for episode in group.failed if episode.member != 1]
    assert executor.stats.bystanders == len(bystanders)
    for episode in bystanders:
        assert episode.failure is not None
        assert episode.failure.error == "EnvWorkerError"
        assert "while another episode's code ran" in episode.failure.message


async def test_bystanders_are_refilled_at_no_cost_of_theirs(
    env_id: str, byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = plays({0: "waits", 1: "dies"}, byte_tokenizer)
    config = ExecutorConfig(env_workers=1, max_refills=0)
    async with AgentExecutor(env_id, engine, byte_renderer, config) as executor:
        group = await executor.run_group(Task(id="t"), 2)
    assert [(episode.member, episode.attempt) for episode in group.episodes] == [(0, 1)]
    assert sorted(episode.member for episode in group.failed) == [0, 1]
    assert group.is_short


async def test_what_cannot_leave_the_process_is_named(
    env_id: str, byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = plays({0: "unpicklable"}, byte_tokenizer)
    async with AgentExecutor(env_id, engine, byte_renderer, ExecutorConfig(env_workers=1)) as executor:
        group = await executor.run_group(Task(id="t"), 1)
    failure = group.failed[0].failure
    assert failure is not None
    assert failure.message.startswith("what step returned can't leave its worker process: ")


async def test_processes_that_an_env_started_end_with_its_worker(
    env_id: str, tmp_path: Path, byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    file = tmp_path / "pid"
    engine = plays({0: f"starts {file}"}, byte_tokenizer)
    async with AgentExecutor(env_id, engine, byte_renderer, ExecutorConfig(env_workers=1)) as executor:
        await executor.run_group(Task(id="t"), 1)
        pid = int(file.read_text())
        assert is_running(pid)
    await until_gone(pid)


async def test_a_cancelled_start_leaves_no_process(
    env_id: str, byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    executor = AgentExecutor(env_id, plays({}, byte_tokenizer), byte_renderer, ExecutorConfig(env_workers=2))
    starting = asyncio.create_task(executor.start())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_an_env_that_cannot_be_imported_is_told_at_the_start(
    tmp_path: Path, byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "here_only.py"
    module.write_text(
        "import os\nif 'TURNGYM_TEST_HERE' not in os.environ: raise OSError('no licence')\n"
        "from turngym.envs.math import MathEnv as Base\nclass Here(Base): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TURNGYM_TEST_HERE", "1")
    import here_only  # pyright: ignore[reportMissingImports]

    monkeypatch.delenv("TURNGYM_TEST_HERE")
    executor = AgentExecutor(here_only.Here, plays({}, byte_tokenizer), byte_renderer, ExecutorConfig(env_workers=2))
    with pytest.raises(EnvWorkerError, match="Here: a worker process can't start: OSError: no licence"):
        await executor.start()


async def test_an_env_that_this_process_registered_is_known_in_the_workers(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    register("workers-test/Math-v0", entry_point=MathEnv, kwargs={"max_attempts": 1})
    task = Task(id="t", options={"prompt": "1 + 1?", "label": "2"})
    config = ExecutorConfig(env_workers=1)
    async with AgentExecutor("workers-test/Math-v0", plays({}, byte_tokenizer), byte_renderer, config) as executor:
        group = await executor.run_group(task, 1)
    assert not group.failed
    assert make("workers-test/Math-v0").name == "workers-test/Math-v0"


class Local(AgentInstance):
    async def reset(self, **_: Any) -> Any:
        return "", {}

    async def step(self, action: Any) -> StepResult:
        return StepResult(observation="")


def test_a_factory_that_cannot_be_sent_is_refused_at_once_with_the_remedy(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(ConfigError, match=r"can't be sent to worker processes.* set env_workers=0"):
        AgentExecutor(lambda: Local(), plays({}, byte_tokenizer), byte_renderer, ExecutorConfig(env_workers=1))


def test_a_class_of_the_main_program_is_sent_as_its_file(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from turngym.agents.factories import worker_setup\nfrom turngym.envs.math import MathEnv\nimport pickle\n"
        "class Mine(MathEnv): pass\n"
        "if __name__ == '__main__': print(pickle.loads(worker_setup(Mine).factory).id)\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{program}:Mine"


def test_an_id_is_sent_without_its_spec_being_needed() -> None:
    setup = worker_setup(EnvFactory(id="Math-v0", kwargs={"max_attempts": 2}))
    assert pickle.loads(setup.factory).kwargs == {"max_attempts": 2}


@pytest.mark.long
async def test_many_groups_survive_random_crashes_and_hangs(
    env_id: str, byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngym.agents.workers.PING_S", 0.5)
    rng = random.Random(0)

    def action(request: GenerateRequest) -> str:
        is_first = request.episode_id.endswith("-00")
        return (
            rng.choices(["dies", "blocks", "waits", "unpicklable", "fine"], [1, 1, 1, 1, 30])[0] if is_first else "fine"
        )

    config = ExecutorConfig(env_workers=3, step_timeout_s=0.5)
    async with AgentExecutor(env_id, ScriptedEngine(action, byte_tokenizer), byte_renderer, config) as executor:
        for first in range(0, 400, 8):
            async with asyncio.TaskGroup() as together:
                groups = [together.create_task(executor.run_group(Task(id="t"), 4, slot=first + i)) for i in range(8)]
            assert not any(group.result().is_short for group in groups)
        assert executor.stats.worker_restarts > 20
        assert executor.stats.endings[Ending.TERMINATED] == 1600


PARENT = """
import asyncio, sys, time
from pathlib import Path
from turngym.agents.factories import make_checked
from turngym.agents.workers import WorkerPool
from turngym.envs import Action, EnvFactory

async def main():
    pool = WorkerPool(EnvFactory(id=sys.argv[1]), 1)
    await pool.start()
    env = await pool.make()
    _, info = await env.reset()
    step = asyncio.create_task(env.step(Action(text="blocks")))
    await asyncio.sleep(0.1)
    print(info["pid"], flush=True)
    await step

asyncio.run(main())
"""


async def test_workers_end_with_a_parent_that_is_killed_even_while_their_loop_is_blocked(
    env_id: str, tmp_path: Path
) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs here
        [sys.executable, script, env_id], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        os.kill(parent.pid, signal.SIGKILL)
    await until_gone(pid)


def is_running(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while is_running(pid):  # noqa: ASYNC110 - another process sets no event
            await asyncio.sleep(0.01)
