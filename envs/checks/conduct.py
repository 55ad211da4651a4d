"""Does the environment behave: the same each time, apart from others, off the event loop, and tidy?"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections import Counter
from pathlib import Path

from ..instance import AgentInstance
from ..threads import THREAD_NAME
from ..types import Action
from .actions import LONG_POLICIES, PROBES
from .context import NUM_TURNS, CheckContext, CheckFailed, CheckSkipped
from .play import Transcript, describe, options_of, play

NUM_INSTANCES = 64
_NUM_TRIES = 3


def _needs_determinism(context: CheckContext) -> None:
    if not context.spec.deterministic:
        raise CheckSkipped("its spec says deterministic=False")


async def check_same_seed(context: CheckContext) -> None:
    """The same seed, options and actions give the same episode."""
    _needs_determinism(context)
    for first, second in zip(await context.ordinary(), await context.play_ordinary(), strict=False):
        if difference := first.difference(second):
            raise CheckFailed(
                f"the same seed {first.task.seed}, options and actions gave another episode: {difference}; draw "
                "everything from a generator made in reset from seed, or register it with deterministic=False"
            )


async def check_reset_again(context: CheckContext) -> None:
    """One instance plays one episode after another, each as a new instance would."""
    async with context.open() as instance:
        for expected, (task, policy) in zip(await context.ordinary(), await context.ordinary_episodes(), strict=True):
            again = await play(instance, task, policy, max_turns=NUM_TURNS, progress=context.progress)
            difference = expected.difference(again) if context.spec.deterministic else again.error
            if difference:
                raise CheckFailed(
                    f"an instance that has played before plays otherwise than a new one: {difference}; "
                    "set everything that an episode changes in reset"
                )


async def check_interleaved(context: CheckContext) -> None:
    """64 instances that take turns play as each of them does alone."""
    _needs_determinism(context)
    alone = await context.ordinary()
    episodes = await context.ordinary_episodes()
    chosen = [index % len(episodes) for index in range(NUM_INSTANCES)]
    together = await asyncio.gather(*(context.play(*episodes[index]) for index in chosen))
    for index, transcript in zip(chosen, together, strict=True):
        if difference := alone[index].difference(transcript):
            raise CheckFailed(
                f"an episode played among {NUM_INSTANCES} others differs from the same one alone: {difference}; keep "
                "its state, and its generator, on the instance, not in the class, the module or a default argument"
            )


async def check_loop(context: CheckContext) -> None:
    """No call blocks the event loop. A stall that doesn't come again, such as a first import, is let pass."""
    limit = context.limits.stall_s
    shortest: dict[str, float] = {}
    for number in range(_NUM_TRIES):
        stalls = await _stalls(context)
        slow = {call: stall for call, stall in stalls.items() if stall > limit}
        shortest = slow if number == 0 else {c: min(s, slow[c]) for c, s in shortest.items() if c in slow}
        if not shortest:
            return
    call, stall = max(shortest.items(), key=lambda item: item[1])
    raise CheckFailed(
        f"{call} blocked the event loop for {stall:.2f} s (limit {limit:g} s), and every other episode with it; "
        "await what takes long, or write the method as a plain def, which runs on a thread"
    )


async def _stalls(context: CheckContext) -> dict[str, float]:
    """The longest time for which each call blocked the loop, in seconds."""
    context.progress.stalls.clear()
    ordinary = (await context.ordinary_episodes())[:2]
    for task, policy in (*ordinary, *((context.tasks[0], policy) for policy in LONG_POLICIES)):
        await context.play(task, policy, max_turns=3)
    return dict(context.progress.stalls)


async def check_cancel(context: CheckContext) -> str | None:
    """A step that is cancelled midway stops, and afterwards the instance and new ones play as if nothing had happened.

    A plain `def` goes on after it was cancelled, since nothing can stop it; there, only new instances are played.
    """
    reference = await context.play(context.tasks[0], PROBES)
    is_interrupted = False
    for num_loops in (1, 2, 5):
        async with context.open() as instance:
            is_interrupted |= await _cancel_step(context, instance, num_loops)
            if inspect.iscoroutinefunction(instance.unwrapped.step):
                task, progress = context.tasks[0], context.progress
                after = await play(instance, task, PROBES, max_turns=NUM_TURNS, progress=progress)
                _check_as_before(context, reference, after, "the same instance")
        _check_as_before(context, reference, await context.play(context.tasks[0], PROBES), "a new instance")
    return None if is_interrupted else "step never waits, so nothing can cancel it midway"


def _check_as_before(context: CheckContext, reference: Transcript, after: Transcript, who: str) -> None:
    if difference := (reference.difference(after) if context.spec.deterministic else after.error):
        raise CheckFailed(
            f"after a cancelled step, {who} plays otherwise: {difference}; undo what is half done, and release locks, "
            "in finally"
        )


async def _cancel_step(context: CheckContext, instance: AgentInstance, num_loops: int) -> bool:
    """Cancel a step after some turns of the event loop; whether it was still going on."""
    task = context.tasks[0]
    context.progress.begin("reset")
    await instance.reset(seed=task.seed, options=options_of(task))
    context.progress.begin("step, cancelled midway,")
    step = asyncio.ensure_future(instance.step(Action(text="Hello.")))
    for _ in range(num_loops):
        await asyncio.sleep(0)
    if not step.cancel():
        step.exception()  # an error here is another check's matter
        return False
    done, _ = await asyncio.wait([step], timeout=context.limits.call_s)
    if not done:
        raise CheckFailed(
            f"step still goes on {context.limits.call_s:g} s after it was cancelled; let asyncio.CancelledError pass"
        )
    if not step.cancelled():
        ending = f"raised {describe(error)}" if (error := step.exception()) else "returned"
        raise CheckFailed(f"step was cancelled and {ending}; let asyncio.CancelledError pass, and tidy up in finally")
    return True


async def check_leaks(context: CheckContext) -> None:
    """After close, no asyncio task, thread, open file or child process is left. What is opened once is let pass."""
    await _episodes_then_close(context)
    left: list[str] = []
    for _ in range(2):
        before = _open_things()
        instances = await _episodes_then_close(context)
        left = await _left(before, context.limits.tidy_s)
        del instances
        if not left:
            return
    raise CheckFailed(
        f"3 episodes left {', '.join(left)} behind after close; close must end and close whatever reset and step "
        "opened, also in the middle of an episode"
    )


async def _episodes_then_close(context: CheckContext) -> list[AgentInstance]:
    """Play three episodes, one of them only its start. The instances are given back, so that they aren't collected."""
    instances: list[AgentInstance] = []
    for max_turns in (1, NUM_TURNS, NUM_TURNS):
        instance = context.make()
        await play(instance, context.tasks[0], PROBES, max_turns=max_turns, progress=context.progress)
        context.progress.begin("close")
        await instance.close()
        instances.append(instance)
    return instances


async def _left(before: Counter[str], tidy_s: float) -> list[str]:
    """What is open now and wasn't before, once there was time to finish."""
    deadline = asyncio.get_running_loop().time() + tidy_s
    while (left := _open_things() - before) and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)
    return [f"{count} × {thing}" for thing, count in sorted(left.items())]


def _open_things() -> Counter[str]:
    """Tasks, threads, open files and child processes, counted by what they are called."""
    things = Counter(f"asyncio task {task.get_coro().__qualname__}" for task in asyncio.all_tasks())  # pyright: ignore[reportAttributeAccessIssue]
    for thread in threading.enumerate():
        if not thread.name.startswith((THREAD_NAME, "asyncio_")):  # pools: ours and the event loop's
            things[f"thread {thread.name}"] += 1
    things.update(f"open file {name}" for name in _open_files())
    things.update(_children())
    return things


def _open_files() -> list[str]:
    names: list[str] = []
    folder = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
    for link in list(folder.iterdir()) if folder.is_dir() else ():
        try:
            names.append(str(link.readlink()) if sys.platform == "linux" else link.name)
        except OSError:  # the one that the listing itself had open
            continue
    return names


def _children() -> list[str]:
    found: list[str] = []
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            found += [f"child process {_command(pid)}" for pid in path.read_text().split()]
        except OSError:  # the thread has ended
            continue
    return found


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return pid
