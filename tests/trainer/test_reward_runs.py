"""Runs with a reward file in worker processes: they repeat, log what is told, outlive workers, leave none behind."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from turngym.trainer import METRICS
from turngym.trainer.cli import main

BATCH = """
def reward_func(queries, prompts, labels):
    lengths = [len(query) - len(prompt) for query, prompt in zip(queries, prompts)]
    tells = [float(length % 2) if int(labels[0]) % 3 else 0.0 for length in lengths]
    return {"rewards": [length % 5 for length in lengths], "scores": tells, "extra_logs": {"length": lengths}}
"""

SINGLE = """
async def custom_reward_function(response, prompt, metadata):
    return len(response) % 5 / 5
"""

SLEEPS = """
import os
import time


def custom_reward_function(response, prompt, metadata):
    os.write(2, b"scoring\\n")  # at once: another worker writes, too
    time.sleep(600)
"""

ENDS_ONCE = """
import os


def custom_reward_function(response, prompt, metadata):
    try:
        os.close(os.open("ended", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return len(response) % 5 / 5
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"Say {n}.", "answer": n, "id": f"say/{n}"} for n in range(12)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def arguments(policy: Path, out: str, *flags: str) -> tuple[str, ...]:
    return (
        "train", "--pretrain", str(policy), "--prompt_data", "rows.jsonl", "--label_key", "answer", "--out", out,
        "--num_updates", "2", "--rollout_batch_size", "2", "--n_samples_per_prompt", "4", "--max_new_tokens", "4",
        "--learning_rate", "1e-3", "--eval_steps", "-1", "--device", "cpu", *flags,
    )  # fmt: skip


def rows(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(out, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "flag"), [(BATCH, "--remote_rm_url"), (SINGLE, "--reward_file")], ids=["batch", "async"]
)
def test_the_same_seed_gives_the_same_weights_however_many_workers_score(policy_folder: Path, text: str, flag: str):
    Path("mine.py").write_text(text)
    weights: list[bytes] = []
    for out, num_workers in (("first", "3"), ("second", "3"), ("alone", "1")):
        assert main(arguments(policy_folder, out, flag, "mine.py", "--reward_workers", num_workers)) == 0
        weights.append(Path(out, "policy", "model.safetensors").read_bytes())
    assert weights[0] == weights[1] == weights[2]
    assert weights[0] != (policy_folder / "model.safetensors").read_bytes()


def test_every_metric_of_a_reward_is_documented(policy_folder: Path):
    Path("mine.py").write_text(BATCH)
    flags = ("--remote_rm_url", "mine.py", "--log_rewards", "--dynamic_filtering")
    assert main(arguments(policy_folder, "run", *flags)) == 0
    written = {key for row in rows("run") for key in row}
    assert {"filtered_low", "reward/length_mean", "reward/p50", "reward_of/say_mean"} <= written
    patterns = [re.escape(key).replace("NAME", ".+") for key in METRICS]
    for key in written:
        assert any(re.fullmatch(pattern, key) for pattern in patterns), key


def test_a_worker_that_is_killed_costs_its_episode_which_is_played_again(policy_folder: Path):
    Path("mine.py").write_text(ENDS_ONCE)
    assert main(arguments(policy_folder, "run", "--reward_file", "mine.py", "--reward_workers", "2")) == 0
    first, second = rows("run")
    assert (first["episodes"], first["failures/RewardError"], first["groups_short"]) == (8, 1, 0)
    assert (second["episodes"], second["failed_episodes"]) == (8, 0)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_no_worker_outlives_a_run_that_is_stopped_while_it_scores(policy_folder: Path, how: signal.Signals, code: int):
    Path("mine.py").write_text(SLEEPS)
    given = arguments(policy_folder, "run", "--reward_file", "mine.py", "--reward_workers", "2")
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a job may ignore it
        "from turngym.trainer.cli import main; sys.exit(main())"
    )
    with subprocess.Popen([sys.executable, "-c", program, *given], stderr=subprocess.PIPE, text=True) as run:
        try:
            assert run.stderr is not None
            scoring = (line for line in run.stderr if line == "scoring\n")
            assert [next(scoring), next(scoring)] == ["scoring\n"] * 2
            run.send_signal(how)
            _, said = run.communicate(timeout=60)  # the workers hold the pipe's other end, too
        finally:
            run.kill()
    assert run.returncode == code
    assert ("turngym train: interrupted; go on with --resume" in said) == (how == signal.SIGINT)
