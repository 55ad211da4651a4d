"""The tasks of Math-v0, and the endless, seeded, split source under them."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..tasks import SplitName, Task, TaskSource, narrowed, share_of
from .questions import LEVELS, Question, questions

HELD_OUT_SHARE = 0.2


def is_held_out(content: str) -> bool:
    """Whether a task belongs to the held-out split: decided by its content alone, whatever the seed."""
    return share_of(content) < HELD_OUT_SHARE


@functools.lru_cache(maxsize=64)
def _permutation(seed: int, round_: int, size: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(round_,))).permutation(size)


class ShuffledTaskSource(TaskSource):
    """A finite stock of tasks as an endless source: each of them once in a shuffled order, then in another, and so on.

    Args:
        seed: decides the orders.
        split: `train`, `held_out`, or None for both.
    """

    def __init__(self, *, seed: int = 0, split: SplitName | None = None) -> None:
        self.seed = seed
        self.part: SplitName | None = None if split is None else narrowed(None, split)

    @property
    @abstractmethod
    def num_distinct(self) -> int:
        """How many different tasks there are; the first that many indices give each of them once."""

    @abstractmethod
    def _task_at(self, position: int, round_: int) -> Task:
        """The task at a position of the unshuffled stock, in a round through all of it, from 0."""

    def task(self, index: int) -> Task:
        """The task at an index from 0."""
        if index < 0:
            raise IndexError(f"task {index}; indices start at 0")
        round_, offset = divmod(index, self.num_distinct)
        return self._task_at(int(_permutation(self.seed, round_, self.num_distinct)[offset]), round_)


@functools.cache
def _stock(level: int, part: SplitName | None) -> Sequence[Question]:
    everything = questions(level)
    if part is None:
        return everything
    return tuple(q for q in everything if is_held_out(q.prompt) == (part == "held_out"))


class MathTasks(ShuffledTaskSource):
    """Questions of one level, without end.

    >>> tasks = MathTasks(level=1, seed=0).split("train")
    >>> tasks.task(0).options["level"]
    1

    Args:
        level: how hard they are, from 1.
        seed: decides their order.
        split: `train`, `held_out`, or None for both; a question is always in the same split.
    """

    def __init__(self, *, level: int = 1, seed: int = 0, split: SplitName | None = None) -> None:
        super().__init__(seed=seed, split=split)
        if level not in LEVELS:
            raise ConfigError(f"level={level!r} must be one of {', '.join(map(str, LEVELS))}")
        self.level = level

    @property
    def num_distinct(self) -> int:
        """How many different questions there are."""
        return len(_stock(self.level, self.part))

    def _task_at(self, position: int, round_: int) -> Task:
        del round_
        question = _stock(self.level, self.part)[position]
        return Task(id=f"math-{self.level}/{question.prompt}", options=as_options(question, self.level))

    def split(self, name: SplitName) -> MathTasks:
        """The questions for training, or those held out."""
        return MathTasks(level=self.level, seed=self.seed, split=narrowed(self.part, name))


def as_options(question: Question, level: int) -> dict[str, object]:
    """The options of a question's task."""
    options: dict[str, object] = {"prompt": question.prompt, "label": question.label, "level": level}
    return options if question.sides is None else {**options, "sides": question.sides}
