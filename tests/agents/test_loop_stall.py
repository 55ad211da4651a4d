"""The longest stall is what kept the event loop busy, since the last reset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from turngym.agents.loop_stall import LoopStall


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be moved on, as if something had blocked it."""

    skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self.skipped_s


def on_skipping_loop(work: Callable[[SkippingLoop], Coroutine[Any, Any, None]]) -> None:
    loop = SkippingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work(loop))


async def beats(stall: LoopStall) -> None:
    """Wait until the heartbeat came once more."""
    after = asyncio.Event()
    asyncio.get_running_loop().call_at(stall._due + 1e-6, after.set)
    await after.wait()


def test_a_call_that_blocks_the_loop_is_measured() -> None:
    async def work(loop: SkippingLoop) -> None:
        async with LoopStall() as stall:
            loop.skipped_s += 1000.0
            await beats(stall)
            assert 1000.0 - stall.interval_s <= stall.longest_s < 2000.0
            loop.skipped_s += 10.0  # a shorter one doesn't count
            await beats(stall)
            assert stall.longest_s > 900.0

    on_skipping_loop(work)


def test_a_stall_is_seen_before_the_beat_that_it_delays() -> None:
    async def work(loop: SkippingLoop) -> None:
        async with LoopStall() as stall:
            loop.skipped_s += 1000.0
            assert stall.longest_s > 900.0

    on_skipping_loop(work)


def test_reset_gives_the_longest_and_forgets_it_with_the_beat_that_is_due() -> None:
    async def work(loop: SkippingLoop) -> None:
        async with LoopStall() as stall:
            loop.skipped_s += 1000.0
            assert stall.reset() > 900.0
            await beats(stall)
            assert stall.longest_s < 900.0

    on_skipping_loop(work)


def test_after_the_block_it_keeps_what_it_measured_and_beats_no_more() -> None:
    async def work(loop: SkippingLoop) -> None:
        async with LoopStall() as stall:
            loop.skipped_s += 1000.0
        assert stall._beating is None
        longest = stall.longest_s
        loop.skipped_s += 1000.0
        assert stall.longest_s == longest > 900.0

    on_skipping_loop(work)
