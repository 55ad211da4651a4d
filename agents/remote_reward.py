"""A reward over HTTP: one or several servers that score groups as a reward file does."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..envs.errors import ConfigError, InvalidRewardError, RewardError
from ..envs.rewards.base import GroupReward
from ..envs.rewards.functions import batch_outputs, query_lists
from ..envs.rewards.types import RewardOutput, Trajectory

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger("turngym.rewards")

BACKOFF_S = 0.5
"""How long to wait before all servers are tried again; doubled each time."""

MAX_BACKOFF_S = 30.0

REST_S = 30.0
"""How long a server that failed is tried after the others."""

MAX_ANSWER_BYTES = 256 * 2**20

_TRANSIENT = (408, 425, 429)
"""Answers below 500 after which another try may go better."""


class RemoteReward(GroupReward):
    """Rewards of a group from a server, as OpenRLHF's reward servers give them.

    The server gets `{"query": [...], "prompts": [...], "labels": [...]}` and answers with `rewards`, and maybe `scores`
    and `extra_logs`, as `batch_outputs` takes them. Of several servers the one with the fewest open requests is asked;
    where it fails, each of the others in turn. They are reached directly: proxies and .netrc of the environment aren't
    used.

    Args:
        urls: one or more addresses; in a string they may be separated by commas.
        timeout_s: seconds that one request may take; infinity sets no limit.
        max_retries: how often all servers are tried again when all have failed.
        name: what messages and metrics call it.

    Raises:
        ConfigError: an address can't be used, or an argument is out of range.
    """

    limits_itself = True

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        timeout_s: float = 120.0,
        max_retries: int = 2,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        given = urls.split(",") if isinstance(urls, str) else list(urls)
        self._servers = [_Server(url.strip()) for url in given if url.strip()]
        if not self._servers:
            raise ConfigError("no address of a reward server is given; give http://host:port/path")
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s={timeout_s} must be above 0 seconds; inf sets no limit")
        if max_retries < 0:
            raise ConfigError(f"max_retries={max_retries} must be at least 0")
        self.timeout_s = timeout_s
        self.max_retries = max_retries
        self._turn = itertools.count()
        self._client: httpx2.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """See whether the servers can be reached; a warning names those that can't.

        Raises:
            RewardError: none can be; the message names each address and cause.
        """
        causes = await asyncio.gather(*(server.cause_of_silence() for server in self._servers))
        silent = [(server, cause) for server, cause in zip(self._servers, causes, strict=True) if cause]
        if len(silent) == len(self._servers):
            raise RewardError(f"no reward server can be reached: {_listed(silent)}")
        if silent:
            logger.warning(
                "%s: %d of %d reward servers can't be reached: %s", self.name, len(silent), len(causes), _listed(silent)
            )

    async def aclose(self) -> None:
        """Close the connections. May be called more than once."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def compute_rewards(self, trajectories: Sequence[Trajectory]) -> list[RewardOutput | RewardError]:
        """What a server gives for the group; an error in the place of a number that isn't finite.

        Raises:
            InvalidRewardError: a server refused the request, or gave the wrong shape.
            RewardError: all servers failed; the message names each address and cause.
        """
        lists = query_lists(trajectories)
        try:
            body = json.dumps({"query": lists["queries"], "prompts": lists["prompts"], "labels": lists["labels"]})
        except ValueError as error:
            raise RewardError(f"the group can't be written as JSON: {error}") from error
        failed: list[tuple[_Server, str]] = []
        for attempt in range(self.max_retries + 1):
            if attempt:
                await asyncio.sleep(min(BACKOFF_S * 2 ** (attempt - 1), MAX_BACKOFF_S))
            failed = []
            for server in self._in_turn():
                try:
                    return await self._ask(server, body.encode(), len(trajectories))
                except _Unanswered as cause:
                    server.rest_until = asyncio.get_running_loop().time() + REST_S
                    failed.append((server, str(cause)))
        tries = f" ({self.max_retries + 1} times)" if self.max_retries else ""
        raise RewardError(f"no reward server answered{tries}: {_listed(failed)}")

    def _in_turn(self) -> list[_Server]:
        """The servers in the order in which they are tried: those at rest last, then by load, then in rotation."""
        start = next(self._turn) % len(self._servers)
        rotated = self._servers[start:] + self._servers[:start]
        time = asyncio.get_running_loop().time()
        return sorted(rotated, key=lambda server: (server.rest_until > time, server.load))

    async def _ask(self, server: _Server, body: bytes, count: int) -> list[RewardOutput | RewardError]:
        server.load += 1
        try:
            status, text = await self._post(server, body)
        finally:
            server.load -= 1
        if status >= 500 or status in _TRANSIENT or 300 <= status < 400:
            raise _Unanswered(f"it answered {status}: {_beginning(text)}")
        if status >= 400:
            raise InvalidRewardError(f"{server} refused the request with {status}: {_beginning(text)}")
        try:
            given = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise _Unanswered(f"its answer is no JSON: {error}") from error
        try:
            outputs = batch_outputs(given, count)
        except RewardError as error:
            raise type(error)(f"{server}: {error}") from error
        server.rest_until = 0.0
        return [type(o)(f"{server}: {o}") if isinstance(o, RewardError) else o for o in outputs]

    async def _post(self, server: _Server, body: bytes) -> tuple[int, bytes]:
        import httpx2

        limit_s = None if math.isinf(self.timeout_s) else self.timeout_s
        headers = {"content-type": "application/json"}
        answer = bytearray()
        try:
            async with (
                asyncio.timeout(limit_s),
                self._connections().stream("POST", server.url, content=body, headers=headers) as response,
            ):
                async for piece in response.aiter_bytes():
                    answer += piece
                    if len(answer) > MAX_ANSWER_BYTES:
                        raise _Unanswered(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
                return response.status_code, bytes(answer)
        except TimeoutError:
            raise _Unanswered(f"it took longer than {self.timeout_s:g} s") from None
        except httpx2.HTTPError as error:
            raise _Unanswered(f"{type(error).__name__}: {error}".rstrip(": ")) from error

    def _connections(self) -> httpx2.AsyncClient:
        """The connections of the running event loop; those of one that is gone are left behind."""
        import httpx2

        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
            self._client = httpx2.AsyncClient(timeout=None, limits=limits, trust_env=False)
            self._loop = loop
        return self._client

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, ([server.url for server in self._servers], self.timeout_s, self.max_retries, self.name)


class _Unanswered(Exception):  # noqa: N818 - the next server is tried
    """A server failed in a way that another try may not; says how."""


class _Server:
    """An address, and how busy it is."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"a reward server's address can't be read: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            shown = url.rpartition("@")[2].partition("?")[0]
            raise ConfigError(f"the reward server {shown!r} must be an address such as http://host:port/path")
        self.url = url
        self.host = parts.hostname
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.load = 0
        self.rest_until = 0.0

    def __str__(self) -> str:
        """The address without what may be a secret: user, password and query."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()

    async def cause_of_silence(self) -> str:
        """Why it takes no connection, or nothing."""
        try:
            async with asyncio.timeout(10.0):
                _, writer = await asyncio.open_connection(self.host, self.port)
        except TimeoutError:
            return "it took longer than 10 s to connect"
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        writer.close()
        return ""


def _listed(causes: Sequence[tuple[_Server, str]]) -> str:
    return "; ".join(f"{server}: {cause}" for server, cause in causes)


def _beginning(text: bytes) -> str:
    said = " ".join(text[:1000].decode("utf-8", "replace").split())
    return said if len(said) <= 200 else said[:197] + "..."


def _refuse(constant: str) -> Any:
    raise ValueError(f"it holds {constant}")


def _rebuild(urls: list[str], timeout_s: float, max_retries: int, name: str) -> RemoteReward:
    return RemoteReward(urls, timeout_s=timeout_s, max_retries=max_retries, name=name)
