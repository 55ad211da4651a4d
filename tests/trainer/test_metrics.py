"""The metrics' file; that every key is documented is tested where a run writes them."""

import json
import math
from pathlib import Path

from turngym.agents import Group
from turngym.agents.episode import Ending, Failure
from turngym.envs.tasks import Task
from turngym.trainer.advantages import AdvantageConfig
from turngym.trainer.metrics import MetricsFile, rollout_metrics, sample_metrics
from turngym.trainer.samples import samples_from_groups

GONE = Failure(kind="infra", where="step", error="OSError", message="gone")


def group(slot: int, *episodes, failed=(), size: int | None = None) -> Group:
    size = len(episodes) if size is None else size
    return Group(task=Task(id=str(slot)), slot=slot, size=size, episodes=episodes, failed=tuple(failed))


def test_a_number_that_is_not_finite_becomes_null_and_callback_keys_stay_out(tmp_path: Path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write({"version": 1, "loss": math.nan, "grad_norm": math.inf, "rewards": [1.0]})
    assert json.loads(file.path.read_text()) == {"version": 1, "loss": None, "grad_norm": None}


def test_cutting_back_drops_what_is_done_again_and_a_line_that_was_cut_off(tmp_path: Path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for version in (1, 2, 3):
        file.write({"kind": "train", "version": version})
    with file.path.open("a") as stream:
        stream.write('{"kind": "tra')
    file.cut_back(2)
    assert [row["version"] for row in file.read()] == [1, 2]


def test_failed_attempts_are_counted_by_name_and_enter_no_mean(play, turn):
    crashed = play(turn(reward=-9.0), ending=Ending.ENV_FAILED, failure=GONE)
    good = play(turn(reward=1.0), turn(reward=0.5), member=1)
    metrics = rollout_metrics([group(0, good, failed=[crashed], size=2)])
    assert metrics["rewards"] == [1.5]
    assert metrics["reward_mean"] == metrics["reward_min"] == metrics["reward_max"] == 1.5
    assert (metrics["episodes"], metrics["failed_episodes"], metrics["groups_short"]) == (1, 1, 1)
    assert (metrics["failures/OSError"], metrics["endings/env_failed"], metrics["endings/terminated"]) == (1, 1, 1)
    assert (metrics["action_tokens"], metrics["observation_tokens"]) == (4, 4)
    assert "solved" not in metrics


def test_a_group_of_equal_rewards_gives_no_signal(play, turn):
    equal = group(0, *(play(turn(reward=0.3), member=m) for m in range(3)))
    differing = group(1, *(play(turn(reward=r, version=1), slot=1, member=m) for m, r in enumerate((0.0, 1.0))))
    samples = samples_from_groups([equal.episodes, differing.episodes], AdvantageConfig())
    metrics = sample_metrics([equal, differing], samples, version=2)
    assert metrics == {"groups_without_signal": 0.5, "staleness_max": 2}
