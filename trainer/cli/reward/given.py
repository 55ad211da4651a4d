"""The reward that a command names, and the flags that its commands share."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ....envs.errors import ConfigError
from ....envs.rewards.base import RewardFunction
from ..flags import FlagParser

Result = TypeVar("Result")

WHICH = "a ready reward's name, FILE.py, FILE.py:NAME or module:NAME"


def add_reward(parser: FlagParser, option: str = "reward") -> None:
    """Add what names a reward: `option` is a flag, or a positional argument."""
    shape: dict[str, Any] = {"metavar": "REWARD"} if option.startswith("--") else {"nargs": "?"}
    parser.add_argument(option, type=str, help=WHICH, **shape)
    parser.add_argument(
        "--reward_kwargs",
        type=dict[str, Any],
        default={},
        metavar="K=V ...",
        help="arguments of a ready reward, such as target_length=50",
    )
    parser.add_argument(
        "--reward_timeout_s",
        type=float,
        default=120.0,
        metavar="X",
        help="seconds that one call of the reward may take",
    )
    parser.add_argument(
        "--real_imports", type=bool, default=False, metavar="", help="import the packages that a reward file names"
    )


def reward_of(flags: Mapping[str, Any]) -> RewardFunction:
    """The reward that the flags of `add_reward` name.

    Raises:
        ConfigError: there is no such reward.
    """
    given, timeout_s = flags["reward"], flags["reward_timeout_s"]
    if not given:
        raise ConfigError(f"the reward is missing; give {WHICH}")
    if not timeout_s > 0:
        raise ConfigError(f"--reward_timeout_s {timeout_s:g} must be above 0 seconds")
    file = file_of(given)
    if file is not None and not file.is_file():
        raise ConfigError(f"{file}: there is no such reward file; give {WHICH}")
    if flags["reward_kwargs"]:
        return _made(given, flags["reward_kwargs"], is_file=file is not None)
    from ...config import RewardConfig
    from ...reward_setup import make_scorer

    named: dict[str, Any] = {"reward_function": given}
    if given.startswith(("http://", "https://")):
        named = {"remote_rm_url": [given]}
    elif file is not None:
        named = {"reward_file": given}
    settings = RewardConfig(reward_timeout_s=timeout_s, real_imports=flags["real_imports"], **named)
    scorer = make_scorer(settings)
    assert scorer is not None
    return scorer.reward


def file_of(given: str) -> Path | None:
    """The file that FILE.py or FILE.py:NAME names, or None where it names none."""
    if given.endswith(".py"):
        return Path(given)
    path, colon, _ = given.rpartition(":")
    return Path(path) if colon and path.endswith(".py") else None


def call_timeout_s(flags: Mapping[str, Any]) -> float | None:
    """Seconds that one call may take, or None for no limit."""
    timeout_s: float = flags["reward_timeout_s"]
    return None if math.isinf(timeout_s) else timeout_s


async def with_reward(reward: RewardFunction, work: Callable[[RewardFunction], Awaitable[Result]]) -> Result:
    """What the work gives, between the reward's start and its close."""
    try:
        await reward.start()
        return await work(reward)
    finally:
        await reward.aclose()


def _made(name: str, kwargs: Mapping[str, Any], *, is_file: bool) -> RewardFunction:
    """A ready reward made with these arguments."""
    from ....envs import rewards

    kind = None if is_file else getattr(rewards, name, None)
    if not (isinstance(kind, type) and issubclass(kind, RewardFunction)):
        raise ConfigError(f"--reward_kwargs is for ready rewards, such as LengthReward; {name} isn't one")
    parameters = inspect.signature(kind).parameters
    known = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
    for argument in kwargs:
        if argument not in parameters and len(known) == len(parameters):
            raise ConfigError(f"--reward_kwargs: {name} takes no argument {argument!r}; it takes: {', '.join(known)}")
    try:
        return kind(**kwargs)
    except TypeError as error:
        raise ConfigError(f"--reward_kwargs: {error}") from None
