"""Coroutines run together, whose errors come out as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def run_together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at the same time; the results in their order.

    Where one raises, the others are cancelled, and the first error is raised itself, not in a group.
    """
    try:
        async with asyncio.TaskGroup() as siblings:
            tasks = [siblings.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group.exceptions[0].__cause__
    return [task.result() for task in tasks]
