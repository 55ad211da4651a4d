"""A small policy from nothing: tokenizer, random weights, and a short warm start on spoilt demonstrations.

    demonstrations --play--> transcripts --texts--> tokenizer --tokens--> warm start --> a transformers folder

The policy is meant to be good enough to get going and bad enough to leave room: it first learns from demonstrations as
they are, and then, for the last part of the warm start, from demonstrations of which a stated share is spoilt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ..envs.errors import ConfigError
from ..envs.instance import AgentInstance
from ..envs.registry import EnvFactory
from ..envs.tasks import TaskSource
from .demonstrations import play_demonstrations, texts
from .tiny_tokenizer import END, PAD, build_tokenizer
from .warm_start import WarmStartConfig, warm_start

MIN_PARAMETERS, MAX_PARAMETERS = 500_000, 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyConfig:
    """How a tiny policy is made.

    Attributes:
        hidden_size: width.
        num_layers: depth.
        num_heads: attention heads; the width is a multiple of twice their number.
        intermediate_size: width of the feed-forward layers.
        max_length: tokens that a context holds.
        vocab_size: most tokens of the tokenizer.
        initializer_range: standard deviation of the random weights; at this width the usual 0.02 learns slower.
        rope_theta: base of the rotary positions; a small one tells close positions apart sooner.
        num_demonstrations: episodes that are played to learn from, a third of them spoilt.
        spoilt: share of the actions that are spoilt in those.
        warm_start: how the warm start optimises.
    """

    hidden_size: int = 128
    num_layers: int = 3
    num_heads: int = 4
    intermediate_size: int = 384
    max_length: int = 2048
    vocab_size: int = 512
    initializer_range: float = 0.06
    rope_theta: float = 100.0
    num_demonstrations: int = 30_000
    spoilt: float = 0.9
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.spoilt <= 1:
            raise ConfigError(f"spoilt={self.spoilt!r} must lie in [0, 1]")
        if self.num_demonstrations < 3:
            raise ConfigError(f"num_demonstrations={self.num_demonstrations!r} must be at least 3")
        if self.hidden_size % (2 * self.num_heads):
            raise ConfigError(
                f"hidden_size={self.hidden_size!r} must be a multiple of 2 * num_heads, {2 * self.num_heads}"
            )


def make_tiny(
    env: str | Callable[[], AgentInstance],
    tasks: TaskSource,
    *,
    seed: int,
    out: Path | str,
    config: TinyConfig | None = None,
    report: Callable[[str], object] = print,
) -> Path:
    """Make a small policy for an environment. The same arguments give the same weights, bit for bit.

    Call it outside of a running event loop.

    Args:
        env: an environment's id, or what makes an instance.
        tasks: what it may learn from: the training split.
        seed: seeds the weights, the demonstrations, and how they are spoilt.
        out: the folder to write.
        config: sizes and rates.
        report: takes one line for each thing worth saying.

    Returns:
        The folder: a transformers model (config, safetensors), a tokenizer with a chat template, and `tiny.json`, which
        says how it was made.

    Raises:
        ConfigError: the sizes don't give 0.5 to 5 million parameters.
    """
    config = config or TinyConfig()
    out = Path(out)
    factory = EnvFactory(id=env) if isinstance(env, str) else env
    played = play_demonstrations(
        factory, tasks, num_episodes=config.num_demonstrations, spoilt=config.spoilt, seed=seed
    )
    tokenizer = build_tokenizer(texts(played), vocab_size=config.vocab_size, max_length=config.max_length)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _random_model(config, tokenizer)
        facts: dict[str, Any] = {"seed": seed, "parameters": model.num_parameters(), "vocabulary": len(tokenizer)}
        if played.has_demonstrations:
            facts |= warm_start(model, tokenizer, played, config=config.warm_start, seed=seed)
            report(
                f"tiny: {model.num_parameters():,} parameters, warmed up on {facts['episodes']:,} demonstrations of "
                f"{facts['tasks']:,} tasks, {config.spoilt:.0%} of the actions spoilt in a third of them"
            )
        else:
            report(
                f"tiny: {model.num_parameters():,} random parameters and no warm start, as the environment has no "
                "demonstrations; the first rewards may be a long time coming"
            )
    _save(model, tokenizer, out, {"config": asdict(config), **facts})
    return out


def _random_model(config: TinyConfig, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    model_config = LlamaConfig(
        vocab_size=math.ceil(len(tokenizer) / 8) * 8,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_heads,
        max_position_embeddings=config.max_length,
        initializer_range=config.initializer_range,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.get_vocab()[END],
        pad_token_id=tokenizer.get_vocab()[PAD],
    )
    model = LlamaForCausalLM(model_config)
    if not MIN_PARAMETERS <= model.num_parameters() <= MAX_PARAMETERS:
        raise ConfigError(
            f"{model.num_parameters():,} parameters; choose hidden_size, num_layers, intermediate_size for "
            f"{MIN_PARAMETERS:,} to {MAX_PARAMETERS:,}"
        )
    return model


def _save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path, facts: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "tiny.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
