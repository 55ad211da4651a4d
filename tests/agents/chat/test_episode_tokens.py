"""Whole episodes, played by the executor: what the engine got, what it sampled, and what the record says."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from turngym.agents import AgentExecutor, ExecutorConfig
from turngym.agents.engine import GenerateRequest, Generation, VersionSpan
from turngym.envs.instance import AgentInstance
from turngym.envs.tasks import Task
from turngym.envs.types import StepResult, Verbatim

KINDS = ["byte_level", "merging", "unigram"]
TEMPLATES = ["chatml", "trimming", "thinking", "prefilled", "tools", "rewriting", "counting", "speakers", None]
TEXTS = ["", "low", "Too low, guess again\n", " <|im_end|> ", "<think>", "\n\nuser", "é🙂"]


@dataclass
class PlayedTurn:
    """One turn of a script, and what the engine saw of it."""

    action: tuple[int, ...]
    feedback: object
    reward: float
    token_rewards: tuple[float, ...] | None
    is_cut: bool
    prompt: list[int] = field(default_factory=list)


class ScriptedEnv(AgentInstance):
    """Returns what the script says."""

    def __init__(self, first, turns):
        self.first, self.turns, self.played = first, turns, 0

    async def reset(self, *, seed=None, options=None):
        return self.first, {}

    async def step(self, action):
        turn = self.turns[self.played]
        assert action.token_ids == turn.action
        self.played += 1
        return StepResult(
            observation=turn.feedback,
            reward=turn.reward,
            token_rewards=turn.token_rewards,
            terminated=self.played == len(self.turns),
        )


class RecordingEngine:
    """Samples what the script says, and keeps what it was asked."""

    def __init__(self, turns):
        self.turns, self.played = turns, 0

    async def generate(self, request: GenerateRequest) -> Generation:
        turn = self.turns[self.played]
        turn.prompt = list(request.prompt_token_ids)
        self.played += 1
        return Generation(
            token_ids=turn.action,
            logprobs=tuple(-float(self.played) - i / 16 for i in range(len(turn.action))),
            finish_reason="length" if turn.is_cut else "stop",
            versions=(VersionSpan(self.played, len(turn.action)),),
        )

    async def publish(self, weights, version):
        raise AssertionError("nothing is published here")

    async def close(self):
        pass


def feedbacks(is_chat, vocabulary):
    texts = st.sampled_from(TEXTS)
    verbatim = st.builds(lambda a, b: Verbatim(a, Verbatim.data(b)), texts, texts)
    token_ids = st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=4)
    if not is_chat:
        return st.one_of(texts, verbatim, token_ids)
    message = st.builds(
        lambda role, content: {"role": role, "content": content}, st.sampled_from(["user", "tool"]), texts
    )
    return st.one_of(texts, texts, verbatim, token_ids, message, st.lists(message, max_size=3))


@st.composite
def scripts(draw, renderer):
    vocabulary = len(renderer.tokenizer)
    is_chat = renderer.template is not None
    turns = []
    for _ in range(draw(st.integers(1, 5))):
        action = draw(st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=6))
        if draw(st.booleans()):
            action += renderer.encoder.encode_text("<think>low</think> One.")
        if not (is_cut := draw(st.booleans())):
            action.append(draw(st.sampled_from(renderer.stop_token_ids)))
        rewards = st.sampled_from([0.0, 0.5, -2.0])
        count = draw(st.sampled_from([None, len(action), len(action) - 1]))
        token_rewards = None if count is None else tuple(draw(st.lists(rewards, min_size=count, max_size=count)))
        turns.append(
            PlayedTurn(tuple(action), draw(feedbacks(is_chat, vocabulary)), draw(rewards), token_rewards, is_cut)
        )
    return turns


async def play(renderer, turns):
    config = ExecutorConfig(max_length=100_000)
    env, engine = ScriptedEnv("Begin.", turns), RecordingEngine(turns)
    async with AgentExecutor(lambda: env, engine, renderer, config) as executor:
        return await executor.run_episode(Task(id="t"))


def check_record(episode, turns):
    """The promises of a token record, turn by turn."""
    assert len(episode.turns) == len(turns)
    masks = [np.zeros(len(record), dtype=bool) for record in episode.records]
    rewards = [np.zeros(len(record)) for record in episode.records]
    for number, (turn, script) in enumerate(zip(episode.turns, turns, strict=True)):
        record = episode.records[turn.record]
        action = slice(turn.action_start, turn.action_end)
        assert record.token_ids[: turn.action_start].tolist() == script.prompt
        assert tuple(record.token_ids[action].tolist()) == script.action
        assert record.sampled_logprobs[action].tolist() == [
            -float(number + 1) - i / 16 for i in range(len(script.action))
        ]
        assert set(record.versions[action].tolist()) == {number + 1}
        assert set(record.turn_index[turn.observation_start : turn.action_end].tolist()) == {number}
        assert turn.reward == script.reward
        assert turn.token_reward == sum(script.token_rewards or ())
        masks[turn.record][action] = True
        for index, reward in enumerate(script.token_rewards or ()):
            rewards[turn.record][turn.action_start + index] = reward
    for record, mask, reward in zip(episode.records, masks, rewards, strict=True):
        np.testing.assert_array_equal(record.action_mask, mask)
        np.testing.assert_array_equal(record.token_rewards, reward)
        np.testing.assert_array_equal(np.isnan(record.sampled_logprobs), ~mask)
        np.testing.assert_array_equal(record.versions == -1, ~mask)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_record_holds_what_was_read_and_sampled(make_renderer, renderers, kind, data):
    play_random_episode(make_renderer, renderers, kind, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "llama", "normalizing", "swallowing", "words"])
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_many_records_hold_what_was_read_and_sampled(make_renderer, renderers, kind, data):
    play_random_episode(make_renderer, renderers, kind, data)


def play_random_episode(make_renderer, renderers, kind, data):
    template = data.draw(st.sampled_from(TEMPLATES), label="template")
    on_rewrite = data.draw(st.sampled_from(["append", "fork"]), label="on_rewrite")
    key = (kind, template, on_rewrite)
    if key not in renderers:
        renderers[key] = make_renderer(kind, template, on_rewrite=on_rewrite)
    turns = data.draw(scripts(renderers[key]), label="turns")
    episode = asyncio.run(play(renderers[key], turns))
    assert episode.failure is None
    check_record(episode, turns)
    if on_rewrite == "append":
        assert len(episode.records) == 1


@pytest.fixture(scope="module")
def renderers():
    return {}


async def test_a_fork_keeps_every_sampled_token_in_one_record_only(make_renderer):
    """Three turns with thinking under a template that drops it: three records, each trained where it was sampled."""
    renderer = make_renderer(template="thinking", on_rewrite="fork")
    action = (*renderer.encoder.encode_text("<think>low</think>One."), renderer.stop_token_ids[0])
    turns = [PlayedTurn(action, "Go on.", 1.0, None, is_cut=False) for _ in range(3)]
    episode = await play(renderer, turns)
    check_record(episode, turns)
    assert [turn.record for turn in episode.turns] == [0, 1, 2]
    assert [record.num_action_tokens for record in episode.records] == [len(action)] * 3
    thinking = renderer.tokenizer.convert_tokens_to_ids("<think>")
    assert [record.token_ids.tolist().count(thinking) for record in episode.records] == [1, 1, 1]


async def test_a_conversation_that_a_template_refuses_fails_its_own_episode_by_name(make_renderer):
    renderer = make_renderer(template="alternating", eos="</s>")
    turns = [PlayedTurn((5, 6), {"role": "tool", "content": "low"}, 1.0, None, is_cut=True) for _ in range(2)]
    episode = await play(renderer, turns)
    assert episode.failure is not None
    assert (episode.failure.where, episode.failure.error) == ("render", "TemplateError")
    assert "roles user, assistant, tool" in episode.failure.message
