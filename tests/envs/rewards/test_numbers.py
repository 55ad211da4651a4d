import math
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.envs.rewards.numbers import MARGIN_CHARS, TAIL_CHARS, Number, last_number, last_numbers, mentions


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2 + 2 = 4. The answer is 4.", [2, 2, 4, 4]),
        ("2-1", [2, 1]),
        ("3-5 apples", [3, 5]),
        ("Covid-19", [19]),
        ("5--3", [5, 3]),
        ("5 - -3", [5, -3]),
        ("x=-5", [-5]),
        ("x = - 5", [-5]),
        ("−5", [-5]),
        ("-$5", [-5]),
        ("$-5", [-5]),
        (r"\$4", [4]),
        ("- 5 apples", [5]),
        ("1,234.5", [1234.5]),
        ("1{,}234", [1234]),
        ("1\u202f234", [1234]),
        ("18,19,20", [18, 19, 20]),
        ("3,14", [3, 14]),
        (".5 and -.5", [0.5, -0.5]),
        ("4.", [4]),
        ("It is 4.5.", [4.5]),
        ("the end.5", [5]),
        ("1.2.3", []),
        ("x1, x_2", []),
        ("1/2", [0.5]),
        ("-1/2", [-0.5]),
        ("1 1/2", [1.5]),
        ("2 8/4", [2, 8, 4]),
        ("8/2", [8, 2]),
        ("1/0", [1, 0]),
        ("1/2/3", [1, 2, 3]),
        ("12/05/2024", [12, 5, 2024]),
        (r"\frac{3}{4}", [0.75]),
        (r"-\dfrac{-3}{4}", [0.75]),
        ("½ and 3½", [0.5, 3.5]),
        ("6e3", [6000]),
        ("1.5e-3", [0.0015]),
        ("3 × 10^5", [300_000]),
        (r"3 \times 10^{-2}", [0.03]),
        ("6×10²", [600]),
        ("2^3", [2]),
        ("x^{12} = 5", [5]),
        ("2**3", [2]),
        ("**19**", [19]),
        ("25 cm^2", [25]),
        ("25 cm²", [25]),
        ("50%", [50]),
        ("5cm", [5]),
        ("٤٫٥", [4.5]),
        ("４", [4]),
        ("答案是4。", [4]),
        ("nan inf Infinity", []),
        ("", []),
    ],
)
def test_numbers_are_found_where_a_reader_finds_them(text: str, numbers: list[float]):
    assert [number.plain for number in last_numbers(text)] == numbers


def test_the_last_number_is_a_float_or_none():
    assert last_number("1 or 2") == 2.0
    assert isinstance(last_number("2"), float)
    assert last_number("none") is None
    assert last_number("9" * 400) == sys.float_info.max
    assert last_number("-1e999999999999") == -sys.float_info.max
    assert last_number("1e-999999999999") == 0.0


def test_the_last_few_numbers_are_in_their_order():
    assert [number.plain for number in last_numbers("1 2 3 4", 2)] == [3, 4]
    assert [number.plain for number in last_numbers("1 8/4", 2)] == [8, 4]
    assert [number.plain for number in last_numbers("4", 2)] == [4]


def test_plain_integers_are_ints():
    assert [type(number.plain) for number in last_numbers("4 4.0 4.5 1/3")] == [int, int, float, float]
    assert last_numbers("1" + "0" * 400)[0].plain == 10**400
    assert last_numbers("1e5000")[0].plain == sys.float_info.max


@given(st.integers())
def test_an_integer_is_read_exactly(number: int):
    assert last_numbers(f"It is {number}.")[0].plain == number
    assert last_numbers(f"It is {number:,}.")[0].plain == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_read_exactly(number: float):
    assert last_number(f"It is {number!r}.") == number


@given(st.text())
def test_any_text_can_be_searched(text: str):
    found = last_numbers(text)
    assert all(math.isfinite(number.as_float()) for number in found)
    assert last_numbers(text, 1) == found[-1:]
    assert all(mention.start < mention.end for mention in mentions(text))


@given(st.text(alphabet="0123456789.,-+/^* eE$x%½\\frac{}()=\n"))
def test_any_text_like_numbers_can_be_searched(text: str):
    found = last_numbers(text)
    assert [number.plain for number in last_numbers(text, 3)] == [number.plain for number in found[-3:]]
    Number.of(text)


@given(st.integers(0, 400), st.integers(1, 3))
def test_where_a_long_text_is_cut_off_changes_nothing(extra: int, count: int):
    text = "1234 " * 20 + "," * (TAIL_CHARS - MARGIN_CHARS + extra) + "-7"
    assert [number.plain for number in last_numbers(text, count)] == [1234, 1234, -7][-count:]


def number_of(given_number: str | float | Fraction) -> Number:
    number = Number.of(given_number)
    assert number is not None
    return number


fractions = st.fractions(min_value=-(10**6), max_value=10**6)


@given(fractions, fractions)
def test_numbers_compare_as_fractions_do(left: Fraction, right: Fraction):
    assert number_of(left).equals(number_of(right)) is (left == right)
    assert number_of(left).is_near(number_of(right)) is (abs(left - right) <= abs(right) / 10)
    assert number_of(left).times(right).equals(number_of(left * right))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("18", 18),
        (" $18. ", 18),
        ("#### 18", 18),
        (r"\boxed{18}", 18),
        ("8/2", 4),
        ("1 1/2", 1.5),
        ("50%", 50),
        ("-1e3", -1000),
        (True, 1),
        (2.5, 2.5),
    ],
)
def test_these_are_one_number(text: str | float, number: float):
    assert number_of(text).plain == number


@pytest.mark.parametrize("text", ["", "-", "18 apples", "2^3", "1, 2", "x = 5", "1/0", "nan", math.nan, math.inf])
def test_these_are_not_one_number(text: str | float):
    assert Number.of(text) is None


def test_huge_numbers_are_compared_exactly():
    nines, power = number_of("9" * 10**6), number_of("1e1000000")
    assert nines.equals(nines)
    assert not nines.equals(power)
    assert nines.is_near(power)
    assert not power.is_near(number_of(1))


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "1",
            "1 ",
            "1,",
            "111,",
            "1/",
            "1 1/",
            "-",
            "^",
            "**",
            "1.",
            ".",
            "1e",
            "x1",
            "$",
            r"\frac{1}{",
            "{",
            "1x10^",
        ),
        *("½", " ", "\\", "9^{", "^ 1 2**", "1_", "111_", "9" * 30 + "/", "=- "),
    ],
)
@pytest.mark.timeout(60)
def test_long_texts_take_time_in_proportion(piece: str):
    for text in (piece * (2**19 // len(piece)), "1" + piece * (2**19 // len(piece)) + "1"):
        last_number(text)
