import asyncio
import gc
from typing import Any

import pytest
from turngym.envs.wrappers import within as module
from turngym.envs.wrappers.within import within

LONG_S = 60.0
SHORT_S = 0.01


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "GRACE_S", SHORT_S)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_result_in_time_is_given_back():
    async def waits() -> int:
        await asyncio.sleep(0)
        await asyncio.create_task(asyncio.sleep(0))
        return 3

    assert await within(waits(), LONG_S) == 3
    assert await within(asyncio.create_task(waits()), LONG_S) == 3


async def test_what_never_waits_needs_no_timer():
    async def at_once() -> int:
        return 3

    limited = within(at_once(), LONG_S)
    assert await limited == 3
    assert not hasattr(limited, "_timer")


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError("own"), KeyError("x")])
@pytest.mark.parametrize("waits", [False, True])
async def test_an_exception_is_passed_on(error: Exception, waits: bool):
    async def raises() -> None:
        if waits:
            await asyncio.sleep(0)
        raise error

    limited = within(raises(), LONG_S)
    with pytest.raises(type(error)) as caught:
        await limited
    assert caught.value is error
    assert not limited.is_over


async def test_an_exception_of_what_is_awaited_reaches_the_awaiting():
    async def catches() -> str:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, ValueError("inner"))
        try:
            await future
        except ValueError as error:
            return str(error)
        return "nothing"

    assert await within(catches(), LONG_S) == "inner"


async def test_the_limit_cancels_and_raises():
    cleaned = []

    async def cleans_up() -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    limited = within(cleans_up(), SHORT_S)
    with pytest.raises(TimeoutError):
        await limited
    assert limited.is_over
    assert cleaned == [True]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("late", ["returns", "raises"])
async def test_what_comes_after_the_limit_is_dropped(late: str):
    async def comes_late() -> str:
        try:
            await for_ever()
        except asyncio.CancelledError:
            if late == "raises":
                raise ValueError("late") from None
        return "late"

    with pytest.raises(TimeoutError) as caught:
        await within(comes_late(), SHORT_S)
    assert isinstance(caught.value.__cause__, ValueError) == (late == "raises")


async def test_what_ignores_its_cancellation_is_left():
    closed = []

    async def stubborn() -> None:
        try:
            while True:
                try:
                    await for_ever()
                except asyncio.CancelledError:
                    continue
        finally:
            closed.append(True)

    with pytest.raises(TimeoutError):
        await within(stubborn(), SHORT_S)
    assert closed == [True]
    await asyncio.sleep(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_what_ignores_even_being_closed_is_left():
    is_over = False

    async def immortal() -> None:
        while not is_over:
            try:
                await for_ever()
            except BaseException:  # noqa: BLE001 - that is the point
                continue

    with pytest.raises(TimeoutError):
        await within(immortal(), SHORT_S)
    is_over = True
    gc.collect()


async def test_cancelling_from_outside_is_no_timeout():
    entered = asyncio.Event()

    async def waits() -> None:
        entered.set()
        await for_ever()

    task = asyncio.ensure_future(_awaited(within(waits(), LONG_S)))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelling_from_outside_wins_over_the_limit():
    cancelled = asyncio.Event()

    async def takes_long_to_clean_up() -> None:
        try:
            await for_ever()
        finally:
            cancelled.set()
            await for_ever()

    task = asyncio.ensure_future(_awaited(within(takes_long_to_clean_up(), SHORT_S)))
    await cancelled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_it_nests_with_the_limits_of_asyncio():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT_S):
            await within(for_ever(), LONG_S)

    async def inner() -> str:
        try:
            async with asyncio.timeout(SHORT_S):
                await for_ever()
        except TimeoutError:
            return "inner"
        return "none"

    assert await within(inner(), LONG_S) == "inner"


async def test_task_groups_work_inside():
    async def group() -> int:
        async with asyncio.TaskGroup() as tasks:
            results = [tasks.create_task(asyncio.sleep(0, n)) for n in range(3)]
        return sum(task.result() for task in results)

    assert await within(group(), LONG_S) == 3


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
