"""GuessNumber-v0: find a number by asking higher or lower."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..instance import AgentInstance
from ..tasks import SplitName, Task, narrowed
from ..types import Action, Observation, StepResult
from .grading import stated_number
from .tasks import ShuffledTaskSource, is_held_out

MIN_NUMBER, MAX_NUMBER = 1, 99
MIN_SIZE = 8
"""The smallest interval that is asked about."""
MAX_ACTION_CHARS = 65_536


class GuessNumberEnv(AgentInstance):
    """A secret between `low` and `high`. Each answer restates the interval that remains.

    With n numbers left, a guess that leaves m of them earns (n - m) / n, the share that it removed. The right guess
    leaves nothing to ask about and earns 1. A guess outside the interval removes nothing and earns 0, and so does an
    action without one number.

    In expectation the middle earns most at each turn. Summed over the episode, bisection earns within 0.1 % of the most
    that any strategy can, and whichever earns the most needs as few turns as bisection.

    The task's options are `low`, `high` and `secret`, all inclusive; without options they are drawn with the seed.
    """

    def __init__(self) -> None:
        self._low = self._high = self._secret = 0
        self._observation = ""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Name the interval."""
        if not options:
            index = int(np.random.default_rng(seed).integers(2**31))
            options = GuessNumberTasks(split="train").task(index).options
        self._low, self._high, self._secret = _interval(options)
        return self._observe("Guess a number"), {}

    async def step(self, action: Action) -> StepResult:
        """Compare a guess with the secret."""
        guess = self._guess(action.text)
        size = self._high - self._low + 1
        info = {"guess": guess, "size": size}
        if guess == self._secret:
            return StepResult(observation="Correct.", reward=1.0, terminated=True, score=1.0, info=info)
        if guess is None:
            answer = "No number found. Guess one"
        elif guess < self._secret:
            self._low, answer = max(self._low, guess + 1), "Higher. Guess"
        else:
            self._high, answer = min(self._high, guess - 1), "Lower. Guess"
        removed = size - (self._high - self._low + 1)
        return StepResult(observation=self._observe(answer), reward=removed / size, score=0.0, info=info)

    def _observe(self, start: str) -> str:
        self._observation = f"{start} from {self._low} to {self._high}."
        return self._observation

    def _guess(self, text: str) -> int | None:
        if len(text) > MAX_ACTION_CHARS:
            return None
        number = stated_number(text.replace(self._observation, " "), max_numbers=1)
        try:
            return None if number is None else int(number)
        except ValueError:
            return None

    @classmethod
    def demonstrations(cls, task: Task, rng: np.random.Generator) -> Sequence[str]:
        """The guesses of bisection; of two middles, either."""
        low, high, secret = _interval(task.options)
        guesses: list[str] = []
        while True:
            guess = (low + high + int(rng.integers(2))) // 2
            guesses.append(str(guess))
            if guess == secret:
                return guesses
            low, high = (guess + 1, high) if guess < secret else (low, guess - 1)


def _interval(options: Mapping[str, Any]) -> tuple[int, int, int]:
    try:
        low, high, secret = (int(options[name]) for name in ("low", "high", "secret"))
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"GuessNumber-v0 needs the options low, high and secret, all integers; the task has {dict(options)!r}"
        ) from None
    if not low <= secret <= high:
        raise ConfigError(f"GuessNumber-v0: secret={secret} must lie from low={low} to high={high}")
    return low, high, secret


@functools.lru_cache(maxsize=16)
def _intervals(min_size: int, max_number: int, part: SplitName | None) -> tuple[tuple[int, int], ...]:
    return tuple(
        (low, high)
        for low in range(MIN_NUMBER, max_number - min_size + 2)
        for high in range(low + min_size - 1, max_number + 1)
        if part is None or is_held_out(f"{low} to {high}") == (part == "held_out")
    )


class GuessNumberTasks(ShuffledTaskSource):
    """Intervals with secrets, without end. An interval is in one split only, with all of its secrets.

    Args:
        max_number: the greatest number that is asked about; the least is 1.
        min_size: how many numbers an interval holds at least.
        seed: decides the order of the intervals and the secrets.
        split: `train`, `held_out`, or None for both.
    """

    def __init__(
        self,
        *,
        max_number: int = MAX_NUMBER,
        min_size: int = MIN_SIZE,
        seed: int = 0,
        split: SplitName | None = None,
    ) -> None:
        super().__init__(seed=seed, split=split)
        if not 1 <= min_size <= max_number:
            raise ConfigError(f"min_size={min_size!r} must lie between 1 and max_number={max_number!r}")
        self.max_number = max_number
        self.min_size = min_size

    @property
    def num_distinct(self) -> int:
        """How many different intervals there are; a later round gives an interval another secret."""
        return len(_intervals(self.min_size, self.max_number, self.part))

    def _task_at(self, position: int, round_: int) -> Task:
        low, high = _intervals(self.min_size, self.max_number, self.part)[position]
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(round_, low, high)))
        secret = int(rng.integers(low, high + 1))
        options = {"low": low, "high": high, "secret": secret}
        return Task(id=f"guess/{low} to {high}, {secret}", options=options)

    def split(self, name: SplitName) -> GuessNumberTasks:
        """The intervals for training, or those held out."""
        part = narrowed(self.part, name)
        return GuessNumberTasks(max_number=self.max_number, min_size=self.min_size, seed=self.seed, split=part)


def bisection_turns(low: int, high: int) -> float:
    """Mean number of turns in which bisection finds a secret that is uniform from `low` to `high`.

    With n numbers it is the mean depth of a balanced search tree with n nodes, the least that any strategy needs.

    >>> bisection_turns(1, 3), bisection_turns(1, 7)
    (1.6666666666666667, 2.4285714285714284)

    Args:
        low: least number, inclusive.
        high: greatest number, inclusive.
    """
    if low > high:
        raise ConfigError(f"low={low} must not be greater than high={high}")
    size = high - low + 1
    total, depth, remaining = 0, 1, size
    while remaining > 0:
        here = min(remaining, 2 ** (depth - 1))
        total, depth, remaining = total + here * depth, depth + 1, remaining - here
    return total / size
