"""Episodes: the append-only builder, and the frozen record that travels, is stored, and is trained on.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..envs.errors import RecordError
from ..envs.sampling import SamplingParams
from ..envs.types import FinishReason
from .engine import Generation


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
        where: what was going on: `make`, `reset`, `step`, `close`, `generate`, `render`.
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

    def __post_init__(self) -> None:
        position = (0, 0)  # record and token where the turn before ended
        masks = [record.action_mask.tobytes() for record in self.records]  # counting bytes is cheaper than slicing arrays
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


class EpisodeBuilder:
    """Builds an episode by appending; nothing that was appended ever changes.

    A turn is `observe` (any number of times), then `act`, then `feed_back`. The builder keeps every per-token list in
    step: only `observe` and `act` add tokens, and each adds to all of them.
    """

    def __init__(
        self,
        *,
        episode_id: str,
        task_id: str,
        slot: int = 0,
        member: int = 0,
        attempt: int = 0,
        env_seed: int | None = None,
    ) -> None:
        self.episode_id = episode_id
        self._identity: dict[str, Any] = {
            "episode_id": episode_id,
            "task_id": task_id,
            "slot": slot,
            "member": member,
            "attempt": attempt,
            "env_seed": env_seed,
        }
        self._turns: list[Turn] = []
        self._records: list[_RecordLists] = [_RecordLists()]
        self._observation_start = 0
        self._pending: dict[str, Any] | None = None

    @property
    def token_ids(self) -> list[int]:
        """Everything that the policy has read and sampled in the current context: the next prompt. Don't change it."""
        return self._records[-1].token_ids

    @property
    def num_turns(self) -> int:
        """How many turns are complete."""
        return len(self._turns)

    @property
    def num_action_tokens(self) -> int:
        """How many tokens were sampled so far, in all records."""
        return sum(len(record.logprobs) for record in self._records)

    def observe(self, token_ids: Sequence[int]) -> None:
        """Append observation tokens: prompt, template or feedback."""
        if self._pending is not None:
            raise RecordError("observe between act and feed_back; a turn's feedback is appended after its result")
        self._records[-1].observe(token_ids, turn=len(self._turns))

    def fork(self, token_ids: Sequence[int]) -> None:
        """Go on in a new token record whose context is `token_ids`: the history was rewritten.

        What was sampled before stays trained in the record where it was sampled; here it is observation.
        """
        if self._pending is not None:
            raise RecordError("fork between act and feed_back; finish the turn first")
        self._records.append(_RecordLists())
        self._observation_start = 0
        self._records[-1].observe(token_ids, turn=len(self._turns))

    def act(self, generation: Generation, *, sampling: SamplingParams, text: str, generate_s: float = 0.0) -> None:
        """Append action tokens exactly as sampled."""
        if self._pending is not None:
            raise RecordError("act twice in one turn; call feed_back in between")
        record = self._records[-1]
        start = len(record.token_ids)
        record.act(generation, turn=len(self._turns))
        self._pending = {
            "record": len(self._records) - 1,
            "observation_start": self._observation_start,
            "action_start": start,
            "action_end": len(record.token_ids),
            "sampling": sampling,
            "finish_reason": generation.finish_reason,
            "action_text": text,
            "generate_s": generate_s,
        }
        self._observation_start = len(record.token_ids)

    def feed_back(
        self,
        *,
        reward: float,
        token_rewards: Sequence[float] | None = None,
        score: float | None = None,
        feedback: str = "",
        info: Mapping[str, Any] | None = None,
        step_s: float = 0.0,
    ) -> None:
        """Close the turn with what the step gave.

        Raises:
            RecordError: there are neither as many token rewards as action tokens nor one fewer.
        """
        pending = self._pending
        if pending is None:
            raise RecordError("feed_back without act; a turn acts first")
        token_reward = 0.0
        if token_rewards is not None:
            num_tokens = pending["action_end"] - pending["action_start"]
            if len(token_rewards) not in (num_tokens, num_tokens - 1):
                raise RecordError(
                    f"{len(token_rewards)} token_rewards and {num_tokens} action tokens in turn {len(self._turns)}; "
                    "return one per action token (the closing token may be left out)"
                )
            token_reward = math.fsum(token_rewards)
            self._records[-1].reward_tokens(pending["action_start"], token_rewards)
        self._turns.append(
            Turn(
                **pending,
                reward=reward,
                token_reward=token_reward,
                score=score,
                feedback=feedback,
                info={} if info is None else info,
                step_s=step_s,
            )
        )
        self._pending = None

    def finish(
        self,
        ending: Ending,
        *,
        failure: Failure | None = None,
        reset_info: Mapping[str, Any] | None = None,
        duration_s: float = 0.0,
    ) -> Episode:
        """The frozen episode. An action that got no feedback is kept as a turn with reward 0."""
        if self._pending is not None:
            self.feed_back(reward=0.0)
        return Episode(
            **self._identity,
            ending=ending,
            failure=failure,
            turns=tuple(self._turns),
            records=tuple(record.freeze() for record in self._records),
            reset_info={} if reset_info is None else reset_info,
            duration_s=duration_s,
        )


class _RecordLists:
    """The growing lists behind one token record; per-token values are kept per run of tokens until `freeze`."""

    __slots__ = ("kept", "logprobs", "rewards", "spans", "token_ids", "versions")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[tuple[int, int]] = []
        self.spans: list[tuple[int, int, bool]] = []  # (number of tokens, turn, sampled?)
        self.rewards: list[tuple[int, Sequence[float]]] = []
        self.kept: list[tuple[int, tuple[tuple[int, ...], ...]]] = []  # (number of action tokens before, their sets)

    def observe(self, token_ids: Sequence[int], *, turn: int) -> None:
        if len(token_ids):
            self.token_ids.extend(token_ids)
            self.spans.append((len(token_ids), turn, False))

    def act(self, generation: Generation, *, turn: int) -> None:
        if not generation.token_ids:
            return
        if generation.kept_token_ids is not None:
            self.kept.append((len(self.logprobs), generation.kept_token_ids))
        self.token_ids.extend(generation.token_ids)
        self.logprobs.extend(generation.logprobs)
        self.versions.extend(generation.versions)
        self.spans.append((len(generation.token_ids), turn, True))

    def reward_tokens(self, start: int, token_rewards: Sequence[float]) -> None:
        self.rewards.append((start, token_rewards))

    def freeze(self) -> TokenRecord:
        length = len(self.token_ids)
        counts = [count for count, _, _ in self.spans]
        mask = np.repeat(np.array([sampled for _, _, sampled in self.spans], dtype=np.bool_), counts)
        logprobs = np.full(length, np.nan, dtype=np.float32)
        logprobs[mask] = self.logprobs
        versions = np.full(length, -1, dtype=np.int32)
        versions[mask] = [version for version, num_tokens in self.versions for _ in range(num_tokens)]
        token_rewards = np.zeros(length, dtype=np.float32)
        for start, rewards in self.rewards:
            token_rewards[start : start + len(rewards)] = rewards
        arrays = {
            "token_ids": np.array(self.token_ids, dtype=np.int64),
            "action_mask": mask,
            "sampled_logprobs": logprobs,
            "versions": versions,
            "token_rewards": token_rewards,
            "turn_index": np.repeat(np.array([turn for _, turn, _ in self.spans], dtype=np.int32), counts),
        }
        for array in arrays.values():
            array.setflags(write=False)
        return TokenRecord(**arrays, kept_token_ids=self._kept_sets())

    def _kept_sets(self) -> tuple[npt.NDArray[np.int64], ...] | None:
        if not self.kept:
            return None
        sets = [np.empty(0, dtype=np.int64)] * len(self.logprobs)
        for start, kept in self.kept:
            for offset, ids in enumerate(kept):
                sets[start + offset] = np.array(ids, dtype=np.int64)
        return tuple(sets)
