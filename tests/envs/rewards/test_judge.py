"""A judge asks a real server on loopback through the real client: ratings, nonsense, samples, arguments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from turngym.envs.errors import ConfigError, RewardError
from turngym.envs.rewards import LLMJudge, Trajectory, score_group

from .judge_server import KEY, JudgeServer, Reply, error_of, judge_of, rated, said


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer() as server:
        yield server


async def test_a_rating_is_mapped_linearly_and_the_metadata_says_what_it_took(server: JudgeServer) -> None:
    judge = judge_of(server, price_per_million=(2.0, 8.0))
    output = await judge(Trajectory(prompt="2 + 2?", response="4"))
    assert output.reward == pytest.approx(6 / 9)
    assert output.metadata == {
        "rating": 7.0,
        "reason": "Fair.",
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "requests": 1,
        "retries": 0,
        "cached": 0,
        "cost": pytest.approx((100 * 2 + 10 * 8) / 1e6),
    }
    (asked,) = server.asked
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.body["model"] == "judge"
    assert asked.body["temperature"] == 0
    assert asked.body["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    ("rating_scale", "score", "reward"),
    [((1, 10), 1, 0.0), ((1, 10), 10, 1.0), ((0, 1), 0.25, 0.25), ((-5, 5), 0, 0.5), ((1, 5), 4.0, 0.75)],
)
async def test_the_ends_of_the_scale_are_zero_and_one(
    server: JudgeServer, rating_scale: tuple[float, float], score: float, reward: float
) -> None:
    server.script(rated(score))
    output = await judge_of(server, rating_scale=rating_scale)(Trajectory(response="4"))
    assert output.reward == pytest.approx(reward)


async def test_scale_and_clip_are_those_of_every_reward(server: JudgeServer) -> None:
    output = await judge_of(server, scale=3.0, clip=1.5)(Trajectory(response="4"))
    assert output.reward == 1.5


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(body=b"<html>Busy</html>"), "the endpoint's reply is no JSON: <html>Busy</html>"),
        (Reply(body=b"[" * 100_000), "the endpoint's reply is no JSON: " + "[" * 197 + "..."),
        (Reply(body=b"<p>", headers={"content-type": "text/html"}), "the endpoint's reply is no JSON: <p>"),
        (Reply(body={}), "the reply has no choices"),
        (Reply(body=[]), "the reply has no choices"),
        (Reply(body={"choices": []}), "the reply has no choices"),
        (Reply(body={"choices": "abc"}), "the reply has no choices"),
        (Reply(body={"choices": [{"message": None}]}), "the reply is empty"),
        (said(None), "the reply is empty"),
        (said("  "), "the reply is empty"),
        (said(None, refusal="I won't."), "the judge refused: I won't."),
        (said('{"score": 7', finish_reason="length"), "the verdict was cut off; raise max_tokens"),
        (said('{"score": 7}', finish_reason="content_filter"), "the endpoint's content filter withheld the verdict"),
        (said("7"), "the verdict is not one JSON object"),
        (said("I'd say 7."), "the verdict is not one JSON object"),
        (said('[{"score": 7}]'), "the verdict is not one JSON object"),
        (said('{"score": 7} {"score": 8}'), "the verdict is not one JSON object"),
        (said('{"score": 7, "score": 10}'), "the verdict is not one JSON object: a name is repeated"),
        (said('{"score": NaN}'), "the verdict is not one JSON object: a number isn't finite"),
        (said('{"rating": 7}'), "the verdict's score is missing"),
        (said('{"score": "7"}'), "the verdict's score is no number"),
        (said('{"score": true}'), "the verdict's score is no number"),
        (said('{"score": 11}'), "the verdict's score isn't on the scale from 1 to 10"),
        (said('{"score": 0}'), "the verdict's score isn't on the scale from 1 to 10"),
        (said('{"score": 1e999}'), "the verdict's score isn't on the scale from 1 to 10"),
        (said('{"score": 1' + "0" * 5000 + "}"), "the verdict is not one JSON object"),
    ],
)
async def test_nonsense_is_asked_again_and_then_fails(server: JudgeServer, reply: Reply, message: str) -> None:
    server.script(reply, reply, rated(4))
    assert (await judge_of(server)(Trajectory(response="4"))).reward == pytest.approx(3 / 9)
    assert "An earlier reply could not be used" not in server.asked[0].text
    assert "An earlier reply could not be used" in server.asked[1].text
    server.script(reply)
    expected = f"'judge' at {server.url}: {message}; asked 2 times"
    assert await error_of(judge_of(server, max_retries=1)) == expected


@pytest.mark.parametrize(
    "content",
    ['{"score": 4}', '```json\n{"score": 4}\n```', '<think>{"score": 10}</think>\n{"score": 4, "reason": "?"}', " 4 "],
)
def test_only_a_block_or_a_thought_may_stand_around_the_verdict(server: JudgeServer, content: str) -> None:
    server.script(said(content))
    judge = judge_of(server, max_retries=0)
    if content == " 4 ":
        assert "not one JSON object" in asyncio.run(error_of(judge))
    else:
        assert judge(Trajectory(response="4")).metadata["rating"] == 4.0


async def test_the_mean_of_several_samples_counts(server: JudgeServer) -> None:
    server.answer = lambda asked: rated([2, 4, 9][asked.number], reason=f"{asked.number}")
    output = await judge_of(server, num_samples=3, temperature=0.7)(Trajectory(response="4"))
    assert output.reward == pytest.approx((5 - 1) / 9)
    assert output.metadata["rating"] == 5
    assert sorted(output.metadata["ratings"]) == [2, 4, 9]
    assert output.metadata["rating_std"] == pytest.approx((26 / 3) ** 0.5)
    assert (output.metadata["requests"], output.metadata["prompt_tokens"]) == (3, 300)
    assert server.asked[0].body["temperature"] == 0.7


async def test_one_sample_without_a_verdict_fails_the_episode(server: JudgeServer) -> None:
    server.answer = lambda asked: rated(7) if asked.number else said("?")
    judge = judge_of(server, num_samples=3, temperature=1, max_retries=0)
    assert await error_of(judge) == f"'judge' at {server.url}: the verdict is not one JSON object"
    assert judge.usage.requests == 3
    assert judge.usage.completion_tokens == 30, "also what couldn't be used was paid for"


async def test_a_failure_is_that_of_its_episode_and_never_a_zero(server: JudgeServer) -> None:
    server.answer = lambda asked: said("?") if "response 2" in asked.text else rated(10)
    scored = await score_group(judge_of(server), [Trajectory(response=f"response {n}") for n in range(4)])
    assert [isinstance(one, RewardError) for one in scored] == [False, False, True, False]
    assert str(scored[2]) == f"LLMJudge: 'judge' at {server.url}: the verdict is not one JSON object; asked 6 times"


async def test_usage_that_is_nonsense_counts_as_none(server: JudgeServer) -> None:
    for usage in ({"prompt_tokens": -1, "completion_tokens": "9"}, [], {"prompt_tokens": True}, "much"):
        server.script(said('{"score": 7}', usage=usage))
        output = await judge_of(server)(Trajectory(response="4"))
        assert (output.metadata["prompt_tokens"], output.metadata["completion_tokens"]) == (0, 0)


async def test_further_fields_of_the_request_are_sent(server: JudgeServer) -> None:
    judge = judge_of(server, extra_body={"chat_template_kwargs": {"enable_thinking": False}}, max_tokens=77)
    await judge(Trajectory(response="4"))
    assert server.asked[0].body["chat_template_kwargs"] == {"enable_thinking": False}
    assert server.asked[0].body["max_tokens"] == 77


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": (1, 10)}, "scale=(1, 10) is a factor, one number; the scale of ratings is rating_scale"),
        ({"rating_scale": (10, 1)}, "rating_scale=(10, 1) must be (least, greatest), the first less than the second"),
        ({"rating_scale": (-1e308, 1e308)}, "the width of rating_scale=inf must be a finite number"),
        ({"api_key": 1234567}, "api_key is of type int; it must be text"),
        ({"max_text_chars": 0}, "max_text_chars=0 must be at least 1"),
        ({"num_samples": 0}, "num_samples=0 must be an integer of at least 1"),
        ({"num_samples": 3}, "num_samples=3 needs a temperature over 0; at 0 they are all the same"),
        ({"temperature": -1}, "temperature=-1 must be a finite number of at least 0"),
        ({"timeout_s": 0}, "timeout_s=0 must be a finite number over 0"),
        ({"max_retries": 1.5}, "max_retries=1.5 must be an integer of at least 0"),
        ({"max_concurrency": 0}, "max_concurrency=0 must be an integer of at least 1"),
        ({"requests_per_minute": 0}, "requests_per_minute=0 must be a finite number over 0"),
        ({"price_per_million": (1,)}, "price_per_million=(1,) must be two numbers of at least 0: (input, output)"),
        ({"judge_model": ""}, "judge_model='' must be the name of a model, as the endpoint knows it"),
        ({"base_url": "localhost:8000"}, "base_url='localhost:8000' must look like http://127.0.0.1:8000/v1"),
        (
            {"base_url": f"http://me:{KEY}@localhost/v1"},
            "base_url must hold no user, query or fragment; a key belongs to api_key",
        ),
        (
            {"retries": 3},
            "LLMJudge has no argument 'retries'; of a request there are max_tokens, timeout_s, max_retries, backoff_s, "
            "max_concurrency, requests_per_minute, price_per_million, extra_body",
        ),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments: dict[str, Any], message: str) -> None:
    given = {"judge_model": "judge", "base_url": "http://127.0.0.1:1/v1", **arguments}
    with pytest.raises(ConfigError) as caught:
        LLMJudge(**given)
    assert str(caught.value) == message


def test_the_schema_asks_for_what_is_read(server: JudgeServer) -> None:
    judge_of(server)(Trajectory(response="4"))
    schema = server.asked[0].body["response_format"]["json_schema"]
    assert schema["strict"] is True
    assert json.loads(json.dumps(schema["schema"]["required"])) == ["reason", "score"]
