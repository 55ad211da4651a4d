"""How an update is filled: filtering, refills, and that every group is accounted for."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from turngym.agents import read_episodes
from turngym.envs import AgentInstance, ListTaskSource, RewardError, StepResult, Task
from turngym.envs.errors import ConfigError
from turngym.envs.rewards import GroupReward, RewardOutput, Trajectory
from turngym.trainer import RunReport, TrainConfig, Trainer, UpdateReport


class Echo(AgentInstance):
    """One turn that earns nothing."""

    tasks = ListTaskSource([Task(id=str(n), options={"prompt": f"Say yes or no. {n}", "n": n}) for n in range(12)])

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None):
        return (options or {})["prompt"], {}

    async def step(self, action):
        return StepResult(observation="", reward=0.0, terminated=True)


@pytest.fixture
def config(policy_folder: Path, tmp_path: Path) -> TrainConfig:
    return TrainConfig.of(
        pretrain=str(policy_folder),
        out=str(tmp_path / "run"),
        num_updates=3,
        rollout_batch_size=3,
        n_samples_per_prompt=4,
        max_new_tokens=4,
        learning_rate=1e-3,
        eval_steps=-1,
        device="cpu",
        dynamic_filtering=True,
    )


def fit(config: TrainConfig, reward: Any) -> tuple[RunReport, list[UpdateReport]]:
    trainer = Trainer(config, env=Echo, reward=reward)
    reports: list[UpdateReport] = []
    trainer.add_step_callback(reports.append)
    try:
        return trainer.fit(), reports
    finally:
        trainer.close()


def member_of(trajectory: Trajectory) -> int:
    return int(trajectory.id.split("-")[-2])


def even_tasks_tell(trajectory: Trajectory) -> float:
    """Of even tasks half of the episodes are solved; of odd ones all, and of every third none."""
    n = trajectory.columns["n"]
    return 0.0 if n % 3 == 0 else float(n % 2 or member_of(trajectory) % 2)


def test_groups_that_tell_nothing_are_replaced_until_the_update_is_full(config: TrainConfig):
    _, reports = fit(config, even_tasks_tell)
    for report in reports:
        assert [group.slot for group in report.groups] == [3 * report.update + i for i in range(3)]
        assert all(group.task.options["n"] % 2 == 0 and group.task.options["n"] % 3 for group in report.groups)
        assert report.metrics["groups_without_signal"] == 0
    num_filtered = sum(r.metrics.get("filtered_low", 0) + r.metrics.get("filtered_high", 0) for r in reports)
    assert num_filtered > 0


def test_every_task_that_was_taken_is_trained_or_filtered_and_none_is_taken_twice_in_an_epoch(config: TrainConfig):
    _, reports = fit(config, even_tasks_tell)
    trained = [group.task.id for report in reports for group in report.groups]
    written = [
        episode
        for update in range(3)
        for episode in read_episodes(Path(config.run.out, "episodes", f"train-{update:06d}.parquet"))
    ]
    assert len({episode.episode_id for episode in written}) == len(written)
    taken = Counter(episode.task_id for episode in written)
    num_filtered = sum(r.metrics.get("filtered_low", 0) + r.metrics.get("filtered_high", 0) for r in reports)
    assert sum(taken.values()) == 4 * (len(trained) + num_filtered)
    epochs = len(written) / 4 / 12
    assert max(taken.values()) <= 4 * (int(epochs) + 1), "an epoch goes through all tasks before any comes again"


def test_an_update_makes_do_with_fewer_groups_where_the_limit_is_reached(config: TrainConfig):
    report, reports = fit(config.with_flags({"max_filter_rounds": 2}), lambda trajectory: 1.0)
    assert report.version == 3
    for update in reports:
        assert update.groups == ()
        assert update.metrics["filtered_high"] == 9
        assert update.metrics["trained_tokens"] == 0
        assert update.metrics["rewards"] == [], "callbacks find it always"


def test_the_range_is_exclusive_and_on_the_groups_mean_score(config: TrainConfig):
    narrow = config.with_flags({"dynamic_filtering_reward_range": (0.5, 2.0), "num_updates": 1, "max_filter_rounds": 0})
    _, reports = fit(narrow, lambda trajectory: 1.0 if member_of(trajectory) % 2 else 0.0)
    assert reports[0].groups == ()
    assert reports[0].metrics["filtered_low"] == 3


def test_a_range_the_wrong_way_round_is_refused():
    with pytest.raises(
        ConfigError, match=r"^--dynamic_filtering_reward_range 1\.0 0\.5 must be two numbers, the lower"
    ):
        TrainConfig.of(dynamic_filtering_reward_range=(1.0, 0.5))


def test_a_filtered_run_that_is_resumed_goes_on_with_the_task_that_comes_next(config: TrainConfig, tmp_path: Path):
    whole, _ = fit(config, even_tasks_tell)
    halted = config.with_flags({"out": str(tmp_path / "halted"), "num_updates": 2, "save_steps": 1})
    fit(halted, even_tasks_tell)
    resumed, _ = fit(halted.with_flags({"num_updates": 3, "resume": True}), even_tasks_tell)
    weights = [(report.policy / "model.safetensors").read_bytes() for report in (whole, resumed)]
    assert weights[0] == weights[1]


def test_a_member_whose_reward_failed_is_played_again(config: TrainConfig):
    failures = Counter[str]()

    def sometimes_away(trajectory: Trajectory) -> float:
        name = f"{trajectory.columns['n']}/{trajectory.id}"
        if "scored" not in trajectory.id and member_of(trajectory) == 1:
            failures[name] += 1
            raise OSError("away")
        return float(member_of(trajectory) % 2)

    _, reports = fit(config.with_flags({"dynamic_filtering": False, "num_updates": 1}), sometimes_away)
    assert len(failures) == 3
    for group in reports[0].groups:
        assert [episode.member for episode in group.episodes] == [0, 1, 2, 3]
        assert [episode.member for episode in group.failed] == [1]
    assert reports[0].metrics["failures/RewardError"] == 3
    assert reports[0].metrics["groups_short"] == 0


@pytest.mark.parametrize("dynamic_filtering", [False, True])
def test_a_reward_that_always_fails_stops_the_run_and_is_blamed(config: TrainConfig, dynamic_filtering: bool):
    def broken(trajectory: Trajectory) -> float:
        raise KeyError("answer")

    expected = (
        "every episode of update 0 failed, 24 attempts in all: 24 times RewardError in reward; the last one said: "
        "\"broken raised KeyError: 'answer'\". Nothing was trained on them; mend the cause, then go on with --resume"
    )
    settings = config.with_flags({"dynamic_filtering": dynamic_filtering, "max_failed_updates": 2})
    with pytest.raises(RewardError) as raised:
        fit(settings, broken)
    assert str(raised.value) == expected


class Ranked(GroupReward):
    """The place in the group; the first time it fails for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def compute_rewards(self, trajectories: Sequence[Trajectory]) -> list[RewardOutput | RewardError]:
        members = [member_of(trajectory) for trajectory in trajectories]
        self.seen.append(members)
        places: list[RewardOutput | RewardError] = [RewardOutput(float(place)) for place in range(len(members))]
        if not any("scored" in trajectory.id for trajectory in trajectories):
            places[1] = RewardError("no preference")
        return places


def test_a_group_whose_reward_compares_is_scored_as_a_whole_again_after_a_refill(config: TrainConfig):
    reward = Ranked()
    one = config.with_flags({"dynamic_filtering": False, "num_updates": 1, "rollout_batch_size": 1})
    _, reports = fit(one, reward)
    assert len(reward.seen) == 2
    assert sorted(reward.seen[1]) == [0, 0, 2, 3], "the refill is the first of its own call"
    (group,) = reports[0].groups
    assert [(episode.member, episode.reward) for episode in group.episodes] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
