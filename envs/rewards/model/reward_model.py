"""A sequence-classification network as a reward, batched across the episodes that are scored at the same time."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, InvalidRewardError
from ..base import Clip, RewardFunction, plain_outside_loop
from ..types import RewardOutput, Trajectory
from .classifier import ClassifierConfig
from .inputs import Exchange

if TYPE_CHECKING:
    import torch

    from .service import ClassifierStats, Lease


class RewardModel(RewardFunction):
    """A transformers model for sequence classification.

    With z its logits:

        one logit:  reward = 1 / (1 + exp(-z)), or z itself with `raw=True`
        several:    reward = exp(z[-1]) / sum_k exp(z[k]), the share of the last class

    What the model reads is the conversation up to the last action, rendered by the tokenizer's chat template; where the
    tokenizer has none, the pair (prompt, response), as BERT and its like take it: `[CLS] prompt [SEP] response [SEP]`.
    Special tokens that a text spells stay text. What is too long for the model is cut: from the start of the
    prompt, and only where that isn't enough from the end of the response, which is counted and warned of.

    Calls that come while a batch runs wait, and form the next one: sorted by length, padded, on a thread of its own.
    A call that comes alone isn't delayed. What else is in a batch changes a reward by float rounding only: by less
    than 1e-6 in float32, some 1e-3 in float16 and some 1e-2 in bfloat16 (measured with 8 layers). A model that minds
    padding, which is found out when it is loaded, gets batches of rows of one length.

    The model is loaded at `start`, or at the first call, once in a process for all rewards of the same settings;
    weights from safetensors only. A pickled reward takes its settings along and loads again. The output's `metadata`
    holds `logit`, or each class's share by its label, and whether something was cut.

    Args:
        model_path: a folder as `save_pretrained` writes it, or a name on the Hugging Face hub.
        device: `auto` takes a GPU where there is one; so does `cuda`, with a warning where there is none.
        raw: whether the one logit is the reward as it is.
        max_length: most tokens that are read; by default what the model and `max_batch_tokens` allow.
        max_batch_size: most responses in a batch.
        max_batch_tokens: most tokens in a batch, padding included.
        dtype: of the weights: `float32`, `bfloat16`, `float16`; `auto` is float32 on the CPU, else as they were saved.
        trust_remote_code: whether code that comes with the model may run.
        name: as for every reward.
        scale: as for every reward.
        clip: as for every reward.

    Raises:
        ConfigError: an argument can't be used, or there is no model in the folder.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        model_path: str | Path,
        device: str | torch.device = "auto",
        *,
        raw: bool = False,
        max_length: int | None = None,
        max_batch_size: int = 64,
        max_batch_tokens: int = 16_384,
        dtype: str = "auto",
        trust_remote_code: bool = False,
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(name, scale, clip)
        folder = Path(model_path).expanduser()
        self.config = ClassifierConfig(
            path=str(folder.absolute() if folder.exists() else model_path),
            device=str(device),
            dtype=dtype,
            max_length=max_length,
            max_batch_size=max_batch_size,
            max_batch_tokens=max_batch_tokens,
            trust_remote_code=trust_remote_code,
        )
        self.raw = raw
        if raw:
            self.reward_range = (-math.inf, math.inf)
        self._lock = threading.Lock()
        self._lease: Lease | None = None

    @property
    def stats(self) -> ClassifierStats:
        """What the model has done so far, for all rewards that share it."""
        return self._leased().service.stats

    async def start(self) -> None:
        """Load the model. May be called more than once.

        Raises:
            ConfigError: it can't be loaded, it lacks weights, or `raw` asks for one logit and it gives several.
        """
        labels = await self._leased().service.start()
        if self.raw and len(labels) > 1:
            raise ConfigError(self._one_logit_wanted(len(labels)))

    @plain_outside_loop
    async def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        """What the model makes of the conversation.

        Raises:
            InvalidRewardError: the model can't be loaded.
            RewardError: this conversation can't be read, or its logits aren't finite.
        """
        judged = await self._leased().service.judge(Exchange.of(trajectory))
        if len(judged.logits) == 1:
            logit = judged.logits[0]
            parts: dict[str, Any] = {"logit": logit}
            reward = logit if self.raw else _sigmoid(logit)
        else:
            if self.raw:
                raise InvalidRewardError(self._one_logit_wanted(len(judged.logits)))
            shares = _softmax(judged.logits)
            parts = dict(zip(judged.labels, shares, strict=True))
            reward = shares[-1]
        return RewardOutput(reward=reward, metadata={**parts, "cut": judged.is_cut})

    async def aclose(self) -> None:
        """Let go of the model; the last reward that shares it frees it. A later call loads it again."""
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            await lease.end()

    def _leased(self) -> Lease:
        from .service import Lease

        with self._lock:
            if self._lease is None or self._lease.pid != os.getpid():
                self._lease = Lease(self.config, self)
            return self._lease

    def _one_logit_wanted(self, count: int) -> str:
        return f"raw=True keeps the one logit of a model, and {self.config.path!r} gives {count}; leave raw out"

    def __repr__(self) -> str:
        return f"RewardModel({self.config.path!r}, device={self.config.device!r}{', raw=True' * self.raw})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_lease")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _lease=None)


def _sigmoid(logit: float) -> float:
    if logit < 0:  # exp of something large would overflow
        grown = math.exp(logit)
        return grown / (1 + grown)
    return 1 / (1 + math.exp(-logit))


def _softmax(logits: Sequence[float]) -> list[float]:
    highest = max(logits)
    grown = [math.exp(logit - highest) for logit in logits]
    total = math.fsum(grown)
    return [value / total for value in grown]
