"""A policy made from nothing learns to answer Math-v0's questions, in a few minutes on two cores.

1. `turngym train` makes a small policy: random weights, then a short warm start on demonstrations of which many actions
   are spoilt.
2. It plays held-out questions, trains on others, and plays the held-out ones again.
3. This script prints what changed, and reads a few episodes back from the run's folder, turn by turn.

Run it with `make demo`, or `python examples/math_agent.py --num_updates 20 --out runs/short`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from turngym.agents import Episode, read_episodes
from turngym.trainer.cli import main as turngym

FIGURES = {
    "pass@1": "solved in three attempts, sampled",
    "greedy_pass@1": "the same at temperature 0",
    "first_attempt": "solved in the first, sampled",
    "turns": "turns of an episode",
    "reward": "reward of an episode",
}
NUM_SHOWN = 3


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(description="Train a tiny policy on Math-v0 and show what it learned.")
    parser.add_argument("--num_updates", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="an empty folder for the run; the first free runs/math by default")
    arguments = parser.parse_args()
    out = arguments.out or free_folder(Path("runs/math"))
    command = (
        "train --env Math-v0 --pretrain tiny --advantage_estimator rloo --n_samples_per_prompt 8 "
        f"--num_updates {arguments.num_updates} --seed {arguments.seed} --out {shlex.quote(str(out))}"
    )
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]turngym {command}[/bold]\n")
    started = time.perf_counter()
    code = turngym(shlex.split(command))
    if code:
        return code
    show(console, out, seconds=time.perf_counter() - started)
    return 0


def free_folder(path: Path) -> Path:
    """The path itself, or with the first number that makes it one that doesn't exist."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([path], numbered) if not folder.exists())


def show(console: Console, out: Path, *, seconds: float) -> None:
    """Print the run's figures and a few of its episodes."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    updates = [row for row in rows if row["kind"] == "train"]
    before, after = evaluations[0], evaluations[-1]
    console.print(figures(before, after))
    episodes = [read_episodes(out / "episodes" / f"eval-{row['version']:06d}.parquet") for row in (before, after)]
    for title, played in zip(("before", "after"), with_same_tasks(*episodes), strict=True):
        console.print(f"\n[bold]Held-out episodes, {title}[/bold]")
        for episode in played:
            console.print(as_text(episode), markup=False)
    num_episodes = sum(row["episodes"] for row in updates)
    mismatch = max((row["mismatch_max"] for row in updates), default=0.0)
    console.print(
        f"\n{num_episodes:,} episodes in {len(updates)} updates, {seconds:.0f} s in all. Over all of their tokens, the "
        f"trainer's logprobs differ from the engine's by at most {mismatch:.1e}."
    )
    console.print(f"Every episode: {out / 'episodes'}   metrics: {out / 'metrics.jsonl'}   policy: {out / 'policy'}")


def figures(before: dict[str, float], after: dict[str, float]) -> Table:
    """The figures before and after, with 95 % intervals."""
    table = Table(title=f"{before['tasks']:.0f} held-out questions", title_justify="left")
    for heading in ("", "before", "after"):
        table.add_column(heading, no_wrap=True)
    for name, meaning in FIGURES.items():
        cells = [f"{row[name]:.2f} [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]" for row in (before, after)]
        table.add_row(meaning, *cells)
    return table


def with_same_tasks(before: Sequence[Episode], after: Sequence[Episode]) -> tuple[list[Episode], list[Episode]]:
    """A few tasks that took more than one turn before, as they were played then and later."""
    later = {episode.task_id: episode for episode in reversed(after)}
    shown = [episode for episode in before if len(episode.turns) > 1 and episode.task_id in later][:NUM_SHOWN]
    return shown, [later[episode.task_id] for episode in shown]


def as_text(episode: Episode) -> str:
    """An episode, a line a turn."""
    turns = [f"    {turn.action_text!r:>10}  {turn.reward:+.1f}  {turn.feedback}" for turn in episode.turns]
    return "\n".join([f"  {episode.task_id.partition('/')[2]}", *turns])


if __name__ == "__main__":
    sys.exit(main())
