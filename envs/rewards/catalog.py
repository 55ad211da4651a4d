"""Rewards by name: `register_reward`, `find_reward`, `registered_rewards`.

A name is one of

    check_answer, MathReward      a ready reward that needs no arguments, or one that you registered
    package.module:attribute      a reward, a class of rewards, or a function that can be imported
    path/to/file.py:attribute     the same in a file, which is loaded once
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from .base import RewardFunction
from .functions import as_reward

READY: tuple[str, ...] = (
    "LengthReward",
    "FormatReward",
    "KeywordReward",
    "FunctionReward",
    "CompositeReward",
    "BinaryReward",
    "GraduatedReward",
    "ContinuousReward",
    "MultiAspectReward",
    "ShapedReward",
    "FlooredReward",
    "GatedReward",
    "NormalizedReward",
    "ScaledReward",
    "MultiTaskReward",
    "CurriculumReward",
    "match_format_exactly",
    "check_answer",
    "check_numbers",
    "total_reward",
    "TotalReward",
    "MathReward",
    "CodeReward",
    "RewardModel",
    "LLMJudge",
    "JudgePanel",
    "PairwiseReward",
    "RankingReward",
    "DiversityPenalty",
)
"""The ready rewards. Each is imported when it is asked for."""

_registered: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedReward:
    """A reward that has a name.

    Attributes:
        name: what it is asked for by.
        description: the first line of its documentation.
        needs: arguments without which it can't be made, so that the name alone won't do.
    """

    name: str
    description: str = ""
    needs: tuple[str, ...] = ()


def register_reward(name: str, reward: Any, *, replace: bool = False) -> None:
    """Give a reward a name, in this process.

    >>> register_reward("docs/polite", lambda response: float("please" in response))
    >>> find_reward("docs/polite").name
    'docs/polite'

    Args:
        name: the name.
        reward: whatever `as_reward` takes, or a function without parameters that makes it.
        replace: whether a reward that has the name already is replaced.

    Raises:
        ConfigError: the name is empty or holds a colon, is taken, or this is no reward.
    """
    if not name or ":" in name:
        raise ConfigError(f"the name {name!r} of a reward must have a character or more, and no colon")
    taken = _registered.get(name, name if name in READY else None)
    if taken is not None and taken is not reward and not replace:
        raise ConfigError(f"the reward name {name!r} is taken; choose another, or pass replace=True")
    if not isinstance(reward, RewardFunction) and not callable(reward):
        raise ConfigError(f"{reward!r} is no reward; give a RewardFunction, or a function such as fn(response, label)")
    _registered[name] = reward
    shared_reward.cache_clear()


def find_reward(name: str) -> RewardFunction:
    """The reward of this name.

    >>> find_reward("LengthReward").reward_range
    (0.0, 1.0)

    Args:
        name: a registered name, `module:attribute` or `path/to/file.py:attribute`.

    Raises:
        ConfigError: there is no such reward, or it needs arguments; the message says what there is, or what is missing.
    """
    if name in _registered:
        return _made(_registered[name], name, rename=True)
    if name in READY:
        return _made(_ready(name), name)
    if ":" in name:
        return _made(_load(name), name)
    if name.endswith(".py"):
        raise ConfigError(f"{name} is a file; name the reward in it: {name}:NAME")
    known = [*_registered, *READY]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(known))}."
    raise ConfigError(f"no reward {name!r}; {hint} Otherwise give module:NAME or path/to/file.py:NAME")


@functools.cache
def shared_reward(name: str) -> RewardFunction:
    """As `find_reward`; the same object each time, so that all instances of an environment use one."""
    return find_reward(name)


def registered_rewards() -> tuple[NamedReward, ...]:
    """All rewards that have a name, by name: the ready ones and those that were registered."""
    named = {name: _ready(name) for name in READY} | _registered
    return tuple(_named(name, named[name]) for name in sorted(named, key=str.casefold))


def _named(name: str, found: Any) -> NamedReward:
    lines = (inspect.getdoc(found) or "").splitlines() or [""]
    return NamedReward(name=name, description=lines[0], needs=_missing(found) if inspect.isclass(found) else ())


def _made(found: Any, name: str, *, rename: bool = False) -> RewardFunction:
    """The reward itself, from what stands under a name."""
    if inspect.isclass(found) and (missing := _missing(found)):
        attribute = name.rpartition(":")[2]
        given = ", ".join(f"{argument}=..." for argument in missing)
        raise ConfigError(
            f"the reward {name} needs {' and '.join(missing)}, which a name can't give; make it in a file, "
            f"REWARD = {attribute}({given}), and name that: path/to/file.py:REWARD"
        )
    if _is_factory(found):
        found = found()
    try:
        return as_reward(found, name=name if rename else None)
    except ConfigError as error:
        raise ConfigError(f"the reward {name}: {error}") from error


def _missing(found: type) -> tuple[str, ...]:
    """Arguments without which a class can't be made."""
    return tuple(
        p.name
        for p in inspect.signature(found).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    )


def _is_factory(found: Any) -> bool:
    """Whether it makes a reward: a function without any parameter. A reward takes at least what it scores."""
    if isinstance(found, RewardFunction) or inspect.isclass(found) or not callable(found):
        return False
    try:
        return not inspect.signature(found).parameters
    except (TypeError, ValueError):
        return False


def _ready(name: str) -> Any:
    return getattr(importlib.import_module(__name__.rpartition(".")[0]), name)


def _load(location: str) -> Any:
    """The object at `module:attribute` or `file.py:attribute`; the attribute may have dots."""
    where, _, names = location.rpartition(":")
    if where.endswith(".py"):
        from ..user_files import load_user_module

        module = load_user_module(where)
    else:
        try:
            module = importlib.import_module(where)
        except (ImportError, ValueError) as error:  # the latter for an empty name
            raise ConfigError(f"the reward {location}: can't import {where!r}: {error}") from error
    found: Any = module
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            near = difflib.get_close_matches(name, dir(found), n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"the reward {location}: {where} defines no {name!r}{hint}") from None
    return found
