"""Seeds that follow from what a thing is, never from when it arrived."""

from __future__ import annotations

import functools
import hashlib

import numpy as np


def derive_seed(run_seed: int, *key: int) -> int:
    """A seed for whatever the key names.

    The run's seed and the key feed `numpy.random.SeedSequence` as entropy and spawn key, so that the seeds of different
    keys are independent, and the same key gives the same seed in every run, process and order of arrival.

    >>> derive_seed(0, 1, 2) == derive_seed(0, 1, 2) != derive_seed(0, 2, 1)
    True

    Args:
        run_seed: the run's own seed, at least 0.
        key: what the seed is for, each part at least 0.

    Returns:
        A seed in [0, 2**63).
    """
    low, high = np.random.SeedSequence(run_seed, spawn_key=key).generate_state(2).tolist()
    return (high & 0x7FFFFFFF) << 32 | low


BLOCK = 8


class RequestSeeds:
    """The seeds of one episode's requests, one per turn: a function of its key and the turn alone.

    Drawn eight at a time, with `turn // 8` as the key's last part: one `SeedSequence` per turn would be a seventh of
    what a turn may cost.

    Args:
        run_seed: the run's own seed.
        key: epoch, task, member and attempt.
    """

    __slots__ = ("_block", "_key", "_run_seed", "_seeds")

    def __init__(self, run_seed: int, *key: int) -> None:
        self._run_seed = run_seed
        self._key = key
        self._block = -1
        self._seeds: list[int] = []

    def __getitem__(self, turn: int) -> int:
        """The turn's seed, in [0, 2**63)."""
        block, offset = divmod(turn, BLOCK)
        if block != self._block:
            words = np.random.SeedSequence(self._run_seed, spawn_key=(*self._key, block)).generate_state(
                BLOCK, np.uint64
            )
            self._seeds = (words >> np.uint64(1)).tolist()
            self._block = block
        return self._seeds[offset]


@functools.lru_cache(maxsize=4096)
def task_key(task_id: str) -> int:
    """What stands for a task in a key: 32 bits of a hash of its id, the same in every process."""
    return int.from_bytes(hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")


@functools.lru_cache(maxsize=4096)
def env_seed(run_seed: int, *, epoch: int, task_id: str) -> int:
    """The seed that `reset` gets: by epoch and task, so that all episodes of a group start alike.

    Below 2**32, which also numpy's older generators take.
    """
    return derive_seed(run_seed, epoch, task_key(task_id)) & 0xFFFFFFFF
