"""The warm start: a few hundred supervised steps on the actions of demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartConfig:
    """How the warm start optimises: Muon, with which every seed learns to calculate; with AdamW alone some take long.

    Source:
        Jordan, K. et al. (2024). Muon: an optimizer for hidden layers. https://kellerjordan.github.io/posts/muon/

    Attributes:
        num_tidy_steps: steps on demonstrations as they are, first.
        num_spoilt_steps: steps on spoilt ones, last.
        batch_tokens: tokens of one step, about.
        matrix_learning_rate: Muon's, for the layers' matrices. Both are reached after `num_rising_steps`, and fall to a
            tenth over the tidy steps.
        learning_rate: AdamW's, for all else.
        num_rising_steps: steps over which the learning rate rises.
        weight_decay: decoupled decay.
        max_norm: gradients are scaled down to this norm.
    """

    num_tidy_steps: int = 300
    num_spoilt_steps: int = 60
    batch_tokens: int = 2048
    matrix_learning_rate: float = 0.02
    learning_rate: float = 3e-3
    num_rising_steps: int = 20
    weight_decay: float = 0.3
    max_norm: float = 1.0

    def __post_init__(self) -> None:
        if min(self.num_tidy_steps, self.num_spoilt_steps) < 0:
            raise ConfigError(
                f"num_tidy_steps={self.num_tidy_steps!r}, num_spoilt_steps={self.num_spoilt_steps!r} must be at least 0"
            )
        if min(self.batch_tokens, self.num_rising_steps) < 1:
            raise ConfigError(
                f"batch_tokens={self.batch_tokens!r}, num_rising_steps={self.num_rising_steps!r} must be at least 1"
            )


class Row(NamedTuple):
    """An episode as tokens: ids, and which of them are actions."""

    token_ids: list[int]
    is_action: list[bool]


def warm_start(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    played: Demonstrations,
    *,
    config: WarmStartConfig,
    seed: int,
) -> dict[str, Any]:
    """Train a model, in place, to say what was said in the demonstrations: first in tidy ones, then in spoilt ones.

    The tokens lie as the executor lays them out, and only those of actions are learned.

    Returns:
        Facts for the record: how many episodes and tasks there were, and the losses.
    """
    renderer = Renderer(tokenizer)
    max_length = model.config.max_position_embeddings
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    optimizers = _optimizers(model, config)
    losses: list[float] = []
    model.train()
    for episodes, num_steps in ((played.tidy, config.num_tidy_steps), (played.spoilt, config.num_spoilt_steps)):
        rows = [encode(renderer, episode, max_length=max_length) for episode in episodes if episode.actions]
        for _ in range(num_steps):
            factor = _schedule(len(losses), config.num_tidy_steps, config.num_rising_steps)
            loss = _loss(model, _draw(rows, config.batch_tokens, rng))
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_norm)
            for optimizer, learning_rate in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = factor * learning_rate
                optimizer.step()
            losses.append(loss.item())
    model.eval()
    return {
        "episodes": len(played.tidy) + len(played.spoilt),
        "tasks": len({episode.task_id for episode in played.tidy}),
        "losses": [round(loss, 4) for loss in losses],
    }


def encode(renderer: Renderer, episode: Demonstration, *, max_length: int) -> Row:
    """An episode's tokens, laid out as the executor lays them out; cut at `max_length`."""
    conversation = renderer.begin()
    token_ids = conversation.prompt(episode.prompt)
    is_action = [False] * len(token_ids)
    closing = renderer.stop_token_ids[0]
    for turn, (action, feedback) in enumerate(zip(episode.actions, episode.feedback, strict=True)):
        said = [*renderer.tokenizer.encode(action, add_special_tokens=False), closing]
        token_ids += said
        is_action += [True] * len(said)
        if turn + 1 == len(episode.actions) or len(token_ids) >= max_length:
            break
        read = conversation.continuation(said, feedback).token_ids
        token_ids += read
        is_action += [False] * len(read)
    return Row(token_ids[:max_length], is_action[:max_length])


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
    action_BT = torch.zeros((len(rows), length), dtype=torch.bool)
    for index, row in enumerate(rows):
        ids_BT[index, : len(row.token_ids)] = torch.tensor(row.token_ids)
        action_BT[index, : len(row.is_action)] = torch.tensor(row.is_action)
    hidden_BTH = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    logits_NV = model.lm_head(hidden_BTH[:, :-1][action_BT[:, 1:]])
    return functional.cross_entropy(logits_NV, ids_BT[:, 1:][action_BT[:, 1:]])


def _optimizers(model: LlamaForCausalLM, config: WarmStartConfig) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the layers' matrices and AdamW for the rest, each with its learning rate."""
    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    chosen = set(map(id, matrices))
    others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    muon = torch.optim.Muon(matrices, lr=config.matrix_learning_rate, weight_decay=config.weight_decay)
    adamw = torch.optim.AdamW(others, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay)
    return [(muon, config.matrix_learning_rate), (adamw, config.learning_rate)]


def _schedule(step: int, num_tidy: int, num_rising: int) -> float:
    """Factor of the learning rate: rises linearly, falls linearly to a tenth over the tidy steps, and stays there."""
    return min(1.0, (step + 1) / num_rising) * max(0.1, 1 - 0.9 * step / max(1, num_tidy))
