"""Which task a slot plays: of a finite source each once per epoch, shuffled anew; of an endless one the slot's own."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from ..envs.errors import DataError
from ..envs.tasks import Task, TaskSource


class TaskOrder:
    """The order of training.

    >>> from turngym.envs import ListTaskSource, Task
    >>> order = TaskOrder(ListTaskSource([Task(id=name) for name in "abc"]), seed=0)
    >>> sorted(order.task(slot)[1].id for slot in range(3, 6))
    ['a', 'b', 'c']

    Args:
        tasks: the training split.
        seed: decides each epoch's order.

    Raises:
        DataError: there are no tasks.
    """

    def __init__(self, tasks: TaskSource, *, seed: int) -> None:
        self.tasks = tasks
        self.seed = seed
        self._size = tasks.num_tasks
        if self._size == 0:
            raise DataError("there are no tasks to train on; give more rows, or hold out fewer")

    def task(self, slot: int) -> tuple[int, Task]:
        """The epoch and the task of a slot; the same slot always gives the same."""
        if self._size is None:
            return 0, self.tasks.task(slot)
        epoch, place = divmod(slot, self._size)
        return epoch, self.tasks.task(int(_permutation(self.seed, epoch, self._size)[place]))


@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, size: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch,))).permutation(size)
