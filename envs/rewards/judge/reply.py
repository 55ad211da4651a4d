"""What a judge answered: an endpoint's reply taken apart, and the verdict in it, read strictly."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from ...errors import RewardError
from .prompt import sendable
from .trouble import shortened

MAX_REASON_CHARS = 2_000

VERDICT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "score": {"type": "number"}},
    "required": ["reason", "score"],
    "additionalProperties": False,
}

_CODE_BLOCK = re.compile(r"```(?:json|JSON)?[ \t]*\n(.*)\n```", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An endpoint's reply.

    Attributes:
        content: what the model said; None where it can't be used.
        trouble: why not.
        prompt_tokens: that the endpoint counted; 0 where it doesn't say.
        completion_tokens: that the endpoint counted; 0 where it doesn't say.
    """

    content: str | None = None
    trouble: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rating on the judge's scale, and what the judge said about it."""

    rating: float
    reason: str = ""


def completion_of(body: str) -> Completion:
    """The reply of `/chat/completions` in a body that may hold anything."""
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        return Completion(trouble=f"the endpoint's reply is no JSON: {shortened(body)}")
    usage = _get(reply, "usage")
    num_read, num_written = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    choices = _get(reply, "choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message, finish = _get(choice, "message"), _get(choice, "finish_reason")
    content, refusal = _get(message, "content"), _get(message, "refusal")
    if not isinstance(choice, dict):
        trouble = "the reply has no choices"
    elif isinstance(refusal, str) and refusal:
        trouble = f"the judge refused: {shortened(refusal)}"
    elif finish == "length":
        trouble = "the verdict was cut off; raise max_tokens"
    elif finish == "content_filter":
        trouble = "the endpoint's content filter withheld the verdict"
    elif not isinstance(content, str) or not content.strip():
        trouble = "the reply is empty"
    else:
        return Completion(content=content, prompt_tokens=num_read, completion_tokens=num_written)
    return Completion(trouble=trouble, prompt_tokens=num_read, completion_tokens=num_written)


def verdict_of(content: str, rating_scale: tuple[float, float]) -> Verdict:
    """The verdict in what a judge said: one JSON object with a `score` on the scale, and maybe a `reason`.

    Nothing may stand around it, since a judge that quotes the policy would quote its ratings, too. Allowed are one
    Markdown code block around all of it, and a `<think>` part before it, of which the last end counts.

    >>> verdict_of('{"reason": "Right.", "score": 9}', (1, 10))
    Verdict(rating=9.0, reason='Right.')

    Raises:
        RewardError: it is something else; the message doesn't quote what the judge said.
    """
    text = content.strip()
    if text.startswith("<think>"):
        text = text.rpartition("</think>")[2].strip()
    if block := _CODE_BLOCK.fullmatch(text):
        text = block[1]
    try:
        verdict = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        detail = f": {error}" if isinstance(error, _RefusedJsonError) else ""
        raise RewardError(f"the verdict is not one JSON object{detail}") from None
    if not isinstance(verdict, dict):
        raise RewardError("the verdict is not one JSON object")
    score, reason = verdict.get("score"), verdict.get("reason")
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise RewardError("the verdict's score is missing" if score is None else "the verdict's score is no number")
    low, high = rating_scale
    if not (low <= score <= high) or not math.isfinite(score):
        raise RewardError(f"the verdict's score isn't on the scale from {low:g} to {high:g}")
    return Verdict(float(score), sendable(reason[:MAX_REASON_CHARS]) if isinstance(reason, str) else "")


class _RefusedJsonError(ValueError):
    """JSON that the parser would accept."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise _RefusedJsonError("a name is repeated")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise _RefusedJsonError("a number isn't finite")


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _count(usage: Any, name: str) -> int:
    count = _get(usage, name)
    return count if type(count) is int and 0 <= count < 2**53 else 0
