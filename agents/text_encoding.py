"""Text to token ids, so that text which is data never becomes a control token.

A tokenizer's added tokens (`<|im_end|>`, and also `<tool_call>` or `<think>`, which many tokenizers add without marking
them special) are cut out of a text before anything else happens to it, whoever wrote them there. Here each part of a
text says whether it is data. The whole is encoded as usual; only where a control token would come out of data are the
parts encoded one by one, the data by a copy of the tokenizer that knows no control tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import groupby
from operator import attrgetter
from secrets import token_hex
from typing import Any, NamedTuple

from tokenizers import Encoding, Tokenizer

from ..envs.errors import ConfigError

_ANCHORS = ("\n", ".", "a", "0", " ")
_SURROGATES = re.compile("[\ud800-\udfff]")


class Segment(NamedTuple):
    """A part of a text. Data stays plain text, whatever it spells."""

    text: str
    is_data: bool


class Follows(Enum):
    """What stands right before a text: some tokenizers put a space at the start of whatever they encode."""

    NOTHING = "nothing"
    TEXT = "text"
    CONTROL_TOKEN = "control token"


class TextEncoder:
    """Encodes and decodes with copies of a fast tokenizer's backend, which nobody else can change.

    White space that a tokenizer added as tokens (runs of spaces or newlines) is no control token.

    Args:
        tokenizer: a transformers tokenizer that runs on the `tokenizers` library.

    Attributes:
        control_ids: ids of the added tokens that data must never become.
        control_tokens: what each of them is spelled like.
        unknown_id: id that stands for characters which the vocabulary lacks, or None.
        is_free: whether a text's tokens are the same wherever it stands, so that no anchor is needed.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise ConfigError(
                f"{type(tokenizer).__name__} is no fast tokenizer; load it with AutoTokenizer from a folder that holds "
                "a tokenizer.json"
            )
        parts = json.loads(backend.to_str())
        parts["truncation"] = parts["padding"] = parts["post_processor"] = None
        controls = {
            token["id"]: token["content"] for token in parts["added_tokens"] if token["content"].strip(" \t\r\n\v\f▁")
        }
        self._usual = Tokenizer.from_str(json.dumps(parts))
        self._plain = Tokenizer.from_str(json.dumps(_without_controls(parts, controls)))
        self._unknown_token: str | None = parts["model"].get("unk_token") or _unigram_unknown(parts["model"])
        self.unknown_id: int | None = (
            None if self._unknown_token is None else self._usual.token_to_id(self._unknown_token)
        )
        self.control_ids = frozenset(controls)
        self.control_tokens: Mapping[int, str] = controls
        self.is_free = self._is_free()
        self._is_bare_after_control = not self.is_free and self._is_prefixed_after_control()

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        return self._usual.decode(token_ids, skip_special_tokens=False)

    def encode_text(self, text: str, follows: Follows = Follows.NOTHING) -> list[int]:
        """Encode a text without data: each added token in it is parsed."""
        return self._encode(self._usual, text, follows)

    def encode(self, segments: Sequence[Segment], follows: Follows = Follows.NOTHING) -> list[int]:
        """Encode segments as usual, or one by one where a control token would come out of data.

        Args:
            segments: the parts of the text, in order.
            follows: what stands right before the text.

        Returns:
            Token ids, of which no control token stems from data.
        """
        text = "".join(text for text, _ in segments)
        encoding = _encoding(self._usual, text)
        data = bytearray()
        for part, is_data in segments:
            data += (b"\1" if is_data else b"\0") * len(part)
        if any(data.find(1, start, end) >= 0 for start, end in self._control_spans(encoding, text)):
            return self._encode_apart(segments, follows)
        return self._placed(self._usual, text, encoding.ids, follows)

    def control_spans(self, text: str) -> list[tuple[int, int]]:
        """Where in the text control tokens would arise, as (start, end) in characters, in order."""
        return self._control_spans(_encoding(self._usual, text), text)

    def _control_spans(self, encoding: Encoding, text: str) -> list[tuple[int, int]]:
        if self.control_ids.isdisjoint(encoding.ids):
            return []
        spans = []
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id not in self.control_ids:
                continue
            span = text[start:end]
            if token_id == self.unknown_id and str(self._unknown_token) not in span:
                continue  # a character that the vocabulary lacks, not the token's own spelling
            start += len(span) - len(span.lstrip())  # some added tokens take up the white space around them
            spans.append((start, start + len(span.strip())))
        return spans

    def follows(self, token_ids: Sequence[int]) -> Follows:
        """What stands at the end of token ids."""
        if len(token_ids) and token_ids[-1] in self.control_ids:
            return Follows.CONTROL_TOKEN
        return Follows.TEXT

    def _encode_apart(self, segments: Iterable[Segment], follows: Follows) -> list[int]:
        token_ids: list[int] = []
        for is_data, parts in groupby(segments, key=attrgetter("is_data")):
            text = "".join(part.text for part in parts)
            token_ids += self._encode(self._plain if is_data else self._usual, text, follows)
            if token_ids:
                follows = self.follows(token_ids)
        return token_ids

    def _encode(self, backend: Tokenizer, text: str, follows: Follows) -> list[int]:
        return self._placed(backend, text, _encoding(backend, text).ids, follows)

    def _placed(self, backend: Tokenizer, text: str, bare: list[int], follows: Follows) -> list[int]:
        """The tokens of a text where it stands, given those that it has alone."""
        if self.is_free or not bare or follows is Follows.NOTHING or bare[0] in self.control_ids:
            return bare
        if follows is Follows.CONTROL_TOKEN and self._is_bare_after_control:
            return bare
        for anchor in _ANCHORS:
            token_ids = _encode_after(backend, anchor, text)
            if token_ids is not None:
                return token_ids
        return bare

    def _is_free(self) -> bool:
        compared = False
        for text in ("a", "1", ".", " a", "A"):
            alone = _encoding(self._usual, text).ids
            for anchor in _ANCHORS:
                after = _encode_after(self._usual, anchor, text)
                if after is not None and after != alone:
                    return False
                compared |= after is not None
        return compared

    def _is_prefixed_after_control(self) -> bool:
        for token in self.control_tokens.values():
            after = _encode_after(self._usual, token, "a")
            if after is not None:
                return after != self._encode(self._usual, "a", Follows.TEXT)
        return False


def _encode_after(backend: Tokenizer, anchor: str, text: str) -> list[int] | None:
    """The tokens of a text as it stands after an anchor, or None where the two melt together."""
    before, both = _encoding(backend, anchor).ids, _encoding(backend, anchor + text).ids
    return both[len(before) :] if both[: len(before)] == before and len(both) > len(before) else None


def _encoding(backend: Tokenizer, text: str) -> Encoding:
    try:
        return backend.encode(text, add_special_tokens=False)
    except (TypeError, UnicodeEncodeError):  # lone surrogates, which are no Unicode text
        return backend.encode(_SURROGATES.sub("\ufffd", text), add_special_tokens=False)


def _without_controls(parts: Mapping[str, Any], controls: Mapping[int, str]) -> dict[str, Any]:
    """The same tokenizer, but no text spells its control tokens: each is renamed to a secret.

    So they are neither cut out of a text nor reached by the model (Unigram models find a control token's spelling in
    their vocabulary, and merges may end in one), and all ids stay as they are.
    """
    secret = token_hex(16)
    model = dict(parts["model"])
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        renamed = {name: f"{secret}{index}" for name, index in vocab.items() if index in controls}
        model["vocab"] = {renamed.get(name, name): index for name, index in vocab.items()}
        if "merges" in model:
            model["merges"] = [merge for merge in model["merges"] if renamed.keys().isdisjoint(_names(merge))]
        if model.get("unk_token") in renamed:
            model["unk_token"] = renamed[model["unk_token"]]
    else:
        model["vocab"] = [
            [f"{secret}{index}" if index in controls else name, score] for index, (name, score) in enumerate(vocab)
        ]
    added = [
        {**token, "content": f"{secret}{token['id']}"} if token["id"] in controls else token
        for token in parts["added_tokens"]
    ]
    return {**parts, "model": model, "added_tokens": added}


def _names(merge: str | Sequence[str]) -> tuple[str, str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right, left + right


def _unigram_unknown(model: Mapping[str, Any]) -> str | None:
    index = model.get("unk_id")
    return None if index is None else model["vocab"][index][0]
