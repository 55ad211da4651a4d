"""Calls from an episode into its environment and its engine.

They are limited in time, and this is the one place where what they raise is caught.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import Any, Literal, NoReturn, TypeVar

from ..envs.errors import EngineError, EnvError, EnvWorkerError, InvalidStepError, PolicyFault, StepTimeoutError
from .deadline import Deadline
from .episode import Ending, Failure
from .failures import failure_of, fault_reward

T = TypeVar("T")


class EpisodeOver(Exception):  # noqa: N818 - leaves the loop of an episode; not an error
    """Ends an episode from inside one of its calls.

    Args:
        ending: why it is over.
        failure: what went wrong.
        is_refillable: whether another attempt can go better.
        is_bystander: whether another episode of the same worker process is to blame.
    """

    def __init__(
        self, ending: Ending, failure: Failure, *, is_refillable: bool = True, is_bystander: bool = False
    ) -> None:
        super().__init__(ending, failure)
        self.ending = ending
        self.failure = failure
        self.is_refillable = is_refillable
        self.is_bystander = is_bystander


class Calls:
    """The calls of one episode.

    Args:
        env_name: what messages call the environment.
        episode_timeout_s: seconds that the whole episode may take.

    Attributes:
        where: the call that goes on now, or the last one.
        turn: the turn it belongs to.
        is_blocking: set by whoever notices that the call keeps the event loop for itself.
    """

    def __init__(self, env_name: str, *, episode_timeout_s: float = math.inf) -> None:
        self.env_name = env_name
        self.where = "make"
        self.turn = 0
        self.is_blocking = False
        self._deadline = Deadline(episode_timeout_s)
        self._episode_timeout_s = episode_timeout_s

    def close(self) -> None:
        """Let go of the timer."""
        self._deadline.close()

    def end_episode(self) -> None:
        """The episode's limit of time, and whoever cancelled it so far, concern no further call."""
        self._deadline.end_episode()

    async def run(self, where: str, awaitable: Awaitable[T], limit_s: float) -> T:
        """Await a call.

        Raises:
            EpisodeOver: it raised, was overdue, or cancelled itself.
            PolicyFault: the environment blames the policy.
            asyncio.CancelledError: somebody cancels the episode.
        """
        self.where = where
        deadline = self._deadline
        deadline.start(limit_s)
        result: Any = None
        error: BaseException | None = None
        try:
            result = await awaitable
        except (Exception, SystemExit, asyncio.CancelledError) as caught:  # noqa: BLE001 - theirs, of any class
            error = caught
        if error is not None or self.is_blocking or deadline.is_cancelled:
            self._judge(error, limit_s)
        deadline.stop()
        return result

    def _judge(self, error: BaseException | None, limit_s: float) -> None:
        """Raise what it means that a call raised, was cancelled, or came back late. Returns where its result counts."""
        deadline = self._deadline
        is_overdue, is_cancelled = deadline.is_overdue, deadline.is_cancelled
        deadline.stop()
        if is_cancelled:
            if not deadline.take_expiry():
                raise error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError
            if not isinstance(error, EnvWorkerError):  # a killed worker knows better whose fault it was
                self._raise_overdue(limit_s)
        if error is not None:
            self._raise_failed(error)
        if is_overdue:
            self._raise_overdue(limit_s)
        self.is_blocking = False

    def check_time(self) -> None:
        """End the episode where its time is up; for episodes in which nothing ever waits."""
        if self._deadline.is_episode_over:
            self._raise_time_limit()

    def fail(self, error: BaseException, *, where: str | None = None, is_refillable: bool = True) -> NoReturn:
        """End the episode for an error of the environment, or of the engine where the call is `generate`."""
        self.where = where or self.where
        ending = Ending.ENGINE_FAILED if self.where == "generate" else Ending.ENV_FAILED
        raise EpisodeOver(
            ending,
            self.failure(error, "infra"),
            is_refillable=is_refillable,
            is_bystander=getattr(error, "is_bystander", False),
        ) from None

    def failure(self, error: BaseException, kind: Literal["infra", "policy"]) -> Failure:
        """The record of an error in the call that goes on."""
        return failure_of(error, kind=kind, where=self.where, turn=self.turn)

    def _raise_failed(self, error: BaseException) -> NoReturn:
        if isinstance(error, PolicyFault) and self.where == "step":
            if math.isfinite(fault_reward(error)):
                raise error
            error = InvalidStepError(f"{self.env_name}: PolicyFault has reward {error.reward!r}; it must be finite")
        elif isinstance(error, asyncio.CancelledError):
            error = EnvError(f"{self.env_name}: {self.where} cancelled itself").with_traceback(error.__traceback__)
        self.fail(error)

    def _raise_overdue(self, limit_s: float) -> NoReturn:
        if self._deadline.is_episode_over:
            self._raise_time_limit()
        if self.where == "generate":
            self.fail(EngineError(f"the engine gave no answer within {limit_s:g} s"))
        blocked = " and kept the event loop for itself; give it a worker process with env_workers" * self.is_blocking
        self.fail(StepTimeoutError(f"{self.env_name}: {self.where} took longer than {limit_s:g} s{blocked}"))

    def _raise_time_limit(self) -> NoReturn:
        message = f"the episode's limit of {self._episode_timeout_s:g} s was reached in {self.where}"
        has_acted = self.turn > 0 or self.where == "step"
        if not has_acted:  # nothing to train, and nothing that the policy could have done about it
            self.fail(StepTimeoutError(f"{self.env_name}: {message} before the first action"))
        raise EpisodeOver(Ending.TIME_LIMIT, self.failure(TimeoutError(message), "policy"))
