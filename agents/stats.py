"""What an executor counts: endings, failures by name, and whatever had to be left behind."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ..envs.threads import abandoned_threads
from .episode import Ending, Episode, Failure

logger = logging.getLogger("turngym.executor")

MIN_FAILURES = 10
"""Infrastructure failures after which their actions' lengths are compared with the others'."""

MIN_DEVIATIONS = 4.0
"""Standard errors between the mean lengths that are no chance any more."""


@dataclass(slots=True)
class _Moments:
    """Mean and variance of numbers that come one by one (Welford, 1962)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self.squares += delta * (value - self.mean)

    @property
    def squared_error(self) -> float:
        return self.squares / max(self.count - 1, 1) / max(self.count, 1)


@dataclass(slots=True)
class ExecutorStats:
    """Counts over the life of an executor, which plays one environment.

    Attributes:
        env: the environment.
        endings: finished episodes by ending, failed attempts included.
        failures: infrastructure failures by the error's class name.
        bystanders: episodes lost because another one killed their worker process.
        unclosed: environments that couldn't be closed, by the error's class name.
        blocked: calls that kept the event loop for themselves, by call.
        worker_restarts: worker processes that died or were killed, and were replaced.
        threads_elsewhere: gives the abandoned threads of worker processes.
    """

    env: str
    endings: Counter[Ending] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    bystanders: int = 0
    unclosed: Counter[str] = field(default_factory=Counter)
    blocked: Counter[str] = field(default_factory=Counter)
    worker_restarts: int = 0
    threads_elsewhere: Callable[[], int] = field(default=lambda: 0, repr=False)
    _threads_before: int = field(default_factory=abandoned_threads, repr=False)
    _ok_lengths: _Moments = field(default_factory=_Moments, repr=False)
    _failed_lengths: _Moments = field(default_factory=_Moments, repr=False)
    _warned: set[str] = field(default_factory=set, repr=False)

    @property
    def num_episodes(self) -> int:
        """Finished episodes, failed attempts included."""
        return self.endings.total()

    @property
    def num_failed(self) -> int:
        """Episodes that the infrastructure failed."""
        return self.failures.total()

    @property
    def failure_rate(self) -> float:
        """Share of the finished episodes that the infrastructure failed."""
        return self.num_failed / max(self.num_episodes, 1)

    @property
    def abandoned_threads(self) -> int:
        """Threads that are still busy with a call that was given up since the executor was made."""
        return max(0, abandoned_threads() - self._threads_before) + self.threads_elsewhere()

    def add(self, episode: Episode, *, is_bystander: bool = False) -> None:
        """Count a finished episode."""
        self.endings[episode.ending] += 1
        if episode.failure is None or not episode.is_failed:
            if episode.turns:
                self._ok_lengths.add(episode.num_action_tokens / len(episode.turns))
            return
        self.failures[episode.failure.error] += 1
        self.bystanders += is_bystander
        if not is_bystander:
            self._warn_once("failed", episode.failure)
        if episode.ending is Ending.ENV_FAILED and episode.turns and not is_bystander:
            self._failed_lengths.add(episode.turns[-1].num_action_tokens)
            self._warn_of_long_actions()

    def add_unclosed(self, failure: Failure) -> None:
        """Count an environment that couldn't be closed."""
        self.unclosed[failure.error] += 1
        self._warn_once("couldn't be closed", failure)

    def add_restart(self) -> None:
        """Count a worker process that was replaced."""
        self.worker_restarts += 1

    def add_blocked(self, where: str, at: str) -> None:
        """Count a call that keeps the event loop for itself."""
        self.blocked[where] += 1
        if f"blocked {where}" not in self._warned:
            self._warned.add(f"blocked {where}")
            logger.warning(
                "%s: %s blocks the event loop, and with it every other episode (%s); make it a plain def, "
                "or give it worker processes with env_workers",
                self.env,
                where,
                at,
            )

    def _warn_once(self, what: str, failure: Failure) -> None:
        """The first failure of each class is told whole; the rest are counted."""
        key = f"{what} {failure.where} {failure.error}"
        if key not in self._warned:
            self._warned.add(key)
            message = "%s: an episode %s in %s, turn %d: %s: %s\nFurther ones are counted."
            logger.warning(message, self.env, what, failure.where, failure.turn, failure.error, failure.message)

    def _warn_of_long_actions(self) -> None:
        """A failed episode is left out of training: where long actions cause failures, that biases the policy."""
        failed, ok = self._failed_lengths, self._ok_lengths
        if "long actions" in self._warned or failed.count < MIN_FAILURES or ok.count < MIN_FAILURES:
            return
        distance = failed.mean - ok.mean
        if distance > MIN_DEVIATIONS * math.sqrt(failed.squared_error + ok.squared_error):
            self._warned.add("long actions")
            logger.warning(
                "%s: the environment fails on long actions: %.0f tokens on average where it failed, %.0f elsewhere. "
                "Failed episodes are left out of training, which hides what long actions cost; if the policy is to "
                "blame, raise PolicyFault in step",
                self.env,
                failed.mean,
                ok.mean,
            )
