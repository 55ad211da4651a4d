"""Text that nobody vouches for, in one short line: for a terminal, and for Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ACTIVE = {ord(mark): f"\\{mark}" for mark in "\\`*_{}[]<>#|~&$@"}
_LINK = re.compile(r":(?=//)|\.(?<=www\.)", re.IGNORECASE)
"""What makes a link of bare text."""


def head(text: str, width: int = 60) -> str:
    r"""The beginning of a text, in one line of at most `width` characters.

    What doesn't print (line ends, control characters, zero-width and direction marks) is spelled out.

    >>> head("one\ntwo\x1b[31m")
    'one\\ntwo\\x1b[31m'
    >>> head("a long answer", width=7)
    'a long…'
    """
    shown = "".join(map(_visible, text[: width + 1]))
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"


def markdown(text: str, width: int = 60) -> str:
    r"""The beginning of a text for the inside of a line or a table cell of Markdown, where nothing in it is markup.

    >>> print(markdown("[a](http://b) | `c`"))
    \[a\](http\://b) \| \`c\`
    """
    return _LINK.sub(r"\\\g<0>", head(text, width).translate(_ACTIVE))


def fenced(lines: Iterable[str]) -> str:
    """Lines as a block of code whose fence is longer than any run of backticks in them."""
    text = "\n".join(lines)
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
