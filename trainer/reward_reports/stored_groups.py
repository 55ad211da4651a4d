"""A finished run's episodes, read back in groups, one file at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ...agents.episode import Episode
from ...agents.store import read_episodes
from ...envs.errors import DataError

Split: TypeAlias = Literal["train", "eval"]

_SCORED = re.compile(r"scored\d+-")
"""Stands in the ids of members that were played again because their reward failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """The episodes of one task that shared a baseline.

    Attributes:
        update: the update that they were played for; of an evaluation, the number of updates before it.
        slot: the group's place in the order of training, or of held-out tasks.
        task_id: what they played.
        episodes: by member; none that the infrastructure failed.
    """

    update: int
    slot: int
    task_id: str
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUpdate:
    """What was played for one update.

    Attributes:
        update: its number.
        groups: in the order of the file; groups without an episode are left out.
        failed: attempts that the infrastructure failed.
    """

    update: int
    groups: tuple[StoredGroup, ...]
    failed: tuple[Episode, ...]


def stored_files(run: Path | str, split: Split = "train") -> list[Path]:
    """The files of a run's episodes, in the order of updates.

    Raises:
        DataError: there are none.
    """
    folder = Path(run) / "episodes"
    files = sorted(folder.glob(f"{split}-*.parquet"), key=lambda path: (update_of(path), path.name))
    if not files:
        raise DataError(
            f"{run} holds no episodes of split {split!r}; give a run's folder, which has {split} files in it"
        )
    return files


def stored_updates(run: Path | str, split: Split = "train") -> Iterator[StoredUpdate]:
    """What a run played, update by update; one file is in memory at a time."""
    for path in stored_files(run, split):
        yield read_update(path)


def read_update(path: Path) -> StoredUpdate:
    """The episodes of one file in groups.

    Raises:
        DataError: it holds no episodes, or can't be read.
    """
    update = update_of(path)
    members: dict[tuple[int, str, str], list[Episode]] = {}
    failed: list[Episode] = []
    for episode in read_episodes(path):
        if episode.is_failed:
            failed.append(episode)
        else:
            members.setdefault(_key(episode), []).append(episode)
    groups = tuple(
        StoredGroup(update=update, slot=slot, task_id=task_id, episodes=tuple(sorted(episodes, key=lambda e: e.member)))
        for (slot, task_id, _), episodes in members.items()
    )
    return StoredUpdate(update=update, groups=groups, failed=tuple(failed))


def update_of(path: Path) -> int:
    """The number in a file's name.

    Raises:
        DataError: there is none.
    """
    number = path.stem.rpartition("-")[2]
    if not number.isdecimal():
        raise DataError(f"{path}: the name of a file of episodes ends in the number of its update")
    return int(number)


def _key(episode: Episode) -> tuple[int, str, str]:
    """The same for the members of one group: slot, task, and the id without member and attempt."""
    return episode.slot, episode.task_id, _SCORED.sub("", episode.episode_id).rsplit("-", 2)[0]
