"""The example `reward_shaping.py`: its reward, its rows, and a short run of it."""

import importlib.util
import io
import itertools
import sys
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console
from turngym.envs.rewards import Trajectory
from turngym.trainer import TinyConfig
from turngym.trainer.warm_start import WarmStartConfig

FILE = Path(__file__).parents[2] / "examples" / "reward_shaping.py"
SORRY = "We are sorry about your kettle."
FIVE_WORDS = " The shop is open today."


@pytest.fixture(scope="module")
def example() -> ModuleType:
    module_spec = importlib.util.spec_from_file_location("reward_shaping", FILE)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # dataclasses and pickles look there
    module_spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("response", "keywords"), [
    (SORRY, 1.0),
    ("Sorry.", 0.5),
    ("Your kettle.", 0.5),
    (SORRY + " And your lamp.", 0.8),
    ("Sorry: kettle lamp jacket phone chair clock camera guitar", 0.0),
    ("", 0.0),
])  # fmt: skip
def test_a_reply_names_its_own_product_and_no_other(example, response, keywords):
    output = example.REWARD(Trajectory(response=response, columns={"product": "kettle"}))
    assert output.metadata["keywords"] == pytest.approx(keywords)


def test_a_reply_that_has_it_all_earns_one(example):
    response = SORRY + 4 * FIVE_WORDS[:-1]
    output = example.REWARD(Trajectory(response=response[: -len(" today")], columns={"product": "kettle"}))
    assert (output.metadata["length/num_words"], output.reward) == (25, 1.0)


def test_no_demonstration_aims_at_the_reward(example):
    """Random sentences: the mean is far below the 0.3 that the policy starts under."""
    rows = list(example.rows(seed=0))
    rewards = [
        example.REWARD(Trajectory(response=answer, columns=row)).reward
        for row in rows
        for answer in row["demonstrations"]
    ]
    assert len(rows) == len({row["prompt"] for row in rows}) == 640
    assert sum(rewards) / len(rewards) < 0.25


def test_the_same_seed_gives_the_same_rows(example):
    first, second, other = (list(itertools.islice(example.rows(seed), 20)) for seed in (3, 3, 4))
    assert first == second != other


@pytest.mark.slow
def test_the_reward_rises_within_a_few_updates(example, monkeypatch, tmp_path):
    short = WarmStartConfig(max_tidy_steps=40, num_recovery_steps=10, num_spoilt_steps=0, batch_tokens=1024)
    tiny = TinyConfig(num_demonstrations=450, spoilt=0.0, max_length=256, warm_start=short)
    monkeypatch.setattr(example, "TINY", tiny)
    written = io.StringIO()
    console = Console(file=written, width=200)
    report = example.train(tmp_path / "out", num_updates=4, seed=0, console=console)
    assert report.before.reward.high < 0.3
    assert report.after.reward.low > report.before.reward.high + 0.05
    example.show(console, report, seconds=1.0)
    for said in ("composite", "keywords", "length", "Answers, before", "Answers, after", "My kettle arrived broken"):
        assert said in written.getvalue()
