"""Builds an episode by appending: what was observed, what was sampled, what it earned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..envs.errors import RecordError
from ..envs.sampling import SamplingParams
from .engine import Generation
from .episode import Ending, Episode, Failure, TokenRecord, Turn


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
        prompt: str = "",
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
            prompt=prompt,
        )


class _RecordLists:
    """The growing lists behind one token record; per-token values are kept per run of tokens until `freeze`."""

    __slots__ = ("kept", "logprobs", "mask", "rewards", "spans", "token_ids", "versions")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[tuple[int, int]] = []
        self.mask = bytearray()  # 1 where a token was sampled
        self.spans: list[tuple[int, int]] = []  # (turn, number of tokens)
        self.rewards: list[tuple[int, Sequence[float]]] = []
        self.kept: list[tuple[int, tuple[tuple[int, ...], ...]]] = []  # (number of action tokens before, their sets)

    def observe(self, token_ids: Sequence[int], *, turn: int) -> None:
        if len(token_ids):
            self.token_ids.extend(token_ids)
            self.mask += bytes(len(token_ids))
            self.spans.append((turn, len(token_ids)))

    def act(self, generation: Generation, *, turn: int) -> None:
        if not generation.token_ids:
            return
        if generation.kept_token_ids is not None:
            self.kept.append((len(self.logprobs), generation.kept_token_ids))
        self.token_ids.extend(generation.token_ids)
        self.logprobs.extend(generation.logprobs)
        self.versions.extend(generation.versions)
        self.mask += b"\1" * len(generation.token_ids)
        self.spans.append((turn, len(generation.token_ids)))

    def reward_tokens(self, start: int, token_rewards: Sequence[float]) -> None:
        self.rewards.append((start, token_rewards))

    def freeze(self) -> TokenRecord:
        length = len(self.token_ids)
        mask = np.frombuffer(bytes(self.mask), dtype=np.bool_)
        turns = np.array(self.spans, dtype=np.int32).reshape(-1, 2)
        logprobs = np.full(length, np.nan, dtype=np.float32)
        logprobs[mask] = self.logprobs
        versions = np.full(length, -1, dtype=np.int32)
        spans = np.array(self.versions, dtype=np.int32).reshape(-1, 2)
        versions[mask] = np.repeat(spans[:, 0], spans[:, 1])
        token_rewards = np.zeros(length, dtype=np.float32)
        for start, rewards in self.rewards:
            token_rewards[start : start + len(rewards)] = rewards
        arrays = {
            "token_ids": np.array(self.token_ids, dtype=np.int64),
            "action_mask": mask,
            "sampled_logprobs": logprobs,
            "versions": versions,
            "token_rewards": token_rewards,
            "turn_index": np.repeat(turns[:, 0], turns[:, 1]),
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
