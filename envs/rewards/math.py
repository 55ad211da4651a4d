r"""Reward for the right answer to a question of mathematics: `MathReward`.

The answer is what stands after the last `\boxed`, `####`, `answer is`, `answer:` or `<answer>`; without these, the last
number, or the last formula. What the label is decides how it is compared:

    a number, maybe with a unit   exactly; a decimal of six digits or more also with what it is rounded from. Units have
                                  to agree where both are stated and known. An expression that is left to work out
                                  (`12 + 7`) and a list of candidates (`18, 19, 20`) are no numbers.
    a capital letter, `(B)`       the one choice that is named
    words                         as text, whatever their case
    anything else                 by math-verify: expressions, equations, intervals, sets, tuples, matrices
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Any

from ..errors import RewardError
from ..math.grading import JOINT, marked, unframed
from ..math.grading import mentions as is_mentioned
from ..math.judge import Judges, Outcome, shared
from .answers import check_answer
from .base import Clip, RewardFunction, plain_outside_loop
from .math_text import Quantity, is_same_quantity, letter_before, quantity, quantity_at, tidied
from .numbers import Mention, mentions
from .types import RewardOutput, Trajectory, truth_of

MAX_RESPONSE_CHARS = 65_536
"""Of a longer response, only the end is read."""
MAX_EXPRESSION_CHARS = 400
"""A longer expression is no answer."""
END_CHARS = 2_000
"""How much of the end of a response may hold the formula that is its answer."""

_CHOICE = re.compile(r"\(?([A-Z])\)?[.:]?")
_CHOSEN = re.compile(r"\s*(?:\(([A-Za-z])\)|([A-Za-z])(?:[).:]|\s*$))")
_WORDS = re.compile(r"[^\W\d_]{2,}(?:[ '-][^\W\d_]+)*")
_PROSE = re.compile(
    r"(?<![\\A-Za-z])(?!(?:sin|cos|tan|cot|sec|csc|log|exp|sqrt|arcsin|arccos|arctan|infty|frac|max|min|and|det)\b)"
    r"[A-Za-z]{3,}"
)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[a-z]*\}")
_FORMULAS = re.compile(r"\$+([^$]+)\$+|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_BETWEEN_FORMULAS = re.compile(r"[\s,;]*(?:or|and)?[\s,]*")
_FUNCTION = (
    r"\\(?:sqrt|frac|pi|log|ln|lg|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|exp|cdot|times|div|pm|mp|binom|infty|sum"
    r"|int|lim|max|min|phi|theta|alpha|beta)(?![A-Za-z])"
)
_ENTANGLED_BEFORE = re.compile(
    rf"(?:{_FUNCTION}(?:\s?[_^]\s?\{{?\w+\}}?)?\s?|[_^]\s?|(?:\b[A-Za-z]|[)}}\]])\s?[-+*/^]\s?|\bnot\s|n't\s)[{{(\[|]*\s?$|(?:[)}}\]]|\b[b-zB-HJ-Z])\s?$"
)
_ENTANGLED_AFTER = re.compile(
    rf"(?!(?:st|nd|rd|th)\b)[A-Za-z({{_]|\s?(?:[+*/^]\s?[\w(\\{{]|-\s?(?:[A-Za-z]\b|[\d(\\]))|\s?{_FUNCTION}|\s[b-zB-HJ-Z]\b"
)
_HEAVY = re.compile(
    r"\d\s?\^\s?[{(]?\s?\d++\s?\^|\d\s?\^\s?[{(]?\s?-?\d{5}|[)}]\s?\^\s?[{(]?\s?-?\d{4}|\d{4}\s?!|!\s?!|\)\s?!"
)
"""Towers of powers, great powers and factorials: no answers, and more than sympy can bear."""
_LIST = re.compile(r"\s*(?:,|;|or|and|, or|, and)\s*[A-Za-z](?:_\{?\w\}?)?\s?=\s*")


class MathReward(RewardFunction):
    r"""1 for the right answer, else 0. What math-verify can't decide within a second counts as wrong.

    >>> MathReward()(Trajectory(response=r"So it is \boxed{\frac{1}{2}}.", label="0.5")).metadata
    {'is_right': True, 'has_answer': True, 'overran': False}

    The label is that of the trajectory, else its column `answer`. The metadata says whether the answer `is_right`,
    whether the response `has_answer` at all, and whether the comparison `overran` its limit.

    Args:
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.
        num_processes: how many processes run math-verify, of this reward alone; None shares those of Math-v0.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
        *,
        num_processes: int | None = None,
    ) -> None:
        super().__init__(name, scale, clip)
        self._judges = shared if num_processes is None else Judges(num_processes)

    async def start(self) -> None:
        """Start the first process, so that the first answer doesn't have to wait for it.

        Raises:
            EnvError: it doesn't start.
        """
        await self._judges.start()

    async def aclose(self) -> None:
        """End the processes that are this reward's own; they start again when needed."""
        if self._judges is not shared:
            self._judges.kill()

    @plain_outside_loop
    async def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        """Whether the response states the right answer.

        Raises:
            InvalidRewardError: there is no label.
            RewardError: the process that compares was lost.
        """
        grade = _grade(_own_words(trajectory), _label(truth_of(trajectory)), trajectory.prompt)
        if isinstance(grade, _Pair):
            outcome = await self._judges.compare(grade.label, grade.answer)
            if outcome is Outcome.LOST:
                raise RewardError(
                    "the process that runs math-verify was killed, or gave no answer; the next one starts"
                )
            grade = _Grade(outcome is Outcome.EQUAL, overran=outcome is Outcome.OVERRAN)
        return RewardOutput(
            reward=float(grade.is_right),
            metadata={"is_right": grade.is_right, "has_answer": grade.has_answer, "overran": grade.overran},
        )


@dataclass(frozen=True, slots=True)
class _Grade:
    is_right: bool
    has_answer: bool = True
    overran: bool = False


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two expressions that math-verify has to compare."""

    label: str
    answer: str


_NO_ANSWER = _Grade(is_right=False, has_answer=False)


def _own_words(trajectory: Trajectory) -> str:
    """What a response says apart from a repetition of the prompt."""
    text = trajectory.response[-MAX_RESPONSE_CHARS:]
    return text.replace(trajectory.prompt, " ") if " " in trajectory.prompt else text


def _marked(text: str) -> str | None:
    r"""What stands after the last marker, without the brace that closes `\text{Answer: }`."""
    answer = marked(text)
    return None if answer is None else answer.lstrip(" }")


def _label(label: Any) -> str:
    """A label in plain form; of a whole solution, its answer."""
    text = str(label)
    return unframed(tidied(_marked(text) or text)).strip()


def _grade(text: str, label: str, prompt: str) -> _Grade | _Pair:
    if choice := _CHOICE.fullmatch(label):
        return _of_choice(text, choice[1])
    if truth := quantity(label):
        return _of_quantity(text, truth)
    if _has_words(label):
        is_right = check_answer(text, label) == 1.0
        return _Grade(is_right, has_answer=bool(text.strip()))
    return _of_expression(text, label, prompt)


def _of_choice(text: str, choice: str) -> _Grade:
    stated = _marked(text)
    if stated is None:
        lines = text.strip().splitlines()
        stated = lines[-1] if lines else ""
    stated = unframed(tidied(stated[:END_CHARS])).strip()
    named = {match[1] for match in re.finditer(r"\(([A-Z])\)", stated)}
    chosen = _CHOSEN.match(stated)
    if len(named) > 1 or (chosen is None and not named):
        return _NO_ANSWER
    letter = (chosen[1] or chosen[2]).upper() if chosen else named.pop()
    return _Grade(letter == choice)


def _of_quantity(text: str, truth: Quantity) -> _Grade:
    stated = _stated_quantity(text)
    return _NO_ANSWER if stated is None else _Grade(is_same_quantity(stated, truth))


def _stated_quantity(text: str) -> Quantity | None:
    """The number that a text states as its answer, or None."""
    segment = _marked(text)
    text = tidied(text if segment is None else segment)
    if segment is not None:
        equals = text.rfind("=")
        found = [mention for mention in mentions(text) if mention.start > equals]
        if not found or (
            len(found) > 1 and (text[equals + 1 : found[0].start].strip(" $*([{\\") or _belong(text, *found[:2]))
        ):
            return None
        chosen = found[0]
    else:
        found = list(deque(mentions(text), maxlen=2))
        if not found or (len(found) > 1 and _belong(text, *found)):
            return None
        chosen = found[-1]
    number = chosen.number
    if number is None or _ENTANGLED_BEFORE.search(text[max(chosen.start - 24, 0) : chosen.start]):
        return None
    stated, end = quantity_at(text, chosen.start, chosen.end, number)
    return None if _ENTANGLED_AFTER.match(text, end) else stated


def _belong(text: str, left: Mention, right: Mention) -> bool:
    """Whether two numbers are parts of one expression, or of a list."""
    if JOINT.fullmatch(text, left.end, right.start):
        return True
    if not _LIST.fullmatch(text, left.end, right.start):
        return False
    letters = [letter_before(text, mention.start) for mention in (left, right)]
    return letters[0] == letters[1]


def _of_expression(text: str, label: str, prompt: str) -> _Grade | _Pair:
    answer = _stated_expression(text)
    if answer is None:
        return _NO_ANSWER
    if _compact(answer) == _compact(label):
        return _Grade(is_right=True)
    if is_mentioned(prompt, answer):  # an echo that leaves the work undone, as `2x + 3x` does for `5x`
        return _NO_ANSWER
    if (
        "$" in answer
        or _has_words(answer)
        or _HEAVY.search(answer)
        or {_shape(answer), _shape(label)} == {"set", "row"}
    ):
        return _Grade(is_right=False)
    return _Pair(_listed(label), _listed(answer))


def _stated_expression(text: str) -> str | None:
    """The expression that a text states as its answer, or None."""
    answer = _marked(text)
    if answer is None:
        answer = _last_formulas(text[-END_CHARS:]) or _end_of_prose(text[-END_CHARS:])
    answer = unframed(tidied(answer)).strip()
    return answer if 0 < len(answer) <= MAX_EXPRESSION_CHARS else None


def _last_formulas(text: str) -> str:
    """The last formula, with those before it that are listed with it."""
    run: list[str] = []
    start = 0
    for match in _FORMULAS.finditer(text):
        if run and not _BETWEEN_FORMULAS.fullmatch(text, start, match.start()):
            run.clear()
        run.append(next(part for part in match.groups() if part))
        start = match.end()
    return ", ".join(run)


def _end_of_prose(text: str) -> str:
    """The last line, and of a sentence what stands after `is`."""
    lines = text.strip().splitlines()
    line = lines[-1] if lines else ""
    return re.split(r"\b(?:is|are|equals|get|gives)\b:?", line)[-1] if _has_words(tidied(line)) else line


def _has_words(text: str) -> bool:
    """Whether a text holds words, which math-verify would take for products of their letters."""
    return _WORDS.fullmatch(text) is not None or _PROSE.search(_ENVIRONMENT.sub("", text)) is not None


def _listed(text: str) -> str:
    """An expression with commas between its alternatives."""
    return re.sub(r"\s*,?\s+(?:or|and)\s+", ", ", text)


def _compact(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _shape(text: str) -> str | None:
    """Whether an expression is a set in braces, or a tuple or interval; math-verify takes both for the same."""
    if re.fullmatch(r"\\?\{[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\}", text):
        return "set"
    return "row" if re.fullmatch(r"[(\[][^()\[\],]*+,[^()\[\]]*+[)\]]", text) else None
