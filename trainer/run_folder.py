"""A run's folder: what lies where, whether it can be begun or gone on with, and the policy it ends with.

RUN/config.yaml     every flag; `turngym train --config RUN/config.yaml --out OTHER` begins the same run again
RUN/run.json        device, threads and versions of the last session
RUN/tiny/           the policy before training, where it is `tiny`
RUN/metrics.jsonl   one line per update and per evaluation
RUN/episodes/       every episode, one Parquet file per update and per evaluation
RUN/checkpoints/    the last checkpoints
RUN/policy/         the trained policy, a transformers folder
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import yaml

from ..agents.store import EpisodeWriter
from ..envs.errors import ConfigError
from .checkpoint import Checkpoint, Checkpoints, sync
from .config import FREE_ON_RESUME, TrainConfig
from .metrics import MetricsFile
from .policy import Policy


class RunFolder:
    """The folder of a run.

    Args:
        config: the run's settings.

    Attributes:
        path: the folder.
        tiny: where the policy before training lies, where it is `tiny`.
        metrics: the file of metrics.
        episodes: writes episodes.
        checkpoints: the checkpoints.

    Raises:
        ConfigError: the folder holds something and `resume` isn't set.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.path = path = Path(config.run.out)
        self.tiny = path / "tiny"
        self.metrics = MetricsFile(path / "metrics.jsonl")
        self.episodes = EpisodeWriter(path)
        self.checkpoints = Checkpoints(path / "checkpoints", keep=config.run.max_ckpt_num)
        if path.exists() and not path.is_dir():
            raise ConfigError(f"--out {path} is a file; name a folder")
        if not config.run.resume and path.is_dir() and any(path.iterdir()):
            raise ConfigError(f"--out {path} is not empty; go on with it by --resume, or choose another folder")

    def begin(self) -> Checkpoint | None:
        """Make the folder, or cut it back to its last checkpoint, and return that one.

        Raises:
            ConfigError: it was begun with settings that mean another run.
        """
        latest = self.checkpoints.latest() if self.config.run.resume else None
        if latest is not None:
            self._check_same(latest.state["flags"])
        self.path.mkdir(parents=True, exist_ok=True)
        if latest is None and not self._is_begun_alike():
            shutil.rmtree(self.tiny, ignore_errors=True)
        if self.metrics.path.exists():
            self.metrics.cut_back(-1 if latest is None else latest.version)
        return latest

    def write_facts(self, **facts: Any) -> None:
        """Write the flags, and what a reader wants to know besides."""
        settings = {name: value for name, value in self._flags().items() if name not in ("out", "resume")}
        self._config_file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        versions = {name: _version_of(name) for name in ("turngym", "torch", "transformers", "numpy")}
        facts |= {"num_threads": torch.get_num_threads(), "python": platform.python_version(), **versions}
        (self.path / "run.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    def save_policy(self, policy: Policy) -> Path:
        """The policy as a plain transformers folder; the one before is replaced only when it is complete."""
        final, temporary = self.path / "policy", self.path / ".part-policy"
        shutil.rmtree(temporary, ignore_errors=True)
        policy.save(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        sync(self.path)
        return final

    def _flags(self) -> dict[str, Any]:
        return json.loads(json.dumps(self.config.flags()))

    @property
    def _config_file(self) -> Path:
        return self.path / "config.yaml"

    def _is_begun_alike(self) -> bool:
        """Whether the folder was begun with these settings, so that the policy before training is the same."""
        if not self._config_file.exists():
            return False
        return not self._changed(yaml.safe_load(self._config_file.read_text(encoding="utf-8")))

    def _changed(self, saved: Mapping[str, Any]) -> list[str]:
        """The flags with another value than the saved one, of those that mean another run."""
        now = self._flags()
        return [f for f in now if f not in FREE_ON_RESUME and f in saved and saved[f] != now[f]]

    def _check_same(self, saved: Mapping[str, Any]) -> None:
        now, changed = self._flags(), self._changed(saved)
        if changed:
            told = ", ".join(f"--{flag} was {saved[flag]} and is now {now[flag]}" for flag in changed)
            raise ConfigError(f"{self.path} was begun with other settings: {told}; use the old ones, or another --out")


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from the tree, without an install
        return None
