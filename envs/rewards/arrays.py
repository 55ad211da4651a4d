"""Arrays, tensors and lists that reward functions give, as lists of floats. Torch is never imported for it."""

from __future__ import annotations

import math
from typing import Any

from ..errors import InvalidRewardError, RewardError
from .types import described


def as_floats(value: Any, count: int, what: str) -> list[float]:
    """As `as_numbers`, of which each must be finite.

    Raises:
        InvalidRewardError: as there.
        RewardError: a number isn't finite.
    """
    numbers = as_numbers(value, count, what)
    for index, number in enumerate(numbers):
        if not math.isfinite(number):
            raise RewardError(f"{what}[{index}] is {number}; it must be finite")
    return numbers


def as_numbers(value: Any, count: int, what: str) -> list[float]:
    """One float for each of `count` responses; not finite where the given number isn't, or is beyond every float.

    Args:
        value: a list, tuple, array or tensor of shape [count]; for one response a number will do.
        count: how many responses there were.
        what: names the value in messages.

    Raises:
        InvalidRewardError: it has another shape, or holds something that is no number; the message names both shapes.
    """
    items: Any = value.tolist() if hasattr(value, "tolist") else value  # numpy's arrays, torch's tensors
    if isinstance(items, bool | int | float) and count == 1:
        items = [items]
    if not isinstance(items, list | tuple) or len(items) != count:
        there_were = "there was 1 response" if count == 1 else f"there were {count} responses"
        raise InvalidRewardError(f"{what} is {_shaped(value)}, and {there_were}; it must be [{count}]")
    items = [item.item() if hasattr(item, "item") and getattr(item, "shape", None) == () else item for item in items]
    if not all(isinstance(item, bool | int | float) for item in items):
        raise InvalidRewardError(f"{what} is {_shaped(value)}; it must be [{count}], one number for each response")
    return [_float(item) for item in items]


def as_logs(extra_logs: Any, count: int, what: str) -> list[dict[str, float]]:
    """For each of `count` responses, its numbers to log.

    Args:
        extra_logs: name -> truth value, number, or array or tensor of shape [] or [count]. Keys may differ from call to
            call; None stands for none.
        count: how many responses there were.
        what: names the value in messages.

    Raises:
        InvalidRewardError: it is no dict, or a value has another shape.
    """
    if extra_logs is None:
        return [{} for _ in range(count)]
    if not isinstance(extra_logs, dict):
        raise InvalidRewardError(f"{what} is {_shaped(extra_logs)}; it must be a dict of numbers")
    rows: list[dict[str, float]] = [{} for _ in range(count)]
    for name, value in extra_logs.items():
        items = value.tolist() if hasattr(value, "tolist") else value
        items = [items] * count if isinstance(items, bool | int | float) else items
        is_flat = isinstance(items, list | tuple) and all(isinstance(item, bool | int | float) for item in items)
        if not is_flat or len(items) != count:
            raise InvalidRewardError(
                f"{what}[{name!r}] is {_shaped(value)}; it must be a number, or [{count}], one for each response"
            )
        for row, item in zip(rows, items, strict=True):
            row[str(name)] = float(item)
    return rows


def _float(item: float) -> float:
    try:
        return float(item)
    except OverflowError:  # an int beyond every float
        return math.inf if item > 0 else -math.inf


def _shaped(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {len(value)}"
    return described(value)
