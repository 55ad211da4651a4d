"""Checks of the arguments that ready rewards take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

from ..errors import ConfigError


def number(value: Any, what: str, *, above: float = -math.inf, least: float = -math.inf) -> float:
    """An argument as a finite number.

    Raises:
        ConfigError: it isn't one, or isn't above `above`, or is less than `least`.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ConfigError(f"{what}={value!r} must be a finite number")
    if value <= above:
        raise ConfigError(f"{what}={value!r} must be greater than {above:g}")
    if value < least:
        raise ConfigError(f"{what}={value!r} must be at least {least:g}")
    return float(value)


def interval(value: Any, what: str) -> tuple[float, float]:
    """An argument as (least, greatest), the first less than the second.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        low, high = (number(bound, f"a bound of {what}") for bound in value)
        if low < high:
            return low, high
    raise ConfigError(f"{what}={value!r} must be (least, greatest), the first less than the second")


def texts(value: Any, what: str) -> tuple[str, ...]:
    """An argument as texts that aren't blank.

    Raises:
        ConfigError: it is one text, or something in it is blank or no text.
    """
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise ConfigError(f"{what}={value!r} must be a list of texts")
    items = tuple(value)
    for item in items:
        if not isinstance(item, str) or not item.strip():
            raise ConfigError(f"{what} holds {item!r}; it must be a list of texts that aren't blank")
    return items


def either(value: Any, synonym: Any, names: tuple[str, str], default: Any) -> Any:
    """An argument that has two spellings.

    Args:
        value: given by the first name, or None.
        synonym: given by the second name, or None.
        names: both names.
        default: where neither is given.

    Raises:
        ConfigError: both are given, with different values.
    """
    if value is not None and synonym is not None and value != synonym:
        raise ConfigError(f"{names[0]}={value!r} and {names[1]}={synonym!r} mean the same thing; give one of them")
    if value is not None:
        return value
    return default if synonym is None else synonym
