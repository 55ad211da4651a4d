"""A finished run is scored again without a model, and what would have changed is counted right."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from turngym.agents import Ending, Episode, EpisodeBuilder, EpisodeWriter, Failure
from turngym.agents.engine import Generation, VersionSpan
from turngym.envs import ListTaskSource, SamplingParams, Task, task_source
from turngym.envs.errors import ConfigError, DataError, InvalidRewardError
from turngym.envs.rewards import GroupReward, RewardFunction, RewardOutput, Trajectory, as_reward
from turngym.trainer.reward_reports.rescore import rescore
from turngym.trainer.reward_reports.rescore_report import RescoredEpisode, report_of
from turngym.trainer.reward_reports.run_tasks import tasks_of
from turngym.trainer.task_order import TaskOrder

ROWS = [{"id": f"q{n}", "prompt": f"What is {n} + {n}?", "label": 2 * n, "hint": n} for n in range(6)]


def episode(
    *texts: str,
    slot: int = 0,
    member: int = 0,
    task_id: str | None = None,
    reward: float = 0.0,
    values: Sequence[float] = (),
    failure: Failure | None = None,
) -> Episode:
    """One turn for each text; `values` are what the run's own reward gave the turns."""
    builder = EpisodeBuilder(
        episode_id=f"0000-{slot:08d}-{member:04d}-00", task_id=task_id or f"q{slot}", slot=slot, member=member
    )
    for index, text in enumerate(texts):
        builder.observe([1])
        tokens = Generation(
            token_ids=(5, 6), logprobs=(-1.0, -1.0), finish_reason="stop", versions=(VersionSpan(0, 2),)
        )
        builder.act(tokens, sampling=SamplingParams(), text=text)
        value = values[index] if index < len(values) else None
        info = {} if value is None else {"reward": {"name": "old", "value": value, "metadata": {}}}
        builder.feed_back(reward=reward, feedback=f"after {text}", info=info)
    return builder.finish(Ending.TERMINATED, failure=failure, prompt=f"What is {slot} + {slot}?")


def write_run(folder: Path, *updates: Sequence[Episode], **flags: Any) -> Path:
    """A run on a file of rows, with an update for each sequence of episodes."""
    folder.mkdir(exist_ok=True)
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    settings = {"prompt_data": str(rows), **flags}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    for update, episodes in enumerate(updates):
        EpisodeWriter(folder).write(episodes, update=update)
    return folder


def by_label(response: str, label: str) -> float:
    return float(response == label)


# Scoring


def test_every_episode_is_scored_with_its_tasks_row(tmp_path: Path) -> None:
    run = write_run(
        tmp_path,
        [episode("2", slot=1, reward=0.5), episode("3", slot=1, member=1)],
        [episode("4", slot=2), episode("4", slot=2, member=1, reward=1.0)],
    )
    report = rescore(run, as_reward(by_label))
    assert [[(e.old, e.new) for e in group] for group in report.episodes] == [[(0.5, 1), (0, 0)], [(0, 1), (1, 1)]]
    assert (report.num_episodes, report.num_groups, report.num_scored) == (4, 2, 4)


def test_it_runs_where_an_event_loop_is_running(tmp_path: Path) -> None:
    async def notebook() -> float:
        return rescore(write_run(tmp_path, [episode("2", slot=1)]), as_reward(by_label)).new_mean

    import asyncio

    assert asyncio.run(notebook()) == 1.0


def test_old_is_what_the_runs_reward_gave_and_only_then_what_the_episode_earned(tmp_path: Path) -> None:
    run = write_run(
        tmp_path,
        [
            episode("a", "b", slot=1, reward=5.0, values=(0.25, 0.5)),
            episode("a", "b", slot=2, reward=5.0),
        ],
    )
    report = rescore(run, as_reward(lambda response: 0.0))
    assert [e.old for group in report.episodes for e in group] == [0.75, 10.0]


class Update(RewardFunction):
    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        return RewardOutput(reward=trajectory.update or 0.0, metadata={"hint": trajectory.columns["hint"]})


def test_a_reward_sees_the_update_and_the_columns(tmp_path: Path) -> None:
    run = write_run(tmp_path, [episode("a", slot=1)], [episode("a", slot=1)], [episode("a", slot=1)])
    assert [group[0].new for group in rescore(run, Update()).episodes] == [0.0, 1.0, 2.0]


class Places(GroupReward):
    """The place of each response in the group; notes what it saw, and when it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[str]] = []
        self.is_closed = False

    async def compute_rewards(self, trajectories: Sequence[Trajectory]) -> Sequence[RewardOutput | float]:
        self.seen.append([trajectory.response for trajectory in trajectories])
        return [float(place) for place in range(len(trajectories))]

    async def aclose(self) -> None:
        self.is_closed = True


def test_a_reward_that_compares_sees_whole_groups_in_the_order_of_members_and_is_closed(tmp_path: Path) -> None:
    failure = Failure(kind="infra", where="step", error="E", message="m")
    run = write_run(
        tmp_path,
        [
            episode("b", slot=1, member=1),
            episode("x", slot=2),
            episode("c", slot=1, member=2),
            episode("a", slot=1, member=0),
            episode("never", slot=1, member=3, failure=failure),
        ],
    )
    reward = Places()
    report = rescore(run, reward)
    assert sorted(reward.seen) == [["a", "b", "c"], ["x"]]
    assert report.num_episodes == 4
    assert reward.is_closed


def test_a_run_scored_by_turn_is_scored_again_by_turn(tmp_path: Path) -> None:
    run = write_run(tmp_path, [episode("a", "bbb", slot=1, values=(1.0, 1.0))], reward_on="turn")
    (group,) = rescore(run, as_reward(lambda response: len(response))).episodes
    assert (group[0].old, group[0].new) == (2.0, 4.0)


def test_what_cannot_be_scored_is_counted_and_is_no_zero(tmp_path: Path) -> None:
    def picky(response: str) -> float:
        if response == "bad":
            raise ValueError("no\x1b[31m number")
        return 1.0

    report = rescore(
        write_run(tmp_path, [episode("bad", slot=1), episode("good", slot=1, member=1), episode(slot=1, member=2)]),
        as_reward(picky),
    )
    assert (report.num_episodes, report.num_scored, report.new_mean) == (3, 1, 1.0)
    assert sorted(report.errors.values()) == [1, 1]
    assert any("no\x1b[31m number" in error for error in report.errors)
    assert "there was nothing to score: it has no turns" in report.errors
    assert [e.new for e in report.episodes[0]] == [None, 1.0, None]
    assert all(line.isprintable() for line in report.as_text().splitlines())


def test_a_broken_contract_ends_it_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidRewardError, match="must be one number"):
        rescore(write_run(tmp_path, [episode("a", slot=1)]), as_reward(lambda response: "high"))


def test_a_limit_takes_whole_groups_from_all_over_the_run(tmp_path: Path) -> None:
    updates = [[episode("a", slot=s, member=m) for s in (1, 2) for m in range(2)] for _ in range(4)]
    run = write_run(tmp_path, *updates)
    report = rescore(run, as_reward(by_label), limit=5)
    assert [[e.update for e in group] for group in report.episodes] == [[0, 0], [2, 2]]
    assert rescore(run, as_reward(by_label), limit=100).num_episodes == 16
    with pytest.raises(ConfigError, match="limit 1 is less than the episodes of any group; raise it"):
        rescore(run, as_reward(by_label), limit=1)


# Finding the tasks again


def test_tasks_of_an_endless_source_are_found_by_the_order_of_training(tmp_path: Path) -> None:
    order = TaskOrder(task_source("Math-v0", level=1).split("train"), seed=3)
    tasks = [order.task(place)[1] for place in (0, 7, 300)]  # a filtered group takes another place than its slot
    episodes = [episode("1", slot=slot % 3, member=slot // 3, task_id=tasks[slot % 3].id) for slot in range(301)]
    run = write_run(tmp_path, episodes, prompt_data=None, env="Math-v0", env_kwargs={"level": 1}, seed=3)
    assert tasks_of(run) == {task.id: task for task in tasks}


def test_tasks_of_evaluations_are_held_out_ones(tmp_path: Path) -> None:
    task = task_source("Math-v0", level=1).split("held_out").task(5)
    run = write_run(tmp_path, prompt_data=None, env="Math-v0", env_kwargs={"level": 1})
    EpisodeWriter(run).write([episode("1", task_id=task.id)], split="eval", update=2)
    assert tasks_of(run, split="eval") == {task.id: task}


def test_settings_of_another_version_do_no_harm(tmp_path: Path) -> None:
    assert set(tasks_of(write_run(tmp_path, [episode("a", slot=1)], a_flag_to_come=3))) == {"q1"}


def test_a_source_of_ones_own_serves_where_the_environment_was_given_in_python(tmp_path: Path) -> None:
    run = write_run(tmp_path, [episode("a", slot=1)], prompt_data=None)
    with pytest.raises(DataError, match="names no environment, since it was given in Python; give its tasks, too"):
        tasks_of(run)
    task = Task(id="q1", options={"label": "a"})
    assert tasks_of(run, tasks=ListTaskSource([task, Task(id="q2")])) == {"q1": task}
    assert rescore(run, as_reward(by_label), tasks={"q1": task}).new_mean == 1.0
    with pytest.raises(DataError, match="task 'q1' isn't among the tasks that were given"):
        rescore(run, as_reward(by_label), tasks={})


def test_a_task_that_is_gone_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, [episode("a", slot=1), episode("a", task_id="gone")])
    with pytest.raises(DataError, match=r"1 of its 2 tasks aren't found again, such as 'gone'; have the environment"):
        tasks_of(run)


def test_a_file_of_tasks_that_is_gone_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    run = write_run(tmp_path, [episode("a", slot=1)], prompt_data="gone.jsonl")
    with pytest.raises(DataError, match=r"its tasks can't be made again: gone.jsonl.*the run was started in"):
        tasks_of(run)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no config.yaml in it; give the folder of a run"),
        ("- 1", "holds list; it must hold the run's flags"),
        ("a: [", "can't be read"),
    ],
)
def test_settings_that_cannot_be_read_are_named(tmp_path: Path, content: str | None, message: str) -> None:
    run = write_run(tmp_path, [episode("a", slot=1)])
    (run / "config.yaml").unlink()
    if content is not None:
        (run / "config.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        tasks_of(run)


def test_a_folder_without_episodes_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no episodes of split 'train'"):
        rescore(write_run(tmp_path), as_reward(by_label))


@pytest.mark.parametrize("limit", [None, 5])
def test_a_run_whose_episodes_all_failed_is_told(tmp_path: Path, limit: int | None) -> None:
    failure = Failure(kind="infra", where="reward", turn=0, error="RewardError", message="away")
    failed = replace(episode("a", slot=1), ending=Ending.REWARD_FAILED, failure=failure)
    with pytest.raises(DataError, match="holds failed episodes only, and these aren't scored again"):
        rescore(write_run(tmp_path, [failed]), as_reward(by_label), limit=limit)


# Comparing


def rescored(old: float, new: float | None, name: str = "e") -> RescoredEpisode:
    return RescoredEpisode(episode_id=name, task_id="t", update=0, response="a\n|b", old=old, new=new, error="why")


def group(*pairs: tuple[float, float | None]) -> list[RescoredEpisode]:
    return [rescored(old, new) for old, new in pairs]


def compare(*groups: list[RescoredEpisode]):
    return report_of(groups, run=Path("run"), name="other")


def test_ranks_are_compared_over_all_and_within_groups() -> None:
    """Within each group the order is turned round; over all, ranks 0 1 2 3 become 1 0 3 2: 1 - 6 * 4 / (4 * 15)."""
    report = compare(group((1, 20), (2, 10)), group((3, 40), (4, 30)))
    assert report.spearman == pytest.approx(0.6)
    assert report.spearman_inside == pytest.approx(-1.0)
    assert (report.best_changes, report.flips) == (1.0, 1.0)
    assert (report.old_mean, report.new_mean, report.new_std) == pytest.approx((2.5, 25, math.sqrt(125)))


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(0, 0), (1, 1), (0, 0)], (0, 0, 0, 0)),
        ([(0, 5), (1, 7)], (0, 0, 0, 0)),
        ([(0, 1), (1, 0)], (1, 0, 0, 1)),
        ([(1, 0), (1, 1)], (0, 1, 0, 0)),
        ([(1, 1), (0, 1)], (0, 0, 1, 0)),
        ([(1, 1), (1, 0), (0, 0)], (0, 0, 0, 1 / 3)),
        ([(0.1 + 0.2, 1), (0.3, 1)], (0, 0, 0, 0)),
        ([(0, 0), (1, None)], (math.nan,) * 4),
    ],
)
def test_best_episodes_signal_and_signs_of_one_group(
    pairs: list[tuple[float, float | None]], expected: tuple[float, ...]
) -> None:
    report = compare(group(*pairs))
    found = report.best_changes, report.signal_appears, report.signal_disappears, report.flips
    assert found == pytest.approx(expected, nan_ok=True)


def test_shares_are_of_groups_with_two_scored_episodes() -> None:
    report = compare(group((0, 1), (1, 0)), group((0, 0), (1, 1)), group((0, 0)), group((0, None), (1, 1)))
    assert (report.num_groups, report.num_compared, report.best_changes) == (4, 2, 0.5)
    assert (report.num_episodes, report.num_scored, report.errors) == (7, 6, {"why": 1})


def test_movers_are_those_whose_rank_changes_most_whatever_the_scale() -> None:
    episodes = [rescored(n, 1000 * n, f"e{n}") for n in range(10)]
    episodes[0] = replace(episodes[0], new=1e6)
    report = compare(episodes)
    assert report.movers[0].episode.episode_id == "e0"
    assert (report.movers[0].old_rank, report.movers[0].new_rank) == (0.0, 1.0)
    assert compare(group((1, 10), (2, 20))).movers == ()
    assert compare(group((1, 0), (2, 0), (3, 0))).movers == ()


def test_the_report_as_text() -> None:
    text = compare(group((0, 1), (1, 0)), group((1, None))).as_text()
    assert text.splitlines() == [
        "run scored again with other: 2 of 3 episodes in 2 groups",
        "  couldn't be scored: 1 times why",
        "",
        "            mean      std",
        "  run       0.500    0.500",
        "  again     0.500    0.500",
        "",
        "  rank correlation, all episodes   -1.000",
        "  rank correlation within groups   -1.000  (mean over groups where both vary)",
        "  another best episode              100%  of 1 groups",
        "  signal appears                      0%  of 1 groups",
        "  signal disappears                   0%  of 1 groups",
        "  advantage changes its sign        100%  of their episodes",
        "",
        "  biggest changes of rank (0 lowest, 1 highest)",
        "    run  again  reward          episode",
        "   0.00   1.00  0 -> 1          e  a\\n|b",
        "   1.00   0.00  1 -> 0          e  a\\n|b",
    ]
    assert compare(group((0, None))).as_text().count("\n") == 1


VALUES = st.floats(-1e6, 1e6)


@given(st.lists(st.lists(st.tuples(VALUES, st.none() | VALUES), max_size=5), max_size=5))
def test_shares_and_correlations_stay_in_their_range(groups: list[list[tuple[float, float | None]]]) -> None:
    report = compare(*(group(*pairs) for pairs in groups))
    for share in (report.best_changes, report.signal_appears, report.signal_disappears, report.flips):
        assert math.isnan(share) or 0 <= share <= 1
    for correlation in (report.spearman, report.spearman_inside):
        assert math.isnan(correlation) or -1 <= correlation <= 1
    report.as_text()


@given(st.lists(st.lists(VALUES, min_size=1, max_size=5), min_size=1, max_size=5), st.floats(0.01, 100), VALUES)
def test_the_same_order_changes_nothing(values: list[list[float]], scale: float, shift: float) -> None:
    exact = np.round(np.concatenate([np.array(v) for v in values]))  # so that scaling keeps what is equal equal
    numbers = iter(exact.tolist())
    groups = [group(*((x, x * round(scale + 1) + round(shift)) for x in (next(numbers) for _ in v))) for v in values]
    report = compare(*groups)
    assert report.movers == ()
    for share in (report.best_changes, report.signal_appears, report.signal_disappears, report.flips):
        assert share == 0 or math.isnan(share)
