"""The engine contract: token ids in, token ids and their logprobs out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from ..envs.errors import EngineError, RecordError
from ..envs.sampling import SamplingParams
from ..envs.types import FinishReason

if TYPE_CHECKING:
    import torch


class VersionSpan(NamedTuple):
    """`num_tokens` tokens in a row that the policy of one version sampled."""

    version: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One turn's request to an engine.

    Attributes:
        prompt_token_ids: everything the policy reads, token for token. The list grows after `generate` returned: copy
            it to keep it.
        sampling: this turn's own parameters.
        request_id: unique among the requests in flight.
        episode_id: the episode that the turn belongs to; engines use it for order and for prefix reuse.
        policy: which policy answers.
        media: images and the like; refused by name until an engine supports them.
    """

    prompt_token_ids: tuple[int, ...] | list[int]
    sampling: SamplingParams
    request_id: str
    episode_id: str
    policy: str = "policy"
    media: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What an engine sampled.

    Attributes:
        token_ids: [n] the tokens exactly as sampled, a stop token included.
        logprobs: [n] natural log of the probability that each had in the distribution that was really sampled: after
            temperature and after any truncation.
        finish_reason: `stop`, `length` or `abort`.
        versions: policy versions as spans whose lengths add up to n.
        kept_token_ids: [n] the set that top-p or top-k kept at each token, or None where nothing was cut.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    versions: tuple[VersionSpan, ...]
    kept_token_ids: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        num_tokens = len(self.token_ids)
        if len(self.logprobs) != num_tokens:
            raise RecordError(f"{num_tokens} token_ids and {len(self.logprobs)} logprobs; one logprob per token")
        num_versions = sum(span.num_tokens for span in self.versions)
        if num_versions != num_tokens:
            raise RecordError(f"{num_tokens} token_ids and version spans over {num_versions}; they must agree")
        if self.kept_token_ids is not None and len(self.kept_token_ids) != num_tokens:
            raise RecordError(f"{num_tokens} token_ids and {len(self.kept_token_ids)} kept sets; one set per token")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """Weights to publish.

    Attributes:
        tensors: gives (name, tensor) pairs, anew at each call.
        folder: the same weights as a safetensors folder, where there is one.
    """

    tensors: Mapping[str, torch.Tensor]
    folder: Path | None = field(default=None)

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each parameter's name and tensor."""
        return iter(self.tensors.items())


class Engine(Protocol):
    """Samples tokens from a policy. Every method may be awaited by many tasks at once."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn. Cancelling the call drops the request."""
        ...

    async def publish(self, weights: WeightSource, version: int) -> None:
        """Take new weights while requests are in flight; tokens sampled afterwards carry `version`."""
        ...

    async def close(self) -> None:
        """Let go of everything. May be called more than once."""
        ...


@runtime_checkable
class TracksEpisodes(Protocol):
    """An engine that wants to know which episodes are live, so that its batches don't depend on the clock."""

    def episode_begins(self, episode_id: str) -> None:
        """The episode is live: a batch waits for its next request."""
        ...

    def episode_ends(self, episode_id: str) -> None:
        """The episode asks for nothing more."""
        ...


def refuse_media(request: GenerateRequest, engine: str) -> None:
    """Raise `EngineError` where a request carries media that the engine can't read."""
    if request.media:
        raise EngineError(f"{engine} reads token ids only; request {request.request_id} carries media: leave it empty")
