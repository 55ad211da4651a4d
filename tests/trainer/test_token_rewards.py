"""Golden table: rewards on single tokens, from the reward function to what the loss multiplies each token by."""

from collections.abc import Sequence

import numpy as np
import pytest
from turngym.agents import AgentExecutor, Episode, Renderer, ScriptedEngine
from turngym.agents.group import Group
from turngym.envs import AgentInstance, StepResult, Task
from turngym.envs.rewards import RewardedInstance, RewardFunction, RewardOutput
from turngym.trainer.advantages import Credit, group_advantages
from turngym.trainer.reward_scorer import RewardScorer
from turngym.trainer.tiny_tokenizer import END, build_tokenizer

TOKENIZER = build_tokenizer(["abc."] * 2, vocab_size=262, max_length=128)
A, B, C, E = (TOKENIZER.get_vocab()[token] for token in ("a", "b", "c", END))
PER_TOKEN = {A: 1.0, B: -0.5, C: 0.25}
TASK = Task(id="t", options={"prompt": "?"})


class TwoTurns(AgentInstance):
    """Earns nothing in the first turn; in the second 2 for a c at the beginning, else 1."""

    async def reset(self, *, seed=None, options=None):
        self.num_turns = 0
        return "?", {}

    async def step(self, action):
        self.num_turns += 1
        is_last = self.num_turns == 2
        earned = (2.0 if action.text.startswith("c") else 1.0) if is_last else 0.0
        return StepResult(observation=".", reward=earned, terminated=is_last)


class Letters(RewardFunction):
    """Each letter's own reward; the closing token is left out. Its number, 0.75, is recorded and not learned from."""

    def compute_reward(self, trajectory):
        *letters, _ = trajectory.token_ids
        return RewardOutput(reward=0.75, token_rewards=[PER_TOKEN[token] for token in letters])


async def play_group() -> Group:
    """Two episodes of two turns: `ab`, `c` and `a`, `bc`, their token rewards given inside of the environment."""
    return await _play(lambda: RewardedInstance(TwoTurns(), Letters(), on="token"))


async def play_then_score() -> Group:
    """The same episodes, played without a reward and scored afterwards, as the trainer does it."""
    return await RewardScorer(Letters(), on="token").score(await _play(TwoTurns), update=0)


async def _play(env) -> Group:
    script = {"0000-00000000-0000-00": [[A, B, E], [C, E]], "0000-00000000-0001-00": [[A, E], [B, C, E]]}
    async with AgentExecutor(env, ScriptedEngine(script), Renderer(TOKENIZER)) as executor:
        group = await executor.run_group(TASK, 2)
    assert not group.failed
    return group


def by_turn(episode: Episode, values: Sequence[float] | np.ndarray) -> list[list[float]]:
    """An array over the record as lists over the action tokens of each turn; zero everywhere else."""
    (record,) = episode.records
    assert not np.asarray(values)[~record.action_mask].any()
    return [np.asarray(values)[turn.action_start : turn.action_end].tolist() for turn in episode.turns]


GOLDEN: dict[Credit, list[list[list[float]]]] = {
    # credit="turn": the turns' own rewards make the returns, and each token's reward is added to it alone.
    #   G = r[t] + G[t+1]:  2, 2 and 1, 1.   Less the sibling's:  1, 1 and -1, -1.
    #       a      b      e          c      e
    "turn": [
        [[1 + 1, 1 - 0.5, 1 + 0], [1 + 0.25, 1 + 0]],
        #   a      e          b         c          e
        [[-1 + 1, -1 + 0], [-1 - 0.5, -1 + 0.25, -1 + 0]],
    ],
    # credit="token": what is still to come from each token on, less the sibling's return at the turn's beginning.
    #   turn 1:  2 + 0.25 = 2.25        and  1 - 0.5 + 0.25 = 0.75
    #   turn 0:  1 - 0.5 + 2.25 = 2.75  and  1 + 0.75 = 1.75
    #             a                 b                     e                        c              e
    "token": [
        [[2.75 - 1.75, (2.75 - 1) - 1.75, (2.75 - 0.5) - 1.75], [2.25 - 0.75, (2.25 - 0.25) - 0.75]],
        #     a                 e                     b                c                       e
        [[1.75 - 2.75, (1.75 - 1) - 2.75], [0.75 - 2.25, (0.75 + 0.5) - 2.25, (0.75 + 0.25) - 2.25]],
    ],
    # credit="episode": one sum for all, 2.75 and 1.75.
    "episode": [[[1, 1, 1], [1, 1]], [[-1, -1], [-1, -1, -1]]],
}


@pytest.mark.parametrize("play", [play_group, play_then_score])
async def test_token_rewards_stand_on_their_tokens_in_the_record(play):
    group = await play()
    first, second = group.episodes
    (record,) = first.records
    assert by_turn(first, np.where(record.action_mask, record.token_ids, 0)) == [[A, B, E], [C, E]]
    assert by_turn(first, record.token_rewards) == [[1, -0.5, 0], [0.25, 0]]
    assert by_turn(second, second.records[0].token_rewards) == [[1, 0], [-0.5, 0.25, 0]]
    assert [turn.reward for turn in (*first.turns, *second.turns)] == [0, 2, 0, 1]
    assert [turn.token_reward for turn in (*first.turns, *second.turns)] == [0.5, 0.25, 1, -0.25]
    assert [turn.info["reward"]["value"] for turn in first.turns] == [0.75, 0.75]
    assert (first.reward, second.reward, first.score) == (2.75, 1.75, 0.75)


@pytest.mark.parametrize("play", [play_group, play_then_score])
@pytest.mark.parametrize("credit", GOLDEN)
async def test_golden_table_of_advantages(play, credit):
    episodes = (await play()).episodes
    found = group_advantages(episodes, estimator="rloo", credit=credit)
    tables = [by_turn(episode, values) for episode, (values,) in zip(episodes, found, strict=True)]
    assert tables == GOLDEN[credit]
