"""Fixtures of the trainer's tests: episodes from a few numbers, and models small enough for float64."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from turngym.agents import Ending, Episode, EpisodeBuilder, Failure
from turngym.agents.engine import Generation, VersionSpan
from turngym.envs.sampling import SamplingParams
from turngym.trainer.tiny_tokenizer import build_tokenizer


@dataclass(frozen=True, kw_only=True)
class PlayedTurn:
    """One turn to play; `forks` begins it in a new token record whose context is `observation`."""

    reward: float = 0.0
    token_ids: Sequence[int] = (5, 6)
    logprobs: Sequence[float] | None = None
    token_rewards: Sequence[float] | None = None
    observation: Sequence[int] = (1, 2)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    kept: tuple[tuple[int, ...], ...] | None = None
    version: int = 0
    forks: bool = False


PlayEpisode = Callable[..., Episode]
MakeTurn = Callable[..., PlayedTurn]


@pytest.fixture(scope="session")
def turn() -> MakeTurn:
    """Describes a turn: `turn(reward=1.0, token_ids=[5, 6])`."""
    return PlayedTurn


@pytest.fixture(scope="session")
def play() -> PlayEpisode:
    """Builds an episode with the real builder: `play(turn(reward=1.0), turn(), member=1)`."""
    return _play


def _play(
    *turns: PlayedTurn,
    slot: int = 0,
    member: int = 0,
    ending: Ending = Ending.TERMINATED,
    failure: Failure | None = None,
) -> Episode:
    builder = EpisodeBuilder(episode_id=f"episode-{slot}-{member}", task_id="task", slot=slot, member=member)
    for played in turns:
        (builder.fork if played.forks else builder.observe)(played.observation)
        count = len(played.token_ids)
        builder.act(
            Generation(
                token_ids=tuple(played.token_ids),
                logprobs=(-1.0,) * count if played.logprobs is None else tuple(played.logprobs),
                finish_reason="stop",
                versions=(VersionSpan(played.version, count),),
                kept_token_ids=played.kept,
            ),
            sampling=played.sampling,
            text="",
        )
        builder.feed_back(reward=played.reward, token_rewards=played.token_rewards)
    return builder.finish(ending, failure=failure)


@pytest.fixture
def float64_model() -> PreTrainedModel:
    """A GPT-2 of 16 tokens in float64 throughout (Qwen2 and its like compute norms in float32)."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=16, n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3)
    return GPT2LMHeadModel(config).double().eval()


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of three words."""
    backend = Tokenizer(models.WordLevel({"<eos>": 0, "hello": 1, "world": 2}, unk_token="<eos>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 of 30 000 parameters with a chat template, as a transformers folder."""
    tokenizer = build_tokenizer(["Say yes or no. Again. 0123456789"] * 4, vocab_size=300, max_length=128)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=304,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,  # the tokenizer's special tokens come first: pad, start, end
        eos_token_id=2,
    )
    folder = tmp_path_factory.mktemp("policy")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
