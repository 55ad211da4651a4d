"""What can go wrong with a request to a judge's endpoint: whether to ask again, and when."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from .secrets import Secret

MAX_WAIT_S = 120.0
"""The longest wait that an endpoint may ask for; and twice the longest between two tries."""

_TRANSIENT = frozenset({408, 409, 425, 429})
_REMEDIES = {
    401: "check the key ({key_hint})",
    403: "check what the key may be used for ({key_hint})",
    404: "check base_url and judge_model",
    **dict.fromkeys((301, 302, 303, 307, 308), "redirections aren't followed: give base_url as it points to"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why a request gave no answer.

    Attributes:
        message: for the error, without the key.
        is_transient: whether the same request may succeed later.
        is_answered: whether the model answered, with something that can't be used.
        is_refused: whether the endpoint won't take the request as it is.
        wait_s: seconds that the endpoint wants one to wait; None where it says nothing.
    """

    message: str
    is_transient: bool = False
    is_answered: bool = False
    is_refused: bool = False
    wait_s: float | None = None

    def wait_after(self, retries: int, backoff_s: float, chance: float) -> float:
        """Seconds to wait before the next try.

        `backoff_s` doubled with each retry, shortened by up to a half, or as long as the endpoint wants, lengthened by
        up to half of `backoff_s`, so that those that failed together don't come back together.

        Args:
            retries: how many there were.
            backoff_s: the wait before the first.
            chance: evenly drawn from [0, 1).
        """
        if self.is_answered:
            return 0.0
        if self.wait_s is not None:
            return self.wait_s + backoff_s * chance / 2
        return min(MAX_WAIT_S / 2, backoff_s * 2.0 ** min(retries, 30)) * (1 - chance / 2)


def trouble_of(error: Exception, *, place: str, secret: Secret, timeout_s: float, key_hint: str) -> Trouble:
    """What an error of the `openai` client means.

    Args:
        error: what it raised.
        place: names model and endpoint.
        secret: what the message mustn't hold.
        timeout_s: seconds that the request might take.
        key_hint: where the key came from.
    """
    import openai

    if isinstance(error, TimeoutError | openai.APITimeoutError):
        return Trouble(message=f"{place} took longer than {timeout_s:g} s", is_transient=True)
    if isinstance(error, openai.APIStatusError):
        return _status_trouble(error, place, secret, key_hint)
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        detail = shortened(secret.scrub(f"{type(cause).__name__}: {cause}"))
        return Trouble(message=f"{place} can't be reached, or hung up ({detail})", is_transient=True)
    return Trouble(message=shortened(secret.scrub(f"{place}: {type(error).__name__}: {error}")))


def _status_trouble(error: Any, place: str, secret: Secret, key_hint: str) -> Trouble:
    status = int(error.status_code)
    said = shortened(secret.scrub(_said(error.body)))
    message = f"{place} answered {status}" + (f" ({said})" if said else "")
    if status in _REMEDIES:
        message += f"; {_REMEDIES[status].format(key_hint=key_hint)}"
    if (status not in _TRANSIENT and status < 500) or error.code == "insufficient_quota":
        return Trouble(message=message, is_refused=status in (400, 422))
    wait_s = asked_wait(error.response.headers)
    if wait_s is not None and wait_s > MAX_WAIT_S:
        return Trouble(message=f"{message}; it wants {wait_s:.0f} s of waiting, and {MAX_WAIT_S:.0f} s are the limit")
    return Trouble(message=message, is_transient=True, wait_s=wait_s)


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that an endpoint wants one to wait: `Retry-After` in seconds or as a date, or `retry-after-ms`."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            wait_s = float(headers.get(name) or "") * unit
        except ValueError:
            continue
        if math.isfinite(wait_s) and wait_s >= 0:
            return wait_s
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after") or "").timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def shortened(text: str, limit: int = 200) -> str:
    """A text on one line, cut where it is long."""
    text = " ".join(text[: 4 * limit].split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _said(body: Any) -> str:
    """What the body of a failed request says."""
    if isinstance(body, dict):
        said = next((body[name] for name in ("message", "detail", "error") if isinstance(body.get(name), str)), None)
        return json.dumps(body, default=str) if said is None else said
    return body if isinstance(body, str) else ""
