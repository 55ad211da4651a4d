"""`await within(awaitable, seconds)`: `asyncio.timeout`, for code that isn't trusted to end when it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

GRACE_S = 5.0
"""Seconds that a cancelled awaitable has to put its things away before it is left where it is."""


class within(Generic[T]):  # noqa: N801 - used as a function
    """Awaits something for at most so many seconds.

    When they are over it is cancelled. Whatever it does then, the awaiting ends in `TimeoutError`: where it catches the
    cancellation and goes on waiting, it is closed after `GRACE_S` and not waited for any more. What never waits costs
    no timer.

    Args:
        awaitable: usually a coroutine; it runs in the task that awaits this.
        seconds: the limit.

    Raises:
        TimeoutError: the awaitable took longer.
        asyncio.CancelledError: somebody else cancelled the task.
    """

    _timer: asyncio.TimerHandle

    def __init__(self, awaitable: Awaitable[T], seconds: float) -> None:
        self._awaitable = awaitable
        self._seconds = seconds
        self._num_cancelled = 0

    @property
    def is_over(self) -> bool:
        """Whether the limit was reached."""
        return self._num_cancelled > 0

    def __await__(self) -> Generator[Any, Any, T]:
        """Drive the awaitable by hand, so that it can be left."""
        inner: Any = self._awaitable.__await__()
        try:
            waits_for = inner.send(None)
        except StopIteration as done:
            return done.value
        task = asyncio.current_task()
        assert task is not None
        num_before = task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._cancel, task)
        result: Any = None
        late: BaseException | None = None
        try:
            result = yield from self._drive(inner, waits_for)
        except (Exception, asyncio.CancelledError) as error:
            if not self.is_over:
                raise
            late = error
        finally:
            self._timer.cancel()
        if not self.is_over:
            return result
        for _ in range(self._num_cancelled):
            task.uncancel()
        if task.cancelling() > num_before:  # somebody else wants the task to end, too
            raise asyncio.CancelledError
        raise TimeoutError from late

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        """Called once when the limit is reached, and once more when the grace is over."""
        self._num_cancelled += 1
        task.cancel()
        if self._num_cancelled == 1:
            self._timer = asyncio.get_running_loop().call_later(GRACE_S, self._cancel, task)

    def _drive(self, inner: Any, waits_for: Any) -> Generator[Any, Any, T]:
        while True:
            try:
                try:
                    sent = yield waits_for
                except BaseException as error:
                    if self._num_cancelled > 1:
                        _close(inner)
                        raise
                    waits_for = inner.throw(error)
                else:
                    waits_for = inner.send(sent)
            except StopIteration as done:
                return done.value


def _close(inner: Any) -> None:
    try:
        inner.close()
    except RuntimeError:  # it ignores even that
        pass
