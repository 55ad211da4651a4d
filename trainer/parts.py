"""The parts of a run, made from its settings: environment, tasks, policy, and the settings of other rooms."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..agents.chat import Renderer
from ..agents.executor_config import ExecutorConfig
from ..envs.errors import ConfigError, TurngymError
from ..envs.instance import AgentInstance
from ..envs.registry import EnvFactory, spec, task_source
from ..envs.rows import RowTaskSource
from ..envs.sampling import SamplingParams
from ..envs.tasks import TaskSource
from .advantages import AdvantageConfig
from .checkpoint import sync
from .config import (
    DEFAULT_LEARNING_RATE,
    TINY_LEARNING_RATE,
    AlgorithmConfig,
    Device,
    EnvConfig,
    LimitConfig,
    OptimizerConfig,
    PolicyConfig,
)
from .optim import OptimConfig
from .outside_loop import call_outside_loop
from .policy import Policy
from .tiny import make_tiny
from .update import UpdateConfig

EnvLike = str | Callable[..., AgentInstance]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvParts:
    """What episodes are played in.

    Attributes:
        name: what messages call it.
        factory: makes an instance.
        tasks: all tasks, not yet split.
        max_turns: the environment's own limit where nobody else sets it, or None.
    """

    name: str
    factory: Callable[[], AgentInstance]
    tasks: TaskSource
    max_turns: int | None = None


def env_parts(config: EnvConfig, env: EnvLike | None = None, *, default: str | None = None) -> EnvParts:
    """The environment and its tasks. One instance is made and closed, so that a wrong argument is found here.

    Args:
        config: id, arguments, and the file of tasks.
        env: instead of the config's: an id, a class, or a function that gives instances. Tasks that don't come from a
            file are its attribute `tasks`: a source, or a function that gives one.
        default: the id where neither names one.

    Raises:
        UnknownEnvError: there is no such environment.
        ConfigError: it can't be made with these arguments, or has no tasks.
        DataError: the file of tasks can't be used.
    """
    env = env or config.env or default
    if not env:
        raise ConfigError("--env is missing; `turngym envs` lists what there is, or give file.py:Class")
    kwargs = config.env_kwargs
    if isinstance(env, str):
        spec(env)
        parts = EnvParts(
            name=env,
            factory=EnvFactory(id=env, kwargs=kwargs),
            tasks=_tasks(config, lambda: task_source(env, **kwargs)),
        )
    else:
        name = getattr(env, "__name__", type(env).__name__)
        parts = EnvParts(
            name=name,
            factory=functools.partial(env, **kwargs) if kwargs else env,
            tasks=_tasks(config, lambda: _own_tasks(env, name)),
            max_turns=getattr(env, "max_turns", None),
        )
    _try_out(parts, kwargs)
    return parts


def _tasks(config: EnvConfig, own: Callable[[], TaskSource]) -> TaskSource:
    if config.prompt_data is None:
        if config.label_key is not None:
            raise ConfigError(f"--label_key {config.label_key} without --prompt_data; name the file of tasks too")
        return own()
    return RowTaskSource(config.prompt_data, input_key=config.input_key, label_key=config.label_key)


def _own_tasks(env: Callable[..., AgentInstance], name: str) -> TaskSource:
    tasks = getattr(env, "tasks", None)
    if tasks is None:
        raise ConfigError(f"{name} has no tasks of its own; give it an attribute `tasks`, or a file with --prompt_data")
    return tasks if isinstance(tasks, TaskSource) else tasks()


def _try_out(parts: EnvParts, kwargs: Mapping[str, Any]) -> None:
    try:
        instance = parts.factory()
        call_outside_loop(lambda: asyncio.run(_close(instance)))
    except TurngymError:
        raise
    except Exception as error:
        given = f" with {dict(kwargs)}" if kwargs else ""
        raise ConfigError(f"{parts.name} can't be made{given}: {type(error).__name__}: {error}") from error


async def _close(instance: AgentInstance) -> None:
    closing = instance.close()
    if asyncio.iscoroutine(closing):  # a plain `def close` has closed already
        await closing


def resolve_device(device: Device) -> str:
    """`cpu` or `cuda`.

    Raises:
        ConfigError: `cuda` is asked for, and there is none.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda, and torch sees no GPU; use --device cpu, or auto")
    return device


def check_model(name: str, flag: str) -> None:
    """Raise `ConfigError` for a model that is surely not there, before anything is loaded."""
    path = Path(name)
    if (path / "config.json").is_file():
        return
    if path.exists():
        raise ConfigError(f"{flag} {name} is no transformers folder: it has no config.json")
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or path.parent.exists():
        raise ConfigError(f"{flag} {name}: there is no such folder; give one, or a Hub name owner/model")


def load_policy(path: Path | str, *, device: str) -> Policy:
    """The policy in a folder, with its tokenizer.

    Raises:
        ConfigError: it can't be read.
    """
    return Policy.from_pretrained(path, device=device)


def make_tiny_once(parts: EnvParts, *, seed: int, out: Path, report: Callable[[str], object]) -> Path:
    """The run's tiny policy; an interrupted making leaves nothing behind that could be taken for it."""
    if not out.exists():
        temporary = out.with_name(f".part-{out.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        train = parts.tasks.split("train")
        factory = parts.factory  # demonstrations are played by the thousand, and a reward may cost time or money
        factory = factory.without_reward() if isinstance(factory, EnvFactory) else factory
        call_outside_loop(lambda: make_tiny(factory, train, seed=seed, out=temporary, report=report))
        temporary.rename(out)
        sync(out.parent)
    return out


@contextmanager
def deterministic_algorithms(is_on: bool) -> Iterator[None]:
    """Let torch use only algorithms that repeat bit for bit."""
    before = torch.are_deterministic_algorithms_enabled()
    if is_on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS refuses the deterministic mode without it
    torch.use_deterministic_algorithms(is_on or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def context_length(config: PolicyConfig, policy: Policy) -> int:
    """Tokens that a context holds.

    Raises:
        ConfigError: more is asked for than the model can read.
    """
    own = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    if config.max_len is None:
        return own or 4096
    if own is not None and config.max_len > own:
        raise ConfigError(f"--max_len {config.max_len} is more than the {own} tokens that the model can read")
    return config.max_len


def sampling_params(config: PolicyConfig) -> SamplingParams:
    """How a turn is sampled."""
    return SamplingParams(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_tokens=config.max_new_tokens,
        stop=tuple(config.stop),
    )


def executor_config(
    env: EnvConfig, policy: PolicyConfig, limits: LimitConfig, *, max_turns: int | None, max_length: int, seed: int
) -> ExecutorConfig:
    """How episodes are played. The smaller limit of turns counts."""
    turns = [limit for limit in (env.max_steps, max_turns) if limit is not None]
    return ExecutorConfig(
        sampling=sampling_params(policy),
        max_turns=min(turns, default=None),
        max_length=max_length,
        turn_timeout_s=limits.turn_timeout_s,
        step_timeout_s=limits.step_timeout_s,
        episode_timeout_s=limits.episode_timeout_s,
        max_refills=limits.max_refills,
        env_workers=env.env_workers,
        concurrency=limits.concurrency,
        seed=seed,
    )


def advantage_config(config: AlgorithmConfig) -> AdvantageConfig:
    """How rewards become advantages."""
    return AdvantageConfig(
        estimator=config.advantage_estimator,
        credit=config.credit,
        discount=config.gamma,
        ended=config.ended,
        whiten=config.whiten,
    )


def update_config(algorithm: AlgorithmConfig, optimizer: OptimizerConfig, *, is_tiny: bool) -> UpdateConfig:
    """How samples change the weights."""
    learning_rate = optimizer.learning_rate
    if learning_rate is None:
        learning_rate = TINY_LEARNING_RATE if is_tiny else DEFAULT_LEARNING_RATE
    return UpdateConfig(
        optim=OptimConfig(
            learning_rate=learning_rate,
            betas=optimizer.adam_betas,
            weight_decay=optimizer.weight_decay,
            warmup_steps=optimizer.warmup_steps,
            max_grad_norm=optimizer.max_norm,
        ),
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        aggregation=algorithm.aggregation,
        constant=algorithm.constant,
        num_epochs=optimizer.max_epochs,
        num_minibatches=optimizer.num_minibatches,
        micro_batch_tokens=optimizer.micro_batch_tokens,
    )


def make_renderer(config: PolicyConfig, policy: Policy) -> Renderer:
    """What turns observations into tokens for the policy."""
    if policy.tokenizer is None:
        raise ConfigError("the policy has no tokenizer; load it from a folder that holds one")
    return Renderer(policy.tokenizer, on_rewrite=config.on_rewrite)
