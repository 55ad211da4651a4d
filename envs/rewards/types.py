"""What a reward reads and what it gives: `Trajectory` and `RewardOutput`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidRewardError, RewardError
from ..types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryTurn:
    """One turn of a trajectory.

    Attributes:
        observation: what the policy read before it acted, as text.
        response: the action's text.
        token_ids: the action's tokens, exactly as sampled; empty where there are none.
        feedback: what the environment answered, as text.
        reward: what the environment gave for the turn.
        score: how well the task was solved after it, in [0, 1], or None.
    """

    observation: str = ""
    response: str = ""
    token_ids: tuple[int, ...] = ()
    feedback: str = ""
    reward: float = 0.0
    score: float | None = None


@dataclass(slots=True)
class Trajectory:
    """What a reward gets to see of an episode. Everything has a default, so that a test needs the response only.

    >>> Trajectory(response="4").turns[0].response
    '4'

    Attributes:
        prompt: the first observation, as text.
        response: all of the action text; of several turns, one after the other, a line each.
        messages: the conversation; made of prompt and response where it isn't given.
        turns: the turns, in order; one of the response where they aren't given.
        token_ids: the action tokens of all turns; one token reward belongs to each.
        label: the task's label, or None.
        columns: the task's row: prompt, label and its other columns.
        id: the episode's id.
        update: the update that it is sampled for, or None outside of training.
    """

    prompt: str = ""
    response: str = ""
    messages: Sequence[Message] = ()
    turns: Sequence[TrajectoryTurn] = ()
    token_ids: Sequence[int] = ()
    label: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    update: int | None = None

    def __post_init__(self) -> None:
        if not self.turns:
            self.turns = (
                TrajectoryTurn(observation=self.prompt, response=self.response, token_ids=tuple(self.token_ids)),
            )
        elif not self.response:
            self.response = "\n".join(turn.response for turn in self.turns)
        if not self.token_ids:
            self.token_ids = tuple(token for turn in self.turns for token in turn.token_ids)
        if not self.messages:
            asked: list[Message] = [{"role": "user", "content": self.prompt}] if self.prompt else []
            self.messages = [*asked, {"role": "assistant", "content": self.response}]

    @property
    def metadata(self) -> dict[str, Any]:
        """The row's columns, with the label as `answer` where it has no such column. A copy."""
        return {"answer": self.label, **self.columns} if self.label is not None else dict(self.columns)


@dataclass(slots=True)
class RewardOutput:
    """What a reward gives. Its lists are its own, and may be changed.

    >>> RewardOutput(0.5).metadata
    {}

    Attributes:
        reward: a finite number, meant for [0, 1].
        token_rewards: one finite number for each action token, in order (the closing token may be left out), or empty.
            Where they are given, the return uses them alone; `reward` is logged and filtered on. None stands for empty.
        metadata: anything worth logging; its numbers are logged as the reward's parts. None stands for nothing.
        score: how well the task is solved, in [0, 1]; None takes the reward, clamped.

    Raises:
        InvalidRewardError: something that should be a number isn't one.
        RewardError: a number isn't finite.
    """

    reward: float
    token_rewards: list[float] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    score: float | None = None

    def __post_init__(self) -> None:
        self.reward = as_finite(self.reward, "reward")
        tokens = () if self.token_rewards is None else self.token_rewards
        self.token_rewards = [as_finite(value, "a token reward") for value in tokens]
        self.metadata = {} if self.metadata is None else dict(self.metadata)
        if self.score is not None:
            self.score = as_finite(self.score, "score")

    @property
    def parts(self) -> dict[str, float]:
        """The numbers in `metadata`, by name; truth values count as 0 and 1."""
        return parts_of(self.metadata)


def truth_of(trajectory: Trajectory) -> Any:
    """The right answer, as far as the row knows it: the label, else its column `answer`.

    Raises:
        InvalidRewardError: there is neither.
    """
    truth = trajectory.columns.get("answer") if trajectory.label is None else trajectory.label
    if truth is None:
        raise InvalidRewardError("the row has neither a label nor a column 'answer'; choose it with --label_key")
    return truth


def parts_of(metadata: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a reward's metadata, by name; arrays and tensors of shape [] count as numbers."""
    numbers = {str(name): _number(value) for name, value in metadata.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def _number(value: Any) -> float | None:
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    try:
        return float(value) if isinstance(value, bool | int | float) and math.isfinite(value) else None
    except OverflowError:  # an int beyond every float
        return None


def as_finite(value: Any, what: str) -> float:
    """A value as a finite float: a number, a truth value, or an array or tensor of one element.

    Raises:
        InvalidRewardError: it is none of these.
        RewardError: it isn't finite.
    """
    number: float | None = None
    if not isinstance(value, str | bytes):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            number = None
    if number is None:
        raise InvalidRewardError(f"{what} is {described(value)}; it must be one number")
    if not math.isfinite(number):
        raise RewardError(f"{what} is {number}; it must be finite")
    return number


def described(value: Any) -> str:
    """A value for a message: its type, and its shape or the beginning of what it looks like."""
    shape = None if isinstance(value, type) else getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} of shape {tuple(shape)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
