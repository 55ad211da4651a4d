"""Evaluation: the estimators, and what counts."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer
from turngym.agents import AgentExecutor, ExecutorConfig
from turngym.agents.chat import Renderer
from turngym.agents.engines.scripted import ScriptedEngine
from turngym.envs import AgentInstance, ListTaskSource, SamplingParams, StepResult, Task, task_source
from turngym.envs.errors import DataError
from turngym.trainer.config import EvalConfig
from turngym.trainer.evaluate import EvalReport, estimate, evaluate, held_out_tasks, pass_at_k, wilson_interval


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_that_hold_a_solved_one(case: tuple[int, int, int]):
    n, solved, k = case
    choices = list(itertools.combinations(range(n), k))
    assert pass_at_k(n, solved, k) == pytest.approx(sum(min(choice) < solved for choice in choices) / len(choices))


def test_pass_at_k_needs_k_samples():
    with pytest.raises(ValueError, match=r"pass@3 of 1 solved among 2; it needs 1 <= k <= n and 0 <= c <= n"):
        pass_at_k(2, 1, 3)


def test_wilsons_interval_is_that_of_the_literature():
    # Newcombe (1998), table I: 81 of 263 and 0 of 20, score method without continuity correction.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_the_bootstrap_interval_is_near_the_normal_one_and_repeats():
    values = [math.sin(i) for i in range(400)]
    found = estimate(values)
    mean = sum(values) / 400
    error = 1.96 * math.sqrt(sum((v - mean) ** 2 for v in values)) / 400
    assert found.mean == pytest.approx(mean)
    assert (found.low, found.high) == pytest.approx((mean - error, mean + error), abs=0.15 * error)
    assert estimate(values) == found


def test_held_out_tasks_are_distinct_and_none_of_them_is_trained_on():
    tasks = task_source("Math-v0", level=1)
    found = held_out_tasks(tasks, 20)
    prompts = {task.options["prompt"] for task in found}
    train = tasks.split("train")
    assert len(prompts) == len(found) == 20
    assert prompts.isdisjoint(train.task(index).options["prompt"] for index in range(2000))


def test_an_endless_source_with_few_held_out_tasks_gives_those():
    tasks = task_source("GuessNumber-v0", max_number=16)
    found = held_out_tasks(tasks, 200)
    assert 0 < len(found) < 200
    assert len({repr(sorted(task.options.items())) for task in found}) == len(found)


def test_without_held_out_tasks_there_is_nothing_to_evaluate():
    with pytest.raises(DataError, match="no tasks are held out, so that nothing can be evaluated"):
        held_out_tasks(ListTaskSource([Task(id="only")]), 5)


class Crashes(AgentInstance):
    """Solved by `yes`, in the second turn too; crashes where the task says so."""

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None):
        self.options = options or {}
        self.turn = 0
        return "Say yes.", {}

    async def step(self, action):
        if self.options["crashes"]:
            raise OSError("gone")
        self.turn += 1
        is_right = action.text == "yes"
        return StepResult(
            observation="Again.", reward=float(is_right), terminated=is_right or self.turn == 2, score=float(is_right)
        )


async def run(policy_folder: Path, config: EvalConfig, actions, *crashes: bool) -> tuple[EvalReport, list[Any]]:
    tokenizer = AutoTokenizer.from_pretrained(policy_folder)
    engine = ScriptedEngine(actions, tokenizer)
    settings = ExecutorConfig(max_refills=1, max_length=128, sampling=SamplingParams(max_tokens=8))
    tasks = [Task(id=str(i), options={"crashes": value}) for i, value in enumerate(crashes)]
    async with AgentExecutor(Crashes, engine, Renderer(tokenizer), settings) as executor:
        report, _ = await evaluate(executor, tasks, config, sampling=settings.sampling, concurrency=3)
    return report, engine.requests


async def test_tasks_that_crashed_stay_in_the_denominator_and_are_reported(policy_folder: Path):
    report, _ = await run(policy_folder, EvalConfig(), ["yes"], False, False, True)
    assert report.num_tasks == report.num_episodes == 3
    assert report.num_failed == 1
    assert report.pass_at[1].mean == pytest.approx(2 / 3)
    assert report.first_attempt is not None
    assert report.first_attempt.mean == pytest.approx(2 / 3)
    assert report.reward.mean == 1.0


async def test_solving_in_a_later_turn_is_no_first_attempt(policy_folder: Path):
    report, _ = await run(policy_folder, EvalConfig(), ["no", "yes"], False, False)
    assert report.pass_at[1].mean == 1.0
    assert report.first_attempt is not None
    assert report.first_attempt.mean == 0.0
    assert report.turns.mean == 2.0
    assert report.turns_to_solve is not None
    assert report.turns_to_solve.mean == 2.0


async def test_pass_at_k_of_several_samples_counts_solved_episodes(policy_folder: Path):
    def actions(request):
        return "yes" if "-0001-" in request.episode_id else "no"  # the second member of each group

    report, _ = await run(policy_folder, EvalConfig(eval_n_samples_per_prompt=4), actions, False, False)
    assert {k: e.mean for k, e in report.pass_at.items()} == {1: 0.25, 2: 0.5, 4: 1.0}


async def test_greedy_is_one_more_pass_at_temperature_0(policy_folder: Path):
    def actions(request):
        return "yes" if request.sampling.temperature == 0 else "no"

    config = EvalConfig(eval_greedy=True, eval_temperature=0.7)
    report, requests = await run(policy_folder, config, actions, False, False)
    assert report.greedy_pass_at_1 is not None
    assert (report.pass_at[1].mean, report.greedy_pass_at_1.mean) == (0.0, 1.0)
    assert {request.sampling.temperature for request in requests} == {0.0, 0.7}


async def test_seeds_repeat_so_that_an_evaluation_does(policy_folder: Path):
    config = EvalConfig(eval_n_samples_per_prompt=3, eval_greedy=False)
    _, first = await run(policy_folder, config, ["no", "yes"], False, False)
    _, second = await run(policy_folder, config, ["no", "yes"], False, False)
    seeds = {request.request_id: request.sampling.seed for request in first}
    assert seeds == {request.request_id: request.sampling.seed for request in second}
    assert len(set(seeds.values())) == len(seeds) == 12


async def test_a_report_names_every_estimate_with_its_interval(policy_folder: Path):
    report, _ = await run(policy_folder, EvalConfig(), ["yes"], False)
    metrics = report.metrics()
    assert {"pass@1", "pass@1_low", "pass@1_high", "reward", "turns", "turns_to_solve", "first_attempt"} < set(metrics)
