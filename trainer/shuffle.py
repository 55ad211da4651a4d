"""The control run's permutation of what episodes earned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..agents.episode import Episode, TokenRecord, Turn
from ..agents.group import Group

_SHUFFLE = 0x5AFF1E
"""Sets this stream of random numbers apart from the run's others."""


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
