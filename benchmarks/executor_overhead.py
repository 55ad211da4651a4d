"""CPU time per turn that the executor itself costs.

The engine answers at once and the environment's step is async and does nothing, so that what is left is the executor's
own work: chat rendering with a real tokenizer, decoding, seeds, limits of time, and the token-exact record. Each turn
has 16 action tokens and 16 feedback tokens. Limits and checks are on, as shipped.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any

from report import alternating, ratio, report
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from turngym.agents import (
    AgentExecutor,
    ExecutorConfig,
    GenerateRequest,
    Generation,
    Renderer,
    VersionSpan,
    WeightSource,
)
from turngym.envs import Action, AgentInstance, SamplingParams, StepResult, Task

NUM_TOKENS = 16
TURNS = (8, 32, 128, 512)
EPISODES = (1, 64)
MAX_US_PER_TURN = 60.0
MAX_RATIO = 1.3
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with a chat template, for which each word is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    corpus = [" ".join(words), " " + " ".join(words), "user\n", "assistant\n"] * 10
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=8192, initial_alphabet=alphabet))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=TEMPLATE)


class Texts:
    """Feedback of 16 tokens each, and actions of 16 tokens each, the closing token included."""

    def __init__(self) -> None:
        rng = random.Random(0)
        words = sorted({"".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 7))) for _ in range(400)})
        self.tokenizer = tokenizer = make_tokenizer(words)
        self.feedback = [" " + " ".join(rng.choices(words, k=NUM_TOKENS)) for _ in range(997)]
        for text in self.feedback:
            assert len(tokenizer.encode(text, add_special_tokens=False)) == NUM_TOKENS
        backend = tokenizer.backend_tokenizer
        closing = backend.token_to_id("<|im_end|>")
        assert closing is not None
        self.actions: list[tuple[int, ...]] = [
            (*backend.encode(text).ids[: NUM_TOKENS - 1], closing) for text in self.feedback
        ]


class InstantEngine:
    """Answers at once."""

    def __init__(self, actions: list[tuple[int, ...]]) -> None:
        self.num_turns = 0
        self._generations = [
            Generation(
                token_ids=token_ids,
                logprobs=(-1.0,) * NUM_TOKENS,
                finish_reason="stop",
                versions=(VersionSpan(0, NUM_TOKENS),),
            )
            for token_ids in actions
        ]

    async def generate(self, request: GenerateRequest) -> Generation:
        """The next of the given actions."""
        del request
        self.num_turns += 1
        return self._generations[self.num_turns % len(self._generations)]

    async def publish(self, weights: WeightSource, version: int) -> None:
        """Not asked for here."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is open."""


class Chatter(AgentInstance):
    """Answers every action with the next text."""

    def __init__(self, feedback: list[str], num_turns: int) -> None:
        self.feedback = feedback
        self.num_turns = num_turns

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict]:
        """Begin with the first text."""
        self.turn = 0
        return self.feedback[0], {}

    async def step(self, action: Action) -> StepResult:
        """Answer with the next text."""
        self.turn += 1
        text = self.feedback[self.turn % len(self.feedback)]
        return StepResult(observation=text, reward=0.5, terminated=self.turn == self.num_turns)


async def us_per_turn(texts: Texts, *, num_turns: int, num_episodes: int, min_turns: int) -> float:
    """CPU time of the whole process per turn, in µs, over at least `min_turns` turns."""
    engine = InstantEngine(texts.actions)
    config = ExecutorConfig(sampling=SamplingParams(max_tokens=64), max_length=1_000_000)
    async with AgentExecutor(
        lambda: Chatter(texts.feedback, num_turns), engine, Renderer(texts.tokenizer), config
    ) as executor:
        started, slot = time.process_time(), 0
        while engine.num_turns < min_turns:
            group = await executor.run_group(Task(id="chat"), num_episodes, slot=slot)
            assert sum(len(episode.turns) for episode in group.episodes) == num_turns * num_episodes
            slot += 1
        return (time.process_time() - started) / engine.num_turns * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements, under a minute in all")
    quick = parser.parse_args().quick
    min_turns, num_pairs = (16_384, 3) if quick else (32_768, 9)
    texts = Texts()

    def measure(num_turns: int, num_episodes: int) -> float:
        return asyncio.run(us_per_turn(texts, num_turns=num_turns, num_episodes=num_episodes, min_turns=min_turns))

    measure(32, 64)  # warm up
    pairs = alternating(lambda: measure(512, 64), lambda: measure(32, 64), num_pairs=num_pairs)
    cells = {
        (turns, n): measure(turns, n) for turns in TURNS for n in EPISODES if (turns, n) not in ((512, 64), (32, 64))
    }
    cells[512, 64] = statistics.median(a for a, _ in pairs)
    cells[32, 64] = statistics.median(b for _, b in pairs)
    print("CPU time per turn in µs\n")
    print("turns " + "".join(f"{n:>4} episode{'s' if n > 1 else ' '} at once" for n in EPISODES))
    for turns in TURNS:
        print(f"{turns:>5} " + "".join(f"{cells[turns, n]:>21.1f}" for n in EPISODES))
    growth = ratio(pairs)
    print(f"\n512 turns over 32, at 64 episodes: {growth.median:.3f} [{growth.low:.3f}, {growth.high:.3f}]\n")
    figures = {f"us_per_turn_{turns}_turns_64_episodes": cells[turns, 64] for turns in TURNS}
    targets = dict.fromkeys(figures, MAX_US_PER_TURN)
    report(
        "executor_overhead",
        {**figures, "ratio_512_to_32_turns": growth.median},
        {**targets, "ratio_512_to_32_turns": MAX_RATIO},
    )


if __name__ == "__main__":
    main()
