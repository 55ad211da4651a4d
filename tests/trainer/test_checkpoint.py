"""Checkpoints: whole or not at all."""

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from turngym.envs.errors import CheckpointError
from turngym.trainer.checkpoint import MARK, Checkpoint, Checkpoints
from turngym.trainer.policy import Policy


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2)


@pytest.fixture(scope="module")
def policy(policy_folder: Path) -> Policy:
    return Policy.from_pretrained(policy_folder)


def save(checkpoints: Checkpoints, policy: Policy, version: int) -> Checkpoint:
    return checkpoints.save(
        version=version, policy=policy, updater={"moments": torch.full((3,), float(version))}, state={"seconds": 1.5}
    )


def test_what_is_saved_comes_back(checkpoints: Checkpoints, policy: Policy):
    save(checkpoints, policy, 4)
    found = checkpoints.latest()
    assert found is not None
    assert (found.version, found.state["seconds"]) == (4, 1.5)
    assert torch.equal(found.restore()["moments"], torch.full((3,), 4.0))
    loaded = Policy.from_pretrained(found.policy).model.state_dict()
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(tensor, loaded[name]), name


def test_global_random_streams_go_on_where_they_were(checkpoints: Checkpoints, policy: Policy):
    def draw() -> tuple[float, ...]:
        return float(torch.rand(())), random.random(), np.random.normal()

    np.random.normal()  # leaves the second of a pair of normal numbers in the state
    found = save(checkpoints, policy, 1)
    expected = [draw() for _ in range(3)]
    found.restore()
    assert [draw() for _ in range(3)] == expected


def test_the_last_ones_are_kept(checkpoints: Checkpoints, policy: Policy):
    for version in (1, 2, 10):
        save(checkpoints, policy, version)
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["update-000002", "update-000010"]


@pytest.mark.parametrize("damage", ["no mark", "a file cut", "a file gone", "half a mark", "never renamed"])
def test_one_that_is_not_complete_is_never_loaded(checkpoints: Checkpoints, policy: Policy, damage: str):
    save(checkpoints, policy, 1)
    newest = save(checkpoints, policy, 2).path
    weights = newest / "policy" / "model.safetensors"
    if damage == "no mark":
        (newest / MARK).unlink()
    elif damage == "a file cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "a file gone":
        weights.unlink()
    elif damage == "half a mark":
        (newest / MARK).write_text((newest / MARK).read_text()[:30])
    else:
        newest.rename(newest.with_name(f".part-{newest.name}"))
    found = checkpoints.latest()
    assert found is not None
    assert found.version == 1


def test_without_any_there_is_none(checkpoints: Checkpoints):
    assert checkpoints.latest() is None


def test_a_damaged_one_of_the_right_size_says_what_to_do(checkpoints: Checkpoints, policy: Policy):
    found = save(checkpoints, policy, 1)
    path = found.path / "trainer.pt"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CheckpointError, match=r"trainer\.pt can't be read: .* remove the folder and resume"):
        found.restore()


def test_one_that_can_not_be_written_leaves_the_others_as_they_were(checkpoints: Checkpoints, policy: Policy):
    save(checkpoints, policy, 1)
    (checkpoints.folder / ".part-update-000002").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="can't write the checkpoint"):
        save(checkpoints, policy, 2)
    found = checkpoints.latest()
    assert found is not None
    assert found.version == 1


KILL_IN_SAVE = """
import os, signal, sys
from pathlib import Path
from turngym.trainer import checkpoint
from turngym.trainer.policy import Policy

policy = Policy.from_pretrained(sys.argv[1])
checkpoints = checkpoint.Checkpoints(Path(sys.argv[2]), keep=2)
checkpoints.save(version=1, policy=policy, updater={}, state={})
calls, real = 0, checkpoint.sync

def sync(path):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    real(path)

checkpoint.sync = sync
checkpoints.save(version=2, policy=policy, updater={}, state={})
print(calls)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_of_a_save_leaves_a_complete_checkpoint(tmp_path: Path, policy_folder: Path):
    def run(folder: Path, kill_at: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILL_IN_SAVE, str(policy_folder), str(folder), str(kill_at)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    num_syncs = int(run(tmp_path / "whole", 0).stdout)
    for kill_at in (1, num_syncs // 2, num_syncs - 1, num_syncs):
        folder = tmp_path / str(kill_at)
        assert run(folder, kill_at).returncode == -signal.SIGKILL
        found = Checkpoints(folder, keep=2).latest()
        assert found is not None
        assert found.version == (2 if kill_at == num_syncs else 1)  # the last sync comes after the rename
        Policy.from_pretrained(found.policy)
        shutil.rmtree(folder)
