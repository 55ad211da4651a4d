"""Worker processes for rewards: who pays for what goes wrong, what overlaps, and that nothing is left."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from turngym.agents import load_reward_file
from turngym.envs.errors import InvalidRewardError, RewardError
from turngym.envs.rewards import RewardOutput, Trajectory, score_group

from .reward_loading import loaded, responses, until

pytestmark = pytest.mark.usefixtures("no_tasks_left", "nothing_left")

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file under `tmp_path`, and gives its path."""

    def write(text: str, name: str = "file.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


FAULTY = """
import asyncio, os, signal, sys, time
def reward_func(response):
    if response == "raises":
        raise KeyError("gone")
    if response == "exits":
        sys.exit(2)
    if response == "ends":
        os._exit(3)
    if response == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if response == "blocks":
        time.sleep(60)
    if response == "nan":
        return float("nan")
    if response == "text":
        return "good"
    return 1.0
"""


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", "reward_func raised KeyError: 'gone' ({file}, line 5)"),
        ("exits", "reward_func raised SystemExit: 2 ({file}, line 7)"),
        ("ends", "its worker process ended with exit code 3 in reward_func"),
        ("killed", "its worker process died of signal 9, as when memory runs out, in reward_func"),
        ("blocks", "reward_func took longer than 0.5 s, and was stopped"),
        ("nan", "reward is nan; it must be finite"),
        ("text", "reward is str 'good'; it must be one number"),
    ],
)
async def test_a_fault_costs_its_own_call_only(
    write: Write, monkeypatch: pytest.MonkeyPatch, fault: str, message: str, is_async: bool
) -> None:
    monkeypatch.setattr("turngym.agents.reward_worker.PING_S", 0.3)
    text = FAULTY.replace("def reward_func", "async def reward_func") if is_async else FAULTY
    file = write(text.replace("    return 1.0", "    await asyncio.sleep(0)\n    return 1.0") if is_async else text)
    async with loaded(file, timeout_s=0.5) as reward:
        outputs = await score_group(reward, responses("a", "b", fault, "c", "d"))
        assert reward.workers.num_restarts == (fault in ("ends", "killed", "blocks"))
    failed = outputs.pop(2)
    assert isinstance(failed, RewardError)
    assert isinstance(failed, InvalidRewardError) == (fault == "text")
    assert str(failed) == "file.py: " + message.format(file=file)
    assert outputs == [RewardOutput(1.0)] * 4


async def test_a_process_that_leaves_forks_behind_is_noticed_at_once_and_they_end(write: Write, tmp_path: Path) -> None:
    text = f"""
import multiprocessing, os
def pid(_):
    return os.getpid()
pool = multiprocessing.get_context("fork").Pool(1)
def reward_func(response):
    (child,) = pool.map(pid, [0])
    open({str(tmp_path / "pid")!r}, "w").write(str(child))
    if response == "ends":
        os._exit(3)
    return 1.0
"""
    async with loaded(write(text), timeout_s=60) as reward:
        first, second = await score_group(reward, responses("fine", "ends"))
        await until(lambda: not _is_running(int((tmp_path / "pid").read_text())))
    assert first == RewardOutput(1.0)
    assert str(second) == "file.py: its worker process ended with exit code 3 in reward_func"


async def test_an_async_call_that_overruns_is_cancelled_and_its_process_lives(write: Write) -> None:
    text = """
import asyncio, os
async def reward_func(response):
    if response == "waits":
        await asyncio.sleep(60)
    return float(os.getpid())
"""
    async with loaded(write(text), timeout_s=0.3) as reward:
        first, waits, second = await score_group(reward, responses("a", "waits", "b"))
        (third,) = await score_group(reward, responses("c"))
        assert reward.workers.num_restarts == 0
    assert first == second == third
    assert str(waits) == "file.py: reward_func took longer than 0.3 s, and was stopped"


async def test_async_calls_of_one_worker_overlap(write: Write) -> None:
    text = """
import asyncio
together = asyncio.Barrier(40)
async def reward_func(response):
    await together.wait()
    return 1.0
"""
    async with loaded(write(text), timeout_s=30) as reward:
        assert await score_group(reward, responses(*["x"] * 40)) == [RewardOutput(1.0)] * 40


async def test_a_composite_of_async_parts_overlaps_too(write: Write) -> None:
    text = """
import asyncio
from flux.rewards import CompositeReward, FunctionReward, LengthReward
together = asyncio.Barrier(3)
async def slow(trajectory):
    await together.wait()
    return 1.0
reward = CompositeReward([(FunctionReward(fn=slow), 0.5), (LengthReward(target_length=1), 0.5)])
"""
    async with loaded(write(text), timeout_s=30) as reward:
        outputs = await asyncio.gather(*(score_group(reward, responses("word")) for _ in range(3)))
    assert [output.reward for (output,) in outputs if isinstance(output, RewardOutput)] == [1.0] * 3


async def test_plain_rewards_may_run_event_loops_and_alarms_of_their_own(write: Write) -> None:
    text = """
import asyncio, signal
async def think(response):
    await asyncio.sleep(0)
    return 0.5
def stop(*args):
    raise TimeoutError("too long")
def reward_func(queries, prompts, labels):
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        while True:
            pass
    except TimeoutError:
        return {"rewards": [asyncio.run(think(q)) for q in queries]}
"""
    async with loaded(write(text)) as reward:
        assert await score_group(reward, responses("a", "b")) == [RewardOutput(0.5)] * 2


async def test_a_plain_function_may_give_an_awaitable(write: Write) -> None:
    text = """
import asyncio
lock = asyncio.Lock()
async def think(response):
    async with lock:
        return 0.5
def reward_func(response):
    return think(response)
"""
    async with loaded(write(text)) as reward:
        assert await score_group(reward, responses("a", "b")) == [RewardOutput(0.5)] * 2


async def test_a_cancelled_call_leaves_its_worker_usable(write: Write) -> None:
    text = "import time\ndef reward_func(response):\n    time.sleep(60 if response == 'blocks' else 0)\n    return 1.0"
    async with loaded(write(text)) as reward:
        blocked = asyncio.create_task(score_group(reward, responses("blocks")))
        waiting = asyncio.create_task(score_group(reward, responses("waits in line")))
        await until(lambda: reward.workers._places[0].worker._waiting)
        waiting.cancel()
        blocked.cancel()
        await asyncio.wait([blocked, waiting])
        assert await score_group(reward, responses("fine")) == [RewardOutput(1.0)]


async def test_calls_are_begun_in_the_order_asked(write: Write) -> None:
    text = "calls = []\ndef reward_func(response):\n    calls.append(response)\n    return float(len(calls))"
    async with loaded(write(text)) as reward:
        groups = [responses(*(f"{group}{member}" for member in range(4))) for group in range(5)]
        outputs = await asyncio.gather(*(score_group(reward, group) for group in groups))
    order = [output.reward for group in outputs for output in group if isinstance(output, RewardOutput)]
    assert order == [float(place) for place in range(1, 21)]


async def test_a_group_is_never_mixed_with_another(write: Write) -> None:
    text = """
import time
def reward_func(queries, prompts, labels):
    time.sleep(0.01)
    lengths = [float(len(q)) for q in queries]
    mean = sum(lengths) / len(lengths)
    return {"rewards": [length - mean for length in lengths]}
"""
    groups = [responses(*("x" * (group + member) for member in range(group % 3 + 2))) for group in range(9)]
    async with loaded(write(text), num_workers=2) as reward:
        together = await asyncio.gather(*(score_group(reward, group) for group in groups))
        alone = [await score_group(reward, group) for group in groups]
    assert together == alone


async def test_a_file_that_no_longer_loads_fails_the_calls_after_its_process_was_lost(
    write: Write, tmp_path: Path
) -> None:
    text = f"""
import os
if os.path.exists({str(tmp_path / "lost")!r}):
    raise ImportError("the model is gone")
def reward_func(response):
    open({str(tmp_path / "lost")!r}, "w").close()
    os._exit(1)
"""
    file = write(text)
    async with loaded(file) as reward:
        first, second = await score_group(reward, responses("a", "b"))
    assert str(first) == "file.py: its worker process ended with exit code 1 in reward_func"
    assert str(second) == (
        f"file.py: its worker process can't start again: {file} can't be loaded: ImportError: the model is gone "
        f"({file}, line 4)"
    )


async def test_what_cannot_be_sent_is_told(write: Write) -> None:
    async with loaded(write("def reward_func(response): return 1.0")) as reward:
        with pytest.raises(RewardError, match=r"^the trajectories can't be sent to a worker process: "):
            await reward.compute_reward(Trajectory(response="x", columns={"fn": lambda: 0}))


async def test_closing_ends_the_calls_that_run(write: Write) -> None:
    text = "import time\ndef reward_func(response):\n    time.sleep(60)"
    reward = load_reward_file(write(text))
    await reward.start()
    running = asyncio.create_task(score_group(reward, responses("a", "b")))
    await until(lambda: reward.workers._places[0].worker._waiting)  # pyright: ignore[reportAttributeAccessIssue]
    await reward.aclose()
    await reward.aclose()
    assert [str(error) for error in await running] == [
        "file.py: its worker process was ended in reward_func",
        "file.py: its worker processes are closed; start the reward again",
    ]


def test_workers_stay_with_their_event_loop(write: Write) -> None:
    program = f"""
import asyncio
from turngym.agents import load_reward_file
from turngym.envs.rewards import Trajectory, score_group
reward = load_reward_file({str(write("def reward_func(response): return 1.0"))!r})
for _ in range(2):
    print(asyncio.run(score_group(reward, [Trajectory(response="x")])))
asyncio.run(reward.aclose())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("[RewardOutput(reward=1.0,")
    assert second == (
        "[RewardError('file.py: its worker processes belong to another event loop; close them there, and load it "
        "again')]"
    )


async def test_processes_end_with_the_program_that_started_them(write: Write, tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    text = f"""
import os, subprocess, time
def reward_func(response):
    child = subprocess.Popen(["sleep", "60"])
    with open({str(pid_file)!r} + ".new", "w") as file:
        file.write(f"{{os.getpid()}} {{child.pid}}")
    os.rename({str(pid_file)!r} + ".new", {str(pid_file)!r})
    time.sleep(60)
"""
    program = f"""
import asyncio, os
from turngym.agents import load_reward_file
from turngym.envs.rewards import Trajectory, score_group
async def main():
    reward = load_reward_file({str(write(text))!r})
    await reward.start()
    task = asyncio.create_task(score_group(reward, [Trajectory(response="x")]))
    while not os.path.exists({str(pid_file)!r}):
        await asyncio.sleep(0.01)
    os._exit(0)
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True)  # noqa: ASYNC221 - nothing else runs here
    for pid in map(int, pid_file.read_text().split()):
        await until(lambda pid=pid: not _is_running(pid))


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
