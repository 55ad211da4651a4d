"""The settings of a run: typed sections, each flag in exactly one of them.

A field's name is its flag (`--num_updates`), and its key in a YAML file. A section checks its values where it is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self, TypeAlias

from ..envs.errors import ConfigError
from .advantages import Credit, Ended, Estimator

Aggregation: TypeAlias = Literal["token_mean", "sequence_mean", "constant"]
Device: TypeAlias = Literal["auto", "cpu", "cuda"]

SINGLE_TURN = "SingleTurn-v0"
"""The environment of a run that names a reward and no environment."""
DEFAULT_LEARNING_RATE = 1e-6
"""For a model that was trained before."""
TINY_LEARNING_RATE = 1.2e-4
"""For `tiny`."""


def _check(section: object, **least: float) -> None:
    """Raise `ConfigError` where a field is below its least value, or no finite number."""
    for name, bound in least.items():
        value = getattr(section, name)
        if value is not None and not (bound <= value < math.inf):
            raise ConfigError(f"--{name} {value} must be at least {bound}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """Environment and tasks.

    Attributes:
        env: what is acted in: an id that `turngym envs` lists, module:Class, or file.py:Class
        env_kwargs: its arguments: level=2 max_attempts=3, or as JSON
        max_steps: turns after which an episode is truncated; none by default
        prompt_data: tasks from a .jsonl or .parquet file, instead of the environment's own
        input_key: the file's column that holds the prompt
        label_key: the file's column that holds the label
        env_workers: processes that hold the environments; 0 holds them in this one
    """

    env: str = ""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    max_steps: int | None = None
    prompt_data: str | None = None
    input_key: str = "prompt"
    label_key: str | None = None
    env_workers: int = 0

    def __post_init__(self) -> None:
        _check(self, max_steps=1, env_workers=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Policy and sampling.

    Attributes:
        pretrain: what to train: tiny makes a small policy for the environment; else a transformers folder or Hub name
        device: where to compute; auto takes a GPU where there is one
        max_len: tokens that a context holds, the answers included; the model's own limit by default
        max_new_tokens: most tokens of one turn
        temperature: what the logits are divided by
        top_p: smallest probability mass to sample from
        top_k: number of likeliest tokens to sample from; 0 keeps all
        stop: strings that end a turn
        on_rewrite: what to do where the chat template rewrites what was said: append, fork the record, or stop
    """

    pretrain: str = "tiny"
    device: Device = "auto"
    max_len: int | None = None
    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: list[str] = field(default_factory=list)
    on_rewrite: Literal["append", "fork", "error"] = "append"

    def __post_init__(self) -> None:
        _check(self, max_len=2, max_new_tokens=1, temperature=0, top_p=0, top_k=0)
        if self.top_p > 1 or self.top_p == 0:
            raise ConfigError(f"--top_p {self.top_p} must lie in (0, 1]; 1 keeps the whole distribution")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """Reward, on top of what the environment gives.

    Attributes:
        reward_function: a ready reward's name, or module:NAME; with --reward_file, a name in that file
        reward_file: a file that holds a reward, as FILE or FILE:NAME
        remote_rm_url: a reward file in OpenRLHF's form, or http:// addresses of reward servers
        reward_on: what is scored: the whole episode, each turn, or each turn token by token
        reward_workers: processes that run a reward file
        reward_timeout_s: seconds that one call of the reward may take
        real_imports: import the packages that a reward file names, instead of the classes here that stand in for them
        log_rewards: log each update's distribution of rewards, by part and by task
        save_reward_analysis: at the end, write what earned rewards to reward_analysis/ in the run's folder
    """

    reward_function: str | None = None
    reward_file: str | None = None
    remote_rm_url: list[str] = field(default_factory=list)
    reward_on: Literal["episode", "turn", "token"] = "episode"
    reward_workers: int = 1
    reward_timeout_s: float = 120.0
    real_imports: bool = False
    log_rewards: bool = False
    save_reward_analysis: bool = False

    def __post_init__(self) -> None:
        _check(self, reward_workers=1)
        if not self.reward_timeout_s > 0:
            raise ConfigError(f"--reward_timeout_s {self.reward_timeout_s} must be above 0 seconds; inf sets no limit")
        if self.remote_rm_url and (self.reward_file or self.reward_function):
            other = "--reward_file" if self.reward_file else "--reward_function"
            raise ConfigError(f"--remote_rm_url and {other} both name a reward; give one, or combine them in a file")

    @property
    def is_given(self) -> bool:
        """Whether any reward is named."""
        return bool(self.reward_function or self.reward_file or self.remote_rm_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmConfig:
    """Credit and loss.

    Attributes:
        advantage_estimator: how a return is compared with those of its group
        credit: what a reward is credited to: the whole episode, or its turn (or token) and those before
        gamma: discount per turn
        ended: what a turn's baseline takes for siblings that had ended before it: zero, or only those that reached it
        whiten: bring the update's advantages to mean 0 and deviation 1; by default where OpenRLHF does
        clip_low: how far the ratio of probabilities may fall below 1
        clip_high: how far it may rise above 1
        aggregation: how tokens share in the loss
        constant: the denominator of the aggregation `constant`
        shuffle_rewards: control run: permute the rewards over the update's episodes, so that nothing can be learned
        dynamic_filtering: play another task where a group's mean score says nothing, until the update is full
        dynamic_filtering_reward_range: the mean score must lie between these, exclusive
        max_filter_rounds: further tasks that one group may be replaced by; then the update does without it
    """

    advantage_estimator: Estimator = "rloo"
    credit: Credit = "turn"
    gamma: float = 1.0
    ended: Ended = "zero"
    whiten: bool | None = None
    clip_low: float = 0.2
    clip_high: float = 0.2
    aggregation: Aggregation = "token_mean"
    constant: int | None = None
    shuffle_rewards: bool = False
    dynamic_filtering: bool = False
    dynamic_filtering_reward_range: tuple[float, float] = (0.0, 1.0)
    max_filter_rounds: int = 10

    def __post_init__(self) -> None:
        _check(self, gamma=0, clip_low=0, clip_high=0, constant=1, max_filter_rounds=0)
        low, high = self.dynamic_filtering_reward_range
        if not low < high:
            raise ConfigError(f"--dynamic_filtering_reward_range {low} {high} must be two numbers, the lower one first")
        if self.gamma > 1:
            raise ConfigError(f"--gamma {self.gamma} must lie in [0, 1]; 1 doesn't discount")
        if self.clip_low > 1:
            raise ConfigError(f"--clip_low {self.clip_low} must lie in [0, 1]")
        if self.aggregation == "constant" and self.constant is None:
            raise ConfigError("--aggregation constant needs a denominator; add --constant N, a long answer's tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Optimizer.

    Attributes:
        learning_rate: AdamW's step size; by default 1e-6, and for tiny its own
        adam_betas: decay of the two moments
        weight_decay: decoupled decay of matrices
        warmup_steps: optimizer steps over which the learning rate rises
        max_norm: gradients are scaled down to this norm
        max_epochs: how often each sample is used
        num_minibatches: optimizer steps per epoch
        micro_batch_tokens: tokens computed at once; changes memory and time only
    """

    learning_rate: float | None = None
    adam_betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup_steps: int = 0
    max_norm: float = 1.0
    max_epochs: int = 1
    num_minibatches: int = 1
    micro_batch_tokens: int = 4096

    def __post_init__(self) -> None:
        _check(self, learning_rate=0, weight_decay=0, warmup_steps=0)
        _check(self, max_epochs=1, num_minibatches=1, micro_batch_tokens=1)
        if not self.max_norm > 0:
            raise ConfigError(f"--max_norm {self.max_norm} must be above 0; inf doesn't clip")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Run.

    Attributes:
        out: the run's folder
        num_updates: updates to train for
        rollout_batch_size: tasks (groups) of one update
        n_samples_per_prompt: episodes of one task (the size of a group)
        seed: what every random stream is derived from
        resume: go on from the folder's last checkpoint, or start where there is none
        save_steps: updates between two checkpoints
        max_ckpt_num: checkpoints to keep
        deterministic: repeat bit for bit; by default on the CPU
    """

    out: str = "runs/train"
    num_updates: int = 100
    rollout_batch_size: int = 32
    n_samples_per_prompt: int = 8
    seed: int = 0
    resume: bool = False
    save_steps: int = 10
    max_ckpt_num: int = 2
    deterministic: bool | None = None

    def __post_init__(self) -> None:
        _check(self, num_updates=0, rollout_batch_size=1, n_samples_per_prompt=1, seed=0, save_steps=1, max_ckpt_num=1)
        if not self.out:
            raise ConfigError("--out is empty; name the run's folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Evaluation on held-out tasks.

    Attributes:
        eval_steps: updates between two evaluations; 0 evaluates only before and after, -1 never
        eval_tasks: held-out tasks to play
        eval_n_samples_per_prompt: episodes of each
        eval_temperature: temperature of its sampling
        eval_greedy: play each task once more at temperature 0
    """

    eval_steps: int = 0
    eval_tasks: int = 200
    eval_n_samples_per_prompt: int = 1
    eval_temperature: float = 1.0
    eval_greedy: bool = True

    def __post_init__(self) -> None:
        _check(self, eval_steps=-1, eval_tasks=1, eval_n_samples_per_prompt=1, eval_temperature=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitConfig:
    """Limits and failures.

    Attributes:
        turn_timeout_s: seconds that the engine has for a turn
        step_timeout_s: seconds that one reset or step of the environment may take
        episode_timeout_s: seconds after which an episode is truncated
        max_refills: further attempts at an episode that the infrastructure failed
        max_failed_updates: attempts at an update of which every episode failed, before the run stops
        concurrency: episodes at once in an evaluation
    """

    turn_timeout_s: float = 600.0
    step_timeout_s: float = 120.0
    episode_timeout_s: float = 3600.0
    max_refills: int = 3
    max_failed_updates: int = 3
    concurrency: int = 256

    def __post_init__(self) -> None:
        _check(self, max_refills=0, max_failed_updates=1, concurrency=1)
        for name in ("turn_timeout_s", "step_timeout_s", "episode_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name} {getattr(self, name)} must be above 0 seconds; inf sets no limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """All settings of a run, by section.

    >>> config = TrainConfig.of(env="Math-v0", env_kwargs={"level": 1}, num_updates=10)
    >>> config.run.num_updates, config.env.env
    (10, 'Math-v0')
    """

    env: EnvConfig = field(default_factory=EnvConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    limits: LimitConfig = field(default_factory=LimitConfig)

    @classmethod
    def of(cls, **flags: Any) -> Self:
        """A config from flags by name, each put into its section.

        Raises:
            ConfigError: there is no such flag, or a value can't be used.
        """
        return cls().with_flags(flags)

    def with_flags(self, flags: Mapping[str, Any]) -> Self:
        """The same config with some flags changed."""
        sections = {name: {} for name in SECTIONS}
        for flag, value in flags.items():
            if flag not in SECTION_OF:
                raise ConfigError(f"there is no flag {flag!r}; there are {', '.join(SECTION_OF)}")
            sections[SECTION_OF[flag]][flag] = value
        changed = {name: replace(getattr(self, name), **values) for name, values in sections.items() if values}
        return replace(self, **changed)

    def flags(self) -> dict[str, Any]:
        """All flags and their values, without sections."""
        return {flag: value for section in asdict(self).values() for flag, value in section.items()}


SECTIONS: dict[str, type] = {
    "env": EnvConfig,
    "policy": PolicyConfig,
    "reward": RewardConfig,
    "algorithm": AlgorithmConfig,
    "optimizer": OptimizerConfig,
    "run": RunConfig,
    "evaluation": EvalConfig,
    "limits": LimitConfig,
}
SECTION_OF: dict[str, str] = {f.name: name for name, section in SECTIONS.items() for f in fields(section)}
"""The section that each flag belongs to."""

FREE_ON_RESUME = frozenset(
    {"out", "resume", "num_updates", "save_steps", "max_ckpt_num", "device", "env_workers", "concurrency"}
    | {"reward_workers", "reward_timeout_s", "log_rewards", "save_reward_analysis"}
    | {f.name for f in (*fields(EvalConfig), *fields(LimitConfig))}
)
"""Flags that may differ when a run is resumed: they change neither its tasks nor its episodes nor its updates."""
