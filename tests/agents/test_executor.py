"""How episodes, groups and streams are played, and how they end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from turngym.agents import (
    AgentExecutor,
    Ending,
    Episode,
    ExecutorConfig,
    GenerateRequest,
    Generation,
    Renderer,
    ScriptedEngine,
    VersionSpan,
)
from turngym.envs import Action, AgentInstance, ListTaskSource, Observation, SamplingParams, StepResult, Task, Verbatim
from turngym.envs.errors import ConfigError, UnknownEnvError

pytestmark = pytest.mark.usefixtures("no_tasks_left")

TASK = Task(id="count", options={"prompt": "Count."})


class Counting(AgentInstance):
    """Ends after three turns; turn t earns t."""

    opened = 0
    last: int = 3
    prompt: Observation = "Count."
    feedback: Observation = "Go on."

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        type(self).opened += 1
        self.is_open = True
        self.turn = 0
        self.options = options
        return self.prompt, {"seed": seed}

    async def step(self, action: Action) -> StepResult:
        self.turn += 1
        return StepResult(
            observation=self.feedback,
            reward=float(self.turn),
            terminated=self.turn == self.last,
            score=1.0 if self.turn == self.last else None,
            info={"text": action.text},
        )

    async def close(self) -> None:
        if self.is_open:
            self.is_open = False
            type(self).opened -= 1


class Endless(Counting):
    last = -1


class Recording:
    """Plays a text, and keeps what it was asked, prompts copied."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, text: str | Callable[[GenerateRequest], str] = "ok") -> None:
        self.text = text
        self.tokenizer = tokenizer
        self.prompts: dict[str, list[int]] = {}
        self.sampling: dict[str, SamplingParams] = {}
        self.events: list[tuple[str, str]] = []
        self.num_cancelled = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        self.prompts[request.request_id] = list(request.prompt_token_ids)
        self.sampling[request.request_id] = request.sampling
        self.events.append(("generate", request.episode_id))
        await asyncio.sleep(0)
        text = self.text if isinstance(self.text, str) else self.text(request)
        ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id][: request.sampling.max_tokens]
        return Generation(
            token_ids=tuple(ids),
            logprobs=(-0.5,) * len(ids),
            finish_reason="stop" if ids[-1] == self.tokenizer.eos_token_id else "length",
            versions=(VersionSpan(4, len(ids)),),
        )

    async def publish(self, weights: Any, version: int) -> None: ...

    async def close(self) -> None: ...


class Tracking(Recording):
    def episode_begins(self, episode_id: str) -> None:
        self.events.append(("begins", episode_id))

    def episode_ends(self, episode_id: str) -> None:
        self.events.append(("ends", episode_id))


class Waiting(Recording):
    """Never answers."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__(tokenizer)
        self.asked: asyncio.Queue[GenerateRequest] = asyncio.Queue()

    async def generate(self, request: GenerateRequest) -> Generation:
        self.asked.put_nowait(request)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        raise AssertionError


async def play(env: Any, engine: Any, renderer: Renderer, **config: Any) -> Episode:
    async with AgentExecutor(env, engine, renderer, ExecutorConfig(**config)) as executor:
        return await executor.run_episode(TASK)


async def test_an_episode_is_reset_then_turns_until_the_env_ends_it(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    episode = await play(Counting, Recording(byte_tokenizer), byte_renderer)
    assert episode.ending is Ending.TERMINATED
    assert episode.failure is None
    assert [turn.reward for turn in episode.turns] == [1.0, 2.0, 3.0]
    assert [turn.action_text for turn in episode.turns] == ["ok"] * 3
    assert [turn.feedback for turn in episode.turns] == ["Go on."] * 3
    assert [turn.info for turn in episode.turns] == [{"text": "ok"}] * 3
    assert episode.score == 1.0
    assert episode.prompt == "Count."
    assert episode.reset_info == {"seed": episode.env_seed}
    assert Counting.opened == 0


async def test_the_engine_got_each_turns_record_prefix(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = Recording(byte_tokenizer)
    episode = await play(Counting, engine, byte_renderer)
    (record,) = episode.records
    for index, turn in enumerate(episode.turns):
        assert engine.prompts[f"{episode.episode_id}/{index}"] == record.token_ids[: turn.action_start].tolist()
        assert engine.sampling[f"{episode.episode_id}/{index}"] == turn.sampling
    text = byte_tokenizer.decode(record.token_ids)
    feedback = "\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\nok<|im_end|>"
    assert text == "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\nok<|im_end|>" + feedback * 2
    assert (record.versions[record.action_mask] == 4).all()


async def test_the_effective_sampling_has_the_end_of_turn_and_a_seed_of_its_own(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    episode = await play(
        Counting, Recording(byte_tokenizer), byte_renderer, sampling=SamplingParams(stop_token_ids=(7,), top_p=0.9)
    )
    for turn in episode.turns:
        assert turn.sampling.stop_token_ids == (7, byte_tokenizer.eos_token_id)
        assert turn.sampling.top_p == 0.9
    assert len({turn.sampling.seed for turn in episode.turns}) == 3


async def test_max_tokens_never_leads_beyond_the_context(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = Recording(byte_tokenizer, "x" * 500)
    episode = await play(Endless, engine, byte_renderer, max_length=100, sampling=SamplingParams(max_tokens=30))
    (record,) = episode.records
    assert len(record) <= 100
    assert [turn.sampling.max_tokens for turn in episode.turns] == [
        30,
        100 - (25 + 30 + 27),
    ]  # prompt, action, reply
    assert episode.ending is Ending.MAX_LENGTH
    assert episode.failure is not None
    assert episode.failure.kind == "policy"
    assert not episode.is_failed


async def test_a_limit_of_turns_truncates(byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast) -> None:
    episode = await play(Endless, Recording(byte_tokenizer), byte_renderer, max_turns=2)
    assert episode.ending is Ending.MAX_TURNS
    assert episode.ending.is_truncation
    assert len(episode.turns) == 2
    assert not episode.is_failed


async def test_the_env_ending_on_the_last_allowed_turn_is_no_truncation(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    episode = await play(Counting, Recording(byte_tokenizer), byte_renderer, max_turns=3)
    assert episode.ending is Ending.TERMINATED


async def test_empty_actions_and_empty_feedback_do_not_go_on_for_ever(byte_renderer: Renderer) -> None:
    class Silent(Endless):
        feedback = Verbatim("")

    episode = await play(Silent, ScriptedEngine(lambda _: []), byte_renderer, max_length=64)
    assert episode.ending is Ending.MAX_TURNS
    assert len(episode.turns) == 64


async def test_an_episode_that_never_waits_meets_its_limit_of_time(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Instant(Recording):
        async def generate(self, request: GenerateRequest) -> Generation:
            return Generation(token_ids=(), logprobs=(), finish_reason="stop", versions=())

    class Silent(Endless):
        feedback = Verbatim("")

    episode = await play(
        Silent, Instant(byte_tokenizer), byte_renderer, max_length=10**9, episode_timeout_s=0.05, max_turns=10**9
    )
    assert episode.ending is Ending.TIME_LIMIT


async def test_a_prompt_beyond_the_context_is_named_with_lengths_and_remedy_and_not_tried_again(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    class Long(Counting):
        prompt = "x" * 100

    engine = Recording(byte_tokenizer)
    async with AgentExecutor(Long, engine, byte_renderer, ExecutorConfig(max_length=64)) as executor:
        group = await executor.run_group(TASK, 2)
    assert group.is_short
    assert len(group.failed) == 2
    failure = group.failed[0].failure
    assert failure is not None
    assert (failure.kind, failure.where, failure.error) == ("infra", "reset", "DataError")
    assert failure.message == (
        "the prompt of task 'count' has 119 tokens and the context holds 64, the answer included; "
        "shorten the prompt, or raise max_length"
    )
    assert not engine.events


async def test_sampling_from_a_step_holds_from_the_next_turn_on(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    class Cooling(Counting):
        async def step(self, action: Action) -> StepResult:
            result = await super().step(action)
            sampling = SamplingParams(temperature=0.5) if self.turn == 1 else None
            return StepResult(observation="", terminated=result.terminated, sampling=sampling)

    episode = await play(Cooling, Recording(byte_tokenizer), byte_renderer)
    assert [turn.sampling.temperature for turn in episode.turns] == [1.0, 0.5, 0.5]


async def test_siblings_share_options_and_env_seed_and_nothing_else(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    async with AgentExecutor(Counting, Recording(byte_tokenizer), byte_renderer) as executor:
        group = await executor.run_group(TASK, 4, slot=9, epoch=2)
        other = await executor.run_group(Task(id="other"), 1, slot=10, epoch=2)
    assert [episode.episode_id for episode in group.episodes] == [f"0002-00000009-{i:04d}-00" for i in range(4)]
    assert [episode.member for episode in group.episodes] == [0, 1, 2, 3]
    assert len({episode.env_seed for episode in group.episodes}) == 1
    assert len({turn.sampling.seed for episode in group.episodes for turn in episode.turns}) == 12
    assert other.episodes[0].env_seed != group.episodes[0].env_seed


async def test_a_tasks_own_seed_comes_first(byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast) -> None:
    async with AgentExecutor(Counting, Recording(byte_tokenizer), byte_renderer) as executor:
        episode = await executor.run_episode(Task(id="seeded", seed=11))
    assert episode.env_seed == 11


async def test_seeds_do_not_depend_on_the_order_of_playing(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    async def seeds(concurrency: int) -> list[list[int | None]]:
        async with AgentExecutor(Counting, Recording(byte_tokenizer), byte_renderer) as executor:
            episodes = await executor.run_many([Task(id=str(i)) for i in range(6)], concurrency=concurrency)
        return [[episode.env_seed, *(turn.sampling.seed for turn in episode.turns)] for episode in episodes]

    assert await seeds(1) == await seeds(6)


async def test_all_episodes_of_a_call_begin_before_any_runs(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = Tracking(byte_tokenizer)
    async with AgentExecutor(Counting, engine, byte_renderer) as executor:
        await executor.run_group(TASK, 3)
        assert [what for what, _ in engine.events[:4]] == ["begins", "begins", "begins", "generate"]
        assert [what for what, _ in engine.events].count("ends") == 3
        engine.events.clear()
        await executor.run_many([TASK] * 5, concurrency=2)
    live, most = set(), 0
    for what, episode_id in engine.events:
        if what == "begins":
            live.add(episode_id)
        if what == "ends":
            live.remove(episode_id)
        most = max(most, len(live))
    assert not live
    assert most == 2 + 1  # the next begins before the last ends


async def test_a_refill_begins_before_the_failed_attempt_ends(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    class FailsOnce(Counting):
        has_failed = False

        async def step(self, action: Action) -> StepResult:
            if not FailsOnce.has_failed:
                FailsOnce.has_failed = True
                raise OSError("gone")
            return await super().step(action)

    engine = Tracking(byte_tokenizer)
    async with AgentExecutor(FailsOnce, engine, byte_renderer) as executor:
        group = await executor.run_group(TASK, 1)
    first, second = "0000-00000000-0000-00", "0000-00000000-0000-01"
    order = [event for event in engine.events if event[0] != "generate"]
    assert order == [("begins", first), ("begins", second), ("ends", first), ("ends", second)]
    assert [episode.attempt for episode in group.episodes] == [1]
    assert [episode.attempt for episode in group.failed] == [0]


async def test_a_group_whose_refills_are_exhausted_is_short_and_says_so(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    class Broken(Counting):
        async def step(self, action: Action) -> StepResult:
            if action.text == "bad":
                raise OSError("gone")
            return await super().step(action)

    engine = Recording(byte_tokenizer, lambda request: "bad" if request.episode_id[14:18] == "0001" else "ok")
    async with AgentExecutor(Broken, engine, byte_renderer, ExecutorConfig(max_refills=2)) as executor:
        group = await executor.run_group(TASK, 3)
        assert executor.stats.failures == {"OSError": 3}
        assert executor.stats.endings == {Ending.TERMINATED: 2, Ending.ENV_FAILED: 3}
    assert group.is_short
    assert [episode.member for episode in group.episodes] == [0, 2]
    assert [(episode.member, episode.attempt) for episode in group.failed] == [(1, 0), (1, 1), (1, 2)]
    assert Broken.opened == 0


async def test_run_many_keeps_the_order_of_tasks_and_plays_a_repeated_task_as_another_member(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    tasks = [Task(id="a"), Task(id="b"), Task(id="a")]
    async with AgentExecutor(Counting, Recording(byte_tokenizer), byte_renderer) as executor:
        episodes = await executor.run_many(tasks, concurrency=2, slot=5, prefix="eval-")
        from_source = await executor.run_many(ListTaskSource(tasks[:2]))
    assert [(e.task_id, e.slot, e.member) for e in episodes] == [("a", 5, 0), ("b", 6, 0), ("a", 7, 1)]
    assert episodes[0].episode_id == "eval-0000-00000005-0000-00"
    assert episodes[0].turns[0].sampling.seed != episodes[2].turns[0].sampling.seed
    assert [episode.task_id for episode in from_source] == ["a", "b"]


async def test_run_many_keeps_a_task_that_failed_for_good(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    class Broken(Counting):
        async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
            raise OSError("gone")

    seen: list[Episode] = []
    async with AgentExecutor(
        Broken, Recording(byte_tokenizer), byte_renderer, ExecutorConfig(max_refills=1), on_episode=seen.append
    ) as executor:
        (episode,) = await executor.run_many([TASK])
    assert episode.is_failed
    assert [attempt.attempt for attempt in seen] == [0, 1]


async def test_a_stream_of_endless_tasks_is_bounded_and_closes(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    drawn = 0

    def endless() -> Iterator[Task]:
        nonlocal drawn
        while True:
            drawn += 1
            yield Task(id=str(drawn))

    Counting.opened = 0
    async with AgentExecutor(Counting, Recording(byte_tokenizer), byte_renderer) as executor:
        stream = executor.stream(endless(), concurrency=3)
        first = await anext(stream)
        for _ in range(200):
            await asyncio.sleep(0)
        assert drawn <= 3 + 3 + 3 + 1  # running, waiting to be read, waiting for room
        async for episode in stream:
            if episode.slot == 20:
                break
        await stream.aclose()
        assert Counting.opened == 0
    assert first.ending is Ending.TERMINATED


async def test_a_cancelled_group_closes_everything(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    Counting.opened = 0

    class Tracked(Waiting, Tracking): ...

    engine = Tracked(byte_tokenizer)
    async with AgentExecutor(Counting, engine, byte_renderer) as executor:
        playing = asyncio.create_task(executor.run_group(TASK, 3))
        for _ in range(3):
            await engine.asked.get()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert executor.stats.endings == {Ending.CANCELLED: 3}
    assert engine.num_cancelled == 3
    assert Counting.opened == 0
    assert [what for what, _ in engine.events].count("ends") == 3


async def test_a_group_cancelled_before_it_ran_ends_what_it_began(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = Tracking(byte_tokenizer)
    async with AgentExecutor(Counting, engine, byte_renderer) as executor:
        await executor.start()
        for delay in range(12):
            playing = asyncio.create_task(executor.run_group(TASK, 2, slot=delay))
            for _ in range(delay):
                await asyncio.sleep(0)
            playing.cancel()
            await asyncio.wait([playing])
    names = [what for what, _ in engine.events]
    assert names.count("begins") == names.count("ends")
    assert Counting.opened == 0


async def test_closing_the_executor_cancels_what_is_running(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    Counting.opened = 0
    engine = Waiting(byte_tokenizer)
    executor = AgentExecutor(Counting, engine, byte_renderer)
    playing = asyncio.create_task(executor.run_episode(TASK))
    await engine.asked.get()
    await executor.aclose()
    await executor.aclose()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert Counting.opened == 0


async def test_a_bug_of_ours_is_raised(byte_tokenizer: PreTrainedTokenizerFast, byte_renderer: Renderer) -> None:
    class Broken(Renderer):
        def action_text(self, token_ids: Any, stop: Any = ()) -> str:
            raise ZeroDivisionError

    Counting.opened = 0
    async with AgentExecutor(Counting, Recording(byte_tokenizer), Broken(byte_tokenizer)) as executor:
        with pytest.raises(ZeroDivisionError):
            await executor.run_episode(TASK)
        with pytest.raises(ExceptionGroup):
            await executor.run_group(TASK, 2)
        with pytest.raises(ExceptionGroup):
            await executor.run_many([TASK])
    assert Counting.opened == 0


async def test_two_calls_may_not_play_the_same_episode_at_once(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = Waiting(byte_tokenizer)
    async with AgentExecutor(Counting, engine, byte_renderer) as executor:
        playing = asyncio.create_task(executor.run_episode(TASK))
        await engine.asked.get()
        with pytest.raises(ConfigError, match="episode 0000-00000000-0000-00 is being played"):
            await executor.run_episode(TASK)
        playing.cancel()
        await asyncio.wait([playing])


def test_an_unknown_env_is_refused_at_once(byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UnknownEnvError, match="Mathh-v0"):
        AgentExecutor("Mathh-v0", Recording(byte_tokenizer), byte_renderer)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_length", 1, "max_length=1 must be at least 2"),
        ("max_turns", 0, "max_turns=0 must be at least 1, or None"),
        ("turn_timeout_s", 0.0, "turn_timeout_s=0.0 must be positive, or None for no limit"),
        ("concurrency", 0, "concurrency=0 must be at least 1"),
        ("env_workers", -1, "env_workers=-1 must be at least 0"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ExecutorConfig(**{field: value})
    assert str(caught.value) == message


async def test_the_record_of_an_abandoned_iterator_is_collected(
    byte_renderer: Renderer, byte_tokenizer: PreTrainedTokenizerFast
) -> None:
    async with AgentExecutor(Counting, Recording(byte_tokenizer), byte_renderer) as executor:
        async for _ in executor.stream([TASK] * 4, concurrency=1):
            break
        gc.collect()
    assert Counting.opened == 0
