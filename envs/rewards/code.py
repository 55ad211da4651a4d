"""Reward for code that passes its tests. It refuses, because there is no sandbox to run code in."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from .base import RewardFunction
from .types import RewardOutput, Trajectory

REFUSAL = (
    "CodeReward can't run code: turngym has no sandbox, and what a policy writes must not run beside the training. "
    "Write a reward file that runs the code in an isolation of your own, a container for example, and give it with "
    "--remote_rm_url FILE"
)


class CodeReward(RewardFunction):
    """Runs the code of a response against its tests, in a sandbox. There is none, so it can't be made.

    Raises:
        ConfigError: always; it says what to do instead.
    """

    reward_range = (0.0, 1.0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise ConfigError(REFUSAL)

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        """Never called."""
        raise NotImplementedError
