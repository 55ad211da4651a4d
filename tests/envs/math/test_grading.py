import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from turngym.envs import EnvError
from turngym.envs.math import judge
from turngym.envs.math.grading import (
    _compare_numbers,
    as_number,
    is_right,
    mentions,
    stated_expression,
    stated_number,
    unframed,
    value,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("19", "19"),
        ("  19.\n", "19"),
        ("-19", "-19"),
        ("−19", "-19"),
        ("+19", "19"),
        ("1,234", "1234"),
        ("1.5", "1.5"),
        (".5", ".5"),
        ("5/2", "5/2"),
        (r"\frac{5}{2}", r"\frac{5}{2}"),
        (r"$-\dfrac{5}{2}$", r"-\dfrac{5}{2}"),
        ("50%", "50%"),
        ("$19$", "19"),
        (r"\(19\)", "19"),
        ("**19**", "19"),
        ("x = 19", "19"),
        ("x=-19", "-19"),
        ("19 apples", "19"),
        ("It costs $19.", "19"),
        ("12+7=19", "19"),
        ("12 + 7 is 19", "19"),
        ("2 + 7 = 9, and 10 + 9 = 19", "19"),
        (r"\boxed{19}", "19"),
        (r"Then \boxed{x = 19} holds for 3.", "19"),
        (r"\boxed{\frac{5}{2}}", r"\frac{5}{2}"),
        (r"\boxed{18}, no, \boxed{19}", "19"),
        ("7 + 12\n#### 19", "19"),
        ("The answer is 19.", "19"),
        ("The answer is 19. Check: 19 - 7 = 12.", "19"),
        ("The answer is 12 + 7 = 19.", "19"),
        ("the ANSWER: x = 19", "19"),
        ("**Answer:** 19", "19"),
        ("The answer is $19$, since 12 + 7 is 19.", "19"),
        ("The answer is about 19", "19"),
        ("The answer is 18. No: the answer is 19.", "19"),
        ("#### Step 1 is easy\n19", "19"),
    ],
)
def test_the_number_stated_last_is_the_answer(text: str, number: str):
    assert stated_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "I don't know.",
        "nineteen",
        "12 + 7",
        "12+7=",
        "12 * 7 = ?",
        "(12)(7)",
        "18, 19, 20",
        "18,19,20",
        "18 19 20",
        "18 or 19",
        "from 18 to 20",
        "19 19",
        "The answer is 18 or 19.",
        "The answer is 12 + 7.",
        "The answer is not 18 but 19",
        r"\boxed{}",
        r"\boxed{18, 19}",
        r"\boxed{12 + 7}",
        r"\boxed{19",
        "The answer is unknown. 19",
        "8/2",
        "19/0",
        "1/2/3",
        "1.2.3",
        "19x",
        "x19",
        "1.9e1",
        "٣",
        "9" * 31,
        ". 1. 2".join("ab" for _ in range(30)),
    ],
)
def test_no_single_number_is_no_answer(text: str):
    assert stated_number(text) is None


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("x + 1", "x + 1"),
        ("It is $x$, so $x + 1$.", "x + 1"),
        (r"\(x + 1\)", "x + 1"),
        (r"\boxed{x + 1}", "x + 1"),
        (r"\boxed{\frac{\pi}{2}} is it", r"\frac{\pi}{2}"),
        ("The answer is (1, 2).", "(1, 2)"),
        ("Answer: Paris", "Paris"),
        ("", None),
        ("x" * 201, None),
    ],
)
def test_the_expression_stated_last_is_the_answer(text: str, expression: str | None):
    assert stated_expression(text) == expression


@pytest.mark.parametrize("text", [" $19$. ", "**19**", r"\(19\)", r"\[ 19 \]", "$$19$$;", r"$\(19\).$"])
def test_frames_are_taken_off(text: str):
    assert unframed(text) == "19"


@given(st.text())
def test_taking_frames_off_ends_and_leaves_nothing_to_take(text: str):
    assert unframed(unframed(text)) == unframed(text)


@pytest.mark.parametrize(
    "piece",
    [
        "9",
        "1 ",
        " ",
        "-",
        "$",
        "(",
        "{",
        r"\boxed{",
        "#### 1 ",
        "answer ",
        "answer is ",
        "1/",
        "1,",
        ".",
        r"\frac{1}{",
        "=",
        "or ",
    ],
    ids=repr,
)
@pytest.mark.timeout(20)
def test_long_actions_take_time_in_proportion(piece: str):
    for text in (piece * (2**16 // len(piece)), "1" + piece * (2**16 // len(piece)) + "1"):
        stated_number(text)
        stated_expression(text)
        unframed(text[:4096])


numbers = st.one_of(
    st.integers(-(10**6), 10**6).map(str),
    st.integers(-30, 30).map(str),
    st.decimals(-50, 50, places=2).map(str),
    st.decimals(-2, 2, places=7).map(lambda number: f"{number:f}"),
    st.tuples(st.integers(-20, 20), st.integers(1, 9)).map(lambda pair: "{}/{}".format(*pair)),
    st.tuples(st.integers(0, 20), st.integers(1, 9)).map(lambda pair: r"\frac{{{}}}{{{}}}".format(*pair)),
)


@settings(max_examples=80, deadline=None)
@given(numbers, numbers)
def test_where_math_verify_isnt_asked_it_would_say_the_same(answer: str, label: str):
    from math_verify import parse, verify

    known = _compare_numbers(answer, label)
    if known is not None:
        gold, target = (parse(f"${text}$", parsing_timeout=0) for text in (label, answer))
        assert verify(gold, target, timeout_seconds=None) is known


def test_only_near_decimals_and_percentages_are_asked_about():
    assert _compare_numbers("19", "19.0") is True
    assert _compare_numbers("1/3", "2/6") is True
    assert _compare_numbers("0.33", "1/3") is False
    assert _compare_numbers("0.333333", "1/3") is None
    assert _compare_numbers("50%", "1/2") is None


@pytest.mark.parametrize(
    ("answer", "label", "right"),
    [
        ("19", "19", True),
        ("0019", "19", True),
        ("20", "19", False),
        ("0.333333", "1/3", True),
        ("0.33333", "1/3", False),
        ("50%", "1/2", True),
        (r"\frac{1}{2}", "0.5", True),
        ("1 + x", "x + 1", True),
        ("x + 2", "x + 1", False),
        (r"\pi/2", r"\frac{\pi}{2}", True),
        ("(1,2)", "(1, 2)", True),
        ("(2, 1)", "(1, 2)", False),
        ("paris", "Paris", True),
        ("ariPs", "Paris", False),
    ],
)
async def test_answers_are_compared_as_mathematics(answer: str, label: str, right: bool):
    assert await is_right(answer, label) is right


def test_grading_works_off_the_main_thread():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(asyncio.run(is_right("1 + x", "x + 1"))))
    thread.start()
    thread.join(60)
    assert verdicts == [True]


async def test_grading_leaves_the_alarm_signal_alone():
    before = signal.getsignal(signal.SIGALRM)
    timer = signal.getitimer(signal.ITIMER_REAL)[0] > 0
    await is_right("1 + x", "x + 1")
    assert signal.getsignal(signal.SIGALRM) is before
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == timer


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    ["9^{9^{9^{9}}}", "9^{9^{9}} + x", "(x+1)^{9999}", "100000000!!", "(" * 90 + "x" + ")" * 90, r"\frac{" * 30],
)
async def test_no_expression_hangs_the_grader(answer: str):
    assert await is_right(answer, "x^2 + 1") is False
    assert await is_right("1 + x^2", "x^2 + 1") is True


async def test_comparisons_at_once_get_their_own_results():
    pairs = [(f"x + {n}", f"{n % 7} + x") for n in range(14)]
    verdicts = await asyncio.gather(*(is_right(*pair) for pair in pairs))
    assert verdicts == [n == n % 7 for n in range(14)]


async def test_a_judge_that_dies_is_replaced():
    await is_right("1 + x", "x + 1")
    child = judge._judge._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert await is_right("1 + x", "x + 1") is True


async def test_a_judge_that_is_stuck_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch):
    await is_right("1 + x", "x + 1")
    child = judge._judge._child
    assert child is not None
    os.kill(child.pid, signal.SIGSTOP)
    monkeypatch.setattr(judge, "ANSWER_S", 0.01)
    assert await is_right("1 + x", "x + 1") is False
    assert child.returncode == -signal.SIGKILL
    monkeypatch.undo()
    assert await is_right("1 + x", "x + 1") is True


def test_a_judge_that_doesnt_start_says_how_to_see_why(monkeypatch: pytest.MonkeyPatch, tmp_path):
    program = tmp_path / "broken.py"
    program.write_text("raise SystemExit(3)")
    monkeypatch.setattr(judge, "PROGRAM", program)
    with pytest.raises(EnvError) as caught:
        judge._Judge().equal("x", "y")
    assert str(caught.value) == (
        f"the process that runs math-verify doesn't start; see what `{sys.executable} {program}` says"
    )


def test_the_judge_ends_with_its_process():
    code = """
import asyncio
from turngym.envs.math import judge
assert asyncio.run(judge.equal("x + 1", "1 + x"))
print(judge._judge._child.pid)
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(run.stdout), 0)


@pytest.mark.slow
def test_the_judge_ends_when_its_process_is_killed():
    code = """
import asyncio, os, signal
from turngym.envs.math import judge
asyncio.run(judge.equal("x + 1", "1 + x"))
print(judge._judge._child.pid, flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
    has_ended, _, _ = select.select([child], [], [], 60)
    os.close(child)
    assert has_ended


@pytest.mark.parametrize(
    ("number", "exact"),
    [
        ("19", Fraction(19)),
        ("-2.5", Fraction(-5, 2)),
        (".5", Fraction(1, 2)),
        ("-3/4", Fraction(-3, 4)),
        (r"-\frac{3}{4}", Fraction(-3, 4)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        ("50%", None),
        ("1/0", None),
    ],
)
def test_numbers_have_exact_values(number: str, exact: Fraction | None):
    assert value(number) == exact


@pytest.mark.parametrize("text", ["42", "-1/2", "0.5", r"\frac{1}{2}", "7%"])
def test_these_are_numbers(text: str):
    assert as_number(text) == text


@pytest.mark.parametrize("text", ["", "x", "1 2", "12 + 7", "(1, 2)", "8/2", "9" * 31, r"\pi"])
def test_these_are_no_numbers(text: str):
    assert as_number(text) is None


def test_a_part_of_a_longer_number_is_no_mention():
    assert mentions("gives 19, not 7", "19")
    assert mentions("gives 19/3", "19")
    assert mentions("19", "-19")
    assert not mentions("gives 119 or 190", "19")
