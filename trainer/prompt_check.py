"""Finds prompts that don't fit the context before anything is trained."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ..agents.chat import Renderer
from ..agents.executor_config import ExecutorConfig
from ..agents.factories import make_checked
from ..agents.seeds import env_seed
from ..envs.errors import DataError, TemplateError
from ..envs.instance import AgentInstance
from ..envs.rows import RowTaskSource
from ..envs.tasks import Task, TaskSource

MAX_CHECK_S = 20.0
"""Seconds after which the check stops, longest prompts first; what it didn't reach is found in training."""

_LOG = logging.getLogger(__name__)


async def check_prompts(
    factory: Callable[[], AgentInstance],
    renderer: Renderer,
    tasks: TaskSource,
    config: ExecutorConfig,
) -> None:
    """Reset the environment to every task of a finite source, longest first, and measure what the policy would read.

    Args:
        factory: makes an instance.
        renderer: turns observations into tokens.
        tasks: a source without end is left alone.
        config: how episodes are played: seed, length of the context, seconds that a reset may take.

    Raises:
        DataError: a prompt leaves no room for an answer; the message names its file and line, or its task.
    """
    if tasks.num_tasks is None:
        return
    rows = sorted((tasks.task(index) for index in range(tasks.num_tasks)), key=_num_chars, reverse=True)
    started = time.monotonic()
    for number, task in enumerate(rows):
        if time.monotonic() - started > MAX_CHECK_S:
            _LOG.warning("measured the %d longest of %d prompts in %.0f s", number, len(rows), MAX_CHECK_S)
            return
        num_tokens = await _prompt_tokens(factory, renderer, task, config)
        if num_tokens is not None and num_tokens >= config.max_length:
            raise DataError(
                f"{_place(tasks, task)}: the prompt has {num_tokens} tokens and the context holds {config.max_length}, "
                "the answer included; shorten it, drop it, or raise --max_len"
            )


async def _prompt_tokens(
    factory: Callable[[], AgentInstance], renderer: Renderer, task: Task, config: ExecutorConfig
) -> int | None:
    """Tokens of a task's prompt, or None where the environment fails: that is counted when it is played."""
    seed = env_seed(config.seed, epoch=0, task_id=task.id) if task.seed is None else task.seed
    try:
        env = make_checked(factory)
        try:
            async with asyncio.timeout(config.step_timeout_s):
                observation, _ = await env.reset(seed=seed, options=task.options)
        finally:
            await env.close()
    except Exception:  # noqa: BLE001 - the environment's own, whatever it is
        return None
    try:
        return len(renderer.begin().prompt(observation))
    except TemplateError:
        return None


def _num_chars(task: Task) -> int:
    return sum(len(value) for value in task.options.values() if isinstance(value, str))


def _place(tasks: TaskSource, task: Task) -> str:
    """Where a reader finds the task: its file and line where it has one."""
    return tasks.place(task) if isinstance(tasks, RowTaskSource) else f"task {task.id!r}"
