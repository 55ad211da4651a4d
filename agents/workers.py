"""Worker processes for environments that must not share the executor's event loop, and the pool that keeps them alive.

A worker whose loop is stuck beyond a call's limit is killed, one that is gone is noticed at once; both are replaced.
The episode whose code was running is named and blamed; the others of that process are bystanders, and refilled at no
cost of theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from ..envs.errors import EnvClosedError, EnvWorkerError, PolicyFault
from ..envs.instance import AgentInstance
from ..envs.types import Action, Observation, StepResult
from .factories import env_name, worker_setup
from .failures import ErrorRecord, RemoteEnvError
from .wire import Answer, Call, Unframer, dumps, frame

START_S = 60.0
"""How long a worker process may take to start and to import the environment."""

PING_S = 2.0
"""How long a worker's event loop may stay silent after a call was given up."""

END_S = 30.0
"""How long a killed process may take to vanish."""

_COMMAND = (
    "import sys; sys.path[:] = {path!r}; from turngym.agents.worker_process import main; main({socket}, {marker})"
)


class WorkerPool:
    """A fixed number of worker processes, each replaced when it is lost.

    Args:
        factory: gives the environment's instances; has to be picklable.
        num_workers: how many processes.
        on_restart: called when a lost process is replaced.

    Raises:
        ConfigError: the factory can't be sent to another process.
    """

    def __init__(
        self,
        factory: Callable[[], AgentInstance],
        num_workers: int,
        *,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = env_name(factory)
        self._setup = frame(worker_setup(factory))
        self._on_restart = on_restart
        self._places = [Place() for _ in range(num_workers)]
        self._is_closed = False

    async def start(self) -> None:
        """Start the processes that were never started.

        Raises:
            EnvWorkerError: one can't start, or can't import the environment.
        """
        fresh = [place for place in self._places if place.worker is None]
        if not fresh:
            return
        for outcome in await asyncio.gather(*map(self._worker_at, fresh), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def make(self) -> AgentInstance:
        """An environment in the process that has the fewest; one that was lost is started anew."""
        place = min(self._places, key=lambda place: place.load)
        place.load += 1
        try:
            return WorkerEnv(self.name, place, await self._worker_at(place))
        except BaseException:
            place.load -= 1
            raise

    @property
    def abandoned_threads(self) -> int:
        """Threads that the processes had left behind when they were last asked."""
        return sum(place.worker.abandoned_threads for place in self._places if place.worker is not None)

    async def _worker_at(self, place: Place) -> Worker:
        """The place's process, started anew where it was lost."""
        async with place.lock:
            if self._is_closed:
                raise EnvClosedError(f"{self.name}: the executor is closed; make a new one")
            if place.worker is None:
                place.worker = await Worker.start(self._setup, self.name)
            elif place.worker.is_lost:
                place.worker = await Worker.start(self._setup, self.name)
                self._on_restart()
            return place.worker

    async def aclose(self) -> None:
        """End all processes. May be called more than once."""
        self._is_closed = True
        for place in self._places:
            async with place.lock:
                if place.worker is not None:
                    await place.worker.end()


class Place:
    """Where a worker stands in its pool."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.load = 0
        self.lock = asyncio.Lock()


class WorkerEnv(AgentInstance):
    """An environment in a worker process."""

    def __init__(self, name: str, place: Place, worker: Worker) -> None:
        self._name = name
        self._place: Place | None = place
        self._worker = worker
        self._instance_id = worker.next_number()

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._name

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode."""
        arguments = {"seed": seed, "options": None if options is None else dict(options)}
        return await self._worker.call("reset", self._instance_id, arguments)

    async def step(self, action: Action) -> StepResult:
        """Play one action."""
        return await self._worker.call("step", self._instance_id, {"action": action})

    async def close(self) -> None:
        """Close the environment; where its process is lost, nothing is left to close."""
        place, self._place = self._place, None
        if place is None:
            return
        place.load -= 1
        try:
            await self._worker.call("close", self._instance_id, {})
        except EnvWorkerError as error:
            if not error.is_bystander:
                raise


class Worker:
    """The parent's end of one worker process. Made by `start`."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], marker: mmap.mmap) -> None:
        self.abandoned_threads = 0
        self.is_lost = False
        self._name = name
        self._process = process
        self._marker = marker
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._blamed = 0
        self._how = "is gone"
        self._check: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    async def start(cls, setup: bytes, name: str) -> Worker:
        """Start a process and wait until it has imported the environment.

        Raises:
            EnvWorkerError: it couldn't.
        """
        ours, process, marker = _spawn()
        worker = cls(name, process, marker)
        try:
            reader, worker._writer = await asyncio.open_unix_connection(sock=ours)
            worker._reading = asyncio.create_task(worker._read(reader))
            async with asyncio.timeout(START_S):
                await worker._ask("start", setup)
        except BaseException as error:
            await worker.end()
            if isinstance(error, RemoteEnvError | EnvWorkerError):
                raise EnvWorkerError(f"{name}: a worker process can't start: {error}") from error
            if isinstance(error, TimeoutError):
                raise EnvWorkerError(f"{name}: a worker process didn't start within {START_S:g} s") from None
            raise
        return worker

    def next_number(self) -> int:
        """A number that no other environment or call of this process has."""
        return next(self._numbers)

    async def call(self, method: Literal["reset", "step", "close"], instance_id: int, arguments: Any) -> Any:
        """Call a method of an environment in the process.

        Raises:
            RemoteEnvError: the environment raised.
            PolicyFault: it blames the policy.
            EnvWorkerError: the process is lost.
        """
        if self.is_lost:
            raise self._lost(method, is_bystander=True)
        call_id = next(self._numbers)
        message = frame(Call(call_id, method, instance_id, dumps(arguments)))
        try:
            return pickle.loads(await self._ask(method, message, call_id))
        except asyncio.CancelledError:
            await self._give_up(call_id)
            if self.is_lost and self._blamed not in (0, call_id):
                raise self._lost(method, is_bystander=True) from None
            raise

    async def end(self) -> None:
        """Kill the process, and wait until nothing of it is left."""
        await self._bury()
        if self._check is not None:
            await asyncio.wait([self._check])
        if self._reading is not None and self._writer is not None:
            await self._reading
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()

    async def _ask(self, method: str, message: bytes, call_id: int = 0) -> bytes:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = _Waiting(method, answer)
        self._send(message)
        try:
            return await answer
        finally:
            del self._waiting[call_id]

    def _send(self, message: bytes) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(message)

    async def _give_up(self, call_id: int) -> None:
        """Cancel a call, and kill the process where its loop gives no sign of life."""
        if self.is_lost:
            return
        self._send(frame(Call(call_id, "cancel")))
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._ping())
        await asyncio.wait([self._check])

    async def _ping(self) -> None:
        call_id = next(self._numbers)
        try:
            async with asyncio.timeout(PING_S):
                answer = await self._ask("ping", frame(Call(call_id, "ping")), call_id)
            self.abandoned_threads = pickle.loads(answer)
        except TimeoutError:
            await self._bury(was_stuck=True)
        except EnvWorkerError:  # lost meanwhile
            pass

    async def _read(self, reader: asyncio.StreamReader) -> None:
        unframer = Unframer()
        try:
            while data := await reader.read(1 << 16):
                for answer in unframer.feed(data):
                    self._take(answer)
        except ConnectionError:
            pass
        await self._bury()

    def _take(self, answer: Answer) -> None:
        waiting = self._waiting.get(answer.call_id)
        if waiting is None or waiting.answer.done():
            return
        if answer.is_error:
            waiting.answer.set_exception(_error_of(pickle.loads(answer.value)))
        else:
            waiting.answer.set_result(answer.value)

    async def _bury(self, *, was_stuck: bool = False) -> None:
        """Kill whatever is left of the process, and fail the calls that it didn't answer."""
        if self.is_lost:
            return
        self.is_lost = True
        self.abandoned_threads = 0
        self._blamed = int.from_bytes(self._marker[:8], sys.byteorder)
        self._marker.close()
        code = None
        try:
            code = await kill(self._process)
        finally:
            self._how = "was killed because its event loop was stuck" if was_stuck else describe_end(code)
            if self._writer is not None:
                self._writer.close()
            for call_id, (method, answer) in self._waiting.items():
                if not answer.done():
                    answer.set_exception(self._lost(method, is_bystander=self._blamed not in (0, call_id)))

    def _lost(self, method: str, *, is_bystander: bool) -> EnvWorkerError:
        whose = "while another episode's code ran" if is_bystander else f"in {method}"
        return EnvWorkerError(f"{self._name}: the episode's worker process {self._how} {whose}", is_bystander)


class _Waiting(NamedTuple):
    method: str
    answer: asyncio.Future[bytes]


def _error_of(record: ErrorRecord) -> Exception:
    if record.policy_reward is not None:
        return PolicyFault(record.message, record.policy_reward)
    return RemoteEnvError(record)


def _spawn() -> tuple[socket.socket, subprocess.Popen[bytes], mmap.mmap]:
    """A new process in a session of its own, our end of its socket, and the memory that it shares."""
    ours, theirs = socket.socketpair()
    with theirs, tempfile.TemporaryFile() as file:
        file.truncate(8)
        marker = mmap.mmap(file.fileno(), 8)
        command = _COMMAND.format(path=sys.path, socket=theirs.fileno(), marker=file.fileno())
        process = subprocess.Popen(
            [sys.executable, "-c", command],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), file.fileno()),
            start_new_session=True,
        )
    return ours, process, marker


async def kill(process: subprocess.Popen[bytes]) -> int | None:
    """End a process and whatever it started in its group, and give its exit code."""
    try:  # before it is reaped, so that its number is no other's
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for _ in range(int(END_S / 0.005)):
        if process.poll() is not None:
            break
        await asyncio.sleep(0.005)
    return process.returncode


def describe_end(code: int | None) -> str:
    """How a process ended, from its exit code."""
    if code is None:
        return "is gone"
    return f"died of signal {-code}" if code < 0 else f"ended with exit code {code}"
