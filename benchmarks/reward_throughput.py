"""How fast rewards are given, and that none of them stalls the event loop.

64 episodes are scored at once, in groups of 8, as the trainer does it. Rates are the median of several rounds, in
rewards per second: of each ready reward, of a batch file in a worker process, of a tiny reward model, of a judge that
answers at once on loopback. A file that blocks is held against the ideal: its calls times their duration, over its
workers. Meanwhile a heartbeat on the event loop measures the longest stall. On a busy machine an idle loop has stalls,
too: the longest of one is printed first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

from report import report
from turngym.agents.loop_stall import LoopStall
from turngym.agents.reward_files import load_reward_file
from turngym.agents.settled_heap import settled_heap
from turngym.envs import rewards
from turngym.envs.rewards import RewardFunction, RewardOutput, Trajectory, as_reward, score_group
from turngym.envs.rewards.base import label_of

NUM_EPISODES = 64
GROUP_SIZE = 8
MAX_STALL_S = 0.050
MAX_RATIO = 1.2
BLOCKING_WORKERS = 4
NUM_ROUNDS = 5
MIN_RATE = 200.0
MIN_RATES = {"PairwiseReward": 50.0, "MathReward_formulas": 20.0, "RewardModel": 10.0, "LLMJudge": 10.0}
"""Rewards per second that are enough for training on this kind of machine; far below what is measured."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
)
FORM = "The answer is [NUM]."

BATCH_FILE = """
import torch


def reward_func(queries, prompts, labels):
    responses = [query[len(prompt):] for query, prompt in zip(queries, prompts)]
    right = torch.tensor([float(label in response) for response, label in zip(responses, labels)])
    words = torch.tensor([float(len(response.split())) for response in responses])
    return {
        "rewards": (right - right.mean()) / (right.std() + 1e-6),
        "scores": right,
        "extra_logs": {"words": words, "mean": right.mean()},
    }
"""
BLOCKING_FILE = """
import time


def custom_reward_function(response, prompt, metadata):
    time.sleep(SECONDS)
    return float(metadata["answer"] in response)
"""
JUDGE = """
import asyncio
import json

VERDICT = json.dumps({"reason": "Right, and short.", "score": 7})
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": VERDICT}}
BODY = json.dumps(
    {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "judge",
        "choices": [CHOICE],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
).encode()
ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(BODY) + BODY


async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).lower()
            await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\\r\\n")[0]))
            writer.write(ANSWER)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
"""


class Measured(NamedTuple):
    """Rewards per second, and the longest stall of the event loop meanwhile in seconds."""

    rate: float
    stall_s: float


def make_groups() -> list[list[Trajectory]]:
    """Eight groups of eight responses of some 60 words."""
    rng = random.Random(0)
    words = ["therefore", "because", "first", "we", "add", "the", "numbers", "and", "get", "so", "maybe", "then"]
    groups = []
    for index in range(NUM_EPISODES // GROUP_SIZE):
        prompt, label = f"Calculate {index} + {index + 3}.", str(2 * index + 3)
        columns = {"prompt": prompt, "label": label, "format": FORM, "numbers": [2 * index + 3], "task": "sums"}
        groups.append(
            [
                Trajectory(
                    prompt=prompt,
                    response=f"{' '.join(rng.choices(words, k=56))}. The answer is {rng.choice([label, '7', 'four'])}.",
                    label=label,
                    columns=columns,
                    update=index,
                )
                for _ in range(GROUP_SIZE)
            ]
        )
    return groups


def make_formula_groups() -> list[list[Trajectory]]:
    """The same, with answers that only math-verify can compare; each group has answers of its own."""
    groups = []
    for index, group in enumerate(make_groups()):
        label = rf"\frac{{{index + 1}}}{{7}} x + 1"
        answers = [rf"1 + \frac{{{index + 1} x}}{{7}}", rf"\frac{{{index + 2}}}{{7}} x + 1"]
        groups.append(
            [
                Trajectory(
                    prompt=trajectory.prompt,
                    response=rf"{trajectory.response} So it is \boxed{{{answers[place % 2]}}}.",
                    label=label,
                    columns={"label": label},
                )
                for place, trajectory in enumerate(group)
            ]
        )
    return groups


def ready_rewards() -> dict[str, RewardFunction]:
    """One of each ready reward that needs no model."""
    length = rewards.LengthReward(target_length=60, tolerance=20)
    keywords = rewards.KeywordReward(required=["therefore", "because"], bonus=["first"], penalty=["maybe"])
    form = rewards.FormatReward(required_sections=["The answer is"], forbidden_patterns=[r"four\."])
    found = [
        length,
        form,
        keywords,
        rewards.FunctionReward(fn=lambda trajectory: len(trajectory.response) / 1000, name="FunctionReward"),
        rewards.CompositeReward([(length, 0.5), (keywords, 0.3), (form, 0.2)]),
        as_reward(rewards.match_format_exactly),
        as_reward(rewards.check_answer),
        as_reward(rewards.check_numbers),
        rewards.TotalReward(),
        rewards.MathReward(),
        rewards.BinaryReward(),
        rewards.GraduatedReward(),
        rewards.ContinuousReward(),
        rewards.MultiAspectReward(relevance=keywords),
        rewards.ShapedReward(rewards.check_answer),
        rewards.FlooredReward(length),
        rewards.GatedReward(gate=form, reward=length),
        rewards.NormalizedReward(length),
        rewards.ScaledReward(length, to_range=(-1, 1)),
        rewards.MultiTaskReward({"sums": rewards.check_answer}),
        rewards.CurriculumReward(
            {"format": form, "task": rewards.check_answer}, [(0, {"format": 1.0}), (4, {"format": 0.3, "task": 0.7})]
        ),
        rewards.RankingReward(length),
        rewards.PairwiseReward(lambda a, b: float(len(a.response) > len(b.response))),
        rewards.DiversityPenalty(),
    ]
    return {label_of(reward): reward for reward in found}


@contextlib.asynccontextmanager
async def judge() -> AsyncIterator[RewardFunction]:
    """A judge on loopback that answers at once, in a process of its own."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", JUDGE, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    assert server.stdout is not None
    try:
        port = int(await server.stdout.readline())
        yield rewards.LLMJudge("judge", base_url=f"http://127.0.0.1:{port}/v1", max_concurrency=NUM_EPISODES)
    finally:
        server.terminate()
        await server.wait()


def reward_model(folder: Path) -> RewardFunction:
    """A reward model with random weights, loaded from disk: two layers, width 64, one token a byte."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForSequenceClassification
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<pad>", "<|im_start|>", "<|im_end|>")])
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<|im_end|>", chat_template=TEMPLATE
    ).save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(backend.get_vocab()),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        pad_token_id=backend.token_to_id("<pad>"),
        num_labels=1,
    )
    Qwen2ForSequenceClassification(config).save_pretrained(folder)
    return rewards.RewardModel(model_path=folder, device="cpu")


async def score_all(reward: RewardFunction, groups: Sequence[Sequence[Trajectory]]) -> list[RewardOutput]:
    """The outputs of all groups, scored at once."""
    async with asyncio.TaskGroup() as together:
        tasks = [together.create_task(score_group(reward, group)) for group in groups]
    outputs = [output for task in tasks for output in task.result()]
    for output in outputs:
        if not isinstance(output, RewardOutput):
            raise output
    return [output for output in outputs if isinstance(output, RewardOutput)]


async def measure(reward: RewardFunction, groups: Sequence[Sequence[Trajectory]], *, min_s: float) -> Measured:
    """The rate as the median of five rounds, of at least `min_s` seconds together.

    The garbage collector leaves alone what was loaded before: otherwise its next full pass, a quarter of a second long
    with this much loaded, counts as a stall of whichever reward is measured then.
    """
    await reward.start()
    try:
        await score_all(reward, groups)  # warm up
        rates = []
        with settled_heap():
            async with LoopStall() as stall:
                for _ in range(NUM_ROUNDS):
                    started, count = time.perf_counter(), 0
                    while (passed := time.perf_counter() - started) < min_s / NUM_ROUNDS:
                        count += len(await score_all(reward, groups))
                    rates.append(count / passed)
                return Measured(statistics.median(rates), stall.longest_s)
    finally:
        await reward.aclose()


async def measure_blocking(folder: Path, groups: Sequence[Sequence[Trajectory]], *, seconds: float) -> Measured:
    """Time over the ideal, in place of a rate, of a file whose calls block for `seconds` each."""
    path = folder / "blocking.py"
    path.write_text(BLOCKING_FILE.replace("SECONDS", str(seconds)))
    reward = load_reward_file(path, num_workers=BLOCKING_WORKERS)
    await reward.start()
    try:
        ideal_s = NUM_EPISODES * seconds / BLOCKING_WORKERS
        with settled_heap():
            async with LoopStall() as stall:
                started = time.perf_counter()
                await score_all(reward, groups)
                return Measured((time.perf_counter() - started) / ideal_s, stall.longest_s)
    finally:
        await reward.aclose()


async def idle_stall_s(seconds: float) -> float:
    """The longest stall of a loop that has nothing to do: what the machine itself does to it."""
    async with LoopStall() as stall:
        await asyncio.sleep(seconds)
        return stall.longest_s


async def measure_all(folder: Path, *, quick: bool) -> tuple[dict[str, Measured], list[Measured]]:
    """Rates by name, and the runs of the blocking file."""
    print(f"longest stall of an idle loop: {await idle_stall_s(2.0) * 1e3:.1f} ms\n")
    groups, min_s = make_groups(), 0.5 if quick else 5.0
    measured = {name: await measure(reward, groups, min_s=min_s) for name, reward in ready_rewards().items()}
    measured["MathReward_formulas"] = await measure(rewards.MathReward(), make_formula_groups(), min_s=min_s)
    measured["RewardModel"] = await measure(reward_model(folder / "model"), groups, min_s=min_s)
    async with judge() as reward:
        measured["LLMJudge"] = await measure(reward, groups, min_s=min_s)
    (folder / "batch.py").write_text(BATCH_FILE)
    measured["batch_file"] = await measure(load_reward_file(folder / "batch.py"), groups, min_s=min_s)
    seconds = 0.1 if quick else 1.0
    blocking = [await measure_blocking(folder, groups, seconds=seconds) for _ in range(3)]
    return measured, blocking


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements, under a minute in all")
    quick = parser.parse_args().quick
    logging.getLogger("turngym.rewards").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        measured, blocking = asyncio.run(measure_all(Path(folder), quick=quick))
    print(f"{NUM_EPISODES} episodes at once, groups of {GROUP_SIZE}\n")
    print(f"{'':24}{'rewards per second':>20}{'longest stall in ms':>22}")
    for name, (rate, stall_s) in measured.items():
        print(f"{name:24}{rate:>20,.0f}{stall_s * 1e3:>22.1f}")
    print(f"\nblocking file, {BLOCKING_WORKERS} workers, time over the ideal and longest stall in ms:")
    print("  ".join(f"{ratio:.3f} {stall_s * 1e3:.1f}" for ratio, stall_s in blocking), end="\n\n")
    report(
        "reward_throughput",
        {
            **{f"{name}_per_s": rate for name, (rate, _) in measured.items()},
            "batch_file_longest_stall_s": measured["batch_file"].stall_s,
            "blocking_file_time_over_ideal": statistics.median(ratio for ratio, _ in blocking),
            "blocking_file_longest_stall_s": max(stall_s for _, stall_s in blocking),
        },
        {
            "batch_file_longest_stall_s": MAX_STALL_S,
            "blocking_file_time_over_ideal": MAX_RATIO,
            "blocking_file_longest_stall_s": MAX_STALL_S,
        },
        at_least={f"{name}_per_s": MIN_RATES.get(name, MIN_RATE) for name in measured},
    )


if __name__ == "__main__":
    main()
