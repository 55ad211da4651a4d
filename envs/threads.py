"""Threads for environments whose methods are plain `def`: ours, daemons, never joined.

asyncio's default pool has few threads and waits for them when the interpreter exits, so that one environment that hangs
stalls the others and the exit. Here every instance has a thread of its own from its first call to `close` (objects that
are tied to a thread, such as sqlite connections, work), an idle thread serves the next instance, and a thread whose
call was given up is left behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any, NamedTuple

from .errors import EnvError
from .instance import AgentInstance
from .types import Action, Observation, StepResult
from .wrappers.base import Wrapper

THREAD_NAME = "turngym-env"

_numbers = itertools.count()
_lock = threading.RLock()  # a finalizer may run, and ask for it, in the thread that has it
_idle: list[_EnvThread] = []
_num_abandoned = 0


class _Call(NamedTuple):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class _EnvThread(threading.Thread):
    """Runs one call after another until it is abandoned."""

    def __init__(self) -> None:
        super().__init__(name=f"{THREAD_NAME}-{next(_numbers)}", daemon=True)
        self.is_abandoned = False
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self.start()

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run function(*args, **kwargs) on this thread. A call that is cancelled leaves the thread abandoned."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._calls.put(_Call(function, args, kwargs, contextvars.copy_context(), loop, future))
        try:
            return await future
        except asyncio.CancelledError:
            self._abandon()
            raise

    def _abandon(self) -> None:
        global _num_abandoned
        self.is_abandoned = True
        with _lock:
            _num_abandoned += 1
        self._calls.put(None)  # it ends once the call does

    def run(self) -> None:
        while (call := self._calls.get()) is not None:
            self._answer(call)

    @staticmethod
    def _answer(call: _Call) -> None:
        result, error = None, None
        try:
            result = call.context.run(call.function, *call.args, **call.kwargs)
        except BaseException as caught:  # noqa: BLE001 - it travels to the caller
            error = caught
        if isinstance(error, StopIteration) or not isinstance(error, Exception | None):
            # A future can't carry the former, and sys.exit() in an environment must not end the run.
            cause, error = error, EnvError(f"{_name(call.function)} raised {type(error).__name__}: {error}")
            error.__cause__ = cause
        try:
            call.loop.call_soon_threadsafe(_resolve, call.future, result, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _take() -> _EnvThread:
    with _lock:
        if _idle:
            return _idle.pop()
    return _EnvThread()


def _give_back(holder: list[_EnvThread]) -> None:
    with _lock:
        _idle.extend(thread for thread in holder if not thread.is_abandoned)
        holder.clear()


async def run_in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Run function(*args) on an idle thread of the pool. A call that is cancelled goes on, in a thread left behind."""
    holder = [_take()]
    try:
        return await holder[0].call(function, *args)
    finally:
        _give_back(holder)


def abandoned_threads() -> int:
    """How many threads were left behind so far, each with a call that was given up. It only grows."""
    return _num_abandoned


class ThreadedInstance(Wrapper):
    """Runs the plain `def` methods of an environment on a thread; its async methods stay on the loop.

    A call that is cancelled or times out goes on in the thread it has, which is abandoned; the next call gets another
    one. Python can't stop a thread.
    """

    awaits_env = False

    def __init__(self, env: AgentInstance) -> None:
        super().__init__(env)
        self._threads: list[_EnvThread] = []
        weakref.finalize(self, _give_back, self._threads)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode."""
        return await self._call(self.env.reset, seed=seed, options=options)

    async def step(self, action: Action) -> StepResult | tuple[Observation, float, bool, bool, Mapping[str, Any]]:
        """Play one action."""
        return await self._call(self.env.step, action)

    async def close(self) -> None:
        """Close the environment and let go of its thread."""
        try:
            await self._call(self.env.close)
        finally:
            _give_back(self._threads)

    async def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if inspect.iscoroutinefunction(method):
            return await method(*args, **kwargs)
        if not self._threads or self._threads[0].is_abandoned:
            self._threads[:] = [_take()]
        result = await self._threads[0].call(method, *args, **kwargs)
        return await result if inspect.isawaitable(result) else result


def as_async(env: AgentInstance) -> AgentInstance:
    """The environment itself where `reset`, `step` and `close` are async, else the environment on a thread."""
    own = getattr(env, "__dict__", {})
    is_async = _is_async(type(env)) if _METHODS.isdisjoint(own) else all(_are_async(env))
    return env if is_async else ThreadedInstance(env)


_METHODS = frozenset({"reset", "step", "close"})


@functools.lru_cache(maxsize=1024)
def _is_async(kind: type[AgentInstance]) -> bool:
    return all(_are_async(kind))


def _are_async(owner: AgentInstance | type[AgentInstance]) -> Iterator[bool]:
    return (inspect.iscoroutinefunction(getattr(owner, name)) for name in _METHODS)
