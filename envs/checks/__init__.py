"""`check_env`: small named checks that tell what is wrong with an environment, and what to change."""

from .context import CheckLimits
from .report import CheckReport, CheckResult
from .runner import acheck_env, check_env

__all__ = ["check_env", "acheck_env", "CheckReport", "CheckResult", "CheckLimits"]
