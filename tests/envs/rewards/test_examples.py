# ruff: noqa: E501 - messages stand whole
"""Cases that a reward is tried on: reading them, grouping them, comparing them."""

import json
from pathlib import Path
from typing import Any

import pytest
from turngym.envs import DataError
from turngym.envs.rewards import GroupReward, as_reward
from turngym.envs.rewards.examples import RewardCase, read_cases, score_cases, try_cases
from turngym.envs.rewards.types import RewardOutput


def file_of(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_a_case_has_everything_that_its_line_says(tmp_path: Path):
    row = {
        "prompt": "2 + 2?", "response": "4", "label": 4, "format": "[NUM]", "group": "a", "expected": {"reward": 1, "form": True}
    }  # fmt: skip
    (case,) = read_cases(file_of(tmp_path, row))
    assert case == RewardCase(
        line=1, prompt="2 + 2?", response="4", label="4", columns={"format": "[NUM]"}, group="a",
        expected={"reward": 1.0, "form": 1.0},
    )  # fmt: skip
    trajectory = case.trajectory()
    assert (trajectory.prompt, trajectory.response, trajectory.label) == ("2 + 2?", "4", "4")
    assert trajectory.columns == {"prompt": "2 + 2?", "label": "4", "format": "[NUM]"}


def test_a_label_is_read_as_training_reads_it(tmp_path: Path):
    labels = ["She has 3 + 4 = 7.\n#### 7", 7.0, [1, 2], None]
    cases = read_cases(file_of(tmp_path, *({"response": "", "label": label} for label in labels)))
    assert [case.label for case in cases] == ["7", "7", "[1, 2]", None]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], 'is empty; it needs one case or more, such as {"response": "4", "expected": 1}'),
        (["", '{"response" "4"}'], ", line 2: bad JSON: Expecting ':' delimiter: line 1 column 13 (char 12); each line must be one JSON object"),
        (["[]"], ", line 1: list []; each line must be one JSON object"),
        ([{"prompt": "2?"}], ", line 1: there is no column 'response'; it has prompt: give each case a response"),
        ([{"response": "4"}, {"response": 4}], ", line 2: column 'response' holds int 4; it must be a string"),
        ([{"response": "4", "prompt": ["2"]}], ", line 1: column 'prompt' holds list ['2']; it must be a string"),
        ([{"response": "4", "label": ""}], ", line 1: column 'label' holds str ''; a label must be text or a number"),
        ([{"response": "4", "group": [1]}], ", line 1: column 'group' holds list [1]; give a name or a number"),
        ([{"response": "4", "expected": "1"}], ', line 1: \'expected\' holds str \'1\' for \'reward\'; give a number, or numbers by part such as {"reward": 1, "length": 0.5}'),
        ([{"response": "4", "expected": {"length": None}}], ', line 1: \'expected\' holds NoneType None for \'length\'; give a number, or numbers by part such as {"reward": 1, "length": 0.5}'),
        (['{"response": "4", "expected": 1e999}'], ', line 1: \'expected\' holds float inf for \'reward\'; give a number, or numbers by part such as {"reward": 1, "length": 0.5}'),
    ],
)  # fmt: skip
def test_a_bad_line_is_told_with_file_line_and_remedy(tmp_path: Path, rows: list[Any], message: str):
    path = file_of(tmp_path, *rows)
    with pytest.raises(DataError) as error:
        read_cases(path)
    assert str(error.value).removeprefix(str(path)).lstrip() == message.lstrip()


def test_a_file_that_is_not_there_is_told(tmp_path: Path):
    with pytest.raises(DataError) as error:
        read_cases(tmp_path / "no.jsonl")
    assert str(error.value) == f"{tmp_path}/no.jsonl: there is no such file; give a .jsonl file with one case a line"


def test_prompts_alone_will_do_where_no_response_is_needed(tmp_path: Path):
    (case,) = read_cases(file_of(tmp_path, {"prompt": "2?"}), needs_response=False)
    assert case.response is None


async def test_cases_of_a_group_are_scored_together_in_their_order():
    calls: list[list[str]] = []

    class Counts(GroupReward):
        def compute_rewards(self, trajectories):
            calls.append([t.response for t in trajectories])
            return [float(index) for index in range(len(trajectories))]

    groups = [None, "a", "b", "a", None, 1]
    cases = [RewardCase(line=n, response=str(n), group=group) for n, group in enumerate(groups)]
    outputs = await score_cases(Counts(), cases)
    assert sorted(calls) == [["0"], ["1", "3"], ["2"], ["4"], ["5"]]
    rewards = [output.reward for output in outputs if isinstance(output, RewardOutput)]
    assert rewards == [0, 0, 0, 1, 0, 0]


async def test_the_reward_its_score_and_its_parts_are_compared():
    reward = as_reward(lambda trajectory: RewardOutput(0.5, score=1.0, metadata={"words": 3, "note": "text"}))
    case = RewardCase(response="a", expected={"reward": 0.5, "words": 4, "missing": 0})
    (result,) = await try_cases(reward, [case])
    found = {c.part: (c.given, c.expected, c.is_off) for c in result.comparisons}
    assert found == {
        "reward": (0.5, 0.5, False),
        "score": (1.0, None, False),
        "words": (3.0, 4, True),
        "missing": (None, 0, True),
    }
    assert result.is_off


@pytest.mark.parametrize(("expected", "is_off"), [(0.5, False), (0.59, False), (0.61, True)])
async def test_the_tolerance_is_how_far_a_number_may_be_off(expected: float, is_off: bool):
    reward = as_reward(lambda response: 0.5)
    (result,) = await try_cases(reward, [RewardCase(response="", expected={"reward": expected})], tolerance=0.1)
    assert result.is_off == is_off


async def test_nothing_expected_is_never_off_unless_it_fails():
    def grumpy(response: str) -> float:
        return 1 / len(response)

    good, bad = await try_cases(as_reward(grumpy), [RewardCase(response="a"), RewardCase(response="")])
    assert not good.is_off
    assert bad.is_off
    assert str(bad.error) == "grumpy raised ZeroDivisionError: division by zero"
    assert bad.comparisons == ()
