"""Changes to what finished episodes earned: a reward of the user's own, and the control run's permutation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ..agents.episode import Episode, TokenRecord, Turn
from ..agents.group import Group
from ..envs.errors import RecordError
from ..envs.tasks import Task

RewardFn: TypeAlias = Callable[[Episode, Task], float | None]
"""What an episode earns on top of what its environment gave, or None for nothing."""


_SHUFFLE = 0x5AFF1E
"""Sets this stream of random numbers apart from the run's others."""


def add_rewards(group: Group, reward: RewardFn) -> Group:
    """Add what `reward` gives each episode to the episode's last turn. Failed episodes aren't asked about.

    Raises:
        RecordError: it gave something that is no finite number.
    """
    return replace(group, episodes=tuple(_add(episode, reward(episode, group.task)) for episode in group.episodes))


def _add(episode: Episode, value: float | None) -> Episode:
    if value is None or not episode.turns:
        return episode
    if not math.isfinite(value):
        raise RecordError(f"the reward of {episode.episode_id} is {value!r}; return a finite number, or None")
    *others, last = episode.turns
    return replace(episode, turns=(*others, replace(last, reward=last.reward + float(value))))


def shuffle_rewards(groups: Sequence[Group], *, seed: int, update: int) -> list[Group]:
    """Give each episode of an update the rewards of another, drawn at random: nothing can be learned from them.

    An episode's rewards move together, turn by turn; those of more turns than the new owner has go to its last turn, so
    that every sum stays what it was. Token rewards join their turn's reward. Scores stay where they are.

    Args:
        groups: the groups of one update.
        seed: the run's.
        update: which update; each has a permutation of its own.
    """
    episodes = [episode for group in groups for episode in group.episodes if episode.turns]
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_SHUFFLE, update)))
    donors = [episodes[i] for i in rng.permutation(len(episodes))]
    given = {e.episode_id: _with_rewards(e, donor) for e, donor in zip(episodes, donors, strict=True)}
    return [replace(g, episodes=tuple(given.get(e.episode_id, e) for e in g.episodes)) for g in groups]


def _with_rewards(episode: Episode, donor: Episode) -> Episode:
    earned = [turn.earned for turn in donor.turns]
    last = len(episode.turns) - 1
    rewards = [*earned[:last], math.fsum(earned[last:]), *([0.0] * len(episode.turns))]
    turns = tuple(_set_reward(turn, reward) for turn, reward in zip(episode.turns, rewards, strict=False))
    return replace(episode, turns=turns, records=tuple(_without_token_rewards(record) for record in episode.records))


def _set_reward(turn: Turn, reward: float) -> Turn:
    return replace(turn, reward=reward, token_reward=0.0)


def _without_token_rewards(record: TokenRecord) -> TokenRecord:
    return replace(record, token_rewards=np.zeros_like(record.token_rewards))
