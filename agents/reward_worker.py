"""The parent's end of one worker process for a user's reward file."""

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

from ..envs.errors import ConfigError, InvalidRewardError, RewardError
from ..envs.rewards.types import RewardOutput
from .reward_worker_process import Hello, PlainOutput, Problem, RewardCall
from .wire import Answer, Unframer, frame
from .workers import describe_end, kill

START_S = 600.0
"""How long a worker process may take to start and to load the file, which may load a model."""

PING_S = 2.0
"""How long a worker's event loop may stay silent after a call was given up."""

_COMMAND = (
    "import sys; sys.path[:] = {path!r}; "
    "from turngym.agents.reward_worker_process import main; main({socket}, {marker})"
)


class BystanderLostError(Exception):
    """The process of a call is lost, and another call is to blame."""


class RewardWorker:
    """The parent's end of one worker process. Made by `start`.

    Attributes:
        hello: what the process says of the file's reward.
        is_lost: whether the process is gone.
    """

    hello: Hello

    def __init__(self, process: subprocess.Popen[bytes], marker: mmap.mmap) -> None:
        self.is_lost = False
        self._process = process
        self._marker = marker
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._blamed = 0
        self._check: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    async def start(cls, setup: bytes) -> RewardWorker:
        """Start a process and wait until it has loaded the file.

        Raises:
            ConfigError: the file can't be used.
            RewardError: the process died, or took too long.
        """
        ours, process, marker = _spawn()
        worker = cls(process, marker)
        try:
            reader, worker._writer = await asyncio.open_unix_connection(sock=ours)
            worker._reading = asyncio.create_task(worker._read(reader))
            async with asyncio.timeout(START_S):
                worker.hello = pickle.loads(await worker._ask(0, setup))
        except BaseException as error:
            await worker.end()
            if isinstance(error, _Failed):
                raise ConfigError(error.problem.message) from None
            if isinstance(error, TimeoutError):
                raise RewardError(f"a worker process didn't load the file within {START_S:g} s") from None
            if isinstance(error, _Lost):
                raise RewardError(f"a worker process {error} while it loaded the file") from None
            raise
        return worker

    def next_number(self) -> int:
        """A number that no other call of this process has."""
        return next(self._numbers)

    async def score(self, call_id: int, trajectories: bytes) -> list[RewardOutput | RewardError]:
        """Have the process score pickled trajectories."""
        if self.is_lost:
            raise BystanderLostError
        try:
            answer = await self._ask(call_id, frame(RewardCall(call_id, "score", trajectories)))
        except _Failed as failed:
            raise _error_of(failed.problem) from None
        except _Lost as lost:
            raise RewardError(f"its worker process {lost} in {self.hello.label}") from None
        return [_error_of(o) if isinstance(o, Problem) else _output_of(o) for o in pickle.loads(answer)]

    async def give_up(self, call_id: int) -> None:
        """Stop a call: cancel it where that is possible, else kill the process.

        Raises:
            BystanderLostError: the process had to be killed because of another call.
        """
        if self.is_lost:
            return
        if not self.hello.is_async:
            await self._bury("was killed")
            return
        self._send(frame(RewardCall(call_id, "cancel")))
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._ping())
        await asyncio.wait([self._check])
        if self.is_lost and self._blamed not in (0, call_id):
            raise BystanderLostError

    async def end(self) -> None:
        """Kill the process, and wait until nothing of it is left."""
        await self._bury("was ended")
        if self._check is not None:
            await asyncio.wait([self._check])
        if self._reading is not None and self._writer is not None:
            await asyncio.wait([self._reading])
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()

    def abandon(self) -> None:
        """Kill the process from another event loop: its own is gone."""
        if not self.is_lost:
            self.is_lost = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    async def _ask(self, call_id: int, message: bytes) -> bytes:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = answer
        self._send(message)
        try:
            return await answer
        finally:
            del self._waiting[call_id]

    def _send(self, message: bytes) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(message)

    async def _ping(self) -> None:
        call_id = next(self._numbers)
        try:
            async with asyncio.timeout(PING_S):
                await self._ask(call_id, frame(RewardCall(call_id, "ping")))
        except TimeoutError:
            await self._bury("was killed because its event loop was stuck")
        except (_Lost, BystanderLostError):  # meanwhile
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
        if waiting is None or waiting.done():
            return
        if answer.is_error:
            waiting.set_exception(_Failed(pickle.loads(answer.value)))
        else:
            waiting.set_result(answer.value)

    async def _bury(self, how: str | None = None) -> None:
        """Kill whatever is left of the process, and fail the calls that it didn't answer."""
        if self.is_lost:
            return
        self.is_lost = True
        self._blamed = int.from_bytes(self._marker[:8], sys.byteorder)
        self._marker.close()
        code = None
        try:
            code = await kill(self._process)
        finally:
            if self._writer is not None:
                self._writer.close()
            for call_id, waiting in self._waiting.items():
                if not waiting.done():
                    is_bystander = self._blamed not in (0, call_id)
                    waiting.set_exception(BystanderLostError() if is_bystander else _Lost(how or _end_of(code)))


class _Lost(Exception):  # noqa: N818 - as `_Failed`
    """The process of a call is lost; says how."""


class _Failed(Exception):  # noqa: N818 - it carries what becomes an error
    """A call, or the start, failed in the process."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


def _error_of(problem: Problem) -> RewardError:
    return (InvalidRewardError if problem.is_invalid else RewardError)(problem.message)


def _output_of(plain: PlainOutput) -> RewardOutput:
    return RewardOutput(**plain._asdict())


def _end_of(code: int | None) -> str:
    how = describe_end(code)
    return f"{how}, as when memory runs out," if code == -signal.SIGKILL else how


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
            stdout=2,  # what a file prints goes where our own log goes
            pass_fds=(theirs.fileno(), file.fileno()),
            start_new_session=True,
        )
    return ours, process, marker
