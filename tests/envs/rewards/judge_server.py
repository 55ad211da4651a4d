"""A server on loopback that answers `/v1/chat/completions` as it is told: well, slowly, wrongly, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from turngym.envs.errors import RewardError
from turngym.envs.rewards import LLMJudge, Trajectory

KEY = "sk-test-4f9a81c07be2d6"
REASON = "Fair."


@dataclass
class Asked:
    """A request as it came in."""

    number: int
    body: dict[str, Any]
    headers: dict[str, str]
    at: float
    has_hung_up: threading.Event = field(default_factory=threading.Event)

    @property
    def text(self) -> str:
        """What the judge is to read: all messages."""
        return "\n".join(message["content"] for message in self.body["messages"])


@dataclass
class Reply:
    """What the server does about a request.

    Attributes:
        status: of the HTTP answer.
        body: sent as JSON, or as it is where it is bytes.
        headers: further ones.
        reason: beside the status.
        wait_for: nothing is sent before this is set; a client that hangs up meanwhile is noticed.
        cut: after so many bytes of the body the connection is closed.
        drips: whether blanks are sent in place of the body, one by one, until the client hangs up.
    """

    status: int = 200
    body: Any = b""
    headers: dict[str, str] = field(default_factory=dict)
    reason: str = "Said"
    wait_for: threading.Event | None = None
    cut: int | None = None
    drips: bool = False


def said(content: Any, finish_reason: str = "stop", usage: Any = None, **message: Any) -> Reply:
    """The model says something."""
    return Reply(
        body={
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "judge",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": finish_reason,
                    "message": {"role": "assistant", "content": content, **message},
                }
            ],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110} if usage is None else usage,
        }
    )


def rated(score: Any, reason: str = REASON) -> Reply:
    """The judge gives a rating."""
    return said(json.dumps({"reason": reason, "score": score}))


def refused(status: int, message: str = "no", **headers: str) -> Reply:
    """The endpoint answers with an error."""
    error = {"error": {"message": message, "type": "error", "code": None}}
    return Reply(status=status, body=error, headers={name.replace("_", "-"): value for name, value in headers.items()})


class JudgeServer:
    """The server, with an event loop and thread of its own. A context manager.

    Attributes:
        answer: what it does about a request; may be set at any time.
        asked: the requests so far, in their order of arrival.
        max_active: how many it worked on at the same time, at most.
    """

    def __init__(self, answer: Callable[[Asked], Reply] | None = None) -> None:
        self.answer = answer or (lambda asked: rated(7))
        self.asked: list[Asked] = []
        self.max_active = 0
        self.url = ""
        self._active = 0
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="judge-server")
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def script(self, *replies: Reply) -> None:
        """Give these answers, one after the other; the last one from then on."""
        start = len(self.asked)
        self.answer = lambda asked: replies[min(asked.number - start, len(replies) - 1)]

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=512)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))))
        assert head[0] == "POST /v1/chat/completions HTTP/1.1", head[0]
        asked = Asked(len(self.asked), body, headers, time.monotonic())
        self.asked.append(asked)
        self._active += 1
        self.max_active = max(self.max_active, self._active)
        try:
            reply = self.answer(asked)
            if reply.wait_for is not None and not await self._waited(reply.wait_for, reader):
                asked.has_hung_up.set()
                return False
        finally:
            self._active -= 1
        return await self._send(reply, writer)

    async def _waited(self, event: threading.Event, reader: asyncio.StreamReader) -> bool:
        """Whether the event came before the client hung up."""
        gone = asyncio.ensure_future(reader.read(1))
        came = asyncio.ensure_future(self._come(event))
        try:
            await asyncio.wait((gone, came), return_when=asyncio.FIRST_COMPLETED)
            return came.done()
        finally:
            for task in (gone, came):
                task.cancel()
            await asyncio.gather(gone, came, return_exceptions=True)

    @staticmethod
    async def _come(event: threading.Event) -> None:
        while not event.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.001)

    @staticmethod
    async def _send(reply: Reply, writer: asyncio.StreamWriter) -> bool:
        is_raw = isinstance(reply.body, bytes)
        body = reply.body if is_raw else json.dumps(reply.body).encode()
        length = 1 << 30 if reply.drips else len(body)
        headers = {"content-type": "application/json", "content-length": str(length), **reply.headers}
        lines = [f"HTTP/1.1 {reply.status} {reply.reason}", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body[: reply.cut])
        await writer.drain()
        while reply.drips:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)
        return reply.cut is None


def judge_of(server: JudgeServer, **arguments: Any) -> LLMJudge:
    """A judge that asks the server, and hardly waits before it asks again."""
    given = {"judge_model": "judge", "api_key": KEY, "base_url": server.url, "backoff_s": 0.001, **arguments}
    return LLMJudge(**given)


async def error_of(judge: LLMJudge, response: str = "4") -> str:
    """What a judge's failure says."""
    with pytest.raises(RewardError) as caught:
        await judge(Trajectory(prompt="2 + 2?", response=response))
    assert caught.value.__cause__ is None, "nothing that may hold the key is chained to it"
    assert caught.value.__context__ is None
    return str(caught.value)
