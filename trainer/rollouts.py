"""The episodes of one update: its slots played all at once, and what happens when every one of them fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from ..agents.episode import Ending, Episode
from ..agents.executor import AgentExecutor
from ..agents.group import Group
from ..agents.store import EpisodeWriter
from ..envs.errors import DataError, EngineError, EnvError
from .config import RunConfig
from .task_order import TaskOrder


async def play_update(
    executor: AgentExecutor,
    order: TaskOrder,
    writer: EpisodeWriter,
    config: RunConfig,
    *,
    update: int,
    max_tries: int,
    rewarded: Callable[[Group], Group],
) -> tuple[list[Group], int]:
    """Play the slots of an update, and write their episodes. Where every episode failed, play the slots again.

    Args:
        executor: plays the groups.
        order: gives each slot its task.
        writer: gets every episode, failed attempts included.
        config: groups of an update, and episodes of a group.
        update: its number.
        max_tries: how often to play the slots at most.
        rewarded: changes what a group earned, before it is written.

    Returns:
        The groups, and how many tries failed before.

    Raises:
        DataError: a prompt doesn't fit the context, so that no other try can go better.
        EnvError: every try failed.
        EngineError: every try failed, and the engine is to blame.
    """
    failed: list[Episode] = []
    for num_failed_tries in range(max_tries):
        prefix = f"again{num_failed_tries}-" if num_failed_tries else ""
        groups = [rewarded(g) for g in await _play_slots(executor, order, config, update=update, prefix=prefix)]
        episodes = [episode for group in groups for episode in group.episodes]
        failed += [episode for group in groups for episode in group.failed]
        writer.write([*episodes, *failed], split="train", update=update)
        if episodes:
            return groups, num_failed_tries
        for episode in failed:
            if episode.failure is not None and episode.failure.error == DataError.__name__:
                raise DataError(episode.failure.message)
    raise _all_failed(failed, update=update)


async def _play_slots(
    executor: AgentExecutor, order: TaskOrder, config: RunConfig, *, update: int, prefix: str
) -> list[Group]:
    await executor.start()  # nothing then holds one group up, so that all begin before any plays
    first = update * config.rollout_batch_size
    async with asyncio.TaskGroup() as together:
        playing = []
        for slot in range(first, first + config.rollout_batch_size):
            epoch, task = order.task(slot)
            group = executor.run_group(task, config.n_samples_per_prompt, slot=slot, epoch=epoch, prefix=prefix)
            playing.append(together.create_task(group))
    return [group.result() for group in playing]


def _all_failed(failed: Sequence[Episode], *, update: int) -> EnvError | EngineError:
    failures = [episode.failure for episode in failed if episode.failure is not None]
    counts = Counter(f"{failure.error} in {failure.where}" for failure in failures).most_common(3)
    told = ", ".join(f"{count} times {name}" for name, count in counts)
    message = (
        f"every episode of update {update} failed, {len(failed)} attempts in all: {told}; the last one said: "
        f"{failures[-1].message!r}. Nothing was trained on them; mend the cause, then go on with --resume"
    )
    by_engine = sum(episode.ending is Ending.ENGINE_FAILED for episode in failed)
    return EngineError(message) if 2 * by_engine > len(failed) else EnvError(message)
