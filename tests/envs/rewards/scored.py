"""What scoring came to, where nothing may fail."""

from __future__ import annotations

from collections.abc import Sequence

from turngym.envs.errors import RewardError
from turngym.envs.rewards import RewardOutput


def outputs_of(scored: Sequence[RewardOutput | RewardError]) -> list[RewardOutput]:
    """The outputs; the first error is raised."""
    return [output_of(one) for one in scored]


def output_of(scored: RewardOutput | RewardError) -> RewardOutput:
    """The output; an error is raised."""
    if isinstance(scored, RewardError):
        raise scored
    return scored
