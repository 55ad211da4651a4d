"""A judge keeps to its limits of concurrency and rate, in any number of loops, and leaves nothing open."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from turngym.envs.errors import RewardError
from turngym.envs.rewards import RewardOutput, Trajectory, score_group
from turngym.envs.rewards.judge.client import Turns

from .judge_server import Asked, JudgeServer, Reply, judge_of, rated, refused, said
from .scored import outputs_of


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer() as server:
        yield server


def by_content(asked: Asked) -> Reply:
    """A rating that depends on the response, and trouble of every kind before it."""
    number = int(asked.text.rpartition("response ")[2].split()[0])
    return rated(1 + number % 10)


async def test_64_episodes_at_once_keep_to_the_limit_of_concurrency(server: JudgeServer) -> None:
    tries: Counter[int] = Counter()

    def answer(asked: Asked) -> Reply:
        number = int(asked.text.rpartition("response ")[2].split()[0])
        tries[number] += 1
        trouble = [refused(429), refused(500), said("?"), Reply(body=rated(1).body, cut=10)]
        return trouble[number % 4] if tries[number] == 1 and number % 3 == 0 else by_content(asked)

    server.answer = answer
    judge = judge_of(server, max_concurrency=8)
    scored = await score_group(judge, [Trajectory(response=f"response {n} ") for n in range(64)])
    assert [one.metadata["rating"] for one in scored if isinstance(one, RewardOutput)] == [
        1 + n % 10 for n in range(64)
    ]
    assert server.max_active <= 8
    outputs = [one for one in scored if isinstance(one, RewardOutput)]
    for part in ("requests", "retries", "prompt_tokens", "completion_tokens", "cached", "cost"):
        assert sum(output.metadata[part] for output in outputs) == getattr(judge.usage, part)
    assert judge.usage.requests == len(server.asked) == 64 + 22
    assert judge.usage.retries == 22


async def test_the_limit_of_concurrency_is_used_and_not_exceeded(server: JudgeServer) -> None:
    gate = threading.Event()
    server.answer = lambda asked: Reply(body=rated(7).body, wait_for=gate if asked.body["model"] == "judge" else None)
    judge = judge_of(server, max_concurrency=5)
    asking = asyncio.create_task(score_group(judge, [Trajectory(response=str(n)) for n in range(20)]))
    for _ in range(20):  # another judge's questions are answered meanwhile: time enough for too many of this one's
        await judge_of(server, judge_model="another")(Trajectory(response="4"))
    assert sum(asked.body["model"] == "judge" for asked in server.asked) == 5
    gate.set()
    assert all(isinstance(one, RewardOutput) for one in await asking)
    assert judge.usage.requests == 20


async def test_results_do_not_depend_on_the_order_of_arrival(server: JudgeServer) -> None:
    server.answer = by_content
    trajectories = [Trajectory(response=f"response {n} ") for n in range(16)]
    judge = judge_of(server, max_concurrency=3)
    forth = await score_group(judge, trajectories)
    back = await score_group(judge, trajectories[::-1])
    assert forth == back[::-1]


async def test_requests_begin_no_faster_than_the_rate(server: JudgeServer) -> None:
    judge = judge_of(server, requests_per_minute=600)  # ten a second
    start = time.monotonic()
    await score_group(judge, [Trajectory(response=str(n)) for n in range(25)])
    for place, asked in enumerate(sorted(server.asked, key=lambda asked: asked.at)):
        assert asked.at >= start + place // 10


def test_the_rate_holds_over_successive_loops(server: JudgeServer) -> None:
    judge = judge_of(server, requests_per_minute=300)  # five a second
    start = time.monotonic()
    for n in range(6):
        judge(Trajectory(response=str(n)))
    assert server.asked[5].at >= start + 1


@pytest.mark.filterwarnings("error")
def test_a_judge_works_in_one_loop_after_the_other_and_leaves_nothing_open(server: JudgeServer) -> None:
    judge = judge_of(server)
    for n in range(3):
        scored = asyncio.run(score_group(judge, [Trajectory(response=f"{n} {m}") for m in range(4)]))
        assert all(isinstance(one, RewardOutput) for one in scored)
    loop = asyncio.new_event_loop()  # one that is closed without any ceremony
    (output,) = outputs_of(loop.run_until_complete(score_group(judge, [Trajectory(response="x")])))
    assert output.parts["rating"] == 7
    loop.close()
    del loop, judge
    gc.collect()  # anything left open would warn here


def test_a_judge_works_in_several_loops_at_the_same_time(server: JudgeServer) -> None:
    server.answer = by_content
    judge, results = judge_of(server), {}

    def run(offset: int) -> None:
        trajectories = [Trajectory(response=f"response {offset + n} ") for n in range(8)]
        results[offset] = asyncio.run(score_group(judge, trajectories))

    threads = [threading.Thread(target=run, args=(offset,)) for offset in range(0, 32, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ratings = [one.metadata["rating"] for offset in range(0, 32, 8) for one in results[offset]]
    assert ratings == [1 + n % 10 for n in range(32)]
    assert judge.usage.requests == 32


async def test_a_cancelled_question_hangs_up(server: JudgeServer) -> None:
    server.script(Reply(wait_for=threading.Event()))
    judge = judge_of(server)
    asking = asyncio.create_task(judge.compute_reward(Trajectory(response="4")))
    while not server.asked:  # noqa: ASYNC110 - the server has a thread of its own
        await asyncio.sleep(0.001)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.to_thread(server.asked[0].has_hung_up.wait, 30)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    server.script(rated(10))
    assert (await judge(Trajectory(response="4"))).reward == 1.0


async def test_a_closed_judge_opens_again(server: JudgeServer) -> None:
    judge = judge_of(server)
    await judge.aclose()
    assert (await judge(Trajectory(response="4"))).reward == pytest.approx(6 / 9)
    await judge.aclose()
    await judge.aclose()


async def test_closing_a_judge_under_a_question_fails_the_question(server: JudgeServer) -> None:
    server.script(Reply(wait_for=threading.Event()))
    judge = judge_of(server, max_retries=1)
    asking = asyncio.create_task(score_group(judge, [Trajectory(response=str(n)) for n in range(3)]))
    while len(server.asked) < 3:  # noqa: ASYNC110 - the server has a thread of its own
        await asyncio.sleep(0.001)
    await judge.aclose()
    assert all(isinstance(one, RewardError) for one in await asking)


async def test_requests_and_answers_of_a_burst_go_on_one_by_one(
    server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, turns, usual = 0, [], Turns.take

    async def take(self: Turns, message: object) -> None:
        await usual(self, message)
        turns.append(others)

    async def somebody_else() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(Turns, "take", take)
    beside = asyncio.create_task(somebody_else())
    await score_group(judge_of(server, max_concurrency=16), [Trajectory(response=str(n)) for n in range(16)])
    beside.cancel()
    assert len(turns) == 2 * 16, "a request and an answer each"
    assert len(set(turns)) == len(turns), "in between, everybody else had a turn"


LOADING = """
import asyncio
import sys
import threading
import turngym.envs.threads as threads
from turngym.envs.rewards import LLMJudge, Trajectory, score_group


class Watch:
    where = set()

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("openai", "httpx", "httpx2", "httpcore", "httpcore2", "anyio"):
            self.where.add(threading.current_thread() is threading.main_thread())


async def run():
    judge = LLMJudge("judge", base_url=sys.argv[1])
    assert "openai" not in sys.modules
    sys.meta_path.insert(0, Watch())
    if sys.argv[2] == "start":
        await judge.start()
        assert "openai" in sys.modules
    outputs = await score_group(judge, [Trajectory(response=str(n)) for n in range(8)])
    own = [thread for thread in threading.enumerate() if thread.name.startswith(threads.THREAD_NAME)]
    print(Watch.where, len(own), *(output.metadata["rating"] for output in outputs))


asyncio.run(run())
"""


@pytest.mark.parametrize("first", ["start", "question"])
def test_the_library_is_loaded_once_and_off_the_event_loop(server: JudgeServer, first: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LOADING, server.url, first], capture_output=True, text=True, check=False
    )
    assert (result.stdout, result.stderr) == ("{False} 1 7.0 7.0 7.0 7.0 7.0 7.0 7.0 7.0\n", "")
