"""How a judge's endpoint is asked, and what its answers took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from ...errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """How an endpoint is asked.

    Attributes:
        model: the endpoint's name of the model.
        base_url: what `/chat/completions` is appended to.
        temperature: of sampling.
        max_tokens: that the model may write.
        timeout_s: seconds that one request may take, from its start.
        max_retries: further requests for an answer that failed or can't be used.
        backoff_s: seconds before the first of them; they double with each.
        max_concurrency: requests that run at the same time.
        requests_per_minute: that are begun, evenly spread; None doesn't limit them.
        price_per_million: what a million tokens of prompt and of answer cost.
        extra_body: further fields of each request.

    Raises:
        ConfigError: a field can't be used.
    """

    model: str
    base_url: str
    temperature: float = 0.0
    max_tokens: int = 1024
    timeout_s: float = 60.0
    max_retries: int = 5
    backoff_s: float = 1.0
    max_concurrency: int = 16
    requests_per_minute: float | None = None
    price_per_million: tuple[float, float] = (0.0, 0.0)
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(f"judge_model={self.model!r} must be the name of a model, as the endpoint knows it")
        _check_url(self.base_url)
        for name, least, kind in (
            ("temperature", 0, float),
            ("max_tokens", 1, int),
            ("max_retries", 0, int),
            ("backoff_s", 0, float),
            ("max_concurrency", 1, int),
        ):
            value = getattr(self, name)
            is_right = isinstance(value, int | kind) and not isinstance(value, bool) and least <= value < math.inf
            if not is_right:
                whole = "an integer" if kind is int else "a finite number"
                raise ConfigError(f"{name}={value!r} must be {whole} of at least {least}")
        for name, value in (("timeout_s", self.timeout_s), ("requests_per_minute", self.requests_per_minute)):
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name}={value!r} must be a finite number over 0")
        prices = self.price_per_million
        if len(prices) != 2 or not all(0 <= price < math.inf for price in prices):
            raise ConfigError(f"price_per_million={prices!r} must be two numbers of at least 0: (input, output)")

    @property
    def place(self) -> str:
        """What messages call model and endpoint."""
        return f"{self.model!r} at {self.base_url.rstrip('/')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeUsage:
    """What answers took.

    Attributes:
        prompt_tokens: read by the model, as the endpoint counted them.
        completion_tokens: written by the model.
        requests: that were sent.
        retries: those of them that repeat one that failed or gave nothing usable.
        cached: answers that came from the cache, and cost nothing.
        cost: of the tokens, in the currency of the prices.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    requests: int = 0
    retries: int = 0
    cached: int = 0
    cost: float = 0.0

    def __add__(self, other: JudgeUsage) -> JudgeUsage:
        return JudgeUsage(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def as_dict(self) -> dict[str, float]:
        """The counts by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def _check_url(url: str) -> None:
    """A key in a URL would stand in logs and messages: it is refused, and not repeated."""
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname)
        has_secret = bool(parts.username or parts.password or parts.query or parts.fragment)
    except (ValueError, AttributeError, TypeError):
        is_right = has_secret = False
    if has_secret:
        raise ConfigError("base_url must hold no user, query or fragment; a key belongs to api_key")
    if not is_right:
        raise ConfigError(f"base_url={url!r} must look like http://127.0.0.1:8000/v1")
