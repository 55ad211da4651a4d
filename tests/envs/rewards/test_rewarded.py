import asyncio
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.agents import AgentExecutor, Ending, ExecutorConfig, Renderer, ScriptedEngine
from turngym.envs import (
    Action,
    AgentInstance,
    ConfigError,
    EnvFactory,
    InvalidRewardError,
    InvalidStepError,
    PolicyFault,
    RewardError,
    StepResult,
    Task,
    TimeLimit,
    Verbatim,
    make,
    register,
    task_source,
)
from turngym.envs.rewards import (
    CompositeReward,
    GroupReward,
    LengthReward,
    NormalizedReward,
    RewardedInstance,
    RewardFunction,
    RewardOutput,
    Trajectory,
)
from turngym.trainer.tiny_tokenizer import build_tokenizer

FINITE = st.floats(-100, 100)
TASK = {"prompt": "Count.", "label": "3", "colour": "red"}


class Count(AgentInstance):
    """Terminates at its third step; earns 1, 2, 4."""

    max_turns: int | None = None

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.num_steps = 0

    async def reset(self, *, seed=None, options=None) -> Any:
        self.num_steps = 0
        return "Count.", {"seed": seed}

    async def step(self, action):
        self.num_steps += 1
        fields = {"reward": 2.0 ** (self.num_steps - 1), "terminated": self.num_steps == 3} | self.fields
        return StepResult(observation=f"after {self.num_steps}", **fields)


class Short(Count):
    max_turns = 2


class Seen(RewardFunction):
    """Gives what it is told to, and keeps what it saw."""

    def __init__(self, given: Any = 10.0) -> None:
        super().__init__("seen")
        self.given = given
        self.trajectories: list[Trajectory] = []
        self.num_started = 0

    async def start(self):
        self.num_started += 1

    async def compute_reward(self, trajectory: Trajectory) -> Any:
        self.trajectories.append(trajectory)
        given = self.given(trajectory) if callable(self.given) else self.given
        if isinstance(given, Exception):
            raise given
        return given


class Best(GroupReward):
    def compute_rewards(self, trajectories):
        return [0.0] * len(trajectories)


async def play(env: AgentInstance, *actions: str | Action) -> list[StepResult]:
    await env.reset(seed=1, options=TASK)
    results = []
    for action in actions:
        result = await env.step(Action(text=action) if isinstance(action, str) else action)
        assert isinstance(result, StepResult)
        results.append(result)
    return results


# --- What is scored, and where it goes --------------------------------------------------------------------------------


async def test_a_reward_on_the_episode_is_added_to_the_step_that_ends_it():
    reward = Seen()
    first, second, third = await play(RewardedInstance(Count(), reward), "one", "two", "three")
    assert (first.reward, second.reward, third.reward) == (1.0, 2.0, 14.0)
    assert (first.info, second.info) == ({}, {})
    assert third.info == {"reward": {"name": "seen", "value": 10.0, "metadata": {}}}
    assert (first.score, second.score, third.score) == (None, None, 1.0)
    (seen,) = reward.trajectories
    assert (seen.prompt, seen.response) == ("Count.", "one\ntwo\nthree")
    assert (seen.label, seen.columns) == ("3", TASK)
    assert [(t.observation, t.response, t.feedback, t.reward) for t in seen.turns] == [
        ("Count.", "one", "after 1", 1.0),
        ("after 1", "two", "after 2", 2.0),
        ("after 2", "three", "after 3", 4.0),
    ]
    assert [(m["role"], m["content"]) for m in seen.messages] == [
        ("user", "Count."),
        ("assistant", "one"),
        ("user", "after 1"),
        ("assistant", "two"),
        ("user", "after 2"),
        ("assistant", "three"),
    ]


async def test_a_reward_on_turns_scores_each_response_against_the_observation_that_it_answered():
    reward = Seen(lambda trajectory: len(trajectory.turns) * 100.0)
    results = await play(
        RewardedInstance(Count(), reward, "turn"), "one", Action(text="two", token_ids=(7, 8)), "three"
    )
    assert [result.reward for result in results] == [101.0, 202.0, 304.0]
    assert [(t.prompt, t.response, t.token_ids, len(t.turns), len(t.messages)) for t in reward.trajectories] == [
        ("Count.", "one", (), 1, 2),
        ("after 1", "two", (7, 8), 2, 4),
        ("after 2", "three", (), 3, 6),
    ]


async def test_an_empty_response_stays_empty():
    reward = Seen()
    await play(RewardedInstance(Count(), reward, on="turn"), "one", "", "three")
    assert [trajectory.response for trajectory in reward.trajectories] == ["one", "", "three"]


async def test_an_episode_of_a_limited_environment_is_scored_where_it_is_truncated():
    reward = Seen()
    results = await play(make(f"{__name__}:Short", reward=reward), "one", "two")
    assert [(result.reward, result.truncated) for result in results] == [(1.0, False), (12.0, True)]


async def test_a_reward_inside_of_a_limit_never_sees_it():
    reward = Seen()
    await play(TimeLimit(RewardedInstance(Count(), reward), 2), "one", "two")
    assert reward.trajectories == []


async def test_messages_keep_their_roles_and_other_observations_are_text():
    class Chat(Count):
        async def reset(self, *, seed=None, options=None) -> Any:
            self.num_steps = 0
            return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}], {}

        async def step(self, action):
            result = await super().step(action)
            assert isinstance(result, StepResult)
            observation: Any = [{"role": "tool", "content": "42"}, Verbatim("on", Verbatim.data("ly")), [5, 6]]
            return StepResult(observation=observation[self.num_steps - 1], terminated=result.terminated)

    reward = Seen()
    await play(RewardedInstance(Chat(), reward), "one", "two", "three")
    (seen,) = reward.trajectories
    assert seen.prompt == "Be brief.\nGo."
    assert [turn.feedback for turn in seen.turns] == ["42", "only", "5\n6"]
    assert [message["role"] for message in seen.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]


async def test_the_second_episode_of_an_instance_knows_nothing_of_the_first():
    reward = Seen()
    env = RewardedInstance(Count(), reward)
    await play(env, "one", "two", "three")
    await play(env, "four", "five", "six")
    assert reward.trajectories[1].response == "four\nfive\nsix"
    assert len(reward.trajectories[1].messages) == 6
    assert reward.num_started == 1


@pytest.mark.parametrize(("own", "output", "expected"), [
    (None, RewardOutput(0.25), 0.25),
    (None, RewardOutput(7.0), 1.0),
    (None, RewardOutput(7.0, score=0.5), 0.5),
    (0.0, RewardOutput(7.0, score=0.5), 0.5),
    (0.0, RewardOutput(7.0), 0.0),
])  # fmt: skip
async def test_the_rewards_own_score_counts_then_the_environments_then_the_reward(own, output, expected):
    (result,) = await play(RewardedInstance(Count(terminated=True, score=own), Seen(output)), "one")
    assert result.score == expected


async def test_an_environments_own_reward_in_info_is_kept_on_every_turn():
    env = RewardedInstance(Count(info={"reward": "mine", "a": 1}), Seen(RewardOutput(1.0, metadata={"part": 0.5})))
    first, _, third = await play(env, "one", "two", "three")
    assert first.info == {"env_reward": "mine", "a": 1}
    said = {"name": "seen", "value": 1.0, "metadata": {"part": 0.5}}
    assert third.info == {"env_reward": "mine", "a": 1, "reward": said}


@given(st.lists(FINITE, min_size=1, max_size=5), FINITE, st.sampled_from(["episode", "turn"]))
def test_every_turn_keeps_what_its_environment_gave(earned, value, on):
    class Pays(Count):
        async def step(self, action):
            self.num_steps += 1
            is_last = self.num_steps == len(earned)
            return StepResult(observation="", reward=earned[self.num_steps - 1], terminated=is_last, score=1.0)

    results = asyncio.run(play(RewardedInstance(Pays(), Seen(value), on), *["a"] * len(earned)))
    added = [result.reward - own for result, own in zip(results, earned, strict=True)]
    assert added == pytest.approx([value if on == "turn" else 0.0] * (len(earned) - 1) + [value])


# --- Token rewards ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "given", "expected"), [
    (None, [0.5, 0.0, 1.0], (0.5, 0.0, 1.0)),
    (None, [0.5, 0.0], (0.5, 0.0)),
    ([1.0, 2.0, 3.0], [0.5, 0.0], (1.5, 2.0, 3.0)),
    ([1.0, 2.0], [0.5, 0.0, 1.0], (1.5, 2.0, 1.0)),
])  # fmt: skip
@pytest.mark.parametrize("on", ["turn", "token"])
async def test_token_rewards_are_added_to_the_steps_own_and_the_number_is_only_recorded(on, own, given, expected):
    env = RewardedInstance(Count(token_rewards=own), Seen(RewardOutput(0.75, token_rewards=given)), on)
    (result,) = await play(env, Action(text="ab", token_ids=(4, 5, 6)))
    assert tuple(result.token_rewards or ()) == expected
    assert (result.reward, result.score, result.info["reward"]["value"]) == (1.0, 0.75, 0.75)


async def test_token_rewards_on_an_episode_of_one_turn_reach_its_tokens():
    env = make("SingleTurn-v0", reward=Seen(RewardOutput(0.5, token_rewards=[0.25, 0.25])))
    (result,) = await play(env, Action(text="ab", token_ids=(4, 5)))
    assert (result.token_rewards, result.reward) == ((0.25, 0.25), 0.0)


async def test_token_rewards_on_an_episode_of_several_turns_are_refused():
    env = RewardedInstance(Count(), Seen(RewardOutput(0.5, token_rewards=[0.25] * 3)))
    with pytest.raises(InvalidRewardError) as caught:
        await play(env, "one", "two", "three")
    assert str(caught.value) == (
        "seen: it gave token rewards for an episode of 3 turns, and the turns before the last are over; use "
        "reward_on='turn', or give the reward to the trainer: Trainer(reward=...)"
    )


@pytest.mark.parametrize("count", [1, 4])
async def test_token_rewards_of_another_length_are_refused(count):
    env = RewardedInstance(Count(), Seen(RewardOutput(0.0, token_rewards=[1.0] * count)), "turn")
    with pytest.raises(InvalidRewardError) as caught:
        await play(env, Action(text="ab", token_ids=(4, 5, 6)))
    assert str(caught.value) == (
        f"seen: {count} token rewards for 3 action tokens; give one for each (the closing token may be left out)"
    )


async def test_a_reward_on_tokens_must_give_token_rewards():
    with pytest.raises(InvalidRewardError, match=r"^seen: it gave no token rewards, and reward_on='token' needs one"):
        await play(RewardedInstance(Count(), Seen(), "token"), "one")


# --- Failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "kind", "message"), [
    (OSError("no disk"), RewardError, "seen raised OSError: no disk"),
    (float("nan"), RewardError, "seen: reward is nan; it must be finite"),
    ("high", InvalidRewardError, "seen: reward is str 'high'; it must be one number"),
])  # fmt: skip
async def test_a_reward_that_fails_raises_out_of_step(given, kind, message):
    with pytest.raises(RewardError) as caught:
        await play(RewardedInstance(Count(), Seen(given), "turn"), "one")
    assert type(caught.value) is kind
    assert str(caught.value) == message


async def test_a_reward_that_hangs_is_given_up_on():
    class Hangs(Seen):
        async def compute_reward(self, trajectory):
            await asyncio.Event().wait()

    with pytest.raises(RewardError) as caught:
        await play(RewardedInstance(Count(), Hangs(), "turn", timeout_s=0.01), "one")
    assert str(caught.value) == "seen took longer than 0.01 s"


async def test_a_fault_of_the_policy_passes_and_is_not_scored():
    class Faulty(Count):
        async def step(self, action):
            raise PolicyFault("no", reward=-1.0)

    reward = Seen()
    with pytest.raises(PolicyFault, match="no"):
        await play(RewardedInstance(Faulty(), reward), "one")
    assert reward.trajectories == []


@pytest.mark.parametrize("returned", ["prompt", (b"prompt", {})])
async def test_what_reset_may_not_return_is_still_said_by_name(returned):
    class Wrong(Count):
        async def reset(self, *, seed=None, options=None):
            return returned

    with pytest.raises(InvalidStepError, match=r"^Wrong: "):
        await RewardedInstance(Wrong(), Seen()).reset()


@pytest.mark.parametrize("reward", [
    Best(),
    CompositeReward([(LengthReward(), 1.0), (Best(), 1.0)]),
    NormalizedReward(LengthReward()),
    lambda prompts, completions: [0.0 for _ in completions],
])  # fmt: skip
def test_a_reward_that_compares_a_groups_episodes_is_refused(reward):
    with pytest.raises(ConfigError, match="compares the episodes of a group, and an environment sees one of them"):
        RewardedInstance(Count(), reward)


def test_a_composite_of_rewards_of_one_episode_is_taken():
    assert RewardedInstance(Count(), CompositeReward([(LengthReward(), 1.0)])).reward.name == "CompositeReward"


def test_another_place_is_refused():
    with pytest.raises(ConfigError) as caught:
        make("SingleTurn-v0", reward=Seen(), reward_on="step")
    assert str(caught.value) == "reward_on='step'; choose one of episode, turn, token"


# --- make, task_source, EnvFactory ------------------------------------------------------------------------------------


async def test_make_takes_functions_and_names():
    for reward in ("check_answer", lambda response, label: float(response == label)):
        (result,) = await play(make("SingleTurn-v0", reward=reward), "3")
        assert (result.reward, result.score, result.terminated) == (1.0, 1.0, True)


async def test_instances_that_name_a_reward_share_it():
    first, second = (make("SingleTurn-v0", reward="LengthReward") for _ in range(2))
    assert getattr(first, "env").reward is getattr(second, "env").reward  # noqa: B009 - the wrapper's own fields


def test_an_attached_reward_lifts_the_range_that_a_turn_may_earn():
    env = make("Math-v0", reward="check_answer")
    assert env.spec is not None
    assert env.spec.reward_range == (float("-inf"), float("inf"))
    assert repr(env).startswith("<OrderEnforcing<RewardedInstance<")


def test_a_place_without_a_reward_is_refused():
    with pytest.raises(ConfigError, match=r"^reward_on='turn' without a reward; give reward= too$"):
        make("SingleTurn-v0", reward_on="turn")


def test_the_tasks_have_nothing_to_do_with_the_reward():
    tasks = task_source("Math-v0", level=1, reward="check_answer", reward_on="turn")
    assert tasks.task(0) == task_source("Math-v0", level=1).task(0)


def test_an_environment_that_has_an_argument_reward_gets_it():
    class Own(Count):
        def __init__(self, reward: float = 0.0) -> None:
            super().__init__(reward=reward)

    assert getattr(make(_registered(Own), reward=3.0).unwrapped, "fields") == {"reward": 3.0}  # noqa: B009


async def test_a_registered_environment_may_name_its_reward():
    (result,) = await play(make(_registered(Count, kwargs={"reward": Seen(), "reward_on": "turn"})), "one")
    assert result.reward == 11.0


def _registered(kind: type[AgentInstance], **fields: Any) -> str:
    register("test/Rewarded-v0", entry_point=kind, **fields)
    return "test/Rewarded-v0"


async def test_a_factory_with_a_reward_can_be_sent_to_another_process():
    factory = EnvFactory(id="SingleTurn-v0", kwargs={"reward": LengthReward(target=1), "reward_on": "turn"})
    (result,) = await play(pickle.loads(pickle.dumps(factory))(), "3")
    assert result.reward == 1.0


# --- With the executor ------------------------------------------------------------------------------------------------


def executor(reward: Any, actions: list[str], **config: Any) -> AgentExecutor:
    tokenizer = build_tokenizer(["Count. after 123"] * 4, vocab_size=300, max_length=512)
    return AgentExecutor(
        lambda: RewardedInstance(Count(), reward),
        ScriptedEngine(actions, tokenizer),
        Renderer(tokenizer),
        ExecutorConfig(**config),
    )


async def test_an_episode_whose_reward_fails_is_played_again_and_is_no_zero():
    outcomes: list[Any] = [OSError("busy"), 0.5]
    async with executor(Seen(lambda _: outcomes.pop(0)), ["1", "2", "3"]) as playing:
        group = await playing.run_group(Task(id="t", options=TASK), 1)
    (failed,), (episode,) = group.failed, group.episodes
    assert failed.failure is not None
    assert (failed.failure.kind, failed.failure.where, failed.failure.error) == ("infra", "step", "RewardError")
    assert failed.failure.message == "seen raised OSError: busy"
    assert (episode.attempt, episode.reward, episode.score) == (1, 7.5, 0.5)
    assert episode.turns[-1].info["reward"] == {"name": "seen", "value": 0.5, "metadata": {}}


async def test_an_episode_that_the_executors_own_limit_ends_has_no_reward_on_it():
    reward = Seen()
    async with executor(reward, ["1", "2", "3"], max_turns=2) as playing:
        episode = await playing.run_episode(Task(id="t", options=TASK))
    assert (episode.ending, episode.reward, reward.trajectories) == (Ending.MAX_TURNS, 3.0, [])


async def test_rewards_work_in_worker_processes():
    tokenizer = build_tokenizer(["Count. after 123"] * 4, vocab_size=300, max_length=512)
    factory = EnvFactory(id="SingleTurn-v0", kwargs={"reward": "check_answer"})
    config = ExecutorConfig(env_workers=1)
    async with AgentExecutor(factory, ScriptedEngine(["3"], tokenizer), Renderer(tokenizer), config) as playing:
        episode = await playing.run_episode(Task(id="t", options=TASK))
    assert (episode.reward, episode.score) == (1.0, 1.0)
