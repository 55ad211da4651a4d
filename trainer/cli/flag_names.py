"""Names that users of this field know: aliases of our flags, and flags whose part isn't here.

The dotted names are OpenRLHF's since 0.10.2 (see "Flag migration" in its documentation), the flat ones its older.
"""

from __future__ import annotations

ALIASES: dict[str, str] = {
    "actor.model_name_or_path": "pretrain",
    "max_turns": "max_steps",
    "data.prompt_dataset": "prompt_data",
    "data.input_key": "input_key",
    "data.label_key": "label_key",
    "data.max_len": "max_len",
    "rollout.max_new_tokens": "max_new_tokens",
    "generate_max_len": "max_new_tokens",
    "rollout.temperature": "temperature",
    "rollout.top_p": "top_p",
    "rollout.batch_size": "rollout_batch_size",
    "rollout.n_samples_per_prompt": "n_samples_per_prompt",
    "algo.advantage.estimator": "advantage_estimator",
    "algo.advantage.gamma": "gamma",
    "actor_learning_rate": "learning_rate",
    "actor.adam.lr": "learning_rate",
    "actor.adam.betas": "adam_betas",
    "actor.adam.weight_decay": "weight_decay",
    "l2": "weight_decay",
    "actor.max_norm": "max_norm",
    "train.max_epochs": "max_epochs",
    "train.max_tokens_per_gpu": "micro_batch_tokens",
    "train_max_tokens_per_gpu": "micro_batch_tokens",
    "train.seed": "seed",
    "train.full_determinism_enable": "deterministic",
    "full_determinism": "deterministic",
    "ckpt.save_steps": "save_steps",
    "ckpt.max_num": "max_ckpt_num",
    "ckpt.load_enable": "resume",
    "load_checkpoint": "resume",
    "eval.steps": "eval_steps",
    "eval.temperature": "eval_temperature",
    "eval.n_samples_per_prompt": "eval_n_samples_per_prompt",
    "reward.remote_url": "remote_rm_url",
    "algo.dynamic_filtering_enable": "dynamic_filtering",
    "algo.dynamic_filtering_range": "dynamic_filtering_reward_range",
    # names of those below
    "train.agent_func_path": "agent_func_path",
    "train.async_enable": "async_train",
    "algo.kl.init_coef": "init_kl_coef",
    "algo.kl.use_loss": "use_kl_loss",
    "algo.kl.estimator": "kl_estimator",
    "algo.advantage.lambd": "lambd",
    "logger.use_wandb": "use_wandb",
    "logger.wandb.key": "use_wandb",
    "logger.wandb.project": "wandb_project",
    "logger.wandb.org": "wandb_org",
    "logger.wandb.group": "wandb_group",
    "logger.wandb.run_name": "wandb_run_name",
    "vllm.num_engines": "vllm_num_engines",
    "reward.model_name_or_path": "reward_pretrain",
    "ref.model_name_or_path": "ref_pretrain",
    "critic.model_name_or_path": "critic_pretrain",
}
"""Alias -> flag."""

_AGENT_FILES = "agent files of OpenRLHF don't run yet; give an AgentInstance as --env file.py:Class"
_REWARD_MODEL = "give a reward model as a reward: --reward_file with a file that holds RewardModel(model_path=...)"
_SANDBOX = "there is no sandbox yet; a reward file runs with the rights of whoever starts it"
_WANDB = "metrics don't go to Weights & Biases yet; they are in metrics.jsonl in the run's folder"
_KL = "there is no reference model yet; leave it out"
_CRITIC = "there is no critic yet; choose an estimator that compares within the group, such as rloo"

NOT_YET: dict[str, str] = {
    "agent_func_path": _AGENT_FILES,
    "reward_pretrain": _REWARD_MODEL,
    "sandbox_rewards": _SANDBOX,
    "async_train": "training is synchronous; leave it out",
    "use_wandb": _WANDB,
    "wandb_project": _WANDB,
    "wandb_org": _WANDB,
    "wandb_group": _WANDB,
    "wandb_run_name": _WANDB,
    "init_kl_coef": _KL,
    "use_kl_loss": _KL,
    "kl_estimator": _KL,
    "ref_pretrain": _KL,
    "critic_pretrain": _CRITIC,
    "lambd": _CRITIC,
    "vllm_num_engines": "the embedded engine is the only one yet; leave it out",
}
"""Flag -> what to do instead. Refused by name; their values are never read, so that no key is printed."""

NOT_YET_VALUES: dict[tuple[str, str], str] = {("advantage_estimator", "gae"): _CRITIC}
"""(flag, value) -> what to do instead."""
