"""The episodes of one task that share a baseline."""

from __future__ import annotations

from dataclasses import dataclass

from ..envs.tasks import Task
from .episode import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The episodes of one task that share a baseline.

    Attributes:
        task: what they played.
        slot: the group's place in the order of training.
        size: how many episodes were asked for.
        episodes: those to train, by member; fewer than `size` where refills were exhausted.
        failed: every attempt that the infrastructure failed; no baseline may contain one.
    """

    task: Task
    slot: int
    size: int
    episodes: tuple[Episode, ...]
    failed: tuple[Episode, ...] = ()

    @property
    def is_short(self) -> bool:
        """Whether members are missing although they were refilled as often as allowed."""
        return len(self.episodes) < self.size
