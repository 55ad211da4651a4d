import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast
from turngym.agents import AgentExecutor, ExecutorConfig, Renderer, ScriptedEngine
from turngym.envs import AgentInstance, ConfigError, EnvFactory, ListTaskSource, StepResult, Task, task_source
from turngym.trainer import TinyConfig, make_tiny
from turngym.trainer.demonstrations import Demonstration, play_demonstrations, spoil, texts
from turngym.trainer.tiny_tokenizer import build_tokenizer
from turngym.trainer.warm_start import WarmStartConfig, encode, warm_start

QUICK = TinyConfig(
    num_demonstrations=30,
    warm_start=WarmStartConfig(max_tidy_steps=2, num_recovery_steps=2, num_spoilt_steps=2, batch_tokens=256),
)
MATH = EnvFactory(id="Math-v0")


class CountDown(AgentInstance):
    tasks = ListTaskSource([Task(id=f"from-{n}", options={"start": n}) for n in range(1, 6)], held_out=1)

    async def reset(self, *, seed=None, options=None):
        self.left = (options or {})["start"]
        return f"Count down from {self.left}. Which number is next?", {}

    async def step(self, action):
        is_right = action.text.strip() == str(self.left - 1)
        self.left -= is_right
        return StepResult(observation="Next?", reward=float(is_right), terminated=self.left == 0 or not is_right)

    @classmethod
    def demonstrations(cls, task, rng) -> list[str] | None:
        return [str(n) for n in reversed(range(task.options["start"]))]


class Silent(CountDown):
    @classmethod
    def demonstrations(cls, task, rng):
        return None


def play_math(num_episodes=64, spoilt=0.5, seed=0):
    return play_demonstrations(
        MATH, task_source("Math-v0").split("train"), num_episodes=num_episodes, spoilt=spoilt, seed=seed
    )


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(texts(play_math()), vocab_size=400, max_length=512)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(
        "Math-v0",
        task_source("Math-v0").split("train"),
        seed=3,
        out=tmp_path_factory.mktemp("tiny"),
        config=QUICK,
        report=lambda line: None,
    )


def test_transformers_load_the_folder_and_its_tokenizer(folder: Path):
    model = AutoModelForCausalLM.from_pretrained(folder)
    loaded = AutoTokenizer.from_pretrained(folder)
    assert 500_000 <= model.num_parameters() <= 5_000_000
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    text = loaded.apply_chat_template([{"role": "user", "content": "12 + 7 = ?"}], tokenize=False)
    assert text == "<|im_start|>user\n12 + 7 = ?<|im_end|>\n"
    assert [loaded.decode(i) for i in loaded.encode("12 + 7 = ?")] == ["1", "2", " + ", "7", " = ?"]


def test_the_same_seed_gives_the_same_files_bit_for_bit_in_another_process(folder: Path, tmp_path: Path):
    program = (
        "import sys, torch; from turngym.envs import task_source; from turngym.trainer import TinyConfig, make_tiny\n"
        "from turngym.trainer.warm_start import WarmStartConfig\n"
        f"torch.set_num_threads({torch.get_num_threads()})\n"
        "warm = WarmStartConfig(max_tidy_steps=2, num_recovery_steps=2, num_spoilt_steps=2, batch_tokens=256)\n"
        "config = TinyConfig(num_demonstrations=30, warm_start=warm)\n"
        "make_tiny('Math-v0', task_source('Math-v0').split('train'), seed=3, out=sys.argv[1], config=config)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_another_seed_gives_other_weights(folder: Path, tmp_path: Path):
    tasks = task_source("Math-v0").split("train")
    other = make_tiny("Math-v0", tasks, seed=4, out=tmp_path, config=QUICK, report=lambda line: None)
    assert (folder / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_making_a_policy_leaves_torchs_random_state_alone(tmp_path: Path):
    before = torch.get_rng_state()
    make_tiny(CountDown, CountDown.tasks, seed=0, out=tmp_path, config=QUICK, report=lambda line: None)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_report_says_what_was_spoilt(tmp_path: Path):
    lines: list[str] = []
    make_tiny(CountDown, CountDown.tasks.split("train"), seed=0, out=tmp_path, config=QUICK, report=lines.append)
    assert len(lines) == 1
    said = f"warmed up on 30 demonstrations of 4 tasks, {QUICK.spoilt:.0%} of the actions spoilt in a third of them"
    assert said in lines[0]


def test_without_demonstrations_the_weights_are_random_and_it_says_so(tmp_path: Path):
    lines: list[str] = []
    make_tiny(Silent, Silent.tasks, seed=0, out=tmp_path, config=QUICK, report=lines.append)
    assert len(lines) == 1
    assert "random parameters and no warm start, as the environment has no demonstrations" in lines[0]
    assert AutoModelForCausalLM.from_pretrained(tmp_path).num_parameters() >= 500_000


def test_too_large_a_policy_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"parameters; choose hidden_size, num_layers, intermediate_size for 500,000"):
        make_tiny(Silent, Silent.tasks, seed=0, out=tmp_path, config=TinyConfig(hidden_size=512, num_layers=8))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spoilt": 1.5}, r"spoilt=1\.5 must lie in \[0, 1\]"),
        ({"num_demonstrations": 2}, "num_demonstrations=2 must be at least 3"),
        ({"hidden_size": 130}, r"hidden_size=130 must be a multiple of 2 \* num_heads, 8"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused(settings: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        TinyConfig(**settings)


@given(st.text())
def test_any_text_can_be_encoded_and_comes_back(tokenizer: PreTrainedTokenizerFast, text: str):
    text = text.encode("utf-8", "ignore").decode()
    assert tokenizer.decode(tokenizer.encode(text, split_special_tokens=True)) == text


@given(st.integers(0, 10**9))
def test_digits_are_tokens_of_their_own(tokenizer: PreTrainedTokenizerFast, number: int):
    assert len(tokenizer.encode(str(number))) == len(str(number))


def test_a_phrase_that_is_often_said_is_one_token(tokenizer: PreTrainedTokenizerFast):
    assert len(tokenizer.encode("Too low.")) == 1


def test_held_out_questions_are_in_no_demonstration():
    held_out = task_source("Math-v0").split("held_out")
    known = {held_out.task(index).options["prompt"] for index in range(2000)}
    played = play_math(num_episodes=3000)
    assert not known & {str(episode.prompt) for episode in played.episodes}


def test_tidy_demonstrations_solve_their_task_at_once():
    for episode in play_math().tidy:
        assert episode.feedback == ("Correct.",)


def test_actions_are_spoilt_at_the_stated_rate_and_recoveries_are_shown():
    played = play_math(num_episodes=3000, spoilt=0.85)
    for episodes, rate in ((played.recovered, 0.5), (played.spoilt, 0.85)):
        wrong = [episode.feedback[0] != "Correct." for episode in episodes]
        assert np.mean(wrong) == pytest.approx(rate, abs=0.05)  # 1000 draws: at least three standard deviations
        assert wrong == [episode.is_mistake[0] for episode in episodes]
    recoveries = [episode for episode in played.recovered if len(episode.actions) > 1 and not episode.is_mistake[-1]]
    assert len(recoveries) > 200
    assert all(episode.feedback[-1] == "Correct." for episode in recoveries)


def test_nothing_is_spoilt_at_a_rate_of_zero():
    played = play_math(spoilt=0.0)
    assert [episode.actions for episode in played.spoilt] == [episode.actions for episode in played.tidy]


@given(st.text(max_size=20), st.integers(0, 2**32))
def test_any_action_can_be_spoilt(action: str, seed: int):
    assert isinstance(spoil(action, ["17"], np.random.default_rng(seed)), str)


async def test_demonstrations_lie_as_the_executor_lays_out_episodes(tokenizer: PreTrainedTokenizerFast):
    tasks = task_source("Math-v0").split("train")
    renderer = Renderer(tokenizer)
    task = tasks.task(0)
    label = task.options["label"]
    wrong = str(int(label) + 3)
    engine = ScriptedEngine([wrong, label], tokenizer)
    async with AgentExecutor("Math-v0", engine, renderer, ExecutorConfig()) as executor:
        episode = await executor.run_episode(task)
    played = Demonstration(
        task_id=task.id,
        prompt=task.options["prompt"],
        actions=tuple(turn.action_text for turn in episode.turns),
        is_mistake=(True, False),
        feedback=tuple(turn.feedback for turn in episode.turns),
    )
    record = episode.records[0]
    row = encode(renderer, played, max_length=512, learn_mistakes=True)
    assert played.actions == (wrong, label)
    assert row.token_ids == record.token_ids.tolist()
    assert row.is_learned == record.action_mask.tolist()
    shown_only = encode(renderer, played, max_length=512, learn_mistakes=False)
    assert shown_only.token_ids == row.token_ids
    assert shown_only.is_learned == (record.action_mask & (record.turn_index == 1)).tolist()


def test_a_long_demonstration_is_cut_to_the_context(tokenizer: PreTrainedTokenizerFast):
    episode = Demonstration(
        task_id="t",
        prompt="12 + 7 = ?",
        actions=("19",) * 50,
        is_mistake=(False,) * 50,
        feedback=("Too low.",) * 50,
    )
    row = encode(Renderer(tokenizer), episode, max_length=64, learn_mistakes=True)
    assert len(row.token_ids) == len(row.is_learned) == 64


def test_the_warm_start_learns_what_was_said(folder: Path):
    loaded = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    played = play_math(num_episodes=12)
    config = WarmStartConfig(
        max_tidy_steps=60, num_recovery_steps=0, num_spoilt_steps=0, batch_tokens=128, num_rising_steps=5
    )
    losses = warm_start(model, loaded, played, config=config, seed=0)["losses"]
    assert losses[-1] < 0.5 * losses[0]


def test_tidy_steps_end_when_their_loss_is_low(folder: Path):
    loaded = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    config = WarmStartConfig(max_tidy_steps=50, tidy_loss=1e9, num_recovery_steps=0, num_spoilt_steps=0)
    assert len(warm_start(model, loaded, play_math(num_episodes=12), config=config, seed=0)["losses"]) == 20
