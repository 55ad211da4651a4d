"""The executor: plays episodes, groups and streams of tasks, and refills what the infrastructure failed."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

from ..envs.errors import ConfigError, EngineError
from ..envs.instance import AgentInstance
from ..envs.registry import EnvFactory, spec
from ..envs.sampling import SamplingParams
from ..envs.tasks import Task, TaskSource
from .engine import Engine, TracksEpisodes
from .episode import Ending, Episode
from .executor_config import ExecutorConfig
from .factories import env_name, make_checked
from .group import Group
from .loop_watch import LoopWatch
from .rollout import EpisodeKey, Rollout, RolloutSetup
from .stats import ExecutorStats

if TYPE_CHECKING:
    from .chat import Renderer
    from .workers import WorkerPool


MAX_ATTEMPTS = 100
"""Attempts at an episode after which even a bystander is not refilled at no cost."""

CANCEL_S = 5.0
"""How long a cancelled call may take to end before the executor closes without it."""


class AgentExecutor:
    """Plays episodes of one environment with one engine. An async context manager.

    Args:
        env: the environment's id, or a function or class without arguments that gives instances.
        engine: samples the actions. It is not closed.
        renderer: turns observations into tokens, for the engine's tokenizer.
        config: how episodes are played.
        on_episode: called with every finished episode, failed attempts included.

    Raises:
        UnknownEnvError: there is no such environment.
        ConfigError: `env` can't be sent to worker processes, and `env_workers` asks for it.
    """

    def __init__(
        self,
        env: str | Callable[[], AgentInstance],
        engine: Engine,
        renderer: Renderer,
        config: ExecutorConfig | None = None,
        *,
        on_episode: Callable[[Episode], None] | None = None,
    ) -> None:
        self.config = config = ExecutorConfig() if config is None else config
        self.engine = engine
        if isinstance(env, str):
            spec(env)
            env = EnvFactory(id=env)
        self.stats = ExecutorStats(env=env_name(env))
        self._pool: WorkerPool | None = None
        if config.env_workers:
            from .workers import WorkerPool

            self._pool = WorkerPool(env, config.env_workers, on_restart=self.stats.add_restart)
            self.stats.threads_elsewhere = lambda pool=self._pool: pool.abandoned_threads
        self._setup = RolloutSetup(
            make_env=functools.partial(_make_here, env) if self._pool is None else self._pool.make,
            env_name=self.stats.env,
            engine=engine,
            renderer=renderer,
            run_seed=config.seed,
            max_turns=config.max_turns or config.max_length,
            max_length=config.max_length,
            turn_timeout_s=config.turn_timeout_s or math.inf,
            step_timeout_s=config.step_timeout_s or math.inf,
            close_timeout_s=config.close_timeout_s,
            episode_timeout_s=config.episode_timeout_s or math.inf,
        )
        self._tracker = engine if isinstance(engine, TracksEpisodes) else None
        self._on_episode = on_episode
        self._live: set[str] = set()
        self._running: dict[asyncio.Task[Any], Rollout] = {}
        self._watch = LoopWatch(self._running, self.stats)
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Start what the episodes need. Called by the first episode, too.

        Raises:
            EnvWorkerError: a worker process can't start, or can't make the environment.
        """
        if self._is_closed:
            raise EngineError("the executor is closed; make a new one")
        self._watch.start()
        if self._pool is not None:
            try:
                await self._pool.start()
            except BaseException:
                await self.aclose()
                raise

    async def aclose(self) -> None:
        """Cancel every episode, and end worker processes and threads. May be called more than once."""
        self._is_closed = True
        running = [task for task in self._running if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        try:
            if running:
                await asyncio.wait(running, timeout=self.config.close_timeout_s + CANCEL_S)
        finally:
            self._watch.stop()
            if self._pool is not None:
                await self._pool.aclose()

    async def run_episode(
        self,
        task: Task,
        *,
        slot: int = 0,
        member: int = 0,
        attempt: int = 0,
        epoch: int = 0,
        sampling: SamplingParams | None = None,
        prefix: str = "",
    ) -> Episode:
        """Play one episode, once; one that the infrastructure failed is returned as such.

        Args:
            task: what to play.
            slot: the group's place in the order of training.
            member: the episode's place within the group.
            attempt: how often it was tried before.
            epoch: how often the data was gone through before.
            sampling: instead of the config's.
            prefix: put before the episode's id, to tell runs of the same executor apart.
        """
        await self.start()
        rollout = self._begin(EpisodeKey(task, slot, member, attempt, epoch, prefix), sampling)
        return await self._play(rollout)

    async def run_group(
        self,
        task: Task,
        size: int,
        *,
        slot: int = 0,
        epoch: int = 0,
        sampling: SamplingParams | None = None,
        prefix: str = "",
    ) -> Group:
        """Play `size` episodes of one task at once, refilling those that the infrastructure fails."""
        if size < 1:
            raise ConfigError(f"size={size!r} must be at least 1")
        await self.start()
        rollouts = [self._begin(EpisodeKey(task, slot, member, 0, epoch, prefix), sampling) for member in range(size)]
        try:
            async with asyncio.TaskGroup() as siblings:
                members = [siblings.create_task(self._play_refilled(rollout, sampling)) for rollout in rollouts]
        finally:
            for rollout in rollouts:
                self._end(rollout)
        attempts = [episode for member in members for episode in member.result()]
        return Group(
            task=task,
            slot=slot,
            size=size,
            episodes=tuple(episode for episode in attempts if not episode.is_failed),
            failed=tuple(episode for episode in attempts if episode.is_failed),
        )

    async def run_many(
        self,
        tasks: Iterable[Task] | TaskSource,
        *,
        concurrency: int | None = None,
        slot: int = 0,
        epoch: int = 0,
        sampling: SamplingParams | None = None,
        prefix: str = "",
    ) -> list[Episode]:
        """Play each task, and return the episodes in the order of tasks. Arguments as for `stream`.

        An episode that stays failed after its refills is returned as such, so that no task is missing.
        """
        stream = self.stream(tasks, concurrency=concurrency, slot=slot, epoch=epoch, sampling=sampling, prefix=prefix)
        return sorted([episode async for episode in stream], key=lambda episode: episode.slot)

    async def stream(
        self,
        tasks: Iterable[Task] | TaskSource,
        *,
        concurrency: int | None = None,
        slot: int = 0,
        epoch: int = 0,
        sampling: SamplingParams | None = None,
        prefix: str = "",
    ) -> AsyncGenerator[Episode, None]:
        """Play each task, and yield the episodes as they finish.

        At most `concurrency` episodes run, and at most as many wait to be read. Closing the iterator cancels them.

        Args:
            tasks: what to play; may be endless. A task that comes again is played as the next member of its group.
            concurrency: episodes at once; the config's by default.
            slot: the slot of the first task; each further task gets the next.
            epoch: how often the data was gone through before.
            sampling: instead of the config's.
            prefix: put before the episodes' ids.
        """
        await self.start()
        concurrency = self.config.concurrency if concurrency is None else concurrency
        if concurrency < 1:
            raise ConfigError(f"concurrency={concurrency!r} must be at least 1")
        keys = _keys(tasks, slot=slot, epoch=epoch, prefix=prefix)
        finished: asyncio.Queue[Episode | None] = asyncio.Queue()
        room = asyncio.Semaphore(concurrency)
        player = asyncio.create_task(self._play_keys(keys, concurrency, sampling, finished, room))
        player.add_done_callback(lambda _: finished.put_nowait(None))
        try:
            while (episode := await finished.get()) is not None:
                yield episode
                room.release()
            await player
        finally:
            player.cancel()
            await asyncio.wait([player])

    async def _play_keys(
        self,
        keys: Iterator[EpisodeKey],
        concurrency: int,
        sampling: SamplingParams | None,
        finished: asyncio.Queue[Episode | None],
        room: asyncio.Semaphore,
    ) -> None:
        """Play keys in chains; a chain begins its next episode before it ends the last."""
        begun: set[Rollout] = set()

        def begin_next() -> Rollout | None:
            key = next(keys, None)
            rollout = None if key is None else self._begin(key, sampling)
            if rollout is not None:
                begun.add(rollout)
            return rollout

        async def play_chain(rollout: Rollout | None) -> None:
            while rollout is not None:
                following: list[Rollout | None] = []
                attempts = await self._play_refilled(
                    rollout, sampling, at_last=lambda following=following: following.append(begin_next())
                )
                begun.discard(rollout)
                await room.acquire()
                finished.put_nowait(attempts[-1])
                rollout = following[0]

        try:
            first = list(itertools.takewhile(bool, (begin_next() for _ in range(concurrency))))
            async with asyncio.TaskGroup() as chains:
                for rollout in first:
                    chains.create_task(play_chain(rollout))
        finally:
            for rollout in begun:
                self._end(rollout)

    async def _play_refilled(
        self, rollout: Rollout, sampling: SamplingParams | None, *, at_last: Callable[[], None] = lambda: None
    ) -> list[Episode]:
        """Every attempt at an episode. The last has failed, too, where no refill is left.

        `at_last` is called when the last attempt is over, and before the engine hears of that.
        """
        attempts: list[Episode] = []
        refills = 0
        following: Rollout | None = None

        def go_on(episode: Episode) -> None:
            nonlocal refills, following
            over = rollout.over
            if over is None or not episode.is_failed or not over.is_refillable:
                at_last()
            elif (over.is_bystander and len(attempts) < MAX_ATTEMPTS) or refills < self.config.max_refills:
                refills += not over.is_bystander
                following = self._begin(rollout.key._replace(attempt=rollout.key.attempt + 1), sampling)
            else:
                at_last()

        try:
            while True:
                attempts.append(await self._play(rollout, before_end=go_on))
                if following is None:
                    return attempts
                rollout, following = following, None
        finally:
            if following is not None:
                self._end(following)

    async def _play(self, rollout: Rollout, *, before_end: Callable[[Episode], None] | None = None) -> Episode:
        """Play one attempt, close its environment, and count it."""
        task = asyncio.current_task()
        assert task is not None
        self._running[task] = rollout
        try:
            episode = await rollout.run()
            if before_end is not None:
                before_end(episode)
        except asyncio.CancelledError:
            self.stats.endings[Ending.CANCELLED] += 1
            raise
        finally:
            self._end(rollout)
            try:
                await rollout.close()
            finally:
                self._running.pop(task, None)
                if rollout.close_failure is not None:
                    self.stats.add_unclosed(rollout.close_failure)
        self.stats.add(episode, is_bystander=rollout.over is not None and rollout.over.is_bystander)
        if self._on_episode is not None:
            self._on_episode(episode)
        return episode

    def _begin(self, key: EpisodeKey, sampling: SamplingParams | None) -> Rollout:
        rollout = Rollout(key, self._setup, self.config.sampling if sampling is None else sampling)
        if rollout.episode_id in self._live:
            raise ConfigError(
                f"episode {rollout.episode_id} is being played; give calls that overlap other slots, epochs or prefixes"
            )
        self._live.add(rollout.episode_id)
        if self._tracker is not None:
            self._tracker.episode_begins(rollout.episode_id)
        return rollout

    def _end(self, rollout: Rollout) -> None:
        if rollout.episode_id in self._live:
            self._live.remove(rollout.episode_id)
            if self._tracker is not None:
                self._tracker.episode_ends(rollout.episode_id)


async def _make_here(factory: Callable[[], AgentInstance]) -> AgentInstance:
    return make_checked(factory)


def _keys(tasks: Iterable[Task] | TaskSource, *, slot: int, epoch: int, prefix: str) -> Iterator[EpisodeKey]:
    if isinstance(tasks, TaskSource):
        indices = itertools.count() if tasks.num_tasks is None else range(tasks.num_tasks)
        tasks = map(tasks.task, indices)
    seen: Counter[str] = Counter()
    for offset, task in enumerate(tasks):
        yield EpisodeKey(task, slot + offset, seen[task.id], 0, epoch, prefix)
        seen[task.id] += 1
