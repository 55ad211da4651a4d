"""Checkpoints: everything that the rest of a run depends on, written whole or not at all.

    RUN/checkpoints/update-000020/
        policy/        weights as safetensors, config and tokenizer: a transformers folder
        trainer.pt     optimizer and random states
        state.json     counters and settings
        COMPLETE       written last: names and sizes of all files

A checkpoint is written under a temporary name, synced to disk, marked, and renamed. One without its mark, or whose
files don't have the marked sizes, is never loaded.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..envs.errors import CheckpointError
from .policy import Policy

MARK = "COMPLETE"
_TEMPORARY = ".part-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        path: its folder.
        version: updates done.
        state: counters and settings.
    """

    path: Path
    version: int
    state: Mapping[str, Any]

    @property
    def policy(self) -> Path:
        """The folder with the weights."""
        return self.path / "policy"

    def restore(self) -> dict[str, Any]:
        """Set the random states as they were; returns the optimizer's state."""
        try:
            saved = torch.load(self.path / "trainer.pt", map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds for a damaged file
            raise CheckpointError(
                f"{self.path / 'trainer.pt'} can't be read: {error}; remove the folder and resume from the one before"
            ) from error
        _set_random_states(saved["random"])
        return saved["updater"]


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: where they are.
        keep: how many to keep; older ones are removed.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def save(self, *, version: int, policy: Policy, updater: Mapping[str, Any], state: Mapping[str, Any]) -> Checkpoint:
        """Write a checkpoint, then remove old ones.

        Raises:
            CheckpointError: it can't be written; the ones before are as they were.
        """
        path = self.folder / f"update-{version:06d}"
        temporary = self.folder / f"{_TEMPORARY}{path.name}"
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            policy.save(temporary / "policy")
            torch.save({"updater": dict(updater), "random": _random_states()}, temporary / "trainer.pt")
            (temporary / "state.json").write_text(json.dumps({**state, "version": version}, indent=2) + "\n")
            _mark(temporary)
            shutil.rmtree(path, ignore_errors=True)
            temporary.rename(path)
            sync(self.folder)
        except OSError as error:
            raise CheckpointError(f"can't write the checkpoint {path}: {error}; free some space and resume") from error
        self._remove_old()
        return Checkpoint(path=path, version=version, state=state)

    def latest(self) -> Checkpoint | None:
        """The complete checkpoint with the most updates, or None."""
        return next((found for path in reversed(self._paths()) if (found := _read(path)) is not None), None)

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("update-*"))

    def _remove_old(self) -> None:
        for path in self._paths()[: -self.keep]:
            (path / MARK).unlink(missing_ok=True)  # from here on it is no checkpoint, however far the removal gets
            shutil.rmtree(path, ignore_errors=True)


def _mark(folder: Path) -> None:
    """Sync every file, then write the mark that lists them, and sync that too."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in (*files, *(path for path in folder.rglob("*") if path.is_dir())):
        sync(path)
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    (folder / MARK).write_text(json.dumps(sizes, indent=2) + "\n")
    sync(folder / MARK)
    sync(folder)


def _read(path: Path) -> Checkpoint | None:
    """The checkpoint in a folder, or None where it is not complete."""
    try:
        sizes = json.loads((path / MARK).read_text())
        is_complete = all((path / name).stat().st_size == size for name, size in sizes.items())
        state = json.loads((path / "state.json").read_text())
    except (OSError, ValueError):
        return None
    return Checkpoint(path=path, version=int(state["version"]), state=state) if is_complete else None


def sync(path: Path) -> None:
    """Make sure that a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _random_states() -> dict[str, Any]:
    """The states of all global random streams; turngym's own are derived from seeds, and need none."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(internal), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
    }


def _set_random_states(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
