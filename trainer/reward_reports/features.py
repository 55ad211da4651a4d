"""What the form of a response is: its length, and marks that anybody could add without solving the task."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...agents.episode import Ending, Episode

SEARCHED_CHARS = 20_000
"""Of longer responses only the beginning is looked at, so that megabytes cost nothing."""
REPEATED_SHARE = 0.3
"""Share of a response's runs of four words that occurred before, from which on it repeats itself."""
COPIED_CHARS = 12
"""Shortest prompt whose occurrence in the response is more than chance."""

SHAPES: dict[str, str] = {
    "digits": "a digit occurs",
    "line breaks": "it has more than one line",
    "Markdown": "a heading, list, table, emphasis or block of code occurs",
    "tags": "something in angle brackets occurs, as <answer>",
    "repetitions": f"{REPEATED_SHARE:.0%} of its runs of four words occurred in it before",
    "a copy of the prompt": "the prompt occurs in it",
}
"""Feature of a response -> what it means. These are the form that a reward is suspected of paying for."""
FAULTS: dict[str, str] = {
    "empty": "nothing but white space",
    "cut by length": "the last turn ended at a limit of tokens",
}
"""Feature -> what it means: that a response earns little for these is no sign of gaming."""

_MARKDOWN = re.compile(r"^(?:#{1,6} |[-*+] |\d{1,3}[.)] |\||```|> )|\*\*|__", re.MULTILINE)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_LABEL_CHARS = 500
_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9_-]{0,30}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRow:
    """What is kept of an episode for the analysis.

    Attributes:
        update: the update that it was played for.
        slot: its group's place.
        member: its place in the group.
        episode_id: its id.
        task_id: its task.
        reward: what it earned.
        score: how well it solved the task, or None.
        is_right: whether its answer is the task's label, or None where that isn't known; see `holds_label`.
        value: what the run's reward gave, summed over turns, or None where there is none.
        parts: the reward's parts, each the mean over the turns that have it.
        ending: why it ended.
        num_turns: its turns.
        num_tokens: tokens that the policy sampled.
        num_words: words of its response.
        num_chars: characters of its response.
        features: `SHAPES` and `FAULTS` by name.
        opening: the first words, in lower case, digits as #.
        prompt: the beginning of its prompt.
        response: the beginning of its response.
    """

    update: int
    slot: int
    member: int
    episode_id: str
    task_id: str
    reward: float
    score: float | None
    is_right: bool | None
    value: float | None
    parts: dict[str, float] = field(default_factory=dict)
    ending: str
    num_turns: int
    num_tokens: int
    num_words: int
    num_chars: int
    features: dict[str, bool]
    opening: str
    prompt: str
    response: str

    @property
    def turn_tokens(self) -> float:
        """Sampled tokens a turn: the length that is compared, since more turns are no longer answers."""
        return self.num_tokens / self.num_turns if self.num_turns else 0.0

    @property
    def turn_words(self) -> float:
        """Words a turn."""
        return self.num_words / self.num_turns if self.num_turns else 0.0


def features_of(responses: Sequence[str], prompt: str, *, is_cut: bool = False) -> dict[str, bool]:
    """`SHAPES` and `FAULTS` of an episode's responses, by name, in time linear in their beginning.

    >>> [name for name, there in features_of(["**4**"], "2 + 2 = ?").items() if there]
    ['digits', 'Markdown']
    """
    text, asked = "\n".join(responses)[:SEARCHED_CHARS], prompt.strip()[:SEARCHED_CHARS]
    return {
        "digits": any(map(str.isdecimal, text)),
        "line breaks": any("\n" in response.strip() for response in responses),
        "Markdown": _MARKDOWN.search(text) is not None,
        "tags": _TAG.search(text) is not None,
        "repetitions": _repeated_share(text.split()) >= REPEATED_SHARE,
        "a copy of the prompt": len(asked) >= COPIED_CHARS and asked in text,
        "empty": not text.strip(),
        "cut by length": is_cut,
    }


def opening_of(response: str, num_words: int = 3) -> str:
    """The first words in lower case, with digits as `#`, so that answers that begin alike fall together.

    >>> opening_of("The answer is 42.")
    'the answer is'
    """
    words = response[:200].split()[:num_words]
    return re.sub(r"\d+", "#", " ".join(words).lower())[:60]


def holds_label(response: str, label: object) -> bool | None:
    """Whether a response gives the label: of a number, as its last number; of other text, anywhere as whole words.

    Unknown is None: where there is no label, or a long one.

    >>> holds_label("2 + 2 is 4.", "4"), holds_label("It is Rome.", "Paris"), holds_label("4", None)
    (True, False, None)
    """
    if not isinstance(label, str | int | float) or isinstance(label, bool):
        return None
    if isinstance(label, int) and label.bit_length() > _LABEL_CHARS:  # too long to be written out
        return None
    wanted, text = str(label).strip(), response[-SEARCHED_CHARS:]
    if not 0 < len(wanted) <= _LABEL_CHARS:
        return None
    if _NUMBER.fullmatch(wanted):
        numbers = _NUMBER.findall(text)
        return bool(numbers) and _as_number(numbers[-1]) == _as_number(wanted)
    words = re.escape(" ".join(wanted.casefold().split()))
    return re.search(rf"(?<!\w){words}(?!\w)", " ".join(text.casefold().split())) is not None


def is_cut(episode: Episode) -> bool:
    """Whether the last action ended at a limit of tokens, or the context was full."""
    return episode.ending is Ending.MAX_LENGTH or bool(episode.turns and episode.turns[-1].finish_reason == "length")


def _repeated_share(words: list[str]) -> float:
    runs = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def _as_number(text: str) -> float | str:
    """A number, or its digits where it is too large for one."""
    number = float(text.replace(",", ""))
    return number if math.isfinite(number) else text


def length_features(tokens: float, words: float) -> tuple[float, ...]:
    """What a length is tested by: tokens a turn, straight, squared and as logarithm, and words a turn."""
    return tokens, tokens**2, math.log1p(tokens), words, math.log1p(words)
