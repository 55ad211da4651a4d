"""`turngym eval`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...envs.errors import ConfigError
from ..config import SINGLE_TURN, EnvConfig, EvalConfig, LimitConfig, PolicyConfig, RewardConfig, TrainConfig
from .flags import FlagParser, add_section, parse

if TYPE_CHECKING:
    from ..evaluate import EvalReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What to evaluate.

    Attributes:
        model: the policy: a transformers folder, such as RUN/policy, or a Hub name
        json: also write the report to this file; - prints it instead of the table
        seed: what every random stream is derived from
    """

    model: str = ""
    json: str | None = None
    seed: int = 0


_NOT_HERE = {
    EnvConfig: (),
    PolicyConfig: ("pretrain", "temperature"),
    RewardConfig: ("log_rewards", "save_reward_analysis"),
    EvalConfig: ("eval_steps",),
    LimitConfig: ("max_failed_updates",),
}


def run(argv: Sequence[str]) -> int:
    """Evaluate; returns the exit code."""
    parser = FlagParser("turngym eval", "Plays an environment's held-out tasks and says how many are solved.")
    add_section(parser, Evaluation)
    for section, left_out in _NOT_HERE.items():
        add_section(parser, section, leave_out=left_out)
    flags = parse(parser, argv)
    flags.pop("config")
    wanted = Evaluation(model=flags.pop("model"), json=flags.pop("json"), seed=flags.pop("seed"))
    if not wanted.model:
        raise ConfigError("--model is missing; give a transformers folder, such as runs/NAME/policy")
    config = TrainConfig.of(**flags, pretrain=wanted.model, seed=wanted.seed)
    report = _evaluate(config)
    from ..progress import RunProgress, eval_table

    console = RunProgress().console
    if wanted.json != "-":
        console.print(eval_table(report, f"{config.env.env or SINGLE_TURN}, {wanted.model}"))
    if wanted.json is not None:
        text = json.dumps(asdict(report), indent=2)
        print(text) if wanted.json == "-" else Path(wanted.json).write_text(text + "\n", encoding="utf-8")
    return 0


def _evaluate(config: TrainConfig) -> EvalReport:
    """Play the held-out tasks with the embedded engine."""
    from transformers.utils.logging import disable_progress_bar

    from ...agents.engines.transformers import TransformersEngine
    from ...agents.executor import AgentExecutor
    from .. import parts
    from ..all_failed import all_failed
    from ..evaluate import evaluate, held_out_tasks
    from ..reward_setup import make_scorer

    disable_progress_bar()
    scorer = make_scorer(config.reward)
    env = parts.env_parts(config.env, default=None if scorer is None else SINGLE_TURN)
    tasks = held_out_tasks(env.tasks, config.evaluation.eval_tasks)
    parts.check_model(config.policy.pretrain, "--model")
    device = parts.resolve_device(config.policy.device)
    policy = parts.load_policy(config.policy.pretrain, device=device)
    settings = parts.executor_config(
        config.env,
        config.policy,
        config.limits,
        max_turns=env.max_turns,
        max_length=parts.context_length(config.policy, policy),
        seed=config.run.seed,
    )

    async def play() -> EvalReport:
        engine = TransformersEngine(
            policy.model, policy.tokenizer, deterministic=device == "cpu", seed=config.run.seed, copy_model=False
        )
        renderer = parts.make_renderer(config.policy, policy)
        try:
            if scorer is not None:
                await scorer.start()
            async with AgentExecutor(env.factory, engine, renderer, settings) as executor:
                report, episodes = await evaluate(
                    executor,
                    tasks,
                    config.evaluation,
                    sampling=parts.sampling_params(config.policy),
                    concurrency=config.limits.concurrency,
                    scorer=scorer,
                )
                if report.num_failed == report.num_episodes:
                    failed = [episode for episode in episodes if episode.failure is not None]
                    raise all_failed(failed, what="of the evaluation", remedy="Mend the cause, then evaluate again")
                return report
        finally:
            if scorer is not None:
                await scorer.aclose()
            await engine.close()

    with parts.deterministic_algorithms(device == "cpu"):
        return asyncio.run(play())
