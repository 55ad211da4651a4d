"""Marks around message contents, which a chat template carries along and which tell data from template afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Self

from .text_encoding import Segment, TextEncoder

MARKS = tuple(map(chr, range(0xF0000, 0xF1000)))
"""Characters of a private plane of Unicode."""


class SampledText(str):
    """An action's text as an assistant message, which knows the control tokens that were really sampled.

    Attributes:
        pieces: the text in parts; those that are not data are sampled control tokens.
    """

    __slots__ = ("pieces",)

    pieces: tuple[Segment, ...]

    def __new__(cls, pieces: Sequence[Segment]) -> Self:
        """Join the pieces."""
        text = super().__new__(cls, "".join(piece.text for piece in pieces))
        text.pieces = tuple(pieces)
        return text


class Marking:
    """Marks contents, so that the rendered text tells which parts of it are data.

    A content becomes `(text)` in marks. What it spells of control tokens, and of what the template looks for, stands
    bare between two marks of another kind, so that a template which splits a content there still does, and splits no
    pair of marks. White space around a content stays outside, so that a template which trims it still does.

    Args:
        messages: what will be marked; the marks are characters that occur nowhere in it.
        encoder: finds the control tokens.
        literal: finds what the template looks for.

    Attributes:
        action: one more mark, which can stand for an action.
    """

    def __init__(self, messages: Sequence[Mapping[str, Any]], encoder: TextEncoder, literal: re.Pattern[str]) -> None:
        written = "".join(_strings(messages))
        unused = (mark for mark in MARKS if mark not in written)
        self._open, self._close, self._spelled, self.action = islice(unused, 4)
        self._encoder = encoder
        self._literal = literal
        self._occurrences: set[str] = set()

    def mark(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message with its texts between marks."""
        return {
            key: value if key == "role" else self._content(value) if key == "content" else self._field(value)
            for key, value in message.items()
        }

    def segments(self, rendered: str) -> list[Segment]:
        """The rendered text in parts, without the marks."""
        parts = re.split(f"([{self._open}{self._close}{self._spelled}])", rendered)
        segments = [Segment(parts[0], is_data=False)]
        marks = parts[1::2]
        for left, text, right in zip(marks, parts[2::2], [*marks[1:], ""], strict=False):
            is_data = (left == self._open and right == self._close) or (
                left == right == self._spelled and text in self._occurrences
            )
            if text:
                segments.append(Segment(text, is_data))
        return segments

    def _content(self, content: str) -> str:
        if isinstance(content, SampledText):
            return "".join(self._text(text) if is_data else text for text, is_data in content.pieces)
        return self._text(content)

    def _text(self, text: str) -> str:
        core = text.strip()
        if not core:
            return text
        start = text.index(core)
        marked, position = self._open, 0
        literals = [match.span() for match in self._literal.finditer(core)]
        for begin, end in sorted([*self._encoder.control_spans(core), *literals]):
            if begin < position:
                continue
            self._occurrences.add(core[begin:end])
            marked += core[position:begin] + self._close + self._spelled + core[begin:end] + self._spelled + self._open
            position = end
        marked += core[position:] + self._close
        return text[:start] + marked + text[start + len(core) :]

    def _field(self, value: Any) -> Any:
        """Other fields keep their form unless they spell a control token: templates check names and call ids."""
        if isinstance(value, str):
            return self._text(value) if self._encoder.control_spans(value) else value
        if isinstance(value, Mapping):
            return {self._field(key): self._field(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self._field(item) for item in value]
        return value


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for pair in value.items() for text in _strings(pair)]
    if isinstance(value, Sequence):
        return [text for item in value for text in _strings(item)]
    return []
