r"""A model's own chat template: prompts rendered whole, feedback rendered as the template's continuation.

What follows an action is read off a short conversation in which a mark stands for the action:

    <|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nMARK<|im_end|>\n<|im_start|>user\nF<|im_end|>\n<|im_start|>assistant\n
                                                         ^-- from here on: closing, separators, feedback, next prompt

so that a turn costs the same however long the episode is. Message contents go through the template between marks, which
tell afterwards what in the rendered text is data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from ..envs.errors import TemplateError
from .marking import MARKS, Marking
from .text_encoding import Segment, TextEncoder

_BEGIN = {"role": "user", "content": "Begin."}
_LITERAL = re.compile(
    r"""(?:split|startswith|endswith|replace|r?find|r?index|r?partition|count|removeprefix|removesuffix)\(\s*(['"])(.+?)\1
      | (['"])([^'"\n]+)\3\s+(?:not\s+)?in\b""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Skeleton:
    """What the template puts around one message's content after an action, token for token.

    Attributes:
        head: text between the action and the content.
        tail: text after the content, generation prompt included.
        strip: what the template does to the content.
        takes_empty: whether an empty content is rendered like any other.
        prefix_ids: tokens of the head up to its last control token, the closing token first.
        suffix_ids: tokens of the tail from its first control token on.
        inner_head: the rest of the head, encoded together with the content.
        inner_tail: the rest of the tail, likewise.
        inner_controls: control ids that inner head and tail hold themselves.
    """

    head: str
    tail: str
    strip: Callable[[str], str] | None
    takes_empty: bool
    prefix_ids: list[int]
    suffix_ids: list[int]
    inner_head: str
    inner_tail: str
    inner_controls: list[int]


class ChatTemplate:
    """Renders messages by the tokenizer's chat template.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        encoder: the same tokenizer's encoder.
        template_kwargs: more variables for the template, such as `tools` or `enable_thinking`; trusted, not data.

    Attributes:
        literals: strings that the template looks for in what it renders; only texts that hold one can be treated
            differently from the plain texts that were probed.
        prefill: what the generation prompt puts into the policy's mouth, such as `<think>`.
        plain_rewrite: how the past of even a plain conversation changes as it grows, in words; empty where it doesn't.
        is_depth_free: whether what follows an action is the same at every turn, as it is unless turns are counted.
    """

    def __init__(self, tokenizer: Any, encoder: TextEncoder, template_kwargs: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._kwargs = dict(template_kwargs)
        self._skeletons: dict[str, Skeleton | None] = {}
        self._source = tokenizer.get_chat_template(self._kwargs.get("chat_template"), self._kwargs.get("tools"))
        self.literals = _literals(self._source)
        self._literal = re.compile("|".join(map(re.escape, self.literals)) or "(?!)")
        self.prefill = self._find_prefill()
        self.plain_rewrite = self.find_rewrite(("One.", "Two."))
        self.is_depth_free = self._find_is_depth_free()

    def text(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The rendered text of whole messages.

        Raises:
            TemplateError: the template refuses these messages.
        """
        try:
            return self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt, **self._kwargs
            )
        except (jinja2.TemplateError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            roles = ", ".join(message["role"] for message in messages) or "no message"
            raise TemplateError(
                f"the chat template can't render messages of the roles {roles}: {error}. Return roles and an order "
                "that this template knows, or a str, which becomes one user message"
            ) from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[Segment]:
        """Render whole messages and the generation prompt. Contents are data, but for sampled control tokens."""
        marking = Marking(messages, self._encoder, self._literal)
        return marking.segments(self.text([marking.mark(message) for message in messages]))

    def render_after_action(
        self, messages: Sequence[Mapping[str, Any]], history: Sequence[Mapping[str, Any]] | None = None
    ) -> list[Segment]:
        """Render what follows an action: its closing, separators, the messages and the next generation prompt.

        Args:
            messages: the feedback.
            history: the messages before the action; None stands for any.
        """
        marking = Marking(messages, self._encoder, self._literal)
        marked = [marking.mark(message) for message in messages]
        return marking.segments(self._after_action(marked, action=marking.action, history=history))

    def skeleton(self, role: str) -> Skeleton | None:
        """What stands around a single message of this role after an action, or None where it depends on the content."""
        if not self.is_depth_free:
            return None
        if role not in self._skeletons:
            self._skeletons[role] = self._find_skeleton(role)
        return self._skeletons[role]

    def looks_for(self, text: str) -> bool:
        """Whether the text holds something that the template may treat in a way of its own."""
        return self._literal.search(text) is not None

    def reads_only_content(self, message: Mapping[str, Any]) -> bool:
        """Whether the template knows none of the message's fields but its role and content."""
        return all(field in ("role", "content") or field not in self._source for field in message)

    def closing_ids(self) -> list[int]:
        """The tokens that close an action where feedback of the user, of a tool, or nothing follows."""
        closing: list[int] = []
        endings: list[Callable[[], str]] = [
            lambda: self._after_action([{"role": "user", "content": "a"}]),
            lambda: self._after_action([{"role": "tool", "content": "a"}]),
            lambda: self._after_action([], add_generation_prompt=False),
        ]
        for ending in endings:
            try:
                text = ending().lstrip()
            except TemplateError:
                continue
            if any(start == 0 for start, _ in self._encoder.control_spans(text)):
                closing += self._encoder.encode_text(text)[:1]
        return closing

    def find_rewrite(self, actions: Sequence[str]) -> str:
        """How a conversation's past changes as it grows by these actions, in words; empty where it doesn't."""
        messages: list[dict[str, Any]] = [_BEGIN]
        try:
            for number, action in enumerate(actions):
                before = self.text(messages)
                messages += [_assistant(self.prefill + action), {"role": "user", "content": f"Go on {number}."}]
                if rewrite := difference(before, action, self.text(messages)):
                    return rewrite
        except TemplateError as error:
            return str(error)
        return ""

    def _after_action(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        action: str = MARKS[0],
        history: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        before = [_BEGIN] if history is None else history
        rendered = self.text([*before, _assistant(action), *messages], add_generation_prompt=add_generation_prompt)
        _, found, after = rendered.rpartition(action)
        if not found:
            raise TemplateError(
                "the chat template leaves out what the assistant said, so nothing can follow it; use a template that "
                "renders assistant messages"
            )
        return after

    def _find_is_depth_free(self) -> bool:
        feedback = {"role": "user", "content": "Go on."}
        history: list[dict[str, Any]] = [_BEGIN]
        try:
            expected = self._after_action([feedback])
            for _ in range(2):
                history += [_assistant("One."), feedback]
                if self._after_action([feedback], history=history) != expected:
                    return False
        except TemplateError:
            pass  # a template for one turn only; its refusal is raised where a second turn is rendered
        return True

    def _find_prefill(self) -> str:
        try:
            prompt = self.text([_BEGIN])
            rendered = self.text([_BEGIN, _assistant(MARKS[0]), {"role": "user", "content": "Go on."}])
        except TemplateError:
            return ""
        before = rendered.partition(MARKS[0])[0]
        return prompt[len(before) :] if prompt.startswith(before) else ""

    def _find_skeleton(self, role: str) -> Skeleton | None:
        def after(content: str) -> str:
            return self._after_action([{"role": role, "content": content}])

        content = MARKS[1]
        try:
            parts = after(content).split(content)
            if len(parts) != 2:
                return None
            head, tail = parts
            padded = f" \n {content} \n\n"
            rendered = after(padded)
            takes_empty = after("") == head + tail
        except TemplateError:
            return None
        for strip in (None, str.strip, str.lstrip, str.rstrip):
            if rendered == head + (strip(padded) if strip else padded) + tail:
                return self._split_skeleton(head, tail, strip, takes_empty)
        return None

    def _split_skeleton(self, head: str, tail: str, strip: Callable[[str], str] | None, takes_empty: bool) -> Skeleton:
        encode = self._encoder.encode_text
        controls = self._encoder.control_ids
        spans_head, spans_tail = self._encoder.control_spans(head), self._encoder.control_spans(tail)
        if self._encoder.is_free and spans_head and spans_tail:
            cut_head, cut_tail = spans_head[-1][1], spans_tail[0][0]
            prefix_ids, suffix_ids = encode(head[:cut_head]), encode(tail[cut_tail:])
            inner_head, inner_tail = head[cut_head:], tail[:cut_tail]
            is_same = all(
                encode(head + text + tail) == prefix_ids + encode(inner_head + text + inner_tail) + suffix_ids
                for text in ("a", " a", "a ", "1", ".", "\n", "\na\n", "<", "|>")
            )
            if is_same:
                return Skeleton(head, tail, strip, takes_empty, prefix_ids, suffix_ids, inner_head, inner_tail, [])
        inner_controls = [i for i in encode(head + "a" + tail) if i in controls]
        return Skeleton(head, tail, strip, takes_empty, [], [], head, tail, inner_controls)


def difference(before: str, action: str, after: str) -> str:
    """How a rendered text departs from the one before it and the action, in words; empty where it goes on from them.

    White space around the action is free: templates trim it.
    """
    before, action = before.rstrip(), action.strip()
    gap = after[len(before) :]
    gap = gap[: len(gap) - len(gap.lstrip())]
    expected = before + gap + action
    if after.startswith(expected):
        return ""
    start = next((i for i, (a, b) in enumerate(zip(expected, after, strict=False)) if a != b), len(after))
    return f"where {expected[start : start + 60]!r} stood, it now renders {after[start : start + 60]!r}"


def _assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def _literals(source: str) -> tuple[str, ...]:
    """Strings that a template's source compares its input with, without white space at their ends."""
    found = {match[2] or match[4] for match in _LITERAL.finditer(source)}
    return tuple(sorted({text for raw in found if (text := raw.replace("\\n", "\n").strip())}))
