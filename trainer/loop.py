"""The synchronous loop.

    TaskOrder ---- slots uB to (u+1)B-1 ----> tasks <---------------+
                                                |  executor.run_group, all at once
                                                v                  |  filtered, or a reward failed
    RUN/episodes <--------------------------- groups of episodes   |
                                                |  reward ---------+
                                                v
                                             groups to train
                                                |  advantages
                                                v
                                             samples
                                                |  Updater
                                                v
    engine <------- publish, version + 1 ---- weights
                                                |
                                                v
    RUN/metrics.jsonl, callbacks, evaluation, RUN/checkpoints; then update u + 1

An update consumes the slots in order, so that no token is older than the weights it trains. A run that was interrupted
goes on from its last checkpoint and does the updates after it again, from their start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from ..agents.engine import Engine
from ..agents.engines.transformers import TransformersEngine
from ..agents.executor import AgentExecutor
from ..agents.loop_stall import LoopStall
from ..agents.settled_heap import settled_heap
from ..envs.errors import ConfigError
from .checkpoint import Checkpoint
from .config import SINGLE_TURN, TrainConfig
from .evaluate import EvalReport, evaluate, held_out_tasks
from .metrics import filter_metrics, rollout_metrics, sample_metrics
from .outside_loop import call_outside_loop
from .parts import (
    EnvLike,
    advantage_config,
    check_model,
    context_length,
    deterministic_algorithms,
    env_parts,
    executor_config,
    load_policy,
    make_renderer,
    make_tiny_once,
    resolve_device,
    sampling_params,
    update_config,
)
from .progress import RunProgress
from .prompt_check import check_prompts
from .reward_reports.log import log_lines, part_means, reward_metrics
from .reward_setup import make_scorer
from .rollouts import Rollouts
from .run_folder import RunFolder
from .run_report import RunReport, UpdateReport
from .samples import samples_from_groups
from .shuffle import shuffle_rewards
from .task_order import TaskOrder
from .update import Updater

T = TypeVar("T")


StepCallback = Callable[[UpdateReport], object]
C = TypeVar("C", bound=StepCallback)


class Trainer:
    """Trains a policy in an environment.

    Its methods run an event loop of their own and return when they are done, in a notebook too.

    Args:
        config: the settings.
        env: instead of the config's: an id, a class, or a function that gives instances, with an attribute `tasks`.
        engine: samples the actions; by default the policy's own copy in this process. It is not closed.
        reward: what is added to the environment's rewards, instead of the one that the config names: anything that
            `turngym.envs.rewards.as_reward` takes.
        progress: shows the run; None is silent.

    Attributes:
        folder: the run's folder.
        version: published updates.
        policy: the policy.
        is_deterministic: whether the run repeats bit for bit.

    Raises:
        ConfigError: a setting can't be used, or the folder holds a run and `resume` isn't set.
        UnknownEnvError: there is no such environment.
        DataError: the file of tasks can't be used.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        env: EnvLike | None = None,
        engine: Engine | None = None,
        reward: Any = None,
        progress: RunProgress | None = None,
    ) -> None:
        if config.policy.temperature == 0:
            raise ConfigError("--temperature 0 leaves nothing to learn: every token is certain; train above 0")
        self.config = config
        self.folder = RunFolder(config)
        self._scorer = make_scorer(config.reward, reward)
        self._progress = progress
        self._callbacks: list[StepCallback] = []
        self._parts = env_parts(config.env, env, default=None if self._scorer is None else SINGLE_TURN)
        self._order = TaskOrder(self._parts.tasks.split("train"), seed=config.run.seed)
        self._held_out = []
        if config.evaluation.eval_steps >= 0:
            self._held_out = held_out_tasks(self._parts.tasks, config.evaluation.eval_tasks)
        is_tiny = config.policy.pretrain == "tiny"
        updating = update_config(config.algorithm, config.optimizer, is_tiny=is_tiny)
        self._advantages = advantage_config(config.algorithm)
        self._sampling = sampling_params(config.policy)
        if not is_tiny:
            check_model(config.policy.pretrain, "--pretrain")
        device = resolve_device(config.policy.device)
        self.is_deterministic = (
            device == "cpu" and engine is None if config.run.deterministic is None else config.run.deterministic
        )
        resumed = self.folder.begin()
        self.version = 0 if resumed is None else resumed.version
        self._seconds = 0.0 if resumed is None else float(resumed.state["seconds"])
        self._next_task = 0 if resumed is None else _next_task(resumed, config)
        with deterministic_algorithms(self.is_deterministic):
            self.policy = load_policy(self._weights(resumed), device=device)
        self._renderer = make_renderer(config.policy, self.policy)
        self._updater = Updater(self.policy, updating)
        if resumed is not None:
            self._updater.load_state_dict(resumed.restore())
        self._executor_config = executor_config(
            config.env,
            config.policy,
            config.limits,
            max_turns=self._parts.max_turns,
            max_length=context_length(config.policy, self.policy),
            seed=config.run.seed,
        )
        self._is_own_engine = engine is None
        self._engine: Engine = engine or TransformersEngine(
            self.policy.model,
            self.policy.tokenizer,
            deterministic=self.is_deterministic,
            seed=config.run.seed,
            version=self.version,
        )

    def add_step_callback(self, callback: C) -> C:
        """Call a function after each update with its `UpdateReport`. Returns the function, so that it decorates."""
        self._callbacks.append(callback)
        return callback

    def fit(self) -> RunReport:
        """Train up to `num_updates`, from where the folder's last checkpoint stands.

        Raises:
            DataError: a prompt doesn't fit the context.
            EnvError: every episode of an update failed, time after time.
            EngineError: the same, and the engine is to blame.
            RewardError: the same, and the reward is to blame; or it broke its contract.
            ConfigError: the reward can't work.
        """
        return self._run(self._fit)

    def evaluate(self) -> EvalReport:
        """Play the held-out tasks with the policy as it is.

        Raises:
            DataError: no tasks are held out.
        """

        async def evaluated() -> EvalReport:
            async with self._executor() as executor, self._rewards():
                return await self._evaluate(executor)

        return self._run(evaluated)

    def close(self) -> None:
        """End the engine's thread, where the engine is the trainer's own. May be called more than once."""
        if self._is_own_engine:
            self._run(self._engine.close)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with deterministic_algorithms(self.is_deterministic), settled_heap():
            return call_outside_loop(lambda: asyncio.run(work()))

    def _executor(self) -> AgentExecutor:
        return AgentExecutor(self._parts.factory, self._engine, self._renderer, self._executor_config)

    def _weights(self, resumed: Checkpoint | None) -> Path | str:
        if resumed is not None:
            return resumed.policy
        if self.config.policy.pretrain != "tiny":
            return self.config.policy.pretrain
        if self._scorer is not None and not self.folder.tiny.exists():
            self._run(self._try_reward)  # so that one that can't work is told before the policy is made
        return make_tiny_once(self._parts, seed=self.config.run.seed, out=self.folder.tiny, report=self._note)

    async def _try_reward(self) -> None:
        async with self._rewards():
            pass

    async def _fit(self) -> RunReport:
        num_updates = self.config.run.num_updates
        self.folder.write_facts(
            env=self._parts.name,
            device=str(self.policy.device),
            deterministic=self.is_deterministic,
            resumed_at=self.version,
        )
        if not self._is_own_engine:
            await self._engine.publish(self.policy.weights(), self.version)
        if self._progress is not None:
            self._progress.begin(version=self.version, num_updates=num_updates)
        before = after = None
        started = time.perf_counter() - self._seconds
        try:
            async with self._executor() as executor, self._rewards():
                await check_prompts(self._parts.factory, self._renderer, self._parts.tasks, self._executor_config)
                after = await self._evaluate_when_due(executor)
                before = after if self.version == 0 else None
                rollouts = self._rollouts(executor)
                while self.version < num_updates:
                    await self._update(rollouts, started)
                    after = await self._evaluate_when_due(executor)
                    self._seconds = time.perf_counter() - started
                    if self.version % self.config.run.save_steps == 0 or self.version == num_updates:
                        self._save()
        finally:
            if self._progress is not None:
                self._progress.end()
        return RunReport(
            out=self.folder.path,
            policy=self.folder.save_policy(self.policy),
            version=self.version,
            before=before,
            after=after,
            reward_analysis=self._analyse_rewards(),
        )

    def _rollouts(self, executor: AgentExecutor) -> Rollouts:
        return Rollouts(
            executor,
            self._order,
            self.folder.episodes,
            run=self.config.run,
            algorithm=self.config.algorithm,
            limits=self.config.limits,
            scorer=self._scorer,
            next_task=self._next_task,
        )

    @asynccontextmanager
    async def _rewards(self) -> AsyncIterator[None]:
        """What the reward holds open, for as long as it is needed."""
        if self._scorer is None:
            yield
            return
        try:
            await self._scorer.start()
            yield
        finally:
            await self._scorer.aclose()

    async def _update(self, rollouts: Rollouts, started: float) -> None:
        update = self.version
        with _Timer() as rollout:
            async with LoopStall() as stall:
                played = await rollouts.play(update)
        self._next_task = rollouts.next_task
        groups = played.groups
        with _Timer() as updating:
            trained = list(groups)
            if self.config.algorithm.shuffle_rewards:
                trained = shuffle_rewards(groups, seed=self.config.run.seed, update=update)
            samples = samples_from_groups([group.episodes for group in trained], self._advantages)
            result = self._updater.update(samples, version=self.version)
        with _Timer() as publishing:
            await self._engine.publish(self.policy.weights(), update + 1)
        self.version = update + 1
        metrics = {
            "kind": "train",
            "update": update,
            "version": self.version,
            "epoch": played.epoch,
            **rollout_metrics(groups),
            **(reward_metrics(groups) if self.config.reward.log_rewards else part_means(groups)),
            **sample_metrics(groups, samples, version=update),
            **{key: value for key, value in result.metrics.items() if key not in ("tokens", "episodes")},
            "trained_tokens": int(result.metrics["tokens"]),
            "failed_tries": played.num_failed_tries,
            **filter_metrics(played.filtered, self.config.algorithm.dynamic_filtering_reward_range),
            "loop_stall_max_s": stall.longest_s,
            "rollout_s": rollout.seconds,
            "update_s": updating.seconds,
            "publish_s": publishing.seconds,
            "total_s": time.perf_counter() - started,
        }
        self.folder.metrics.write(metrics)
        if self._progress is not None:
            self._progress.updated(metrics)
            for line in log_lines(metrics):
                self._progress.note(line)
        report = UpdateReport(update=update, version=self.version, metrics=metrics, groups=groups)
        for callback in self._callbacks:
            callback(report)

    async def _evaluate_when_due(self, executor: AgentExecutor) -> EvalReport | None:
        """Evaluate before the first update, after the last, and in between as often as asked; never a version twice."""
        steps = self.config.evaluation.eval_steps
        is_end = self.version in (0, self.config.run.num_updates)
        if steps < 0 or not (is_end or (steps and self.version % steps == 0)):
            return None
        if any(row["kind"] == "eval" and row["version"] == self.version for row in self.folder.metrics.read()):
            return None
        with _Timer() as timer:
            report = await self._evaluate(executor)
        self.folder.metrics.write(
            {"kind": "eval", "version": self.version, **report.metrics(), "eval_s": timer.seconds}
        )
        if self._progress is not None:
            self._progress.evaluated(report, self.version)
        return report

    async def _evaluate(self, executor: AgentExecutor) -> EvalReport:
        report, episodes = await evaluate(
            executor,
            self._held_out or held_out_tasks(self._parts.tasks, self.config.evaluation.eval_tasks),
            self.config.evaluation,
            sampling=self._sampling,
            concurrency=self.config.limits.concurrency,
            scorer=self._scorer,
            version=self.version,
        )
        self.folder.episodes.write(episodes, split="eval", update=self.version)
        return report

    def _analyse_rewards(self) -> Path | None:
        if not self.config.reward.save_reward_analysis or self.version == 0:
            return None
        from .reward_reports.analysis import analyse, save_reward_analysis

        played = (self._order.task(place)[1] for place in range(self._next_task))
        analysis = analyse(self.folder.path, tasks={task.id: task for task in played})
        for warning in analysis.warnings:
            self._note(f"warning: {warning}")
        return save_reward_analysis(analysis)

    def _save(self) -> None:
        self.folder.checkpoints.save(
            version=self.version,
            policy=self.policy,
            updater=self._updater.state_dict(),
            state={"flags": self.config.flags(), "seconds": self._seconds, "next_task": self._next_task},
        )

    def _note(self, text: str) -> None:
        if self._progress is not None:
            self._progress.note(text)


def _next_task(resumed: Checkpoint, config: TrainConfig) -> int:
    """Where the order of tasks goes on; a checkpoint that doesn't say was written when no group was filtered."""
    return int(resumed.state.get("next_task", resumed.version * config.run.rollout_batch_size))


class _Timer:
    """Seconds that a block took."""

    seconds = 0.0

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._started
