r"""Finding numbers in text, exactly and in time proportional to its length.

    4  -4  −4  +4  4.5  .5  1,234.5  1 234 (no-break space)  1{,}234     signs, decimals, separators of thousands
    6e23  6 × 10^23  6 \times 10^{23}  6×10²³                            powers of ten after a number belong to it
    1/2  1 1/2  \frac{1}{2}  ½                                           fractions, unless they come out as an integer
    $4  -$4  4%  4 cm  4.                                                what stands around a number is disregarded

No numbers are exponents (`2^3` holds 2), names that end in digits (`x1`), and what has several points (`1.2.3`). A
minus right after a number, a letter or a closing bracket subtracts (`2-1` holds 2 and 1). A comma is never a decimal
point. Digits of any script count.
"""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from fractions import Fraction
from typing import NamedTuple

MAX_INT_DIGITS = 4_000
"""Integers with more digits become floats where plain numbers are asked for; Python won't print them."""
MAX_FRACTION_DIGITS = 30
"""`a/b` is two numbers where either is longer."""
MAX_EXPONENT = 10**9
"""Powers of ten beyond this count as this."""

TAIL_CHARS = 2**16
"""How much of the end of a text is searched before all of it is."""
MARGIN_CHARS = 256
"""A number this near to where the end was cut off may be a part of another."""

_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_MINUSES = "-−–‐‑－﹣"
_MINUS = re.escape(_MINUSES)
_VULGAR = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
_DIGIT = re.compile(rf"[\d{_VULGAR}]")
_SEPARATOR = r"(?:,|\{,\}|\\,|[٬\u00a0\u202f\u2009_])"
_DIGITS = rf"(?:\d{{1,3}}(?:{_SEPARATOR}\d{{3}}(?!\d))++|\d++)"
_FRACTION = rf"\d{{1,{MAX_FRACTION_DIGITS}}}+"
_SIGNED = rf"[+{_MINUS}]?\d++"
_PATTERN = re.compile(
    rf"""
    (?= [\d.．٫+{_MINUS}^*\\$€£¥₹{_VULGAR}] ) (?:
    (?:\^|(?<=[\w)\]}}])\*\*(?!\d++\*\*)) \s? [{{(]? \s? [+{_MINUS}]? [\d.]++    # an exponent
    | \d++ (?:\.\d++){{2,}}+                                                     # a version, a date, an address
    | (?P<sign> (?<![\w)\]}}%+{_MINUS}]) [+{_MINUS}] | (?<=[=(]) [{_MINUS}]\s | (?<=[=(]\s) [{_MINUS}]\s )?
      \\?[$€£¥₹]? (?<![A-Za-z_0-9])
      (?:
        \\[dt]?frac \s? \{{ \s? (?P<top>[{_MINUS}]?{_FRACTION}) \s? \}} \s? \{{ \s? (?P<bottom>{_FRACTION}) \s? \}}
        | (?<![/⁄])(?<![/⁄]\s) (?:(?P<whole>{_FRACTION})[ ])? (?P<over>{_FRACTION}) \s? [/⁄] \s? (?P<under>{_FRACTION})
          (?![\w/⁄]|[.,]\d|\s?[/⁄]\s?\d)
        | (?P<units>\d{{,{MAX_FRACTION_DIGITS}}}+) (?P<vulgar>[{_VULGAR}])
        | (?P<plain> {_DIGITS}(?:[.．٫]\d++)? | [.．٫]\d++ )
          (?: [eE](?P<e>{_SIGNED})(?!\w)
            | \s?(?:[xX×*·⋅]|\\times|\\cdot)\s?10\s?
              (?: (?:\^|\*\*)\s?(?P<open>[{{(])?\s?(?P<power>{_SIGNED})(?(open)\s?[}})])
                | (?P<raised>[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]++) )
          )?
      )
    )
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Number:
    """An exact number of any size: a quotient of decimals.

    >>> Number.of("0.3").is_near(Number.of("1/3"))
    True

    Attributes:
        top: the numerator; a finite decimal.
        bottom: the denominator; a positive integer.
    """

    top: Decimal
    bottom: Decimal = Decimal(1)

    @classmethod
    def of(cls, given: str | float | Fraction) -> Number | None:
        """A number, or a text that holds just one and nothing else but frames and signs around it; else None."""
        if isinstance(given, Fraction):
            return cls(Decimal(given.numerator), Decimal(given.denominator))
        if isinstance(given, int):
            return cls(Decimal(int(given)))
        if isinstance(given, float):
            return cls(Decimal(repr(given))) if math.isfinite(given) else None
        text = given.strip()
        match = _PATTERN.search(text)
        if match is None or not match.end() or not _is_frame(text[: match.start()] + text[match.end() :]):
            return None
        quotient = _quotient(match)
        found = list(_read(match)) if quotient is None else [cls.of(quotient)]
        return found[0] if len(found) == 1 else None

    @property
    def is_integer(self) -> bool:
        """Whether it is a whole number."""
        return self.bottom == 1 and self.top == self.top.to_integral_value()

    @property
    def plain(self) -> int | float:
        """It as an int where it is one, else as the nearest float; the greatest float stands for all beyond."""
        if self.is_integer and self.top.adjusted() < MAX_INT_DIGITS:
            return int(self.top)
        return self.as_float()

    def equals(self, other: Number) -> bool:
        """Whether both have the same value."""
        left, right = self._crossed(other)
        return left == right

    def is_near(self, other: Number, share: Decimal = Decimal("0.1")) -> bool:
        """Whether it differs from another by at most a share of the other's magnitude; nothing but 0 is near 0."""
        left, right = self._crossed(other)
        if not left or not right or abs(left.adjusted() - right.adjusted()) > 1:
            return left == right
        return _EXACT.abs(_EXACT.subtract(left, right)) <= _EXACT.multiply(_EXACT.abs(right), share)

    def is_rounded(self, exact: Number, min_digits: int = 6) -> bool:
        """Whether it is what another number rounds to at its own number of decimals, of which it has enough.

        >>> Number.of("0.333333").is_rounded(Number.of("1/3")), Number.of("0.33").is_rounded(Number.of("1/3"))
        (True, False)
        """
        exponent = self.top.as_tuple().exponent
        if self.bottom != 1 or not isinstance(exponent, int) or exponent > -min_digits:
            return False
        left, right = self._crossed(exact)
        half = _EXACT.multiply(exact.bottom, Decimal(5).scaleb(exponent - 1, _EXACT))
        return abs(left.adjusted() - right.adjusted()) <= 1 and _EXACT.abs(_EXACT.subtract(left, right)) <= half

    def times(self, factor: Fraction) -> Number:
        """It multiplied by a fraction."""
        top, bottom = Decimal(factor.numerator), Decimal(factor.denominator)
        return Number(_EXACT.multiply(self.top, top), _EXACT.multiply(self.bottom, bottom))

    def _crossed(self, other: Number) -> tuple[Decimal, Decimal]:
        return _EXACT.multiply(self.top, other.bottom), _EXACT.multiply(other.top, self.bottom)

    def as_float(self) -> float:
        """The nearest float, or the greatest one where it is beyond all."""
        value = float(self.top) if self.bottom == 1 else float(Fraction(int(self.top), int(self.bottom)))
        return min(max(value, -sys.float_info.max), sys.float_info.max)


def last_numbers(text: str, count: int | None = None) -> list[Number]:
    """The last `count` numbers of a text, or all of them, in their order.

    >>> [number.plain for number in last_numbers("2 + 2 = 4. The answer is 4.", 2)]
    [4, 4]
    """
    if count is None:
        return [number for match in _matches(text) for number in _read(match)]
    size = TAIL_CHARS
    while size < len(text) and _DIGIT.search(text):
        tail = text[-size:]
        found = _last_of((match for match in _matches(tail) if match.start() > MARGIN_CHARS), count)
        if len(found) == count:
            return found
        size *= 8
    return _last_of(_matches(text), count) if _DIGIT.search(text) else []


class Mention(NamedTuple):
    """A number where it stands in a text."""

    match: re.Match[str]

    @property
    def start(self) -> int:
        """Where it begins, with its sign and currency."""
        return self.match.start()

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.match.end()

    @property
    def number(self) -> Number | None:
        """The number; None for a division that is left to work out."""
        found = list(_read(self.match))
        return found[0] if len(found) == 1 else None


def mentions(text: str) -> Iterator[Mention]:
    """Every number of a text, with its place.

    >>> [(mention.start, mention.end) for mention in mentions("2 and -3.5")]
    [(0, 1), (6, 10)]
    """
    return map(Mention, _matches(text))


def last_number(text: str) -> float | None:
    """The last number of a text, or None.

    >>> last_number("2-1 is 1"), last_number("It is -1,234.5."), last_number("none")
    (1.0, -1234.5, None)
    """
    found = last_numbers(text, 1)
    return found[0].as_float() if found else None


def _matches(text: str) -> Iterator[re.Match[str]]:
    return (match for match in _PATTERN.finditer(text) if match.lastindex is not None)


def _last_of(matches: Iterator[re.Match[str]], count: int) -> list[Number]:
    numbers = [number for match in deque(matches, maxlen=count) for number in _read(match)]
    return numbers[max(len(numbers) - count, 0) :]


def _read(match: re.Match[str]) -> Iterator[Number]:
    """The numbers that a match stands for: none, one, or several where a fraction is a division left to work out."""
    exact = _quotient(match)
    is_negative = _is_negative(match)
    if match["plain"] is not None:
        value = _decimal(match)
        yield Number(value.copy_negate() if is_negative else value)
    elif exact is not None and exact.denominator > 1:
        yield Number(Decimal(exact.numerator), Decimal(exact.denominator))
    elif match.lastindex is not None:
        names = ("whole", "top", "over", "bottom", "under")
        first, *others = [_integer(match[name]) for name in names if match[name] is not None]
        yield Number(Decimal(-first if is_negative else first))
        yield from (Number(Decimal(number)) for number in others)


def _quotient(match: re.Match[str]) -> Fraction | None:
    """The value of a fraction or a mixed number; None for another match, and where it has none."""
    if match["vulgar"] is not None:
        exact = Fraction(unicodedata.numeric(match["vulgar"])).limit_denominator(10) + int(match["units"] or 0)
    elif match["top"] is not None or match["over"] is not None:
        top, bottom = _integer(match["top"] or match["over"]), _integer(match["bottom"] or match["under"])
        if not bottom or (match["whole"] is not None and not 0 < top < bottom):
            return None
        exact = Fraction(top, bottom) + int(match["whole"] or 0)
    else:
        return None
    return -exact if _is_negative(match) else exact


def _is_negative(match: re.Match[str]) -> bool:
    return (match["sign"] or "+")[0] in _MINUSES


def _integer(text: str) -> int:
    return -int(text[1:]) if text[0] in _MINUSES else int(text)


def _decimal(match: re.Match[str]) -> Decimal:
    plain = re.sub(_SEPARATOR, "", match["plain"])
    power = match["e"] or match["power"] or (match["raised"] or "0").translate(_SUPERSCRIPTS)
    digits = power.lstrip("+" + _MINUSES).lstrip("0")
    exponent = MAX_EXPONENT if len(digits) > len(str(MAX_EXPONENT)) else min(int(digits or 0), MAX_EXPONENT)
    if power[0] in _MINUSES:
        exponent = -exponent
    return Decimal(re.sub("[．٫]", ".", plain)).scaleb(exponent, _EXACT)


def _is_frame(text: str) -> bool:
    """Whether what stands around a number adds nothing to it."""
    return re.fullmatch(r"(?:[\s$€£¥₹*%\\.;!\"'`(){}\[\]+]|boxed|=|####)*+", text) is not None
