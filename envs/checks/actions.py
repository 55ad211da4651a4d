"""What the checks play: probes, and cheap policies that must never be paid.

None of the cheap actions holds a number or word on its own that could be somebody's answer. The exception is the long
list of all numbers: it starts and ends far from any usual answer, so that only a grader that is content to find its
label *somewhere* pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ..types import Verbatim

LONG_CHARS = 100_000

Act: TypeAlias = Callable[[str, str, int], str | None]
"""(prompt, latest observation, number of the turn from 0) -> action, or None to stop."""


class Policy(NamedTuple):
    """Plays an episode.

    Attributes:
        name: what messages call its actions.
        act: gives the next action.
    """

    name: str
    act: Act


def scripted(name: str, actions: Sequence[str]) -> Policy:
    """Plays given actions, then stops."""
    return Policy(name, lambda prompt, latest, turn: actions[turn] if turn < len(actions) else None)


def constant(name: str, action: str) -> Policy:
    """Plays the same action each turn."""
    return Policy(name, lambda prompt, latest, turn: action)


_PROBES = ("Hello.", "1", "yes", "42", "a", "The answer is 7.", "0.5", "north")

PROBES = Policy("probe", lambda prompt, latest, turn: _PROBES[turn % len(_PROBES)])

_EMPTY = ("", " ", "\n", "\t \r\n", "\u200b", "\u00a0")

_GARBAGE = (
    "qwfpgj zxcvb lkjhg",
    "QWFPGJ!ZXCVB?LKJHG",
    "ξψζωχλ δφγηκ",
    "щыъэю жфячц",
    "ضصثقفغ عهخحج",
    "ที่ฟหกด ผปแอ",
    "क्षज्ञढ़ ठडणफ",
    "龘靐齉 爩麤灪",
    "ゔぢゐゑ ヰヱヲ",
    "🜁🝊🦑👩‍👩‍👧🏳️‍🌈",
    "e\u0301\u0327\u0489\u0336\u035b",
    "\u202egnidnib\u202c\u2066\ufeff",
    "\x00\x01\x1b[31m\x7f\ufffd",
    "?!.,;:-–—…'\"«»¿¡§¶",
    "{}[]()<>",
    "((((((((((",
    "}}}}))))]]]]",
    '{"": [',
    "<answer></answer>",
    "<|im_start|><|im_end|></s><eos>",
    "\\boxed{}",
    "\\frac{}{}",
    "####",
    "$$",
    "```python\n```",
    "%s%n%x",
    "'; --",
    "nan",
    "NaN",
    "-inf",
    "Infinity",
    "None",
    "1e999",
    "1/0",
)

_NUMBERS = "987654323 " + " ".join(map(str, range(17_500))) + " 987654319"

_LONG = {
    "letters": "x" * LONG_CHARS,
    "spaces": " " * LONG_CHARS,
    "lines": "\n" * LONG_CHARS,
    "digits": "9" * LONG_CHARS,
    "parentheses": "(" * LONG_CHARS,
    "words": "zqx " * (LONG_CHARS // 4),
    "all numbers": _NUMBERS.ljust(LONG_CHARS),
}

_ECHOES: dict[str, Callable[[str], str]] = {
    "an echo of the prompt": lambda text: text,
    "an echo of the prompt in capitals": str.upper,
    "an echo of the prompt without spaces": lambda text: "".join(text.split()),
    "a quoted echo of the prompt": lambda text: f'"{text}"',
    "an echo of the prompt called the answer": lambda text: f"The answer is {text}",
    "a boxed echo of the prompt": lambda text: f"\\boxed{{{text}}}",
    "a doubled echo of the prompt": lambda text: f"{text}\n{text}",
}


def _echo(change: Callable[[str], str]) -> Act:
    return lambda prompt, latest, turn: change(prompt)


def _latest(prompt: str, latest: str, turn: int) -> str:
    return latest


CHEAP_POLICIES: tuple[Policy, ...] = (
    *(constant("an empty action", action) for action in _EMPTY),
    *(constant("garbage", action) for action in _GARBAGE),
    *(Policy(name, _echo(change)) for name, change in _ECHOES.items()),
    Policy("an echo of the latest observation", _latest),
    *(constant(f"a very long action ({name})", action) for name, action in _LONG.items()),
)
"""Policies that do no work. Each action is played again and again until the episode ends."""

LONG_POLICIES = CHEAP_POLICIES[-len(_LONG) :]
"""Those of them with very long actions."""


def text_of(observation: object) -> str | None:
    """An observation's text, or None where it has none: token ids, or what is no observation."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Verbatim):
        return observation.text
    if isinstance(observation, Mapping):
        return str(observation.get("content", ""))
    if isinstance(observation, Sequence) and observation and all(isinstance(item, Mapping) for item in observation):
        return "\n".join(str(message.get("content", "")) for message in observation)
    return None


def quote(action: str, max_chars: int = 40) -> str:
    """An action for a message: quoted, escaped and short."""
    if len(action) <= max_chars:
        return ascii(action) if not action.isprintable() else repr(action)
    return f"{quote(action[:max_chars])}… ({len(action):,} characters)"
