"""`turngym train`."""

from __future__ import annotations

from collections.abc import Sequence

from ...envs.errors import ConfigError
from ..config import SECTION_OF, SECTIONS, TrainConfig
from .flags import FlagParser, add_section, parse

_EXAMPLE = (
    "Trains a policy in an environment. Without a model: turngym train --env Math-v0 --pretrain tiny --out runs/math. "
    "Flags may have the names that OpenRLHF gave them, flat or dotted."
)


def run(argv: Sequence[str]) -> int:
    """Train; returns the exit code."""
    parser = FlagParser("turngym train", _EXAMPLE)
    for section in SECTIONS.values():
        add_section(parser, section)
    flags = parse(parser, argv)
    config = TrainConfig.of(**{name: value for name, value in flags.items() if name in SECTION_OF})
    if not config.env.env and not config.reward.is_given:
        raise ConfigError("--env is missing; `turngym envs` lists what there is, or give file.py:Class")
    from transformers.utils.logging import disable_progress_bar  # torch, and with it seconds, once the flags are right

    from ..loop import Trainer
    from ..progress import RunProgress, eval_table

    disable_progress_bar()
    progress = RunProgress()
    trainer = Trainer(config, progress=progress)
    try:
        report = trainer.fit()
    finally:
        trainer.close()
    for title, evaluation in (("before", report.before), ("after", report.after)):
        if evaluation is not None:
            progress.console.print(eval_table(evaluation, f"held-out tasks, {title}"))
    if report.reward_analysis is not None:
        progress.note(f"what earned rewards: {report.reward_analysis}")
    progress.note(f"policy {report.policy}, metrics {report.out / 'metrics.jsonl'}, episodes {report.out / 'episodes'}")
    return 0
