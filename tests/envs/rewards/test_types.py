import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from turngym.envs.errors import InvalidRewardError, RewardError
from turngym.envs.rewards import RewardOutput, Trajectory, TrajectoryTurn, parts_of
from turngym.envs.rewards.types import as_finite


def test_a_response_is_all_that_a_trajectory_needs():
    trajectory = Trajectory(response="4")
    assert trajectory.turns == (TrajectoryTurn(response="4"),)
    assert list(trajectory.messages) == [{"role": "assistant", "content": "4"}]
    assert (trajectory.prompt, trajectory.token_ids, trajectory.label, trajectory.columns) == ("", (), None, {})
    assert Trajectory() == Trajectory(response="")


def test_prompt_and_response_may_be_given_by_position():
    assert Trajectory("2 + 2?", "4") == Trajectory(prompt="2 + 2?", response="4")


def test_none_stands_for_no_token_rewards_and_no_metadata():
    output = RewardOutput(1.0, None, None)  # pyright: ignore[reportArgumentType]
    assert output == RewardOutput(reward=1.0, token_rewards=[], metadata={})


def test_prompt_and_response_become_messages_and_a_turn():
    trajectory = Trajectory(prompt="2 + 2?", response="4", token_ids=[7, 8])
    assert list(trajectory.messages) == [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
    ]
    assert trajectory.turns == (TrajectoryTurn(observation="2 + 2?", response="4", token_ids=(7, 8)),)
    assert list(trajectory.token_ids) == [7, 8]


def test_turns_become_response_and_tokens():
    turns = (TrajectoryTurn(response="3", token_ids=(1,)), TrajectoryTurn(response="4", token_ids=(2, 3)))
    trajectory = Trajectory(turns=turns)
    assert trajectory.response == "3\n4"
    assert trajectory.token_ids == (1, 2, 3)
    assert Trajectory(turns=turns, response="kept", token_ids=(9,)).response == "kept"
    assert Trajectory(turns=turns, token_ids=(9,)).token_ids == (9,)


def test_messages_that_are_given_are_kept():
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    assert Trajectory(prompt="p", response="r", messages=messages).messages is messages


def test_the_label_is_the_answer_unless_a_column_is():
    assert Trajectory(label="4").metadata == {"answer": "4"}
    assert Trajectory(label="4", columns={"answer": "#### 4", "level": 1}).metadata == {"answer": "#### 4", "level": 1}
    assert Trajectory(columns={"level": 1}).metadata == {"level": 1}
    assert Trajectory(label=0).metadata == {"answer": 0}


def test_metadata_is_a_copy():
    trajectory = Trajectory(label="4", columns={"level": 1})
    trajectory.metadata.clear()
    assert trajectory.metadata == {"answer": "4", "level": 1}
    unlabelled = Trajectory(columns={"level": 1})
    unlabelled.metadata.clear()
    assert unlabelled.columns == {"level": 1}


def test_trajectories_survive_pickling():
    trajectory = Trajectory(prompt="p", response="r", label=4, columns={"a": 1}, token_ids=[1], id="e", update=3)
    assert pickle.loads(pickle.dumps(trajectory)) == trajectory
    assert copy.deepcopy(trajectory) == trajectory


def test_defaults_of_an_output_are_fresh():
    first, second = RewardOutput(0.5), RewardOutput(reward=0.5)
    first.token_rewards.append(1.0)
    first.metadata["a"] = 1
    assert (second.token_rewards, second.metadata, second.score) == ([], {}, None)


def test_lists_of_an_output_are_its_own():
    tokens, metadata = [1.0], {"a": 1}
    output = RewardOutput(0.5, tokens, metadata)
    tokens.append(2.0)
    metadata["b"] = 2
    assert (output.token_rewards, output.metadata) == ([1.0], {"a": 1})


@pytest.mark.parametrize(
    "value",
    [1, 1.0, True, np.float32(1), np.int64(1), np.array(1.0), torch.tensor(1.0), torch.tensor([1.0])],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'shape', '')}",
)
def test_numbers_of_every_kind_become_floats(value: Any):
    output = RewardOutput(reward=value, token_rewards=[value, value], score=value)
    assert (output.reward, output.token_rewards, output.score) == (1.0, [1.0, 1.0], 1.0)
    assert {type(number) for number in (output.reward, *output.token_rewards, output.score)} == {float}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "NoneType None"),
        ("1", "str '1'"),
        (b"1", "bytes b'1'"),
        ([1.0], "list [1.0]"),
        ({}, "dict {}"),
        (1j, "complex 1j"),
        (torch.zeros(2), "Tensor of shape (2,)"),
        (np.zeros((2, 3)), "ndarray of shape (2, 3)"),
        (10**400, "int 1" + "0" * 56 + "..."),
        ("x" * 100, "str '" + "x" * 56 + "..."),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_is_refused_with_its_shape(value: Any, shown: str):
    with pytest.raises(InvalidRewardError) as caught:
        RewardOutput(reward=value)
    assert str(caught.value) == f"reward is {shown}; it must be one number"
    with pytest.raises(InvalidRewardError, match=r"^a token reward is "):
        RewardOutput(0.0, token_rewards=[0.0, value])
    if value is not None:
        with pytest.raises(InvalidRewardError, match=r"^score is "):
            RewardOutput(0.0, score=value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), torch.tensor(float("nan"))])
def test_what_is_not_finite_is_refused(value: Any):
    with pytest.raises(RewardError, match=rf"^reward is {float(value)}; it must be finite$") as caught:
        RewardOutput(reward=value)
    assert not isinstance(caught.value, InvalidRewardError)
    with pytest.raises(RewardError, match=r"^a token reward is .* it must be finite$"):
        RewardOutput(0.0, [value])
    with pytest.raises(RewardError, match=r"^score is .* it must be finite$"):
        RewardOutput(0.0, score=value)


def test_errors_of_outputs_survive_pickling():
    with pytest.raises(InvalidRewardError) as caught:
        as_finite(None, "reward")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (InvalidRewardError, str(caught.value))


def test_numbers_in_metadata_are_the_parts():
    metadata: dict[Any, Any] = {"a": 1, "b": 0.5, "c": True, "d": "text", "e": None, "f": [1], "g": float("nan"), 7: 2}
    assert parts_of(metadata) == {"a": 1.0, "b": 0.5, "c": 1.0, "7": 2.0}
    assert RewardOutput(0.0, metadata=metadata).parts == parts_of(metadata)


def test_numbers_of_arrays_in_metadata_are_parts():
    assert RewardOutput(0.0, metadata={"a": np.float32(0.5), "b": np.int64(2), "c": torch.tensor(1.0)}).parts == {
        "a": 0.5,
        "b": 2.0,
        "c": 1.0,
    }


def test_a_huge_integer_in_metadata_does_no_harm():
    assert RewardOutput(0.0, metadata={"a": 10**400, "b": 1}).parts == {"b": 1.0}
