import asyncio
import re

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from turngym.agents.engine import GenerateRequest, Generation, VersionSpan, WeightSource
from turngym.agents.engines import ScriptedEngine
from turngym.envs.errors import EngineError
from turngym.envs.sampling import SamplingParams


def byte_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


def request(episode_id: str = "e", *, max_tokens: int = 32, media: tuple[str, ...] = ()) -> GenerateRequest:
    return GenerateRequest(
        prompt_token_ids=[1, 2],
        sampling=SamplingParams(max_tokens=max_tokens),
        request_id=f"{episode_id}-request",
        episode_id=episode_id,
        media=media,
    )


async def test_a_text_is_encoded_and_closed():
    tokenizer = byte_tokenizer()
    generation = await ScriptedEngine(["42"], tokenizer).generate(request())
    assert tokenizer.decode(list(generation.token_ids)) == "42<|end|>"
    assert generation.logprobs == (0.0, 0.0, 0.0)
    assert generation.finish_reason == "stop"


async def test_every_episode_plays_the_sequence_from_its_start():
    engine = ScriptedEngine([[10], [11]])
    played = [(await engine.generate(request(episode))).token_ids for episode in ("a", "b", "a", "b")]
    assert played == [(10,), (10,), (11,), (11,)]


async def test_a_mapping_gives_each_episode_its_own_actions():
    engine = ScriptedEngine({"a": [[10]], "b": [[20]]})
    assert (await engine.generate(request("b"))).token_ids == (20,)
    assert (await engine.generate(request("a"))).token_ids == (10,)
    with pytest.raises(EngineError, match="the script has no episode 'c'; it has 'a', 'b'; add it"):
        await engine.generate(request("c"))


async def test_a_function_sees_the_request_and_may_give_a_whole_generation():
    generation = Generation(
        token_ids=(5, 6), logprobs=(-0.5, -1.0), finish_reason="length", versions=(VersionSpan(3, 2),)
    )
    engine = ScriptedEngine(lambda asked: generation if asked.episode_id == "whole" else [len(asked.prompt_token_ids)])
    assert await engine.generate(request("whole")) is generation
    assert (await engine.generate(request("ids"))).token_ids == (2,)


async def test_an_action_is_cut_at_max_tokens_with_finish_reason_length():
    engine = ScriptedEngine([[1, 2, 3]])
    cut = await engine.generate(request("a", max_tokens=2))
    whole = await engine.generate(request("b", max_tokens=3))
    assert (cut.token_ids, cut.finish_reason) == ((1, 2), "length")
    assert (whole.token_ids, whole.finish_reason) == ((1, 2, 3), "stop")


async def test_a_script_that_ran_out_is_refused_with_both_numbers():
    engine = ScriptedEngine([[1]])
    await engine.generate(request())
    message = "episode 'e' asks for turn 2 and the script has 1; add an action, or end the episode earlier"
    with pytest.raises(EngineError, match=re.escape(message)):
        await engine.generate(request())


async def test_text_without_a_tokenizer_is_refused():
    with pytest.raises(EngineError, match="the action 'hi' is text and the engine has no tokenizer"):
        await ScriptedEngine(["hi"]).generate(request())


def test_one_string_is_not_taken_for_a_sequence_of_actions():
    with pytest.raises(EngineError, match="one string"):
        ScriptedEngine("42", byte_tokenizer())


async def test_it_keeps_what_it_was_asked_in_order():
    engine = ScriptedEngine([[1]])
    asked = [request(name) for name in "abc"]
    await asyncio.gather(*map(engine.generate, asked))
    assert engine.requests == asked


async def test_tokens_carry_the_published_version():
    engine = ScriptedEngine([[1], [2, 3]], version=4)
    weights = WeightSource(tensors={"w": torch.zeros(1)})
    before = await engine.generate(request())
    await engine.publish(weights, 5)
    after = await engine.generate(request())
    assert before.versions == (VersionSpan(4, 1),)
    assert after.versions == (VersionSpan(5, 2),)
    assert engine.published == [(weights, 5)]


async def test_media_and_requests_after_close_are_refused():
    engine = ScriptedEngine([[1]])
    with pytest.raises(EngineError, match="media"):
        await engine.generate(request(media=("image",)))
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(request())
    assert engine.requests == []
