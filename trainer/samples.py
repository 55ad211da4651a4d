"""Samples: one training row for each token record of an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..agents.episode import Episode, TokenRecord, Turn
from ..envs.errors import ConfigError, RecordError
from .advantages import AdvantageConfig, group_advantages, whiten


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One row for the trainer, made from a token record.

    Attributes:
        episode_id: the episode that it belongs to; all samples of an episode weigh as one.
        slot: the group's place in the order of training.
        token_ids: [L] int64, what the policy read and sampled.
        action_mask: [L] bool, true on the tokens that the policy sampled.
        loss_mask: [L] bool, true on those of them that are trained. Decided here and nowhere else.
        advantages: [L] float64, what the loss multiplies; zero off the action mask.
        sampled_logprobs: [L] float32, the engine's logprobs; NaN off the action mask.
        versions: [L] int32, the policy version that sampled each token; -1 off the action mask.
        temperatures: [L] float32, what each action token's logits were divided by; 1 off the action mask.
        kept_token_ids: for each action token in order, the ids that top-p or top-k kept (empty: all of them), or None
            where nothing was cut.
    """

    episode_id: str
    slot: int
    token_ids: npt.NDArray[np.int64]
    action_mask: npt.NDArray[np.bool_]
    loss_mask: npt.NDArray[np.bool_]
    advantages: npt.NDArray[np.float64]
    sampled_logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    temperatures: npt.NDArray[np.float32]
    kept_token_ids: tuple[npt.NDArray[np.int64], ...] | None = None

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        for name in ("action_mask", "loss_mask", "advantages", "sampled_logprobs", "versions", "temperatures"):
            shape = getattr(self, name).shape
            if shape != (length,):
                raise RecordError(f"{self.episode_id}: {name} has shape {shape} and token_ids ({length},); all are [L]")
        if (self.loss_mask & ~self.action_mask).any():
            raise RecordError(f"{self.episode_id}: loss_mask trains a token that the policy didn't sample")
        if length and self.loss_mask[0]:
            raise RecordError(f"{self.episode_id}: the first token is trained, and nothing before it predicts it")
        for name in ("advantages", "sampled_logprobs"):
            wrong = self.loss_mask & ~np.isfinite(getattr(self, name))
            if wrong.any():
                where = int(wrong.argmax())
                raise RecordError(
                    f"{self.episode_id}: {name} of token {where} is {getattr(self, name)[where]}; it must be finite"
                )

    @property
    def num_trained_tokens(self) -> int:
        """How many tokens of it are trained."""
        return int(self.loss_mask.sum())


def samples_from_groups(groups: Sequence[Sequence[Episode]], config: AdvantageConfig) -> list[Sample]:
    """Everything that one update trains.

    Args:
        groups: the groups of the update; each holds the episodes of one task, without failed ones.
        config: how rewards become advantages.

    Returns:
        The samples, in the order of the groups, episodes and records.

    Raises:
        RecordError: an episode failed, or an advantage isn't finite; the message names it.
        ConfigError: a turn was sampled in a way that can't be trained.
    """
    samples = [
        sample
        for episodes in groups
        if episodes
        for sample in samples_from_group(
            episodes,
            group_advantages(
                episodes,
                estimator=config.estimator,
                credit=config.credit,
                discount=config.discount,
                ended=config.ended,
            ),
        )
    ]
    if not config.is_whitened:
        return samples
    advantages = whiten([sample.advantages for sample in samples], [sample.action_mask for sample in samples])
    return [replace(sample, advantages=a) for sample, a in zip(samples, advantages, strict=True)]


def samples_from_group(
    episodes: Sequence[Episode], advantages: Sequence[Sequence[npt.NDArray[np.float64]]]
) -> list[Sample]:
    """One sample for each token record that holds action tokens.

    Each sampled token is trained in exactly one sample: where it was sampled. In a record that a fork began, what was
    sampled before is observation.

    Args:
        episodes: the episodes of a group.
        advantages: for each episode and each of its records, [L] the advantages.

    Raises:
        ConfigError: a turn was sampled at temperature 0, or was cut by top-p or top-k without its kept sets.
    """
    samples: list[Sample] = []
    for episode, per_record in zip(episodes, advantages, strict=True):
        _check_trainable(episode)
        for index, (record, values) in enumerate(zip(episode.records, per_record, strict=True)):
            if not record.action_mask.any():
                continue
            turns = [turn for turn in episode.turns if turn.record == index]
            samples.append(
                Sample(
                    episode_id=episode.episode_id,
                    slot=episode.slot,
                    token_ids=record.token_ids,
                    action_mask=record.action_mask,
                    loss_mask=record.action_mask,
                    advantages=values,
                    sampled_logprobs=record.sampled_logprobs,
                    versions=record.versions,
                    temperatures=_temperatures(record, turns),
                    kept_token_ids=record.kept_token_ids,
                )
            )
    return samples


def _temperatures(record: TokenRecord, turns: Sequence[Turn]) -> npt.NDArray[np.float32]:
    values = np.ones(len(record), dtype=np.float32)
    for turn in turns:
        values[turn.action_start : turn.action_end] = turn.sampling.temperature
    return values


def _check_trainable(episode: Episode) -> None:
    for index, turn in enumerate(episode.turns):
        if not turn.num_action_tokens:
            continue
        where = f"turn {index} of {episode.episode_id}"
        if turn.sampling.temperature == 0:
            raise ConfigError(
                f"{where} was sampled at temperature 0, where every token has probability 1 and nothing can be "
                "learned; train with temperature > 0"
            )
        if turn.sampling.is_truncated:
            _check_kept_sets(episode.records[turn.record], turn, where)


def _check_kept_sets(record: TokenRecord, turn: Turn, where: str) -> None:
    if record.kept_token_ids is None:
        raise ConfigError(
            f"{where} was sampled with top_p={turn.sampling.top_p}, top_k={turn.sampling.top_k}, and the engine gave "
            "no kept sets to score it with; train with top_p=1 and top_k=0"
        )
    start = int(record.action_mask[: turn.action_start].sum())
    kept = record.kept_token_ids[start : start + turn.num_action_tokens]
    for token_id, ids in zip(record.token_ids[turn.action_start : turn.action_end], kept, strict=True):
        if len(ids) and token_id not in ids:
            raise RecordError(f"{where}: token {token_id} was sampled and is not in its own kept set")
