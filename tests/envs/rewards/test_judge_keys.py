"""A judge's key is sent to its endpoint, and appears nowhere else."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys
import traceback
from typing import Any

import pytest
from turngym.envs.errors import ConfigError, RewardError
from turngym.envs.rewards import JudgePanel, LLMJudge, Trajectory, score_group
from turngym.envs.rewards.judge.secrets import Secret

from .judge_server import KEY, JudgeServer, Reply, error_of, judge_of, rated, refused, said


@pytest.fixture(autouse=True)
def _no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


ECHOES = [
    refused(401, f"Incorrect API key provided: {KEY}. Or {KEY[:15]}?"),
    Reply(status=401, body=f"Bearer {KEY}".encode(), headers={"content-type": "text/plain"}),
    Reply(status=401, body={"authorization": f"Bearer {KEY}", "x": [KEY]}),
    Reply(status=401, body={"detail": f"Bearer {KEY}"}, reason=f"Bad {KEY}", headers={"x-key": KEY}),
    refused(500, f"{'x' * 190} {KEY}"),
    Reply(body=f"no JSON {KEY}".encode(), headers={"x-request-id": KEY, "set-cookie": KEY}),
    said(None, refusal=f"I know {KEY}"),
    rated(7, reason=f"Your key is {KEY}."),
    Reply(body=rated(7).body, headers={"x-request-id": KEY}, cut=20),
    Reply(status=307, headers={"location": f"/{KEY}"}),
]


@pytest.mark.parametrize("echo", ECHOES)
async def test_an_endpoint_that_repeats_the_key_does_not_spread_it(
    echo: Reply, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    with JudgeServer(lambda asked: echo if asked.number % 2 == 0 else rated(7)) as server:
        cache = tmp_path / "verdicts.sqlite"
        for judge in (judge_of(server, max_retries=0, cache=cache), judge_of(server, max_retries=1)):
            outcomes: list[Any] = await score_group(judge, [Trajectory(response="4")])
            for outcome in outcomes:
                is_error = isinstance(outcome, RewardError)
                said = "".join(traceback.format_exception(outcome)) if is_error else repr(outcome.metadata)
                assert KEY[:15] not in said
            assert KEY not in repr(judge) + repr(vars(judge))
            await judge.aclose()
        assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    if "x-key" in echo.headers:
        assert "<secret>" in caplog.text, "the headers are logged, and the test sees it"
    assert KEY[:15] not in caplog.text
    for record in caplog.records:
        assert KEY not in repr(vars(record))
    assert KEY.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


async def test_the_key_comes_from_the_environment_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-the-environment\n")
    monkeypatch.setenv("OTHER_KEY", "sk-another-one")
    with JudgeServer() as server:
        await LLMJudge("judge", base_url=server.url)(Trajectory(response="4"))
        await LLMJudge("judge", base_url=server.url, api_key_env="OTHER_KEY")(Trajectory(response="4"))
        sent = [asked.headers["authorization"] for asked in server.asked]
        assert sent == ["Bearer sk-from-the-environment", "Bearer sk-another-one"]
        server.script(refused(401, "no"))
        message = await error_of(LLMJudge("judge", base_url=server.url, api_key_env="OTHER_KEY"))
        assert message == f"'judge' at {server.url} answered 401 (no); check the key (from OTHER_KEY)"


async def test_an_endpoint_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with JudgeServer() as server:
        assert (await LLMJudge("judge", base_url=server.url)(Trajectory(response="4"))).metadata["rating"] == 7
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert (await LLMJudge("judge")(Trajectory(response="4"))).metadata["rating"] == 7


def test_a_key_that_is_missing_is_said_when_the_judge_is_built() -> None:
    with pytest.raises(ConfigError) as caught:
        LLMJudge("gpt", "Rate this response...", api_key_env="MY_KEY")
    assert str(caught.value) == (
        "there is no key for 'gpt' at https://api.openai.com/v1: set MY_KEY, give api_key, "
        "or give the base_url of an endpoint that needs none"
    )


@pytest.mark.parametrize("key", ["sk-with\nnewline-1234", "sk-…-no-ascii-1234", "…"])
async def test_a_key_that_no_header_can_hold_is_not_shown(key: str) -> None:
    with JudgeServer() as server:
        message = await error_of(judge_of(server, api_key=key))
        assert message == "the key (given as api_key) has characters that no HTTP header can hold; give another"
        assert not server.asked


def test_a_judge_is_pickled_without_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with JudgeServer() as server:
        judge = LLMJudge("judge", base_url=server.url, name="mine", scale=2.0)
        pickled = pickle.dumps(JudgePanel([judge]))
        assert KEY.encode() not in pickled
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-other-side")
        again = pickle.loads(pickled).rewards["mine"]
        assert again(Trajectory(response="4")).reward == pytest.approx(2 * 6 / 9)
        assert server.asked[0].headers["authorization"] == "Bearer sk-of-the-other-side"
        assert again.usage.requests == 1
        assert judge.usage.requests == 0


def test_a_judge_with_a_key_of_its_own_is_not_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = LLMJudge("judge", api_key=KEY)
    with pytest.raises(ConfigError) as caught:
        pickle.dumps(judge)
    assert str(caught.value) == (
        "this judge got its key as an argument, and keys are never pickled: "
        "put it into the environment variable OPENAI_API_KEY, and leave api_key out"
    )
    with pytest.raises(TypeError, match="a key is not to be pickled"):
        pickle.dumps(vars(judge))
    assert copy.deepcopy(judge) is judge
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert KEY.encode() not in pickle.dumps(judge)


def test_a_pickled_judge_says_that_its_key_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    pickled = pickle.dumps(LLMJudge("judge"))
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ConfigError, match="there is no key for 'judge'"):
        pickle.loads(pickled)


def test_pieces_of_a_key_are_scrubbed_and_short_ones_are_left() -> None:
    secret = Secret("sk/1234567890abcdef")
    assert secret.scrub("sk/1234567890abcdef sk%2F1234567890abcdef sk/1234567890a sk/12") == (
        "<secret> <secret> <secret> sk/12"
    )
    assert Secret("EMPTY").scrub("EMPTY") == "EMPTY"
    assert Secret("").scrub("a") == "a"
    assert (repr(secret), str([secret])) == ("<secret>", "[<secret>]")


ABSENT = """
import sys
import turngym.envs.rewards.judge.llm_judge as judge
assert "openai" not in sys.modules, "it is loaded when the first judge starts"
sys.modules["openai"] = None  # as where it isn't installed
try:
    judge.LLMJudge("judge", api_key="x")
except judge.ConfigError as error:
    print(error)
"""


def test_without_openai_the_extra_is_named() -> None:
    result = subprocess.run([sys.executable, "-c", ABSENT], capture_output=True, text=True, check=True)
    assert result.stdout == "a judge needs the package openai: pip install 'turngym[judge]'\n"
