"""The loop: order, records, metrics, callbacks, failures, control runs."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from turngym.agents import ScriptedEngine, read_episodes
from turngym.envs import AgentInstance, ListTaskSource, StepResult, Task
from turngym.envs.errors import ConfigError, DataError, EngineError, EnvError
from turngym.envs.rewards import Trajectory
from turngym.trainer import METRICS, RunReport, TrainConfig, Trainer, UpdateReport
from turngym.trainer.shuffle import shuffle_rewards
from turngym.trainer.task_order import TaskOrder


class Odd(AgentInstance):
    """Two turns; each earns 1 where the action has an odd number of characters."""

    tasks = ListTaskSource([Task(id=str(n), options={"n": n}) for n in range(7)], held_out=2)

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None):
        self.turn = 0
        return f"Say yes or no. {(options or {})['n']}", {}

    async def step(self, action):
        self.turn += 1
        is_odd = float(len(action.text) % 2)
        return StepResult(observation="Again.", reward=is_odd, terminated=self.turn == 2, score=is_odd)


class Flaky(Odd):
    """Raises in every episode, until it has done so `failures` times."""

    failures: ClassVar[int] = 0

    async def step(self, action):
        if Flaky.failures:
            Flaky.failures -= 1
            raise OSError("no route to the sandbox")
        return await super().step(action)


@pytest.fixture
def config(policy_folder: Path, tmp_path: Path) -> TrainConfig:
    return TrainConfig.of(
        pretrain=str(policy_folder),
        out=str(tmp_path / "run"),
        num_updates=2,
        rollout_batch_size=3,
        n_samples_per_prompt=4,
        max_new_tokens=6,
        learning_rate=1e-3,
        eval_tasks=2,
        device="cpu",
    )


def fit(config: TrainConfig, env: Any = Odd, **kwargs: Any) -> tuple[RunReport, list[UpdateReport]]:
    trainer = Trainer(config, env=env, **kwargs)
    reports: list[UpdateReport] = []
    trainer.add_step_callback(reports.append)
    try:
        return trainer.fit(), reports
    finally:
        trainer.close()


def lines(config: TrainConfig) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(config.run.out, "metrics.jsonl").read_text().splitlines()]


def weights(report: RunReport) -> bytes:
    return (report.policy / "model.safetensors").read_bytes()


def test_a_run_leaves_policy_metrics_episodes_checkpoint_and_settings(config: TrainConfig, policy_folder: Path):
    report, reports = fit(config)
    folder = Path(config.run.out)
    assert [(row["kind"], row["version"]) for row in lines(config)] == [
        ("eval", 0),
        ("train", 1),
        ("train", 2),
        ("eval", 2),
    ]
    assert sorted(path.name for path in (folder / "episodes").iterdir()) == [
        "eval-000000.parquet",
        "eval-000002.parquet",
        "train-000000.parquet",
        "train-000001.parquet",
    ]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["update-000002"]
    assert (folder / "config.yaml").exists()
    facts = json.loads((folder / "run.json").read_text())
    assert facts["deterministic"] is True
    assert facts["num_threads"] >= 1
    assert weights(report) != (policy_folder / "model.safetensors").read_bytes()
    assert (report.version, len(reports)) == (2, 2)
    assert report.before is not None
    assert report.after is not None


def test_every_metric_is_documented(config: TrainConfig):
    _, reports = fit(config.with_flags({"eval_greedy": True, "eval_n_samples_per_prompt": 3}))
    families = {"endings/NAME": r"endings/\w+", "failures/NAME": r"failures/\w+", "pass@K": r"pass@\d+"}
    patterns = [families.get(key, re.escape(key)) for key in METRICS]
    written = {key for row in lines(config) for key in row} | set(reports[0].metrics)
    for key in written:
        name = re.sub("_(low|high)$", "", key)
        assert any(re.fullmatch(pattern, name) for pattern in patterns), key


def test_each_update_trains_its_own_slots_under_the_newest_weights(config: TrainConfig):
    fit(config)
    for update in (0, 1):
        episodes = read_episodes(Path(config.run.out, "episodes", f"train-{update:06d}.parquet"))
        assert {e.slot for e in episodes} == {3 * update, 3 * update + 1, 3 * update + 2}
        assert len(episodes) == 12
        versions = np.concatenate([r.versions[r.action_mask] for e in episodes for r in e.records])
        assert set(versions.tolist()) == {update}
    assert all(row["staleness_max"] == 0 for row in lines(config) if row["kind"] == "train")


def test_the_trainers_logprobs_equal_the_engines(config: TrainConfig):
    fit(config)
    assert all(row["mismatch_max"] < 1e-4 for row in lines(config) if row["kind"] == "train")


def test_the_same_seed_gives_the_same_weights_and_another_one_others(config: TrainConfig, tmp_path: Path):
    first, _ = fit(config)
    second, _ = fit(config.with_flags({"out": str(tmp_path / "second")}))
    third, _ = fit(config.with_flags({"out": str(tmp_path / "third"), "seed": 1}))
    assert weights(first) == weights(second) != weights(third)


def test_a_callback_decorates_and_gets_this_updates_rewards(config: TrainConfig):
    trainer = Trainer(config, env=Odd)
    seen: list[list[float]] = []

    @trainer.add_step_callback
    def watch(result: UpdateReport) -> None:
        seen.append(result.metrics["rewards"])

    assert callable(watch)
    trainer.fit()
    trainer.close()
    episodes = read_episodes(Path(config.run.out, "episodes", "train-000001.parquet"))
    assert sorted(seen[1]) == sorted(e.reward for e in episodes)


def test_torch_repeats_bit_for_bit_during_a_deterministic_run_only(config: TrainConfig):
    trainer = Trainer(config, env=Odd)
    modes: list[bool] = []
    trainer.add_step_callback(lambda _: modes.append(torch.are_deterministic_algorithms_enabled()))
    trainer.fit()
    trainer.close()
    assert modes == [True, True]
    assert not torch.are_deterministic_algorithms_enabled()


def test_without_held_out_tasks_a_run_that_evaluates_is_refused_at_once(config: TrainConfig):
    class NoneHeldOut(Odd):
        tasks = ListTaskSource([Task(id="only", options={"n": 1})])

    with pytest.raises(DataError, match="no tasks are held out"):
        Trainer(config, env=NoneHeldOut)
    assert not Path(config.run.out).exists()
    Trainer(config.with_flags({"eval_steps": -1}), env=NoneHeldOut).close()


def test_evaluate_repeats_and_equals_the_last_evaluation_of_fit(config: TrainConfig):
    trainer = Trainer(config, env=Odd)
    report = trainer.fit()
    assert trainer.evaluate() == trainer.evaluate() == report.after
    trainer.close()


@pytest.mark.parametrize(("eval_steps", "versions"), [(-1, []), (0, [0, 3]), (1, [0, 1, 2, 3]), (2, [0, 2, 3])])
def test_evaluation_comes_as_often_as_asked(config: TrainConfig, eval_steps: int, versions: list[int]):
    fit(config.with_flags({"eval_steps": eval_steps, "num_updates": 3}))
    assert [row["version"] for row in lines(config) if row["kind"] == "eval"] == versions


def test_an_engine_of_ones_own_gets_the_weights_and_is_not_closed(config: TrainConfig, policy_folder: Path):
    engine = ScriptedEngine(["yes", "no no"], AutoTokenizer.from_pretrained(policy_folder))
    _, reports = fit(config, engine=engine)
    assert [version for _, version in engine.published] == [0, 1, 2]
    assert reports[0].metrics["reward_mean"] == 2.0
    assert reports[0].metrics["groups_without_signal"] == 1.0


def test_a_reward_of_ones_own_is_added_on_the_last_turn(config: TrainConfig):
    def reward(response: str, n: int) -> float:
        return 10.0 * (n % 2)

    _, reports = fit(config, reward=reward)
    for group in reports[0].groups:
        for episode in group.episodes:
            assert (episode.turns[-1].reward >= 10) == bool(group.task.options["n"] % 2)
            assert episode.turns[0].reward <= 1
    assert max(reports[0].metrics["rewards"]) >= 10
    written = read_episodes(Path(config.run.out, "episodes", "train-000000.parquet"))
    assert sorted(e.reward for e in written) == sorted(reports[0].metrics["rewards"])


async def test_a_trainer_works_where_an_event_loop_is_running(config: TrainConfig):
    report, _ = fit(config)
    assert report.version == 2


def test_temperature_0_is_refused_for_training(config: TrainConfig):
    with pytest.raises(ConfigError, match="--temperature 0 leaves nothing to learn"):
        Trainer(config.with_flags({"temperature": 0.0}), env=Odd)


def test_an_update_whose_episodes_all_failed_is_played_again_and_counted(config: TrainConfig):
    Flaky.failures = 12 * 2  # each of 12 members fails, and its only refill too
    config = config.with_flags({"max_refills": 1, "eval_steps": -1, "env_kwargs": {}})
    _, reports = fit(config, env=Flaky)
    assert [report.metrics["failed_tries"] for report in reports] == [1, 0]
    assert [report.metrics["episodes"] for report in reports] == [12, 12]
    written = read_episodes(Path(config.run.out, "episodes", "train-000000.parquet"))
    assert sum(e.is_failed for e in written) == 24
    assert len({e.episode_id for e in written}) == len(written) == 36


def test_a_run_whose_episodes_keep_failing_stops_and_names_the_cause(config: TrainConfig):
    Flaky.failures = 10**9
    config = config.with_flags({"max_refills": 0, "eval_steps": -1, "max_failed_updates": 2})
    with pytest.raises(EnvError) as caught:
        fit(config, env=Flaky)
    assert str(caught.value) == (
        "every episode of update 0 failed, 24 attempts in all: 24 times OSError in step; the last one said: "
        "'no route to the sandbox'. Nothing was trained on them; mend the cause, then go on with --resume"
    )


def test_where_the_engine_keeps_failing_the_engine_is_blamed(config: TrainConfig, policy_folder: Path):
    def actions(request: object) -> str:
        raise RuntimeError("out of memory")

    engine = ScriptedEngine(actions, AutoTokenizer.from_pretrained(policy_folder))
    config = config.with_flags({"max_refills": 0, "eval_steps": -1, "max_failed_updates": 1})
    with pytest.raises(EngineError, match=r"12 times \w+ in generate"):
        fit(config, engine=engine)


def test_some_failures_cost_their_own_episodes_only(config: TrainConfig):
    Flaky.failures = 5
    _, reports = fit(config.with_flags({"eval_steps": -1}), env=Flaky)
    assert reports[0].metrics["failures/OSError"] == 5
    assert reports[0].metrics["episodes"] == 12


def distinct(trajectory: Trajectory) -> float:
    """A reward of which no two episodes of an update have the same."""
    slot, member = map(int, trajectory.id.split("-")[1:3])
    return 10.0 * slot + 2.5 * member


def test_shuffled_rewards_keep_every_sum_and_leave_their_episodes(config: TrainConfig):
    _, reports = fit(config, reward=distinct)
    groups = reports[0].groups
    shuffled = shuffle_rewards(groups, seed=0, update=0)
    before = {e.episode_id: e.reward for g in groups for e in g.episodes}
    after = {e.episode_id: e.reward for g in shuffled for e in g.episodes}
    assert sorted(after.values()) == sorted(before.values())
    assert list(after) == list(before)
    assert after != before
    assert after == {e.episode_id: e.reward for g in shuffle_rewards(groups, seed=0, update=0) for e in g.episodes}
    assert after != {e.episode_id: e.reward for g in shuffle_rewards(groups, seed=0, update=1) for e in g.episodes}


def test_shuffled_rewards_of_episodes_of_different_lengths_keep_their_sums(play, turn):
    from turngym.agents import Group

    long = play(turn(reward=1.0), turn(reward=2.0, token_rewards=[0.25, 0.25]), turn(reward=4.0), member=0)
    short = play(turn(reward=8.0), member=1)
    group = Group(task=Task(id="a"), slot=0, size=2, episodes=(long, short))
    either = [shuffle_rewards([group], seed=seed, update=0)[0] for seed in range(9)]
    swapped = next(g for g in either if g.episodes[0].reward == 8.0)
    assert [t.earned for t in swapped.episodes[0].turns] == [8.0, 0.0, 0.0]
    assert [t.earned for t in swapped.episodes[1].turns] == [7.5]


def test_a_control_run_trains_on_shuffled_rewards_and_reports_the_real_ones(config: TrainConfig, tmp_path: Path):
    real, reports = fit(config, reward=distinct)
    shuffling = config.with_flags({"shuffle_rewards": True, "out": str(tmp_path / "control")})
    control, control_reports = fit(shuffling, reward=distinct)
    assert weights(real) != weights(control)
    assert reports[0].metrics["rewards"] == control_reports[0].metrics["rewards"]


def test_every_task_of_a_finite_source_comes_once_per_epoch_in_an_order_of_its_own():
    order = TaskOrder(Odd.tasks.split("train"), seed=3)
    epochs = [[order.task(slot)[1].id for slot in range(5 * epoch, 5 * epoch + 5)] for epoch in range(4)]
    assert all(sorted(ids) == ["0", "1", "2", "3", "4"] for ids in epochs)
    assert len({tuple(ids) for ids in epochs}) > 1
    assert [order.task(slot)[0] for slot in (0, 4, 5, 19)] == [0, 0, 1, 3]


def test_without_tasks_to_train_on_the_order_is_refused():
    with pytest.raises(DataError, match="there are no tasks to train on; give more rows, or hold out fewer"):
        TaskOrder(ListTaskSource([]), seed=0)


class Long(Odd):
    tasks = ListTaskSource([Task(id="short", options={"n": 1}), Task(id="long", options={"n": "9" * 200})], held_out=1)


def test_a_prompt_longer_than_the_context_is_found_before_anything_is_played(config: TrainConfig):
    with pytest.raises(DataError) as caught:
        fit(config, env=Long)
    assert re.fullmatch(
        r"task 'long': the prompt has 2\d\d tokens and the context holds 128, the answer included; "
        r"shorten it, drop it, or raise --max_len",
        str(caught.value),
    )
    assert not Path(config.run.out, "metrics.jsonl").exists()


def test_a_folder_that_holds_something_is_refused_without_resume(config: TrainConfig):
    folder = Path(config.run.out)
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError) as caught:
        Trainer(config, env=Odd)
    assert str(caught.value) == f"--out {folder} is not empty; go on with it by --resume, or choose another folder"


def test_an_env_without_tasks_needs_a_file(config: TrainConfig):
    class Bare(Odd):
        tasks = None

    with pytest.raises(ConfigError, match="Bare has no tasks of its own; give it an attribute `tasks`, or a file"):
        Trainer(config, env=Bare)


def test_an_env_that_can_not_be_made_is_told_before_anything_is_loaded(config: TrainConfig):
    with pytest.raises(ConfigError, match=r"Odd can't be made with \{'level': 2\}: TypeError: "):
        Trainer(config.with_flags({"env_kwargs": {"level": 2}, "pretrain": "no/such"}), env=Odd)
