"""What a check is given: instances, tasks, limits, and the episodes that several checks look at."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..errors import ConfigError, StepTimeoutError
from ..instance import AgentInstance
from ..registry import EnvSpec
from ..tasks import Task, TaskSource
from ..threads import as_async
from ..wrappers import OrderEnforcing, StepTimeout
from .actions import CHEAP_POLICIES, PROBES, Policy, scripted
from .play import Transcript, play

NUM_TASKS = 8
NUM_TURNS = 16
"""Most turns of an episode that is played for other reasons than to see it end."""


class CheckFailed(Exception):  # noqa: N818 - a verdict, caught by the runner
    """The check found something wrong; the message says what, and what to change."""


class CheckSkipped(Exception):  # noqa: N818 - a verdict, caught by the runner
    """The check can't be made; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """How long things may take.

    Attributes:
        call_s: seconds for one call of `reset`, `step` or `close`; a longer one hangs.
        stall_s: seconds for which one call may block the event loop.
        tidy_s: seconds that threads and tasks may take to finish after close.
        total_s: seconds for all checks; those not made by then are skipped.
        max_turns: turns within which an episode ends, where the spec has no `max_turns`.
    """

    call_s: float = 10.0
    stall_s: float = 0.25
    tidy_s: float = 1.0
    total_s: float = 120.0
    max_turns: int = 256

    def __post_init__(self) -> None:
        for name in ("call_s", "stall_s", "tidy_s", "total_s", "max_turns"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be greater than 0")


@dataclass(slots=True)
class Progress:
    """Where the checks stand: written by their thread, read by the one that waits for it.

    Attributes:
        check: the check that is being made.
        call: the call into the environment that is being made.
        last_beat: when the event loop last ran, by `time.monotonic`.
        stalls: for each call that was played, the longest time without a beat, in seconds.
    """

    check: str = "instance"
    call: str = "making an instance"
    last_beat: float = field(default_factory=time.monotonic)
    stalls: dict[str, float] = field(default_factory=dict)

    def begin(self, call: str) -> str:
        """A call begins, and stalls count as its own from here on. Gives the call back."""
        self.call, self.last_beat = call, time.monotonic()
        return call

    def beat(self) -> None:
        """The event loop runs."""
        now = time.monotonic()
        self.stalls[self.call] = max(self.stalls.get(self.call, 0.0), now - self.last_beat)
        self.last_beat = now


class CheckContext:
    """What the checks of one environment share.

    Args:
        factory: makes instances.
        spec: the specification; None where it is not known before an instance is made.
        source: the tasks; None where there are none, so that episodes start from seeds alone.
        seed: seed of the first task; the second gets the next, and so on.
        limits: how long things may take.
    """

    def __init__(
        self,
        factory: Callable[[], AgentInstance],
        *,
        spec: EnvSpec | None,
        source: TaskSource | None,
        seed: int = 0,
        limits: CheckLimits | None = None,
    ) -> None:
        self.factory = factory
        self.spec = spec or EnvSpec(id=getattr(factory, "__name__", type(factory).__name__), entry_point=factory)
        self.has_reward = False
        """Whether a reward is attached, which may pay for anything."""
        self.seed = seed
        self.limits = limits or CheckLimits()
        self.progress = Progress()
        self._is_close_hanging = False
        self._tours: dict[str, tuple[Transcript, ...]] = {}
        self.use_source(source)

    def use_source(self, source: TaskSource | None) -> None:
        """Take tasks from a source, or from seeds alone."""
        self.source = source
        if source is None:
            rows = [Task(id=f"seed {self.seed + index}") for index in range(NUM_TASKS)]
        else:
            num_tasks = source.num_tasks
            rows = [
                source.task(index) for index in range(NUM_TASKS if num_tasks is None else min(num_tasks, NUM_TASKS))
            ]
            if not rows:
                raise ConfigError("the source of tasks is empty; give one with at least one task")
        self.tasks = tuple(
            row if row.seed is not None else replace(row, seed=self.seed + index) for index, row in enumerate(rows)
        )

    def make(self) -> AgentInstance:
        """An instance as the factory gives it, guarded."""
        self.progress.begin("making an instance")
        return self.guard(self.factory())

    def guard(self, instance: AgentInstance) -> AgentInstance:
        """The instance, async, and every call of it limited in time."""
        return StepTimeout(as_async(instance), self.limits.call_s)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[AgentInstance]:
        """An instance to play with, closed at the end. What it returns reaches the checks as it is, unchecked."""
        self.progress.begin("making an instance")
        made = self.factory()
        instance = self.guard(made.env if isinstance(made, OrderEnforcing) else made)
        try:
            yield instance
        finally:
            await self.close(instance)

    async def close(self, instance: AgentInstance) -> None:
        """Close without judging, which check_close does. Where close hangs, it is waited for only once."""
        if self._is_close_hanging:
            return
        self.progress.begin("close")
        try:
            await instance.close()
        except StepTimeoutError:
            self._is_close_hanging = True
        except Exception:  # noqa: BLE001, S110 - the environment's, whatever it is
            pass

    async def play(self, task: Task, policy: Policy, *, max_turns: int = NUM_TURNS) -> Transcript:
        """One episode on an instance of its own."""
        async with self.open() as instance:
            return await play(instance, task, policy, max_turns=max_turns, progress=self.progress)

    def demonstration(self, instance: AgentInstance, task: Task) -> Sequence[str] | None:
        """The environment's own actions for a task, the same ones each time."""
        return instance.demonstrations(task, np.random.default_rng(self.seed))

    async def ordinary(self) -> tuple[Transcript, ...]:
        """Each task played alone: by its demonstration where it has one, and by probes."""
        if "ordinary" not in self._tours:
            self._tours["ordinary"] = await self.play_ordinary()
        return self._tours["ordinary"]

    async def play_ordinary(self) -> tuple[Transcript, ...]:
        """The episodes of `ordinary`, played again, as far as the first that raises."""
        found: list[Transcript] = []
        for task, policy in await self.ordinary_episodes():
            found.append(await self.play(task, policy))
            if found[-1].error:
                break
        return tuple(found)

    async def ordinary_episodes(self) -> list[tuple[Task, Policy]]:
        """What `ordinary` plays."""
        episodes: list[tuple[Task, Policy]] = []
        async with self.open() as instance:
            for task in self.tasks:
                with contextlib.suppress(Exception):  # reported by check_demonstrations
                    if self.source is not None and (actions := self.demonstration(instance, task)):
                        episodes.append((task, scripted("demonstration", list(actions))))
                episodes.append((task, PROBES))
        return episodes

    async def cheap(self) -> tuple[Transcript, ...]:
        """Each task played by each cheap policy, one task's episodes at once, as far as the first task that raises."""
        if "cheap" not in self._tours:
            max_turns = min(self.spec.max_turns or NUM_TURNS, 2 * NUM_TURNS)
            found: list[Transcript] = []
            for task in self.tasks:
                episodes = (self.play(task, policy, max_turns=max_turns) for policy in CHEAP_POLICIES)
                found.extend(await asyncio.gather(*episodes))
                if any(transcript.error for transcript in found):
                    break
            self._tours["cheap"] = tuple(found)
        return self._tours["cheap"]
