"""Tasks: the immutable rows that episodes start from, and where they come from."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from .errors import ConfigError

SplitName: TypeAlias = Literal["train", "held_out"]
SPLITS: tuple[SplitName, ...] = ("train", "held_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The row that an episode starts from. Every episode of a group gets the same one.

    Attributes:
        id: names the task; unique within its source.
        options: reaches the environment as `options`: prompt or parameters, label, other columns. Read-only.
        seed: the environment's seed where the task fixes one; None leaves it to the run.
    """

    id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _task, (self.id, dict(self.options), self.seed)


def _task(id: str, options: dict[str, Any], seed: int | None) -> Task:  # noqa: A002
    return Task(id=id, options=options, seed=seed)


class TaskSource(ABC):
    """Where tasks come from: indexable, picklable, and split so that train and held-out never overlap.

    A source without end sets `__len__ = None`; any index then gives a task.
    """

    @abstractmethod
    def task(self, index: int) -> Task:
        """The task at an index from 0. The same index always gives the same task.

        Raises:
            IndexError: the source has an end, and the index lies beyond it.
        """

    @abstractmethod
    def split(self, name: SplitName) -> TaskSource:
        """The part of this source for training, or the part held out. No task is in both."""

    @property
    def num_tasks(self) -> int | None:
        """How many tasks there are, or None where the source has no end."""
        length = getattr(type(self), "__len__", None)
        return None if length is None else int(length(self))


def share_of(content: str) -> float:
    """A number in [0, 1) that the content of a task alone decides: what splits are cut by.

    >>> share_of("12 + 7 = ?") == share_of("12 + 7 = ?") != share_of("12 + 8 = ?")
    True
    """
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=6).digest(), "big") / 2**48


def narrowed(part: SplitName | None, name: SplitName) -> SplitName:
    """The split that taking `name` of `part` gives.

    Raises:
        ConfigError: there is no such split, or `part` is the other one already.
    """
    if name not in SPLITS:
        raise ConfigError(f"split {name!r} is unknown; there are {', '.join(SPLITS)}")
    if part not in (None, name):
        raise ConfigError(f"these tasks are the {part} split already; {name} is another")
    return name


class ListTaskSource(TaskSource):
    """Tasks held in memory; the last `held_out` of them are the held-out split.

    Args:
        tasks: the tasks, each with an id of its own.
        held_out: how many tasks, counted from the end, belong to the held-out split.
    """

    def __init__(self, tasks: list[Task] | tuple[Task, ...], *, held_out: int = 0) -> None:
        if not 0 <= held_out <= len(tasks):
            raise ConfigError(f"held_out={held_out} must lie between 0 and the number of tasks, {len(tasks)}")
        seen: set[str] = set()
        for task in tasks:
            if task.id in seen:
                raise ConfigError(f"task id {task.id!r} occurs twice; give each task an id of its own")
            seen.add(task.id)
        self._tasks = tuple(tasks)
        self._held_out = held_out

    def __len__(self) -> int:
        return len(self._tasks)

    def task(self, index: int) -> Task:
        """The task at an index from 0."""
        if not 0 <= index < len(self._tasks):
            raise IndexError(f"task {index} of {len(self._tasks)}")
        return self._tasks[index]

    def split(self, name: SplitName) -> ListTaskSource:
        """The first tasks for training, the last `held_out` held out."""
        narrowed(None, name)
        cut = len(self._tasks) - self._held_out
        return ListTaskSource(self._tasks[:cut] if name == "train" else self._tasks[cut:])
