"""Who is compared with whom in a group, whatever the order its responses come in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from .types import Trajectory


def content_key(trajectory: Trajectory, seed: int = 0) -> str:
    """A digest of what was asked and answered; responses of the same text have the same.

    Sorted by it, the responses of a group are in an order that seems random, and that only their texts and the seed
    decide.
    """
    text = json.dumps([seed, trajectory.prompt, trajectory.response, list(trajectory.messages)], default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def pairings(count: int, num_rounds: int | None = None) -> list[tuple[int, int]]:
    """Pairs (i, j) with i < j of the players 0 to count - 1, each at most once.

    Rounds follow the circle method: one player stays, the others move on by a place each round; an odd one out rests,
    nobody twice. With all rounds, everybody meets everybody.

    >>> pairings(3)
    [(0, 1), (0, 2), (1, 2)]
    >>> pairings(4, 2)
    [(0, 1), (0, 3), (1, 2), (2, 3)]

    Args:
        count: how many players there are.
        num_rounds: how many of the rounds are played; None plays all of them.

    Source:
        Round-robin scheduling, https://en.wikipedia.org/wiki/Round-robin_tournament#Circle_method
    """
    places: Sequence[int] = range(count + count % 2)  # the last is no player where there is an odd one out
    size = len(places)
    pairs: list[tuple[int, int]] = []
    for number in range(max(size - 1, 0) if num_rounds is None else min(num_rounds, max(size - 1, 0))):
        moved = [places[0], *(1 + (place - 1 + number) % (size - 1) for place in places[1:])]
        for left, right in zip(moved[: size // 2], reversed(moved[size // 2 :]), strict=True):
            if max(left, right) < count:
                pairs.append((min(left, right), max(left, right)))
    return sorted(pairs)
