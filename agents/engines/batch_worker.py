"""The thread on which an embedded engine works, and how requests get there and back."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ...envs.errors import EngineError
from ..engine import GenerateRequest, Generation
from .request_queue import PendingRequest, RequestQueue


class BatchWorker:
    """Runs batches of requests one after another on a daemon thread of its own.

    Callers may live on any event loop. A batch that fails takes only its own requests with it.

    Args:
        queue: decides which requests run together.
        run: answers one batch, on the thread; its results are in the order of the requests.
        name: the thread's name.
    """

    def __init__(
        self, queue: RequestQueue, run: Callable[[Sequence[PendingRequest]], list[Generation]], *, name: str
    ) -> None:
        self._queue = queue
        self._run = run
        self._name = name
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._running: list[PendingRequest] = []
        self._calls: list[tuple[Callable[[], None], asyncio.Future[None]]] = []
        self._closers: list[asyncio.Future[None]] = []
        self._num_arrivals = 0
        self._is_settled = False
        self._is_closed = False

    async def submit(self, request: GenerateRequest, *, max_tokens: int, seed: int) -> Generation:
        """Wait for the request's turn, and for its answer. Cancelling the call drops the request."""
        future = asyncio.get_running_loop().create_future()
        pending = PendingRequest(request=request, max_tokens=max_tokens, seed=seed, future=future)
        with self._condition:
            self._start()
            self._queue.add(pending)
            self._num_arrivals += 1
            arrival = self._num_arrivals
            self._is_settled = False
        try:
            await asyncio.sleep(0)  # who asks in the same turn of the event loop joins the batch
            self._settle(arrival)
            return await future
        finally:
            with self._condition:
                if not self._queue.remove(pending):
                    pending.is_dropped = True
            self._settle(arrival)

    async def between_batches(self, function: Callable[[], None]) -> None:
        """Call a function on the thread while no batch runs. Its errors are raised here."""
        future = asyncio.get_running_loop().create_future()
        with self._condition:
            self._start()
            self._calls.append((function, future))
            self._condition.notify()
        await future

    async def close(self) -> None:
        """Fail what waits or runs with `EngineError`, and end the thread. May be called more than once."""
        with self._condition:
            self._is_closed = True
            thread = self._thread
            if thread is None:
                return
            ended = asyncio.get_running_loop().create_future()
            self._closers.append(ended)
            for pending in self._running:
                pending.is_dropped = True
            self._condition.notify()
        await ended
        thread.join()

    def episode_begins(self, episode_id: str) -> None:
        """The episode is live from now on."""
        with self._condition:
            self._queue.begin(episode_id)

    def episode_ends(self, episode_id: str) -> None:
        """The episode asks for nothing more."""
        with self._condition:
            self._queue.end(episode_id)
            self._condition.notify()

    def _start(self) -> None:
        if self._is_closed:
            raise EngineError("the engine is closed; make a new one")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _settle(self, arrival: int) -> None:
        """Let a batch run, unless a later request still gathers company."""
        with self._condition:
            if arrival == self._num_arrivals:
                self._is_settled = True
                self._condition.notify()

    def _has_work(self) -> bool:
        return self._is_closed or bool(self._calls) or (self._is_settled and self._queue.is_ready())

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(self._has_work)
                if self._is_closed:
                    break
                calls, self._calls = self._calls, []
                batches = [] if calls else self._queue.take()
                self._running = [pending for batch in batches for pending in batch]
            for function, future in calls:
                _resolve([_outcome_of(function, future)])
            for batch in batches:
                self._answer(batch)
        self._end()

    def _answer(self, batch: Sequence[PendingRequest]) -> None:
        live = [pending for pending in batch if not pending.is_dropped]
        if not live:
            return
        try:
            outcomes: list[Any] = list(self._run(live))
        except Exception as error:  # noqa: BLE001 - the engine goes on; the callers are told
            outcomes = [_batch_error(error, len(live)) for _ in live]
        if not self._is_closed:
            _resolve([(pending.future, outcome) for pending, outcome in zip(live, outcomes, strict=True)])

    def _end(self) -> None:
        closed = "the engine was closed before it answered"
        with self._condition:
            futures = [p.future for p in (*self._running, *self._queue.clear())]
            futures += [future for _, future in self._calls]
            _resolve([(future, EngineError(closed)) for future in futures])
            _resolve([(future, None) for future in self._closers])
            self._thread = None


def _batch_error(error: Exception, num_rows: int) -> EngineError:
    wrapped = EngineError(f"a batch of {num_rows} requests failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _outcome_of(function: Callable[[], None], future: asyncio.Future[None]) -> tuple[asyncio.Future[None], Any]:
    try:
        return future, function()
    except Exception as error:  # noqa: BLE001 - raised where the function was handed in
        return future, error


def _resolve(outcomes: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    """Give futures their results or exceptions, each on its own event loop."""
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
