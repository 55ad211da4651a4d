"""The inside of a worker process: one event loop that holds many environments.

A thread reads the calls; the loop answers them. While a call's code runs on the loop, the call's number stands in
memory shared with the parent, which so knows whom to blame for a loop that is stuck or a process that is gone. When the
parent is gone, the process ends, and whatever it started in its process group with it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import mmap
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from ..envs.errors import PolicyFault
from ..envs.instance import AgentInstance
from ..envs.registry import register
from ..envs.threads import abandoned_threads
from .factories import WorkerSetup, make_checked, unpack
from .failures import fault_reward, record_error
from .wire import Answer, Call, dumps, frame, messages


class Host:
    """Holds environments and answers calls.

    Args:
        connection: the socket to the parent.
        running: where the number of the running call stands; 0 for none.
        factory: gives the environment's instances.
    """

    def __init__(self, connection: socket.socket, running: memoryview, factory: Callable[[], AgentInstance]) -> None:
        self._connection = connection
        self._running = running
        self._factory = factory
        self._instances: dict[int, AgentInstance] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}

    def receive(self, call: Call) -> None:
        """Take a call in."""
        if call.method == "ping":
            self._send(Answer(call.call_id, False, dumps(abandoned_threads())))
        elif call.method == "cancel":
            if call.call_id in self._calls:
                self._calls[call.call_id].cancel()
        else:
            task = asyncio.get_running_loop().create_task(self._answer(call))
            self._calls[call.call_id] = task
            task.add_done_callback(lambda _: self._calls.pop(call.call_id, None))

    async def _answer(self, call: Call) -> None:
        where: str = call.method
        try:
            if call.method == "reset" and call.instance_id not in self._instances:
                where = "make"
                self._instances[call.instance_id] = await Marked(self._make(), self._running, call.call_id)
                where = call.method
            value = await Marked(self._perform(call), self._running, call.call_id)
            answer = Answer(call.call_id, False, _dump_result(value, where))
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 - theirs, of any class
            policy_reward = fault_reward(error) if isinstance(error, PolicyFault) else None
            record = record_error(error, where=where, policy_reward=policy_reward)
            answer = Answer(call.call_id, True, dumps(record))
        self._send(answer)

    async def _make(self) -> AgentInstance:
        return make_checked(self._factory)

    async def _perform(self, call: Call) -> Any:
        if call.method == "close":
            env = self._instances.pop(call.instance_id, None)
            return None if env is None else await env.close()
        env = self._instances[call.instance_id]
        arguments = pickle.loads(call.arguments)
        return await (env.reset(**arguments) if call.method == "reset" else env.step(**arguments))

    def _send(self, answer: Answer) -> None:
        self._connection.sendall(frame(answer))


def _dump_result(value: Any, where: str) -> bytes:
    try:
        return dumps(value)
    except Exception as error:
        raise TypeError(f"what {where} returned can't leave its worker process: {error}") from error


class Marked:
    """Awaits a coroutine; whenever the coroutine's own code runs, its call's number is marked."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], running: memoryview, call_id: int) -> None:
        self._coroutine = coroutine
        self._running = running
        self._call_id = call_id

    def __await__(self) -> Generator[Any, Any, Any]:
        go_on: Callable[[Any], Any] = self._coroutine.send
        sent: Any = None
        while True:
            self._running[0] = self._call_id
            try:
                awaited = go_on(sent)
            except StopIteration as stop:
                return stop.value
            finally:
                self._running[0] = 0
            try:
                sent = yield awaited
                go_on = self._coroutine.send
            except BaseException as error:  # noqa: BLE001 - handed on, whatever it is
                sent, go_on = error, self._coroutine.throw


def _read_calls(calls: Any, loop: asyncio.AbstractEventLoop, host: Host) -> None:
    """Hand calls to the loop; when the parent is gone, end everything, however busy the loop is."""
    for call in calls:
        loop.call_soon_threadsafe(host.receive, call)
    os.killpg(os.getpid(), signal.SIGKILL)


async def _serve(calls: Any, host: Host) -> None:
    loop = asyncio.get_running_loop()
    threading.Thread(target=_read_calls, args=(calls, loop, host), name="turngym-worker-reader", daemon=True).start()
    await loop.create_future()


def main(socket_fd: int, marker_fd: int) -> None:
    """Serve the parent at the other end of the socket. Never returns normally."""
    for descriptor in (socket_fd, marker_fd):  # programs that an environment starts must not hold them
        os.set_inheritable(descriptor, False)
    connection = socket.socket(fileno=socket_fd)
    running = memoryview(mmap.mmap(marker_fd, 8)).cast("Q")
    calls = messages(connection)
    setup: WorkerSetup | None = next(calls, None)
    if setup is None:
        sys.exit(1)
    try:
        factory, spec = unpack(setup)
        if spec is not None and ":" not in spec.id:
            register(**{field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}, replace=True)
    except BaseException as error:  # noqa: BLE001 - an import may raise anything, and the parent has to hear of it
        connection.sendall(frame(Answer(0, True, dumps(record_error(error)))))
        sys.exit(1)
    connection.sendall(frame(Answer(0, False, dumps(None))))
    asyncio.run(_serve(calls, Host(connection, running, factory)))
