import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from turngym.envs.errors import ConfigError, InvalidRewardError, RewardError
from turngym.envs.math import judge
from turngym.envs.math.judge_process import COMPARE_S
from turngym.envs.rewards import MathReward, RewardOutput, Trajectory, score_group

PAIRS = [json.loads(line) for line in Path(__file__).with_name("answer_pairs.jsonl").read_text("utf-8").splitlines()]


async def graded(response: str, label: Any, prompt: str = "", **columns: Any) -> RewardOutput:
    return await MathReward()(Trajectory(prompt=prompt, response=response, label=label, columns=columns))


@pytest.mark.slow
async def test_of_the_pairs_at_least_99_percent_are_graded_right_and_none_overruns():
    about_it = [pair for pair in PAIRS if pair["math"] is not None]
    reward = MathReward()
    wrong, overran = [], []
    for pair in about_it:
        output = await reward(Trajectory(response=pair["response"], label=pair["truth"]))
        if bool(output.reward) != pair["math"]:
            wrong.append(pair)
        if output.metadata["overran"]:
            overran.append(pair)
    assert len(about_it) >= 100
    assert len(wrong) <= len(about_it) / 100, wrong
    assert not overran


def test_a_comparison_takes_a_second_at_most():
    assert 0 < COMPARE_S <= 1


@pytest.mark.parametrize(
    ("response", "label", "is_right", "has_answer"),
    [
        (r"\boxed{\frac{1}{2}}", "0.5", True, True),
        (r"\boxed{\frac{3\pm\sqrt{5}}{2}}", r"\frac{3 \pm \sqrt 5}{2}", True, True),
        (r"\boxed{\sqrt{x}}", r"\sqrt x", True, True),
        (r"\boxed{\sqrt{12}}", r"\sqrt 1 2", False, True),
        ("It is 20.", "19", False, True),
        ("12 + 7", "19", False, False),
        ("", "19", False, False),
        ("19", 19, True, True),
        ("0.5", 0.5, True, True),
        ("1 + x", "x + 1", True, True),
        ("x + 2", "x + 1", False, True),
        ("", "x + 1", False, False),
        ("(B)", "B", True, True),
        ("(C)", "B", False, True),
        ("who knows", "B", False, False),
        ("paris", "Paris", True, True),
        ("", "Paris", False, False),
        ("19", "She has 12 + 7 = 19.\n#### 19", True, True),
        ("19", r"So it is \boxed{19}.", True, True),
    ],
)
async def test_the_metadata_says_whether_there_is_an_answer_and_whether_it_is_right(
    response: str, label: Any, is_right: bool, has_answer: bool
):
    output = await graded(response, label)
    assert output.reward == float(is_right)
    assert output.metadata == {"is_right": is_right, "has_answer": has_answer, "overran": False}


async def test_the_label_is_the_trajectory_s_or_the_column_answer():
    assert (await graded("19", None, answer="19")).reward == 1.0
    assert (await graded("19", "19", answer="20")).reward == 1.0
    with pytest.raises(InvalidRewardError) as caught:
        await graded("19", None)
    assert str(caught.value) == "the row has neither a label nor a column 'answer'; choose it with --label_key"


async def test_a_repetition_of_the_prompt_earns_nothing():
    assert (await graded("Simplify $2x + 3x$", "5x", prompt="Simplify $2x + 3x$")).reward == 0.0
    assert (await graded("$2x + 3x$", "5x", prompt="Simplify $2x + 3x$")).reward == 0.0
    assert (await graded("$5x$", "5x", prompt="Simplify $2x + 3x$")).reward == 1.0
    assert (await graded("Is it 19 or 20? The answer 19", "19", prompt="Is it 19 or 20?")).reward == 1.0
    assert (await graded("Is it 18 or is it 19", "19", prompt="Is it 18 or is it 19")).reward == 0.0


@pytest.mark.parametrize(
    ("response", "label", "is_right"),
    [
        ("5 in total", "5 cm", True),
        ("5 in", "5 inches", True),
        ("5 in", "5 cm", False),
        ("5 hrs", "5 hours", True),
        ("5 m/s", "5 m", False),
        ("5 apples", "5 pears", True),
        ("5", "5 cm", True),
    ],
)
async def test_units_agree_where_both_are_known(response: str, label: str, is_right: bool):
    assert (await graded(response, label)).reward == float(is_right)


async def test_only_the_end_of_a_very_long_response_is_read():
    assert (await graded("x " * 10**6 + "so the answer is 19.", "19")).reward == 1.0
    assert (await graded(r"\boxed{19}" + " x" * 10**6, "19")).reward == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9^{9}}}",
        "{9}^{{9}^{{9}^{9}}}",
        "(x+1)^{999}",
        r"\sum_{i=1}^{10^{9}} i^i",
        "100000000!!",
        "(" * 150 + "x" + ")" * 150,
        r"\frac{" * 60,
        "(1,2," * 70,
        "((((((x+1)^9+1)^9+1)^9+1)^9+1)^9+1)^9",
        "x\n\\end",
        "\x00",
        "\ud800",
    ],
    ids=lambda answer: ascii(answer)[:20],
)
async def test_hostile_expressions_are_wrong_and_the_next_one_is_graded(answer: str):
    assert (await graded(rf"\boxed{{{answer}}}", "x^2 + 1")).reward == 0.0
    assert (await graded("1 + x^2", "x^2 + 1")).reward == 1.0


async def test_what_overruns_its_limit_is_wrong_and_says_so():
    output = await graded(r"\sum_{i=1}^{10^{9}} i^i", "x^2 + 1")
    assert (output.reward, output.metadata["overran"]) == (0.0, True)


async def test_a_group_is_graded_at_once_and_keeps_its_order():
    group = [Trajectory(response=f"x + {n % 3}", label=f"{n % 2} + x") for n in range(12)]
    scored = await score_group(MathReward(), group)
    assert [output.reward for output in scored if isinstance(output, RewardOutput)] == [
        float(n % 3 == n % 2) for n in range(12)
    ]


@pytest.mark.slow
async def test_a_reward_may_have_processes_of_its_own():
    reward = MathReward(num_processes=2)
    await reward.start()
    group = [Trajectory(response=f"x + {n}", label=f"{n} + x") for n in range(4)]
    assert [output.reward for output in await asyncio.gather(*map(reward, group))] == [1.0] * 4
    await reward.aclose()
    await reward.aclose()
    assert (await reward(group[0])).reward == 1.0
    await reward.aclose()


def test_a_reward_needs_a_process():
    with pytest.raises(ConfigError) as caught:
        MathReward(num_processes=0)
    assert str(caught.value) == "num_processes=0 must be at least 1"


async def test_a_lost_process_is_a_failure_and_not_a_zero(monkeypatch: pytest.MonkeyPatch):
    reward = MathReward()
    trajectory = Trajectory(response="1 + x", label="x + 1")
    assert (await reward(trajectory)).reward == 1.0
    child = judge._judge._child
    assert child is not None
    os.kill(child.pid, signal.SIGSTOP)
    monkeypatch.setattr(judge, "ANSWER_S", 0.01)
    [error] = await score_group(reward, [trajectory])
    assert isinstance(error, RewardError)
    assert str(error) == (
        "MathReward: the process that runs math-verify was killed, or gave no answer; the next one starts"
    )
    monkeypatch.undo()
    assert (await reward(trajectory)).reward == 1.0


labels = st.one_of(
    st.text(), st.integers(), st.floats(), st.sampled_from(["4", "B", "Paris", "x + 1", "(1,2]", r"\{1,2\}", "5 cm"])
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(), labels)
async def test_any_response_and_label_give_a_reward_in_range(response: str, label: Any):
    assert (await graded(response, label)).reward in {0.0, 1.0}


@given(st.integers(), st.integers(-20, 20))
async def test_integers_are_right_where_they_are_equal(truth: int, off: int):
    assert (await graded(f"The answer is {truth + off}.", truth)).reward == float(off == 0)


@pytest.mark.parametrize(
    "piece", ["1 ", "1,", "1/", "$x$ ", r"\boxed{", "answer is ", "(A) ", "½", "ﷺ", "√{", "x = 1, "]
)
@pytest.mark.parametrize("label", ["4", "B", "Paris", "x+1"])
@pytest.mark.timeout(60)
async def test_long_responses_take_time_in_proportion(piece: str, label: str):
    await graded(piece * (2**16 // len(piece)), label)
