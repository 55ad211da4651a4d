"""How one turn is sampled."""

import math
from dataclasses import dataclass

from .errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request. Immutable: siblings can share one object without harm.

    Attributes:
        temperature: what the logits are divided by; 0 is greedy decoding (fit for evaluation, not for training).
        top_p: smallest probability mass kept, in (0, 1]; 1 keeps everything.
        top_k: number of most likely tokens kept; 0 keeps everything.
        max_tokens: most tokens to sample in this turn.
        stop_token_ids: sampling ends with, and includes, any of these. The executor adds the tokenizer's end of turn.
        stop: sampling ends when the decoded text contains any of these; the text is cut there, the tokens are kept.
        seed: seed of this request's own random stream; None takes one from the engine's.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 128
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ConfigError(f"temperature={self.temperature!r} must be finite and at least 0")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p={self.top_p!r} must lie in (0, 1]; 1 keeps the whole distribution")
        if self.top_k < 0:
            raise ConfigError(f"top_k={self.top_k!r} must be at least 0; 0 keeps the whole distribution")
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens={self.max_tokens!r} must be at least 1")
        if isinstance(self.stop, str) or "" in self.stop:
            raise ConfigError(f"stop={self.stop!r} must be a tuple of strings that are not empty")

    @property
    def is_truncated(self) -> bool:
        """Whether top-p or top-k cuts the distribution, so that a kept set belongs to each token."""
        return self.top_p < 1 or self.top_k > 0
