"""Rewards from files in worker processes: which object it is, what comes back, and who pays for what goes wrong."""

from __future__ import annotations

import logging
import math
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from turngym.agents import load_reward_file
from turngym.agents.reward_files import FileGroupReward, FileReward
from turngym.envs.errors import ConfigError, RewardError
from turngym.envs.rewards import Trajectory, score_group
from turngym.envs.rewards.types import RewardOutput

from .reward_loading import loaded, outputs_of, responses

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


async def rewards(path: Path, *texts: str, name: str | None = None) -> list[float]:
    async with loaded(path, name) as reward:
        return [output.reward for output in outputs_of(await score_group(reward, responses(*texts)))]


ONE = "from flux.rewards import RewardFunction, RewardOutput, LengthReward\n"

TWO = """
def first(response):
    return 1.0
class Holder:
    @staticmethod
    def second(response):
        return 2.0
"""

DERIVED = """
from flux.rewards import RewardFunction
class Base(RewardFunction):
    pass
class Mine(Base):
    def __init__(self):
        self.value = 0.5
    def compute_reward(self, trajectory):
        return self.value
"""

NEEDY = """
from flux.rewards import RewardFunction
class Mine(RewardFunction):
    def __init__(self, value):
        self.value = value
    def compute_reward(self, trajectory):
        return self.value
"""


@pytest.mark.parametrize(
    ("text", "is_group"),
    [
        ("def reward_func(queries, prompts, labels):\n    return {'rewards': [0.5 for _ in queries]}", True),
        ("def reward_func(queries, prompts, labels, **kwargs):\n    return {'rewards': [0.5 for _ in queries]}", True),
        ("async def reward_func(queries, prompts, labels):\n    return {'rewards': [0.5 for _ in queries]}", True),
        ("def custom_reward_function(response, prompt, metadata):\n    return 0.5", False),
        ("async def custom_reward_function(response):\n    return 0.5", False),
        ("def custom_reward_function(prompts, completions, **columns):\n    return [0.5] * len(prompts)", True),
        ("def score(response):\n    return 0.5\ndef _hidden():\n    pass", True),  # nothing in the text names it
        (ONE + "class Mine(RewardFunction):\n    def compute_reward(self, trajectory):\n        return 0.5", False),
        (
            ONE + "class Mine(RewardFunction):\n    async def compute_reward(self, trajectory):\n"
            "        return RewardOutput(0.5)",
            False,
        ),
        (DERIVED, True),
        (NEEDY + "mine = Mine(0.5)", True),
        ("def make():\n    return lambda response: 0.5\nreward_fn = make()", True),
        (
            "from turngym.envs.rewards import GroupReward\nclass Mine(GroupReward):\n"
            "    def compute_rewards(self, trajectories):\n        return [0.5] * len(trajectories)",
            True,
        ),
        ("def reward_func(response):\n    return 1.0\nreward_func = lambda response: 0.5", True),
    ],
)
async def test_whatever_a_file_holds_serves_as_its_reward(write: Write, text: str, is_group: bool) -> None:
    file = write(text)
    assert type(load_reward_file(file)) is (FileGroupReward if is_group else FileReward)
    assert await rewards(file, "a", "b", "c") == [0.5] * 3


async def test_a_name_chooses_and_may_stand_behind_the_file(write: Write) -> None:
    file = write(TWO)
    assert await rewards(file, "x", name="first") == [1.0]
    assert await rewards(file, "x", name="Holder.second") == [2.0]
    async with loaded(f"{file}:first") as reward:
        assert reward.name == "file.py:first"
        assert (await score_group(reward, responses("x")))[0] == RewardOutput(1.0)
    with pytest.raises(
        ConfigError, match=r"file\.py:first names 'first', and the name 'second' is given, too; give one"
    ):
        load_reward_file(f"{file}:first", "second")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (
            "def a(response): return 1.0\ndef b(response): return 1.0",
            None,
            "{file} could mean any of a, b; choose with FILE:NAME, or call one of them reward_func",
        ),
        (
            ONE + "x = LengthReward()\ny = LengthReward()",
            None,
            "{file} could mean any of x, y; choose with FILE:NAME, or call one of them reward_func",
        ),
        ("a = 1", None, "{file} defines no reward; it needs a function such as reward_func, or a class"),
        ("def a(response): return 1.0", "z", "{file} defines no 'z'; there are: a"),
        ("a = 1", "a", "{file}:a: 1 is no reward; give a RewardFunction, or a function such as fn(response, label)"),
        ("import json\n1 / 0", None, "{file} can't be loaded: ZeroDivisionError: division by zero ({file}, line 2)"),
        ("def broken(:", None, "{file} can't be loaded: SyntaxError: invalid syntax ({file}, line 1)"),
        (
            NEEDY,
            None,
            "{file}:Mine: Mine can't be made without arguments: Mine.__init__() missing 1 required positional "
            "argument: 'value'; give an instance of it",
        ),
    ],
)
async def test_a_file_that_cant_serve_says_why_when_it_is_started(
    write: Write, text: str, name: str | None, message: str
) -> None:
    file = write(text)
    reward = load_reward_file(file, name, num_workers=2)
    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            await reward.start()
        assert str(caught.value) == message.format(file=file)
    await reward.aclose()


async def test_a_file_that_ends_its_process_while_it_is_loaded_is_told(write: Write) -> None:
    reward = load_reward_file(write("import os; os._exit(3)"))
    with pytest.raises(RewardError, match=r"^a worker process ended with exit code 3 while it loaded the file$"):
        await reward.start()


async def test_real_imports_reach_the_workers(write: Write) -> None:
    file = write("from agent_tunix.rewards import check_answer as reward_fn")
    reward = load_reward_file(file, real_imports=True)
    with pytest.raises(ConfigError) as caught:
        await reward.start()
    assert str(caught.value) == (
        f"{file} can't be loaded: ModuleNotFoundError: No module named 'agent_tunix' ({file}, line 1)"
    )
    async with loaded(file) as reward:
        trajectory = Trajectory(response="It is 4.", label="4", columns={"answer": "4"})
        assert await score_group(reward, [trajectory]) == [RewardOutput(1.0)]


def test_what_is_wrong_with_the_call_is_told_at_once(tmp_path: Path, write: Write) -> None:
    file = write("def reward_func(response): return 1.0")
    for arguments, message in [
        ({"path": tmp_path / "none.py"}, f"there is no file {tmp_path / 'none.py'}"),
        ({"path": tmp_path}, f"{tmp_path} is no Python file; its name must end in .py"),
        ({"path": file, "num_workers": 0}, "num_workers=0 must be at least 1"),
        ({"path": file, "timeout_s": 0}, "timeout_s=0 must be above 0 seconds; inf sets no limit"),
        ({"path": file, "timeout_s": math.nan}, "timeout_s=nan must be above 0 seconds; inf sets no limit"),
    ]:
        with pytest.raises(ConfigError) as caught:
            load_reward_file(**arguments)
        assert str(caught.value) == message


async def test_the_file_is_loaded_in_each_worker_once_and_never_here(write: Write, tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = f"""
import os, sys
with open({str(log)!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")
async def reward_func(response):
    return float(os.getpid())
"""
    async with loaded(write(text), num_workers=2, timeout_s=math.inf) as reward:
        outputs = await score_group(reward, responses(*"abcdefgh"))
    pids = {str(int(output.reward)) for output in outputs if isinstance(output, RewardOutput)}
    assert len(pids) == 2
    assert sorted(log.read_text().split()) == sorted(pids)
    assert str(os.getpid()) not in pids


async def test_what_comes_back_is_plain(write: Write) -> None:
    text = """
import numpy as np, torch
from enum import IntEnum
from flux.rewards import RewardFunction, RewardOutput
class Level(IntEnum):
    HIGH = 2
class Mine(RewardFunction):
    def compute_reward(self, trajectory):
        print("printed by the file")
        loop = {}
        loop["loop"] = loop
        return RewardOutput(
            reward=torch.tensor(0.5),
            token_rewards=np.array([0.25, 0.5]),
            metadata={
                "n": np.float32(0.5), "t": torch.ones(2), "level": Level.HIGH, 3: {1}, "own": Mine, "loop": loop,
                "array": np.ndarray, "text": "a\\ud800", "none": None, "flag": True, "zero": torch.tensor(4),
            },
        )
"""
    async with loaded(write(text)) as reward:
        (output,) = await score_group(reward, responses("x"))
    assert isinstance(output, RewardOutput)
    assert (output.reward, output.token_rewards) == (0.5, [0.25, 0.5])
    loop = output.metadata.pop("loop")
    while isinstance(loop, dict):
        loop = loop["loop"]
    assert loop.startswith("dict {'loop': {")
    assert output.metadata.pop("array") == "numpy.ndarray"
    assert re.fullmatch(r"turngym_file_file_\w+\.Mine", output.metadata.pop("own"))
    assert output.metadata == {
        "n": 0.5, "t": [1.0, 1.0], "level": 2, "3": [1], "text": "a\ud800", "none": None, "flag": True, "zero": 4
    }  # fmt: skip
    assert type(output.metadata["level"]) is int


def test_what_a_file_prints_goes_to_standard_error(write: Write) -> None:
    text = """
import os
print("loading")
def reward_func(response):
    print("scoring")
    os.system("echo shell")
    return 1.0
"""
    file = write(text)
    program = f"""
import asyncio
from turngym.agents import load_reward_file
from turngym.envs.rewards import Trajectory, score_group
async def main():
    reward = load_reward_file({str(file)!r})
    print((await score_group(reward, [Trajectory(response="x")]))[0].reward)
    await reward.aclose()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1.0\n"
    assert [line for line in done.stderr.splitlines() if "sandbox" not in line] == ["loading", "scoring", "shell"]


def test_the_reward_of_a_file_can_be_sent_to_another_process(write: Write) -> None:
    reward = load_reward_file(write("def one(response): return 1.0"), "one", num_workers=3, timeout_s=7.0)
    again = pickle.loads(pickle.dumps(reward))
    assert type(again) is FileReward
    assert (again.workers.setup, again.workers.timeout_s) == (reward.workers.setup, 7.0)  # pyright: ignore[reportAttributeAccessIssue]


async def test_that_nothing_is_sandboxed_is_said_once(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    file = write("def reward_func(response): return 1.0")
    with caplog.at_level(logging.WARNING, "turngym.rewards"):
        for _ in range(2):
            await rewards(file, "a")
    assert caplog.messages == [
        f"{file} runs in processes of its own, with your rights and no sandbox; this is said once"
    ]


async def test_completions_and_columns_alone_make_a_function_of_the_group(write: Write) -> None:
    text = """
def reward_func(completions, label, **kwargs):
    return [float(completion == right) for completion, right in zip(completions, label)]
"""
    async with loaded(write(text)) as reward:
        assert await score_group(reward, responses("a", "b", label="b")) == [RewardOutput(0.0), RewardOutput(1.0)]
