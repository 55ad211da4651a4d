"""Playing an episode without judging it: a transcript of what came back, as it came back."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import PolicyFault
from ..instance import AgentInstance
from ..tasks import Task
from ..types import Action, Observation, StepResult, as_step_result
from .actions import Policy, quote, text_of

if TYPE_CHECKING:
    from .context import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """An action and what came back for it, with the fields still unchecked.

    Attributes:
        action: the text played.
        result: what `step` returned, or what a `PolicyFault` stands for.
        is_fault: whether `step` raised a `PolicyFault`.
    """

    action: str
    result: StepResult
    is_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """An episode that was played.

    Attributes:
        task: what it started from.
        policy: the name of what played it.
        observation: what `reset` gave; None where it raised.
        turns: the turns played.
        error: what was raised, in words, or empty.
    """

    task: Task
    policy: str
    observation: Observation | None = None
    turns: tuple[PlayedTurn, ...] = ()
    error: str = ""

    @property
    def ended(self) -> bool:
        """Whether the environment said that the episode is over."""
        return bool(self.turns) and _is_last(self.turns[-1].result)

    def placed(self) -> Iterator[tuple[str, PlayedTurn]]:
        """Each turn, with words that say where it is."""
        for number, turn in enumerate(self.turns, start=1):
            yield f"task {self.task.id!r}, turn {number}, {self.policy} {quote(turn.action)}", turn

    def difference(self, other: Transcript) -> str | None:
        """Where the other episode first differs, in words, or None. `info` may differ."""
        mine, others = list(self._facts()), list(other._facts())
        for (where, fact), (_, others_fact) in zip(mine, others, strict=False):
            if fact != others_fact:
                return f"task {self.task.id!r}, {where}: {_short(fact)} became {_short(others_fact)}"
        if len(mine) != len(others):
            return f"task {self.task.id!r}: {len(self.turns)} turns became {len(other.turns)}"
        return None

    def _facts(self) -> Iterator[tuple[str, str]]:
        yield "observation of reset", repr(self.observation)
        for number, turn in enumerate(self.turns, start=1):
            for name in ("observation", "reward", "token_rewards", "score", "terminated", "truncated"):
                yield f"{name} of turn {number}", repr(getattr(turn.result, name))
        if self.error:
            yield "error", self.error


async def play(
    instance: AgentInstance,
    task: Task,
    policy: Policy,
    *,
    max_turns: int,
    progress: Progress,
    options: dict[str, Any] | None = None,
) -> Transcript:
    """Play one episode, or its first turns. Whatever the environment raises ends it, and stands in the transcript.

    Other episodes get their turn after each call, so that several at once are interleaved.

    Args:
        instance: what is played.
        task: what the episode starts from.
        policy: what plays.
        max_turns: the turn after which the rest is left out.
        progress: is told of each call.
        options: what `reset` gets; None gives it a copy of the task's.
    """
    call = progress.begin("reset")
    options = options_of(task) if options is None else options
    turns: list[PlayedTurn] = []
    observation = None
    try:
        observation = prompt = latest = (await instance.reset(seed=task.seed, options=options))[0]
        progress.beat()
        for number in range(max_turns):
            await asyncio.sleep(0)
            text = policy.act(text_of(prompt) or "", text_of(latest) or "", number)
            if text is None:
                break
            call = progress.begin(f"step, after {policy.name} {quote(text)}")
            turns.append(await _step(instance, text))
            progress.beat()
            latest = turns[-1].result.observation
            if _is_last(turns[-1].result):
                break
        error = ""
    except (Exception, SystemExit) as raised:  # noqa: BLE001 - the environment's, whatever it is
        error = f"{call} raised {describe(raised)}"
    return Transcript(task=task, policy=policy.name, observation=observation, turns=tuple(turns), error=error)


def options_of(task: Task) -> dict[str, Any]:
    """A task's options as a dict of one's own, which may be changed."""
    return copy.deepcopy(dict(task.options))


def describe(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {_short(text)}" if text else type(error).__name__


async def _step(instance: AgentInstance, text: str) -> PlayedTurn:
    try:
        value = await instance.step(Action(text=text))
    except PolicyFault as fault:
        result = StepResult(observation=str(fault), reward=fault.reward, truncated=True)
        return PlayedTurn(action=text, result=result, is_fault=True)
    if isinstance(value, StepResult):
        return PlayedTurn(action=text, result=value)
    if isinstance(value, tuple) and len(value) == 5:
        observation, reward, terminated, truncated, info = value
        result = StepResult(
            observation=observation, reward=reward, terminated=terminated, truncated=truncated, info=info
        )
        return PlayedTurn(action=text, result=result)
    return PlayedTurn(action=text, result=as_step_result(value, instance.name))  # raises


def _is_last(result: StepResult) -> bool:
    return bool(result.terminated) or bool(result.truncated)


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."
