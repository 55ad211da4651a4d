r"""What an action states as its answer, and whether that is right.

The answer is what stands after the last `\boxed`, `####`, `answer is` or `answer:`; without these, the last number.
Where the label is a number, an answer must be one, too: an expression left to work out (an echo of `12 + 7`, say) and a
list of candidates (`18, 19, 20`) are no answers.

Answers are compared by math-verify, in a process of its own. Where its result is known beforehand (two numbers that are
equal, or both exact, or far apart) it isn't asked.
"""

from __future__ import annotations

import re
from fractions import Fraction

from . import judge

MAX_ANSWER_CHARS = 200
MAX_NUMBER_CHARS = 30
MAX_NUMBERS = 20
"""A text without a marker that holds more numbers than this states none of them."""

_UNSIGNED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER = re.compile(
    rf"(?<![\w.,)/])[-−+]?(?:\\[dt]?frac\s*\{{\s*-?[0-9]+\s*\}}\s*\{{\s*[0-9]+\s*\}}"
    rf"|(?:{_UNSIGNED})(?:\s?/\s?[0-9]+)?)(?![\w]|[.,][0-9]|\s?/)(?:\s?\\?%)?"
)
_FRACTION = re.compile(r"([-+]?)(?:\\[dt]?frac\s*\{\s*(-?[0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|([0-9]+)\s?/\s?([0-9]+))")
_MARKER = re.compile(
    r"\\boxed\s*\{|####(?=\s*[-+−$\\.0-9])|(?:answer|solution)(?:\s+is|\s*[:=])[\s:=]*|<answer>",
    re.IGNORECASE,
)
_SIGNS = r"[\s,;*/^+\-−×·()\[\]{}|$\\]*+"
JOINT = re.compile(rf"{_SIGNS}(?:(?:or|and|to|times|plus|minus)\b)?+{_SIGNS}")
"""What stands between numbers that belong together: of a list, or of an expression left to work out."""
_FORMULA = re.compile(r"\$+([^$]+)\$+|\\\((.+?)\\\)")
_WORDS = re.compile(r"[A-Za-z]{2,}(?: [A-Za-z]+)*")
_ROUNDING = Fraction(2, 10**6)


def as_number(text: str) -> str | None:
    """A text that is one number, in plain form: an integer, decimal, fraction or percentage; else None.

    >>> as_number("1,234"), as_number("-1/2"), as_number("12 + 7")
    ('1234', '-1/2', None)
    """
    return _plain(text) if _NUMBER.fullmatch(text) else None


def unframed(text: str) -> str:
    """A text without the spaces, dollar signs, asterisks, brackets of formulas and full stops around it."""
    while (inner := text.strip(" \t\r\n$*").rstrip(".;")) != text or inner.startswith((r"\(", r"\[")):
        text = inner.removeprefix(r"\(").removesuffix(r"\)").removeprefix(r"\[").removesuffix(r"\]")
    return text


def stated_number(text: str, *, max_numbers: int = MAX_NUMBERS) -> str | None:
    r"""The number that a text states as its answer, or None.

    >>> stated_number("12 + 7 is 19."), stated_number(r"\boxed{\frac{1}{2}}"), stated_number("18, 19 or 20")
    ('19', '\\frac{1}{2}', None)

    Args:
        text: what was written.
        max_numbers: without a marker, a text with more numbers than this states none of them.
    """
    answer = marked(text)
    if answer is not None:
        return _only_number(unframed(answer.rsplit("=", 1)[-1]))
    numbers = list(_NUMBER.finditer(text))
    if not 0 < len(numbers) <= max_numbers:
        return None
    if len(numbers) > 1 and JOINT.fullmatch(text, numbers[-2].end(), numbers[-1].start()):
        return None
    return _plain(numbers[-1].group())


def stated_expression(text: str) -> str | None:
    """The expression that a text states as its answer, or None: after a marker, else the last formula or all of it."""
    answer = marked(text)
    if answer is None:
        end = text[-4 * MAX_ANSWER_CHARS :]
        formulas = _FORMULA.findall(end)
        answer = "".join(formulas[-1]) if formulas else end
    answer = unframed(answer)
    return answer if 0 < len(answer) <= MAX_ANSWER_CHARS else None


async def is_right(answer: str, label: str) -> bool:
    """Whether an answer equals the label, as math-verify has it."""
    if answer == label:
        return True
    known = _compare_numbers(answer, label)
    if known is not None:
        return known
    if _WORDS.fullmatch(label):  # math-verify would take a word for a product of its letters
        return answer.casefold() == label.casefold()
    return await judge.equal(label, answer)


def value(number: str) -> Fraction | None:
    """The exact value of a number as `stated_number` gives it, or None for a percentage."""
    if match := _FRACTION.fullmatch(number):
        sign, top, bottom = match[1], match[2] or match[4], match[3] or match[5]
        return Fraction(int(top), int(bottom)) * (-1 if sign == "-" else 1) if int(bottom) else None
    try:
        return Fraction(number)
    except ValueError:
        return None


def mentions(text: str, answer: str) -> bool:
    """Whether a text holds an answer, not just as a part of a longer number; a minus sign is disregarded."""
    return re.search(rf"(?<![0-9]){re.escape(answer.lstrip('-'))}(?![0-9])", text) is not None


def _compare_numbers(answer: str, label: str) -> bool | None:
    """What math-verify says of two numbers, or None where it has to be asked.

    It compares exact numbers exactly, and decimals after rounding both to six digits.
    """
    left, right = value(answer), value(label)
    if left is None or right is None:
        return None
    if left == right:
        return True
    is_exact = "." not in answer and "." not in label
    return False if is_exact or abs(left - right) > _ROUNDING else None


def marked(text: str) -> str | None:
    r"""What stands after the last marker of a text: in the braces of `\boxed`, else to the end of the line or sentence.

    None where there is no marker.
    """
    markers = list(_MARKER.finditer(text))
    if not markers:
        return None
    marker = markers[-1]
    rest = text[marker.end() : marker.end() + 4 * MAX_ANSWER_CHARS]
    if marker.group().startswith("\\boxed"):
        return _braced(rest)
    line = re.split("\n|</answer>", rest.lstrip(), maxsplit=1)[0]
    return unframed(re.split(r"\.\s", line, maxsplit=1)[0])


def _braced(text: str) -> str:
    """What stands before the brace that closes the one before the text."""
    depth = 1
    for index, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:index]
    return ""


def _only_number(text: str) -> str | None:
    """The number at the start of a text, or the only one in it, unless others are joined to it."""
    numbers = list(_NUMBER.finditer(text))
    if not numbers or (len(numbers) > 1 and numbers[0].start() > 0):
        return None
    if len(numbers) > 1 and JOINT.fullmatch(text, numbers[0].end(), numbers[1].start()):
        return None
    return _plain(numbers[0].group())


def _plain(number: str) -> str | None:
    """A number in plain form; None for one that is too long, or a fraction that is left to work out."""
    number = number.replace("−", "-").replace(",", "").removeprefix("+")
    if len(number) > MAX_NUMBER_CHARS:
        return None
    if _FRACTION.fullmatch(number):
        exact = value(number)
        return None if exact is None or exact.denominator == 1 else number
    return number
