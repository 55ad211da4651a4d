"""What a sequence-classification model reads of a trajectory: its tokens, short enough and with nothing smuggled in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, RewardError
from ...types import Message
from ..types import Trajectory

if TYPE_CHECKING:
    from tokenizers import Encoding

MAX_CHARS_PER_TOKEN = 32
"""Text beyond this many characters for each token that fits is cut before it is encoded."""

MAX_CUTS = 8
"""How often texts are shortened until they fit; then tokens are cut."""

_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What was asked and answered; a copy, so that it can be read on another thread.

    Attributes:
        prompt: the first observation.
        response: the action text.
        messages: the conversation, up to the last message of the assistant.
    """

    prompt: str
    response: str
    messages: tuple[Message, ...]

    @classmethod
    def of(cls, trajectory: Trajectory) -> Exchange:
        """What a trajectory's model input is made of."""
        messages = list(trajectory.messages)
        while messages and messages[-1]["role"] != "assistant":
            messages.pop()
        messages = messages or [
            *trajectory.messages,
            {"role": "assistant", "content": trajectory.response},
        ]
        return cls(prompt=trajectory.prompt, response=trajectory.response, messages=tuple(messages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a model's input.

    Attributes:
        token_ids: [length] at least one.
        type_ids: [length] 0 for the prompt and 1 for the response, where the tokenizer tells them apart.
        is_cut: whether something was cut.
        is_response_cut: whether some of the response was.
    """

    token_ids: list[int]
    type_ids: list[int]
    is_cut: bool
    is_response_cut: bool


@dataclass(slots=True)
class _Text:
    """A text that may have to be shortened: a response at its end, anything else at its start."""

    text: str
    is_response: bool
    is_cut: bool = False

    def cut(self, start: int, end: int) -> None:
        """Keep what stands from `start` to `end`."""
        self.is_cut = self.is_cut or (start, end) != (0, len(self.text))
        self.text = self.text[start:end]


class InputEncoder:
    """Encodes exchanges: as a chat where the tokenizer has a chat template, else as the pair of prompt and response.

    What doesn't fit is cut: first from the start of everything that is no response, beginning with the earliest, then
    from the end of the responses. Special tokens that a text spells stay text: in a pair they are encoded like any
    other text; in a chat a space after their first character breaks them, and so the tokens that the template puts
    around a user's message.

    Args:
        tokenizer: a transformers tokenizer that runs on the `tokenizers` library.
        max_length: most tokens of a row.

    Raises:
        ConfigError: the tokenizer is another one.
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        from tokenizers import Tokenizer

        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise ConfigError(
                f"{type(tokenizer).__name__} is no fast tokenizer; save one with the model that has a tokenizer.json"
            )
        self._max_length = max_length
        self._tokenizer = tokenizer
        self.is_chat = bool(tokenizer.chat_template)
        self._backend = Tokenizer.from_str(backend.to_str())
        self._backend.no_padding()
        self._backend.no_truncation()
        self._backend.encode_special_tokens = not self.is_chat
        self._special = re.compile("|".join(map(re.escape, self._structure())) or "(?!)")
        ends = (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id)
        self._filler = next((token for token in ends if token is not None), 0)

    def encode(self, exchange: Exchange) -> Row:
        """The row of an exchange. One without any token is one end token.

        Raises:
            RewardError: the chat template refuses the messages.
        """
        texts, encode = self._chat(exchange) if self.is_chat else self._pair(exchange)
        encoding = encode()
        for _ in range(MAX_CUTS):
            if len(encoding) <= self._max_length:
                break
            self._shorten(texts, len(encoding) - self._max_length)
            encoding = encode()
        is_long = len(encoding) > self._max_length
        return Row(
            token_ids=encoding.ids[-self._max_length :] or [self._filler],
            type_ids=encoding.type_ids[-self._max_length :] or [0],
            is_cut=is_long or any(text.is_cut for text in texts),
            is_response_cut=is_long or any(text.is_cut for text in texts if text.is_response),
        )

    def _pair(self, exchange: Exchange) -> tuple[list[_Text], Callable[[], Encoding]]:
        prompt = self._text(exchange.prompt, is_response=False)
        response = self._text(exchange.response, is_response=True)
        return [prompt, response], lambda: self._encoding((prompt.text, response.text), add_special_tokens=True)

    def _chat(self, exchange: Exchange) -> tuple[list[_Text], Callable[[], Encoding]]:
        texts: list[_Text] = []
        others: list[dict[str, Any]] = []
        for message in exchange.messages:
            text = self._text(message.get("content") or "", is_response=message["role"] == "assistant")
            text.text = self._harmless(text.text)
            texts.append(text)
            others.append({key: self._harmless(value) for key, value in message.items() if key != "content"})

        def encode() -> Encoding:
            messages = [{**other, "content": text.text} for other, text in zip(others, texts, strict=True)]
            try:
                rendered = self._tokenizer.apply_chat_template(messages, tokenize=False)
            except Exception as error:  # a template raises whatever its author and jinja2 do
                roles = ", ".join(message["role"] for message in messages)
                raise RewardError(
                    f"the model's chat template can't render messages of the roles {roles}: {error}"
                ) from error
            return self._encoding(rendered)

        return texts, encode

    def _text(self, text: str, *, is_response: bool) -> _Text:
        """A text that is no longer than can matter, and has a UTF-8."""
        made = _Text(text, is_response)
        most = self._max_length * MAX_CHARS_PER_TOKEN
        made.cut(*((0, min(len(text), most)) if is_response else (max(len(text) - most, 0), len(text))))
        made.text = _SURROGATES.sub("\ufffd", made.text)
        return made

    def _encoding(self, text: str | tuple[str, str], *, add_special_tokens: bool = False) -> Encoding:
        # Unlike `encode`, this lets other threads run meanwhile.
        return self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def _structure(self) -> list[str]:
        """What tokens that give a chat its structure are spelled like, the longest first."""
        around = ""
        if self.is_chat:
            try:
                around = self._tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
            except Exception:  # noqa: BLE001 - this template wants other messages
                around = ""
        added = self._backend.get_added_tokens_decoder().values()
        spelled = {token.content for token in added if token.special or token.content in around}
        return sorted((text for text in spelled if len(text.strip()) > 1), key=len, reverse=True)

    def _shorten(self, texts: Sequence[_Text], excess: int) -> None:
        """Cut about as many tokens as are too many."""
        for text in sorted(texts, key=lambda text: text.is_response):
            encoding = self._encoding(text.text)
            count = min(excess, len(encoding))
            if not count:
                continue
            excess -= count
            start, end = encoding.token_to_chars(len(encoding) - count if text.is_response else count - 1) or (0, 0)
            text.cut(*((0, start) if text.is_response else (end, len(text.text))))
            if not excess:
                return

    def _harmless(self, value: Any) -> Any:
        """A message's value, in which no special token is spelled."""
        if isinstance(value, str):
            return self._special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", _SURROGATES.sub("\ufffd", value))
        if isinstance(value, Mapping):
            return {key: self._harmless(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self._harmless(item) for item in value]
        return value
