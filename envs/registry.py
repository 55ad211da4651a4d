"""Environments by id: `register`, `spec`, `make`.

An id is one of

    Math-v0, lab/Maze-v1          registered here or by the user
    package.module:Class          a class that can be imported
    path/to/file.py:Class         a class in a file, which is loaded once
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from .errors import ConfigError, UnknownEnvError
from .instance import AgentInstance
from .tasks import TaskSource
from .threads import as_async
from .user_files import import_file
from .wrappers import OrderEnforcing, TimeLimit

EntryPoint: TypeAlias = str | Callable[..., AgentInstance]
TasksEntryPoint: TypeAlias = str | Callable[..., TaskSource]

_ID = re.compile(r"([\w.-]+/)?[\w.-]+-v\d+")
_registry: dict[str, EnvSpec] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """What is known about an environment before one is made.

    Attributes:
        id: how it is asked for.
        entry_point: a class or function that gives an instance, or where to find it: `module:Class`, `file.py:Class`.
        kwargs: arguments of the entry point; those given to `make` come on top.
        max_turns: the turn after which an episode is truncated, or None.
        reward_range: least and greatest that one turn may earn.
        deterministic: whether the same seed, options and actions give the same episode.
        replayable: whether the same actions may be played again for the same result, so that nothing outside changes.
        tasks: gives the environment's tasks, or None where it has none of its own.
        description: one line for `turngym envs`.
    """

    id: str
    entry_point: EntryPoint
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_turns: int | None = None
    reward_range: tuple[float, float] = (-math.inf, math.inf)
    deterministic: bool = True
    replayable: bool = True
    tasks: TasksEntryPoint | None = None
    description: str = ""

    def __post_init__(self) -> None:
        low, high = self.reward_range
        if not low <= high:
            raise ConfigError(f"{self.id}: reward_range={self.reward_range!r} must be (least, greatest)")
        if self.max_turns is not None and (not isinstance(self.max_turns, int) or self.max_turns < 1):
            raise ConfigError(f"{self.id}: max_turns={self.max_turns!r} must be an integer of at least 1, or None")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvFactory:
    """Makes instances of one environment; can be pickled and sent to worker processes.

    Attributes:
        id: the environment's id.
        kwargs: arguments for `make`.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> AgentInstance:
        """A new instance."""
        return make(self.id, **self.kwargs)

    def without_reward(self) -> EnvFactory:
        """Makes the environment alone, where `reward` and `reward_on` attach one."""
        own, _ = _split(spec(self.id), self.kwargs)
        return EnvFactory(id=self.id, kwargs=own)


def register(
    id: str,  # noqa: A002
    *,
    entry_point: EntryPoint,
    kwargs: Mapping[str, Any] | None = None,
    max_turns: int | None = None,
    reward_range: tuple[float, float] = (-math.inf, math.inf),
    deterministic: bool = True,
    replayable: bool = True,
    tasks: TasksEntryPoint | None = None,
    description: str = "",
    replace: bool = False,
) -> EnvSpec:
    """Register an environment.

    >>> from turngym.envs import make, register
    >>> from turngym.envs.math import MathEnv
    >>> spec = register("docs/Patient-v0", entry_point=MathEnv, kwargs={"max_attempts": 9}, description="No hurry.")
    >>> make("docs/Patient-v0").unwrapped.max_attempts
    9

    Args:
        id: `Name-vN` or `namespace/Name-vN`.
        entry_point: a class or function that gives an instance, or where to find it.
        kwargs: as those that follow, the field of `EnvSpec`.
        max_turns: likewise.
        reward_range: likewise.
        deterministic: likewise.
        replayable: likewise.
        tasks: likewise.
        description: likewise.
        replace: whether an environment that has the id already is replaced.

    Raises:
        ConfigError: the id has another form, or is taken by another environment.
    """
    if not _ID.fullmatch(id):
        raise ConfigError(f"environment id {id!r} must look like Name-v0 or namespace/Name-v0")
    new = EnvSpec(
        id=id,
        entry_point=entry_point,
        kwargs=dict(kwargs or {}),
        max_turns=max_turns,
        reward_range=reward_range,
        deterministic=deterministic,
        replayable=replayable,
        tasks=tasks,
        description=description,
    )
    old = _registry.get(id)
    if old is not None and old != new and not replace:
        raise ConfigError(
            f"environment id {id!r} is taken by {old.entry_point!r}; choose another, or pass replace=True"
        )
    _registry[id] = new
    return new


def registered() -> tuple[EnvSpec, ...]:
    """The specifications of all registered environments, by id."""
    return tuple(_registry[id] for id in sorted(_registry))  # noqa: A001


def spec(id: str) -> EnvSpec:  # noqa: A002
    """The specification of an environment.

    Raises:
        UnknownEnvError: nothing is registered under the id, and it names no class that can be loaded.
    """
    found = _registry.get(id)
    if found is not None:
        return found
    if ":" in id:
        return _spec_of_class(id)
    near = difflib.get_close_matches(id, _registry, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(_registry))}."
    raise UnknownEnvError(f"no environment {id!r}; {hint} Otherwise give module:Class or path/to/file.py:Class")


def make(id: str, **kwargs: Any) -> AgentInstance:  # noqa: A002
    """Make an instance: async, checked, in order, and truncated at the specification's `max_turns`.

    Args:
        id: a registered id, `module:Class` or `path/to/file.py:Class`.
        kwargs: arguments of the environment. Those that only its tasks take are left to `task_source`. `reward` and
            `reward_on` attach a reward (see `RewardedInstance`), unless the environment has an argument of that name.

    Raises:
        UnknownEnvError: there is no such environment.
        ConfigError: neither the environment nor its tasks take an argument of this name.
    """
    env_spec = spec(id)
    build = _load_env(env_spec.entry_point)
    instance = build(**_choose(env_spec, kwargs, build))
    if not isinstance(instance, AgentInstance):
        raise ConfigError(f"{id}: its entry point gave {type(instance).__name__}; it must give an AgentInstance")
    instance.spec = env_spec
    instance = as_async(instance)
    if env_spec.max_turns is not None:
        instance = TimeLimit(instance, env_spec.max_turns)
    return OrderEnforcing(_with_reward(instance, **_split(env_spec, kwargs)[1]))


def task_source(id: str, **kwargs: Any) -> TaskSource:  # noqa: A002
    """The tasks that come with an environment.

    Args:
        id: as for `make`.
        kwargs: arguments of the tasks. Those that only the environment takes are left to `make`.

    Raises:
        UnknownEnvError: there is no such environment.
        ConfigError: it has no tasks of its own, or neither they nor the environment take an argument of this name.
    """
    env_spec = spec(id)
    if env_spec.tasks is None:
        raise ConfigError(f"{id} has no tasks of its own; give a file with --prompt_data, or register it with tasks=")
    tasks = _load_tasks(env_spec.tasks)
    if isinstance(tasks, TaskSource):
        _choose(env_spec, kwargs, _load_env(env_spec.entry_point))
        return tasks
    return tasks(**_choose(env_spec, kwargs, tasks))


def _choose(env_spec: EnvSpec, kwargs: Mapping[str, Any], target: Callable[..., Any]) -> dict[str, Any]:
    """Those arguments that the target takes, or an error that names the one that nobody takes."""
    accepted = _parameters(target)
    merged, _ = _split(env_spec, kwargs)
    if accepted is None:
        return merged
    others: frozenset[str] | None = frozenset()
    for other in (_load_env(env_spec.entry_point), _load_tasks(env_spec.tasks) if env_spec.tasks else None):
        names = _parameters(other) if callable(other) else frozenset()
        others = None if others is None or names is None else others | names
    for name in merged:
        if others is not None and name not in others:
            known = ", ".join(sorted(others)) or "none"
            raise ConfigError(f"{env_spec.id} takes no argument {name!r}; it takes: {known}")
    return {name: value for name, value in merged.items() if name in accepted}


def _split(env_spec: EnvSpec, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of the environment and its tasks, and apart from them those that attach a reward."""
    merged = {**env_spec.kwargs, **kwargs}
    own = _parameters(_load_env(env_spec.entry_point)) or frozenset()
    attached = {name: merged.pop(name) for name in ("reward", "reward_on") if name in merged and name not in own}
    return merged, attached


def _with_reward(instance: AgentInstance, reward: Any = None, reward_on: Any = None) -> AgentInstance:
    if reward is None:
        if reward_on is not None:
            raise ConfigError(f"reward_on={reward_on!r} without a reward; give reward= too")
        return instance
    from .rewards.rewarded import RewardedInstance

    return RewardedInstance(instance, reward, on=reward_on or "episode")


@functools.lru_cache(maxsize=1024)
def _parameters(target: Callable[..., Any]) -> frozenset[str] | None:
    """Names of the keyword arguments, or None where any name is taken."""
    parameters = inspect.signature(target).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(
        p.name
        for p in parameters
        if p.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    )


def _spec_of_class(id: str) -> EnvSpec:  # noqa: A002
    found = _load(id)
    if not callable(found):
        raise UnknownEnvError(f"{id} is a {type(found).__name__}; it must be a class derived from AgentInstance")
    if inspect.isclass(found) and not issubclass(found, AgentInstance):
        raise UnknownEnvError(f"{id} isn't derived from turngym.envs.AgentInstance: derive it, define reset and step")
    fields = {name: getattr(found, name) for name in ("max_turns", "reward_range") if hasattr(found, name)}
    tasks = f"{id}.tasks" if getattr(found, "tasks", None) is not None else None
    lines = (inspect.getdoc(found) or "").splitlines() or [""]
    return EnvSpec(id=id, entry_point=id, tasks=tasks, description=lines[0], **fields)


def _load_env(entry_point: EntryPoint) -> Callable[..., Any]:
    return _load(entry_point) if isinstance(entry_point, str) else entry_point


def _load_tasks(tasks: TasksEntryPoint) -> Any:
    return _load(tasks) if isinstance(tasks, str) else tasks


def _load(location: str) -> Any:
    """The object at `module:name` or `file.py:name`; the name may have dots."""
    where, _, names = location.rpartition(":")
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise UnknownEnvError(f"{location}: there is no file {where}")
        module = import_file(Path(where))
    else:
        try:
            module = importlib.import_module(where)
        except ImportError as error:
            raise UnknownEnvError(f"{location}: can't import {where!r}: {error}") from error
    found: Any = module
    for name in names.split("."):
        found = getattr(found, name, None)
        if found is None:
            raise UnknownEnvError(f"{location}: {where} defines no {name!r}")
    return found


register(
    "Math-v0",
    entry_point="turngym.envs.math.env:MathEnv",
    reward_range=(-0.2 - 0.1, 1.0),  # from no answer in the last attempt to the right one
    tasks="turngym.envs.math.tasks:MathTasks",
    description="Arithmetic and algebra; several attempts, feedback on each.",
)
register(
    "GuessNumber-v0",
    entry_point="turngym.envs.math.guess_number:GuessNumberEnv",
    max_turns=12,
    reward_range=(0.0, 1.0),
    tasks="turngym.envs.math.guess_number:GuessNumberTasks",
    description="Higher or lower; each turn earns the share of the interval that it removed.",
)
register(
    "SingleTurn-v0",
    entry_point="turngym.envs.single_turn:SingleTurnEnv",
    description="One prompt, one response; any data set, and the reward that you attach.",
)
