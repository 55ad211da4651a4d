"""Reward files for OpenRLHF run as they are."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest
from turngym.envs.errors import InvalidRewardError, RewardError
from turngym.envs.rewards import RewardOutput, Trajectory, score_group
from turngym.envs.rewards.base import score_of

from .conftest import Start, outputs


def group(*responses: str, prompt: str = "Question: ", label: object = "4") -> list[Trajectory]:
    return [Trajectory(prompt=prompt, response=response, label=label) for response in responses]


async def test_a_reward_file_gives_rewards_scores_and_logs(start: Start) -> None:
    reward = await start("openrlhf/reward_func.py")
    assert await outputs(reward, group("it is 4", "no idea")) == [
        RewardOutput(reward=1.0, score=1.0, metadata={"dummy_scores": 1.0, "n": 2.0, "all_good": 0.0}),
        RewardOutput(reward=-0.5, score=0.0, metadata={"dummy_scores": -0.5, "n": 2.0, "all_good": 0.0}),
    ]


async def test_gsm8k_answers_are_matched(start: Start) -> None:
    cases = {
        "2 + 2 = 4\n#### 4": 1.0,
        "#### 4.": 1.0,
        "####4": 1.0,
        "the answer is 4": 0.0,
        "#### -4": 0.0,
        "#### 4,000": 0.0,
        "": 0.0,
    }
    reward = await start("openrlhf/gsm8k.py")
    given = await outputs(reward, group(*cases, label="Two and two are <<2+2=4>>4.\n#### 4"))
    assert [output.reward for output in given] == list(cases.values())
    assert [score_of(output, "gsm8k") for output in given] == list(cases.values()), "the scores are the rewards"


async def test_a_file_that_normalises_over_its_batch_sees_its_group_alone(start: Start) -> None:
    reward = await start("openrlhf/normalising.py", num_workers=2)
    groups = [group(*("x" * (n % 5 + 3 * member) for member in range(2 + n % 4))) for n in range(12)]
    alone = [await outputs(reward, members) for members in groups]
    together = await asyncio.gather(*(outputs(reward, members) for members in groups))
    assert together == alone
    for members in alone:
        assert math.fsum(output.reward for output in members) == pytest.approx(0.0, abs=1e-5)


async def test_a_blocking_file_stops_nobody_else(start: Start) -> None:
    blocking = await start("openrlhf/blocking.py", num_workers=2)
    quick = await start("openrlhf/gsm8k.py")
    scoring = asyncio.gather(*(outputs(blocking, group("a" * n, "b")) for n in range(2)))
    num_groups = 0
    while not scoring.done():
        await outputs(quick, group("#### 4", label="#### 4"))
        num_groups += 1
    assert num_groups > 10  # of some milliseconds each, in a second
    assert [[output.reward for output in members] for members in await scoring] == [[0.0, 1.0], [1.0, 1.0]]


async def test_a_blocking_call_that_overruns_is_stopped_and_named(start: Start) -> None:
    reward = await start("openrlhf/blocking.py", timeout_s=0.2)
    first, second = await score_group(reward, group("a", "b"))
    assert type(first) is RewardError
    assert str(first) == str(second) == "blocking.py: reward_func took longer than 0.2 s, and was stopped"


async def test_the_wrong_shape_is_one_error_that_names_file_and_shape(start: Start) -> None:
    reward = await start("openrlhf/wrong_shape.py")
    for count in (1, 4):
        given = await score_group(reward, group(*["x"] * count))
        assert {type(error) for error in given} == {InvalidRewardError}
        assert {str(error) for error in given} == {
            f"wrong_shape.py: rewards is Tensor of shape ({count}, 1); it must be [{count}], one number for each "
            "response"
        }


@pytest.mark.slow
async def test_generated_code_is_tested_with_pytest(start: Start) -> None:
    reward = await start("openrlhf/run_tests.py")
    tests = "def test_add():\n    assert add(2, 3) == 5\n"
    good, bad, broken = "def add(a, b): return a + b", "def add(a, b): return a - b", "def add(a, b:"
    members = group(good, bad, broken, prompt="Write add.\n", label=tests)
    assert [output.reward for output in await outputs(reward, members)] == [1.0, 0.0, 0.0]


@pytest.mark.slow
async def test_a_pipeline_is_loaded_once_for_each_worker(
    start: Start, sentiment_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTIMENT_MODEL", str(sentiment_model))
    reward = await start("openrlhf/sentiment.py")
    first = await outputs(reward, group("very good answer", "bad", "good good good"))
    second = await outputs(reward, group("very good answer", "bad", "good good good"))
    assert [output.metadata["calls"] for output in first + second] == [1.0] * 3 + [2.0] * 3
    assert len({output.metadata["classifier"] for output in first + second}) == 1
    assert [output.reward for output in first] == [output.reward for output in second]
    assert all(0 < output.reward < 1 for output in first)
    assert len({output.reward for output in first}) == 3


async def test_numpy_arrays_and_logs_whose_keys_change(start: Start) -> None:
    reward = await start("openrlhf/numpy_and_logs.py")
    first = await outputs(reward, group("a", "b"))
    second = await outputs(reward, group("a", "b"))
    assert first == [
        RewardOutput(reward=0.0, score=0.0, metadata={"always": 1.0, "odd": 0.0}),
        RewardOutput(reward=0.25, score=0.25, metadata={"always": 1.0, "odd": 1.0}),
    ]
    assert [output.metadata for output in second] == [{"always": 1.0, "even": 0.0}, {"always": 1.0, "even": 1.0}]


async def test_a_file_finds_the_files_beside_it_and_labels_come_as_json(start: Start) -> None:
    reward = await start("openrlhf/with_helpers.py")
    given = await outputs(reward, group("4", "5", label={"answer": 4}))
    assert [output.reward for output in given] == [1.125, 0.125]
