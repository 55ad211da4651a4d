"""A verdict that is known is not paid for again: not by another judge, nor in another process."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from turngym.envs.errors import ConfigError, RewardError
from turngym.envs.rewards import RewardOutput, Trajectory, score_group
from turngym.envs.rewards.judge.cache import VerdictCache
from turngym.envs.rewards.judge.reply import Verdict

from .judge_server import JudgeServer, judge_of, rated, refused, said

NOTHING = {"prompt_tokens": 0, "completion_tokens": 0, "requests": 0, "retries": 0, "cached": 1, "cost": 0.0}

OTHER_PROCESS = """
import asyncio, sys
from turngym.envs.rewards import LLMJudge, Trajectory

url, path, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
judge = LLMJudge("judge", base_url=url, cache=path)

async def main():
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(judge(Trajectory(response=f"response {n}"))) for n in range(first, last)]
    print(*(task.result().metadata["rating"] for task in tasks), judge.usage.requests, judge.usage.cached)
    await judge.aclose()

asyncio.run(main())
"""


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer() as server:
        yield server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "verdicts.sqlite"


async def test_a_cached_verdict_costs_nothing_and_is_counted(server: JudgeServer, path: Path) -> None:
    server.script(rated(3, reason="Hm."))
    first = judge_of(server, cache=path, price_per_million=(1, 1))
    second = judge_of(server, cache=path, price_per_million=(1, 1), api_key="sk-another-key")
    for judge, requests in ((first, 1), (first, 0), (second, 0)):
        output = await judge(Trajectory(prompt="2 + 2?", response="5"))
        assert output.reward == pytest.approx(2 / 9)
        assert output.metadata["reason"] == "Hm."
        assert output.metadata["requests"] == requests
    assert len(server.asked) == 1
    assert second.usage.as_dict() == NOTHING
    assert (first.usage.requests, first.usage.cached) == (1, 1)
    await first.aclose()
    assert (await first(Trajectory(prompt="2 + 2?", response="5"))).metadata["cached"] == 1, "it opens again"
    await first.aclose()
    await second.aclose()


@pytest.mark.parametrize(
    "other",
    [
        {"judge_model": "another"},
        {"prompt_template": "Rate."},
        {"rating_scale": (1, 11)},
        {"temperature": 0.5},
        {"max_tokens": 99},
        {"extra_body": {"top_k": 1}},
    ],
)
async def test_whatever_else_is_asked_is_asked_anew(server: JudgeServer, path: Path, other: dict[str, Any]) -> None:
    for arguments in ({}, other):
        judge = judge_of(server, cache=path, **arguments)
        await judge(Trajectory(response="4"))
        await judge.aclose()
    assert len(server.asked) == 2


async def test_each_endpoint_has_its_own_verdicts(server: JudgeServer, path: Path) -> None:
    await judge_of(server, cache=path)(Trajectory(response="4"))
    with JudgeServer() as other:
        assert (await judge_of(other, cache=path)(Trajectory(response="4"))).metadata["cached"] == 0


async def test_each_sample_is_cached_for_itself(server: JudgeServer, path: Path) -> None:
    server.answer = lambda asked: rated(1 + asked.number)
    three = judge_of(server, cache=path, num_samples=3, temperature=1)
    once = await three(Trajectory(response="4"))
    again = await three(Trajectory(response="4"))
    assert once.metadata["ratings"] == again.metadata["ratings"]
    assert again.metadata["cached"] == 3
    five = await judge_of(server, cache=path, num_samples=5, temperature=1)(Trajectory(response="4"))
    assert (five.metadata["cached"], five.metadata["requests"]) == (3, 2)


async def test_equal_responses_at_the_same_time_are_asked_about_once(server: JudgeServer, path: Path) -> None:
    judge = judge_of(server, cache=path)
    scored = await score_group(judge, [Trajectory(response=str(n % 3)) for n in range(30)])
    assert all(isinstance(one, RewardOutput) for one in scored)
    assert len(server.asked) == 3
    assert judge.usage.cached == 27


async def test_what_failed_is_not_cached(server: JudgeServer, path: Path) -> None:
    judge = judge_of(server, cache=path, max_retries=0)
    for trouble in (refused(500), said("?"), refused(401)):
        server.script(trouble)
        with pytest.raises(RewardError):
            await judge(Trajectory(response="4"))
    server.script(rated(10))
    assert (await judge(Trajectory(response="4"))).reward == 1.0


@pytest.mark.slow
def test_processes_share_a_cache(server: JudgeServer, path: Path) -> None:
    def run(first: int, last: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", OTHER_PROCESS, server.url, str(path), str(first), str(last)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    server.answer = lambda asked: rated(1 + int(asked.text.rpartition("\nresponse ")[2].split()[0]) % 10)
    both = [run(0, 20), run(20, 40)]
    told = [process.communicate()[0].split() for process in both]
    assert told == [[*(f"{1 + n % 10}.0" for n in part), "20", "0"] for part in (range(20), range(20, 40))]
    assert run(0, 40).communicate()[0].split()[-2:] == ["0", "40"]
    assert len(server.asked) == 40


def test_many_may_make_the_file_at_the_same_time(tmp_path: Path) -> None:
    for round_ in range(20):
        path, together = tmp_path / str(round_), threading.Barrier(8)

        def make(path: Path = path, together: threading.Barrier = together) -> VerdictCache:
            together.wait()
            return VerdictCache(path)

        with ThreadPoolExecutor(8) as threads:
            for cache in [made.result() for made in [threads.submit(make) for _ in range(8)]]:
                cache.close()


def test_what_another_process_kept_first_stays(path: Path) -> None:
    one, other = VerdictCache(path), VerdictCache(path)
    one.put("key", Verdict(3.0, "first"))
    other.put("key", Verdict(4.0, "second"))
    assert one.get("key") == other.get("key") == Verdict(3.0, "first")
    assert one.get("another") is None
    again = pickle.loads(pickle.dumps(one))
    assert again.get("key") == Verdict(3.0, "first")
    for cache in (one, other, again):
        cache.close()
        cache.close()


def test_a_path_that_is_no_cache_is_refused_when_the_judge_is_built(server: JudgeServer, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("These are notes of mine, and they are longer than a hundred bytes. " * 10)
    with pytest.raises(ConfigError) as caught:
        judge_of(server, cache=text)
    assert str(caught.value) == (
        f"cache={str(text)!r} can't be used: file is not a database; give a file of its own, which is made if need be"
    )
    with pytest.raises(ConfigError, match="can't be used: unable to open database file"):
        judge_of(server, cache=tmp_path)
    assert text.read_text().startswith("These are notes of mine")


async def test_a_cache_that_breaks_costs_a_warning_and_no_verdict(
    server: JudgeServer, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    judge = judge_of(server, cache=path)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE verdicts")
    connection.close()
    for _ in range(2):
        assert (await judge(Trajectory(response="4"))).metadata["rating"] == 7
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == [f"the judge's cache {path} can't be read: no such table: verdicts; this is said once"]
    await judge.aclose()


async def test_what_does_not_fit_the_scale_is_not_taken_from_the_cache(server: JudgeServer, path: Path) -> None:
    judge = judge_of(server, cache=path)
    await judge(Trajectory(response="4"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE verdicts SET rating = 99")
    connection.close()
    output = await judge(Trajectory(response="4"))
    assert (output.metadata["rating"], output.metadata["cached"]) == (7, 0)
    await judge.aclose()


def test_a_cache_may_be_used_in_one_loop_after_the_other(server: JudgeServer, path: Path) -> None:
    judge = judge_of(server, cache=path)
    for _ in range(3):
        asyncio.run(score_group(judge, [Trajectory(response=str(n)) for n in range(5)]))
    assert (judge.usage.requests, judge.usage.cached) == (5, 10)
