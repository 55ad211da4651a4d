"""Fixtures for the contracts' tests: files as their users write them, loaded as a run loads them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
from turngym.agents import load_reward_file
from turngym.envs.rewards import RewardFunction, RewardOutput, Trajectory, score_group

FILES = Path(__file__).parent / "files"

Start = Callable[..., Awaitable[RewardFunction]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Loads a file's reward and starts its workers; they are ended with the test."""
    started: list[RewardFunction] = []

    async def start(file: str, name: str | None = None, **settings: Any) -> RewardFunction:
        started.append(load_reward_file(FILES / file, name, **settings))
        await started[-1].start()
        return started[-1]

    yield start
    for reward in started:
        await reward.aclose()


async def outputs(reward: RewardFunction, trajectories: Sequence[Trajectory]) -> list[RewardOutput]:
    """What a reward gives a group, none of which may fail."""
    scored = await score_group(reward, trajectories)
    assert all(isinstance(output, RewardOutput) for output in scored), scored
    return [output for output in scored if isinstance(output, RewardOutput)]


@pytest.fixture(scope="session")
def sentiment_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny classifier with random weights and its tokenizer, on disk."""
    folder = tmp_path_factory.mktemp("sentiment")
    words = ["[PAD]", "[UNK]", "good", "bad", "very", "answer"]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    sizes: dict[str, Any] = {
        "vocab_size": len(words),
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
        "num_labels": 2,
        "initializer_range": 0.5,
    }
    BertForSequenceClassification(BertConfig(**sizes)).save_pretrained(folder)
    return folder
