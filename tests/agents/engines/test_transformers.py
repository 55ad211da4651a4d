"""Numbers here are compared with a full forward pass of the same model, written out in `reference_logprobs`."""

import asyncio
import math
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from turngym.agents.engine import GenerateRequest, Generation, VersionSpan, WeightSource
from turngym.agents.engines import TransformersEngine
from turngym.envs.errors import ConfigError, EngineError
from turngym.envs.sampling import SamplingParams

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
CONTEXT = 64
PROMPTS = [[5], [7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [200, 100, 50, 25], [7, 8, 9]]


def tiny_model(seed: int = 0, *, tied: bool = True) -> Any:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=257,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=CONTEXT,
        initializer_range=0.25,
        tie_word_embeddings=tied,
    )
    return Qwen2ForCausalLM(config).eval()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


@pytest.fixture(params=DEVICES)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(tiny_model().to(request.param), byte_tokenizer())
    yield engine
    await engine.close()


def ask(
    prompt: Sequence[int] = (1, 2, 3), *, episode_id: str = "e", request_id: str = "r", **sampling: Any
) -> GenerateRequest:
    return GenerateRequest(
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(**{"max_tokens": 8, "seed": 0, **sampling}),
        request_id=request_id,
        episode_id=episode_id,
    )


@torch.no_grad()
def reference_logits(model: Any, prompt: Sequence[int], token_ids: Sequence[int]) -> torch.Tensor:
    """[n, V] logits before each sampled token, from one pass over the whole text without padding or cache."""
    logits = model.cpu()(torch.tensor([[*prompt, *token_ids]])).logits[0].double()
    return logits[len(prompt) - 1 : -1]


def reference_logprobs(model: Any, asked: GenerateRequest, generation: Generation) -> list[float]:
    logits = reference_logits(model, asked.prompt_token_ids, generation.token_ids) / asked.sampling.temperature
    if generation.kept_token_ids is not None:
        outside = torch.ones_like(logits, dtype=torch.bool)
        for row, kept in enumerate(generation.kept_token_ids):
            outside[row, list(kept)] = False
        logits = logits.masked_fill(outside, -math.inf)
    logprobs = logits.log_softmax(-1)
    return [float(logprobs[row, token]) for row, token in enumerate(generation.token_ids)]


MIXED = [
    ask(PROMPTS[0], temperature=1.0, seed=1),
    ask(PROMPTS[1], temperature=0.7, seed=2, max_tokens=3),
    ask(PROMPTS[2], temperature=1.5, seed=3, max_tokens=20),
    ask(PROMPTS[3], temperature=1.0, top_k=5, seed=4, max_tokens=12),
    ask(PROMPTS[4], temperature=1.3, top_p=0.8, seed=5, max_tokens=1),
    ask(PROMPTS[4], temperature=1.3, top_p=0.9, top_k=30, seed=6, max_tokens=9),
    ask(PROMPTS[2], temperature=0.0, max_tokens=5),
    ask(PROMPTS[2], temperature=0.0, top_p=0.5, max_tokens=5),
]


async def test_logprobs_are_those_of_the_distribution_that_was_sampled(engine: TransformersEngine):
    generations = await asyncio.gather(*map(engine.generate, MIXED))
    model = tiny_model()
    for asked, generation in zip(MIXED, generations, strict=True):
        assert len(generation.token_ids) == asked.sampling.max_tokens
        assert generation.finish_reason == "length"
        if asked.sampling.temperature:
            assert generation.logprobs == pytest.approx(reference_logprobs(model, asked, generation), abs=2e-5)


async def test_the_kept_sets_are_the_most_likely_tokens_that_top_k_and_top_p_ask_for(engine: TransformersEngine):
    generations = await asyncio.gather(*map(engine.generate, MIXED))
    model = tiny_model()
    for asked, generation in zip(MIXED, generations, strict=True):
        sampling = asked.sampling
        if not sampling.is_truncated or not sampling.temperature:
            assert generation.kept_token_ids is None
            continue
        assert generation.kept_token_ids is not None
        logits = reference_logits(model, asked.prompt_token_ids, generation.token_ids) / sampling.temperature
        for row, token, kept in zip(logits, generation.token_ids, generation.kept_token_ids, strict=True):
            order = row.argsort(descending=True)[: sampling.top_k or None]
            mass = row[order].softmax(-1).cumsum(-1)
            size = int((mass < sampling.top_p).sum()) + 1
            assert set(kept) == set(order[:size].tolist())
            assert token in kept


async def test_temperature_0_is_greedy_decoding_with_logprob_0(engine: TransformersEngine):
    asked = [ask(prompt, temperature=0.0, max_tokens=10, request_id=str(i)) for i, prompt in enumerate(PROMPTS)]
    generations = await asyncio.gather(*map(engine.generate, asked))
    model = tiny_model()
    for prompt, generation in zip(PROMPTS, generations, strict=True):
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        expected = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=10, eos_token_id=None)
        assert list(generation.token_ids) == expected[0, len(prompt) :].tolist()
        assert generation.logprobs == (0.0,) * 10


@pytest.mark.parametrize("sampling", [{"temperature": 0.8}, {"temperature": 1.2, "top_p": 0.7}, {"top_k": 12}])
async def test_sampled_frequencies_match_the_distribution(engine: TransformersEngine, sampling: dict[str, Any]):
    num_draws = 3000
    asked = [ask(max_tokens=1, **{**sampling, "seed": seed}) for seed in range(num_draws)]
    generations = await asyncio.gather(*map(engine.generate, asked))
    logits = reference_logits(tiny_model(), asked[0].prompt_token_ids, [0])[0] / sampling.get("temperature", 1.0)
    kept = generations[0].kept_token_ids
    tokens = list(range(257)) if kept is None else list(kept[0])
    expected = dict(zip(tokens, (logits[tokens].softmax(-1) * num_draws).tolist(), strict=True))
    counts = Counter(generation.token_ids[0] for generation in generations)
    assert set(counts) <= set(expected)
    # Pearson's statistic over the tokens expected at least five times, the others as one cell; its mean is the number
    # of cells less one and its variance twice that, so five standard deviations bound it for these fixed seeds.
    common = [token for token in tokens if expected[token] >= 5]
    cells = [(counts[token], expected[token]) for token in common]
    rest = num_draws - sum(count for count, _ in cells), num_draws - sum(mean for _, mean in cells)
    cells += [rest] if rest[1] >= 5 else []
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    degrees = len(cells) - 1
    assert degrees >= 5
    assert abs(statistic - degrees) < 5 * math.sqrt(2 * degrees)


async def test_a_row_draws_the_same_numbers_whatever_rows_run_beside_it(engine: TransformersEngine):
    asked = ask(PROMPTS[1], max_tokens=20, seed=77)
    mates = [ask(PROMPTS[i % 5], max_tokens=1 + i, seed=i, temperature=0.5 + 0.1 * i) for i in range(9)]
    alone = await engine.generate(asked)
    together = await asyncio.gather(*map(engine.generate, [*mates[:4], asked, *mates[4:]]))
    assert together[4].token_ids == alone.token_ids
    other = await engine.generate(replace(asked, sampling=replace(asked.sampling, seed=78)))
    assert other.token_ids != alone.token_ids


async def test_streams_longer_than_one_block_of_random_numbers_go_on(engine: TransformersEngine):
    model = tiny_model()
    model.config.max_position_embeddings = 512
    engine = TransformersEngine(model, None)
    asked = ask(max_tokens=150, temperature=1.0)
    generation = await engine.generate(asked)
    assert generation.logprobs == pytest.approx(reference_logprobs(model, asked, generation), abs=1e-4)
    assert generation.token_ids[:20] != generation.token_ids[64:84]
    await engine.close()


async def test_requests_without_a_seed_differ_and_repeat_with_the_engines_seed():
    async def play(seed: int) -> list[tuple[int, ...]]:
        engine = TransformersEngine(tiny_model(), None, seed=seed)
        requests = [ask(episode_id=episode, seed=None) for episode in ("a", "b")]
        played = [(await engine.generate(request)).token_ids for request in requests * 2]
        await engine.close()
        return played

    first = await play(0)
    assert len(set(first)) == 4
    assert await play(0) == first
    assert await play(1) != first


async def test_sampling_ends_with_a_stop_token_which_is_kept(engine: TransformersEngine):
    free = await engine.generate(ask(max_tokens=12))
    stop = free.token_ids[5]
    first = free.token_ids.index(stop) + 1
    mates = [ask(max_tokens=12, stop_token_ids=(300, stop)), ask(max_tokens=12, stop_token_ids=(300,))]
    stopped, unstopped = await asyncio.gather(*map(engine.generate, mates))
    assert (stopped.token_ids, stopped.finish_reason) == (free.token_ids[:first], "stop")
    assert (unstopped.token_ids, unstopped.finish_reason) == (free.token_ids, "length")


async def test_a_stop_token_at_the_last_place_counts_as_a_stop(engine: TransformersEngine):
    free = await engine.generate(ask(max_tokens=3))
    assert free.token_ids[2] not in free.token_ids[:2]
    stopped = await engine.generate(ask(max_tokens=3, stop_token_ids=(free.token_ids[2],)))
    assert (stopped.token_ids, stopped.finish_reason) == (free.token_ids, "stop")


def steered_model(text: str, tokenizer: PreTrainedTokenizerFast) -> Any:
    """A model that says `text` over and over whatever it is asked: its next token depends on the last one only."""
    model = tiny_model(tied=False)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    ids = tokenizer.encode(text)
    assert len(set(ids)) == len(ids)
    model.model.norm.weight.data.fill_(1.0)
    for place, (token, following) in enumerate(zip(ids, [*ids[1:], ids[0]], strict=True)):
        model.model.embed_tokens.weight.data[token, place] = 1.0
        model.lm_head.weight.data[following, place] = 50.0
    return model


async def test_a_stop_string_over_several_tokens_ends_its_row_and_keeps_the_tokens():
    tokenizer = byte_tokenizer()
    engine = TransformersEngine(steered_model("x =4é!\n", tokenizer), tokenizer)
    prompt = tokenizer.encode("x")
    asked = [
        ask(prompt, max_tokens=30, stop=("never", "é!")),
        ask(prompt, max_tokens=30, stop=("\nx",)),
        ask(prompt, max_tokens=30),
        ask(prompt, max_tokens=3, stop=("é",)),
    ]
    generations = await asyncio.gather(*map(engine.generate, asked))
    texts = [tokenizer.decode(list(generation.token_ids)) for generation in generations]
    assert [generation.finish_reason for generation in generations] == ["stop", "stop", "length", "length"]
    assert texts[0] == " =4é!"
    assert texts[1] == " =4é!\nx"
    assert len(generations[2].token_ids) == 30
    assert texts[3] == " =4"
    await engine.close()


async def test_stop_strings_without_a_tokenizer_are_refused():
    engine = TransformersEngine(tiny_model(), None)
    with pytest.raises(EngineError, match="stop strings and the engine has no tokenizer"):
        await engine.generate(ask(stop=("a",)))
    await engine.close()


async def test_max_tokens_is_cut_to_the_context(engine: TransformersEngine):
    prompt = [1] * (CONTEXT - 2)
    generation = await engine.generate(ask(prompt, max_tokens=10))
    assert (len(generation.token_ids), generation.finish_reason) == (2, "length")


async def test_a_row_at_the_end_of_a_context_with_learned_positions_does_not_disturb_longer_rows():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=CONTEXT)).eval()
    engine = TransformersEngine(model, None)
    full, short = ask([1] * (CONTEXT - 1), max_tokens=40), ask([2, 3], max_tokens=40)
    other = ask([4, 3], max_tokens=40, seed=9)
    generations = await asyncio.gather(*map(engine.generate, [full, short, other]))
    assert [len(generation.token_ids) for generation in generations] == [1, 40, 40]
    for asked, generation in zip([full, short, other], generations, strict=True):
        assert generation.logprobs == pytest.approx(reference_logprobs(model, asked, generation), abs=2e-5)
    await engine.close()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (ask([]), "request r has an empty prompt; it needs at least one token"),
        (ask([1, 999]), "request r has token id 999 in its prompt and the model's vocabulary has 257"),
        (ask([1, -1]), "request r has token id -1 in its prompt"),
        (ask([1] * CONTEXT), f"prompt of {CONTEXT} tokens and the model's context holds {CONTEXT}"),
        (replace(ask(), policy="critic"), "asks for policy 'critic'"),
        (replace(ask(), media=("image",)), "carries media"),
    ],
)
async def test_a_bad_request_fails_alone(engine: TransformersEngine, bad: GenerateRequest, message: str):
    good, failed = await asyncio.gather(engine.generate(ask()), engine.generate(bad), return_exceptions=True)
    assert isinstance(good, Generation)
    assert isinstance(failed, EngineError)
    assert message in str(failed)


async def test_tokens_carry_the_version_that_sampled_them_and_follow_the_new_weights(engine: TransformersEngine):
    asked = ask(temperature=1.0)
    before = await engine.generate(asked)
    other = tiny_model(seed=1)
    await engine.publish(WeightSource(tensors=other.state_dict()), 7)
    after = await engine.generate(asked)
    assert before.versions == (VersionSpan(0, 8),)
    assert after.versions == (VersionSpan(7, 8),)
    assert before.logprobs == pytest.approx(reference_logprobs(tiny_model(), asked, before), abs=2e-5)
    assert after.logprobs == pytest.approx(reference_logprobs(other, asked, after), abs=2e-5)


async def test_publishing_waits_for_the_batch_that_runs(engine: TransformersEngine):
    asked = ask(max_tokens=40)
    running = asyncio.create_task(engine.generate(asked))
    await until(lambda: bool(engine._worker._running))
    await engine.publish(WeightSource(tensors=tiny_model(seed=1).state_dict()), 1)
    generation = await running
    assert generation.versions == (VersionSpan(0, 40),)
    assert generation.logprobs == pytest.approx(reference_logprobs(tiny_model(), asked, generation), abs=2e-5)


async def test_training_the_callers_model_does_not_change_the_engine():
    model = tiny_model()
    engine = TransformersEngine(model, None)
    asked = ask()
    before = await engine.generate(asked)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert await engine.generate(asked) == before
    await engine.close()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "model.norm.weight are missing"),
        (lambda t: t.update(extra=torch.zeros(1)), "extra are not in the engine's model"),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(3)}),
            "model.norm.weight (3,), in the engine (32,) have another shape",
        ),
    ],
)
async def test_weights_that_do_not_fit_are_refused_by_name_and_change_nothing(tied: bool, change: Any, message: str):
    engine = TransformersEngine(tiny_model(tied=tied), None)
    before = await engine.generate(ask())
    tensors = dict(tiny_model(seed=1, tied=tied).state_dict())
    change(tensors)
    with pytest.raises(EngineError) as caught:
        await engine.publish(WeightSource(tensors=tensors), 1)
    assert message in str(caught.value)
    assert await engine.generate(ask()) == before
    await engine.close()


async def test_one_name_of_tied_embeddings_is_enough_and_two_must_agree():
    engine = TransformersEngine(tiny_model(), None)
    other = tiny_model(seed=1)
    asked = ask(temperature=1.0)
    await engine.publish(WeightSource(tensors=dict(other.named_parameters())), 1)
    generation = await engine.generate(asked)
    assert generation.logprobs == pytest.approx(reference_logprobs(other, asked, generation), abs=2e-5)
    untied = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    untied["lm_head.weight"] += 1
    with pytest.raises(EngineError, match=r"are one tensor in the engine and differ"):
        await engine.publish(WeightSource(tensors=untied), 2)
    await engine.close()


async def until(condition: Any) -> None:
    """Give way until something holds; the test's own timeout ends it otherwise."""
    while not condition():  # noqa: ASYNC110 - what is waited for happens on another thread
        await asyncio.sleep(0)


async def test_a_cancelled_request_that_waits_never_runs_and_its_mates_do():
    engine = TransformersEngine(tiny_model(), None, deterministic=True)
    for name in ("a", "b"):
        engine.episode_begins(name)
    waiting = asyncio.create_task(engine.generate(ask(episode_id="a")))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(engine._worker._queue) == 0
    engine.episode_ends("a")
    assert len((await engine.generate(ask(episode_id="b"))).token_ids) == 8
    await engine.close()


async def test_a_cancelled_request_that_runs_leaves_its_mates_alone(engine: TransformersEngine):
    asked = [ask(max_tokens=40, request_id=str(i), seed=i) for i in range(3)]
    expected = await asyncio.gather(*map(engine.generate, asked))
    tasks = [asyncio.create_task(engine.generate(one)) for one in asked]
    await until(lambda: bool(engine._worker._running))
    tasks[1].cancel()
    first, cancelled, last = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert isinstance(first, Generation)
    assert isinstance(last, Generation)
    assert [first.token_ids, last.token_ids] == [expected[0].token_ids, expected[2].token_ids]


async def test_a_batch_that_raises_fails_its_own_requests_and_the_engine_goes_on():
    class FailsOnce(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner, self.has_failed = inner, False

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if not self.has_failed:
                self.has_failed = True
                raise RuntimeError("out of memory")
            return self.inner(*args, **kwargs)

    model = tiny_model()
    model.model.layers[1].mlp = FailsOnce(model.model.layers[1].mlp)
    engine = TransformersEngine(model, None)
    failed = await asyncio.gather(engine.generate(ask()), engine.generate(ask([9])), return_exceptions=True)
    assert [str(error) for error in failed] == ["a batch of 2 requests failed: RuntimeError: out of memory"] * 2
    assert all(isinstance(error, EngineError) for error in failed)
    assert len((await engine.generate(ask())).token_ids) == 8
    await engine.close()


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "turngym-engine"]


async def test_close_fails_what_waits_or_runs_and_leaves_no_thread():
    engine = TransformersEngine(tiny_model(), None, max_batch_size=1)
    tasks = [asyncio.create_task(engine.generate(ask(max_tokens=40))) for _ in range(3)]
    await until(lambda: bool(engine._worker._running))
    assert len(engine_threads()) == 1
    await asyncio.gather(engine.close(), engine.close())
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, EngineError) and "closed" in str(outcome) for outcome in outcomes)
    assert engine_threads() == []
    await engine.close()
    for late in (engine.generate(ask()), engine.publish(WeightSource(tensors={}), 1)):
        with pytest.raises(EngineError, match="the engine is closed"):
            await late


async def test_an_engine_that_was_never_used_closes():
    engine = TransformersEngine(tiny_model(), None)
    await engine.close()
    assert engine_threads() == []


def test_one_engine_serves_one_event_loop_after_another():
    engine = TransformersEngine(tiny_model(), None)
    first = asyncio.run(engine.generate(ask()))
    assert asyncio.run(engine.generate(ask())) == first
    asyncio.run(engine.close())


async def play_episode(
    engine: TransformersEngine, name: str, num_turns: int, pauses: random.Random
) -> list[Generation]:
    """An episode whose turns come at times that depend on `pauses` only."""
    prompt = [1 + ord(name) % 7] * (1 + ord(name) % 3)
    played = []
    for turn in range(num_turns):
        for _ in range(pauses.randrange(6)):
            await asyncio.sleep(0)
        asked = ask(prompt, episode_id=name, request_id=f"{name}/{turn}", seed=None, max_tokens=2 + ord(name) % 4)
        generation = await engine.generate(asked)
        prompt = [*prompt, *generation.token_ids, 5]
        played.append(generation)
    engine.episode_ends(name)
    return played


async def play_all(order: int, *, deterministic: bool) -> tuple[dict[str, list[Generation]], list[list[str]]]:
    """Seven episodes of one to four turns, begun and paced in an order of chance. Returns them and the batches."""
    engine = TransformersEngine(tiny_model(), None, max_batch_size=3, deterministic=deterministic)
    batches, run = [], engine._worker._run
    engine._worker._run = lambda batch: batches.append([p.request.request_id for p in batch]) or run(batch)
    chance = random.Random(order)
    names = list("abcdefg")
    chance.shuffle(names)
    for name in names:
        engine.episode_begins(name)
    plays = [play_episode(engine, name, 1 + ord(name) % 4, random.Random(chance.random())) for name in names]
    played = dict(zip(names, await asyncio.gather(*plays), strict=True))
    await engine.close()
    return played, batches


async def test_in_deterministic_mode_a_run_repeats_bit_for_bit_whatever_the_order_of_arrival():
    first, batches = await play_all(0, deterministic=True)
    assert batches[:3] == [["a/0", "b/0", "c/0"], ["d/0", "e/0", "f/0"], ["g/0"]]
    for order in range(1, 12):
        again, batches_again = await play_all(order, deterministic=True)
        assert batches_again == batches
        assert again == first


async def test_without_it_batches_follow_the_order_of_arrival():
    batches = [(await play_all(order, deterministic=False))[1] for order in range(6)]
    assert any(other != batches[0] for other in batches[1:])


async def test_in_deterministic_mode_a_batch_waits_for_every_live_episode():
    engine = TransformersEngine(tiny_model(), None, deterministic=True)
    for name in ("a", "b", "c"):
        engine.episode_begins(name)
    tasks = {name: asyncio.create_task(engine.generate(ask(episode_id=name))) for name in ("a", "b", "stranger")}
    for _ in range(50):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks.values())
    assert len(engine._worker._queue) == 3
    engine.episode_ends("c")
    await asyncio.gather(*tasks.values())
    await engine.close()


@pytest.mark.parametrize("engine_kwargs", [{}, {"prefix_cache_bytes": 0}])
async def test_later_turns_give_the_same_numbers_whether_or_not_earlier_ones_are_kept(engine_kwargs: dict[str, Any]):
    engine = TransformersEngine(tiny_model(), None, **engine_kwargs)
    model = tiny_model()
    new_tokens = count_new_tokens(engine._model)
    prompts = {"a": [1, 2, 3], "b": [1, 2, 3], "c": [9, 8, 7, 6, 5], "stranger": [4, 4]}
    for name in ("a", "b", "c"):
        engine.episode_begins(name)
    for turn in range(4):
        asked = [
            ask(prompt, episode_id=name, seed=100 * turn + i, max_tokens=[2, 5, 1, 4][(turn + i) % 4])
            for i, (name, prompt) in enumerate(prompts.items())
        ]
        generations = await asyncio.gather(*map(engine.generate, asked))
        for one, generation in zip(asked, generations, strict=True):
            assert generation.logprobs == pytest.approx(reference_logprobs(model, one, generation), abs=2e-5)
            feedback = [30 + turn] * (1 + len(generation.token_ids) % 3)
            prompts[one.episode_id] = [*one.prompt_token_ids, *generation.token_ids, *feedback]
        prompts.pop("stranger", None)
        if turn == 1:
            prompts["c"] = [1, *prompts["c"]]  # a rewritten history
        if turn == 3:
            longest = max(len(one.prompt_token_ids) for one in asked)
            assert new_tokens[-1] == (longest if engine_kwargs else 4)
    await engine.close()


def count_new_tokens(model: Any) -> list[int]:
    """Grows by the longest row of new tokens at each pass that reads more than one token per row."""
    widths, forward = [], model.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        if kwargs["input_ids"].shape[1] > 1:
            widths.append(kwargs["input_ids"].shape[1])
        return forward(*args, **kwargs)

    model.forward = counting
    return widths


async def test_new_weights_make_later_turns_read_their_whole_prompt_again():
    engine = TransformersEngine(tiny_model(), None)
    engine.episode_begins("e")
    first = await engine.generate(ask())
    other = tiny_model(seed=1)
    await engine.publish(WeightSource(tensors=other.state_dict()), 1)
    asked = ask([1, 2, 3, *first.token_ids, 7], max_tokens=10)
    generation = await engine.generate(asked)
    assert generation.logprobs == pytest.approx(reference_logprobs(other, asked, generation), abs=2e-5)
    await engine.close()


async def test_requests_of_one_moment_run_as_one_batch_and_larger_ones_are_cut():
    engine = TransformersEngine(tiny_model(), None, max_batch_size=4)
    sizes, run = [], engine._worker._run
    engine._worker._run = lambda batch: sizes.append(len(batch)) or run(batch)
    await asyncio.gather(*(engine.generate(ask(request_id=str(i), seed=i)) for i in range(10)))
    assert sizes == [4, 4, 2]
    await engine.close()


async def test_from_pretrained_gives_the_saved_model(tmp_path: Any):
    tiny_model().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    engine = TransformersEngine.from_pretrained(tmp_path, device="cpu", version=3)
    generation = await engine.generate(ask(stop=("never",)))
    assert generation.versions == (VersionSpan(3, 8),)
    assert generation.logprobs == pytest.approx(reference_logprobs(tiny_model(), ask(), generation), abs=2e-5)
    await engine.close()


def test_a_folder_that_is_missing_or_has_no_safetensors_is_refused(tmp_path: Any):
    with pytest.raises(ConfigError, match=r"missing.*there is no such folder"):
        TransformersEngine.from_pretrained(tmp_path / "missing")
    tiny_model().config.save_pretrained(tmp_path)
    torch.save(tiny_model().state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"safetensors"):
        TransformersEngine.from_pretrained(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named(tmp_path: Any):
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        TransformersEngine.from_pretrained(tmp_path, device="cuda")


def test_a_batch_size_below_one_is_refused():
    with pytest.raises(ConfigError, match="max_batch_size=0 must be at least 1"):
        TransformersEngine(tiny_model(), None, max_batch_size=0)


def test_importing_the_engines_imports_neither_torch_nor_transformers():
    code = "import sys, turngym.agents.engines; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
