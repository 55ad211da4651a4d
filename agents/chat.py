r"""Conversations as token ids: the prompt once, then only each turn's new tokens.

A prompt is rendered whole by the model's own chat template. Whatever comes after an action is rendered as the
template's continuation and appended; what was sampled stays as it was sampled:

    prompt        <|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n     prompt(...)
    action        A<|im_end|>                                              sampled
    continuation  \n<|im_start|>user\nF<|im_end|>\n<|im_start|>assistant\n   continuation(...)

An action that was cut (by its length, or at a stop string) gets its closing token as the continuation's first. Contents
are data: no added token that they spell becomes that token.

Observations where there is a chat template:

- `str`: a user message, also when it is empty;
- messages: rendered; an empty list only closes the action and opens the next turn;
- `Verbatim`: appended as it is, an empty one adds nothing. A closing token that it begins with is not repeated where
  the action ended with it;
- token ids: appended as they are.

Without a template a `str` is verbatim text, of which no added token is parsed, and nothing is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeGuard, cast

from ..envs.errors import ConfigError, TemplateError
from ..envs.sampling import SamplingParams
from ..envs.types import Message, Observation, Verbatim, VerbatimData
from .chat_template import ChatTemplate, difference
from .marking import SampledText
from .text_encoding import Follows, Segment, TextEncoder

OnRewrite = Literal["append", "fork", "error"]

MAX_KNOWN_PROMPTS = 256


class Continuation(NamedTuple):
    """What follows an action.

    Attributes:
        token_ids: the new observation tokens; with `is_fork` the whole new context.
        is_fork: whether the template rewrote the history, so that a new token record begins.
    """

    token_ids: list[int]
    is_fork: bool


class Renderer:
    """Turns observations into token ids for one tokenizer and its chat template.

    Args:
        tokenizer: a transformers tokenizer that runs on the `tokenizers` library.
        on_rewrite: what to do where the template would change what the policy has already read or said, as reasoning
            models' templates do when they drop earlier thinking: `append` keeps the context as it is and appends,
            `fork` goes on in a new record with the context rendered anew, `error` raises. White space that a template
            trims around an action doesn't count.
        template_kwargs: more variables for the template, such as `tools` or `enable_thinking`.

    Attributes:
        stop_token_ids: the template's end-of-turn tokens, what closes a turn before the user's first, and the
            tokenizer's end-of-sequence token.

    Raises:
        ConfigError: the tokenizer is no fast one, or `on_rewrite` is unknown.
        TemplateError: `on_rewrite` is `error`, and the template rewrites even a plain conversation.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        on_rewrite: OnRewrite = "append",
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if on_rewrite not in ("append", "fork", "error"):
            raise ConfigError(f"on_rewrite={on_rewrite!r} must be 'append', 'fork' or 'error'")
        self.tokenizer = tokenizer
        self.on_rewrite: OnRewrite = on_rewrite
        self.encoder = TextEncoder(tokenizer)
        kwargs = dict(template_kwargs or {})
        has_template = bool(tokenizer.chat_template or kwargs.get("chat_template"))
        self.template = ChatTemplate(tokenizer, self.encoder, kwargs) if has_template else None
        closing = [] if self.template is None else self.template.closing_ids()
        eos = tokenizer.eos_token_id
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(closing + ([] if eos is None else [eos])))
        self._stop_ids = frozenset(self.stop_token_ids)
        self._prompts: dict[str, tuple[int, ...]] = {}
        if on_rewrite == "error" and self.template is not None and self.template.plain_rewrite:
            raise TemplateError(f"the chat template rewrites history: {self.template.plain_rewrite}; {_REMEDY}")

    @property
    def needs_history(self) -> bool:
        """Whether a conversation's messages are kept, to ask the template about them again."""
        template = self.template
        if template is None:
            return False
        may_rewrite = bool(template.plain_rewrite or template.literals)
        return self.counts_turns or (self.on_rewrite != "append" and may_rewrite)

    @property
    def counts_turns(self) -> bool:
        """Whether what follows an action depends on how many turns came before."""
        return self.template is not None and not self.template.is_depth_free

    def begin(self) -> Conversation:
        """A new conversation."""
        return Conversation(self)

    def action_text(self, token_ids: Sequence[int], stop: Sequence[str] = ()) -> str:
        """An action decoded, without the stop token that closed it, cut at the first stop string."""
        if len(token_ids) and token_ids[-1] in self._stop_ids:
            token_ids = token_ids[:-1]
        text = self.encoder.decode(token_ids)
        if stop:
            ends = [text.find(string) for string in stop]
            text = text[: min((end for end in ends if end >= 0), default=len(text))]
        return text

    def encode_prompt(self, observation: Observation) -> list[int]:
        """The token ids of a first observation. Texts are kept for a while: all episodes of a group begin alike."""
        prompts = self._prompts
        known = prompts.get(observation) if isinstance(observation, str) else None
        if known is not None:
            return list(known)
        messages = self.as_messages(observation)
        if messages is None:
            return self._encode_verbatim(observation, Follows.NOTHING)
        token_ids = self.encode_messages(messages)
        if isinstance(observation, str):
            if len(prompts) >= MAX_KNOWN_PROMPTS:
                del prompts[next(iter(prompts))]
            prompts[observation] = tuple(token_ids)
        return token_ids

    def encode_messages(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of a whole conversation, up to and including the generation prompt."""
        return self.encoder.encode(self._template.render(messages))

    def encode_after(
        self, action_ids: Sequence[int], observation: Observation, history: Sequence[Message] | None = None
    ) -> list[int]:
        """The token ids of an observation after an action, closing tokens included where the action lacks them.

        Args:
            action_ids: the action as sampled.
            observation: the feedback.
            history: the messages before the action, for a template that counts turns.
        """
        messages = self.as_messages(observation)
        if messages is None:
            token_ids = self._encode_verbatim(observation, self.encoder.follows(action_ids))
            return self._without_closing(token_ids, action_ids) if isinstance(observation, Verbatim) else token_ids
        template = self._template
        token_ids = None
        if len(messages) == 1 and template.reads_only_content(messages[0]):
            token_ids = self._encode_by_skeleton(template, messages[0], action_ids)
        if token_ids is None:
            segments = template.render_after_action(messages, history)
            token_ids = self.encoder.encode(segments, self.encoder.follows(action_ids))
        return self._without_closing(token_ids, action_ids, after_space=True)

    def as_messages(self, observation: Observation) -> list[Message] | None:
        """The observation as messages, or None where it is text or token ids to append as they are.

        Raises:
            TemplateError: it is a message, and there is no template to render it.
        """
        if isinstance(observation, str):
            return None if self.template is None else [{"role": "user", "content": observation}]
        if isinstance(observation, Verbatim):
            return None
        if isinstance(observation, Mapping):
            messages = [cast("Message", observation)]
        elif _is_messages(observation):
            messages = list(observation)
        else:
            return None
        if self.template is None:
            if not messages:
                return None
            raise TemplateError(
                "the observation holds chat messages, and the tokenizer has no chat template; "
                "return a str or a Verbatim"
            )
        return messages

    @property
    def _template(self) -> ChatTemplate:
        assert self.template is not None
        return self.template

    def _encode_by_skeleton(
        self, template: ChatTemplate, message: Message, action_ids: Sequence[int]
    ) -> list[int] | None:
        """A message of which only the content counts, without asking the template; None where it has to be asked."""
        skeleton, content = template.skeleton(message["role"]), message["content"]
        if skeleton is None:
            return None
        if skeleton.strip is not None:
            content = skeleton.strip(content)
        if not (content or skeleton.takes_empty) or template.looks_for(content):
            return None
        encoder = self.encoder
        inner = encoder.encode_text(skeleton.inner_head + content + skeleton.inner_tail, encoder.follows(action_ids))
        controls = encoder.control_ids
        if [i for i in inner if i in controls] != skeleton.inner_controls:
            segments = [Segment(skeleton.head, False), Segment(content, True), Segment(skeleton.tail, False)]
            return encoder.encode(segments, encoder.follows(action_ids))
        return [*skeleton.prefix_ids, *inner, *skeleton.suffix_ids]

    def _without_closing(
        self, token_ids: list[int], action_ids: Sequence[int], *, after_space: bool = False
    ) -> list[int]:
        """The tokens without the closing token that they begin with, where the action ended with it."""
        if not len(action_ids) or action_ids[-1] not in self._stop_ids:
            return token_ids
        closing = action_ids[-1]
        if token_ids[:1] == [closing]:
            return token_ids[1:]
        if after_space and closing in token_ids[:3]:  # a template that closes with " </s>"
            start = token_ids.index(closing)
            if not self.encoder.decode(token_ids[:start]).strip():
                return token_ids[start + 1 :]
        return token_ids

    def _encode_verbatim(self, observation: Observation, follows: Follows) -> list[int]:
        if isinstance(observation, str):
            return self.encoder.encode([Segment(observation, True)], follows)
        if isinstance(observation, Verbatim):
            segments = [Segment(part, isinstance(part, VerbatimData)) for part in observation.parts]
            return self.encoder.encode(segments, follows)
        return [int(token_id) for token_id in cast("Sequence[int]", observation)]


_REMEDY = (
    'set on_rewrite="append" to keep the context as the policy saw it, or on_rewrite="fork" to go on in a new record '
    "with the rewritten context"
)


class Conversation:
    """One episode's conversation. Call `prompt` once, then `action_text` and `continuation` once per turn.

    The messages so far are kept only where the template may have to be asked again about them. After a `Verbatim` or
    token ids they are no longer all there is, and what follows is appended.
    """

    __slots__ = ("_history", "_is_suspect", "_renderer")

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._history: list[Message] | None = [] if renderer.needs_history else None
        self._is_suspect = False  # whether something was said that the template may rewrite

    def prompt(self, observation: Observation) -> list[int]:
        """The token ids of the first observation.

        Raises:
            TemplateError: the template refuses it, or nothing is in it that a policy could read.
        """
        token_ids = self._renderer.encode_prompt(observation)
        if not token_ids:
            raise TemplateError(
                f"the first observation {observation!r} became no tokens; return something that a policy can read"
            )
        if self._history is not None:
            self._remember(self._history, observation)
        return token_ids

    def action_text(self, token_ids: Sequence[int], sampling: SamplingParams) -> str:
        """The action decoded: its closing token removed, cut at a stop string; other special tokens stay visible."""
        return self._renderer.action_text(token_ids, sampling.stop)

    def continuation(self, token_ids: Sequence[int], observation: Observation) -> Continuation:
        """What the policy reads after an action.

        Args:
            token_ids: the action exactly as sampled; it is closed where its last token is a closing token.
            observation: the feedback.

        Raises:
            TemplateError: the template refuses the feedback, or rewrites the history with `on_rewrite="error"`.
        """
        renderer, history = self._renderer, self._history
        if history is None:
            return Continuation(renderer.encode_after(token_ids, observation), is_fork=False)
        num_before = len(history)
        action = self._as_sampled(token_ids)
        history.append({"role": "assistant", "content": action})
        self._remember(history, observation)
        if self._history is not None and renderer.on_rewrite != "append":
            rewrite = self._find_rewrite(num_before, action)
            if rewrite and renderer.on_rewrite == "error":
                raise TemplateError(f"the chat template rewrites history: {rewrite}; {_REMEDY}")
            if rewrite:
                return Continuation(renderer.encode_messages(history), is_fork=True)
        before = history[:num_before] if renderer.counts_turns else None
        return Continuation(renderer.encode_after(token_ids, observation, before), is_fork=False)

    def _remember(self, history: list[Message], observation: Observation) -> None:
        messages = self._renderer.as_messages(observation)
        if messages is None:
            self._history = None
        else:
            history += messages

    def _find_rewrite(self, num_before: int, action: SampledText) -> str:
        """How the template now renders differently what came before, in words; empty where it doesn't."""
        template, history = self._renderer.template, self._history
        assert template is not None
        assert history is not None
        self._is_suspect = self._is_suspect or bool(template.plain_rewrite) or template.looks_for(action)
        if not self._is_suspect:
            return ""
        before = template.text(history[:num_before])
        return difference(before, action[len(template.prefill) :], template.text(history))

    def _as_sampled(self, token_ids: Sequence[int]) -> SampledText:
        """The action as a message's content, in which only control tokens that were sampled are control tokens."""
        renderer = self._renderer
        encoder = renderer.encoder
        ids = list(token_ids)
        if ids and ids[-1] in renderer.stop_token_ids:
            del ids[-1]
        pieces = [] if renderer.template is None else [Segment(renderer.template.prefill, False)]
        start = 0
        for end, token_id in enumerate([*ids, -1]):
            if token_id == -1 or token_id in encoder.control_ids:
                pieces.append(Segment(encoder.decode(ids[start:end]), True))
                if token_id != -1:
                    pieces.append(Segment(encoder.decode([token_id]), False))
                start = end + 1
        return SampledText([piece for piece in pieces if piece.text])


def _is_messages(observation: Any) -> TypeGuard[Sequence[Message]]:
    """An empty list or tuple counts as no messages; an empty array counts as no token ids."""
    if not len(observation):
        return isinstance(observation, list | tuple)
    return isinstance(observation[0], Mapping)
