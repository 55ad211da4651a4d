"""The words between an environment and whoever plays it: observations, actions and the result of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np

from .errors import InvalidStepError
from .sampling import SamplingParams

FinishReason: TypeAlias = Literal["stop", "length", "abort"]
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


class _MessageBase(TypedDict):
    role: Role
    content: str


class Message(_MessageBase, total=False):
    """A chat message, as chat templates take it."""

    name: str
    tool_calls: list[dict[str, Any]]
    tool_call_id: str


class VerbatimData(str):
    """Text inside a `Verbatim` that stays plain text even where it spells an added token. Made by `Verbatim.data`."""

    __slots__ = ()


class Verbatim:
    r"""Text that is appended to the policy's context as it is: special tokens are parsed, none are added.

    >>> Verbatim("User: ", Verbatim.data("</s>?"), "</s>\n\nAssistant: ").text
    'User: </s>?</s>\n\nAssistant: '

    Args:
        parts: strings; those made by `Verbatim.data` stay plain text.
    """

    __slots__ = ("parts",)

    parts: tuple[str, ...]

    def __init__(self, *parts: str) -> None:
        for part in parts:
            if not isinstance(part, str):
                raise TypeError(f"Verbatim takes strings, got {type(part).__name__}: {part!r}")
        self.parts = parts

    @staticmethod
    def data(text: str) -> VerbatimData:
        """Mark text as data: no added token of the tokenizer that it spells becomes that token."""
        return VerbatimData(text)

    @property
    def text(self) -> str:
        """All parts joined."""
        return "".join(self.parts)

    def __add__(self, other: Verbatim) -> Verbatim:
        return Verbatim(*self.parts, *other.parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Verbatim):
            return NotImplemented
        return [(type(p), p) for p in self.parts] == [(type(p), p) for p in other.parts]

    def __hash__(self) -> int:
        return hash(self.parts)

    def __repr__(self) -> str:
        return f"Verbatim({', '.join(map(repr, self.parts))})"

    def __reduce__(self) -> tuple[type[Verbatim], tuple[str, ...]]:
        return Verbatim, self.parts


Observation: TypeAlias = str | Verbatim | Message | Sequence[Message] | Sequence[int]
"""What a policy reads next.

A `str` is a user message where the policy has a chat template, and verbatim text where it has none. `Verbatim` is
appended as it is. One message or a list of messages is rendered by the template. A sequence of integers is appended as
token ids.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool, parsed from an action. `arguments` is None where they were no valid JSON object."""

    name: str
    arguments: Mapping[str, Any] | None
    call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What the policy did in one turn.

    Attributes:
        text: the action decoded, without its end-of-turn token and cut at a stop string.
        token_ids: the tokens exactly as sampled; empty where an action was given as text.
        finish_reason: `stop` where a stop token or string ended it, `length` where `max_tokens` did.
        tool_calls: calls of tools that the text holds, where they were parsed.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason = "stop"
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step gives back. Unpacks as Gymnasium's 5-tuple.

    >>> observation, reward, terminated, truncated, info = StepResult(observation="Too low.", reward=0.5)
    >>> reward
    0.5

    Attributes:
        observation: feedback for the policy.
        reward: what this turn earned, finite.
        terminated: the task itself is over.
        truncated: a limit ended the episode.
        info: diagnostics; never read by training.
        token_rewards: one finite reward per action token, or None; the closing token may be left out.
        score: how well the task is solved so far, in [0, 1], or None.
        sampling: sampling parameters of the next turn, or None to keep them.
    """

    observation: Observation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    token_rewards: Sequence[float] | None = None
    score: float | None = None
    sampling: SamplingParams | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.observation, self.reward, self.terminated, self.truncated, self.info))


def as_step_result(value: object, where: str) -> StepResult:
    """Bring what `step` returned into one checked form. What is in that form already is given back as it is.

    Args:
        value: a `StepResult`, or Gymnasium's plain 5-tuple.
        where: the name of the environment, for the error's message.

    Raises:
        InvalidStepError: the value is of another type, or one of its fields breaks the contract.
    """
    if isinstance(value, StepResult):
        if _is_plain(value):
            return value
        result = value
    elif isinstance(value, tuple) and len(value) == 5:
        observation, reward, terminated, truncated, info = value
        result = StepResult(
            observation=observation, reward=reward, terminated=terminated, truncated=truncated, info=info
        )
    else:
        raise InvalidStepError(
            f"{where}: step returned {_describe(value)}; return a StepResult, or the tuple "
            "(observation, reward, terminated, truncated, info)"
        )
    reward = _finite(result.reward, where, "reward")
    score = None if result.score is None else _finite(result.score, where, "score")
    if score is not None and not 0 <= score <= 1:
        raise InvalidStepError(f"{where}: score is {score!r}; it must lie in [0, 1], or be None")
    for name in ("terminated", "truncated"):
        flag = getattr(result, name)
        if flag is not True and flag is not False and not isinstance(flag, np.bool_):
            raise InvalidStepError(f"{where}: {name} is {_describe(flag)}; it must be True or False")
    if not isinstance(result.info, Mapping):
        raise InvalidStepError(f"{where}: info is {_describe(result.info)}; it must be a mapping")
    check_observation(result.observation, where)
    token_rewards = result.token_rewards
    if token_rewards is not None:
        token_rewards = _token_rewards(token_rewards, where)
    if result.sampling is not None and not isinstance(result.sampling, SamplingParams):
        raise InvalidStepError(f"{where}: sampling is {_describe(result.sampling)}; it must be SamplingParams or None")
    if (
        result is value
        and reward is result.reward
        and score is result.score
        and token_rewards is result.token_rewards
        and type(result.terminated) is type(result.truncated) is bool
    ):
        return result
    return StepResult(
        observation=result.observation,
        reward=reward,
        terminated=bool(result.terminated),
        truncated=bool(result.truncated),
        info=result.info,
        token_rewards=token_rewards,
        score=score,
        sampling=result.sampling,
    )


def _is_plain(result: StepResult) -> bool:
    """Whether nothing is left to check or convert: the common case, decided without building anything."""
    return (
        type(result.observation) is str
        and type(result.reward) is float
        and isfinite(result.reward)
        and type(result.terminated) is bool
        and type(result.truncated) is bool
        and type(result.info) is dict
        and result.token_rewards is None
        and (result.score is None or (type(result.score) is float and 0.0 <= result.score <= 1.0))
        and result.sampling is None
    )


def _token_rewards(values: object, where: str) -> tuple[float, ...]:
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise InvalidStepError(
            f"{where}: token_rewards is {_describe(values)}; it must hold one number per action token"
        )
    if type(values) is tuple and all(type(value) is float and isfinite(value) for value in values):
        return values
    return tuple(_finite(value, where, f"token_rewards[{index}]") for index, value in enumerate(values))


def check_observation(value: object, where: str) -> None:
    """Raise `InvalidStepError` unless the value is an `Observation`."""
    if isinstance(value, str | Verbatim):
        return
    if isinstance(value, Mapping):
        _check_message(value, where)
        return
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, bytes):
        messages = [item for item in value if isinstance(item, Mapping)]
        if len(messages) == len(value):
            for message in messages:
                _check_message(message, where)
            return
        if all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in value):
            return
    raise InvalidStepError(
        f"{where}: observation is {_describe(value)}; return a str, a Verbatim, a chat message, "
        "a list of chat messages, or a sequence of token ids"
    )


def _check_message(message: Mapping[Any, Any], where: str) -> None:
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "user", "assistant", "tool") or not isinstance(content, str):
        raise InvalidStepError(
            f"{where}: message {_describe(dict(message))} needs a 'role' (system, user, assistant or tool) "
            "and a 'content' that is a str"
        )


def _finite(value: object, where: str, name: str) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value)  # pyright: ignore[reportArgumentType]  # numpy and one-element tensors convert, too
    except (TypeError, ValueError, RuntimeError):  # the last from tensors of several elements
        raise InvalidStepError(f"{where}: {name} is {_describe(value)}; it must be a finite number") from None
    if not isfinite(number):
        raise InvalidStepError(f"{where}: {name} is {number!r}; it must be a finite number")
    return number


def _describe(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
