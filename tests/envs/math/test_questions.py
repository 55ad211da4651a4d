import re
from fractions import Fraction

import pytest
from turngym.envs.math.questions import LEVELS, questions


def fraction_of(expression: str) -> Fraction:
    exact = re.sub(r"\d+", lambda match: f"Fraction({match[0]})", expression)
    return eval(exact, {"Fraction": Fraction})


@pytest.mark.parametrize("level", LEVELS)
def test_every_label_is_right(level: int):
    for prompt, label, _ in questions(level):
        x, numbers = Fraction(label), prompt.removesuffix(", x = ?")
        if numbers != prompt:
            left, right = (
                fraction_of(side.replace("x", f"({x.numerator}/{x.denominator})")) for side in numbers.split("=")
            )
            assert left == right, prompt
        else:
            assert fraction_of(prompt.removesuffix(" = ?")) == x, prompt


@pytest.mark.parametrize("level", LEVELS)
def test_sides_belong_to_equations_and_agree_with_the_label(level: int):
    for prompt, label, sides in questions(level):
        assert (sides is not None) == ("x" in prompt)
        if sides is not None:
            (a, b), (c, d) = sides
            assert a * Fraction(label) + b == c * Fraction(label) + d


@pytest.mark.parametrize("level", LEVELS)
def test_no_question_holds_its_answer(level: int):
    for prompt, label, _ in questions(level):
        assert label not in re.findall(r"\d+/\d+|\d+", prompt), prompt
        assert label not in re.findall(r"-?\d+", prompt.replace("- ", "-")), prompt


@pytest.mark.parametrize("level", LEVELS)
def test_there_are_thousands_of_questions_each_once(level: int):
    prompts = [question.prompt for question in questions(level)]
    assert len(prompts) == len(set(prompts)) > 3000


def test_level_1_is_short_and_has_small_numbers():
    numbers = {int(n) for q in questions(1) for n in [q.label, *re.findall(r"\d+", q.prompt)]}
    assert min(numbers) >= 0
    assert max(numbers) <= 198
    assert max(len(question.prompt) for question in questions(1)) <= len("x + 99 = 198, x = ?")
