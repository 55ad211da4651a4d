import asyncio
import contextvars
import sqlite3
import subprocess
import sys
import threading
from typing import Any

import pytest
from turngym.envs import (
    Action,
    AgentInstance,
    EnvError,
    OrderEnforcing,
    StepTimeout,
    StepTimeoutError,
    TimeLimit,
    abandoned_threads,
)
from turngym.envs.threads import THREAD_NAME, as_async, run_in_thread

GO = Action(text="go")
WAIT_S = 30.0


class Plain(AgentInstance):
    """Plain `def` methods that tell which thread they ran on."""

    closed_on = ""

    def reset(self, *, seed=None, options=None) -> Any:
        return threading.current_thread().name, {}

    def step(self, action) -> Any:
        return threading.current_thread().name, 0.0, False, False, {}

    def close(self) -> Any:
        self.closed_on = threading.current_thread().name


class Stuck(Plain):
    """Its step waits for `release`."""

    def __init__(self) -> None:
        self.entered, self.release, self.left = threading.Event(), threading.Event(), threading.Event()

    def step(self, action):
        self.entered.set()
        self.release.wait(WAIT_S)
        self.left.set()
        return "", 0.0, False, False, {}


async def test_an_async_env_gets_no_thread():
    class Async(AgentInstance):
        async def reset(self, *, seed=None, options=None):
            return "", {}

        async def step(self, action):
            return "", 0.0, False, False, {}

    env = Async()
    assert as_async(env) is env


async def test_plain_methods_run_on_one_thread_of_our_own():
    plain = Plain()
    env = as_async(plain)
    name, _ = await env.reset()
    assert isinstance(name, str)
    assert name.startswith(THREAD_NAME)
    assert {str((await env.step(GO))[0]) for _ in range(3)} == {name}  # pyright: ignore[reportIndexIssue]
    await env.close()
    assert plain.closed_on == name


async def test_what_is_tied_to_a_thread_works():
    class Database(Plain):
        def reset(self, *, seed=None, options=None):
            self.connection = sqlite3.connect(":memory:")
            return "", {}

        def step(self, action):
            return str(self.connection.execute("select 1").fetchone()), 0.0, False, False, {}

        def close(self):
            self.connection.close()

    env = as_async(Database())
    await env.reset()
    assert (await env.step(GO))[0] == "(1,)"  # pyright: ignore[reportIndexIssue]
    await env.close()


async def test_a_thread_serves_the_next_instance_once_it_is_free():
    names = set()
    for _ in range(5):
        async with as_async(Plain()) as env:
            names.add(str((await env.reset())[0]))
    assert len(names) == 1


async def test_the_thread_of_an_instance_that_was_never_closed_is_free_again():
    first, _ = await as_async(Plain()).reset()
    second, _ = await as_async(Plain()).reset()
    assert first == second


async def test_as_many_instances_run_at_once_as_there_are():
    barrier = threading.Barrier(64, timeout=WAIT_S)

    class Meets(Plain):
        def step(self, action):
            barrier.wait()
            return "", 1.0, False, False, {}

    envs = [as_async(Meets()) for _ in range(64)]
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(env.step(GO) for env in envs))
    await asyncio.gather(*(env.close() for env in envs))


async def test_every_wrapper_takes_plain_methods():
    async with OrderEnforcing(StepTimeout(TimeLimit(Plain(), 1), 60)) as env:
        await env.reset()
        assert (await env.step(GO)).truncated


async def test_the_loop_goes_on_while_a_plain_step_blocks():
    stuck = Stuck()
    step = asyncio.ensure_future(as_async(stuck).step(GO))
    await run_in_thread(stuck.entered.wait, WAIT_S)
    assert not step.done()
    stuck.release.set()
    await step


async def test_a_thread_that_overruns_is_abandoned_replaced_and_counted():
    stuck, before = Stuck(), abandoned_threads()
    env = StepTimeout(as_async(stuck), 0.01)
    first, _ = await env.reset()
    (left_behind,) = (thread for thread in threading.enumerate() if thread.name == first)
    with pytest.raises(StepTimeoutError, match=r"^Stuck: step took longer than 0\.01 s$"):
        await env.step(GO)
    assert abandoned_threads() == before + 1
    second, _ = await env.reset()
    assert second != first
    stuck.release.set()
    await run_in_thread(left_behind.join, WAIT_S)
    assert not left_behind.is_alive()
    third, _ = await env.reset()
    assert third == second
    await env.close()


async def test_an_exception_reaches_the_caller():
    class Raises(Plain):
        def step(self, action):
            raise KeyError("lost")

    env = as_async(Raises())
    with pytest.raises(KeyError, match="lost"):
        await env.step(GO)
    await env.close()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit(2), "raises raised SystemExit: 2"),
        (KeyboardInterrupt(), "raises raised KeyboardInterrupt: "),
        (StopIteration(), "raises raised StopIteration: "),
    ],
    ids=repr,
)
async def test_what_would_end_the_run_becomes_an_error_of_the_env(error: BaseException, message: str):
    def raises() -> None:
        raise error

    raises.__qualname__ = "raises"
    with pytest.raises(EnvError) as caught:
        await run_in_thread(raises)
    assert str(caught.value) == message
    assert caught.value.__cause__ is error


async def test_context_variables_reach_the_thread():
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(7)
    assert await run_in_thread(variable.get) == 7


async def test_a_plain_method_may_return_an_awaitable():
    class Mixed(Plain):
        async def _step(self):
            return "awaited", 0.0, False, False, {}

        def step(self, action):
            return self._step()

    env = as_async(Mixed())
    assert (await env.step(GO))[0] == "awaited"  # pyright: ignore[reportIndexIssue]
    await env.close()


def test_a_step_that_blocks_for_ever_doesnt_stop_the_exit():
    code = """
import asyncio, threading
from turngym.envs import Action, AgentInstance, StepTimeout, StepTimeoutError
from turngym.envs.threads import as_async

class Blocks(AgentInstance):
    def reset(self, *, seed=None, options=None):
        return "", {}
    def step(self, action):
        threading.Event().wait()

async def main():
    env = StepTimeout(as_async(Blocks()), 0.01)
    await env.reset()
    try:
        await env.step(Action(text=""))
    except StepTimeoutError as error:
        print(error)

asyncio.run(main())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "Blocks: step took longer than 0.01 s\n"
    assert run.stderr == ""


def test_a_call_that_outlives_its_loop_is_dropped():
    stuck = Stuck()

    async def main() -> None:
        with pytest.raises(StepTimeoutError):
            await StepTimeout(as_async(stuck), 0.01).step(GO)

    asyncio.run(main())
    stuck.release.set()
    assert stuck.left.wait(WAIT_S)


@pytest.mark.slow
async def test_thousands_of_calls_from_many_instances_lose_nothing():
    class Counts(Plain):
        count = 0

        def step(self, action):
            self.count += 1
            return "", float(self.count), False, False, {}

    async def play() -> float:
        async with as_async(Counts()) as env:
            results = [await env.step(GO) for _ in range(100)]
            return sum(tuple(result)[1] for result in results)

    totals = await asyncio.gather(*(play() for _ in range(100)))
    assert set(totals) == {5050.0}
