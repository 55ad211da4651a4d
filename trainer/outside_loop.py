"""Calls that run an event loop of their own, also from where one is running already: a notebook, an async program."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def call_outside_loop(function: Callable[[], T]) -> T:
    """Call a function where no event loop is running: here, or else on a thread that this call waits for.

    >>> async def three():
    ...     return 3
    >>> async def notebook():
    ...     return call_outside_loop(lambda: asyncio.run(three()))
    >>> asyncio.run(notebook())
    3
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function()
    with ThreadPoolExecutor(1, thread_name_prefix="turngym-trainer") as thread:
        return thread.submit(function).result()
