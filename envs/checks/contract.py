"""Does the environment keep the contract: its signature, its types, its order of calls, its closing?"""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium

from ..errors import EpisodeEndedError, InvalidStepError, ResetNeededError
from ..instance import AgentInstance
from ..registry import EnvSpec, task_source
from ..tasks import TaskSource
from ..types import Action, as_step_result, check_observation
from ..wrappers import Wrapper
from .actions import PROBES, Policy, constant, quote, scripted, text_of
from .context import CheckContext, CheckFailed, CheckSkipped
from .play import describe, options_of, play

_RESET = "async def reset(self, *, seed=None, options=None)"
_ORDER = "make instances with turngym.envs.make, or return OrderEnforcing(instance)"


async def check_instance(context: CheckContext) -> None:
    """The factory gives a new `AgentInstance` each time."""
    try:
        made = context.factory(), context.factory()
    except Exception as error:
        raise CheckFailed(
            f"making an instance raised {describe(error)}; the factory must give one when called without arguments"
        ) from error
    if not isinstance(made[0], AgentInstance):
        raise CheckFailed(
            f"the factory gave {type(made[0]).__name__}; it must give an instance of a class derived from AgentInstance"
        )
    if made[0] is made[1]:
        raise CheckFailed("the factory gave the same instance twice; it must make a new one each time it is called")
    _learn_spec(context, made[0])
    for instance in made:
        await context.close(context.guard(instance))


def _learn_spec(context: CheckContext, instance: AgentInstance) -> None:
    """Take the specification from an instance, and with it the tasks where none were known before."""
    context.has_reward = _has_reward(instance)
    if context.spec.entry_point is not context.factory:
        context.spec = instance.spec or context.spec
        return
    cls = type(instance.unwrapped)
    fields = {name: getattr(cls, name) for name in ("max_turns", "reward_range") if hasattr(cls, name)}
    context.spec = instance.spec or EnvSpec(id=cls.__name__, entry_point=cls, **fields)
    if context.source is None:
        tasks: Any = getattr(cls, "tasks", None)
        if instance.spec is not None and instance.spec.tasks is not None:
            context.use_source(task_source(instance.spec.id))
        elif tasks is not None:
            context.use_source(tasks if isinstance(tasks, TaskSource) else tasks())


def _has_reward(instance: AgentInstance) -> bool:
    from ..rewards.rewarded import RewardedInstance  # which few environments need

    while isinstance(instance, Wrapper):
        if isinstance(instance, RewardedInstance):
            return True
        instance = instance.env
    return False


async def check_reset(context: CheckContext) -> None:
    """`reset` takes `seed` and `options` by name and returns (observation, info)."""
    async with context.open() as instance:
        parameters = inspect.signature(instance.unwrapped.reset).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        for name in ("seed", "options"):
            if name not in parameters and not takes_any:
                raise CheckFailed(f"reset takes no argument {name!r}; write {_RESET}")
        for task in context.tasks:
            context.progress.begin("reset")
            try:
                returned = await instance.reset(seed=task.seed, options=options_of(task))
            except Exception as error:
                advice = (
                    "" if context.source else "; if it needs a task's options, pass tasks= or register it with tasks="
                )
                raise CheckFailed(
                    f"reset raised {describe(error)} for task {task.id!r} with the options "
                    f"{dict(task.options)!r:.200}{advice}"
                ) from error
            _check_reset_result(returned)


def _check_reset_result(returned: object) -> None:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise CheckFailed(
            f"reset returned {type(returned).__name__} {returned!r:.80}; return the tuple (observation, info)"
        )
    observation, info = returned
    try:
        check_observation(observation, "reset")
    except InvalidStepError as error:
        raise CheckFailed(str(error)) from error
    if not isinstance(info, Mapping):
        raise CheckFailed(f"reset's info is {type(info).__name__} {info!r:.80}; it must be a mapping, such as {{}}")


async def check_step(context: CheckContext) -> None:
    """`step` answers ordinary actions with a `StepResult` or a 5-tuple whose fields have the right types."""
    for transcript in await context.ordinary():
        if transcript.error:
            raise CheckFailed(
                f"task {transcript.task.id!r}: {transcript.error}; step must answer whatever the policy writes, "
                "or raise PolicyFault where the policy is to blame"
            )
        for where, turn in transcript.placed():
            try:
                as_step_result(replace(turn.result, reward=0.0, token_rewards=None, score=None), where)
            except InvalidStepError as error:
                raise CheckFailed(str(error)) from error


async def check_spaces(context: CheckContext) -> None:
    """The spaces are Gymnasium's, and every observation that is text lies in its space."""
    async with context.open() as instance:
        for name in ("action_space", "observation_space"):
            space = getattr(instance, name)
            if not isinstance(space, gymnasium.spaces.Space):
                raise CheckFailed(
                    f"{name} is {type(space).__name__} {space!r:.80}; it must be a gymnasium.spaces.Space"
                )
        space = instance.observation_space
    for transcript in await context.ordinary():
        places = [(f"task {transcript.task.id!r}, reset", transcript.observation)]
        places += [(where, turn.result.observation) for where, turn in transcript.placed()]
        for where, observation in places:
            text = text_of(observation)
            if text is not None and text not in space:
                raise CheckFailed(
                    f"{where}: the observation {quote(text)} isn't in observation_space {space!r}; "
                    "widen the space (UnicodeText holds any text), or shorten the observation"
                )


async def check_step_before_reset(context: CheckContext) -> None:
    """`step` before `reset` raises `ResetNeededError`."""
    instance = context.make()
    try:
        happened = await _what_step_does(context, instance, ResetNeededError)
    finally:
        await context.close(instance)
    if happened:
        raise CheckFailed(f"step before reset {happened}; it must raise ResetNeededError: {_ORDER}")


async def check_step_after_end(context: CheckContext) -> None:
    """`step` after the episode's end raises `EpisodeEndedError`."""
    for transcript in await context.ordinary():
        if not transcript.ended or transcript.turns[-1].is_fault:
            continue
        instance = context.make()
        try:
            script = scripted(transcript.policy, [turn.action for turn in transcript.turns])
            num_turns, progress = len(transcript.turns), context.progress
            again = await play(instance, transcript.task, script, max_turns=num_turns, progress=progress)
            if not again.ended:
                continue
            happened = await _what_step_does(context, instance, EpisodeEndedError)
        finally:
            await context.close(instance)
        if happened:
            raise CheckFailed(f"step after the episode's end {happened}; it must raise EpisodeEndedError: {_ORDER}")
        return
    raise CheckSkipped(
        "no episode ended, neither by demonstrations nor by probes, so none could be stepped after its end"
    )


async def _what_step_does(context: CheckContext, instance: AgentInstance, expected: type[Exception]) -> str:
    """What a step did instead of raising the expected error, or nothing."""
    context.progress.begin("step")
    try:
        result = await instance.step(Action(text="Hello."))
    except expected:
        return ""
    except Exception as error:  # noqa: BLE001 - the environment's, whatever it is
        return f"raised {describe(error)}"
    return f"returned {type(result).__name__}"


async def check_ends(context: CheckContext) -> None:
    """An episode ends, whatever is played: within `max_turns`, or within a generous bound."""
    limit = context.spec.max_turns or context.limits.max_turns
    for policy in (constant("an empty action", ""), PROBES):
        transcript = await context.play(context.tasks[0], policy, max_turns=limit)
        if transcript.error:
            raise CheckFailed(f"turn {len(transcript.turns) + 1}: {transcript.error}")
        if not transcript.ended:
            bound = "its max_turns" if context.spec.max_turns else "without a max_turns of its own"
            raise CheckFailed(
                f"{limit} turns of {policy.name} didn't end the episode ({bound}); wrap it in TimeLimit(env, "
                "max_turns), or give its class or registration a max_turns and make it with turngym.envs.make"
            )


async def check_options(context: CheckContext) -> None:
    """An episode leaves the task's options as they were, and can do with read-only ones, as training passes them."""
    for task in context.tasks:
        options = options_of(task)
        before = copy.deepcopy(options)
        async with context.open() as instance:
            await play(instance, task, PROBES, max_turns=3, progress=context.progress, options=options)
        for name in before.keys() | options.keys():
            if repr(before.get(name)) != repr(options.get(name)):
                raise CheckFailed(
                    f"task {task.id!r}: option {name!r} was {before.get(name)!r:.80} before the episode and is "
                    f"{options.get(name)!r:.80} after it; copy what you change: siblings get the same options"
                )
        async with context.open() as instance:
            try:
                await instance.reset(seed=task.seed, options=task.options)
            except Exception as error:
                raise CheckFailed(
                    f"task {task.id!r}: reset raised {describe(error)} with read-only options, as training passes "
                    "them; take any Mapping, and copy what you change"
                ) from error


async def check_close(context: CheckContext) -> None:
    """`close` works before `reset`, in the middle of an episode, and twice."""
    for is_reset in (False, True):
        when = "in the middle of an episode" if is_reset else "before reset"
        instance = context.make()
        if is_reset:
            task = context.tasks[0]
            await play(instance, task, _first_probe(), max_turns=1, progress=context.progress)
        for count in ("", "a second time "):
            context.progress.begin("close")
            try:
                await instance.close()
            except Exception as error:
                raise CheckFailed(
                    f"close {count}{when} raised {describe(error)}; close must do nothing where nothing is open"
                ) from error


def _first_probe() -> Policy:
    return scripted("probe", [PROBES.act("", "", 0) or ""])


async def check_picklable(context: CheckContext) -> str | None:
    """Tasks survive pickling; so does the factory, or a note says that worker processes are out of reach."""
    if context.source is not None:
        try:
            copied = pickle.loads(pickle.dumps(context.source))
            same = all(copied.task(index) == context.source.task(index) for index in range(len(context.tasks)))
        except Exception as error:
            raise CheckFailed(
                f"pickling {type(context.source).__name__} raised {describe(error)}; "
                "keep only plain data in it: it is sent to other processes"
            ) from error
        if not same:
            raise CheckFailed(
                f"{type(context.source).__name__} gives other tasks after pickling; keep its seed in its state"
            )
    try:
        pickle.loads(pickle.dumps(context.factory))
    except Exception as error:  # noqa: BLE001 - pickle raises anything
        return (
            f"the factory can't be pickled ({describe(error)}), so --env_workers can't be used; "
            "a class or function of a module can, and so can EnvFactory"
        )
    return None
