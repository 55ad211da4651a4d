"""Advantages: how the rewards of a group's turns become what the loss multiplies each token by.

Legend: i, j episodes of a group of size n; t turns; k tokens of a turn. `r[i,t]` is a turn's reward, `x[i,t,k]` the
reward of one of its tokens, `y` the discount per turn (tokens and feedback take no time).

    credit    return                                                     advantage of token k of turn t
    episode   G[i]     = sum over t of y^t (r[i,t] + sum_k x[i,t,k])     A(G[i])
    turn      G[i,t]   = r[i,t] + y G[i,t+1]                             A(G[i,t]) + x[i,t,k]
    token     G[i,t]   = r[i,t] + sum_k x[i,t,k] + y G[i,t+1]            A(G[i,t] - sum of x[i,t,l] over l < k)

With `credit="turn"` token rewards are local shaping: they have no baseline and reach exactly their tokens. A turn
without action tokens keeps its reward, which counts in the returns of the turns before it.

`A` is the estimator's formula. The numbers it compares, `G[1..n,t]`, are those of the same turn of every episode of the
group; where an episode had ended before turn t, `ended="zero"` compares its zero return and `ended="reached"` leaves it
out.

    reinforce           G                        no baseline
    reinforce_baseline  G - mean                 mean over the group, oneself included
    rloo                G - mean of the others   0 where there are no others
    group_norm          (G - mean) / (std + e)   std with n - 1 in the denominator, e = 1e-9; 0 where n = 1
    dr_grpo             G - mean

These are OpenRLHF 0.11's formulas (openrlhf/trainer/ppo_utils/experience_maker.py). There `reinforce` and
`reinforce_baseline` are then whitened over all action tokens of the batch, and so they are here (`whiten`, which
`AdvantageConfig.whiten` turns off). Deviations:

- OpenRLHF knows one return per episode, which is `credit="episode"`.
- Its discount decays over every token, feedback included, and is set to 1 for the group estimators; ours is per turn.
- Equal returns give exactly zero: numbers are compared as differences from the first one, in float64.
- A number that isn't finite is refused, and the episode named; there it silently zeroes a whole batch.

Unbiased estimates of the gradient, also when the policy itself decides how many turns it plays: `reinforce` without
whitening, and `rloo` with either `ended`. A mean that includes oneself only scales the gradient by (n-1)/n with
`ended="zero"`, and with `ended="reached"` shrinks each turn differently: biased. Dividing by a standard deviation is
biased, and so is whitening. With a discount below 1 a turn's own weight `y^t` is left out, as is usual.

Sources:
    Williams, R. J. (1992). Simple statistical gradient-following algorithms for connectionist reinforcement learning.
        https://doi.org/10.1007/BF00992696
    Kool, W., van Hoof, H., Welling, M. (2019). Buy 4 REINFORCE samples, get a baseline for free!
        https://openreview.net/forum?id=r1lgTGL5DE
    Ahmadian, A. et al. (2024). Back to basics: revisiting REINFORCE style optimization. https://arxiv.org/abs/2402.14740
    Shao, Z. et al. (2024). DeepSeekMath (GRPO, here `group_norm`). https://arxiv.org/abs/2402.03300
    Hu, J. et al. (2025). REINFORCE++ (`reinforce`, `reinforce_baseline`). https://arxiv.org/abs/2501.03262
    Liu, Z. et al. (2025). Understanding R1-Zero-like training (`dr_grpo`). https://arxiv.org/abs/2503.20783
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ..agents.episode import Episode
from ..envs.errors import ConfigError, RecordError

Estimator: TypeAlias = Literal["reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo"]
Credit: TypeAlias = Literal["episode", "turn", "token"]
Ended: TypeAlias = Literal["zero", "reached"]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

WHITENED: frozenset[Estimator] = frozenset({"reinforce", "reinforce_baseline"})
"""The estimators that OpenRLHF whitens over the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig:
    """How rewards become advantages.

    Attributes:
        estimator: the formula; see the table of this module.
        credit: what a reward is credited to: the episode, its turn and those before, or its token and those before.
        discount: factor per turn, in [0, 1].
        ended: what a turn's baseline takes for episodes that had ended before: zero, or nothing.
        whiten: bring the advantages of all action tokens of the update to mean 0 and deviation 1; None does so for the
            estimators that OpenRLHF whitens.
    """

    estimator: Estimator = "rloo"
    credit: Credit = "turn"
    discount: float = 1.0
    ended: Ended = "zero"
    whiten: bool | None = None

    def __post_init__(self) -> None:
        for name, kind in (("estimator", Estimator), ("credit", Credit), ("ended", Ended)):
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(f"{name}={getattr(self, name)!r}; choose one of {', '.join(get_args(kind))}")
        if not 0 <= self.discount <= 1:
            raise ConfigError(f"discount={self.discount!r} must lie in [0, 1]; 1 doesn't discount")

    @property
    def is_whitened(self) -> bool:
        """Whether the update's advantages are whitened."""
        return self.estimator in WHITENED if self.whiten is None else self.whiten


def group_advantages(
    episodes: Sequence[Episode],
    *,
    estimator: Estimator,
    credit: Credit = "turn",
    discount: float = 1.0,
    ended: Ended = "zero",
) -> tuple[tuple[Floats, ...], ...]:
    """Advantages of every token of a group, before any whitening.

    Args:
        episodes: the episodes of one task that share a baseline. An episode that forked weighs as one.
        estimator: see the table of this module.
        credit: what a reward is credited to.
        discount: factor per turn, in [0, 1].
        ended: what a turn's baseline takes for episodes that had ended before.

    Returns:
        For each episode and each of its records, [L] float64, zero off the action mask.

    Raises:
        ConfigError: an argument isn't one of its values.
        RecordError: an episode failed and may be in no baseline, or its return isn't finite; the message names it.
    """
    AdvantageConfig(estimator=estimator, credit=credit, discount=discount, ended=ended)
    for episode in episodes:
        if episode.is_failed:
            raise RecordError(f"{episode.episode_id} failed ({episode.ending}); failed episodes enter no baseline")
    returns, reached = _returns(episodes, credit, discount)
    offset, scale = _offset_and_scale(returns, reached, estimator, ended)
    return tuple(_spread(episode, returns[i] - offset[i], scale[i], credit) for i, episode in enumerate(episodes))


def turn_returns(rewards: Floats, discount: float = 1.0) -> Floats:
    """Return of each turn: `G[t] = r[t] + discount * G[t+1]`.

    >>> turn_returns(np.array([1.0, 0.0, 4.0]), discount=0.5)
    array([2., 2., 4.])

    Args:
        rewards: [T] what the turns earned.
        discount: factor per turn.

    Returns:
        [T].
    """
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards.tolist()):
        following = reward + discount * following
        returns.append(following)
    return np.array(returns[::-1])


def whiten(advantages: Sequence[Floats], action_masks: Sequence[Bools]) -> list[Floats]:
    """Bring the advantages of all action tokens to mean 0 and deviation 1: `(a - mean) / sqrt(max(variance, 1e-8))`.

    OpenRLHF 0.11's normalisation, over all action tokens of the update, never over a part of it. Equal advantages
    become exactly zero.

    Args:
        advantages: for each sample, [L], all finite.
        action_masks: for each sample, [L].

    Returns:
        For each sample, [L], zero off the mask.
    """
    values = np.concatenate([a[mask] for a, mask in zip(advantages, action_masks, strict=True)] or [np.empty(0)])
    if not len(values):
        return list(advantages)
    first = values[0]
    mean = (values - first).mean()
    rstd = 1 / math.sqrt(max(float(((values - first - mean) ** 2).mean()), 1e-8))
    return [np.where(mask, (a - first - mean) * rstd, 0.0) for a, mask in zip(advantages, action_masks, strict=True)]


def _returns(episodes: Sequence[Episode], credit: Credit, discount: float) -> tuple[Floats, Bools]:
    """Returns to compare, [n, T] (T is 1 for `credit="episode"`), and whether each episode reached each turn."""
    rows = []
    for episode in episodes:
        rewards = [turn.reward if credit == "turn" else turn.earned for turn in episode.turns]
        row = turn_returns(np.array(rewards, dtype=np.float64), discount)
        if not np.isfinite(row).all():
            raise RecordError(f"{episode.episode_id} has a return that is not finite: {row.tolist()}")
        rows.append(np.append(row, 0.0)[:1] if credit == "episode" else row)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    reached = np.arange(lengths.max(initial=0)) < lengths[:, None]
    returns = np.zeros(reached.shape)
    for i, row in enumerate(rows):
        returns[i, : len(row)] = row
    return returns, reached


def _offset_and_scale(returns: Floats, reached: Bools, estimator: Estimator, ended: Ended) -> tuple[Floats, Floats]:
    """What the estimator subtracts and then multiplies by, each [n, T]: `A(G) = (G - offset) * scale`."""
    ones = np.ones_like(returns)
    if estimator == "reinforce" or not returns.size:
        return np.zeros_like(returns), ones
    counted = np.ones_like(reached) if ended == "zero" else reached
    count = counted.sum(axis=0)
    first = np.take_along_axis(returns, counted.argmax(axis=0)[None], axis=0)
    differences = np.where(counted, returns - first, 0.0)
    total = differences.sum(axis=0)
    if estimator == "rloo":
        others = count - counted
        return np.where(others > 0, first + (total - differences) / np.maximum(others, 1), 0.0), ones
    mean = total / count
    if estimator != "group_norm":
        return ones * (first + mean), ones
    variance = np.where(counted, (differences - mean) ** 2, 0.0).sum(axis=0) / np.maximum(count - 1, 1)
    std = np.sqrt(variance)
    is_spread = std > 1e-12 * np.abs(returns).max(axis=0)
    return ones * (first + mean), ones * np.where(is_spread, 1 / (std + 1e-9), 0.0)


def _spread(episode: Episode, centred: Floats, scale: Floats, credit: Credit) -> tuple[Floats, ...]:
    """Put the advantages of an episode's turns, [T], on its tokens."""
    arrays = tuple(np.zeros(len(record)) for record in episode.records)
    for t, turn in enumerate(episode.turns):
        column = 0 if credit == "episode" else t
        span = slice(turn.action_start, turn.action_end)
        token_rewards = episode.records[turn.record].token_rewards[span].astype(np.float64)
        if credit == "token":
            earned_before = np.cumsum(token_rewards) - token_rewards
            arrays[turn.record][span] = (centred[column] - earned_before) * scale[column]
        else:
            arrays[turn.record][span] = centred[column] * scale[column]
            if credit == "turn":
                arrays[turn.record][span] += token_rewards
    return arrays
