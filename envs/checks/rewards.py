"""Do rewards say what they should: finite, in range, the top for a solution, nothing for actions that do no work?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..errors import InvalidStepError
from ..types import StepResult, as_step_result
from .actions import quote, scripted
from .context import CheckContext, CheckFailed, CheckSkipped
from .play import Transcript, describe

_SLACK = 1e-9


def earned(result: StepResult, where: str) -> float:
    """What a turn earned: its reward and its token rewards.

    Raises:
        CheckFailed: one of them is no finite number.
    """
    try:
        checked = as_step_result(replace(result, observation="", score=None, info={}), where)
    except InvalidStepError as error:
        raise CheckFailed(f"{error}; guard against NaN and overflow before the reward is given") from error
    return checked.reward + sum(checked.token_rewards or ())


async def check_any_action(context: CheckContext) -> None:
    """Nothing that a policy may write makes the environment raise or hang."""
    for transcript in await context.cheap():
        if transcript.error:
            raise CheckFailed(
                f"task {transcript.task.id!r}: {transcript.error}; a policy writes anything: answer what can't be read "
                "with feedback, or raise PolicyFault"
            )


async def check_rewards(context: CheckContext) -> None:
    """What a turn earns is finite and within the spec's `reward_range`."""
    low, high = context.spec.reward_range
    for transcript in (*await context.ordinary(), *await context.cheap()):
        for where, turn in transcript.placed():
            reward = earned(turn.result, where)
            if not low - _SLACK <= reward <= high + _SLACK:
                raise CheckFailed(
                    f"{where}: the turn earned {reward:g}, outside reward_range ({low:g}, {high:g}); "
                    "correct the reward, or register the environment with the range it has"
                )


async def check_scores(context: CheckContext) -> None:
    """A score is None or lies in [0, 1]."""
    for transcript in (*await context.ordinary(), *await context.cheap()):
        for where, turn in transcript.placed():
            try:
                as_step_result(StepResult(observation="", score=turn.result.score), where)
            except InvalidStepError as error:
                raise CheckFailed(f"{error}; divide it by the best that can be reached") from error


async def check_demonstrations(context: CheckContext) -> None:
    """The environment's own demonstrations solve their tasks: score 1, or the top reward where it gives no scores.

    Where a reward is attached, which may score as it likes, they only end the episode.
    """
    if context.source is None:
        raise CheckSkipped("there are no tasks to demonstrate; pass tasks=, or register the environment with tasks=")
    for task in context.tasks:
        async with context.open() as instance:
            try:
                actions = context.demonstration(instance, task)
            except Exception as error:
                raise CheckFailed(
                    f"task {task.id!r}: demonstrations raised {describe(error)}; return the actions that solve the "
                    "task, or None where there are none"
                ) from error
            if actions is None:
                raise CheckSkipped(f"the environment has no demonstrations (of task {task.id!r})")
            _check_actions(actions, task.id, instance.action_space)
        script = scripted("demonstration", list(actions))
        _check_solved(context, await context.play(task, script, max_turns=len(actions)), len(actions))


def _check_actions(actions: object, task_id: str, action_space: object) -> None:
    if isinstance(actions, str) or not isinstance(actions, Sequence) or not all(isinstance(a, str) for a in actions):
        raise CheckFailed(
            f"task {task_id!r}: demonstrations gave {type(actions).__name__} {actions!r:.80}; return a list of strings"
        )
    for action in actions:
        if action not in action_space:
            raise CheckFailed(
                f"task {task_id!r}: the demonstrated action {quote(action)} isn't in action_space {action_space!r}"
            )


def _check_solved(context: CheckContext, transcript: Transcript, num_actions: int) -> None:
    task = transcript.task.id
    if transcript.error:
        raise CheckFailed(f"task {task!r}: {transcript.error}; a demonstration must solve its task")
    if len(transcript.turns) < num_actions:
        raise CheckFailed(
            f"task {task!r}: the episode ended after {len(transcript.turns)} of {num_actions} demonstrated actions; "
            "end the demonstration with the action that solves the task"
        )
    if context.has_reward:
        return
    scores = [turn.result.score for turn in transcript.turns if turn.result.score is not None]
    if scores:
        if scores[-1] != 1:
            raise CheckFailed(
                f"task {task!r}: the demonstration scored {scores[-1]:g}; solve the task, or score its solution 1"
            )
        return
    top = context.spec.reward_range[1]
    last = earned(transcript.turns[-1].result, task) if transcript.turns else math.nan
    if not (transcript.ended and transcript.turns[-1].result.terminated):
        raise CheckFailed(
            f"task {task!r}: the demonstration gave no score and didn't terminate the episode; give score=1 where the "
            "task is solved"
        )
    if last < top - _SLACK and (math.isfinite(top) or last <= 0):
        raise CheckFailed(
            f"task {task!r}: the demonstration's last turn earned {last:g} and gave no score; give score=1 where the "
            f"task is solved, or the top of reward_range, {top:g}"
        )


async def check_cheap_rewards(context: CheckContext) -> None:
    """Empty actions, garbage, echoes of the prompt and very long actions earn nothing.

    Nothing means no score above 0 and no reward above 0. Where every action earns something, say 0.1, the environment's
    `reward_range` says so, and its lower end is what a cheap action may earn.
    """
    if context.has_reward:
        raise CheckSkipped("a reward is attached, which may pay for anything; try `turngym reward attack` on it")
    floor = max(0.0, context.spec.reward_range[0])
    for transcript in await context.cheap():
        for where, turn in transcript.placed():
            reward, score = earned(turn.result, where), turn.result.score
            if reward > floor + _SLACK:
                raise CheckFailed(
                    f"{where} earned {reward:g}; an action that does no work must earn nothing: make the grader "
                    "stricter, or, if every action earns that much, say so with the lower end of reward_range"
                )
            if score is not None and score > 0:
                raise CheckFailed(
                    f"{where} scored {score:g}; an action that does no work must score 0: make the grader stricter"
                )
