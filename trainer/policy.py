"""The policy: any transformers causal language model, scored with each token's own sampling parameters.

Legend of axes: B rows, T columns, H hidden size, N trained tokens, n those of one chunk, V vocabulary.

The base model runs to hidden states; only the positions that predict a trained token go through the output head, chunk
by chunk. The `[n, V]` logits of one chunk are all that is ever held, also in the backward pass, which computes them
again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from ..agents.engine import WeightSource
from ..envs.errors import ConfigError
from ..envs.tokenizer import load_tokenizer
from .packing import MicroBatch

MAX_CHUNK_LOGITS = 2**24
"""Most logits of one chunk: 64 MiB in float32, which is 110 tokens of a vocabulary of 150 000."""


class TokenScores(NamedTuple):
    """Scores of the trained tokens of a micro-batch.

    Attributes:
        logprobs: [N] natural log of each token's probability under its own temperature and kept set, with gradient.
        entropy: [N] of the distribution that it was drawn from, in nats, without gradient.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor


class Policy:
    """A causal language model with what training needs of it.

    Dropout is off always: the ratio of probabilities compares two passes through one network.

    Args:
        model: any transformers causal language model.
        tokenizer: saved beside it.
        device: where it computes.
        max_chunk_logits: most logits to hold at once.

    Raises:
        ConfigError: the model turns hidden states into logits in a way that isn't known here.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        device: torch.device | str = "cpu",
        max_chunk_logits: int = MAX_CHUNK_LOGITS,
    ) -> None:
        self.model = model.to(device)  # pyright: ignore[reportArgumentType]  # its stub takes no str
        self.model.eval()
        self.tokenizer = tokenizer
        self.device = torch.device(device)
        self.max_chunk_logits = max_chunk_logits
        self._finish_logits = _logit_transform(model)
        self._check_head()

    @classmethod
    def from_pretrained(
        cls, path: Path | str, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> Policy:
        """Read a transformers folder: safetensors only, and no code of its own.

        Raises:
            ConfigError: there is no such folder, it can't be read, or some of the weights are missing.
        """
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
            tokenizer = load_tokenizer(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"can't read a policy from {str(path)!r}: {error}") from error
        model, report = loaded
        if report["missing_keys"]:
            missing = ", ".join(sorted(report["missing_keys"])[:3])
            raise ConfigError(f"the weights in {str(path)!r} lack {missing}, which would be random")
        return cls(model, tokenizer, device=device)

    def logprobs(self, batch: MicroBatch) -> TokenScores:
        """Score the trained tokens.

        Args:
            batch: N trained tokens.

        Returns:
            Logprobs and entropy, [N] each, in float32 or wider.
        """
        batch = batch.to(self.device)
        hidden = self._base(input_ids=batch.token_ids, use_cache=False).last_hidden_state[batch.rows, batch.columns]
        ends = batch.kept_counts.cumsum(0)
        size = max(1, self.max_chunk_logits // self._head.weight.shape[0])
        parts = []
        for start in range(0, batch.num_tokens, size):
            chunk = slice(start, start + size)
            counts = batch.kept_counts[chunk]
            kept = None
            if counts.any():
                kept = counts, batch.kept_ids[ends[start] - counts[0] : ends[start] + counts[1:].sum()]
            arguments = hidden[chunk], batch.targets[chunk], batch.temperatures[chunk], kept
            if size < batch.num_tokens and torch.is_grad_enabled():
                parts.append(checkpoint(self._score, *arguments, use_reentrant=False))
            else:
                parts.append(self._score(*arguments))
        logprobs, entropy = zip(*parts, strict=True)
        return TokenScores(torch.cat(logprobs), torch.cat(entropy))

    def weights(self) -> WeightSource:
        """The weights as they are now, under the model's own names. They change in place: copy what is to stay."""
        return WeightSource(tensors={name: tensor.detach() for name, tensor in self.model.state_dict().items()})

    def save(self, path: Path | str) -> None:
        """Write a plain transformers folder: config, safetensors, and the tokenizer where there is one."""
        self.model.save_pretrained(path)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(path)

    @property
    def _base(self) -> Any:
        return self.model.base_model

    @property
    def _head(self) -> Any:
        return self.model.get_output_embeddings()

    def _score(
        self,
        hidden_nH: torch.Tensor,
        targets_n: torch.Tensor,
        temperatures_n: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits_nV = self._logits(hidden_nH) / temperatures_n[:, None]
        if kept is not None:
            logits_nV = logits_nV.masked_fill(~_allowed(*kept, logits_nV), -torch.inf)
        logprobs_nV = logits_nV.log_softmax(dim=-1)
        with torch.no_grad():
            entropy_n = torch.special.entr(logprobs_nV.exp()).sum(dim=-1)
        return logprobs_nV.gather(1, targets_n[:, None]).squeeze(1), entropy_n

    def _logits(self, hidden_nH: torch.Tensor) -> torch.Tensor:
        logits_nV = self._head(hidden_nH)
        return self._finish_logits(logits_nV.to(torch.promote_types(logits_nV.dtype, torch.float32)))

    @torch.no_grad()
    def _check_head(self) -> None:
        """Compare with the model's own logits, so that no model is scored wrongly in silence."""
        name = type(self.model).__name__
        if self._head is None:
            raise ConfigError(f"{name} has no output head; train a causal language model")
        token_ids = torch.arange(8, device=self.device)[None] % self._head.weight.shape[0]
        hidden = self._base(input_ids=token_ids, use_cache=False).last_hidden_state
        expected = self.model(input_ids=token_ids, use_cache=False).logits.float()
        found = self._logits(hidden).float()
        tolerance = 1e-4 if self.model.dtype in (torch.float32, torch.float64) else 2e-2
        if not torch.allclose(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())):
            raise ConfigError(
                f"{name} does more to its logits than the output head and the settings {', '.join(_LOGIT_SETTINGS)}; "
                "its logprobs can't be computed in chunks"
            )


_LOGIT_SETTINGS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "final_logit_softcapping": lambda logits, cap: cap * torch.tanh(logits / cap),  # Gemma
    "logits_scaling": lambda logits, scale: logits / scale,  # Granite
    "logit_scale": lambda logits, scale: logits * scale,  # Cohere
    "lm_head_multiplier": lambda logits, scale: logits * scale,  # Falcon-H1
}


def _logit_transform(model: PreTrainedModel) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the model does to the output head's logits, by its config."""
    config = model.config.get_text_config()
    steps = [(step, getattr(config, name, None)) for name, step in _LOGIT_SETTINGS.items()]

    def transform(logits: torch.Tensor) -> torch.Tensor:
        for step, value in steps:
            if value is not None:
                logits = step(logits, value)
        return logits

    return transform


def _allowed(counts_n: torch.Tensor, ids: torch.Tensor, logits_nV: torch.Tensor) -> torch.Tensor:
    """[n, V] bool, true on each token's kept set; an empty set keeps everything."""
    allowed = (counts_n == 0)[:, None].expand_as(logits_nV).clone()
    rows = torch.arange(len(counts_n), device=ids.device).repeat_interleave(counts_n)
    allowed[rows, ids] = True
    return allowed
