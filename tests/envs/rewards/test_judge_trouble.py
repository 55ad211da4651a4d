"""What goes wrong between a judge and its endpoint is asked again where that may help, and said where not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate

import pytest
from turngym.envs.rewards import RewardOutput, Trajectory, score_group
from turngym.envs.rewards.judge.trouble import asked_wait

from .judge_server import KEY, Asked, JudgeServer, Reply, error_of, judge_of, rated, refused


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer() as server:
        yield server


@pytest.mark.parametrize(
    "trouble",
    [refused(429), refused(429, Retry_After="0"), refused(500), refused(503), refused(502), refused(408)],
    ids=["429", "429 with Retry-After", "500", "503", "502", "408"],
)
async def test_what_may_pass_is_asked_again(server: JudgeServer, trouble: Reply) -> None:
    server.script(trouble, trouble, rated(10))
    output = await judge_of(server)(Trajectory(response="4"))
    assert output.reward == 1.0
    assert (output.metadata["requests"], output.metadata["retries"]) == (3, 2)
    assert output.metadata["prompt_tokens"] == 100, "failed requests took no tokens"


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "; check the key (given as api_key)"),
        (403, "; check what the key may be used for (given as api_key)"),
        (404, "; check base_url and judge_model"),
        (413, ""),
    ],
)
async def test_what_will_not_pass_is_said_at_once(server: JudgeServer, status: int, remedy: str) -> None:
    server.script(refused(status, f"no, {KEY}!"))
    judge = judge_of(server)
    assert await error_of(judge) == f"'judge' at {server.url} answered {status} (no, <secret>!){remedy}"
    assert len(server.asked) == 1


async def test_an_exhausted_quota_is_not_asked_again(server: JudgeServer) -> None:
    server.script(Reply(status=429, body={"error": {"message": "pay", "code": "insufficient_quota"}}))
    assert await error_of(judge_of(server)) == f"'judge' at {server.url} answered 429 (pay)"
    assert len(server.asked) == 1


async def test_retries_end(server: JudgeServer) -> None:
    server.script(refused(500, "out of order"))
    judge = judge_of(server, max_retries=2)
    assert await error_of(judge) == f"'judge' at {server.url} answered 500 (out of order); asked 3 times"
    assert judge.usage.requests == len(server.asked) == 3
    assert judge.usage.retries == 2


@pytest.mark.parametrize("cut", [0, 1, 40])
async def test_a_server_that_hangs_up_is_asked_again(server: JudgeServer, cut: int) -> None:
    whole = rated(10)
    server.script(Reply(body=whole.body, cut=cut), whole)
    output = await judge_of(server)(Trajectory(response="4"))
    assert (output.reward, output.metadata["requests"]) == (1.0, 2)


async def test_a_server_that_is_not_there_is_named(server: JudgeServer) -> None:
    judge = judge_of(server, base_url="http://127.0.0.1:9/v1", max_retries=1)
    message = await error_of(judge)
    assert message.startswith("'judge' at http://127.0.0.1:9/v1 can't be reached, or hung up (")
    assert message.endswith("; asked 2 times")


async def test_a_server_that_never_answers_times_out(server: JudgeServer) -> None:
    server.script(Reply(wait_for=threading.Event()))
    judge = judge_of(server, timeout_s=0.05, max_retries=1)
    assert await error_of(judge) == f"'judge' at {server.url} took longer than 0.05 s; asked 2 times"
    for asked in server.asked:
        assert await asyncio.to_thread(asked.has_hung_up.wait, 30)


async def test_a_server_that_answers_without_end_times_out(server: JudgeServer) -> None:
    server.script(Reply(drips=True))
    judge = judge_of(server, timeout_s=0.2, max_retries=0)
    assert await error_of(judge) == f"'judge' at {server.url} took longer than 0.2 s"


async def test_a_redirection_is_not_followed(server: JudgeServer) -> None:
    server.script(Reply(status=307, headers={"location": "/elsewhere"}))
    assert await error_of(judge_of(server)) == (
        f"'judge' at {server.url} answered 307; redirections aren't followed: give base_url as it points to"
    )


async def test_a_slow_server_is_waited_for(server: JudgeServer) -> None:
    event = threading.Event()
    server.script(Reply(body=rated(10).body, wait_for=event))
    threading.Timer(0.1, event.set).start()
    assert (await judge_of(server)(Trajectory(response="4"))).reward == 1.0


async def test_nothing_is_sent_before_retry_after_is_over(server: JudgeServer) -> None:
    def answer(asked: Asked) -> Reply:
        return refused(429, Retry_After="0.3") if asked.number == 0 else rated(10)

    server.answer = answer
    judge = judge_of(server, max_concurrency=1)
    outputs = await score_group(judge, [Trajectory(response=str(n)) for n in range(4)])
    assert [output.reward for output in outputs if isinstance(output, RewardOutput)] == [1.0] * 4
    first, *others = server.asked
    assert len(others) == 4
    assert all(asked.at >= first.at + 0.3 for asked in others), "the others wait, too"


def test_retry_after_is_read_as_seconds_milliseconds_and_date() -> None:
    assert asked_wait({"retry-after": "2.5"}) == 2.5
    assert asked_wait({"retry-after-ms": "250", "retry-after": "1"}) == 0.25
    assert asked_wait({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    in_an_hour = asked_wait({"retry-after": formatdate(time.time() + 3600, usegmt=True)})
    assert in_an_hour is not None
    assert 3000 < in_an_hour <= 3600
    for nonsense in ("soon", "-1", "nan", "inf", ""):
        assert asked_wait({"retry-after": nonsense}) is None
    assert asked_wait({}) is None


async def test_a_date_in_the_past_is_no_wait(server: JudgeServer) -> None:
    server.script(refused(503, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"), rated(10))
    assert (await judge_of(server)(Trajectory(response="4"))).reward == 1.0


async def test_a_wait_that_is_too_long_fails_at_once(server: JudgeServer) -> None:
    server.script(refused(429, "later", Retry_After="3600"))
    expected = f"'judge' at {server.url} answered 429 (later); it wants 3600 s of waiting, and 120 s are the limit"
    assert await error_of(judge_of(server)) == expected
    assert len(server.asked) == 1


@pytest.mark.parametrize("known", ["json_schema", "json_object", None])
async def test_an_endpoint_that_refuses_a_response_format_is_asked_more_simply(
    server: JudgeServer, known: str | None
) -> None:
    def answer(asked: Asked) -> Reply:
        given = asked.body.get("response_format", {}).get("type")
        return rated(10) if given == known else refused(400, "response_format is not supported")

    server.answer = answer
    judge = judge_of(server)
    refusals = {"json_schema": 0, "json_object": 1, None: 2}[known]
    assert (await judge(Trajectory(response="4"))).metadata["requests"] == 1 + refusals
    assert (await judge(Trajectory(response="5"))).metadata["requests"] == 1, "it is remembered"


async def test_an_endpoint_that_wants_max_completion_tokens_gets_them(server: JudgeServer) -> None:
    def answer(asked: Asked) -> Reply:
        if "max_tokens" in asked.body:
            return refused(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return rated(asked.body["max_completion_tokens"])

    server.answer = answer
    judge = judge_of(server, max_tokens=8)
    output = await judge(Trajectory(response="4"))
    assert output.metadata["rating"] == 8
    assert server.asked[-1].body["response_format"]["type"] == "json_schema"


async def test_a_request_that_is_wrong_itself_is_refused_at_once(server: JudgeServer) -> None:
    server.answer = lambda asked: refused(400, "too long") if "long response" in asked.text else rated(10)
    judge = judge_of(server)
    await judge(Trajectory(response="4"))
    assert await error_of(judge, "a long response") == f"'judge' at {server.url} answered 400 (too long)"
    assert len(server.asked) == 2
    assert (await judge(Trajectory(response="5"))).metadata["requests"] == 1
    assert server.asked[-1].body["response_format"]["type"] == "json_schema", "nothing was unlearnt"
