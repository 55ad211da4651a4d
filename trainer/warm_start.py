"""The warm start: a few hundred supervised steps on the actions of demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..agents.chat import Renderer
from ..envs.errors import ConfigError
from .demonstrations import Demonstration, Demonstrations

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


LOSS_WINDOW = 20
SPOILT_FACTOR = 0.05
"""Small, so that the mistakes are learned on top of the skill, and not in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartConfig:
    """How the warm start optimises: Muon, with which every seed learns to calculate; with AdamW alone some take long.

    Source:
        Jordan, K. et al. (2024). Muon: an optimizer for hidden layers. https://kellerjordan.github.io/posts/muon/

    Attributes:
        max_tidy_steps: most steps on demonstrations without mistakes, which come first.
        tidy_loss: they end when the mean loss of the last `LOSS_WINDOW` steps is at most this, in nats.
        num_recovery_steps: steps that also show recoveries from mistakes, next.
        num_spoilt_steps: steps on spoilt ones, last.
        batch_tokens: tokens of one step, about.
        matrix_learning_rate: Muon's, for the layers' matrices. Both rates are reached after `num_rising_steps`, fall to
            a tenth over the recovery steps, and stay at `SPOILT_FACTOR` of themselves in the spoilt ones.
        learning_rate: AdamW's, for all else.
        num_rising_steps: steps over which the learning rate rises.
        weight_decay: decoupled decay.
        max_norm: gradients are scaled down to this norm.
    """

    max_tidy_steps: int = 500
    tidy_loss: float = 0.25
    num_recovery_steps: int = 160
    num_spoilt_steps: int = 80
    batch_tokens: int = 2048
    matrix_learning_rate: float = 0.02
    learning_rate: float = 3e-3
    num_rising_steps: int = 20
    weight_decay: float = 0.3
    max_norm: float = 1.0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be at least {least}")


_LEAST = {
    "max_tidy_steps": 0,
    "num_recovery_steps": 0,
    "num_spoilt_steps": 0,
    "batch_tokens": 1,
    "num_rising_steps": 1,
}


class Row(NamedTuple):
    """An episode as tokens: ids, and which of them are to be learned."""

    token_ids: list[int]
    is_learned: list[bool]


def warm_start(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    played: Demonstrations,
    *,
    config: WarmStartConfig,
    seed: int,
) -> dict[str, Any]:
    """Train a model, in place, to say what was said: in tidy demonstrations, then in recoveries, then in spoilt ones.

    The tokens lie as the executor lays them out, and only those of actions are learned.

    Returns:
        Facts for the record: how many episodes and tasks there were, and the losses.
    """
    renderer = Renderer(tokenizer)
    max_length = model.config.max_position_embeddings
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    tidy, recovered, spoilt = (
        [encode(renderer, episode, max_length=max_length, learn_mistakes=learn_mistakes) for episode in episodes]
        for episodes, learn_mistakes in ((played.tidy, False), (played.recovered, False), (played.spoilt, True))
    )
    recovered = [row for row in recovered if any(row.is_learned)] or tidy
    optimizers = _optimizers(model, config)
    losses: list[float] = []

    def step(rows: Sequence[Row], factor: float) -> None:
        loss = _loss(model, _draw(rows, config.batch_tokens, rng))
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_norm)
        for optimizer, learning_rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = factor * learning_rate
            optimizer.step()
        losses.append(loss.item())

    model.train()
    while len(losses) < config.max_tidy_steps and not _is_learned(losses, config.tidy_loss):
        step(tidy, min(1.0, (len(losses) + 1) / config.num_rising_steps))
    for index in range(config.num_recovery_steps):
        step((tidy, recovered)[index % 2], 1 - 0.9 * index / config.num_recovery_steps)
    for _ in range(config.num_spoilt_steps):
        step(spoilt, SPOILT_FACTOR)
    model.eval()
    return {
        "episodes": len(played.episodes),
        "tasks": len({episode.task_id for episode in played.tidy}),
        "losses": [round(loss, 4) for loss in losses],
    }


def encode(renderer: Renderer, episode: Demonstration, *, max_length: int, learn_mistakes: bool) -> Row:
    """An episode's tokens, laid out as the executor lays them out; cut at `max_length`. Only actions are learned."""
    conversation = renderer.begin()
    token_ids = conversation.prompt(episode.prompt)
    is_learned = [False] * len(token_ids)
    closing = renderer.stop_token_ids[0]
    for turn, (action, feedback) in enumerate(zip(episode.actions, episode.feedback, strict=True)):
        said = [*renderer.tokenizer.encode(action, add_special_tokens=False), closing]
        token_ids += said
        is_learned += [learn_mistakes or not episode.is_mistake[turn]] * len(said)
        if turn + 1 == len(episode.actions) or len(token_ids) >= max_length:
            break
        read = conversation.continuation(said, feedback).token_ids
        token_ids += read
        is_learned += [False] * len(read)
    return Row(token_ids[:max_length], is_learned[:max_length])


def _draw(rows: Sequence[Row], batch_tokens: int, rng: np.random.Generator) -> list[Row]:
    """Rows at random until padding them would take more than `batch_tokens` tokens; at least one."""
    batch: list[Row] = []
    longest = 0
    while True:
        row = rows[int(rng.integers(len(rows)))]
        longest = max(longest, len(row.token_ids))
        if batch and longest * (len(batch) + 1) > batch_tokens:
            return batch
        batch.append(row)


def _loss(model: LlamaForCausalLM, rows: Sequence[Row]) -> Tensor:
    """Mean cross-entropy of the action tokens. Padding stands on the right, where causal attention never looks."""
    length = max(len(row.token_ids) for row in rows)
    ids_BT = torch.zeros((len(rows), length), dtype=torch.int64)
    learned_BT = torch.zeros((len(rows), length), dtype=torch.bool)
    for index, row in enumerate(rows):
        ids_BT[index, : len(row.token_ids)] = torch.tensor(row.token_ids)
        learned_BT[index, : len(row.is_learned)] = torch.tensor(row.is_learned)
    hidden_BTH = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    logits_NV = model.lm_head(hidden_BTH[:, :-1][learned_BT[:, 1:]])
    return functional.cross_entropy(logits_NV, ids_BT[:, 1:][learned_BT[:, 1:]])


def _optimizers(model: LlamaForCausalLM, config: WarmStartConfig) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the layers' matrices and AdamW for the rest, each with its learning rate."""
    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    chosen = set(map(id, matrices))
    others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    muon = torch.optim.Muon(matrices, lr=config.matrix_learning_rate, weight_decay=config.weight_decay)
    adamw = torch.optim.AdamW(others, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay)
    return [(muon, config.matrix_learning_rate), (adamw, config.learning_rate)]


def _is_learned(losses: Sequence[float], threshold: float) -> bool:
    return len(losses) >= LOSS_WINDOW and fmean(losses[-LOSS_WINDOW:]) <= threshold
