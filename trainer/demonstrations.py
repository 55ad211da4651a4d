"""Demonstrations of an environment, played through it, tidy and spoilt."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..envs.instance import AgentInstance
from ..envs.tasks import Task, TaskSource
from ..envs.threads import as_async
from ..envs.types import Action, Observation, Verbatim, as_step_result

MAX_TURNS = 64
EPISODE_TIMEOUT_S = 60.0
RECOVERED_RATE = 0.5
"""The share of actions that are mistakes where they are shown to be recovered from."""
SLIPS = (-10, -2, -1, 1, 2, 10)
"""By how much a spoilt number is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One episode as it was played.

    Attributes:
        task_id: the task's id.
        prompt: the first observation.
        actions: what was said, in order.
        is_mistake: which of the actions are spoilt.
        feedback: what came back, one for each action.
    """

    task_id: str
    prompt: Observation
    actions: tuple[str, ...]
    is_mistake: tuple[bool, ...]
    feedback: tuple[Observation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """The episodes to learn from, a third of each kind.

    Attributes:
        tidy: without a mistake.
        recovered: with mistakes in between, which are shown, and not to be imitated.
        spoilt: with many mistakes, to be imitated.
    """

    tidy: tuple[Demonstration, ...]
    recovered: tuple[Demonstration, ...]
    spoilt: tuple[Demonstration, ...]

    @property
    def episodes(self) -> tuple[Demonstration, ...]:
        """All of them."""
        return self.tidy + self.recovered + self.spoilt

    @property
    def has_demonstrations(self) -> bool:
        """Whether there is anything to imitate."""
        return any(episode.actions for episode in self.tidy)


def play_demonstrations(
    make_env: Callable[[], AgentInstance], tasks: TaskSource, *, num_episodes: int, spoilt: float, seed: int
) -> Demonstrations:
    """Play an environment's demonstrations through the environment.

    After a mistake the same action of the demonstration is due again, so that recoveries are shown.

    Args:
        make_env: makes an instance.
        tasks: the tasks, taken in their order, again from the first when there are no more.
        num_episodes: how many episodes to play.
        spoilt: the share of actions that are mistakes in the spoilt third.
        seed: decides the demonstrations, and what is spoilt.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    count = num_episodes // 3
    chosen = [_task(tasks, index) for index in range(count)]

    async def play() -> Demonstrations:
        env = as_async(make_env())
        try:
            tidy = [await _play(env, task, rng, 0.0, ()) for task in chosen]
            others = [action for episode in tidy for action in episode.actions]
            known = chosen if others else []
            recovered = [await _play(env, task, rng, RECOVERED_RATE, others) for task in known]
            mixed = [await _play(env, task, rng, spoilt, others) for task in known]
        finally:
            await env.close()
        return Demonstrations(tidy=tuple(tidy), recovered=tuple(recovered), spoilt=tuple(mixed))

    return asyncio.run(play())


def spoil(action: str, others: Sequence[str], rng: np.random.Generator) -> str:
    """A likely mistake: the action cut short, another task's action, or, where there is a number, one a bit off.

    Each kind is as likely as the others.

    >>> rng = np.random.default_rng(0)
    >>> [spoil("42", ["17"], rng) for _ in range(6)]
    ['43', '17', '', '', '', '43']

    Args:
        action: the right one.
        others: actions of all demonstrations.
        rng: decides.
    """
    numbers = list(re.finditer(r"\d+", action))
    kind = int(rng.integers(3 if numbers else 2))
    if kind == 0:
        return action[: int(rng.integers(len(action)))] if action else ""
    if kind == 1:
        return others[int(rng.integers(len(others)))]
    number = numbers[int(rng.integers(len(numbers)))]
    slipped = abs(int(number.group()) + int(rng.choice(SLIPS)))
    return f"{action[: number.start()]}{slipped}{action[number.end() :]}"


def texts(played: Demonstrations) -> Iterator[str]:
    """Everything that is said in the demonstrations, by either side."""
    for episode in played.episodes:
        yield from _text(episode.prompt)
        yield from episode.actions
        for observation in episode.feedback:
            yield from _text(observation)


async def _play(
    env: AgentInstance, task: Task, rng: np.random.Generator, rate: float, others: Sequence[str]
) -> Demonstration:
    """One episode: the demonstration's actions in order, each spoilt at a rate."""
    async with asyncio.timeout(EPISODE_TIMEOUT_S):
        env_seed = task.seed if task.seed is not None else int(rng.integers(2**31))
        prompt, _ = await env.reset(seed=env_seed, options=dict(task.options))
        due = list(env.demonstrations(task, rng) or ())
        actions: list[str] = []
        is_mistake: list[bool] = []
        feedback: list[Observation] = []
        while due and len(actions) < MAX_TURNS:
            action = spoil(due[0], others, rng) if rng.random() < rate else due[0]
            is_mistake.append(action != due[0])
            if action == due[0]:
                due.pop(0)
            result = as_step_result(await env.step(Action(text=action)), type(env.unwrapped).__name__)
            actions.append(action)
            feedback.append(result.observation)
            if result.terminated or result.truncated:
                break
    return Demonstration(
        task_id=task.id,
        prompt=prompt,
        actions=tuple(actions),
        is_mistake=tuple(is_mistake),
        feedback=tuple(feedback),
    )


def _task(tasks: TaskSource, index: int) -> Task:
    return tasks.task(index if tasks.num_tasks is None else index % tasks.num_tasks)


def _text(observation: Observation) -> Iterator[str]:
    if isinstance(observation, str):
        yield observation
    elif isinstance(observation, Verbatim):
        yield observation.text
    elif isinstance(observation, Mapping):
        yield str(observation["content"])
    else:
        for part in observation:
            if isinstance(part, Mapping):
                yield str(part["content"])
