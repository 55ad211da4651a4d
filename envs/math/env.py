"""Math-v0: a question, several attempts, feedback after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError
from ..instance import AgentInstance
from ..types import Action, Observation, StepResult
from .grading import as_number, is_right, mentions, stated_expression, stated_number, unframed, value
from .tasks import MathTasks

if TYPE_CHECKING:
    from ..tasks import Task

MAX_ATTEMPTS = 3
MAX_ACTION_CHARS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class MathRewards:
    """What a turn earns.

    Attributes:
        right: for the right answer.
        wrong: for a wrong one.
        no_answer: for an action that states no answer.
        out_of_attempts: on top of the two before, for the attempt that was the last.
    """

    right: float = 1.0
    wrong: float = -0.1
    no_answer: float = -0.2
    out_of_attempts: float = -0.1

    def __post_init__(self) -> None:
        for name, reward in asdict(self).items():
            if not isinstance(reward, int | float) or not isfinite(reward):
                raise ConfigError(f"rewards: {name}={reward!r} must be a finite number")

    @classmethod
    def of(cls, fields: MathRewards | Mapping[str, float] | None) -> MathRewards:
        """The rewards themselves, or the defaults with some fields changed."""
        if isinstance(fields, MathRewards):
            return fields
        for name in fields or ():
            if name not in cls.__dataclass_fields__:
                raise ConfigError(f"rewards has no field {name!r}; there are {', '.join(cls.__dataclass_fields__)}")
        return cls(**(fields or {}))


class MathEnv(AgentInstance):
    """A question to answer in a few attempts.

    The task's options are `prompt` and `label`, and `sides` for an equation of the built-in generator. Without options,
    a question is drawn with the seed.

    Args:
        max_attempts: how many answers may be tried.
        rewards: what a turn earns: a `MathRewards`, or some of its fields.
        level: of the questions that are drawn without options.
        max_action_chars: a longer action counts as one without an answer.
    """

    def __init__(
        self,
        *,
        max_attempts: int = MAX_ATTEMPTS,
        rewards: MathRewards | Mapping[str, float] | None = None,
        level: int = 1,
        max_action_chars: int = MAX_ACTION_CHARS,
    ) -> None:
        if not isinstance(max_attempts, int) or max_attempts < 1:
            raise ConfigError(f"max_attempts={max_attempts!r} must be an integer of at least 1")
        self.max_attempts = max_attempts
        self.rewards = MathRewards.of(rewards)
        self.level = level
        self.max_action_chars = max_action_chars
        self._prompt = self._label = ""
        self._is_number = True
        self._options: Mapping[str, Any] = {}
        self._attempt = 0

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Ask the question."""
        if not options:
            index = int(np.random.default_rng(seed).integers(2**31))
            options = MathTasks(level=self.level, split="train").task(index).options
        for name in ("prompt", "label"):
            if not isinstance(options.get(name), str | int | float):
                raise ConfigError(
                    f"Math-v0 needs the option {name!r}, as text; the task has {', '.join(options)}: "
                    "choose the columns with --input_key and --label_key"
                )
        self._options = options
        self._prompt, label = str(options["prompt"]), unframed(str(options["label"]))
        number = as_number(label)
        self._is_number, self._label = number is not None, number or label
        self._attempt = 0
        return self._prompt, {}

    async def step(self, action: Action) -> StepResult:
        """Grade an attempt."""
        self._attempt += 1
        answer = self._answer(action.text)
        correct = answer is not None and await is_right(answer, self._label)
        if correct and self._is_echo(answer):
            answer, correct = None, False
        is_last = self._attempt >= self.max_attempts
        rewards = self.rewards
        if correct:
            reward = rewards.right
        else:
            reward = rewards.no_answer if answer is None else rewards.wrong
            reward += rewards.out_of_attempts if is_last else 0.0
        return StepResult(
            observation=self._feedback(answer, correct=correct, is_last=is_last),
            reward=reward,
            terminated=correct or is_last,
            info={"attempt": self._attempt, "answer": answer, "correct": correct},
            score=float(correct),
        )

    def _answer(self, text: str) -> str | None:
        """What the action states, apart from a repetition of the prompt."""
        if len(text) > self.max_action_chars:
            return None
        if " " in self._prompt:
            text = text.replace(self._prompt, " ")
        return stated_number(text) if self._is_number else stated_expression(text)

    def _is_echo(self, answer: str | None) -> bool:
        """Whether an answer is part of the prompt and leaves the work undone, as `2x + 3x` does for `5x`."""
        return answer is not None and answer != self._label and mentions(self._prompt, answer)

    def _feedback(self, answer: str | None, *, correct: bool, is_last: bool) -> str:
        if correct:
            return "Correct."
        if is_last:
            return "Wrong. No attempts are left."
        if answer is None:
            return "No answer found. Reply with one number." if self._is_number else "No answer found."
        return self._hint(answer)

    def _hint(self, answer: str) -> str:
        guess, truth = value(answer), value(self._label)
        if guess is None or truth is None:
            return "Wrong. Try again."
        direction = "Too low." if guess < truth else "Too high."
        sides = self._options.get("sides")
        if sides is None:
            return direction
        (a, b), (c, d) = sides
        left, right = a * guess + b, c * guess + d
        check = f"x = {guess} gives {left}, not {right}. {direction}"
        return direction if mentions(check, self._label) else check

    @classmethod
    def demonstrations(cls, task: Task, rng: np.random.Generator) -> Sequence[str]:
        """The label."""
        del rng
        return [str(task.options["label"])]
