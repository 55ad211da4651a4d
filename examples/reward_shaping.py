"""A policy made from nothing learns what a reward asks of its answers, in about a minute on two cores.

1. Customers of a shop complain about what they bought. The rows are made here: a prompt, the product that it names, and
   a few answers, put together from stock sentences without any aim.
2. A tiny policy imitates these answers. It mostly misses what the reward asks for.
3. The reward wants the word "sorry" and the product that the prompt names, no other product, and about 25 words: half
   `KeywordReward`, half `LengthReward`, and a `CompositeReward` of both.
4. `SingleTurn-v0` makes an environment of rows and reward. The policy answers held-out prompts, trains on others, and
   answers the held-out ones again.

Without the penalty on other products the policy finds out that naming all of them pays: take it away and read the
answers. What still pays is to say the same sentence twice, since nothing in this reward minds.

Run it with `python examples/reward_shaping.py`, or `python examples/reward_shaping.py --num_updates 10 --seed 1`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar
from turngym.agents import Episode, read_episodes
from turngym.envs import RowTaskSource
from turngym.envs.rewards import CompositeReward, KeywordReward, LengthReward, RewardFunction, RewardOutput, Trajectory
from turngym.trainer import RunReport, TinyConfig, TrainConfig, Trainer, UpdateReport, make_tiny
from turngym.trainer.warm_start import WarmStartConfig

PRODUCTS = ("kettle", "lamp", "jacket", "phone", "chair", "clock", "camera", "guitar")
COMPLAINTS = (
    "arrived broken",
    "fell apart",
    "got wet",
    "stopped working",
    "lost its colour",
    "got a scratch",
    "caught fire",
    "made a strange noise",
    "lost a screw",
    "smelled of smoke",
)
TIMES = ("today", "yesterday", "last week", "last month", "on Monday", "on Friday", "at once", "again")
GREETINGS = ("Hello.", "Dear customer.", "Good morning.", "Thank you for your message.")
SENTENCES = (
    "We are sorry about your {product}.",
    "Please check the manual of your {product}.",
    "We will send a refund today.",
    "Our team will look into it.",
    "Unfortunately we can not help.",
    "Please tell us your order number.",
    "The shop is open until six.",
    "Have a look at our new offers.",
)
NUM_ANSWERS = 4
NUM_SHOWN = 3


class NamesTheProduct(RewardFunction):
    """A `KeywordReward` whose keywords depend on the row: "sorry" and its product, and no other product."""

    reward_range = (0.0, 1.0)

    def __init__(self) -> None:
        super().__init__("keywords")
        self._rewards = {
            product: KeywordReward(required=["sorry", product], penalty=[p for p in PRODUCTS if p != product])
            for product in PRODUCTS
        }

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        """What the reward of the row's product gives."""
        return self._rewards[trajectory.columns["product"]].compute_reward(trajectory)


TINY = TinyConfig(
    num_demonstrations=3000,
    spoilt=0.0,
    max_length=256,
    warm_start=WarmStartConfig(max_tidy_steps=120, num_recovery_steps=20, num_spoilt_steps=0, batch_tokens=1024),
)
REWARD = CompositeReward([(NamesTheProduct(), 0.5), (LengthReward(target=25, tolerance=5, name="length"), 0.5)])


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(description="Train a tiny policy towards a composite reward.")
    parser.add_argument("--num_updates", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="an empty folder; the first free runs/shaping by default")
    arguments = parser.parse_args()
    out = arguments.out or free_folder(Path("runs/shaping"))
    console = Console(highlight=False, soft_wrap=True)
    disable_progress_bar()
    torch.set_num_threads(1)  # so small a policy gains nothing from a second core
    started = time.perf_counter()
    report = train(out, num_updates=arguments.num_updates, seed=arguments.seed, console=console)
    show(console, report, seconds=time.perf_counter() - started)
    return 0


def train(out: Path, *, num_updates: int, seed: int, console: Console) -> RunReport:
    """Make the rows and the policy, and train it."""
    out.mkdir(parents=True)
    data = out / "complaints.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows(seed)), encoding="utf-8")
    train_rows = RowTaskSource(data).split("train")
    tiny = make_tiny("SingleTurn-v0", train_rows, seed=seed, out=out / "tiny", config=TINY, report=console.print)
    config = TrainConfig.of(
        env="SingleTurn-v0",
        prompt_data=str(data),
        pretrain=str(tiny),
        max_new_tokens=40,
        learning_rate=3e-4,
        num_minibatches=4,
        rollout_batch_size=16,
        n_samples_per_prompt=8,
        num_updates=num_updates,
        eval_n_samples_per_prompt=4,
        eval_greedy=False,
        seed=seed,
        out=str(out / "run"),
    )
    trainer = Trainer(config, reward=REWARD)

    @trainer.add_step_callback
    def show_update(result: UpdateReport) -> None:
        if result.version % 5 == 0:
            console.print(f"update {result.version}: the mean reward is {np.mean(result.metrics['rewards']):.2f}")

    try:
        return trainer.fit()
    finally:
        trainer.close()


def rows(seed: int) -> Iterator[dict[str, Any]]:
    """Every complaint about every product, with a few answers each."""
    rng = np.random.default_rng(seed)
    for product, complaint, when in itertools.product(PRODUCTS, COMPLAINTS, TIMES):
        answers = [aimless_answer(product, rng) for _ in range(NUM_ANSWERS)]
        yield {"prompt": f"My {product} {complaint} {when}.", "product": product, "demonstrations": answers}


def aimless_answer(product: str, rng: np.random.Generator) -> str:
    """One to three sentences at random, half of the time with a greeting; half of the products are the right one."""
    chosen = rng.permutation(SENTENCES)[: rng.integers(1, 4)]
    sentences = [s.format(product=product if rng.random() < 0.5 else rng.choice(PRODUCTS)) for s in chosen]
    return " ".join([rng.choice(GREETINGS), *sentences] if rng.random() < 0.5 else sentences)


def free_folder(path: Path) -> Path:
    """The path itself, or with the first number that makes it one that doesn't exist."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([path], numbered) if not folder.exists())


def show(console: Console, report: RunReport, *, seconds: float) -> None:
    """Print what the held-out prompts earned before and after, by part, and a few of the answers."""
    played = [read_episodes(path) for path in sorted((report.out / "episodes").glob("eval-*.parquet"))]
    table = Table(title=f"{len({e.task_id for e in played[0]})} held-out prompts", title_justify="left")
    for heading in ("mean", "before", "after"):
        table.add_column(heading, no_wrap=True)
    assert report.before is not None
    assert report.after is not None
    table.add_row("composite", str(report.before.reward), str(report.after.reward))
    for part in REWARD.rewards:
        table.add_row(
            part, *(f"{np.mean([value_of(episode, part) for episode in episodes]):.3f}" for episodes in played)
        )
    console.print(table)
    for title, episodes in zip(("before", "after"), played, strict=False):
        console.print(f"\n[bold]Answers, {title}[/bold]")
        for episode in episodes[: 4 * NUM_SHOWN : 4]:
            console.print(f"  {episode.reward:.2f}  {episode.prompt}  {episode.turns[-1].action_text}", markup=False)
    console.print(f"\n{seconds:.0f} s in all. Every episode: {report.out / 'episodes'}   policy: {report.policy}")


def value_of(episode: Episode, part: str) -> float:
    """What a part of the reward gave an episode."""
    return episode.turns[-1].info["reward"]["metadata"][part]


if __name__ == "__main__":
    sys.exit(main())
