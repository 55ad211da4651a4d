"""Rewards named on the command line: files of three systems, servers, names; what they earn reaches the run."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from turngym.agents import Episode, read_episodes
from turngym.trainer import TrainConfig, Trainer
from turngym.trainer.cli import main

OPENRLHF = """
import json
import torch

calls = 0


def reward_func(queries, prompts, labels, **kwargs):
    global calls
    calls += 1
    assert all(query.startswith(prompt) for query, prompt in zip(queries, prompts))
    assert labels == [labels[0]] * len(labels) and isinstance(labels[0], str)
    lengths = torch.tensor([float(len(q) - len(p)) for q, p in zip(queries, prompts)])
    rewards = lengths - lengths.mean()
    logs = {"length": lengths, f"call_{calls % 2}": calls, "is_long": bool(lengths.mean() > 2)}
    return {"rewards": rewards, "scores": (lengths > lengths.median()).float(), "extra_logs": logs}
"""

FLUX = """
from flux.core.trajectory import Trajectory
from flux.rewards import CompositeReward, FormatReward, KeywordReward, LengthReward, RewardFunction, RewardOutput


class Vowels(RewardFunction):
    def __init__(self):
        self.parts = CompositeReward([(LengthReward(target=2, tolerance=2), 0.5), (KeywordReward(required=["a"]), 0.5)])

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        share = sum(c in "aeiou" for c in trajectory.response) / max(len(trajectory.response), 1)
        parts = self.parts.compute_reward(trajectory)
        return RewardOutput(reward=min(1.0, share + 0.1 * parts.reward), metadata={"share": share})
"""

TUNIX = """
from agent_tunix.rewards import check_answer


def custom_reward_function(response: str, prompt: str, metadata: dict) -> float:
    assert metadata["difficulty"] == "easy" and metadata["format"] == "[NUM]"
    return 0.3 * bool(response) + 0.7 * check_answer(response, metadata["answer"])
"""

WRONG_SHAPE = """
import torch


def reward_func(queries, prompts, labels):
    return {"rewards": torch.zeros(len(queries), 1)}
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"prompt": f"Say {n}.", "answer": n, "difficulty": "easy", "format": "[NUM]", "id": f"say/{n}"}
        for n in range(12)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def train(policy: Path, *flags: str) -> int:
    return main(
        (
            "train", "--pretrain", str(policy), "--prompt_data", "rows.jsonl", "--label_key", "answer", "--out", "run",
            "--num_updates", "2", "--rollout_batch_size", "2", "--n_samples_per_prompt", "4", "--max_new_tokens", "4",
            "--eval_tasks", "1", "--eval_greedy", "false", "--device", "cpu", *flags,
        )
    )  # fmt: skip


def updates() -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "train"]


def episodes() -> list[Episode]:
    return [e for path in sorted(Path("run/episodes").glob("train-*.parquet")) for e in read_episodes(path)]


def said(episode: Episode) -> dict[str, Any]:
    return episode.turns[-1].info["reward"]


def test_a_reward_file_of_openrlhf_gives_rewards_scores_and_logs(policy_folder: Path):
    Path("reward_func.py").write_text(OPENRLHF)
    assert train(policy_folder, "--remote_rm_url", "./reward_func.py", "--log_rewards") == 0
    played = episodes()
    assert len(played) == 16
    for episode in played:
        assert said(episode)["metadata"]["length"] == len(episode.turns[0].action_text)
        assert episode.reward == said(episode)["value"]
        assert episode.score in (0.0, 1.0)
    by_slot = {slot: [e for e in played if e.slot == slot] for slot in {e.slot for e in played}}
    for group in by_slot.values():
        assert sum(e.reward for e in group) == pytest.approx(0, abs=1e-5), "each call gets one whole group"
    assert any("reward/length_mean" in update for update in updates())


def test_the_scores_of_a_reward_file_drive_dynamic_filtering(policy_folder: Path):
    Path("reward_func.py").write_text(OPENRLHF.replace("lengths > lengths.median()", "lengths > -1"))
    code = train(
        policy_folder, "--remote_rm_url", "./reward_func.py", "--dynamic_filtering",
        "--dynamic_filtering_reward_range", "0", "1", "--max_filter_rounds", "1",
    )  # fmt: skip
    assert code == 0
    assert [update["filtered_high"] for update in updates()] == [4, 4]


def test_a_reward_file_of_flux_runs_as_it_is(policy_folder: Path):
    Path("vowels.py").write_text(FLUX)
    assert train(policy_folder, "--reward_file", "vowels.py:Vowels", "--reward_workers", "2") == 0
    for episode in episodes():
        assert 0 <= episode.reward <= 1
        assert set(said(episode)["metadata"]) == {"share"}


def test_a_reward_file_of_agent_tunix_runs_as_it_is(policy_folder: Path):
    Path("mine.py").write_text(TUNIX)
    assert train(policy_folder, "--reward_file", "mine.py") == 0
    assert {round(episode.reward, 6) for episode in episodes()} <= {0.0, 0.3, 0.65, 1.0}


@pytest.mark.parametrize(
    "flags",
    [
        ("--reward_function", "check_answer"),
        ("+training.reward_function=check_answer",),
        ("--reward_function", "turngym.envs.rewards:check_answer"),
    ],
)
def test_a_ready_reward_is_chosen_by_name(policy_folder: Path, flags: tuple[str, ...]):
    assert train(policy_folder, *flags) == 0
    assert {episode.reward for episode in episodes()} <= {0.0, 0.5, 1.0}


def test_a_tensor_of_the_wrong_shape_is_one_clear_error(policy_folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("wrong.py").write_text(WRONG_SHAPE)
    assert train(policy_folder, "--remote_rm_url", "wrong.py", "--eval_steps", "-1") == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "wrong.py" in line
    assert "rewards is Tensor of shape (4, 1); it must be [4]" in line


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--remote_rm_url", "127.0.0.1:5000/reward"),
            "--remote_rm_url 127.0.0.1:5000/reward: there is no such reward file; give FILE.py, or servers as "
            "--remote_rm_url http://...",
        ),
        (("--reward_file", "none.py:mine"), "--reward_file none.py: there is no such reward file"),
        (("--reward_function", "chek_answer"), "chek_answer"),
        (
            ("--remote_rm_url", "a.py", "--reward_function", "check_answer"),
            "--remote_rm_url and --reward_function both name a reward; give one, or combine them in a file",
        ),
        (("--remote_rm_url", "a.py", "http://127.0.0.1:1/x"), "give one file, or http:// addresses alone"),
        (("--reward_workers", "0", "--reward_function", "check_answer"), "--reward_workers 0 must be at least 1"),
    ],
)
def test_a_reward_that_is_none_is_told_before_anything_is_played(
    policy_folder: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
):
    assert train(policy_folder, *flags) == 2
    assert message in capsys.readouterr().err
    assert not Path("run").exists()


class RewardServer(BaseHTTPRequestHandler):
    """Gives the length of each response; the first call of `/flaky` fails."""

    failures = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/flaky":
            RewardServer.failures += 1
            self.send_error(503)
            return
        lengths = [float(len(q) - len(p)) for q, p in zip(body["query"], body["prompts"], strict=True)]
        answer = json.dumps({"rewards": lengths, "extra_logs": {"labels": len(body["labels"])}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        pass


@pytest.fixture
def server() -> Iterator[str]:
    RewardServer.failures = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), RewardServer) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def test_reward_servers_stand_in_for_each_other(policy_folder: Path, server: str):
    assert train(policy_folder, "--remote_rm_url", f"{server}/flaky", f"{server}/good") == 0
    assert RewardServer.failures > 0
    for episode in episodes():
        assert episode.reward == len(episode.turns[0].action_text)
        assert said(episode)["metadata"] == {"labels": 4.0}


def test_eval_scores_with_the_reward_too(policy_folder: Path):
    code = main(
        (
            "eval", "--model", str(policy_folder), "--prompt_data", "rows.jsonl", "--label_key", "answer",
            "--reward_function", "check_answer", "--max_new_tokens", "4", "--eval_tasks", "2", "--json", "report.json",
            "--device", "cpu",
        )
    )  # fmt: skip
    assert code == 0
    assert "reward" in json.loads(Path("report.json").read_text())


def test_eval_with_a_reward_that_always_fails_names_the_cause(policy_folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("broken.py").write_text("def reward_func(response):\n    raise OSError('away')\n")
    code = main(
        (
            "eval", "--model", str(policy_folder), "--prompt_data", "rows.jsonl", "--reward_file", "broken.py",
            "--max_new_tokens", "4", "--eval_n_samples_per_prompt", "2", "--eval_greedy", "false", "--device", "cpu",
        )
    )  # fmt: skip
    assert code == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert line.startswith(
        "turngym eval: error: every episode of the evaluation failed, 2 attempts in all: 2 times RewardError in "
        "reward; the last one said: 'broken.py: reward_func raised OSError: away ("
    )
    assert line.endswith("Mend the cause, then evaluate again")


def test_log_rewards_shows_parts_and_tasks_and_the_analysis_is_written_at_the_end(
    policy_folder: Path, capsys: pytest.CaptureFixture[str]
):
    Path("vowels.py").write_text(FLUX)
    flags = ("--reward_file", "vowels.py:Vowels", "--log_rewards", "--save_reward_analysis")
    assert train(policy_folder, *flags) == 0
    out = capsys.readouterr().out
    assert "part share" in out
    assert "task say" in out
    assert "run/reward_analysis/report.md" in out
    for update in updates():
        assert update["reward/share_min"] <= update["reward/share_mean"] <= update["reward/share_max"]
        assert update["reward_of/say_episodes"] == 8
        assert 0 <= update["loop_stall_max_s"] < update["rollout_s"] + 1
    assert Path("run/reward_analysis/report.md").read_text().startswith("# ")
    assert list(Path("run/reward_analysis").glob("*.png"))


def test_a_trainer_with_a_reward_file_evaluates_after_it_has_trained(policy_folder: Path):
    Path("mine.py").write_text(TUNIX)
    trainer = Trainer(
        TrainConfig.of(
            pretrain=str(policy_folder), prompt_data="rows.jsonl", label_key="answer", out="run", num_updates=1,
            rollout_batch_size=2, n_samples_per_prompt=2, max_new_tokens=4, eval_tasks=1, device="cpu",
            reward_file="mine.py", eval_greedy=False,
        )
    )  # fmt: skip
    try:
        report = trainer.fit()
        assert report.after is not None
        assert trainer.evaluate().reward == report.after.reward
    finally:
        trainer.close()
