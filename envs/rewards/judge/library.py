"""The `openai` library, which takes half a second to load: on a thread, so that no event loop waits for it."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ...errors import ConfigError
from ...threads import run_in_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The library, and one TLS context for all clients.

    Attributes:
        openai: the module.
        tls: the context, which takes as long to make as a request.
    """

    openai: Any
    tls: Any

    def client(
        self, *, key: str, base_url: str, timeout_s: float, turn: Callable[[Any], Awaitable[None]] | None = None
    ) -> Any:
        """A client that neither asks again nor follows redirections by itself.

        Args:
            key: the key; empty for an endpoint that needs none.
            base_url: of the endpoint.
            timeout_s: seconds that a request may take.
            turn: awaited before a request is sent, and when its answer begins.
        """
        hooks = [] if turn is None else [turn]
        http = self.openai.DefaultAsyncHttpxClient(
            verify=self.tls,
            timeout=timeout_s,
            follow_redirects=False,
            event_hooks={"request": hooks, "response": hooks},
        )
        return self.openai.AsyncOpenAI(
            api_key=key or "none", base_url=base_url, max_retries=0, timeout=timeout_s, http_client=http
        )


def check_installed() -> None:
    """Look for the library, without loading it.

    Raises:
        ConfigError: it isn't installed.
    """
    if find_spec("openai") is None:
        raise ConfigError("a judge needs the package openai: pip install 'turngym[judge]'")


async def loaded() -> Library:
    """The library, loaded on a thread where it isn't yet: one thread, however many wait for it in this loop."""
    if _load.cache_info().currsize:
        return _load()
    async with _loading.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        return await run_in_thread(_load)


@functools.cache
def _load() -> Library:
    openai = import_module("openai")
    http = openai.DefaultAsyncHttpxClient.__mro__[1].__module__.split(".")[0]  # httpx, or what came after it
    library = Library(openai=openai, tls=import_module(http).create_ssl_context())
    client = library.client(key="", base_url="http://127.0.0.1:1", timeout_s=1.0)
    _ = client.chat.completions.with_raw_response  # modules that it loads at its first use; nothing is sent
    anyio = import_module("anyio")
    anyio.run(anyio.sleep, 0)  # the same
    return library


_loading: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()
