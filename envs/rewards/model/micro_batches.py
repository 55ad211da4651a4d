"""Calls that come at the same time, answered together on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from ...errors import RewardError

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Answers: TypeAlias = Iterator[tuple[int, Answer | Exception]]
"""The place of an item among those that were handed over, and what it came to; in any order, as they get ready."""


@dataclass(slots=True, eq=False)
class _Call(Generic[Item]):
    item: Item
    future: asyncio.Future[Any]


class MicroBatcher(Generic[Item, Answer]):
    """Answers calls of any event loop on one daemon thread.

    While the thread works, calls wait; then all that wait are handed over together. Where it is idle, a call is handed
    over at the end of the event loop's turn, together with the others of that turn. A call that is cancelled while it
    waits is left out; one that is cancelled later costs its batch nothing.

    Args:
        answer: answers the items that it gets, on the thread; what it raises is the answer to those still open.
        name: the thread's name.
        on_end: called on the thread when it ends.
    """

    def __init__(
        self, answer: Callable[[Sequence[Item]], Answers[Answer]], *, name: str, on_end: Callable[[], None]
    ) -> None:
        self._answer = answer
        self._name = name
        self._on_end = on_end
        self._condition = threading.Condition(threading.RLock())  # a finalizer may close it in the thread that has it
        self._thread: threading.Thread | None = None
        self._waiting: list[_Call[Item]] = []
        self._closers: list[asyncio.Future[None]] = []
        self._is_woken = False
        self._is_closed = False

    async def submit(self, item: Item) -> Answer:
        """Wait for the answer to an item.

        Raises:
            RewardError: the batcher is closed, or is closed before the answer.
        """
        loop = asyncio.get_running_loop()
        call = _Call(item, loop.create_future())
        with self._condition:
            if self._is_closed:
                raise RewardError(_CLOSED)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._waiting.append(call)
        loop.call_soon(self._wake)  # after every task that is ready in this turn
        return await call.future

    def close(self) -> None:
        """Fail what waits, and let the thread end after what it is at. May be called more than once."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()

    async def closed(self) -> None:
        """Wait until the thread has ended, after `close`."""
        with self._condition:
            thread = self._thread
            if thread is None:
                return
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._closers.append(ended)
        await ended
        thread.join()

    def _wake(self) -> None:
        with self._condition:
            self._is_woken = True
            self._condition.notify()

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_closed or self._is_woken)
                if self._is_closed:
                    break
                calls, self._waiting, self._is_woken = self._waiting, [], False
            calls = [call for call in calls if not call.future.cancelled()]
            if calls:
                self._serve(calls)
        self._on_end()
        with self._condition:
            waiting, self._waiting, self._thread = self._waiting, [], None
            outcomes = [(call.future, RewardError(_CLOSED)) for call in waiting]
            resolve([*outcomes, *((future, None) for future in self._closers)])

    def _serve(self, calls: Sequence[_Call[Item]]) -> None:
        open_calls = dict(enumerate(calls))
        try:
            for place, outcome in self._answer([call.item for call in calls]):
                resolve([(open_calls.pop(place).future, outcome)])
        except BaseException as error:  # noqa: BLE001 - the thread goes on; the callers are told
            resolve([(call.future, copied(error)) for call in open_calls.values()])


_CLOSED = "the reward was closed before it answered"


def copied(error: BaseException) -> Exception:
    """An error of our own once more, for one caller of several: tracebacks would pile up on a shared one."""
    again = (
        type(error)(*error.args) if isinstance(error, RewardError) else RewardError(f"{type(error).__name__}: {error}")
    )
    again.__cause__ = error
    return again


def resolve(outcomes: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    """Give futures their results or exceptions, each on its own event loop. From any thread."""
    by_loop = defaultdict(list)
    for future, outcome in outcomes:
        by_loop[future.get_loop()].append((future, outcome))
    for loop, group in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set, group)
        except RuntimeError:  # the loop is closed: nobody waits there any more
            continue


def _set(outcomes: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def pack(lengths: Sequence[int], *, max_rows: int, max_tokens: int, equal_lengths: bool = False) -> Iterator[list[int]]:
    """Rows in batches, the longest first, so that little is padded.

    >>> list(pack([3, 9, 4], max_rows=2, max_tokens=100))
    [[1, 2], [0]]

    Args:
        lengths: [rows] tokens of each row.
        max_rows: most rows in a batch.
        max_tokens: most tokens in a batch, padding included; a longer row is alone.
        equal_lengths: whether a batch may hold rows of one length only.

    Yields:
        The rows of a batch, by their places.
    """
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        longest = lengths[batch[0]] if batch else 0
        is_full = len(batch) == max_rows or longest * (len(batch) + 1) > max_tokens
        if batch and (is_full or (equal_lengths and lengths[row] != longest)):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
