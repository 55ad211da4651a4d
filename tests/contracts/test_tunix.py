"""Reward files for agent_tunix run as they are."""

from __future__ import annotations

from typing import Any

import pytest
from turngym.agents import load_user_module
from turngym.envs import rewards
from turngym.envs.rewards import RewardOutput, Trajectory

from .conftest import FILES, Start, outputs


def row(response: str, answer: Any = "4", **columns: Any) -> Trajectory:
    columns = {"prompt": "2 + 2 = ?", "answer": answer, **columns}
    return Trajectory(prompt="2 + 2 = ?", response=response, label=answer, columns=columns)


async def test_a_custom_reward_function_gets_response_prompt_and_metadata(start: Start) -> None:
    cases = [
        (row("2 + 2 = 4. The answer is 4."), 1.0),
        (row("The answer is 5."), 0.3),
        (row("4"), 0.7),
        (row("nothing"), 0.0),
        (row("2 + 2 = 4. The answer is 4.", numbers=[4]), 1.0),
        (row("Result: 4", format="Result: [NUM]"), 1.0),
    ]
    reward = await start("tunix/custom_reward.py")
    given = await outputs(reward, [trajectory for trajectory, _ in cases])
    assert [output.reward for output in given] == pytest.approx([expected for _, expected in cases])


async def test_list_style_functions_get_columns_as_lists(start: Start) -> None:
    reward = await start("tunix/list_style.py")
    members = [row("4", level=2.0), row("5", level=3.0), row("14", level=0.5)]
    assert [output.reward for output in await outputs(reward, members)] == [2.0, 0.0, 0.5]
    narrow = await start("tunix/list_style.py", "answer_only")
    assert [output.reward for output in await outputs(narrow, members)] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("format_reward", RewardOutput(1.0)),
        ("numbers_reward", RewardOutput(1.0, metadata={"extracted": [4], "matches": [True]})),
        ("prompt_echo_penalty", RewardOutput(0.0)),
    ],
)
async def test_one_of_several_functions_is_chosen_by_name(start: Start, name: str, expected: RewardOutput) -> None:
    reward = await start("tunix/several.py", name)
    member = row("2 + 2 = ? The answer is 4.", format="The answer is [NUM].", numbers=[4])
    assert await outputs(reward, [member]) == [expected]


def test_its_names_are_turngyms() -> None:
    module = load_user_module(FILES / "tunix" / "custom_reward.py")
    for name in ("match_format_exactly", "check_answer", "check_numbers"):
        assert getattr(module, name) is getattr(rewards, name)
