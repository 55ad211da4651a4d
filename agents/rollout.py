"""One episode, played: make, reset, then turn by turn until something ends it.

    reset -> prompt -> [ generate -> act -> step -> feed back -> continuation ] -> ... -> ending

Only what an environment or an engine raises becomes a failure of the episode. Anything else is a bug of ours, and is
raised.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..envs.errors import DataError, EngineError, InvalidStepError, PolicyFault, RecordError, TemplateError
from ..envs.instance import AgentInstance
from ..envs.sampling import SamplingParams
from ..envs.tasks import Task
from ..envs.types import Action, Observation, StepResult, Verbatim
from .builder import EpisodeBuilder
from .calls import Calls, EpisodeOver
from .engine import Engine, GenerateRequest, Generation
from .episode import Ending, Episode, Failure
from .failures import MAX_REWARD, fault_reward
from .seeds import RequestSeeds, env_seed, task_key

if TYPE_CHECKING:
    from .chat import Renderer

YIELD_EVERY = 32
"""Turns after which an episode lets others run, where neither its engine nor its environment ever waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSetup:
    """What all episodes of an executor have in common. Seconds may be `math.inf`."""

    make_env: Callable[[], Awaitable[AgentInstance]]
    env_name: str
    engine: Engine
    renderer: Renderer
    run_seed: int
    max_turns: int
    max_length: int
    turn_timeout_s: float
    step_timeout_s: float
    close_timeout_s: float
    episode_timeout_s: float


class EpisodeKey(NamedTuple):
    """Which attempt at which episode it is: what its seeds follow from."""

    task: Task
    slot: int
    member: int
    attempt: int
    epoch: int
    prefix: str = ""

    @property
    def episode_id(self) -> str:
        """Sorts in the order of epoch, slot, member and attempt."""
        return f"{self.prefix}{self.epoch:04d}-{self.slot:08d}-{self.member:04d}-{self.attempt:02d}"


class Rollout:
    """One attempt at one episode.

    Args:
        key: which attempt at which episode.
        setup: what all episodes have in common.
        sampling: parameters of each turn, until a step gives others.

    Attributes:
        over: what ended the episode from inside a call, or None.
        calls: the calls that it makes, once it runs.
        close_failure: why its environment couldn't be closed, or None.
    """

    def __init__(self, key: EpisodeKey, setup: RolloutSetup, sampling: SamplingParams) -> None:
        self.key = key
        self.setup = setup
        self.episode_id = key.episode_id
        self.over: EpisodeOver | None = None
        self.calls: Calls | None = None
        self.close_failure: Failure | None = None
        self._conversation = setup.renderer.begin()
        self._env: AgentInstance | None = None
        self._reset_info: dict[str, Any] = {}
        self._prompt = ""
        self._seed_key = (key.epoch, task_key(key.task.id), key.member, key.attempt)
        self._use(sampling)
        seed = key.task.seed
        self._env_seed = env_seed(setup.run_seed, epoch=key.epoch, task_id=key.task.id) if seed is None else seed
        self._builder = EpisodeBuilder(
            episode_id=self.episode_id,
            task_id=key.task.id,
            slot=key.slot,
            member=key.member,
            attempt=key.attempt,
            env_seed=self._env_seed,
        )

    async def run(self) -> Episode:
        """Play until the episode ends. Whoever calls it also calls `close`, whatever happens."""
        started = time.perf_counter()
        self.calls = calls = Calls(self.setup.env_name, episode_timeout_s=self.setup.episode_timeout_s)
        try:
            await self._reset(calls)
            ending, failure = await self._play(calls)
        except EpisodeOver as over:
            self.over, ending, failure = over, over.ending, over.failure
        return self._builder.finish(
            ending,
            failure=failure,
            reset_info=self._reset_info,
            duration_s=time.perf_counter() - started,
            prompt=self._prompt,
        )

    async def close(self) -> None:
        """Close the environment. One that can't be closed is noted in `close_failure`, and costs nothing else."""
        env, calls = self._env, self.calls
        self._env = None
        if calls is None:
            return
        calls.end_episode()
        try:
            if env is not None:
                await calls.run("close", env.close(), self.setup.close_timeout_s)
        except EpisodeOver as over:
            self.close_failure = over.failure
        finally:
            calls.close()

    async def _reset(self, calls: Calls) -> None:
        self._env = env = await calls.run("make", self.setup.make_env(), math.inf)
        task, max_length = self.key.task, self.setup.max_length
        reset = env.reset(seed=self._env_seed, options=task.options)
        observation, info = await calls.run("reset", reset, self.setup.step_timeout_s)
        self._reset_info = dict(info)
        try:
            token_ids = self._conversation.prompt(observation)
        except TemplateError as error:
            calls.fail(error, where="render")
        self._prompt = observation_text(observation)
        if len(token_ids) >= max_length:
            message = (
                f"the prompt of task {task.id!r} has {len(token_ids)} tokens and the context holds {max_length}, "
                "the answer included; shorten the prompt, or raise max_length"
            )
            calls.fail(DataError(message), is_refillable=False)
        self._builder.observe(token_ids)

    async def _play(self, calls: Calls) -> tuple[Ending, Failure | None]:
        max_turns = self.setup.max_turns
        for turn in range(max_turns):
            calls.turn = turn
            generation, text = await self._act(calls)
            result = await self._step(calls, generation, text)
            if result.terminated:
                return Ending.TERMINATED, None
            if result.truncated:
                return Ending.TRUNCATED, None
            if turn + 1 < max_turns:
                if result.sampling is not None:
                    self._use(result.sampling)
                self._read(calls, generation, result.observation)
            if turn % YIELD_EVERY == YIELD_EVERY - 1:
                calls.check_time()
                await asyncio.sleep(0)
        raise self._limit(Ending.MAX_TURNS, f"the limit of {max_turns} turns is reached")

    async def _act(self, calls: Calls) -> tuple[Generation, str]:
        """Sample the turn's action from everything read so far."""
        builder, turn = self._builder, calls.turn
        sampling = self._turn_sampling(turn)
        request = GenerateRequest(
            prompt_token_ids=builder.token_ids,
            sampling=sampling,
            request_id=f"{self.episode_id}/{turn}",
            episode_id=self.episode_id,
        )
        started = time.perf_counter()
        generation = await calls.run("generate", self.setup.engine.generate(request), self.setup.turn_timeout_s)
        generate_s = time.perf_counter() - started
        fault = _fault_of(generation, sampling)
        if fault is not None:
            calls.fail(EngineError(f"request {request.request_id}: {fault}"))
        text = self._conversation.action_text(generation.token_ids, sampling)
        builder.act(generation, sampling=sampling, text=text, generate_s=generate_s)
        return generation, text

    async def _step(self, calls: Calls, generation: Generation, text: str) -> StepResult:
        """Play the action, and put what it earned on its turn."""
        builder = self._builder
        assert self._env is not None
        step = self._env.step(Action(text=text, token_ids=generation.token_ids, finish_reason=generation.finish_reason))
        started = time.perf_counter()
        try:
            result = await calls.run("step", step, self.setup.step_timeout_s)
        except PolicyFault as fault:
            failure = calls.failure(fault, "policy")
            builder.feed_back(
                reward=fault_reward(fault), feedback=failure.message, step_s=time.perf_counter() - started
            )
            raise EpisodeOver(Ending.POLICY_FAULT, failure) from None
        assert isinstance(result, StepResult)  # OrderEnforcing made it one
        largest = abs(result.reward)
        if result.token_rewards is not None:
            largest = max(largest, *map(abs, result.token_rewards), 0.0)
        if largest > MAX_REWARD:
            calls.fail(InvalidStepError(f"{calls.env_name}: a reward is {largest:g}; float32 must hold it"))
        try:
            builder.feed_back(
                reward=result.reward,
                token_rewards=result.token_rewards,
                score=result.score,
                feedback=observation_text(result.observation),
                info=dict(result.info) if result.info else None,
                step_s=time.perf_counter() - started,
            )
        except RecordError as error:
            calls.fail(error)
        return result

    def _read(self, calls: Calls, generation: Generation, observation: Observation) -> None:
        """Append what the policy reads next, where the context has room for it and for one token more."""
        builder, max_length = self._builder, self.setup.max_length
        try:
            going_on = self._conversation.continuation(generation.token_ids, observation)
        except TemplateError as error:
            calls.fail(error, where="render")
        length = len(going_on.token_ids) + (0 if going_on.is_fork else len(builder.token_ids))
        if length >= max_length:
            raise self._limit(Ending.MAX_LENGTH, f"the next prompt has {length} tokens and the context {max_length}")
        if going_on.is_fork:
            builder.fork(going_on.token_ids)
        else:
            builder.observe(going_on.token_ids)

    def _limit(self, ending: Ending, message: str) -> EpisodeOver:
        turn = self._builder.num_turns - 1
        return EpisodeOver(ending, Failure(kind="policy", where="step", error=ending.value, message=message, turn=turn))

    def _use(self, sampling: SamplingParams) -> None:
        self._sampling = sampling
        own = sampling.stop_token_ids
        self._stop_token_ids = own + tuple(i for i in self.setup.renderer.stop_token_ids if i not in own)
        run_seed = self.setup.run_seed if sampling.seed is None else sampling.seed
        self._seeds = RequestSeeds(run_seed, *self._seed_key)

    def _turn_sampling(self, turn: int) -> SamplingParams:
        """What really applies: no more tokens than the context has room for, every stop token, the turn's own seed."""
        base = self._sampling
        return SamplingParams(
            temperature=base.temperature,
            top_p=base.top_p,
            top_k=base.top_k,
            max_tokens=min(base.max_tokens, self.setup.max_length - len(self._builder.token_ids)),
            stop_token_ids=self._stop_token_ids,
            stop=base.stop,
            seed=self._seeds[turn],
        )


def _fault_of(generation: object, sampling: SamplingParams) -> str | None:
    """What is wrong with an engine's answer, or None."""
    if not isinstance(generation, Generation):
        return f"the engine gave {type(generation).__name__}; generate must return a Generation"
    if generation.finish_reason == "abort":
        return "the engine aborted the request"
    if len(generation.token_ids) > sampling.max_tokens:
        return f"the engine gave {len(generation.token_ids)} tokens, and max_tokens is {sampling.max_tokens}"
    if not math.isfinite(sum(generation.logprobs)):
        return "the engine gave a logprob that is not finite; are its weights finite?"
    return None


def observation_text(observation: Observation) -> str:
    """An observation as text, for reading only."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Verbatim):
        return observation.text
    if isinstance(observation, dict):
        return str(observation.get("content", ""))
    parts = [item["content"] if isinstance(item, dict) else str(item) for item in observation]
    return ("\n" if parts and isinstance(observation[0], dict) else " ").join(parts)
