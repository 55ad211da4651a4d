"""Wrappers: limits and the order of calls, around any environment."""

from .base import Wrapper
from .order import OrderEnforcing
from .step_timeout import StepTimeout
from .time_limit import TimeLimit

__all__ = ["Wrapper", "OrderEnforcing", "TimeLimit", "StepTimeout"]
