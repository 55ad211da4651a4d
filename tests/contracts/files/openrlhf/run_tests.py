"""Runs the label's tests on generated code."""

import os
import subprocess
import tempfile

import torch


def run(code, tests):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "solution.py"), "w") as f:
            f.write(code)
        with open(os.path.join(folder, "test_solution.py"), "w") as f:
            f.write("from solution import *\n\n" + tests)
        try:
            done = subprocess.run(
                ["python", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "test_solution.py"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=60,
            )
        except subprocess.TimeoutExpired:
            return 0.0
        return 1.0 if done.returncode == 0 else 0.0


def reward_func(queries, prompts, labels):
    rewards = [run(q[len(p) :], label) for q, p, label in zip(queries, prompts, labels)]
    return {"rewards": torch.tensor(rewards), "scores": torch.tensor(rewards)}
