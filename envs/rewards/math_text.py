r"""How mathematics is written: one way to write it instead of many, and numbers with their units.

\dfrac{1}{2}  \left(  \,  \text{cm}      \frac{1}{2}  (  space  cm
x²  √2  ½  π  ≤  ∪  30°                  x^{2}  \sqrt{2}  \frac{1}{2}  \pi  \le  \cup  30 degrees
5 cm  $5  50%  x = 5                     a number, with unit or name
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from .numbers import Number, mentions

_SUPERSCRIPT = re.compile("[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_SIGNS = str.maketrans(
    dict.fromkeys("−–‐‑", "-")
    | {"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "±": r"\pm ", "π": r"\pi ", "∞": r"\infty "}
    | {"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "∈": r"\in "}
    | {"°": r"^\circ ", "“": '"', "”": '"'}
)
_VULGAR_FRACTIONS = {
    ord(sign): " " + unicodedata.normalize("NFKC", sign).replace("\u2044", "/") for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
}
_WIDE = re.compile("[\uff01-\uff5e\U0001d400-\U0001d7ff]+")
_THOUSANDS = re.compile("(?<=\\d)[\u00a0\u2009\u202f](?=\\d{3}(?!\\d))")
_ROOT = re.compile(r"√\s?(?:\{([^{}]*)\}|\(([^()]*)\)|(\w+))|(?<![\\A-Za-z])sqrt\s?\(([^()]*)\)")
_REPEATING = re.compile(r"(?<![\w.,])(\d{1,9}+)?\.(\d{0,9}+)\\overline\s?\{(\d{1,9}+)\}")
_REPLACED = [
    (re.compile(r"\\(?:left|right|big|Big|bigg|Bigg)(?![A-Za-z])|\\!|\\displaystyle(?![A-Za-z])"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\sqrt(?:\s?(\d)(?!\d)|\s([A-Za-z])(?![A-Za-z]))"), r"\\sqrt{\1\2}"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*-(\d+)\s*\}"), r"-\\frac{\1}{\2}"),
    (re.compile(r"(?<![\d.,^_{])(\d++)\s?\\frac\s?\{(\d++)\}\s?\{(\d++)\}"), r"\1 \2/\3"),
    (re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|operatorname|mbox)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\^\s?(?:\{\s?\\circ\s?\}|\\circ)|\\degree(?![A-Za-z])"), " degrees "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<=\d)\\,(?=\d{3}(?!\d))"), ","),
    (re.compile(r"(?<!\\)\\[,;: ]|~|\\q?quad(?![A-Za-z])"), " "),
    (re.compile(r"\\([%$])"), r"\1"),
    (
        re.compile(
            r"(?<![^\s{($=:])(?<!\\times )(?<!\\times  )(?<!\\cdot )(?<!\\cdot  )(?<!x )10\s?\^\s?"
            r"(?:\{\s?(-?\d{1,2})\s?\}|(-?\d{1,2})(?!\d))"
        ),
        r"1 \\times 10^{\1\2}",
    ),
    (re.compile(r"\\geq(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"\\leq(?![A-Za-z])"), r"\\le"),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
]


def tidied(text: str) -> str:
    r"""A text in which what can be written in several ways is written in one; see this module's table.

    >>> tidied(r"\dfrac{1}{2}\,\text{cm}"), tidied("x² ≤ √2")
    ('\\frac{1}{2} cm ', 'x^{2} \\le \\sqrt{2}')
    """
    text = _THOUSANDS.sub(",", text)
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{match[0].translate(_SUPERSCRIPTS)}}}", text)
    text = text.translate(_VULGAR_FRACTIONS).translate(_SIGNS)
    text = _WIDE.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(sign)) if sign.isdecimal() else sign for sign in text)
    text = _ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2] or match[3] or match[4] or ''}}}", text)
    text = _REPEATING.sub(_fraction_of, text)
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    return re.sub(" {2,}", " ", text)


def _fraction_of(repeating: re.Match[str]) -> str:
    r"""A decimal that repeats, such as `0.1\overline{6}`, as a fraction."""
    whole, fixed, period = repeating.groups()
    value = int((whole or "0") + fixed) + Fraction(int(period), 10 ** len(period) - 1)
    return str(value / 10 ** len(fixed))


_UNIT_NAMES = """
mm millimeter millimetre|cm centimeter centimetre|m meter metre|km kilometer kilometre|in inch inches|ft foot feet
yd yard|mi mile|mg milligram|g gram|kg kilogram|lb lbs pound|oz ounce|s sec second|ms millisecond|min minute
h hr hour|day|week|month|year yr|l liter litre|ml milliliter millilitre|gallon gal|degrees degree deg
dollar usd|euro eur|cent|% percent|j joule|w watt|n newton|v volt|hz hertz|k kelvin|unit
mph|kph|rad radian|pa pascal|a ampere amp
"""
_UNITS: dict[str, str] = {}
for _names in _UNIT_NAMES.replace("\n", "|").split("|"):
    for _name in _names.split():
        _UNITS |= (
            {_name: _names.split()[0], f"{_name}s": _names.split()[0]} if len(_name) > 2 else {_name: _names.split()[0]}
        )
_POWERS = {"square": "^2", "squared": "^2", "sq": "^2", "cubic": "^3", "cubed": "^3"}
_UNIT = re.compile(
    r"\s{0,3}(?P<square>square|sq|cubic)\.?\s(?P<of>[A-Za-z]+)"
    r"|\s{0,3}(?P<first>[%€£¢]|[A-Za-z]+)(?:\s?\^\s?\{?\s?(?P<power>-?\d)\s?\}?|\s(?P<word>squared|cubed)\b)?"
    r"(?:\s?(?:/|per\b)\s?(?P<below>[A-Za-z]+)(?:\s?\^\s?\{?\s?(?P<below_power>\d)\s?\}?)?)?"
)
_VARIABLE = re.compile(r"(?<![A-Za-z\d\\])([A-Za-z])(?:_\{?\w\}?)?\s?=\s?$")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number as it is stated, with its unit and the letter that it is the value of, where they are known.

    Attributes:
        number: the number, without the unit.
        is_decimal: whether it has decimals, so that it may be rounded.
        unit: the unit in its plain form, or None.
        letter: of `x = 5`, x; or None.
    """

    number: Number
    is_decimal: bool = False
    unit: str | None = None
    letter: str | None = None


def unit_after(text: str, position: int) -> tuple[str | None, int]:
    """The unit that stands right after a position, or None; and where it ends.

    >>> unit_after("5 square meters", 1), unit_after("5 apples", 1)
    (('m^2', 15), (None, 1))
    """
    match = _UNIT.match(text, position)
    if match is None:
        return None, position
    if match["square"]:
        base = _UNITS.get(match["of"].lower())
        return (base + _POWERS[match["square"]], match.end()) if base else (None, position)
    base = _UNITS.get(match["first"]) or _UNITS.get(match["first"].lower())
    if base is None or (match["first"] == "in" and re.match(r"\s+[A-Za-z]", text[match.end() : match.end() + 8])):
        return None, position  # `5 in total` is no length
    power = f"^{match['power']}" if match["power"] else _POWERS.get(match["word"] or "", "")
    if match["below"] is None:
        return base + power, match.end()
    below = _UNITS.get(match["below"].lower())
    if below is None:
        return base + power, match.start("below") - 1
    return f"{base}{power}/{below}" + (f"^{match['below_power']}" if match["below_power"] else ""), match.end()


def quantity_at(text: str, start: int, end: int, number: Number) -> tuple[Quantity, int]:
    """A number of a text with what belongs to it, and where that ends."""
    stated = text[start:end]
    unit, after = unit_after(text, end)
    return Quantity(number, "." in stated, unit, letter_before(text, start)), after


def letter_before(text: str, position: int) -> str | None:
    """The letter that a number at a position is the value of: of `x = 5`, x; or None."""
    match = _VARIABLE.search(text[max(position - 12, 0) : position])
    return match[1] if match else None


def quantity(text: str) -> Quantity | None:
    """A tidied text that is one number, perhaps with a unit, a word after it, or `x =` before it; else None.

    >>> quantity("5 cm").unit, quantity("x = -3").letter, quantity("x + 1"), quantity("12 apples").number.plain
    ('cm', 'x', None, 12)
    """
    first = next(iter(mentions(text)), None)
    number = None if first is None else first.number
    if first is None or number is None:
        whole = Number.of(text)
        return None if whole is None else Quantity(whole, "." in text)
    stated, after = quantity_at(text, first.start, first.end, number)
    before = text[: first.start].strip(" $€£*#([{")
    behind = text[after:].strip(" .$*)]}")
    is_named = re.fullmatch(r"[A-Za-z](?:_\{?\w\}?)?\s?=", before) is not None
    is_plain = not behind or re.fullmatch(r"[A-Za-z]{3,}(?: [A-Za-z]+){0,3}", behind) is not None
    if (before and not is_named) or not is_plain or text[after : after + 1].isalpha():
        return None
    return stated


def is_same_quantity(stated: Quantity, truth: Quantity) -> bool:
    """Whether two numbers are equal, their units agree where both are known, and their letters where both have one."""
    if stated.letter and truth.letter and stated.letter != truth.letter:
        return False
    percents = (stated.unit == "%", truth.unit == "%")
    if percents == (True, False) and truth.unit is None:
        return _is_same(stated, truth, Fraction(1, 100)) or (_is_beyond_one(truth) and _is_same(stated, truth))
    if percents == (False, True) and stated.unit is None:
        return _is_same(stated, truth) or _is_same(stated, truth, Fraction(100))
    return (stated.unit is None or truth.unit is None or stated.unit == truth.unit) and _is_same(stated, truth)


def _is_beyond_one(quantity: Quantity) -> bool:
    return abs(quantity.number.as_float()) > 1


def _is_same(stated: Quantity, truth: Quantity, factor: Fraction = Fraction(1)) -> bool:
    """Whether the numbers are equal, or one is a decimal that the other rounds to at six digits or more."""
    left = stated.number if factor == 1 else stated.number.times(factor)
    right = truth.number
    if left.equals(right):
        return True
    if stated.is_decimal and right.bottom != 1:
        return left.is_rounded(right)
    return truth.is_decimal and left.bottom != 1 and right.is_rounded(left)
