"""The error of a round in which every episode failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..agents.episode import Ending, Episode
from ..envs.errors import EngineError, EnvError, RewardError


def all_failed(failed: Sequence[Episode], *, what: str, remedy: str) -> EnvError | EngineError | RewardError:
    """The error to raise, by what most of the episodes failed with.

    Args:
        failed: the failed episodes, at least one.
        what: which episodes they are, such as `of update 3`.
        remedy: what to do now.
    """
    failures = [episode.failure for episode in failed if episode.failure is not None]
    counts = Counter(f"{failure.error} in {failure.where}" for failure in failures).most_common(3)
    told = ", ".join(f"{count} times {name}" for name, count in counts)
    message = (
        f"every episode {what} failed, {len(failed)} attempts in all: {told}; the last one said: "
        f"{failures[-1].message!r}. {remedy}"
    )
    endings = Counter(episode.ending for episode in failed)
    if 2 * endings[Ending.ENGINE_FAILED] > len(failed):
        return EngineError(message)
    return RewardError(message) if 2 * endings[Ending.REWARD_FAILED] > len(failed) else EnvError(message)
