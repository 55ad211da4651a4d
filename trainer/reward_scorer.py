"""Scores the episodes of a group, and puts what they earned where it was earned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ..agents.episode import Ending, Episode, Failure, TokenRecord, Turn
from ..agents.failures import MAX_REWARD, failure_of
from ..agents.group import Group
from ..envs.errors import InvalidRewardError, RewardError
from ..envs.rewards.base import RewardFunction, label_of, score_of
from ..envs.rewards.combined import compares_episodes
from ..envs.rewards.scoring import Scored, score_group
from ..envs.rewards.types import RewardOutput, Trajectory
from .together import run_together
from .trajectories import trajectory_of, turn_trajectory

RewardOn: TypeAlias = Literal["episode", "turn", "token"]

Floats: TypeAlias = npt.NDArray[np.float32]


class RewardScorer:
    """Adds a reward to what the environment gave.

    On the whole episode, the reward goes to the last turn; on turns, each turn gets its own. Token rewards go to their
    tokens instead, and the reward is then only recorded. A score that the reward gives takes the place of the
    environment's; where neither gives one, the reward is the score. What a reward gave stands in the turn's
    `info["reward"]`: name, value and metadata; the environment's own key of that name is kept as `env_reward`. An
    episode whose reward failed leaves the group's episodes, and joins those that failed.

    Args:
        reward: what scores.
        on: what is scored: `episode`; `turn`; or `token`, which is `turn` where token rewards are a must.
        timeout_s: seconds that one call of the reward may take, or None.
    """

    def __init__(self, reward: RewardFunction, *, on: RewardOn = "episode", timeout_s: float | None = None) -> None:
        self.reward = reward
        self.on = on
        self.timeout_s = timeout_s

    @property
    def sees_group(self) -> bool:
        """Whether what an episode earns depends on its siblings, so that a group is scored as a whole."""
        return compares_episodes(self.reward)

    async def start(self) -> None:
        """Get the reward ready.

        Raises:
            ConfigError: it can't work, and says why.
        """
        await self.reward.start()

    async def aclose(self) -> None:
        """Let go of what the reward holds open."""
        await self.reward.aclose()

    async def score(self, group: Group, *, update: int) -> Group:
        """The group with its episodes' rewards.

        Args:
            group: as it was played. Its failed episodes aren't scored.
            update: the update it is played for.

        Raises:
            InvalidRewardError: the reward broke its contract, so that the next call won't go better.
        """
        outcomes = await (self._score_episodes if self.on == "episode" else self._score_turns)(group, update)
        episodes: list[Episode] = []
        failed = list(group.failed)
        for episode, scored in zip(group.episodes, outcomes, strict=True):
            error = next((outcome for outcome in scored.values() if isinstance(outcome, RewardError)), None)
            if isinstance(error, InvalidRewardError):
                raise error
            if error is not None:
                failed.append(_failed(episode, error))
                continue
            try:
                episodes.append(self._rewarded(episode, scored))
            except InvalidRewardError as invalid:
                raise InvalidRewardError(f"{label_of(self.reward)}: {episode.episode_id}: {invalid}") from None
            except RewardError as error_:
                failed.append(_failed(episode, error_))
        return replace(group, episodes=tuple(episodes), failed=tuple(failed))

    async def _score_episodes(self, group: Group, update: int) -> list[dict[int, Scored]]:
        """For each episode, the outcome on its last turn; nothing for an episode without turns."""
        played = [episode for episode in group.episodes if episode.turns]
        trajectories = [trajectory_of(episode, group.task, update=update) for episode in played]
        outcomes = iter(await self._call(trajectories))
        return [{len(e.turns) - 1: next(outcomes)} if e.turns else {} for e in group.episodes]

    async def _score_turns(self, group: Group, update: int) -> list[dict[int, Scored]]:
        """For each episode, the outcome of each turn. A reward that compares sees the siblings' turns of one index."""
        scored: list[dict[int, Scored]] = [{} for _ in group.episodes]

        async def score_turn(index: int) -> None:
            members = [i for i, episode in enumerate(group.episodes) if index < len(episode.turns)]
            trajectories = [turn_trajectory(group.episodes[i], group.task, index, update=update) for i in members]
            for i, outcome in zip(members, await self._call(trajectories), strict=True):
                scored[i][index] = outcome

        num_turns = max((len(episode.turns) for episode in group.episodes), default=0)
        await run_together(score_turn(index) for index in range(num_turns))
        return scored

    async def _call(self, trajectories: Sequence[Trajectory]) -> list[Scored]:
        return await score_group(self.reward, trajectories, timeout_s=self.timeout_s)

    def _rewarded(self, episode: Episode, scored: dict[int, Scored]) -> Episode:
        """The episode with its outputs, by turn."""
        turns = list(episode.turns)
        token_rewards = [record.token_rewards for record in episode.records]
        for index, output in scored.items():
            assert isinstance(output, RewardOutput)
            if self.on == "token" and not output.token_rewards:
                raise InvalidRewardError("it gave no token rewards, which --reward_on token needs; give one a token")
            if max(abs(output.reward), *map(abs, output.token_rewards), 0.0) > MAX_REWARD:
                raise RewardError(f"the reward is {output.reward:g}; float32 must hold it")
            spans = turns if self.on == "episode" else turns[index : index + 1]
            if output.token_rewards:
                token_rewards = _spread(output.token_rewards, spans, token_rewards)
            turns[index] = self._with_output(turns[index], output)
        records = tuple(
            record if values is record.token_rewards else replace(record, token_rewards=values)
            for record, values in zip(episode.records, token_rewards, strict=True)
        )
        return replace(episode, turns=tuple(_with_token_sum(turn, records) for turn in turns), records=records)

    def _with_output(self, turn: Turn, output: RewardOutput) -> Turn:
        label = label_of(self.reward)
        said = {"name": label, "value": output.reward, "metadata": dict(output.metadata)}
        before = {"env_reward" if key == "reward" else key: value for key, value in turn.info.items()}
        return replace(
            turn,
            reward=turn.reward + (0.0 if output.token_rewards else output.reward),
            score=score_of(output, label, turn.score),
            info={**before, "reward": said},
        )


def _spread(values: Sequence[float], turns: Sequence[Turn], token_rewards: Sequence[Floats]) -> list[Floats]:
    """Add token rewards to the action tokens of some turns, in order; the last, closing token may be left out."""
    count = sum(turn.num_action_tokens for turn in turns)
    if not count - 1 <= len(values) <= count:
        raise InvalidRewardError(
            f"{len(values)} token rewards for {count} action tokens; give one for each (the closing token may be left "
            "out)"
        )
    padded = np.zeros(count, dtype=np.float32)
    padded[: len(values)] = values
    spread = [array.copy() for array in token_rewards]
    start = 0
    for turn in turns:
        end = start + turn.num_action_tokens
        spread[turn.record][turn.action_start : turn.action_end] += padded[start:end]
        start = end
    return spread


def _with_token_sum(turn: Turn, records: Sequence[TokenRecord]) -> Turn:
    values = records[turn.record].token_rewards[turn.action_start : turn.action_end]
    total = float(values.sum(dtype=np.float64))
    return turn if total == turn.token_reward else replace(turn, token_reward=total)


def _failed(episode: Episode, error: RewardError) -> Episode:
    failure: Failure = failure_of(error, kind="infra", where="reward", turn=max(len(episode.turns) - 1, 0))
    return replace(episode, ending=Ending.REWARD_FAILED, failure=failure)
