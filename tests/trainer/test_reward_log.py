"""What is logged of an update's rewards: the whole distribution, by part and by kind of task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.agents import Ending, Episode, EpisodeBuilder, Group
from turngym.agents.engine import Generation, VersionSpan
from turngym.envs import SamplingParams, Task
from turngym.trainer.reward_reports.log import MAX_PARTS, MAX_TASKS, log_lines, reward_metrics, task_kind


def episode(*turns: tuple[float, Any]) -> Episode:
    """One turn for each reward and what stands at `reward` in its info."""
    builder = EpisodeBuilder(episode_id="e", task_id="t")
    generation = Generation(token_ids=(3,), logprobs=(-1.0,), finish_reason="stop", versions=(VersionSpan(0, 1),))
    for reward, output in turns:
        builder.observe([1])
        builder.act(generation, sampling=SamplingParams(), text="a")
        builder.feed_back(reward=reward, info={} if output is None else {"reward": output})
    return builder.finish(Ending.TERMINATED)


def output(**parts: Any) -> dict[str, Any]:
    return {"name": "r", "value": 0.0, "metadata": parts}


def group(*episodes: Episode, task_id: str = "t", **options: Any) -> Group:
    task = Task(id=task_id, options=options)
    return Group(task=task, slot=0, size=len(episodes), episodes=episodes)


def earning(rewards: Sequence[float], **task: Any) -> Group:
    return group(*(episode((reward, None)) for reward in rewards), **task)


def test_the_environments_own_rewards_have_percentiles_and_a_histogram() -> None:
    metrics = reward_metrics([earning([0.0, 0.0, 0.5, 1.0])])
    assert [metrics[f"reward/p{p}"] for p in ("05", "25", "50", "75", "95")] == pytest.approx(
        [0.0, 0.0, 0.25, 0.625, 0.925]
    )
    assert [metrics[f"reward/hist_{i}"] for i in range(10)] == [2, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert (metrics["reward/hist_low"], metrics["reward/hist_high"]) == (0.0, 1.0)


def test_the_histogram_of_rewards_beyond_0_and_1_reaches_from_the_least_to_the_greatest() -> None:
    metrics = reward_metrics([earning([-2.0, 0.0, 3.0])])
    assert (metrics["reward/hist_low"], metrics["reward/hist_high"]) == (-2.0, 3.0)
    assert [metrics[f"reward/hist_{i}"] for i in range(10)] == [1, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    alone = reward_metrics([earning([7.0, 7.0])])
    assert (alone["reward/hist_low"], alone["reward/hist_high"], alone["reward/hist_0"]) == (7.0, 7.0, 2)


def test_a_part_is_counted_over_the_outputs_that_have_it() -> None:
    one = episode((0.5, output(format=1, length=0.5)), (0.5, output(format=False, note="text", bad=float("nan"))))
    other = episode((0.0, output(format=0.5)))
    metrics = reward_metrics([group(one, other)])
    assert {key: value for key, value in metrics.items() if key.startswith("reward/format")} == pytest.approx(
        {
            "reward/format_mean": 0.5,
            "reward/format_std": np.std([1, 0, 0.5]),
            "reward/format_min": 0.0,
            "reward/format_max": 1.0,
        }
    )
    assert metrics["reward/length_mean"] == 0.5
    assert not [key for key in metrics if "note" in key or "bad" in key]


@pytest.mark.parametrize("found", [0.5, "good", [1], {"metadata": 3}, {"metadata": None}, {}])
def test_an_info_of_the_environments_own_is_no_output(found: Any) -> None:
    metrics = reward_metrics([group(episode((1.0, found)))])
    assert metrics["reward/p50"] == 1.0
    assert not [key for key in metrics if key.endswith("_mean")]


def test_rewards_are_told_apart_by_the_column_task_or_the_ids_first_part() -> None:
    metrics = reward_metrics(
        [
            earning([1.0], task_id="math-1/1 + 1"),
            earning([0.0], task_id="math-1/1 + 2"),
            earning([0.25], task_id="math-1/1 + 3", task="sums"),
            earning([0.75], task_id="rows.jsonl, line 3"),
        ]
    )
    assert metrics["reward_of/math-1_mean"] == 0.5
    assert metrics["reward_of/math-1_std"] == 0.5
    assert metrics["reward_of/math-1_episodes"] == 2
    assert metrics["reward_of/sums_max"] == 0.25
    assert len([key for key in metrics if key.startswith("reward_of/")]) == 10


def test_kinds_of_task_come_from_text_and_numbers_only() -> None:
    assert task_kind(Task(id="t", options={"task": 3})) == "3"
    assert task_kind(Task(id="a/t", options={"task": ["x"]})) == "a"
    assert task_kind(Task(id="/t", options={"task": " "})) is None


def test_parts_and_kinds_of_task_are_bounded_to_the_most_frequent() -> None:
    names = {f"part{i:03}": 1.0 for i in range(MAX_PARTS + 20)}
    groups = [group(episode((0.0, output(**names))), task_id=f"k{i:03}/x") for i in range(MAX_TASKS + 5)]
    groups.append(group(episode((0.0, output(part069=1.0))), task_id="k024/y"))
    metrics = reward_metrics(groups)
    parts = [key for key in metrics if key.startswith("reward/part") and key.endswith("_mean")]
    kinds = [key for key in metrics if key.endswith("_episodes")]
    assert len(parts) == MAX_PARTS
    assert "reward/part069_mean" in metrics
    assert len(kinds) == MAX_TASKS
    assert metrics["reward_of/k024_episodes"] == 2


def test_nothing_is_logged_where_no_episode_was_played() -> None:
    assert reward_metrics([group()]) == reward_metrics([]) == {}
    assert log_lines({}) == []


def test_the_lines_show_percentiles_histogram_parts_and_tasks() -> None:
    given_ = [earning([0.0, 1.0], task_id="math/1"), group(episode((1.0, output(length=0.5))), task_id="math/2")]
    assert log_lines(reward_metrics(given_)) == [
        "  rewards  p05 0.100 p25 0.500 p50 1.000 p75 1.000 p95 1.000  0 [=        @] 1",
        "  part length  mean 0.500 std 0.000 min 0.500 max 0.500",
        "  task math    mean 0.667 std 0.471 min 0.000 max 1.000  episodes 3",
    ]


def test_what_does_not_print_in_a_name_is_spelled_out_and_long_names_are_cut() -> None:
    metrics = reward_metrics([group(episode((0.0, output(**{"a\x1b[31m\n": 1.0, "b" * 1000: 2.0}))))])
    assert "reward/a\\x1b[31m\\n_mean" in metrics
    assert max(map(len, metrics)) < 80
    assert all(line.isprintable() for line in log_lines(metrics))


PARTS = st.dictionaries(st.text(max_size=5), st.floats(-1e6, 1e6) | st.booleans() | st.text(max_size=3), max_size=4)


@given(st.lists(st.tuples(st.floats(-1e30, 1e30), PARTS), max_size=6), st.text(max_size=8))
def test_metrics_are_flat_finite_numbers_whatever_is_rewarded(
    rewarded: list[tuple[float, Mapping[str, Any]]], task_id: str
) -> None:
    metrics = reward_metrics([group(*(episode((r, output(**p))) for r, p in rewarded), task_id=task_id)])
    assert all(isinstance(value, int | float) for value in metrics.values())
    json.dumps(metrics, allow_nan=False)
    assert sum(metrics.get(f"reward/hist_{i}", 0) for i in range(10)) == len(rewarded)
    assert bool(log_lines(metrics)) == bool(rewarded)
