"""The embedded engine: a transformers model in this process, on the CPU or one GPU."""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, GenerationConfig

from ...envs.errors import ConfigError, EngineError
from ...envs.tokenizer import load_tokenizer
from ..engine import GenerateRequest, Generation, WeightSource, refuse_media
from .batch_worker import BatchWorker
from .decoding import BatchRun
from .prefix_store import PrefixStore
from .request_queue import PendingRequest, RequestQueue
from .weights import load_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NEEDS = "give a folder with config.json, a tokenizer and *.safetensors weights, as save_pretrained writes it"


class TransformersEngine:
    """Batches concurrent requests into one `generate` of a transformers model that it owns.

    Requests that are made at the same time run as one batch, on a thread of the engine's own, whatever their sampling
    parameters are. Published weights are copied in between two batches, never during one.

    In deterministic mode a batch runs only when every live episode (`episode_begins`, `episode_ends`) waits for it, its
    rows ordered by episode id, so that a run repeats bit for bit whatever the order of arrival. Requests of episodes
    that were never announced run when no live episode is missing.

    Args:
        model: a causal language model; the engine copies it.
        tokenizer: decodes text where a request has stop strings; may be None otherwise.
        max_batch_size: most requests in one batch.
        deterministic: whether batches wait for every live episode.
        seed: where requests without a seed of their own get theirs from.
        version: the policy version of the model.
        prefix_cache_bytes: most memory for the keys and values that live episodes leave for their next turns; 0 keeps
            none, and each turn reads its whole prompt again.
        copy_model: False where the model is the engine's to keep and nobody else changes it.

    Attributes:
        version: the policy version that the next tokens carry.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        max_batch_size: int = 256,
        deterministic: bool = False,
        seed: int = 0,
        version: int = 0,
        prefix_cache_bytes: int = 2**30,
        copy_model: bool = True,
    ) -> None:
        if max_batch_size < 1:
            raise ConfigError(f"max_batch_size={max_batch_size!r} must be at least 1")
        self.version = version
        self._model = (copy.deepcopy(model) if copy_model else model).eval().requires_grad_(False)
        self._model.generation_config = GenerationConfig()  # each request brings its own parameters
        self._tokenizer = tokenizer
        self._seed = seed
        config = self._model.config.get_text_config()
        self._context_length: int | None = getattr(config, "max_position_embeddings", None)
        self._vocabulary_size = self._model.get_input_embeddings().num_embeddings
        queue = RequestQueue(max_batch_size=max_batch_size, deterministic=deterministic)
        self._worker = BatchWorker(queue, self._run, name="turngym-engine")
        self._prefixes = PrefixStore(prefix_cache_bytes)
        self._num_unseeded: Counter[str] = Counter()

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        dtype: Any = "auto",
        trust_remote_code: bool = False,
        **kwargs: Any,
    ) -> TransformersEngine:
        """Load model and tokenizer; weights from safetensors only.

        Args:
            path: a folder as `save_pretrained` writes it, or a name on the Hugging Face hub.
            device: `auto` takes a GPU where there is one.
            dtype: of the weights; `auto` takes the one they were saved in.
            trust_remote_code: whether code that comes with the model may run.
            **kwargs: as for the constructor.

        Raises:
            ConfigError: there is no such model, it has no safetensors weights, or the device is missing.
        """
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device='cuda' and torch sees no GPU; use device='cpu', or 'auto'")
        if isinstance(path, Path) or path.startswith((".", "/", "~")):
            path = Path(path).expanduser()
            if not path.is_dir():
                raise ConfigError(f"{str(path)!r}: there is no such folder; {_NEEDS}")
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, use_safetensors=True, trust_remote_code=trust_remote_code
            )
            tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)
        except (OSError, ValueError, SafetensorError) as error:
            raise ConfigError(f"{str(path)!r} can't be loaded: {error}\n{_NEEDS}") from error
        return cls(model.to(device), tokenizer, copy_model=False, **kwargs)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn, in one batch with the other requests of the moment. Cancelling the call drops the request.

        Raises:
            EngineError: the request can't be answered, its batch failed, or the engine is closed.
        """
        max_tokens = self._check(request)
        return await self._worker.submit(request, max_tokens=max_tokens, seed=self._seed_of(request))

    async def publish(self, weights: WeightSource, version: int) -> None:
        """Copy new weights in, after the batch that is running; tokens sampled afterwards carry `version`.

        Raises:
            EngineError: the weights don't fit the model (nothing was changed), or the engine is closed.
        """
        await self._worker.between_batches(partial(self._load, weights, version))

    async def close(self) -> None:
        """Fail what waits or runs, and end the engine's thread. May be called more than once."""
        await self._worker.close()

    def episode_begins(self, episode_id: str) -> None:
        """The episode is live: in deterministic mode a batch waits for its next request."""
        self._prefixes.begin(episode_id)
        self._worker.episode_begins(episode_id)

    def episode_ends(self, episode_id: str) -> None:
        """The episode asks for nothing more."""
        self._prefixes.end(episode_id)
        self._worker.episode_ends(episode_id)
        self._num_unseeded.pop(episode_id, None)

    def _check(self, request: GenerateRequest) -> int:
        """Raise `EngineError` where the request can't be answered. Returns how many tokens it may sample."""
        refuse_media(request, "TransformersEngine")
        prompt, sampling, name = request.prompt_token_ids, request.sampling, request.request_id
        if request.policy != "policy":
            raise EngineError(f"request {name} asks for policy {request.policy!r}; this engine has only 'policy'")
        if not len(prompt):
            raise EngineError(f"request {name} has an empty prompt; it needs at least one token")
        if min(prompt) < 0 or max(prompt) >= self._vocabulary_size:
            wrong = next(token for token in prompt if not 0 <= token < self._vocabulary_size)
            raise EngineError(
                f"request {name} has token id {wrong} in its prompt and the model's vocabulary has "
                f"{self._vocabulary_size}; use the tokenizer that belongs to the model"
            )
        if sampling.stop and self._tokenizer is None:
            raise EngineError(f"request {name} has stop strings and the engine has no tokenizer; pass tokenizer=")
        if self._context_length is None:
            return sampling.max_tokens
        room = self._context_length - len(prompt)
        if room < 1:
            raise EngineError(
                f"request {name} has a prompt of {len(prompt)} tokens and the model's context holds "
                f"{self._context_length}, so nothing can be sampled; end the episode earlier or shorten its feedback"
            )
        return min(sampling.max_tokens, room)

    def _seed_of(self, request: GenerateRequest) -> int:
        """The request's own seed; else one made from the engine's, the episode, and how often it asked before."""
        if request.sampling.seed is not None:
            return request.sampling.seed
        number = self._num_unseeded[request.episode_id]
        self._num_unseeded[request.episode_id] += 1
        key = f"{self._seed}/{number}/{request.episode_id}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest(), "little")

    def _run(self, batch: Sequence[PendingRequest]) -> list[Generation]:
        """Answer a batch: first the rows that go on from a kept prefix, then those that read a whole prompt."""
        prefixes = self._prefixes.take([pending.request for pending in batch])
        known = [(pending, prefix) for pending, prefix in zip(batch, prefixes, strict=True) if prefix is not None]
        fresh = [pending for pending, prefix in zip(batch, prefixes, strict=True) if prefix is None]
        generations = {}
        for rows, kept in (([pending for pending, _ in known], [prefix for _, prefix in known]), (fresh, [])):
            if rows:
                run = BatchRun(
                    self._model, self._tokenizer, rows, prefixes=kept, store=self._prefixes, version=self.version
                )
                generations.update(zip(rows, run.run(), strict=True))
        return [generations[pending] for pending in batch]

    def _load(self, weights: WeightSource, version: int) -> None:
        load_weights(self._model, dict(weights.named_tensors()))
        self.version = version
        self._prefixes.clear()
