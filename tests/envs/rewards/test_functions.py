import dataclasses
import functools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from turngym.envs.errors import ConfigError, InvalidRewardError, RewardError
from turngym.envs.rewards import (
    CompositeReward,
    FunctionReward,
    GroupReward,
    KeywordReward,
    RewardFunction,
    RewardOutput,
    Trajectory,
    as_reward,
    score_group,
)
from turngym.envs.rewards.arrays import as_floats, as_logs
from turngym.envs.rewards.base import score_of
from turngym.envs.rewards.functions import batch_outputs, query_lists

from .scored import outputs_of

ROW = {"answer": "4", "format": "[NUM]", "numbers": [4], "level": 2}
FULL = Trajectory(prompt="2 + 2?", response="It is 4.", label="#### 4", columns=ROW)


def given_to(fn: Any, trajectory: Trajectory = FULL) -> Any:
    """What a function that returns its arguments gets."""
    seen: list[Any] = []

    @functools.wraps(fn)
    def spy(*args: Any, **kwargs: Any) -> float:
        seen.append(fn(*args, **kwargs))
        return 0.0

    as_reward(spy)(trajectory)
    return seen[0]


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda response: response, "It is 4."),
        (lambda completion: completion, "It is 4."),
        (lambda text: text, "It is 4."),
        (lambda action_text: action_text, "It is 4."),
        (lambda prompt: prompt, "2 + 2?"),
        (lambda query: query, "2 + 2?"),
        (lambda metadata: metadata, ROW),
        (lambda label: label, "#### 4"),
        (lambda answer: answer, "4"),
        (lambda ground_truth: ground_truth, "#### 4"),
        (lambda expected: expected, "#### 4"),
        (lambda level: level, FULL),
        (lambda response, level: (response, level), ("It is 4.", 2)),
        (lambda response, expected_format: expected_format, "[NUM]"),
        (lambda response, expected_numbers: expected_numbers, [4]),
        (lambda trajectory: trajectory, FULL),
        (lambda traj: traj, FULL),
        (lambda anything: anything, FULL),
        (lambda response, trajectory: trajectory, FULL),
        (lambda response, missing="default": missing, "default"),
        (lambda response, level=7: level, 2),
        (lambda response, **columns: columns, ROW),
        (lambda response, answer, **columns: columns, {"format": "[NUM]", "numbers": [4], "level": 2}),
        (lambda response, *args: args, ()),
        (lambda *, response: response, "It is 4."),
        (lambda response, /: response, "It is 4."),
        (lambda response, prompt, /, label: (response, prompt, label), ("It is 4.", "2 + 2?", "#### 4")),
    ],
)
def test_parameters_say_what_a_function_gets(fn: Any, expected: Any):
    assert given_to(fn) == expected


def test_the_label_stands_in_for_columns_that_are_not_there():
    bare = Trajectory(response="4", label=4)
    for fn in (
        lambda response, label: label,
        lambda response, answer: answer,
        lambda response, ground_truth: ground_truth,
    ):
        assert given_to(fn, bare) == 4
    assert given_to(lambda metadata: metadata, bare) == {"answer": 4}


def test_a_parameter_without_a_value_names_what_there_is():
    with pytest.raises(InvalidRewardError) as caught:
        as_reward(lambda response, difficulty: 1.0)(FULL)
    assert str(caught.value) == (
        "no value for the parameter 'difficulty'; "
        "there are: response, prompt, label, metadata, answer, format, numbers, level. "
        "Add the column to the data, or give the parameter a default"
    )
    with pytest.raises(InvalidRewardError, match=r"^no value for the parameter 'label'; "):
        as_reward(lambda response, label: 1.0)(Trajectory(response="4"))


def test_the_documented_signature_of_a_custom_reward_function_runs():
    def custom_reward_function(response: str, prompt: str, metadata: dict[str, Any]) -> float:
        return float(metadata["answer"] in response and metadata["format"] == "[NUM]" and prompt == "2 + 2?")

    assert as_reward(custom_reward_function)(FULL) == RewardOutput(1.0)


def test_methods_partials_and_callables_are_functions():
    class Scorer:
        def __call__(self, response: str) -> float:
            return 1.0

        def score(self, response: str, label: str) -> float:
            return 2.0

    def weighted(response: str, bonus: float) -> float:
        return bonus

    assert as_reward(Scorer())(FULL).reward == 1.0
    assert as_reward(Scorer().score)(FULL).reward == 2.0
    assert as_reward(functools.partial(weighted, bonus=3.0))(FULL).reward == 3.0
    assert [as_reward(fn).name for fn in (Scorer(), Scorer().score, weighted, lambda response: 1.0)] == [
        "Scorer",
        "score",
        "weighted",
        "function",
    ]


def test_a_name_can_be_given():
    assert as_reward(lambda response: 1.0, name="mine").name == "mine"
    assert as_reward(KeywordReward(), name="mine").name == "mine"
    assert as_reward(lambda queries, prompts, labels: [], name="mine").name == "mine"


def test_rewards_pass_and_classes_are_made():
    reward = KeywordReward()
    assert as_reward(reward) is reward
    assert isinstance(as_reward(KeywordReward), KeywordReward)

    class Nameless(RewardFunction):
        def __init__(self) -> None:
            pass

        def compute_reward(self, trajectory: Trajectory) -> float:
            return 1.0

    assert as_reward(Nameless).name == "Nameless"

    class Needy(RewardFunction):
        def __init__(self, model: str) -> None:
            self.model = model

        def compute_reward(self, trajectory: Trajectory) -> float:
            return 1.0

    with pytest.raises(ConfigError, match=r"^Needy can't be made without arguments: .*; give an instance of it$"):
        as_reward(Needy)


@pytest.mark.parametrize("given", [None, 1.0, "length", [len]])
def test_what_is_no_reward_is_refused(given: Any):
    with pytest.raises(ConfigError) as caught:
        as_reward(given)
    assert str(caught.value) == (
        f"{given!r} is no reward; give a RewardFunction, or a function such as fn(response, label)"
    )


def test_function_reward_refuses_what_can_t_be_called():
    with pytest.raises(ConfigError) as caught:
        FunctionReward(fn=3)  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == "fn=3 must be a function of a trajectory, such as fn=lambda trajectory: 1.0"


def test_a_reward_may_be_a_frozen_dataclass():
    @dataclasses.dataclass(frozen=True)
    class Weighted(RewardFunction):
        weight: float = 0.5

        def compute_reward(self, trajectory: Trajectory) -> float:
            return self.weight

    assert as_reward(Weighted()).name == "Weighted"
    assert CompositeReward([(Weighted(), 2.0)])(Trajectory(response="4")).reward == 1.0


def test_a_function_that_hides_its_parameters_is_refused():
    with pytest.raises(ConfigError, match=r"doesn't show its parameters; wrap it in a function fn\(trajectory\)$"):
        as_reward(max)


def test_function_reward_takes_the_trajectory():
    reward = FunctionReward(fn=lambda trajectory: len(trajectory.response), scale=0.5, clip=3.0)
    assert reward(FULL).reward == 3.0
    builtin: Any = len
    names = (reward.name, FunctionReward(builtin, name="mine").name, FunctionReward(builtin).name)
    assert names == ("function", "mine", "len")


async def test_async_functions_are_awaited():
    async def named(response: str) -> dict[str, float]:
        return {"score": 0.5, "extra": 2.0}

    async def whole(trajectory: Trajectory) -> float:
        return 1.0

    async def batch(prompts: list[str], completions: list[str]) -> list[float]:
        return [0.25 for _ in completions]

    assert await as_reward(named)(FULL) == RewardOutput(0.5, metadata={"extra": 2.0})
    assert await FunctionReward(whole)(FULL) == RewardOutput(1.0)
    assert await as_reward(batch)(FULL) == RewardOutput(0.25)
    assert await score_group(as_reward(batch), [FULL, FULL]) == [RewardOutput(0.25)] * 2


def test_a_dict_with_a_score_is_a_reward_and_its_parts():
    assert as_reward(lambda response: {"extracted": [4], "matches": [True], "score": 1.0, "n": 2})(
        FULL
    ) == RewardOutput(1.0, metadata={"extracted": [4], "matches": [True], "n": 2})
    with pytest.raises(InvalidRewardError, match=r"^function: reward is dict \{'a': 1\}; it must be one number$"):
        as_reward(lambda response: {"a": 1})(FULL)


def test_a_list_function_gets_the_columns_it_names():
    seen: dict[str, Any] = {}

    def some(prompts: list[str], completions: list[str], level: list[int]) -> list[float]:
        seen.update(prompts=prompts, completions=completions, level=level)
        return [1.0, 2.0]

    def every(prompts: list[str], completions: list[str], **columns: list[Any]) -> list[float]:
        seen.update(columns=columns)
        return [1.0, 2.0]

    pair = [Trajectory(prompt="p", response="a", columns={"level": 1}), Trajectory(prompt="p", response="b", label="4")]
    for fn in (some, every):
        reward = as_reward(fn)
        assert isinstance(reward, GroupReward)
        assert reward.compute_rewards(pair) == [RewardOutput(1.0), RewardOutput(2.0)]
    assert seen == {
        "prompts": ["p", "p"],
        "completions": ["a", "b"],
        "level": [1, None],
        "columns": {"level": [1, None], "answer": [None, "4"], "label": [None, "4"]},
    }


def test_a_batch_function_gets_queries_prompts_and_labels():
    group = [Trajectory(prompt="p\n", response="a", label=label) for label in ("4", None, 4, ["x"], {"a": 1}, True)]
    lists = query_lists(group)
    assert lists["labels"] == ["4", "", "4", '["x"]', '{"a": 1}', "true"]
    assert lists["prompts"] == ["p\n"] * 6
    assert lists["queries"] == ["p\na"] * 6
    assert all(isinstance(text, str) for texts in lists.values() for text in texts)


def test_a_batch_function_may_take_more():
    def reward_func(queries: list[str], prompts: list[str], labels: list[str], **kwargs: Any) -> dict[str, Any]:
        assert kwargs == {}
        return {"rewards": torch.tensor([1.0]), "scores": torch.tensor([0.5]), "extra_logs": {"hits": torch.tensor(3)}}

    assert as_reward(reward_func)(FULL) == RewardOutput(1.0, metadata={"hits": 3.0}, score=0.5)


@pytest.mark.parametrize(
    "rewards",
    [
        [1, 0.5],
        (1.0, 0.5),
        np.array([1.0, 0.5]),
        torch.tensor([1.0, 0.5]),
        torch.tensor([1.0, 0.5], dtype=torch.bfloat16, requires_grad=True),
        [torch.tensor(1.0), np.float32(0.5)],
        [True, 0.5],
    ],
    ids=lambda value: type(value).__name__,
)
def test_rewards_of_a_batch_come_in_many_forms(rewards: Any):
    assert batch_outputs(rewards, 2) == [RewardOutput(1.0), RewardOutput(0.5)]
    assert batch_outputs({"rewards": rewards}, 2) == [RewardOutput(1.0), RewardOutput(0.5)]


@pytest.mark.parametrize("value", [1.0, torch.tensor(1.0), torch.tensor([1.0]), np.float64(1)])
def test_one_response_may_get_a_number(value: Any):
    assert as_floats(value, 1, "rewards") == [1.0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(2, 1), "rewards is Tensor of shape (2, 1); it must be [2], one number for each response"),
        (torch.ones(3), "rewards is Tensor of shape (3,), and there were 2 responses; it must be [2]"),
        (torch.tensor(1.0), "rewards is Tensor of shape (), and there were 2 responses; it must be [2]"),
        (np.ones((1, 2)), "rewards is ndarray of shape (1, 2), and there were 2 responses; it must be [2]"),
        ([1.0], "rewards is list of 1, and there were 2 responses; it must be [2]"),
        (["1", "2"], "rewards is list of 2; it must be [2], one number for each response"),
        ("12", "rewards is str '12', and there were 2 responses; it must be [2]"),
        (None, "rewards is NoneType None, and there were 2 responses; it must be [2]"),
        (1.0, "rewards is float 1.0, and there were 2 responses; it must be [2]"),
    ],
)
def test_the_wrong_shape_is_one_clear_error(value: Any, message: str):
    with pytest.raises(InvalidRewardError) as caught:
        batch_outputs({"rewards": value}, 2)
    assert str(caught.value) == message


def test_every_list_of_a_batch_is_checked():
    with pytest.raises(InvalidRewardError, match=r"^it gave a dict of 'reward', 'x'; 'rewards' is missing$"):
        batch_outputs({"reward": [1.0], "x": 1}, 1)
    with pytest.raises(InvalidRewardError, match=r"^it gave a dict of nothing; 'rewards' is missing$"):
        batch_outputs({}, 1)
    with pytest.raises(InvalidRewardError, match=r"^scores is list of 1, and there were 2 "):
        batch_outputs({"rewards": [1, 2], "scores": [1]}, 2)
    with pytest.raises(InvalidRewardError, match=r"^extra_logs is list of 2; it must be a dict of numbers$"):
        batch_outputs({"rewards": [1, 2], "extra_logs": [1, 2]}, 2)


def test_scores_are_the_rewards_unless_they_are_given():
    for scores, expected in ((None, [1.0, 0.0]), ([0, 1], [0.0, 1.0])):
        outputs = outputs_of(batch_outputs({"rewards": [1, 0], "scores": scores}, 2))
        assert [score_of(output, "mine") for output in outputs] == expected


def test_logs_come_in_many_forms():
    logs = {"flag": True, "n": 2, "zero_d": torch.tensor(3.0), "each": [1, False], "array": np.array([4.0, 5.0]), 7: 1}
    assert as_logs(logs, 2, "extra_logs") == [
        {"flag": 1.0, "n": 2.0, "zero_d": 3.0, "each": 1.0, "array": 4.0, "7": 1.0},
        {"flag": 1.0, "n": 2.0, "zero_d": 3.0, "each": 0.0, "array": 5.0, "7": 1.0},
    ]
    assert as_logs(None, 2, "extra_logs") == [{}, {}]


@pytest.mark.parametrize(
    ("value", "shown"),
    [("text", "str 'text'"), ([1], "list of 1"), (torch.ones(2, 1), "Tensor of shape (2, 1)"), ({}, "dict {}")],
)
def test_a_log_of_the_wrong_shape_is_named(value: Any, shown: str):
    with pytest.raises(InvalidRewardError) as caught:
        as_logs({"hits": value}, 2, "extra_logs")
    assert str(caught.value) == (f"extra_logs['hits'] is {shown}; it must be a number, or [2], one for each response")


def test_what_is_not_finite_in_a_batch_is_named():
    for value in (math.nan, math.inf):
        with pytest.raises(RewardError, match=rf"^rewards\[1\] is {value}; it must be finite$") as caught:
            as_floats([1.0, value], 2, "rewards")
        assert not isinstance(caught.value, InvalidRewardError)


async def test_a_batch_that_normalises_over_its_group_gets_the_same_whatever_else_runs():
    def normalise(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]) -> torch.Tensor:
        lengths = torch.tensor([float(len(query)) for query in queries])
        return lengths - lengths.mean()

    group = [Trajectory(response="x" * count) for count in (1, 2, 6)]
    alone = await score_group(as_reward(normalise), group)
    assert alone == [RewardOutput(-2.0), RewardOutput(-1.0), RewardOutput(3.0)]


def test_labels_are_json_that_reads_back():
    label = {"tests": ["assert f(1) == 2"], "limit": 1.5}
    assert json.loads(query_lists([Trajectory(label=label)])["labels"][0]) == label


def test_completions_alone_make_a_list_function():
    def of_completions(completions: list[str], **columns: Any) -> list[float]:
        return [float(len(text)) for text in completions]

    def of_prompts(prompts: list[str]) -> list[float]:
        return [1.0 for _ in prompts]

    assert as_reward(of_completions)(FULL) == RewardOutput(8.0)
    assert as_reward(of_prompts)(FULL) == RewardOutput(1.0)


def test_a_list_function_without_a_column_names_what_there_is():
    with pytest.raises(InvalidRewardError) as caught:
        as_reward(lambda prompts, completions, level: [1.0])(Trajectory(response="x", label="4"))
    assert str(caught.value) == (
        "no values for the parameter 'level'; there are: prompts, completions, answer, label. "
        "Add the column to the data, or give the parameter a default"
    )


def test_a_number_of_a_batch_that_is_not_finite_costs_its_own_response_only():
    first, second = batch_outputs({"rewards": [1.0, math.nan]}, 2)
    assert first == RewardOutput(1.0)
    assert isinstance(second, RewardError)
    assert str(second) == "reward is nan; it must be finite"


def test_an_integer_beyond_every_float_is_not_finite():
    with pytest.raises(RewardError, match=r"^rewards\[0\] is inf; it must be finite$"):
        as_floats([10**400], 1, "rewards")
