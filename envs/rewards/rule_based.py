"""Rewards that follow rules about the text: its length, its format, its words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

from ..errors import ConfigError
from .arguments import either, number, texts
from .base import Clip, RewardFunction
from .types import RewardOutput, Trajectory

MAX_PATTERN_CHARS = 100_000
"""How much of a response forbidden patterns are looked for in; a longer one is searched up to here."""

BONUS = 0.1
"""What a bonus keyword adds."""
PENALTY = 0.2
"""What a penalty keyword takes."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Letters of scripts that don't set words apart, or join particles to them, as ranges for a character class."""
_WORD = rf"[^\W{_UNSPACED}]"
_MARK = "[\u0300-\u036f]"


class LengthReward(RewardFunction):
    """How near the response's number of words is to a target. Best for keeping answers to a size.

    With `d = |words - target_length|`:

        gaussian:  exp(-d^2 / (2 tolerance^2))    1 at the target, 0.607 one tolerance off, 0.135 two off
        linear:    max(0, 1 - d / (2 tolerance))  1 at the target, 0.5 one tolerance off, 0 from two on

    Words are what whitespace sets apart. Range: [0, 1].

    >>> LengthReward(target=2, tolerance=1)(Trajectory(response="Forty two")).reward
    1.0

    Args:
        target_length: words that earn the most; by default 200.
        tolerance: words; how fast the reward falls.
        reward_type: `gaussian` or `linear`.
        target: the same as `target_length`.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Raises:
        ConfigError: an argument is out of its range, or both names of the target are given with different values.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        target_length: float | None = None,
        tolerance: float = 50,
        reward_type: Literal["gaussian", "linear"] = "gaussian",
        *,
        target: float | None = None,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(name, scale, clip)
        given = either(target_length, target, ("target_length", "target"), 200)
        self.target_length = number(given, "target_length", least=0)
        self.tolerance = number(tolerance, "tolerance", above=0)
        if reward_type not in ("gaussian", "linear"):
            raise ConfigError(f"reward_type={reward_type!r} must be 'gaussian' or 'linear'")
        self.reward_type = reward_type

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        """The formula at the response's number of words."""
        num_words = len(trajectory.response.split())
        off = abs(num_words - self.target_length) / self.tolerance
        reward = math.exp(-off * off / 2) if self.reward_type == "gaussian" else max(0.0, 1 - off / 2)
        return RewardOutput(reward=reward, metadata={"num_words": num_words})


class FormatReward(RewardFunction):
    """Whether a response has the sections it should, and nothing that it shouldn't. Best for teaching a layout.

        max(0, required sections found / all of them - forbidden patterns found / all of them)

    A share of none is 1 for the required sections and 0 for the forbidden patterns. Case is disregarded. Range: [0, 1].

    >>> FormatReward(required_sections=["Answer:", "Reason:"])(Trajectory(response="answer: 4")).reward
    0.5

    Args:
        required_sections: texts, found literally.
        forbidden_patterns: regular expressions. They are looked for in the first `MAX_PATTERN_CHARS` characters. A
            pattern that backtracks without end, such as `(a+)+b`, stops the whole process: Python can't interrupt it.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Raises:
        ConfigError: a pattern is no regular expression, or something is blank or no text.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        required_sections: Sequence[str] = (),
        forbidden_patterns: Sequence[str] = (),
        *,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(name, scale, clip)
        self.required_sections = texts(required_sections, "required_sections")
        self.forbidden_patterns = texts(forbidden_patterns, "forbidden_patterns")
        self._sections = [section.casefold() for section in self.required_sections]
        self._patterns = [_compiled(pattern) for pattern in self.forbidden_patterns]

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        """The share of sections found less the share of patterns found."""
        text, start = trajectory.response.casefold(), trajectory.response[:MAX_PATTERN_CHARS]
        required = _share([section in text for section in self._sections], of_none=1.0)
        forbidden = _share([pattern.search(start) is not None for pattern in self._patterns], of_none=0.0)
        shares = {"required_share": required, "forbidden_share": forbidden}
        return RewardOutput(reward=max(0.0, required - forbidden), metadata=shares)


class KeywordReward(RewardFunction):
    """Whether a response uses the words it should. Best as a first, dense signal, and beside another reward.

        clamp(required found / all of them + 0.1 * bonus words found - 0.2 * penalty words found, 0, 1)

    The share of no required words is 1. Each word counts once. Case is disregarded, and any whitespace in a keyword
    stands for any other. A keyword is found as a whole word: `cat` isn't in `category`. In scripts that don't set words
    apart (Chinese, Japanese, Thai, ...) it is found anywhere. Range: [0, 1].

    >>> KeywordReward(required=["therefore"], penalty=["maybe"])(Trajectory(response="Maybe. Therefore 4.")).reward
    0.8

    Args:
        required_keywords: the words that a response should hold.
        bonus_keywords: words that add 0.1 each.
        penalty_keywords: words that take 0.2 each.
        required: the same as `required_keywords`.
        bonus: the same as `bonus_keywords`.
        penalty: the same as `penalty_keywords`.
        whole_words: False finds keywords inside other words, too.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Raises:
        ConfigError: a keyword is blank or no text, or both names of a list are given with different values.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        required_keywords: Sequence[str] | None = None,
        bonus_keywords: Sequence[str] | None = None,
        penalty_keywords: Sequence[str] | None = None,
        *,
        required: Sequence[str] | None = None,
        bonus: Sequence[str] | None = None,
        penalty: Sequence[str] | None = None,
        whole_words: bool = True,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(name, scale, clip)
        self.whole_words = whole_words
        self.required_keywords = _keywords(required_keywords, required, "required")
        self.bonus_keywords = _keywords(bonus_keywords, bonus, "bonus")
        self.penalty_keywords = _keywords(penalty_keywords, penalty, "penalty")
        self._required, self._bonus, self._penalty = (
            [_finder(keyword, whole_words) for keyword in keywords]
            for keywords in (self.required_keywords, self.bonus_keywords, self.penalty_keywords)
        )

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        """The formula over the words found."""
        text = trajectory.response.casefold()
        share = _share([_is_in(text, finder) for finder in self._required], of_none=1.0)
        num_bonus = sum(_is_in(text, finder) for finder in self._bonus)
        num_penalty = sum(_is_in(text, finder) for finder in self._penalty)
        reward = min(max(share + BONUS * num_bonus - PENALTY * num_penalty, 0.0), 1.0)
        found = {"required_share": share, "bonus_found": num_bonus, "penalty_found": num_penalty}
        return RewardOutput(reward=reward, metadata=found)


def _share(found: Sequence[bool], *, of_none: float) -> float:
    return sum(found) / len(found) if found else of_none


def _is_in(text: str, finder: re.Pattern[str]) -> bool:
    return finder.search(text) is not None


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ConfigError(
            f"forbidden_patterns holds {pattern!r}, which is no regular expression: {error}; "
            f"if it is meant literally, write {re.escape(pattern)!r}"
        ) from None


def _keywords(given: Sequence[str] | None, synonym: Sequence[str] | None, name: str) -> tuple[str, ...]:
    full = f"{name}_keywords"
    return texts(either(given, synonym, (full, name), ()), full)


def _finder(keyword: str, whole_words: bool) -> re.Pattern[str]:
    """What finds a keyword in text in lower case. A boundary is asked for only where the keyword has a letter there."""
    words = keyword.casefold().split()
    pattern = r"\s+".join(re.escape(word) for word in words)
    if whole_words and re.match(_WORD, words[0][0]):
        pattern = f"(?<!{_WORD}){pattern}"
    if whole_words and re.match(_WORD, words[-1][-1]):
        pattern = f"{pattern}(?!{_WORD}|{_MARK})"
    return re.compile(pattern)
