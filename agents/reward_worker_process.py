"""The inside of a worker process for rewards: a user's file, loaded once, and the calls of its reward.

A thread reads the calls, the main thread answers them, so that time limits which a file sets with signals work. A plain
`def` is called once at a time; calls of an async one share an event loop, and the number of the one whose code runs
stands in memory that the parent sees. When the parent is gone, the process ends with whatever it started.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import math
import mmap
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

from ..envs.errors import InvalidRewardError, RewardError, TurngymError
from ..envs.rewards.base import RewardFunction, is_async, label_of
from ..envs.rewards.combined import CombinedReward, sees_groups
from ..envs.rewards.functions import BatchFunctionReward, FunctionReward, NamedArgumentsReward
from ..envs.rewards.types import RewardOutput, Trajectory, described
from ..envs.user_files import describe_error, load_user_module
from .reward_choice import choose_reward
from .wire import Answer, dumps, frame, messages
from .worker_process import Marked

MAX_METADATA_DEPTH = 8

FUNCTIONS = (FunctionReward, NamedArgumentsReward, BatchFunctionReward)


class RewardSetup(NamedTuple):
    """What a worker process begins with: the file, and how `load_reward_file` was called."""

    path: str
    name: str | None
    real_imports: bool
    num_workers: int


class Hello(NamedTuple):
    """What a worker process says of the file's reward: what the file calls it, and how it wants to be called."""

    label: str
    sees_groups: bool
    is_async: bool
    reward_range: tuple[float, float]


class RewardCall(NamedTuple):
    """Score pickled trajectories; give such a call up; show that the event loop runs."""

    call_id: int
    method: Literal["score", "cancel", "ping"]
    trajectories: bytes = b""


class Problem(NamedTuple):
    """What went wrong: a message, and whether the reward contract is broken."""

    message: str
    is_invalid: bool = False


class PlainOutput(NamedTuple):
    """A `RewardOutput` of nothing but Python's own types, which any process can read."""

    reward: float
    token_rewards: list[float]
    metadata: dict[str, Any]
    score: float | None


class RewardHost:
    """Holds a file's reward and answers calls.

    Args:
        connection: the socket to the parent.
        running: where the number of the running call stands; 0 for none.
        reward: the file's.
        label: what the file calls it.
    """

    def __init__(self, connection: socket.socket, running: memoryview, reward: RewardFunction, label: str) -> None:
        self._connection = connection
        self._running = running
        self._reward = reward
        self._label = label
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def serve(self, calls: Calls, runner: asyncio.Runner) -> None:
        """Answer calls for ever: of a plain `def` one after the other, of an async one all together."""
        reward = self._reward
        runner.run(reward.start())
        is_unscaled = reward.scale == 1 and reward.clip is None
        given = reward.reward_range if is_unscaled else (-math.inf, math.inf)
        hello = Hello(self._label, sees_groups(reward), _is_async(reward), given)
        if hello.is_async:
            runner.run(self._serve_async(calls, hello))
        self._connection.sendall(frame(Answer(0, False, dumps(hello))))
        while True:
            call = calls.waiting.get()
            if call.method == "score":
                self._send(call, self._answer(call, runner))

    async def _serve_async(self, calls: Calls, hello: Hello) -> None:
        loop = asyncio.get_running_loop()
        calls.receive = lambda call: loop.call_soon_threadsafe(self._receive, call)
        self._connection.sendall(frame(Answer(0, False, dumps(hello))))
        await loop.create_future()

    def _receive(self, call: RewardCall) -> None:
        if call.method == "ping":
            self._send(call, [])
        elif call.method == "cancel":
            if call.call_id in self._tasks:
                self._tasks[call.call_id].cancel()
        else:
            task = asyncio.get_running_loop().create_task(self._answer_later(call))
            self._tasks[call.call_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(call.call_id, None))

    def _answer(self, call: RewardCall, runner: asyncio.Runner) -> list[PlainOutput | Problem] | Problem:
        try:
            trajectories = pickle.loads(call.trajectories)
            given = self._call(trajectories)
            if inspect.isawaitable(given):
                given = runner.run(_awaited(given))
            return self._finished(given, len(trajectories))
        except BaseException as error:  # noqa: BLE001 - theirs, of any class
            return self._problem(error)

    async def _answer_later(self, call: RewardCall) -> None:
        try:
            trajectories = pickle.loads(call.trajectories)
            given = await Marked(self._await(trajectories), self._running, call.call_id)
            value = self._finished(given, len(trajectories))
        except BaseException as error:  # noqa: BLE001 - theirs, of any class
            value = self._problem(error)
        self._send(call, value)

    async def _await(self, trajectories: Sequence[Trajectory]) -> Any:
        given = self._call(trajectories)
        return await given if inspect.isawaitable(given) else given

    def _call(self, trajectories: Sequence[Trajectory]) -> Any:
        if sees_groups(self._reward):
            return self._reward.compute_rewards(trajectories)
        return self._reward.compute_reward(*trajectories)

    def _finished(self, given: Any, count: int) -> list[PlainOutput | Problem]:
        reward = self._reward
        outputs = reward.finished_group(given, count) if sees_groups(reward) else [reward.finished(given)]
        return [self._problem(o) if isinstance(o, RewardError) else plain_output(o) for o in outputs]

    def _problem(self, error: BaseException) -> Problem:
        if isinstance(error, RewardError):
            message = str(error).removeprefix(f"{label_of(self._reward)}: ")
            return Problem(message, isinstance(error, InvalidRewardError))
        return Problem(f"{self._label} raised {describe_error(error)}")

    def _send(self, call: RewardCall, value: list[PlainOutput | Problem] | Problem) -> None:
        self._connection.sendall(frame(Answer(call.call_id, isinstance(value, Problem), dumps(value))))


class Calls:
    """What the reading thread does with calls: they wait, until somebody takes them as they come."""

    def __init__(self) -> None:
        self.waiting: SimpleQueue[RewardCall] = SimpleQueue()
        self.receive: Callable[[RewardCall], Any] = self.waiting.put

    def read(self, calls: Iterator[RewardCall]) -> None:
        """Take calls in; when the parent is gone, end everything, however busy the main thread is."""
        for call in calls:
            self.receive(call)
        os.killpg(os.getpid(), signal.SIGKILL)


def plain_output(output: RewardOutput) -> PlainOutput:
    """An output without anything that another process would have to import."""
    return PlainOutput(output.reward, output.token_rewards, _plain(output.metadata, 0), output.score)


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "tolist") and depth < MAX_METADATA_DEPTH:  # arrays and tensors
        return _plain(value.tolist(), depth + 1)
    if isinstance(value, Mapping) and depth < MAX_METADATA_DEPTH:
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth < MAX_METADATA_DEPTH:
        return [_plain(item, depth + 1) for item in value]
    return described(value)


def _is_async(reward: RewardFunction) -> bool:
    """Whether calls of a reward may overlap on an event loop: it is async, or made of such and of what never blocks."""
    if isinstance(reward, CombinedReward):
        parts = list(reward.rewards.values())
        return any(map(_is_async, parts)) and all(_is_async(part) or _is_ours(part) for part in parts)
    return is_async(reward.compute_rewards if sees_groups(reward) else reward.compute_reward)


def _is_ours(reward: RewardFunction) -> bool:
    return type(reward).__module__.startswith("turngym.") and not isinstance(reward, FUNCTIONS)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _prepare(setup: RewardSetup) -> None:
    """What the file's code finds: our interpreter as `python`, output that isn't held back, its share of the cores."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if setup.num_workers > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // setup.num_workers)))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")


def main(socket_fd: int, marker_fd: int) -> None:
    """Serve the parent at the other end of the socket. Never returns normally."""
    for descriptor in (socket_fd, marker_fd):  # programs that a file starts must not hold them
        os.set_inheritable(descriptor, False)
    connection = socket.socket(fileno=socket_fd)
    os.register_at_fork(after_in_child=connection.close)  # nor must processes that it forks
    running = memoryview(mmap.mmap(marker_fd, 8)).cast("Q")
    received = messages(connection)
    setup: RewardSetup | None = next(received, None)
    if setup is None:
        sys.exit(1)
    calls = Calls()
    threading.Thread(target=calls.read, args=(received,), name="turngym-worker-reader", daemon=True).start()
    _prepare(setup)
    with asyncio.Runner() as runner:
        try:
            module = load_user_module(setup.path, real_imports=setup.real_imports)
            label, reward = choose_reward(module, setup.name)
            RewardHost(connection, running, reward, label).serve(calls, runner)
        except BaseException as error:  # noqa: BLE001 - a file may raise anything, and the parent has to hear of it
            message = str(error) if isinstance(error, TurngymError) else describe_error(error)
            connection.sendall(frame(Answer(0, True, dumps(Problem(message)))))
            sys.exit(1)
