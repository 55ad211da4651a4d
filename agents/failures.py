"""From an exception to the record of a failure."""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass
from typing import Literal

from ..envs.errors import EnvError, PolicyFault
from .episode import Failure

MAX_MESSAGE_CHARS = 2_000
MAX_TRACEBACK_CHARS = 8_000
MAX_REWARD = 3.4e38
"""Largest reward that float32 holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """An exception as data: what is left of it when it crosses a process boundary.

    Attributes:
        error: its class's name.
        message: its message.
        traceback: where it was raised, as text, cut to its end.
        where: what was going on, where the raiser knows it better than the caller: `make`, `reset`, `step`, `close`.
        policy_reward: the reward that a `PolicyFault` carried, or None for any other error.
    """

    error: str
    message: str
    traceback: str = ""
    where: str | None = None
    policy_reward: float | None = None


class RemoteEnvError(EnvError):
    """An environment in a worker process raised."""

    def __init__(self, record: ErrorRecord) -> None:
        super().__init__(record)
        self.record = record

    def __str__(self) -> str:
        return f"{self.record.error}: {self.record.message}"


def record_error(error: BaseException, *, where: str | None = None, policy_reward: float | None = None) -> ErrorRecord:
    """The exception as a record. Exceptions whose own `str` raises, or gives no Unicode, are recorded, too."""
    if isinstance(error, RemoteEnvError):
        return error.record
    try:
        message = str(error)
    except Exception as second:  # noqa: BLE001 - an environment's own class
        message = f"<its str() raised {type(second).__name__}>"
    return ErrorRecord(
        error=type(error).__name__,
        message=_head(message, MAX_MESSAGE_CHARS),
        traceback=_tail("".join(traceback.format_exception(error)), MAX_TRACEBACK_CHARS),
        where=where,
        policy_reward=policy_reward,
    )


def fault_reward(fault: PolicyFault) -> float:
    """The reward of a fault; NaN where it is no number that float32 holds."""
    try:
        reward = float(fault.reward)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return reward if abs(reward) <= MAX_REWARD else math.nan


def failure_of(error: BaseException, *, kind: Literal["infra", "policy"], where: str, turn: int) -> Failure:
    """The failure that an exception means."""
    record = record_error(error)
    return Failure(
        kind=kind,
        where=record.where or where,
        error=record.error,
        message=record.message,
        turn=turn,
        traceback=record.traceback,
    )


def _head(text: str, length: int) -> str:
    text = _unicode(text)
    return text if len(text) <= length else text[: length - 3] + "..."


def _tail(text: str, length: int) -> str:
    text = _unicode(text)
    return text if len(text) <= length else "..." + text[3 - length :]


def _unicode(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
