"""Reward files for flux run as they are."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from turngym.agents import load_user_module
from turngym.envs import rewards
from turngym.envs.errors import ConfigError
from turngym.envs.rewards import RewardOutput, Trajectory
from turngym.envs.user_files import run_user_script

from .conftest import FILES, Start, outputs

FLUX = FILES / "flux"


def trajectories(*responses: str) -> list[Trajectory]:
    return [Trajectory(prompt="Question?", response=response) for response in responses]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("PolitenessReward", [RewardOutput(0.5, metadata={"hits": 1, "words": ["please"]})]),
        ("ConcisenessReward", [RewardOutput(1.0, metadata={"num_words": 3})]),
        ("ScaledReward", [RewardOutput(1.0)]),  # 0.75, doubled, clipped
    ],
)
async def test_classes_with_and_without_a_call_of_the_base_class(
    start: Start, name: str, expected: Sequence[RewardOutput]
) -> None:
    reward = await start("flux/concise_and_polite.py", name)
    assert await outputs(reward, trajectories("Answer me, please!")) == expected


async def test_one_of_several_classes_has_to_be_chosen(start: Start) -> None:
    with pytest.raises(ConfigError) as caught:
        await start("flux/concise_and_polite.py")
    assert str(caught.value) == (
        f"{FLUX / 'concise_and_polite.py'} could mean any of PolitenessReward, ConcisenessReward, ScaledReward; choose "
        "with FILE:NAME, or call one of them reward_func"
    )


async def test_a_composite_of_all_rule_based_rewards(start: Start) -> None:
    reward = await start("flux/all_ready_rewards.py")
    weights = {"LengthReward": 0.2, "FormatReward": 0.3, "KeywordReward": 0.1, "KeywordReward_2": 0.1, "function": 0.2}
    weights["Exclamations"] = 0.1
    good, bad = await outputs(reward, trajectories("Reasoning: because 4. Answer: 4", "I don't know! Maybe!"))
    for output in (good, bad):
        parts = {name: output.metadata[name] for name in weights}
        assert output.reward == pytest.approx(sum(weights[name] * parts[name] for name in weights))
    assert {good.metadata[name] for name in weights if name != "LengthReward"} == {1.0}
    assert good.reward > 0.9
    assert bad.reward < 0.3


def test_both_spellings_of_the_arguments_mean_the_same() -> None:
    module = load_user_module(FLUX / "all_ready_rewards.py")
    assert (module.length.target_length, module.length_short.target_length) == (150, 4)
    text = Trajectory(response="yes because 1, maybe, therefore")
    assert module.keywords(text).reward == module.keywords_short(text).reward == pytest.approx(1.0 + 0.1 - 0.2)


def test_what_needs_a_model_or_a_key_is_made_without_using_it() -> None:
    module = load_user_module(FLUX / "all_ready_rewards.py")
    assert isinstance(module.judge, rewards.LLMJudge)
    assert isinstance(module.reward_model, rewards.RewardModel)
    assert "sk-not-a-key" not in repr(module.judge)


async def test_a_file_that_imports_by_submodule(start: Start) -> None:
    reward = await start("flux/by_submodule.py")
    (output,) = await outputs(reward, trajectories("Answer: four"))
    assert output.reward == 0.5
    assert output.metadata["turns"] == 1


async def test_token_rewards_come_back_as_floats(start: Start) -> None:
    reward = await start("flux/token_level.py")
    (output,) = await outputs(reward, [Trajectory(response="abc", token_ids=(5, 6, 7))])
    assert output.token_rewards == [0.0, 0.5, 1.0]
    assert output.reward == output.metadata["mean"] == 0.5


async def test_async_rewards_run(start: Start) -> None:
    reward = await start("flux/async_reward.py")
    given = await outputs(reward, trajectories(*["A sentence.", "no end"] * 16))
    assert [output.reward for output in given] == [1.0, 0.0] * 16
    assert given[0].metadata == {"ok": True}


def test_a_script_that_tries_rewards_prints_what_they_give(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_user_script(FLUX / "try_rewards.py", ["--verbose"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.splitlines() == [
        "Thank you.: 0.750",
        "No.: 0.500",
        "arguments: ['--verbose']",
    ]


def test_a_reward_file_that_tries_itself_does_so_as_a_script_only(capsys: pytest.CaptureFixture[str]) -> None:
    load_user_module(FLUX / "concise_and_polite.py")
    assert capsys.readouterr().out == ""
    run_user_script(FLUX / "concise_and_polite.py")
    assert capsys.readouterr().out.splitlines() == [
        "'Give me that.': 0.00 {'hits': 0, 'words': []}",
        "'Could you please give me that? Thank you.': 1.00 {'hits': 2, 'words': ['please', 'thank']}",
    ]


class _Judge(BaseHTTPRequestHandler):
    """Rates whatever it is asked with 10 of 10."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": json.dumps({"reason": "Fine.", "score": 10})}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "judge", "choices": [choice]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.mark.slow
async def test_judges_and_models_run_in_a_file(
    start: Start, sentiment_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Judge) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_address[1]}/v1")
        monkeypatch.setenv("JUDGE_KEY", "sk-no-secret")
        monkeypatch.setenv("SENTIMENT_MODEL", str(sentiment_model))
        reward = await start("flux/model_based.py")
        given = await outputs(reward, trajectories("very good answer", "bad"))
        server.shutdown()
    for output, num_words in zip(given, (3, 1), strict=True):
        parts = [output.metadata[name] for name in ("LLMJudge", "RewardModel", "LengthReward")]
        assert parts[0] == 1.0
        assert 0 < parts[1] < 1
        assert output.reward == pytest.approx(0.5 * parts[0] + 0.25 * parts[1] + 0.25 * parts[2])
        assert output.metadata["LengthReward/num_words"] == num_words


SCRIPT = """
import os
import sys

from flux.core.trajectory import Trajectory
from flux.rewards import CompositeReward, LengthReward, LLMJudge, RewardModel

model = RewardModel(model_path=sys.argv[1], device="cpu")
judge = LLMJudge(judge_model="gpt-4o-mini", prompt_template="Rate this response...", api_key=os.environ["JUDGE_KEY"])
composite = CompositeReward([(judge, 0.5), (model, 0.25), (LengthReward(target=3), 0.25)])

for response in ("very good answer", "bad"):
    trajectory = Trajectory(prompt="Question?", response=response)
    print(f"model: {model.compute_reward(trajectory).reward:.6f}")
    print(f"judge: {judge.compute_reward(trajectory).reward:.1f}")
    print(f"all: {composite.compute_reward(trajectory).reward:.6f}")
"""


@pytest.mark.slow
def test_a_script_tries_models_and_judges_without_a_loop(
    sentiment_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "try_models.py"
    file.write_text(SCRIPT)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Judge) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_address[1]}/v1")
        monkeypatch.setenv("JUDGE_KEY", "sk-no-secret")
        run_user_script(file, [str(sentiment_model)])
        server.shutdown()
    printed = [float(line.partition(": ")[2]) for line in capsys.readouterr().out.splitlines()]
    for num_words, (model, judge, together) in zip((3, 1), (printed[:3], printed[3:]), strict=True):
        assert 0 < model < 1
        assert judge == 1.0
        length = rewards.LengthReward(target=3)(Trajectory(response="x " * num_words)).reward
        assert together == pytest.approx(0.5 + 0.25 * model + 0.25 * length, abs=1e-5)


@pytest.mark.slow
async def test_a_model_still_gets_one_batch_of_calls_made_at_once(sentiment_model: Path) -> None:
    model = rewards.RewardModel(model_path=str(sentiment_model), device="cpu")
    composite = rewards.CompositeReward([(model, 1.0)])
    await composite.start()
    given = await outputs(composite, trajectories(*["very good answer", "bad"] * 16))
    assert model.stats.num_calls == 32
    assert model.stats.num_forwards == 1
    assert len({round(output.reward, 5) for output in given}) == 2
    await composite.aclose()


@pytest.mark.parametrize(
    "module", ["flux.rewards", "flux.rewards.base", "flux.rewards.rule_based", "flux.rewards.model_based"]
)
def test_every_name_of_the_contract_can_be_imported(tmp_path: Path, module: str) -> None:
    names = [
        "RewardFunction",
        "RewardOutput",
        "LengthReward",
        "FormatReward",
        "KeywordReward",
        "FunctionReward",
        "CompositeReward",
        "RewardModel",
        "LLMJudge",
    ]
    file = tmp_path / "file.py"
    file.write_text(f"from {module} import {', '.join(names)}\nfrom flux.core.trajectory import Trajectory\n")
    loaded: Any = load_user_module(file)
    assert [getattr(loaded, name) for name in names] == [getattr(rewards, name) for name in names]
    assert loaded.Trajectory(response="x") == Trajectory(response="x")
