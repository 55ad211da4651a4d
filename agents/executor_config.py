"""How the executor plays: its limits, its processes, its seed."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..envs.errors import ConfigError
from ..envs.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """How episodes are played.

    Attributes:
        sampling: parameters of each turn, until a step gives others. A seed in them takes the run seed's place.
        max_turns: turns after which an episode is truncated, or None; it then ends at the latest after as many turns as
            the context has tokens.
        max_length: tokens that a context holds, the answer included.
        turn_timeout_s: seconds that the engine has for one turn, waiting in its queue included.
        step_timeout_s: seconds that one `reset` or `step` of the environment may take.
        close_timeout_s: seconds that the environment's `close` may take.
        episode_timeout_s: seconds that an episode may take; it is then truncated.
        max_refills: further attempts at an episode that the infrastructure failed.
        env_workers: processes that hold the environments; 0 holds them in this process.
        concurrency: episodes at once in `run_many` and `stream`.
        seed: what all seeds are derived from.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_turns: int | None = None
    max_length: int = 4096
    turn_timeout_s: float | None = 600.0
    step_timeout_s: float | None = 120.0
    close_timeout_s: float = 10.0
    episode_timeout_s: float | None = 3600.0
    max_refills: int = 3
    env_workers: int = 0
    concurrency: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("max_length", 2), ("max_refills", 0), ("env_workers", 0), ("concurrency", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be at least {least}")
        if self.max_turns is not None and self.max_turns < 1:
            raise ConfigError(f"max_turns={self.max_turns!r} must be at least 1, or None")
        for name in ("turn_timeout_s", "step_timeout_s", "close_timeout_s", "episode_timeout_s"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ConfigError(f"{name}={seconds!r} must be positive, or None for no limit")
