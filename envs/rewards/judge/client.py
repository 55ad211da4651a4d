"""Asks an OpenAI-compatible endpoint: retries, limits of rate and concurrency, connections, and what it took."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

from asyncio_throttle.throttler import Throttler

from ...errors import RewardError
from .config import JudgeConfig, JudgeUsage
from .library import Library, check_installed, loaded
from .prompt import Messages
from .reply import VERDICT_SCHEMA, Verdict, completion_of
from .secrets import Secret, keep_out_of_logs
from .trouble import Trouble, trouble_of

logger = logging.getLogger("turngym.rewards")

RESPONSE_FORMATS: tuple[dict[str, Any] | None, ...] = (
    {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": VERDICT_SCHEMA}},
    {"type": "json_object"},
    None,
)
"""From the strictest on. An endpoint that refuses one is asked with the next."""

RETRY_HINT = "\n\nAn earlier reply could not be used, because it was not this JSON object alone."


class JudgeClient:
    """Asks one model of one endpoint, from any number of event loops, one after the other or at the same time.

    Connections are open while a question of their loop is under way, and no longer, so that nothing is left behind
    where a loop ends. The rate is limited over all loops, the concurrency in each.

    Args:
        config: how the endpoint is asked.
        secret: the key; empty for an endpoint that needs none.
        key_hint: where the key comes from, for messages.

    Raises:
        ConfigError: `openai` isn't installed.
    """

    def __init__(self, config: JudgeConfig, secret: Secret, key_hint: str) -> None:
        check_installed()
        self.config = config
        self._secret = secret
        self._key_hint = key_hint
        self._throttler = None if config.requests_per_minute is None else _Throttler(config.requests_per_minute)
        self._open: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Connections] = weakref.WeakKeyDictionary()
        self._random = random.Random()  # its own: the run's draws stay as they are
        self._dialect = _Dialect()
        self._usage = JudgeUsage()
        self._lock = threading.Lock()

    @property
    def usage(self) -> JudgeUsage:
        """What everything took so far, answers that couldn't be used included."""
        return self._usage

    def add_usage(self, usage: JudgeUsage) -> None:
        """Count what an answer took."""
        with self._lock:
            self._usage += usage

    async def start(self) -> None:
        """Load the library, so that the first question needn't wait for it."""
        await loaded()

    async def ask(self, messages: Messages, read: Callable[[str], Verdict]) -> tuple[Verdict, JudgeUsage]:
        """The verdict on a question, and what it took.

        Args:
            messages: the question.
            read: finds the verdict in an answer; where it raises `RewardError`, the question is asked again.

        Raises:
            RewardError: there was no answer that could be used. It is chained to no other error.
        """
        if not self._secret.is_header:
            raise RewardError(f"the key ({self._key_hint}) has characters that no HTTP header can hold; give another")
        tally = _Tally(self.config)
        try:
            async with self._connected() as connections:
                verdict = await self._ask(_Question(messages, read, connections, tally))
        finally:
            self.add_usage(tally.usage)
        if isinstance(verdict, Trouble):
            raise RewardError(verdict.message)
        return verdict, tally.usage

    async def aclose(self) -> None:
        """Close the connections of this loop, under the questions that use them if there are any."""
        connections = self._open.pop(asyncio.get_running_loop(), None)
        if connections is not None:
            await connections.client.close()

    async def _ask(self, question: _Question) -> Verdict | Trouble:
        config, dialect, retries, hint = self.config, self._dialect, 0, ""
        while True:
            answer = await self._request(question, dialect, hint)
            if not isinstance(answer, Trouble):
                return answer
            if answer.is_refused and (simpler := self._after_refusal(dialect, answer)):
                dialect = simpler
                continue
            if not answer.is_transient:
                return answer
            if retries == config.max_retries:
                return replace(answer, message=f"{answer.message}; asked {retries + 1} times") if retries else answer
            wait_s = answer.wait_after(retries, config.backoff_s, self._random.random())
            retries += 1
            question.tally.add(retries=1)
            logger.debug("judge: %s; retry %d of %d in %.3g s", answer.message, retries, config.max_retries, wait_s)
            hint = RETRY_HINT if answer.is_answered else hint
            if answer.wait_s:
                question.connections.hold_up(wait_s)
            await asyncio.sleep(wait_s)

    async def _request(self, question: _Question, dialect: _Dialect, hint: str) -> Verdict | Trouble:
        """One request, and the verdict that it gave or what went wrong."""
        connections, tally = question.connections, question.tally
        async with connections.semaphore:
            await connections.ready()
            async with connections.line:  # one at a time: the library takes milliseconds to begin a request
                await asyncio.sleep(0)
                if self._throttler is not None:
                    await self._throttler.acquire()
            tally.add(requests=1)
            body = await self._post(connections.client, _with_hint(question.messages, hint), dialect)
        if isinstance(body, Trouble):
            return body
        completion = completion_of(body)
        tally.add(prompt_tokens=completion.prompt_tokens, completion_tokens=completion.completion_tokens)
        trouble = completion.trouble
        if completion.content is not None:
            if not self._dialect.is_confirmed:
                self._dialect = replace(dialect, is_confirmed=True)
            try:
                verdict = question.read(completion.content)
                return replace(verdict, reason=self._secret.scrub(verdict.reason))
            except RewardError as error:
                trouble = str(error)
        return Trouble(
            message=f"{self.config.place}: {self._secret.scrub(trouble)}", is_transient=True, is_answered=True
        )

    async def _post(self, client: Any, messages: Messages, dialect: _Dialect) -> str | Trouble:
        config = self.config
        try:
            async with asyncio.timeout(config.timeout_s):
                reply = await client.chat.completions.with_raw_response.create(
                    model=config.model,
                    messages=messages,
                    temperature=config.temperature,
                    extra_body={**dialect.fields(config.max_tokens), **config.extra_body},
                )
                return reply.text
        except Exception as error:  # noqa: BLE001 - of any class; it may hold the key, so nothing is chained to it
            return trouble_of(
                error, place=config.place, secret=self._secret, timeout_s=config.timeout_s, key_hint=self._key_hint
            )

    def _after_refusal(self, dialect: _Dialect, trouble: Trouble) -> _Dialect | None:
        """How to ask after the endpoint refused a request; None where the way of asking isn't to blame."""
        if not self._dialect.is_confirmed:
            return dialect.simpler(trouble.message)
        return None if dialect.is_like(self._dialect) else self._dialect

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[_Connections]:
        """The connections of this loop: made for the first question under way, closed after the last."""
        library, loop = await loaded(), asyncio.get_running_loop()
        connections = self._open.get(loop)
        if connections is None:
            client = self._client(library, Turns())
            connections = self._open[loop] = _Connections(client, self.config.max_concurrency)
        connections.num_users += 1
        try:
            yield connections
        finally:
            connections.num_users -= 1
            if not connections.num_users:
                if self._open.get(loop) is connections:
                    del self._open[loop]
                await connections.client.close()

    def _client(self, library: Library, turns: Turns) -> Any:
        keep_out_of_logs(self._secret)
        key, config = self._secret.reveal(), self.config
        return library.client(key=key, base_url=config.base_url, timeout_s=config.timeout_s, turn=turns.take)


@dataclass(slots=True)
class _Question:
    messages: Messages
    read: Callable[[str], Verdict]
    connections: _Connections
    tally: _Tally


@dataclass(frozen=True, slots=True)
class _Dialect:
    """The optional fields that an endpoint understands; confirmed once it answered a request with them."""

    format_index: int = 0
    limit_name: str = "max_tokens"
    is_confirmed: bool = False

    def fields(self, max_tokens: int) -> dict[str, Any]:
        response_format = RESPONSE_FORMATS[self.format_index]
        given = {} if response_format is None else {"response_format": response_format}
        return {self.limit_name: max_tokens, **given}

    def simpler(self, refusal: str) -> _Dialect | None:
        if "max_completion_tokens" in refusal and self.limit_name == "max_tokens":
            return replace(self, limit_name="max_completion_tokens")
        if self.format_index + 1 < len(RESPONSE_FORMATS):
            return replace(self, format_index=self.format_index + 1)
        return None

    def is_like(self, other: _Dialect) -> bool:
        return (self.format_index, self.limit_name) == (other.format_index, other.limit_name)


class _Connections:
    """What belongs to one event loop."""

    def __init__(self, client: Any, max_concurrency: int) -> None:
        self.client = client
        self.num_users = 0
        self.semaphore = asyncio.Semaphore(max_concurrency)
        self.line = asyncio.Lock()
        self._not_before = 0.0

    def hold_up(self, wait_s: float) -> None:
        """Send nothing for some seconds, as the endpoint wants it."""
        self._not_before = max(self._not_before, asyncio.get_running_loop().time() + wait_s)

    async def ready(self) -> None:
        """Wait until the endpoint takes requests again."""
        while (wait_s := self._not_before - asyncio.get_running_loop().time()) > 0:  # noqa: ASYNC110 - it may be moved
            await asyncio.sleep(wait_s)


class Turns:
    """Has the requests and answers of a burst go on one by one, with turns of everybody else between them."""

    def __init__(self) -> None:
        self._line = asyncio.Lock()

    async def take(self, _: Any) -> None:
        """Wait for one's turn."""
        async with self._line:
            await asyncio.sleep(0)


class _Throttler(Throttler):
    """Requests begin evenly: those of one second, or the only one of a longer time, and never more."""

    def __init__(self, requests_per_minute: float) -> None:
        count = max(1, int(requests_per_minute // 60))
        super().__init__(rate_limit=count, period=count * 60 / requests_per_minute)
        self._lock = threading.Lock()

    def flush(self) -> None:
        with self._lock:  # loops in several threads may share it
            super().flush()


class _Tally:
    """Adds up what one answer takes."""

    def __init__(self, config: JudgeConfig) -> None:
        self.usage = JudgeUsage()
        self._prices = config.price_per_million

    def add(self, *, prompt_tokens: int = 0, completion_tokens: int = 0, requests: int = 0, retries: int = 0) -> None:
        cost = (prompt_tokens * self._prices[0] + completion_tokens * self._prices[1]) / 1e6
        self.usage += JudgeUsage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            requests=requests,
            retries=retries,
            cost=cost,
        )


def _with_hint(messages: Messages, hint: str) -> Messages:
    return [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + hint}] if hint else messages
