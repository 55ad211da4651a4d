"""The loss of the policy: pure functions on the trained tokens of a micro-batch.

Legend of axes: N trained tokens.

Each token's share in the loss (its weight) is decided over the whole optimizer step, before anything is cut into
micro-batches. A micro-batch's loss is then a plain sum, and the losses of micro-batches add up, however they are cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from ..envs.errors import ConfigError

Aggregation: TypeAlias = Literal["token_mean", "sequence_mean", "constant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """What the loss of a micro-batch is computed from.

    Attributes:
        logprobs: [N] the trainer's, with gradient.
        sampled_logprobs: [N] the engine's, of the policy that sampled.
        advantages: [N] what the loss multiplies.
        weights: [N] each token's share in the loss.
    """

    logprobs: torch.Tensor
    sampled_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutputs:
    """The loss of a micro-batch and what is worth looking at, per token and without gradient.

    Attributes:
        loss: scalar with gradient; the micro-batches of an optimizer step add up.
        ratio: [N] probability now over probability when sampled.
        is_clipped: [N] bool, true where the clipped term won, so that no gradient flows.
        kl: [N] `ratio - 1 - log ratio`, whose mean estimates KL(sampled || policy) and is never negative.
    """

    loss: torch.Tensor
    ratio: torch.Tensor
    is_clipped: torch.Tensor
    kl: torch.Tensor


def policy_loss(
    inputs: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.2, max_log_ratio: float = 20.0
) -> LossOutputs:
    """Clipped policy gradient.

        ratio = exp(logprobs - sampled_logprobs)
        loss  = - sum over tokens of weight * min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)

    Args:
        inputs: the tokens of a micro-batch.
        clip_low: how far the ratio may fall below 1 where the advantage is negative.
        clip_high: how far it may rise above 1 where the advantage is positive.
        max_log_ratio: the log ratio is cut here, so that its exponential is finite in float32.

    Source:
        Schulman, J. et al. (2017). Proximal policy optimization algorithms. https://arxiv.org/abs/1707.06347
        Two bounds: Yu, Q. et al. (2025). DAPO. https://arxiv.org/abs/2503.14476
        The estimate of KL: Schulman, J. (2020). Approximating KL divergence. http://joschu.net/blog/kl-approx.html
    """
    log_ratio = (inputs.logprobs - inputs.sampled_logprobs).clamp(max=max_log_ratio)
    ratio = log_ratio.exp()
    plain = ratio * inputs.advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * inputs.advantages
    loss = -(inputs.weights * torch.minimum(plain, clipped)).sum()
    ratio, log_ratio = ratio.detach(), log_ratio.detach()
    return LossOutputs(loss=loss, ratio=ratio, is_clipped=(clipped < plain).detach(), kl=ratio - 1 - log_ratio)


def token_weights(
    num_tokens: Mapping[str, int], aggregation: Aggregation, *, constant: int | None = None
) -> dict[str, float]:
    """Each token's share in the loss, by episode.

        token_mean     1 / number of trained tokens in all episodes
        sequence_mean  1 / (number of episodes * number of the episode's own trained tokens)
        constant       1 / (number of episodes * constant)

    An episode is the sequence, all of its samples together: forking it changes nothing.

    >>> token_weights({"a": 1, "b": 3}, "sequence_mean")
    {'a': 0.5, 'b': 0.16666666666666666}

    Args:
        num_tokens: trained tokens of each episode in the optimizer step; episodes without any are left out.
        aggregation: which of the three.
        constant: for `constant`, the same number at every update, such as the most tokens that an episode may sample.

    Raises:
        ConfigError: no such aggregation, or `constant` without its number.

    Source:
        token_mean: Yu, Q. et al. (2025). DAPO. https://arxiv.org/abs/2503.14476
        sequence_mean: Shao, Z. et al. (2024). DeepSeekMath. https://arxiv.org/abs/2402.03300
        constant: Liu, Z. et al. (2025). Understanding R1-Zero-like training. https://arxiv.org/abs/2503.20783
    """
    num_tokens = {episode: n for episode, n in num_tokens.items() if n}
    if aggregation == "token_mean":
        return dict.fromkeys(num_tokens, 1 / max(1, sum(num_tokens.values())))
    if aggregation == "sequence_mean":
        return {episode: 1 / (len(num_tokens) * n) for episode, n in num_tokens.items()}
    if aggregation != "constant":
        raise ConfigError(f"aggregation={aggregation!r}; choose one of token_mean, sequence_mean, constant")
    if constant is None or constant < 1:
        raise ConfigError(f"aggregation='constant' needs its constant, at least 1; got {constant!r}")
    return dict.fromkeys(num_tokens, 1 / (max(1, len(num_tokens)) * constant))
