"""Whether a tokenizer and its chat template can be continued token for token: the checks of `turngym check-tokens`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.markup import escape
from rich.table import Table

from ..envs.errors import TemplateError
from ..envs.sampling import SamplingParams
from ..envs.tokenizer import load_tokenizer
from ..envs.types import Message, Observation
from .builder import EpisodeBuilder
from .chat import Conversation, OnRewrite, Renderer
from .chat_template import ChatTemplate
from .engine import Generation, VersionSpan
from .episode import Ending
from .text_encoding import Follows

_CHOOSE = (
    'choose on_rewrite="append" to keep the context as the policy saw it, or on_rewrite="fork" to go on in a new '
    "record with the rewritten context"
)
_REPORT = "this is a fault of turngym; please report it with the tokenizer's name"
_STATES = {True: "ok", False: "FAILED", None: "skipped"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCheck:
    """One row of the report.

    Attributes:
        name: what should hold.
        passed: whether it does; None where there is nothing to check.
        detail: what was seen.
        remedy: what to change where it failed.
    """

    name: str
    passed: bool | None
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReport:
    """What `check_tokens` found. Prints as a table, with rich and without.

    Attributes:
        model: the model's name or folder.
        checks: the rows.
    """

    model: str
    checks: tuple[TokenCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.passed is not False for check in self.checks)

    def __str__(self) -> str:
        lines = [f"tokens of {self.model}"]
        for check in self.checks:
            lines.append(f"  {_STATES[check.passed]:7}  {check.name}: {check.detail}")
            lines += [f"           remedy: {check.remedy}"] if check.remedy else []
        return "\n".join(lines)

    def __rich__(self) -> Table:
        table = Table("", "check", "what was seen", title=f"tokens of {self.model}")
        for check in self.checks:
            style = {True: "green", False: "red", None: "yellow"}[check.passed]
            seen = check.detail + (f"\nremedy: {check.remedy}" if check.remedy else "")
            table.add_row(f"[{style}]{_STATES[check.passed]}[/]", check.name, escape(seen))
        return table


class _Outcome(NamedTuple):
    passed: bool | None
    detail: str
    remedy: str = ""


def check_tokens(
    tokenizer: Any, *, on_rewrite: OnRewrite | None = None, template_kwargs: Mapping[str, Any] | None = None
) -> TokenReport:
    """Check that conversations with this tokenizer and its chat template stay exact.

    Args:
        tokenizer: a transformers tokenizer, or a folder, or a Hub name in the local cache.
        on_rewrite: the choice made for templates that rewrite history; without one, such a template fails.
        template_kwargs: more variables for the template, such as `tools` or `enable_thinking`.

    Raises:
        ConfigError: there is no tokenizer in the folder, or it is no fast one.
    """
    if isinstance(tokenizer, str | Path):
        model, tokenizer = str(tokenizer), load_tokenizer(tokenizer, local_files_only=True)
    else:
        model = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    choice: OnRewrite | None = on_rewrite if on_rewrite in ("append", "fork") else None
    renderer = Renderer(tokenizer, on_rewrite=choice or "append", template_kwargs=template_kwargs)
    template = renderer.template
    checks: dict[str, Callable[[], _Outcome]] = {
        "chat template": lambda: _Outcome(None, "none: a str is verbatim text")
    }
    if template is not None:
        checks = {
            "append-only over turns": lambda: _check_append_only(template, choice),
            "separators are kept": lambda: _check_separators(renderer, template),
            "thinking is kept": lambda: _check_thinking(template, choice),
            "cut turns are closed": lambda: _check_closing(renderer, template),
            "tool results are kept": lambda: _check_tools(renderer),
        }
    checks["sampling can stop"] = lambda: _check_stop(renderer)
    checks["added tokens in feedback stay text"] = lambda: _check_added_tokens(renderer)
    checks["the mask is exact"] = lambda: _check_mask(renderer)
    return TokenReport(model=model, checks=tuple(_run(name, check) for name, check in checks.items()))


def _run(name: str, check: Callable[[], _Outcome]) -> TokenCheck:
    try:
        outcome = check()
    except TemplateError as error:
        outcome = _Outcome(False, str(error), "use a template that renders several turns of user and assistant")
    return TokenCheck(name=name, passed=outcome.passed, detail=outcome.detail, remedy=outcome.remedy)


def _check_append_only(template: ChatTemplate, choice: OnRewrite | None) -> _Outcome:
    if template.plain_rewrite:
        return _rewritten(template.plain_rewrite, choice)
    return _Outcome(True, "a conversation only grows at its end")


def _check_separators(renderer: Renderer, template: ChatTemplate) -> _Outcome:
    """What follows each action, against the template's own rendering of the whole conversation."""
    encoder, conversation = renderer.encoder, renderer.begin()
    messages: list[dict[str, str]] = [{"role": "user", "content": "Begin."}]
    conversation.prompt("Begin.")
    for number in range(3):
        action, feedback = f"Action {number}.", f"Feedback {number}."
        action_ids = encoder.encode_text(action)
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": feedback}]
        continuation = conversation.continuation(action_ids, feedback)
        whole = template.text(messages)
        expected = whole if continuation.is_fork else whole.rpartition(action)[2]
        follows = Follows.NOTHING if continuation.is_fork else encoder.follows(action_ids)
        if continuation.token_ids != encoder.encode_text(expected, follows):
            return _Outcome(
                False,
                f"after turn {number} stands {encoder.decode(continuation.token_ids)!r}, and the template writes "
                f"{expected!r}",
                "return Verbatim observations that write the template's markers themselves",
            )
    return _Outcome(True, "three turns of feedback equal the template's own rendering")


def _check_thinking(template: ChatTemplate, choice: OnRewrite | None) -> _Outcome:
    if template.plain_rewrite:
        return _Outcome(None, "every conversation is rewritten, with thinking or without")
    opening = "" if "<think>" in template.prefill else "<think>\n"
    thoughts = [f"{opening}A thought.\n</think>\n\nAn answer."]
    thoughts += [f"A thought.{literal}\n\nAn answer." for literal in template.literals]
    for thought in thoughts:
        if rewrite := template.find_rewrite((thought, "Two.")):
            return _rewritten(rewrite, choice)
    return _Outcome(True, "earlier thinking stays in the context")


def _rewritten(rewrite: str, choice: OnRewrite | None) -> _Outcome:
    if choice is None:
        return _Outcome(False, f"history is rewritten: {rewrite}", _CHOOSE)
    kept = "the context is kept" if choice == "append" else "a new record begins there"
    return _Outcome(True, f'history is rewritten, and with on_rewrite="{choice}" {kept}')


def _check_closing(renderer: Renderer, template: ChatTemplate) -> _Outcome:
    """A cut action gets its closing token; one that ended with it doesn't get it again."""
    encoder, closing = renderer.encoder, template.closing_ids()[:1]
    if not closing:
        return _Outcome(None, "the template closes a turn with text, not with a token")
    action_ids = encoder.encode_text("An answer.")
    cut = renderer.encode_after(action_ids, "Go on.")
    closed = renderer.encode_after([*action_ids, *closing], "Go on.")
    space, token, rest = cut[: -len(closed) - 1], cut[-len(closed) - 1 : -len(closed)], cut[-len(closed) :]
    if rest == closed and token == closing and not encoder.decode(space).strip():
        return _Outcome(True, f"{encoder.decode(closing)} stands once after every action")
    return _Outcome(
        False,
        f"after a cut action stands {encoder.decode(cut)!r}, after a closed one {encoder.decode(closed)!r}",
        "use a template that closes a turn in one way",
    )


def _check_tools(renderer: Renderer) -> _Outcome:
    contents = ("first result", "second result")
    results: list[Message] = [{"role": "tool", "content": content} for content in contents]
    action_ids = renderer.encoder.encode_text("An answer.")
    try:
        text = renderer.encoder.decode(renderer.encode_after(action_ids, results))
    except TemplateError as error:
        return _Outcome(None, str(error))
    lost = [content for content in contents if content not in text]
    if not lost:
        return _Outcome(True, "two results after one action both arrive")
    remedy = "return tool results as a str, which becomes one user message"
    return _Outcome(False, f"the template leaves out the {' and the '.join(lost)}", remedy)


def _check_stop(renderer: Renderer) -> _Outcome:
    if renderer.stop_token_ids:
        return _Outcome(True, "at " + ", ".join(renderer.encoder.decode([i]) for i in renderer.stop_token_ids))
    detail = "there is no end-of-sequence token, and the template closes no turn with a token"
    return _Outcome(False, detail, "set the tokenizer's eos_token")


def _check_added_tokens(renderer: Renderer) -> _Outcome:
    """Each added token, spelled in a prompt, in feedback, and in a message that the template renders."""
    encoder = renderer.encoder
    controls = encoder.control_ids - {encoder.unknown_id}
    action_ids = encoder.encode_text("An answer.")

    def parsed_in(text: str) -> list[list[int]]:
        observations: list[Observation] = [text]
        if renderer.template is not None:
            observations.append([{"role": "user", "content": text, "name": "a"}])
        encoded = [renderer.encode_prompt(text), *(renderer.encode_after(action_ids, o) for o in observations)]
        return [[i for i in token_ids if i in controls] for token_ids in encoded]

    tokens = list(encoder.control_tokens.values())
    plain = parsed_in("low low")
    parsed = [token for token in tokens if parsed_in(f"low{token}low") != plain]
    if not parsed:
        return _Outcome(True, f"none of {len(tokens)} becomes a token")
    detail = f"{len(parsed)} of {len(tokens)} change the tokens of the template around them: {', '.join(parsed[:5])}"
    return _Outcome(False, detail, "use a template that writes contents unchanged")


def _check_mask(renderer: Renderer) -> _Outcome:
    """An episode of random tokens: what the engine would have got, what was sampled, and what the record says."""
    rng = np.random.default_rng(0)
    builder, conversation = EpisodeBuilder(episode_id="check", task_id="check"), renderer.begin()
    builder.observe(conversation.prompt("Begin."))
    turns: list[tuple[int, list[int], list[int]]] = []
    record = 0
    for number in range(6):
        action = rng.integers(len(renderer.tokenizer), size=int(rng.integers(1, 9))).tolist()
        action += renderer.stop_token_ids[:1] if number % 2 else ()
        turns.append((record, list(builder.token_ids), action))
        record += _play(builder, conversation, tuple(action), f"Feedback {number}.")
    episode = builder.finish(Ending.TERMINATED)
    masks = [np.zeros(len(record), dtype=np.bool_) for record in episode.records]
    for record, prompt, action in turns:
        start, end = len(prompt), len(prompt) + len(action)
        masks[record][start:end] = True
        if episode.records[record].token_ids[:end].tolist() != prompt + action:
            return _Outcome(False, "a prompt is not its record's prefix", _REPORT)
    if any((mask != record.action_mask).any() for mask, record in zip(masks, episode.records, strict=True)):
        return _Outcome(False, "the mask is not true exactly on what was sampled", _REPORT)
    return _Outcome(True, f"{episode.num_action_tokens} random tokens in {len(turns)} turns")


def _play(builder: EpisodeBuilder, conversation: Conversation, action: tuple[int, ...], feedback: str) -> bool:
    """One turn, as the executor plays it. Whether the history was rewritten."""
    versions = (VersionSpan(0, len(action)),)
    logprobs = (-1.0,) * len(action)
    generation = Generation(token_ids=action, logprobs=logprobs, finish_reason="stop", versions=versions)
    sampling = SamplingParams()
    text = conversation.action_text(action, sampling)
    builder.act(generation, sampling=sampling, text=text)
    builder.feed_back(reward=0.0)
    continuation = conversation.continuation(action, feedback)
    (builder.fork if continuation.is_fork else builder.observe)(continuation.token_ids)
    return continuation.is_fork
