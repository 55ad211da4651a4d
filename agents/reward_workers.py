"""Worker processes for a user's reward file, so that whatever it does costs its own call and nothing else.

A call waits for a free worker; those that wait are served in the order they came. A worker whose reward is a plain
`def` is free when its last call has ended; one whose reward is async takes many calls at once. A call that overruns its
time has its worker killed (an async one: if it can't be cancelled); a worker that is lost is started anew when it is
needed. Calls of other episodes that were lost with it are made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence

from ..envs.errors import ConfigError, RewardError
from ..envs.rewards.types import RewardOutput, Trajectory
from .reward_worker import BystanderLostError, RewardWorker
from .reward_worker_process import Hello, RewardSetup
from .wire import dumps, frame

MAX_AT_ONCE = 64
"""How many calls of an async reward one worker takes at the same time."""

MAX_ATTEMPTS = 3
"""How often a call is made that was lost because of others."""


class RewardWorkers:
    """A fixed number of worker processes that hold the same file, each started anew when it is lost.

    Args:
        setup: names the file.
        timeout_s: seconds that one call may take from when a worker begins with it; infinity sets no limit.

    Attributes:
        is_closed: whether they were ended for good.
    """

    def __init__(self, setup: RewardSetup, *, timeout_s: float) -> None:
        self.setup = setup
        self.num_restarts = 0
        self.timeout_s = timeout_s
        self._message = frame(setup)
        self._hello: Hello | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_closed = False
        self._places: list[_Place] = []
        self._starting = asyncio.Lock()
        self._free: asyncio.Queue[_Place] = asyncio.Queue()

    async def start(self) -> Hello:
        """Start the processes that were never started.

        Returns:
            What the file's reward is.

        Raises:
            ConfigError: the file can't be loaded, or holds no reward; the message is the file's.
            RewardError: a process can't start, or the workers are closed.
        """
        self._begin()
        async with self._starting:
            if self._hello is None:
                outcomes = await asyncio.gather(*map(self._worker_at, self._places), return_exceptions=True)
                for outcome in outcomes:
                    if isinstance(outcome, BaseException):
                        await self._end_all()
                        raise outcome
                first = self._places[0].worker
                assert first is not None
                self._hello = first.hello
                for _ in range(MAX_AT_ONCE if first.hello.is_async else 1):
                    for place in self._places:
                        self._free.put_nowait(place)
        return self._hello

    async def score(self, trajectories: Sequence[Trajectory]) -> list[RewardOutput | RewardError]:
        """Score trajectories with one call: a whole group where the reward sees groups, else a single one.

        Raises:
            InvalidRewardError: the reward broke its contract.
            RewardError: it failed, took too long, or took its process along.
        """
        await self.start()
        try:
            request = dumps(list(trajectories))
        except Exception as error:  # pickle raises whatever the columns' own methods raise
            raise RewardError(f"the trajectories can't be sent to a worker process: {error}") from error
        place = await self._free.get()
        try:
            for _ in range(MAX_ATTEMPTS):
                with contextlib.suppress(BystanderLostError):
                    return await self._score_at(place, request)
        finally:
            self._free.put_nowait(place)
        raise RewardError(f"its worker process was lost {MAX_ATTEMPTS} times while other calls ran in it")

    async def aclose(self) -> None:
        """End all processes. May be called more than once."""
        self.is_closed = True
        await self._end_all()

    def _begin(self) -> None:
        """Make the places at the first use; they belong to the event loop that runs then."""
        loop = asyncio.get_running_loop()
        if self.is_closed:
            raise RewardError("its worker processes are closed; start the reward again")
        if self._loop not in (None, loop):
            raise RewardError("its worker processes belong to another event loop; close them there, and load it again")
        if self._loop is None:
            self._loop = loop
            self._places = [_Place() for _ in range(self.setup.num_workers)]

    async def _score_at(self, place: _Place, request: bytes) -> list[RewardOutput | RewardError]:
        assert self._hello is not None
        try:
            worker = await self._worker_at(place)
        except ConfigError as error:
            raise RewardError(f"its worker process can't start again: {error}") from error
        call_id = worker.next_number()
        try:
            async with asyncio.timeout(None if math.isinf(self.timeout_s) else self.timeout_s):
                return await worker.score(call_id, request)
        except TimeoutError:
            await worker.give_up(call_id)
            raise RewardError(f"{self._hello.label} took longer than {self.timeout_s:g} s, and was stopped") from None
        except asyncio.CancelledError:
            with contextlib.suppress(BystanderLostError):
                await worker.give_up(call_id)
            raise

    async def _worker_at(self, place: _Place) -> RewardWorker:
        async with place.lock:
            if self.is_closed:
                raise RewardError("its worker processes are closed; start the reward again")
            if place.worker is None or place.worker.is_lost:
                self.num_restarts += place.worker is not None
                place.worker = await RewardWorker.start(self._message)
            return place.worker

    async def _end_all(self) -> None:
        is_elsewhere = self._loop is not asyncio.get_running_loop()
        for place in self._places:
            if is_elsewhere:
                if place.worker is not None:
                    place.worker.abandon()
                continue
            async with place.lock:
                if place.worker is not None:
                    await place.worker.end()
                    place.worker = None


class _Place:
    """Where a worker stands among the others."""

    def __init__(self) -> None:
        self.worker: RewardWorker | None = None
        self.lock = asyncio.Lock()
