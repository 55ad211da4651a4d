"""Episodes: the frozen record that travels, is stored, and is trained on.

How one token record of two turns lies in memory (turn 1's feedback belongs to the turn that reads it):

    token_ids         p  p  p  a  a  e  f  f  a  e      p prompt, f feedback and template, a action, e end of turn
    action_mask       0  0  0  1  1  1  0  0  1  1      true exactly on what the policy sampled
    turn_index        0  0  0  0  0  0  1  1  1  1
    sampled_logprobs  .  .  .  x  x  x  .  .  x  x      NaN off the mask
    versions         -1 -1 -1  0  0  0 -1 -1  0  0      -1 off the mask
    token_rewards     0  0  0  r  r  0  0  0  r  0      zero off the mask

For every turn, the prompt that the engine got is `token_ids[:action_start]` of the turn's record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..envs.errors import RecordError
from ..envs.sampling import SamplingParams
from ..envs.types import FinishReason


class Ending(StrEnum):
    """Why an episode is over. Exactly one per episode."""

    TERMINATED = "terminated"
    """The environment said that the task is over."""
    TRUNCATED = "truncated"
    """The environment, or a wrapper around it, cut the episode."""
    MAX_TURNS = "max_turns"
    """The executor's limit of turns."""
    MAX_LENGTH = "max_length"
    """The context is full, or the episode's limit of tokens is reached."""
    TIME_LIMIT = "time_limit"
    """The episode's limit of seconds."""
    POLICY_FAULT = "policy_fault"
    """The environment raised `PolicyFault`."""
    ENV_FAILED = "env_failed"
    """The environment raised, hung, or broke its contract."""
    ENGINE_FAILED = "engine_failed"
    """The engine failed."""
    REWARD_FAILED = "reward_failed"
    """The episode was played, and its reward couldn't be computed."""
    CANCELLED = "cancelled"
    """The run stopped while the episode was going on."""

    @property
    def is_truncation(self) -> bool:
        """Whether the episode was cut by a limit or by the policy's fault, so that its future is unknown."""
        return self in _TRUNCATIONS


_TRUNCATIONS = frozenset(
    {Ending.TRUNCATED, Ending.MAX_TURNS, Ending.MAX_LENGTH, Ending.TIME_LIMIT, Ending.POLICY_FAULT}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an episode failed, as data that can be pickled.

    Attributes:
        kind: `infra` episodes leave every baseline and are refilled; `policy` episodes are trained.
        where: what was going on: `make`, `reset`, `step`, `close`, `generate`, `render`, `reward`.
        error: the class name of the exception.
        message: its message.
        turn: the turn it happened in, from 0.
        traceback: the traceback as text, cut to its end.
    """

    kind: Literal["infra", "policy"]
    where: str
    error: str
    message: str
    turn: int = 0
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn: observation in, action out, feedback back.

    Attributes:
        record: which of the episode's token records holds it.
        observation_start: where in that record the turn's new observation tokens begin.
        action_start: where its action tokens begin; `token_ids[:action_start]` is the prompt the engine got.
        action_end: where they end; equal to `action_start` for a turn without action tokens.
        sampling: the parameters that really applied.
        reward: what `step` returned; token rewards come on top.
        token_reward: sum of the turn's token rewards.
        score: in [0, 1], or None.
        finish_reason: why sampling ended.
        action_text: the action decoded.
        feedback: the observation that `step` returned, as text, for reading only.
        info: diagnostics from `step`.
        generate_s: seconds in the engine.
        step_s: seconds in `step`.
    """

    record: int
    observation_start: int
    action_start: int
    action_end: int
    sampling: SamplingParams
    reward: float
    token_reward: float = 0.0
    score: float | None = None
    finish_reason: FinishReason = "stop"
    action_text: str = ""
    feedback: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    generate_s: float = 0.0
    step_s: float = 0.0

    @property
    def earned(self) -> float:
        """What the turn earned: its reward and the sum of its token rewards."""
        return self.reward + self.token_reward

    @property
    def num_action_tokens(self) -> int:
        """How many tokens the policy sampled in this turn."""
        return self.action_end - self.action_start


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """The tokens of an episode in one unbroken context.

    Attributes:
        token_ids: [L] int64, all tokens as the policy read or sampled them.
        action_mask: [L] bool, true exactly on the tokens that the policy sampled here.
        sampled_logprobs: [L] float32, the engine's logprobs; NaN off the mask.
        versions: [L] int32, the policy version that sampled each token; -1 off the mask.
        token_rewards: [L] float32, rewards of single tokens; zero off the mask.
        turn_index: [L] int32, the turn that read or sampled each token.
        kept_token_ids: for each action token in order, the set of ids that top-p or top-k kept (int64), or None where
            no turn of the record was truncated. An empty set stands for the whole vocabulary.
        agent: whose tokens these are.
    """

    token_ids: npt.NDArray[np.int64]
    action_mask: npt.NDArray[np.bool_]
    sampled_logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    token_rewards: npt.NDArray[np.float32]
    turn_index: npt.NDArray[np.int32]
    kept_token_ids: tuple[npt.NDArray[np.int64], ...] | None = None
    agent: str = "policy"

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        for name in ("action_mask", "sampled_logprobs", "versions", "token_rewards", "turn_index"):
            array = getattr(self, name)
            if array.shape != (length,):
                raise RecordError(f"{name} has shape {array.shape} and token_ids ({length},); all must be [L]")
        mask = self.action_mask
        wrong = mask == np.isnan(self.sampled_logprobs)
        if wrong.any():
            raise RecordError(
                f"sampled_logprobs at token {int(wrong.argmax())} disagrees with the action mask: "
                "a number on sampled tokens, NaN elsewhere"
            )
        wrong = mask != (self.versions >= 0)
        if wrong.any():
            raise RecordError(
                f"versions at token {int(wrong.argmax())} disagrees with the action mask: "
                "0 or more on sampled tokens, -1 elsewhere"
            )
        if self.token_rewards.any():
            self._check_token_rewards()
        if (self.turn_index[1:] < self.turn_index[:-1]).any():
            raise RecordError("turn_index goes down somewhere; turns stand in order")
        if self.kept_token_ids is not None and len(self.kept_token_ids) != int(mask.sum()):
            raise RecordError(f"{len(self.kept_token_ids)} kept sets and {int(mask.sum())} action tokens")

    def _check_token_rewards(self) -> None:
        wrong = ~self.action_mask & (self.token_rewards != 0)
        if wrong.any():
            raise RecordError(f"token_rewards at token {int(wrong.argmax())} is not zero, and no action token is there")
        if not np.isfinite(self.token_rewards).all():
            raise RecordError("token_rewards holds a value that is not finite")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_action_tokens(self) -> int:
        """How many tokens of this record the policy sampled."""
        return int(np.count_nonzero(self.action_mask))


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One run from reset to its ending. Immutable.

    Attributes:
        episode_id: unique within the run.
        task_id: the task that it played.
        slot: its group's place in the order of training; slot n belongs to update n // B.
        member: its place within the group, from 0.
        attempt: 0, or how often this member was refilled after an infrastructure failure.
        ending: why it is over.
        failure: what went wrong, or None.
        turns: its turns, in order.
        records: its token records; one, unless its history was rewritten.
        env_seed: the seed that `reset` got.
        reset_info: the info that `reset` returned.
        duration_s: seconds from start to end.
        prompt: the first observation, as text, for reading only.
    """

    episode_id: str
    task_id: str
    slot: int
    member: int
    attempt: int
    ending: Ending
    failure: Failure | None
    turns: tuple[Turn, ...]
    records: tuple[TokenRecord, ...]
    env_seed: int | None = None
    reset_info: Mapping[str, Any] = field(default_factory=dict)
    duration_s: float = 0.0
    prompt: str = ""

    def __post_init__(self) -> None:
        position = (0, 0)  # record and token where the turn before ended
        # Counting bytes is several times cheaper than slicing arrays.
        masks = [record.action_mask.tobytes() for record in self.records]
        for index, turn in enumerate(self.turns):
            if (turn.record, turn.action_start) < position:
                raise RecordError(
                    f"turn {index} acts at token {turn.action_start} of record {turn.record}, and the turn before it "
                    f"ended at token {position[1]} of record {position[0]}; turns stand in order"
                )
            position = (turn.record, turn.action_end)
            if not 0 <= turn.record < len(self.records):
                raise RecordError(f"turn {index} lies in record {turn.record}, and there are {len(self.records)}")
            mask, start, end = masks[turn.record], turn.action_start, turn.action_end
            if not 0 <= turn.observation_start <= start <= end <= len(mask):
                raise RecordError(
                    f"turn {index} spans {turn.observation_start}, {start}, {end} in a record of {len(mask)} tokens"
                )
            if mask.count(1, start, end) != end - start:
                raise RecordError(f"turn {index} holds a token off the action mask between its bounds")
            if not math.isfinite(turn.reward):
                raise RecordError(f"turn {index} has reward {turn.reward!r}; rewards are finite")
        in_turns = sum(turn.num_action_tokens for turn in self.turns)
        on_mask = sum(mask.count(1) for mask in masks)
        if in_turns != on_mask:
            raise RecordError(f"the turns hold {in_turns} action tokens and the masks {on_mask}; they must agree")

    @property
    def reward(self) -> float:
        """Sum of what the turns earned."""
        return math.fsum(turn.earned for turn in self.turns)

    @property
    def score(self) -> float | None:
        """How well the task was solved: the last turn's score that is not None."""
        return next((turn.score for turn in reversed(self.turns) if turn.score is not None), None)

    @property
    def is_solved(self) -> bool:
        """Whether the score is 1."""
        return self.score == 1

    @property
    def is_failed(self) -> bool:
        """Whether the infrastructure failed it, so that no baseline may contain it."""
        return self.failure is not None and self.failure.kind == "infra"

    @property
    def num_action_tokens(self) -> int:
        """How many tokens the policy sampled in the episode."""
        return sum(record.num_action_tokens for record in self.records)
