"""The embedded engine and the trainer give a sampled token the same probability, whatever its turn was sampled with."""

import asyncio

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from turngym.agents import Ending, Episode, EpisodeBuilder
from turngym.agents.engine import GenerateRequest
from turngym.agents.engines.transformers import TransformersEngine
from turngym.envs.sampling import SamplingParams
from turngym.trainer.advantages import AdvantageConfig
from turngym.trainer.optim import OptimConfig
from turngym.trainer.policy import Policy
from turngym.trainer.samples import samples_from_groups
from turngym.trainer.update import UpdateConfig, Updater

SAMPLINGS = [
    SamplingParams(max_tokens=12),
    SamplingParams(max_tokens=7, temperature=0.6),
    SamplingParams(max_tokens=12, temperature=1.7, top_p=0.8),
    SamplingParams(max_tokens=5, top_k=4),
    SamplingParams(max_tokens=12, top_p=0.5, top_k=6, temperature=1.3),
]


@pytest.fixture
def policy() -> Policy:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    return Policy(Qwen2ForCausalLM(config))


async def play(engine: TransformersEngine, member: int) -> Episode:
    """Three turns, each sampled in its own way, after prompts of unlike lengths."""
    episode = EpisodeBuilder(episode_id=f"episode-{member}", task_id="task", member=member)
    for turn in range(3):
        episode.observe(range(3, 5 + member + 4 * turn))
        sampling = SAMPLINGS[(member + turn) % len(SAMPLINGS)]
        generation = await engine.generate(
            GenerateRequest(
                prompt_token_ids=list(episode.token_ids),
                sampling=sampling,
                request_id=f"{member}-{turn}",
                episode_id=episode.episode_id,
            )
        )
        episode.act(generation, sampling=sampling, text="")
        episode.feed_back(reward=float(member == turn))
    return episode.finish(Ending.TERMINATED)


async def test_mismatch_stays_below_1e_4_before_and_after_weights_are_published(policy):
    engine = TransformersEngine(policy.model, None)
    updater = Updater(policy, UpdateConfig(optim=OptimConfig(learning_rate=1e-2), num_minibatches=2))
    try:
        for version in range(3):
            episodes = await asyncio.gather(*(play(engine, member) for member in range(8)))
            samples = samples_from_groups([episodes], AdvantageConfig())
            metrics = updater.update(samples, version=version).metrics
            assert metrics["tokens"] > 100
            assert metrics["mismatch_max"] < 1e-4
            assert metrics["mismatch_share"] == 0
            await engine.publish(policy.weights(), version + 1)
    finally:
        await engine.close()
