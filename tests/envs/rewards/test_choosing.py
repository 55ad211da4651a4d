import math
from collections.abc import Sequence
from typing import Any

import pytest
from turngym.envs.errors import ConfigError, InvalidRewardError
from turngym.envs.rewards import (
    KeywordReward,
    LengthReward,
    RewardFunction,
    RewardOutput,
    Trajectory,
    score_group,
)
from turngym.envs.rewards.choosing import CurriculumReward, MultiTaskReward


def giving(value: Any) -> Any:
    return lambda response: value


def of_task(*tasks: Any) -> list[Trajectory]:
    return [Trajectory(response="x", columns={"task": task}) for task in tasks]


def at(update: int | None) -> Trajectory:
    return Trajectory(response="x", update=update)


async def scored(reward: RewardFunction, trajectories: Sequence[Trajectory]) -> list[float | str]:
    return [
        item.reward if isinstance(item, RewardOutput) else str(item) for item in await score_group(reward, trajectories)
    ]


async def test_the_row_chooses_the_reward():
    reward = MultiTaskReward({"math": giving(1.0), "code": giving(0.5), "3": giving(0.25)})
    assert await scored(reward, of_task("code", "math", 3, "3", "code")) == [0.5, 1.0, 0.25, 0.25, 0.5]
    assert reward(of_task("math")[0]) == RewardOutput(1.0, metadata={"math": 1.0})


def test_another_column_may_name_the_task():
    reward = MultiTaskReward({"math": giving(1.0)}, column="kind")
    assert reward(Trajectory(response="x", columns={"kind": "math"})).reward == 1.0


async def test_an_unknown_task_fails_its_trajectory_and_names_those_known():
    reward = MultiTaskReward({"math": giving(1.0), "code": giving(0.5)})
    rows = [*of_task("math", "poetry", None), Trajectory(columns={"kind": "x", "level": 1}), Trajectory()]
    assert await scored(reward, rows) == [
        1.0,
        "MultiTaskReward: there is no reward for the task 'poetry'; there are 'math', 'code', and no default",
        "MultiTaskReward: there is no reward for the task None; there are 'math', 'code', and no default",
        "MultiTaskReward: the row has no column 'task', which names the task ('math', 'code'); "
        "its columns: 'kind', 'level'",
        "MultiTaskReward: the row has no column 'task', which names the task ('math', 'code'); its columns: none",
    ]
    with pytest.raises(InvalidRewardError, match=r"^there is no reward for the task 'poetry'; "):
        reward(of_task("poetry")[0])


async def test_a_default_serves_every_other_task():
    reward = MultiTaskReward({"math": giving(1.0)}, default=giving(0.25))
    assert await scored(reward, [*of_task("math", "poetry", None), Trajectory()]) == [1.0, 0.25, 0.25, 0.25]
    assert reward(Trajectory()).metadata == {"default": 0.25}


async def test_a_reward_of_a_task_sees_its_own_group_only():
    def share(prompts: list[str], completions: list[str]) -> list[float]:
        return [1 / len(completions) for _ in completions]

    assert await scored(MultiTaskReward({"a": share, "b": share}), of_task("a", "b", "a")) == [0.5, 1.0, 0.5]


def test_the_chosen_output_is_kept_whole():
    reward = MultiTaskReward({"math": giving(RewardOutput(0.5, [1.0], {"n": 2}, score=0.75))})
    assert reward(of_task("math")[0]) == RewardOutput(0.5, [1.0], {"math": 0.5, "math/n": 2}, 0.75)


def test_the_range_of_all_tasks():
    assert MultiTaskReward({"a": LengthReward(scale=-1.0), "b": LengthReward()}).reward_range == (-1.0, 1.0)
    assert MultiTaskReward({"a": LengthReward()}, default=LengthReward(scale=3.0)).reward_range == (0.0, 3.0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"rewards": {}}, "rewards={} must be a dict of rewards by name, with at least one"),
        ({"rewards": [1]}, "rewards=[1] must be a dict of rewards by name, with at least one"),
        (
            {"rewards": {"default": KeywordReward()}, "default": KeywordReward()},
            "a task can't be called 'default' where a default is given",
        ),
    ],
)
def test_tasks_that_make_no_sense_are_refused(kwargs: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        MultiTaskReward(**kwargs)
    assert str(caught.value) == message


STAGES = [(0, {"format": 1.0}), (10, {"format": 0.5, "task": 0.5}), (20, {"task": 2.0})]


def curriculum(stages: Any = STAGES) -> CurriculumReward:
    return CurriculumReward({"format": giving(1.0), "task": giving(0.5)}, stages)


async def test_weights_change_with_the_update():
    updates = (0, 9, 10, 19, 20, 1000)
    assert await scored(curriculum(), [at(update) for update in updates]) == [1.0, 1.0, 0.75, 0.75, 1.0, 1.0]
    assert [curriculum()(at(update)).reward for update in updates] == [1.0, 1.0, 0.75, 0.75, 1.0, 1.0]


def test_a_function_may_give_the_weights():
    reward = curriculum(lambda update: {"format": 1 - update / 10, "task": update / 10})
    assert [reward(at(update)).reward for update in (0, 5, 10)] == [1.0, 0.75, 0.5]
    assert reward.reward_range == (-math.inf, math.inf)


def test_a_part_without_weight_is_not_asked_for():
    def never(response: str) -> float:
        raise AssertionError(response)

    reward = CurriculumReward({"a": giving(1.0), "b": never}, [(0, {"a": 1.0, "b": 0.0})])
    assert reward(at(0)) == RewardOutput(1.0, metadata={"a": 1.0})
    nothing = CurriculumReward({"b": never}, [(0, {})])
    assert nothing(at(0)) == RewardOutput(0.0)


async def test_without_an_update_it_is_said_where_one_comes_from():
    message = (
        "the trajectory has no update, which the weights depend on; training sets it, "
        "and elsewhere Trajectory(update=...) does"
    )
    with pytest.raises(InvalidRewardError) as caught:
        curriculum()(at(None))
    assert str(caught.value) == message
    assert await scored(curriculum(), [at(None), at(1)]) == [f"CurriculumReward: {message}", 1.0]


def test_the_range_of_all_stages():
    rewards = {"a": LengthReward(), "b": LengthReward()}
    reward = CurriculumReward(rewards, [(0, {"a": 1.0}), (5, {"a": 1.0, "b": -2.0}), (9, {"b": 3.0})])
    assert reward.reward_range == (-2.0, 3.0)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (5, "5 is no stage; each must be (first update, weights by name)"),
        ([(0,)], "(0,) is no stage; each must be (first update, weights by name)"),
        ([("0", {})], "('0', {}) is no stage; each must be (first update, weights by name)"),
        ([], "the stages begin at the updates []; they must begin at 0 and then increase"),
        ([(1, {})], "the stages begin at the updates [1]; they must begin at 0 and then increase"),
        ([(0, {}), (0, {})], "the stages begin at the updates [0, 0]; they must begin at 0 and then increase"),
        ([(0, {"style": 1.0})], "the weights from update 0 hold 'style'; there are 'format', 'task'"),
        ([(0, {"task": "1"})], "the weight of 'task' from update 0='1' must be a finite number"),
        ([(0, 1.0)], "the weights from update 0 are 1.0; they must be a dict of numbers by name"),
    ],
)
def test_stages_that_make_no_sense_are_refused(stages: Any, message: str):
    with pytest.raises(ConfigError) as caught:
        curriculum(stages)
    assert str(caught.value) == message


async def test_a_function_that_gives_no_weights_fails_and_names_the_update():
    (failed,) = await scored(curriculum(lambda update: {"style": 1.0}), [at(3)])
    assert failed == (
        "CurriculumReward raised ConfigError: the weights at update 3 hold 'style'; there are 'format', 'task'"
    )
