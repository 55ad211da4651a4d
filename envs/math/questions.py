"""Every question of Math-v0, by level.

    level  questions                                                   for example
    1      two digits plus or minus two; one-step equations of them    38 + 17 = ?        x + 17 = 55, x = ?
    2      products; two digits, three terms; one-step equations       38 * 7 = ?         7 * x = 84, x = ?
    3      parentheses; a product and a term; two-step equations       3 * (12 + 5) = ?   3 * x + 4 = 40, x = ?
    4      fractions; x on both sides; fractions as solutions          1/2 + 2/3 = ?      5 * x - 3 = 2 * x + 4, x = ?

A question never holds its own answer, so that no echo of it can be right.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

Side = tuple[int, int]
"""(a, b) for a * x + b."""


class Question(NamedTuple):
    """A question, its answer, and the two sides of the equation if it is one."""

    prompt: str
    label: str
    sides: tuple[Side, Side] | None = None


def _equation(left: Side, right: Side) -> Question:
    (a, b), (c, d) = left, right
    return Question(f"{_side(left)} = {_side(right)}, x = ?", str(Fraction(d - b, a - c)), (left, right))


def _side(side: Side) -> str:
    a, b = side
    if a == 0:
        return str(b)
    product = "x" if a == 1 else f"{a} * x"
    return product if b == 0 else f"{product} {'+' if b > 0 else '-'} {abs(b)}"


def _level_1() -> Iterator[Question]:
    for a in range(10, 100):
        for b in range(10, 100):
            yield Question(f"{a} + {b} = ?", str(a + b))
            yield _equation((1, b), (0, a + b))
            if a >= b:
                yield Question(f"{a} - {b} = ?", str(a - b))
                yield _equation((1, -b), (0, a - b))


def _level_2() -> Iterator[Question]:
    for a in range(10, 100):
        for b in range(2, 10):
            yield Question(f"{a} * {b} = ?", str(a * b))
            yield _equation((b, 0), (0, a * b))
        for b in range(12, 100, 11):
            for c in range(15, 100, 13):
                yield Question(f"{a} + {b} - {c} = ?", str(a + b - c))


def _level_3() -> Iterator[Question]:
    for a in range(2, 10):
        for b in range(2, 30):
            for c in range(2, 10):
                yield Question(f"{a} * ({b} + {c}) = ?", str(a * (b + c)))
                yield Question(f"{a} * {b} - {c} = ?", str(a * b - c))
                yield _equation((a, c), (0, a * b + c))
                yield _equation((a, -c), (0, a * b - c))


def _level_4() -> Iterator[Question]:
    for a in range(2, 10):
        for b in range(-9, 10):
            for c in range(1, a):
                for d in (-7, -4, -1, 2, 5, 8):
                    yield _equation((a, b), (c, d))
            for c in range(1, 20):
                yield _equation((a, b), (0, c))
    for q in range(2, 10):
        for s in range(2, 10):
            for p in range(1, q):
                for r in range(1, s):
                    yield Question(f"{p}/{q} + {r}/{s} = ?", str(Fraction(p, q) + Fraction(r, s)))


LEVELS: dict[int, Callable[[], Iterator[Question]]] = {1: _level_1, 2: _level_2, 3: _level_3, 4: _level_4}


@functools.cache
def questions(level: int) -> tuple[Question, ...]:
    """All questions of a level, each once, in a fixed order."""
    unique = dict.fromkeys(LEVELS[level]())
    return tuple(question for question in unique if question.label not in _numbers(question.prompt))


def _numbers(prompt: str) -> list[str]:
    return re.findall(r"-?\d+(?:/\d+)?", prompt.replace("- ", "-")) + re.findall(r"\d+", prompt)
