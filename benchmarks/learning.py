"""Learning from nothing: `turngym train --pretrain tiny`, five seeds and a control on Math-v0, and GuessNumber-v0.

The figures are the worst over the seeds, so that a target holds for each seed; the control's is the mean, as it has no
effect to show. Held-out tasks only, 400 of them. `--quick` takes one seed and two updates: its figures are no result.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from report import report
from turngym.agents import read_episodes
from turngym.envs.math.guess_number import bisection_turns

EVAL_TASKS = 400
NUM_UPDATES = {"Math-v0": 100, "GuessNumber-v0": 40}
FLAGS = {"GuessNumber-v0": ("--gamma", "0", "--learning_rate", "2e-4")}
"""Guessing: what a guess removes at once says how good it was; the return adds the luck of the guesses after it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, few updates")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, which share the cores")
    parser.add_argument("--out", type=Path, help="keep the runs' folders here")
    arguments = parser.parse_args()
    num_seeds = 1 if arguments.quick else 5
    with tempfile.TemporaryDirectory() as temporary:
        out = arguments.out or Path(temporary)
        runs = [("Math-v0", seed, ()) for seed in range(num_seeds)]
        runs += [("Math-v0", seed, ("--shuffle_rewards", "true")) for seed in range(1 if arguments.quick else 2)]
        runs += [("GuessNumber-v0", seed, ()) for seed in range(num_seeds)]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            results = list(pool.map(lambda run: train(*run, out=out, quick=arguments.quick), runs))
    learned, controls, guesses = (
        [result for run, result in zip(runs, results, strict=True) if run[0] == env and bool(run[2]) == is_control]
        for env, is_control in (("Math-v0", False), ("Math-v0", True), ("GuessNumber-v0", False))
    )
    summarise(learned, controls, guesses)


def train(env: str, seed: int, flags: Sequence[str], *, out: Path, quick: bool) -> dict[str, Any]:
    """One run in a process of its own; its evaluations before and after."""
    folder = out / "-".join([env, str(seed), *(flag.strip("-") for flag in flags[:1])])
    num_updates = 2 if quick else NUM_UPDATES[env]
    command = ["train", "--env", env, "--pretrain", "tiny", "--num_updates", str(num_updates), "--seed", str(seed)]
    command += ["--eval_tasks", "50" if quick else str(EVAL_TASKS), "--save_steps", str(num_updates)]
    command += FLAGS.get(env, ())
    program = "import sys; from turngym.trainer.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, *command, *flags, "--out", str(folder)],
        env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"turngym {' '.join(command)} failed:\n{done.stderr}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    result = {"env": env, "seed": seed, "control": bool(flags), "before": evaluations[0], "after": evaluations[-1]}
    if env == "GuessNumber-v0":
        for when, version in (("before", 0), ("after", num_updates)):
            result[when] = {**result[when], "over_bisection": over_bisection(folder, version)}
    print(line_of(result), flush=True)
    return result


def over_bisection(folder: Path, version: int) -> float:
    """Mean turns of the sampled episodes, unsolved ones with all of theirs, over the mean that bisection would need."""
    episodes = [
        episode
        for episode in read_episodes(folder / "episodes" / f"eval-{version:06d}.parquet")
        if episode.turns[0].sampling.temperature > 0
    ]
    needed = []
    for episode in episodes:
        low, _, high = episode.task_id.removeprefix("guess/").partition(",")[0].partition(" to ")
        needed.append(bisection_turns(int(low), int(high)))
    return fmean(len(episode.turns) for episode in episodes) / fmean(needed)


def line_of(result: dict[str, Any]) -> str:
    """A run in one line."""
    names = ("pass@1", "greedy_pass@1", "first_attempt", "turns", "over_bisection")
    before, after = result["before"], result["after"]
    figures = [f"{name} {before[name]:.3f} -> {after[name]:.3f}" for name in names if name in after]
    return f"{result['env']} seed {result['seed']}{' control' if result['control'] else ''}: {', '.join(figures)}"


def summarise(learned: list[Any], controls: list[Any], guesses: list[Any]) -> None:
    """Print the benchmark's line."""

    def rise(results: list[Any], name: str) -> list[float]:
        return [result["after"][name] - result["before"][name] for result in results]

    report(
        "learning",
        {
            "math_pass_at_1_before_worst": max(result["before"]["pass@1"] for result in learned),
            "math_pass_at_1_after_worst": min(result["after"]["pass@1"] for result in learned),
            "math_greedy_rise_worst": min(rise(learned, "greedy_pass@1")),
            "math_first_attempt_rise_worst": min(rise(learned, "first_attempt")),
            "control_pass_at_1_rise_mean": fmean(rise(controls, "pass@1")),
            "guess_turns_over_bisection_worst": max(result["after"]["over_bisection"] for result in guesses),
        },
        {
            "math_pass_at_1_before_worst": 0.4,
            "control_pass_at_1_rise_mean": 0.05,
            "guess_turns_over_bisection_worst": 1.15,
        },
        at_least={
            "math_pass_at_1_after_worst": 0.85,
            "math_greedy_rise_worst": 0.15,
            "math_first_attempt_rise_worst": 0.05,
        },
    )


if __name__ == "__main__":
    main()
