import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.envs.errors import ConfigError, InvalidRewardError
from turngym.envs.rewards import (
    BinaryReward,
    ContinuousReward,
    GraduatedReward,
    TotalReward,
    Trajectory,
    as_reward,
    check_answer,
    check_numbers,
    match_format_exactly,
    total_reward,
)

PAIRS = [json.loads(line) for line in Path(__file__).with_name("answer_pairs.jsonl").read_text("utf-8").splitlines()]
TWO_PLUS_TWO = "2 + 2 = 4. The answer is 4."
FORMAT = "The answer is [NUM]."


def test_of_the_pairs_at_least_99_percent_are_checked_right():
    about_it = [pair for pair in PAIRS if pair["check_answer"] is not None]
    wrong = [
        pair
        for pair in about_it
        if check_answer(response=pair["response"], ground_truth=pair["truth"]) != pair["check_answer"]
    ]
    assert len(PAIRS) >= 200
    assert len(about_it) >= 100
    assert len(wrong) <= len(about_it) / 100, wrong


def test_the_pairs_cover_every_outcome_in_many_kinds():
    outcomes = [pair["check_answer"] for pair in PAIRS]
    assert min(outcomes.count(outcome) for outcome in (1.0, 0.5, 0.0)) >= 20
    assert len({pair["kind"] for pair in PAIRS}) >= 20


@pytest.mark.parametrize(
    ("response", "expected_format", "score"),
    [
        (TWO_PLUS_TWO, FORMAT, 1.0),
        ("2 plus 2 equals 4.", FORMAT, 0.0),
        ("the answer is 4.", FORMAT, 0.5),
        ("The answer is 4", FORMAT, 0.5),
        ("The answer is four.", FORMAT, 0.5),
        ("**The answer** is: 4", FORMAT, 0.5),
        ("The correct answer surely is 4.", FORMAT, 0.5),
        ("is answer The 4.", FORMAT, 0.0),
        ("The answers is 4.", FORMAT, 0.0),
        ("The answer is -1,234.5.", FORMAT, 1.0),
        ("The answer is 1/2.", FORMAT, 1.0),
        (r"The answer is \frac{1}{2}.", FORMAT, 1.0),
        ("The answer is 4..", FORMAT, 1.0),
        ("The answer is 4.5", FORMAT, 0.5),
        ("The answer is [NUM].", FORMAT, 0.5),
        ("The answer is .", FORMAT, 0.5),
        ("Because 1 + 2 = 3, yes", "[NUM] + [NUM] = [NUM]", 1.0),
        ("1+2=3", "[NUM] + [NUM] = [NUM]", 0.0),
        ("#### 4", "#### [NUM]", 1.0),
        ("4", "#### [NUM]", 0.0),
        (r"\boxed{4}", r"\boxed{[NUM]}", 1.0),
        ("<answer>4</answer>", "<answer>[NUM]</answer>", 1.0),
        ("Done.", "Done.", 1.0),
        ("done", "Done.", 0.5),
        ("a.c", "a.c", 1.0),
        ("abc", "a.c", 0.0),
        ("", FORMAT, 0.0),
        ("anything", "", 1.0),
    ],
)
def test_a_format_occurs_or_its_words_do_or_neither(response: str, expected_format: str, score: float):
    assert match_format_exactly(response=response, expected_format=expected_format) == score


@pytest.mark.parametrize(
    ("response", "truth", "score"),
    [
        (TWO_PLUS_TWO, 4, 1.0),
        ("4", 4.0, 1.0),
        ("4", "4.0", 1.0),
        ("It is 0.1", 0.1, 1.0),
        ("1/3", 1 / 3, 1.0),
        ("0.33", 1 / 3, 0.5),
        ("110", 100, 0.5),
        ("110.00000000000000000001", 100, 0.0),
        ("0.33", 0.3, 0.5),
        ("0", 0, 1.0),
        ("0.0000001", 0, 0.0),
        ("none", 0, 0.0),
        ("True", True, 1.0),
        ("1", True, 0.0),
        ("nan", math.nan, 1.0),
        ("4", math.inf, 0.0),
        ("1" + "0" * 400, 10**400, 1.0),
        ("1" + "0" * 5000, "1" + "0" * 5000, 1.0),
        ("St. Louis", "St. Louis", 1.0),
        ("The answer is St. Louis.", "St. Louis", 1.0),
        ("The answer is Paris. I am sure.", "Paris", 1.0),
        ("Paris", "", 0.0),
        ("", "", 1.0),
        ("!!!", "...", 0.0),
    ],
)
def test_an_answer_is_exact_near_or_wrong(response: str, truth: str | float, score: float):
    assert check_answer(response, truth) == score


@pytest.mark.parametrize(
    ("response", "expected", "result"),
    [
        (TWO_PLUS_TWO, [4], {"extracted": [4], "matches": [True], "score": 1.0}),
        (TWO_PLUS_TWO, [4, 4], {"extracted": [4, 4], "matches": [True, True], "score": 1.0}),
        ("1 2 3", [2, 4], {"extracted": [2, 3], "matches": [True, False], "score": 0.5}),
        ("1", [1, 2], {"extracted": [1], "matches": [True, False], "score": 0.5}),
        ("1.5 and 2.0", ["1.5", 2.0], {"extracted": [1.5, 2], "matches": [True, True], "score": 1.0}),
        ("4", 4, {"extracted": [4], "matches": [True], "score": 1.0}),
        ("3 and 4", "3, 4", {"extracted": [3, 4], "matches": [True, True], "score": 1.0}),
        ("4", ["Paris"], {"extracted": [4], "matches": [False], "score": 0.0}),
        ("4", [], {"extracted": [], "matches": [], "score": 0.0}),
        ("none", [4], {"extracted": [], "matches": [False], "score": 0.0}),
    ],
)
def test_the_last_numbers_are_matched_in_their_order(response: str, expected: Any, result: dict[str, Any]):
    given_result = check_numbers(response=response, expected_numbers=expected)
    assert given_result == result
    assert [type(number) for number in given_result["extracted"]] == [type(number) for number in result["extracted"]]


def test_a_score_of_numbers_is_a_reward():
    output = as_reward(check_numbers)(Trajectory(response="1 2", columns={"numbers": [1, 3]}))
    assert output.reward == 0.5
    assert output.metadata == {"extracted": [1, 2], "matches": [True, False]}


def test_the_total_follows_the_weights():
    assert total_reward(TWO_PLUS_TWO, 4, FORMAT) == 1.0
    assert total_reward("4", 4, FORMAT) == 0.7
    assert total_reward("The answer is 5.", 4, FORMAT) == 0.3
    assert total_reward("the answer is 4.2", 4, FORMAT, alpha=1.0, beta=2.0) == 1.5


def test_the_total_reward_takes_the_row_s_columns_and_keeps_its_parts():
    trajectory = Trajectory(response="the answer is 95", label="100", columns={"format": FORMAT})
    output = TotalReward()(trajectory)
    assert output.reward == pytest.approx(0.3 * 0.5 + 0.7 * 0.5)
    assert output.metadata == {"format": 0.5, "correctness": 0.5}
    assert TotalReward(alpha=0.0, beta=1.0)(trajectory).reward == 0.5
    assert TotalReward(1.0, 2.0).reward_range == (0.0, 3.0)


def test_the_label_goes_before_the_column_answer_and_a_row_s_format_before_the_reward_s():
    row = {"answer": "2 + 2, so five", "format": "It is [NUM]."}
    assert TotalReward(expected_format=FORMAT)(Trajectory(response="It is 4.", label="4", columns=row)).reward == 1.0
    assert as_reward(check_answer)(Trajectory(response="It is 4.", label="4", columns=row)).reward == 1.0


def test_without_a_label_the_column_answer_is_the_truth():
    trajectory = Trajectory(response="It is 4.", columns={"answer": 4, "format": "It is [NUM]."})
    assert TotalReward()(trajectory).reward == 1.0
    assert as_reward(check_answer)(trajectory).reward == 1.0
    assert [kind()(trajectory).reward for kind in (BinaryReward, GraduatedReward, ContinuousReward)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("truth", "score"),
    [
        ("2 + 2 = <<2+2=4>>4\n#### 4", 1.0),
        ("#### 4", 1.0),
        ("#### 3.7", 0.5),
        ("####", 0.0),
        ("4 ####\nfive\nsix", 0.0),
    ],
)
def test_the_truth_of_a_worked_solution_is_its_last_line(truth: str, score: float):
    assert check_answer("The answer is 4.", truth) == score


def test_a_row_that_can_t_be_graded_says_what_is_missing():
    with pytest.raises(InvalidRewardError) as caught:
        TotalReward().compute_reward(Trajectory(response="4", columns={"format": FORMAT}))
    assert str(caught.value) == "the row has neither a label nor a column 'answer'; choose it with --label_key"
    with pytest.raises(InvalidRewardError) as caught:
        TotalReward().compute_reward(Trajectory(response="4", label=4))
    assert str(caught.value) == "the row has no column 'format'; add one, or give TotalReward(expected_format=...)"


@pytest.mark.parametrize(
    "weights", [{"alpha": -0.1}, {"beta": -1.0}, {"alpha": math.inf}, {"beta": math.nan}, {"beta": "1"}]
)
def test_weights_are_finite_and_not_negative(weights: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"^(alpha|beta)=\S+ must be (a finite number|at least 0)$"):
        TotalReward(**weights)


truths = st.one_of(st.text(), st.integers(), st.floats(), st.integers().map(str), st.floats().map(str))


@given(st.text(), truths, st.text())
def test_any_response_and_truth_give_a_score_in_range(response: str, truth: str | float, expected_format: str):
    assert check_answer(response, truth) in {0.0, 0.5, 1.0}
    assert match_format_exactly(response, expected_format) in {0.0, 0.5, 1.0}
    assert 0 <= total_reward(response, truth, expected_format) <= 1
    assert 0 <= check_numbers(response, [truth])["score"] <= 1


@given(st.integers())
def test_the_truth_itself_is_right(truth: int):
    for response in (str(truth), f"It is {truth}.", f"#### {truth:,}", f"${truth}$", f"x={truth}"):
        assert check_answer(response, truth) == 1.0


@given(st.fractions(min_value=-1000, max_value=1000), st.fractions(min_value=-1000, max_value=1000))
def test_near_is_ten_percent_of_the_truth_inclusive(answer: Fraction, truth: Fraction):
    expected = 1.0 if answer == truth else 0.5 if abs(answer - truth) <= abs(truth) / 10 else 0.0
    assert check_answer(rf"\boxed{{{answer}}}", str(truth)) == expected


@given(st.text(), st.text())
def test_a_response_that_holds_the_format_has_it(before: str, after: str):
    assert match_format_exactly(f"{before} The answer is 4. {after}", FORMAT) == 1.0


@pytest.mark.parametrize("piece", ["1", "1,", "The ", "the answer is ", "$", "\\boxed{", "####", "ﷺ", "-", "[NUM]"])
@pytest.mark.timeout(60)
def test_long_responses_take_time_in_proportion(piece: str):
    response = piece * (2**19 // len(piece))
    for truth in ("4", "Paris"):
        check_answer(response, truth)
    for expected_format in (FORMAT, "[NUM]x", "[NUM] + [NUM] = [NUM]"):
        match_format_exactly(response, expected_format)
