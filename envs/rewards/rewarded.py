"""A reward attached to an environment: `RewardedInstance`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

from ..errors import ConfigError, InvalidRewardError, InvalidStepError, RewardError
from ..instance import AgentInstance
from ..types import Action, Message, Observation, StepResult, Verbatim, as_step_result, check_observation
from ..wrappers.base import Wrapper
from .base import RewardFunction, label_of, score_of
from .combined import compares_episodes
from .functions import as_reward
from .scoring import score_one
from .types import RewardOutput, Trajectory, TrajectoryTurn

RewardOn: TypeAlias = Literal["episode", "turn", "token"]


class RewardedInstance(Wrapper):
    """Adds a reward to what an environment gives.

        on         what is scored                              where it goes
        episode    all turns, when a step ends the episode     that step's reward
        turn       each turn, as it is played                  its own reward
        token      each turn, as it is played                  its action tokens

    Where a reward gives token rewards, they are added to those of the step, one for each action token (the closing one
    may be left out), and its number is not added: the return uses the token rewards alone. A reward on the episode can
    give them only where the episode has one turn.

    A score that the reward gives takes the place of the environment's; without either, the reward is the score. What it
    said stands in that turn's `info["reward"]`: `name`, `value`, `metadata`. An environment's own key `reward` is kept,
    as `env_reward`.

    A reward that fails raises `RewardError` out of `step`: for the executor the infrastructure failed, and it plays the
    episode again. It is never taken for a zero. The time that a reward takes counts as the step's.

    Only what `step` returns can be scored. An episode that `PolicyFault` ends has no reward on the episode; nor has one
    that a limit of the executor ends (its turns, its context, its seconds). Limit the turns by the specification's
    `max_turns`, which `make` puts inside of this wrapper, or give the reward to the trainer, which sees every episode.

    >>> import asyncio
    >>> from turngym.envs import Action, make
    >>> async def play():
    ...     env = make("SingleTurn-v0", reward=lambda response, label: float(response == label))
    ...     await env.reset(options={"prompt": "2 + 2 = ?", "label": "4"})
    ...     return (await env.step(Action(text="4"))).reward
    >>> asyncio.run(play())
    1.0

    Args:
        env: the environment. It is async, or it runs on a thread.
        reward: a reward, whatever `as_reward` takes, or a name for `find_reward`. Instances may share it; closing one
            leaves it open.
        on: what is scored: `episode`, `turn` or `token`.
        timeout_s: seconds that one call of the reward may take, or None.

    Raises:
        ConfigError: the reward compares the episodes of a group, or `on` is none of the three.
    """

    def __init__(
        self,
        env: AgentInstance,
        reward: Any,
        on: RewardOn = "episode",
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(env)
        if on not in get_args(RewardOn):
            raise ConfigError(f"reward_on={on!r}; choose one of {', '.join(get_args(RewardOn))}")
        self.reward = _found(reward)
        if compares_episodes(self.reward):
            raise ConfigError(
                f"{label_of(self.reward)} compares the episodes of a group, and an environment sees one of them; "
                "give it to the trainer: Trainer(reward=...)"
            )
        self.on: RewardOn = on
        self.timeout_s = timeout_s
        if self.spec is not None:
            self.spec = replace(self.spec, reward_range=(-math.inf, math.inf))
        self._is_started = False
        self._options: Mapping[str, Any] = {}
        self._observation: Observation = ""
        self._turns: list[TrajectoryTurn] = []
        self._messages: list[Message] = []

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode."""
        if not self._is_started:
            await self.reward.start()
            self._is_started = True
        returned = await self.env.reset(seed=seed, options=options)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise InvalidStepError(
                f"{self.name}: reset returned {returned!r:.80}; return the tuple (observation, info)"
            )
        check_observation(returned[0], self.name)
        self._options = {} if options is None else options
        self._turns, self._messages = [], []
        self._read(returned[0])
        return returned

    async def step(self, action: Action) -> StepResult:
        """Play one action, and score what is to be scored.

        Raises:
            RewardError: the reward failed.
        """
        result = as_step_result(await self.env.step(action), self.name)
        if "reward" in result.info:
            result = replace(result, info=_without_reward(result.info))
        self._note(action, result)
        if self.on == "episode" and not (result.terminated or result.truncated):
            self._read(result.observation)
            return result
        output = await score_one(self.reward, self._trajectory(), timeout_s=self.timeout_s)
        if isinstance(output, RewardError):
            raise output
        rewarded = self._rewarded(result, output, action)
        self._read(result.observation)
        return rewarded

    def _read(self, observation: Observation) -> None:
        self._observation = observation
        self._messages += _messages(observation)

    def _note(self, action: Action, result: StepResult) -> None:
        self._turns.append(
            TrajectoryTurn(
                observation=text_of(self._observation),
                response=action.text,
                token_ids=action.token_ids,
                feedback=text_of(result.observation),
                reward=result.reward + math.fsum(result.token_rewards or ()),
                score=result.score,
            )
        )
        self._messages.append({"role": "assistant", "content": action.text})

    def _trajectory(self) -> Trajectory:
        """All turns so far; where turns are scored, with the last one's prompt, response and tokens."""
        turns = tuple(self._turns)
        scored = turns if self.on == "episode" else turns[-1:]
        trajectory = Trajectory(
            prompt=scored[0].observation,
            turns=turns,
            messages=tuple(self._messages),
            label=self._options.get("label"),
            columns=dict(self._options),
        )
        trajectory.response = "\n".join(turn.response for turn in scored)
        trajectory.token_ids = tuple(token for turn in scored for token in turn.token_ids)
        return trajectory

    def _rewarded(self, result: StepResult, output: RewardOutput, action: Action) -> StepResult:
        label = label_of(self.reward)
        token_rewards = result.token_rewards
        if output.token_rewards:
            token_rewards = self._token_rewards(result, output, action)
        elif self.on == "token":
            raise InvalidRewardError(
                f"{label}: it gave no token rewards, and reward_on='token' needs one for each action token"
            )
        return replace(
            result,
            reward=result.reward + (0.0 if output.token_rewards else output.reward),
            token_rewards=token_rewards,
            score=score_of(output, label, result.score),
            info={
                **result.info,
                "reward": {"name": label, "value": output.reward, "metadata": dict(output.metadata)},
            },
        )

    def _token_rewards(self, result: StepResult, output: RewardOutput, action: Action) -> Sequence[float]:
        """The output's token rewards, on top of the environment's own."""
        label = label_of(self.reward)
        if self.on == "episode" and len(self._turns) > 1:
            raise InvalidRewardError(
                f"{label}: it gave token rewards for an episode of {len(self._turns)} turns, and the turns before the "
                "last are over; use reward_on='turn', or give the reward to the trainer: Trainer(reward=...)"
            )
        count, given = len(action.token_ids), output.token_rewards
        if action.token_ids and len(given) not in (count, count - 1):
            raise InvalidRewardError(
                f"{label}: {len(given)} token rewards for {count} action tokens; give one for each (the closing token "
                "may be left out)"
            )
        if result.token_rewards is None:
            return tuple(given)
        own = result.token_rewards
        length = max(len(own), len(given))
        return tuple(a + b for a, b in zip(_padded(own, length), _padded(given, length), strict=True))


def text_of(observation: Observation) -> str:
    """An observation as text; of several messages, the contents, a line each."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Verbatim):
        return observation.text
    if isinstance(observation, Mapping):
        return observation["content"]
    return "\n".join(item["content"] if isinstance(item, Mapping) else str(item) for item in observation)


def _messages(observation: Observation) -> list[Message]:
    """An observation as messages, with the roles that it has."""
    if isinstance(observation, Mapping):
        return [observation]
    if not isinstance(observation, str | Verbatim):
        messages: list[Message] = [item for item in observation if isinstance(item, Mapping)]
        if messages:
            return messages
    text = text_of(observation)
    return [{"role": "user", "content": text}] if text else []


def _without_reward(info: Mapping[str, Any]) -> dict[str, Any]:
    kept = dict(info)
    kept["env_reward"] = kept.pop("reward")
    return kept


def _found(reward: Any) -> RewardFunction:
    if not isinstance(reward, str):
        return as_reward(reward)
    from .catalog import shared_reward

    return shared_reward(reward)


def _padded(values: Sequence[float], length: int) -> list[float]:
    return [*values, *[0.0] * (length - len(values))]
