"""Rewards over HTTP, against real servers on loopback that answer well, slowly, wrongly or not at all."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from turngym.agents import RemoteReward
from turngym.envs.errors import ConfigError, InvalidRewardError, RewardError
from turngym.envs.rewards import RewardOutput, Trajectory, score_group

pytestmark = pytest.mark.usefixtures("no_tasks_left")

GROUP = [Trajectory(prompt="2 + 2 = ", response=text, label=label) for text, label in (("4", "4"), ("five", 4))]


class RewardServer(ThreadingHTTPServer):
    """Answers with what `behaviours` say, in turn; the last of them for ever."""

    daemon_threads = True

    def __init__(self, *behaviours: Any) -> None:
        self.behaviours = list(behaviours)
        self.requests: list[Any] = []
        self.arrived = threading.Event()
        self.go_on = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/get_reward"


class _Handler(BaseHTTPRequestHandler):
    server: RewardServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        server.requests.append(json.loads(body))
        server.arrived.set()
        behaviour = server.behaviours.pop(0) if len(server.behaviours) > 1 else server.behaviours[0]
        if behaviour == "waits":
            server.go_on.wait(30)
        if behaviour in ("hangs up", "waits"):
            self.close_connection = True
            return
        status, answer = behaviour if isinstance(behaviour, tuple) else (200, behaviour)
        answer = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


Serve = Callable[..., RewardServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers, and stops them in the end."""
    servers: list[RewardServer] = []

    def serve(*behaviours: Any) -> RewardServer:
        servers.append(RewardServer(*behaviours))
        return servers[-1]

    yield serve
    for server in servers:
        server.go_on.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def closed_port() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngym.agents.remote_reward.BACKOFF_S", 0.0)


async def scored(urls: str | list[str], **settings: Any) -> list[Any]:
    reward = RemoteReward(urls, **settings)
    try:
        return await score_group(reward, GROUP)
    finally:
        await reward.aclose()
        await reward.aclose()


async def test_a_server_gets_the_group_and_gives_rewards_scores_and_logs(serve: Serve) -> None:
    server = serve({"rewards": [1.5, -1], "scores": [1, 0.0], "extra_logs": {"n": 2, "ok": [True, False]}})
    assert await scored(server.url) == [
        RewardOutput(reward=1.5, score=1.0, metadata={"n": 2.0, "ok": 1.0}),
        RewardOutput(reward=-1.0, score=0.0, metadata={"n": 2.0, "ok": 0.0}),
    ]
    assert server.requests == [
        {"query": ["2 + 2 = 4", "2 + 2 = five"], "prompts": ["2 + 2 = ", "2 + 2 = "], "labels": ["4", "4"]}
    ]


async def test_any_text_reaches_the_server(serve: Serve) -> None:
    server = serve({"rewards": [0.0]})
    reward = RemoteReward(server.url)
    text = '\ud800\x00 \u202e🙂 "quoted"' + "x" * 1_000_000
    await reward.compute_rewards([Trajectory(response=text)])
    await reward.aclose()
    assert server.requests[0]["query"] == [text]


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ("hangs up", "RemoteProtocolError: Server disconnected without sending a response."),
        ((500, b"boom\n  at line 1"), "it answered 500: boom at line 1"),
        ((503, b"x" * 500), "it answered 503: " + "x" * 197 + "..."),
        ((429, b"later"), "it answered 429: later"),
        ((302, b""), "it answered 302: "),
        (b"<html>", "its answer is no JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"rewards": [NaN, 1.0]}', "its answer is no JSON: it holds NaN"),
        (b'{"rewards": [1.0, -Infinity]}', "its answer is no JSON: it holds -Infinity"),
        (
            b"[" * 100_000,
            "its answer is no JSON: maximum recursion depth exceeded while decoding a JSON array from a unicode string",
        ),
        (b"\xff\xfe\x00", "its answer is no JSON: "),
        ("waits", "it took longer than 0.3 s"),
    ],
)
async def test_where_a_server_fails_the_next_is_asked_and_where_all_fail_each_is_named(
    serve: Serve, bad: Any, cause: str
) -> None:
    timeout_s = 0.3 if bad == "waits" else 30.0
    failing, good = serve(bad), serve({"rewards": [1.0, 0.0]})
    urls = [failing.url, good.url]
    assert await scored(urls, timeout_s=timeout_s) == [
        RewardOutput(reward=1.0),
        RewardOutput(reward=0.0),
    ]
    assert (len(failing.requests), len(good.requests)) == (1, 1)
    other = serve((502, b"down"))
    outputs = await scored([failing.url, other.url], timeout_s=timeout_s, max_retries=0)
    assert {type(error) for error in outputs} == {RewardError}
    message = str(outputs[0])
    start = f"RemoteReward: no reward server answered: {failing.url}: {cause}"
    assert message.startswith(start)
    assert message.endswith(f"; {other.url}: it answered 502: down")


async def test_a_refused_connection_is_named(closed_port: int) -> None:
    url = f"http://127.0.0.1:{closed_port}"
    first, second = await scored(url, max_retries=1)
    assert (
        str(first)
        == str(second)
        == (f"RemoteReward: no reward server answered (2 times): {url}: ConnectError: All connection attempts failed")
    )


async def test_a_server_that_fails_once_is_asked_again(serve: Serve) -> None:
    server = serve((500, b""), "hangs up", {"rewards": [1.0, 0.0]})
    outputs = await scored(server.url, max_retries=2)
    assert [output.reward for output in outputs] == [1.0, 0.0]
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((404, b"no such page"), "refused the request with 404: no such page"),
        ((422, b'{"detail": "query is missing"}'), 'refused the request with 422: {"detail": "query is missing"}'),
        ({"rewards": [1.0]}, ": rewards is list of 1, and there were 2 responses; it must be [2]"),
        ({"rewards": [[1.0], [2.0]]}, ": rewards is list of 2; it must be [2], one number for each response"),
        ({"rewards": ["1", "2"]}, ": rewards is list of 2; it must be [2], one number for each response"),
        ({"scores": [1.0, 2.0]}, ": it gave a dict of 'scores'; 'rewards' is missing"),
        ("text", ": rewards is str 'text', and there were 2 responses; it must be [2]"),
        (
            {"rewards": [1.0, 2.0], "extra_logs": {"n": [1]}},
            ": extra_logs['n'] is list of 1; it must be a number, or [2], one for each response",
        ),
    ],
)
async def test_what_breaks_the_contract_isnt_tried_again(serve: Serve, bad: Any, message: str) -> None:
    server, other = serve(bad if bad != "text" else b'"text"'), serve({"rewards": [1.0, 0.0]})
    outputs = await scored([server.url, other.url])
    assert {type(error) for error in outputs} == {InvalidRewardError}
    joint = "" if message.startswith(":") else " "
    assert str(outputs[0]) == f"RemoteReward: {server.url}{joint}{message}"
    assert (len(server.requests), len(other.requests)) == (1, 0)


async def test_a_number_too_large_fails_its_own_episode_only(serve: Serve) -> None:
    server = serve(b'{"rewards": [1e999, 0]}')
    first, second = await scored(server.url)
    assert str(first) == f"RemoteReward: {server.url}: reward is inf; it must be finite"
    assert type(first) is RewardError
    assert second == RewardOutput(0.0)


async def test_servers_share_the_work(serve: Serve) -> None:
    servers = [serve({"rewards": [1.0, 0.0]}) for _ in range(3)]
    reward = RemoteReward(",".join(server.url for server in servers))
    for _ in range(6):
        await score_group(reward, GROUP)
    assert [len(server.requests) for server in servers] == [2, 2, 2]
    await asyncio.gather(*(score_group(reward, GROUP) for _ in range(12)))
    assert [len(server.requests) for server in servers] == [6, 6, 6]
    await reward.aclose()


async def test_a_server_that_failed_rests(serve: Serve) -> None:
    failing, good = serve((500, b"")), serve({"rewards": [1.0, 0.0]})
    reward = RemoteReward([failing.url, good.url])
    for _ in range(6):
        await score_group(reward, GROUP)
    await reward.aclose()
    assert (len(failing.requests), len(good.requests)) == (1, 6)


async def test_a_busy_server_is_spared(serve: Serve) -> None:
    slow, quick = serve("waits", {"rewards": [1.0, 0.0]}), serve({"rewards": [1.0, 0.0]})
    reward = RemoteReward([slow.url, quick.url])
    first = asyncio.create_task(score_group(reward, GROUP))
    await asyncio.to_thread(slow.arrived.wait)
    for _ in range(4):
        await score_group(reward, GROUP)
    assert (len(slow.requests), len(quick.requests)) == (1, 4)
    slow.go_on.set()
    assert [output.reward for output in await first if isinstance(output, RewardOutput)] == [1.0, 0.0]
    await reward.aclose()


async def test_a_cancelled_request_leaves_nothing_open(serve: Serve) -> None:
    server = serve("waits", {"rewards": [1.0, 0.0]})
    reward = RemoteReward(server.url)
    task = asyncio.create_task(score_group(reward, GROUP))
    await asyncio.to_thread(server.arrived.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [server.load for server in reward._servers] == [0]
    assert len(await score_group(reward, GROUP)) == 2
    await reward.aclose()


async def test_start_says_who_cant_be_reached(serve: Serve, closed_port: int, caplog: pytest.LogCaptureFixture) -> None:
    closed = f"http://127.0.0.1:{closed_port}/get"
    with pytest.raises(RewardError) as caught:
        await RemoteReward([closed]).start()
    assert str(caught.value) == (
        f"no reward server can be reached: {closed}: ConnectionRefusedError: [Errno 111] Connect call failed "
        f"('127.0.0.1', {closed_port})"
    )
    reward = RemoteReward([serve({"rewards": []}).url, closed])
    with caplog.at_level(logging.WARNING, "turngym.rewards"):
        await reward.start()
        await reward.start()
    assert caplog.messages[0].startswith(f"RemoteReward: 1 of 2 reward servers can't be reached: {closed}: ")
    await reward.aclose()


def test_it_may_be_used_on_one_event_loop_after_another(serve: Serve) -> None:
    reward = RemoteReward(serve({"rewards": [1.0, 0.0]}).url)

    async def use() -> list[Any]:
        try:
            return await score_group(reward, GROUP)
        finally:
            await reward.aclose()

    assert asyncio.run(use()) == asyncio.run(use())


async def test_proxies_of_the_environment_arent_used(
    serve: Serve, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port}")
    assert len(await scored(serve({"rewards": [1.0, 0.0]}).url, max_retries=0)) == 2


async def test_a_secret_in_an_address_is_never_told(closed_port: int) -> None:
    reward = RemoteReward(f"http://me:hunter2@127.0.0.1:{closed_port}/get?key=hunter2", max_retries=0)
    (error, _) = await score_group(reward, GROUP)
    await reward.aclose()
    assert "hunter2" not in f"{error} {error!r} {reward!r} {vars(reward)!r}"
    assert f"http://127.0.0.1:{closed_port}/get: " in str(error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"urls": ""}, "no address of a reward server is given; give http://host:port/path"),
        (
            {"urls": ["localhost:5000"]},
            "the reward server 'localhost:5000' must be an address such as http://host:port/path",
        ),
        (
            {"urls": "ftp://me:pw@host/x?key=1"},
            "the reward server 'host/x' must be an address such as http://host:port/path",
        ),
        ({"urls": "http://host:port/"}, "a reward server's address can't be read: "),
        ({"urls": "http://host", "timeout_s": 0}, "timeout_s=0 must be above 0 seconds; inf sets no limit"),
        ({"urls": "http://host", "max_retries": -1}, "max_retries=-1 must be at least 0"),
    ],
)
def test_what_cant_be_used_is_told_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RemoteReward(**arguments)
    assert str(caught.value).startswith(message)


def test_it_can_be_sent_to_another_process() -> None:
    reward = pickle.loads(pickle.dumps(RemoteReward(["http://a", "http://b"], timeout_s=3.0, max_retries=5, name="rm")))
    assert [server.url for server in reward._servers] == ["http://a", "http://b"]
    assert (reward.timeout_s, reward.max_retries, reward.name) == (3.0, 5, "rm")
