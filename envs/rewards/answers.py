"""Rewards for answers whose text is compared: the format, the last number, and both weighted together.

A number is what `numbers` reads as one, and what stands around it (currency, percent sign, unit) is disregarded. So
`50%` is 50, and `1/2` is 0.5.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..errors import InvalidRewardError
from .arguments import number
from .base import Clip, RewardFunction
from .numbers import Number, last_numbers
from .types import RewardOutput, Trajectory, truth_of

ALPHA = 0.3
"""Weight of the format."""
BETA = 0.7
"""Weight of the correctness."""
MAX_FRAME_CHARS = 1_000
"""By how much a response may be longer than a truth that is text, and still be compared as a whole."""

_NUM = "[NUM]"
_NUMBER = (
    r"(?<!\d)(?<!\d[.,])(?>[-−+]?"
    r"(?:(?:(?:\d{1,3}(?:,\d{3}(?!\d))++|\d++)(?:\.\d++)?|\.\d++)(?:[eE][-+]?\d++|/\d++)?|\\[dt]?frac\{\d++\}\{\d++\}))"
)
_MARKER = re.compile(r"\\boxed\s*\{|####|\b(?:answer|solution)(?:\s+is\b|\s*[:=])\s*:?|<answer>", re.IGNORECASE)
_END = re.compile(r"\n|</answer>", re.IGNORECASE)
_COMMAND = re.compile(r"\\(?:boxed|text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_FRAME = " \t\r\n.,;:!?\"'`*_$“”‘’«»"


def match_format_exactly(response: str, expected_format: str) -> float:
    """How well a response keeps to a format, in which `[NUM]` stands for a number.

    >>> match_format_exactly("2 + 2 = 4. The answer is 4.", "The answer is [NUM].")
    1.0
    >>> match_format_exactly("the answer: it is four", "The answer is [NUM].")
    0.5

    Args:
        response: what was written.
        expected_format: what should occur in it, literally but for `[NUM]`.

    Returns:
        1.0 where the format occurs; 0.5 where its words occur in their order, and case, punctuation or numbers differ;
        else 0.0.
    """
    literals = expected_format.split(_NUM)
    if len(literals) == 1:
        occurs = expected_format in response
    else:
        occurs = re.search(_NUMBER.join(map(re.escape, literals)), response) is not None
    if occurs:
        return 1.0
    words = [word for literal in literals for word in _words(literal)]
    remaining = _words(response)
    return 0.5 if words and all(word in remaining for word in words) else 0.0


def check_answer(response: str, ground_truth: str | float) -> float:
    r"""Whether the last number of a response is the right one.

    >>> check_answer("2 + 2 = 4", 4), check_answer("I get 95", "100"), check_answer("4 or 5", 4)
    (1.0, 0.5, 0.0)
    >>> check_answer("The answer is paris.", "Paris")
    1.0

    Args:
        response: what was written.
        ground_truth: a number, or text; of a worked solution, what stands after its last `####`. Where it is no number,
            the text of the response is compared, or what stands after its last `answer is`, `####` or `\boxed`; case,
            spaces, quotes and the punctuation around it are disregarded.

    Returns:
        1.0 where it is exact; 0.5 where it is a number within 10 % of the truth's magnitude, inclusive; else 0.0.
    """
    if isinstance(ground_truth, str):
        ground_truth = _final(ground_truth)
    truth = _number(ground_truth)
    if truth is None:
        return float(_is_same_text(response, str(ground_truth)))
    found = last_numbers(response, 1)
    if not found:
        return 0.0
    if _is_equal(found[0], truth, ground_truth):
        return 1.0
    return 0.5 if found[0].is_near(truth) else 0.0


def check_numbers(response: str, expected_numbers: Sequence[str | float] | str | float) -> dict[str, Any]:
    """Whether the last numbers of a response are the right ones, in their order.

    >>> check_numbers("2 + 2 = 4. The answer is 4.", [4])
    {'extracted': [4], 'matches': [True], 'score': 1.0}

    Args:
        response: what was written.
        expected_numbers: the numbers, as many as are taken from the end of the response; or text that holds them.

    Returns:
        `extracted`, the numbers that were found, as int where they are integers; `matches`, for each expected number
        whether it is equal, which a missing one isn't; `score`, the share of those, 0 where none are expected.
    """
    expected = list(_expected(expected_numbers))
    found = last_numbers(response, len(expected)) if expected else []
    matches = [
        index < len(found) and truth is not None and _is_equal(found[index], truth, given)
        for index, (given, truth) in enumerate(expected)
    ]
    return {
        "extracted": [number.plain for number in found],
        "matches": matches,
        "score": sum(matches) / len(matches) if matches else 0.0,
    }


def total_reward(
    response: str, ground_truth: str | float, expected_format: str, alpha: float = ALPHA, beta: float = BETA
) -> float:
    """`alpha * format + beta * correctness`, of `match_format_exactly` and `check_answer`.

    >>> total_reward("4", 4, "The answer is [NUM].")
    0.7
    """
    return alpha * match_format_exactly(response, expected_format) + beta * check_answer(response, ground_truth)


class TotalReward(RewardFunction):
    """`alpha * format + beta * correctness`; both parts are in the metadata.

    The truth is the label, else the column `answer`; the format is the column `format`.

    >>> TotalReward(expected_format="It is [NUM].")(Trajectory(response="It is 4.", label="4")).metadata
    {'format': 1.0, 'correctness': 1.0}

    Args:
        alpha: weight of the format.
        beta: weight of the correctness.
        expected_format: the format of rows that have none.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.
    """

    def __init__(
        self,
        alpha: float = ALPHA,
        beta: float = BETA,
        expected_format: str | None = None,
        *,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(name, scale, clip)
        self.alpha = number(alpha, "alpha", least=0)
        self.beta = number(beta, "beta", least=0)
        self.expected_format = expected_format
        self.reward_range = (0.0, self.alpha + self.beta)

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        """The weighted sum, and its parts.

        Raises:
            InvalidRewardError: the row holds no answer, or there is no format.
        """
        truth, expected_format = truth_of(trajectory), trajectory.columns.get("format")
        if expected_format is None:
            expected_format = self.expected_format
        if expected_format is None:
            raise InvalidRewardError(
                "the row has no column 'format'; add one, or give TotalReward(expected_format=...)"
            )
        form = match_format_exactly(trajectory.response, str(expected_format))
        correctness = check_answer(trajectory.response, truth)
        return RewardOutput(
            reward=self.alpha * form + self.beta * correctness,
            metadata={"format": form, "correctness": correctness},
        )


def _number(truth: str | float | None) -> Number | None:
    """A truth as a number; truth values and whatever else isn't one are text."""
    return Number.of(truth) if isinstance(truth, str | int | float) and not isinstance(truth, bool) else None


def _final(truth: str) -> str:
    """Of a worked solution in GSM8K's form, the line after the last `####`; else the truth as it is."""
    final = truth.rpartition("####")[2].strip()
    return final if final and "\n" not in final and "####" in truth else truth


def _is_equal(found: Number, truth: Number, given: str | float) -> bool:
    """Whether a number is the truth; it may also be what a truth that is a float was rounded from."""
    return found.equals(truth) or (isinstance(given, float) and found.as_float() == given)


def _expected(given: Any) -> Iterator[tuple[Any, Number | None]]:
    if isinstance(given, str):
        yield from ((number.plain, number) for number in last_numbers(given))
    elif isinstance(given, Iterable):
        yield from ((item, _number(item)) for item in given)
    elif given is not None:
        yield given, _number(given)


def _words(text: str) -> Iterator[str]:
    return (match.group() for match in re.finditer(r"\w+", text.casefold()))


def _is_same_text(response: str, truth: str) -> bool:
    expected = _normal(truth)
    if not expected:
        return response.strip() == truth.strip()
    return any(
        len(text) <= len(truth) + MAX_FRAME_CHARS and _normal(text) == expected for text in _candidates(response, truth)
    )


def _candidates(response: str, truth: str) -> Iterator[str]:
    """What is compared with a truth that is text: the response, and what stands after its last marker."""
    yield response.strip()
    markers = deque(_MARKER.finditer(response), maxlen=1)
    if not markers:
        return
    last = markers[0]
    rest = response[last.end() : last.end() + len(truth) + MAX_FRAME_CHARS].lstrip()
    if last.group().startswith("\\"):
        yield _braced(rest)
    else:
        line = _END.split(rest, maxsplit=1)[0]
        yield line
        yield re.split(r"\.\s", line, maxsplit=1)[0]


def _braced(text: str) -> str:
    """What stands before the brace that closes the one before the text."""
    depth = 1
    for index, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:index]
    return ""


def _normal(text: str) -> str:
    """A text without what may differ between two ways to write the same."""
    text = _COMMAND.sub(r"\1", unicodedata.normalize("NFKC", text)).casefold().replace("−", "-")
    text = " ".join(text.split()).strip(_FRAME)
    text = re.sub(r" ?([^\w\s]) ?", r"\1", text)
    letter = re.fullmatch(r"\(?(\w)\)", text)  # a choice: (B), B)
    return letter[1] if letter else text
