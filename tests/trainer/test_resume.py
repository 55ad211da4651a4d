"""A run that was killed and resumed ends with the same bytes as one that never was."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from turngym.envs.errors import ConfigError
from turngym.trainer import TrainConfig, Trainer

RUN = """
import os, random, signal, sys
from turngym.envs import AgentInstance, ListTaskSource, StepResult, Task
from turngym.trainer import TrainConfig, Trainer, checkpoint

out, policy, when, at, resume = sys.argv[1:]

class Odd(AgentInstance):
    tasks = ListTaskSource([Task(id=str(n), options={"n": n}) for n in range(9)], held_out=2)

    async def reset(self, *, seed=None, options=None):
        self.turn = 0
        return f"Say yes or no. {options['n']}", {}

    async def step(self, action):
        self.turn += 1
        is_odd = float(len(action.text) % 2)
        return StepResult(observation="Again.", reward=is_odd, terminated=self.turn == 2, score=is_odd)

async def noise(trajectory):  # draws from a global stream, which a checkpoint keeps too; async, so in a fixed order
    return 0.1 * random.random()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

random.seed(7)
trainer = Trainer(
    TrainConfig.of(
        pretrain=policy, out=out, resume=resume == "resume", num_updates=6, save_steps=2, eval_steps=3, eval_tasks=2,
        rollout_batch_size=3, n_samples_per_prompt=4, max_new_tokens=6, learning_rate=1e-2, warmup_steps=4,
        device="cpu",
    ),
    env=Odd,
    reward=noise,
)

if when == "update":
    @trainer.add_step_callback
    def kill(result):
        if result.version == int(at):
            die()
elif when == "checkpoint":
    mark = checkpoint._mark

    def kill_before_mark(folder):
        if folder.name.endswith(f"{int(at):06d}"):
            die()
        mark(folder)

    checkpoint._mark = kill_before_mark

trainer.fit()
trainer.close()
"""


def run(out: Path, policy: Path, when: str = "never", at: int = 0, *, resume: bool = False) -> int:
    command = [sys.executable, "-c", RUN, str(out), str(policy), when, str(at), "resume" if resume else "begin"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def versions(out: Path) -> list[tuple[str, int]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(row["kind"], row["version"]) for row in rows]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, policy_folder: Path) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "run"
    assert run(out, policy_folder) == 0
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "at"),
    [
        pytest.param("update", 1, id="before the first checkpoint"),
        pytest.param("update", 4, id="after an update and before its checkpoint"),
        pytest.param("update", 5, id="between checkpoints, after an evaluation"),
        pytest.param("checkpoint", 4, id="in the middle of writing a checkpoint"),
        pytest.param("checkpoint", 6, id="in the middle of writing the last checkpoint"),
    ],
)
def test_a_killed_and_resumed_run_equals_an_unbroken_one_byte_for_byte(
    unbroken: Path, policy_folder: Path, tmp_path: Path, when: str, at: int
):
    out = tmp_path / "run"
    assert run(out, policy_folder, when, at) == -signal.SIGKILL
    assert not (out / "policy").exists()
    assert run(out, policy_folder, resume=True) == 0
    for name in ("policy/model.safetensors", "checkpoints/update-000006/policy/model.safetensors"):
        assert (out / name).read_bytes() == (unbroken / name).read_bytes(), name
    assert versions(out) == versions(unbroken)
    assert {path.name for path in (out / "checkpoints").iterdir()} == {"update-000004", "update-000006"}


def made(out: Path, policy_folder: Path, **flags: object) -> TrainConfig:
    return TrainConfig.of(
        env="GuessNumber-v0",
        env_kwargs={"max_number": 16},
        pretrain=str(policy_folder),
        out=str(out),
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        max_new_tokens=4,
        max_steps=2,
        eval_steps=-1,
        device="cpu",
        **flags,
    )


def fit(config: TrainConfig) -> int:
    trainer = Trainer(config)
    try:
        return trainer.fit().version
    finally:
        trainer.close()


def test_a_finished_run_goes_on_when_more_updates_are_asked_for(tmp_path: Path, policy_folder: Path):
    assert fit(made(tmp_path / "two", policy_folder, num_updates=2)) == 2
    assert fit(made(tmp_path / "two", policy_folder, num_updates=3, resume=True)) == 3
    assert fit(made(tmp_path / "three", policy_folder, num_updates=3)) == 3
    weights = [(tmp_path / name / "policy" / "model.safetensors").read_bytes() for name in ("two", "three")]
    assert weights[0] == weights[1]


def test_resume_with_other_settings_is_refused_with_both_values(tmp_path: Path, policy_folder: Path):
    fit(made(tmp_path / "run", policy_folder, num_updates=1))
    with pytest.raises(ConfigError) as caught:
        Trainer(made(tmp_path / "run", policy_folder, num_updates=1, resume=True, seed=5, credit="episode"))
    assert str(caught.value) == (
        f"{tmp_path / 'run'} was begun with other settings: --credit was turn and is now episode, --seed was 0 and is "
        "now 5; use the old ones, or another --out"
    )


def test_resume_of_a_folder_without_checkpoint_starts_the_run(tmp_path: Path, policy_folder: Path):
    assert fit(made(tmp_path / "run", policy_folder, num_updates=1, resume=True)) == 1
