"""Where a reward's outputs land in an episode, and what becomes of those whose reward failed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from turngym.agents import Ending, Episode, Group
from turngym.envs import InvalidRewardError, Task
from turngym.envs.rewards import GroupReward, RewardFunction, RewardOutput, Trajectory
from turngym.trainer.advantages import group_advantages
from turngym.trainer.reward_scorer import RewardOn, RewardScorer


class ById(RewardFunction):
    """Gives what a table says for the episode's member, and for the turn where the table holds lists."""

    def __init__(self, table: dict[str, RewardOutput | Exception]) -> None:
        super().__init__()
        self.table = table

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        found = self.table[f"{trajectory.id}/{len(trajectory.turns)}"]
        if isinstance(found, Exception):
            raise found
        return found


async def score(
    reward: RewardFunction, *episodes: Episode, on: RewardOn = "episode", failed: Sequence[Episode] = ()
) -> Group:
    group = Group(
        task=Task(id="task", options={"prompt": "p", "label": "l"}),
        slot=0,
        size=len(episodes),
        episodes=episodes,
        failed=tuple(failed),
    )
    return await RewardScorer(reward, on=on).score(group, update=3)


async def test_a_reward_of_the_episode_is_added_to_its_last_turn_and_recorded_there(play, turn):
    output = RewardOutput(0.5, metadata={"length": 0.25, "why": "short"})
    group = await score(ById({"episode-0-0/2": output}), play(turn(reward=1.0), turn(reward=2.0)))
    first, last = group.episodes[0].turns
    assert (first.reward, last.reward) == (1.0, 2.5)
    assert "reward" not in first.info
    assert last.info["reward"] == {"name": "ById", "value": 0.5, "metadata": {"length": 0.25, "why": "short"}}
    assert (first.score, last.score) == (None, 0.5)


async def test_a_reward_of_turns_goes_to_each_its_own(play, turn):
    table: dict[str, RewardOutput | Exception] = {
        "episode-0-0/1": RewardOutput(0.25),
        "episode-0-0/2": RewardOutput(0.75, score=1.0),
    }
    group = await score(ById(table), play(turn(reward=1.0), turn(reward=2.0)), on="turn")
    assert [t.reward for t in group.episodes[0].turns] == [1.25, 2.75]
    assert [t.score for t in group.episodes[0].turns] == [0.25, 1.0]


async def test_token_rewards_of_an_episode_lie_on_its_action_tokens_across_turns_and_forks(play, turn):
    episode = play(
        turn(token_ids=[5, 6], observation=[1]),
        turn(token_ids=[7], observation=[2, 3], token_rewards=[0.5]),
        turn(token_ids=[8, 9], observation=[4], forks=True),
    )
    group = await score(ById({"episode-0-0/3": RewardOutput(0.9, token_rewards=[1, 2, 3, 4])}), episode)
    scored = group.episodes[0]
    assert [record.token_rewards.tolist() for record in scored.records] == [[0, 1, 2, 0, 0, 3.5], [0, 4, 0]]
    assert [t.token_reward for t in scored.turns] == [3.0, 3.5, 4.0]
    assert [t.reward for t in scored.turns] == [0.0, 0.0, 0.0], "the return uses the token rewards alone"
    assert scored.score == 0.9
    assert scored.turns[-1].info["reward"]["value"] == 0.9


async def test_the_credit_of_token_rewards_lands_on_exactly_their_tokens(play, turn):
    table: dict[str, RewardOutput | Exception] = {
        "episode-0-0/1": RewardOutput(1.0, token_rewards=[0.0, 2.0, -1.0]),
        "episode-0-1/1": RewardOutput(0.0, token_rewards=[0.0, 0.0, 0.0]),
    }
    episodes = [play(turn(token_ids=[5, 6, 7], observation=[1]), member=i) for i in range(2)]
    group = await score(ById(table), *episodes)
    turn_credit = group_advantages(group.episodes, estimator="rloo", credit="turn")
    assert [a[0].tolist() for a in turn_credit] == [[0, 0, 2, -1], [0, 0, 0, 0]]
    token_credit = group_advantages(group.episodes, estimator="rloo", credit="token")
    assert [a[0].tolist() for a in token_credit] == [[0, 1, 1, -1], [0, -1, -1, -1]]


async def test_the_environments_score_wins_over_a_reward_without_one(play, turn):
    episode = play(turn(reward=0.0))
    solved = replace(episode, turns=(replace(episode.turns[0], score=1.0),))
    group = await score(ById({"episode-0-0/1": RewardOutput(0.25)}), solved)
    assert group.episodes[0].score == 1.0
    group = await score(ById({"episode-0-0/1": RewardOutput(0.25, score=0.5)}), solved)
    assert group.episodes[0].score == 0.5


async def test_an_episode_whose_reward_failed_leaves_the_baseline_and_is_no_zero(play, turn):
    table: dict[str, RewardOutput | Exception] = {
        "episode-0-0/1": RewardOutput(1.0),
        "episode-0-1/1": OSError("the judge is away"),
    }
    group = await score(ById(table), play(turn()), play(turn(), member=1), failed=[])
    assert [e.member for e in group.episodes] == [0]
    (failed,) = group.failed
    assert failed.is_failed
    assert failed.ending is Ending.REWARD_FAILED
    assert failed.failure is not None
    assert (failed.failure.where, failed.failure.error) == ("reward", "RewardError")
    assert failed.failure.message == "ById raised OSError: the judge is away"
    assert group.is_short


@pytest.mark.parametrize(
    ("output", "on", "message"),
    [
        (
            RewardOutput(1.0, token_rewards=[1.0] * 4),
            "episode",
            "ById: episode-0-0: 4 token rewards for 2 action tokens; give one for each (the closing token may be left "
            "out)",
        ),
        (RewardOutput(1.0, token_rewards=[1.0] * 4), "turn", "4 token rewards for 2 action tokens"),
        (RewardOutput(1.0), "token", "it gave no token rewards, which --reward_on token needs; give one a token"),
    ],
)
async def test_an_output_that_breaks_the_contract_ends_the_run(play, turn, output, on: RewardOn, message: str):
    with pytest.raises(InvalidRewardError) as raised:
        await score(ById({"episode-0-0/1": output}), play(turn()), on=on)
    assert message in str(raised.value)


async def test_a_reward_too_large_for_float32_fails_its_episode_only(play, turn):
    table: dict[str, RewardOutput | Exception] = {
        "episode-0-0/1": RewardOutput(1e39),
        "episode-0-1/1": RewardOutput(1.0),
    }
    group = await score(ById(table), play(turn()), play(turn(), member=1))
    assert [e.member for e in group.episodes] == [1]
    assert group.failed[0].failure is not None
    assert group.failed[0].failure.message == "the reward is 1e+39; float32 must hold it"


async def test_episodes_without_turns_and_failed_ones_are_not_scored(play, turn):
    group = await score(ById({}), play(ending=Ending.MAX_LENGTH))
    assert group.episodes[0].reward == 0.0


class Ranked(GroupReward):
    """1 for the longest history of the group, and notes how many it saw."""

    def compute_rewards(self, trajectories: Sequence[Trajectory]) -> list[RewardOutput]:
        size = float(len(trajectories))
        return [RewardOutput(i / size, metadata={"seen": size, "update": t.update}) for i, t in enumerate(trajectories)]


async def test_a_group_reward_sees_the_siblings_turn_by_turn(play, turn):
    group = await score(Ranked(), play(turn(), turn()), play(turn(), member=1), on="turn")
    long, short = group.episodes
    assert [t.info["reward"]["metadata"] for t in long.turns] == [
        {"seen": 2.0, "update": 3},
        {"seen": 1.0, "update": 3},
    ]
    assert [t.reward for t in short.turns] == [0.5]


async def test_what_was_sampled_is_not_changed_by_scoring(play, turn):
    episode = play(turn(token_ids=[5, 6]))
    before = episode.records[0]
    group = await score(ById({"episode-0-0/1": RewardOutput(1.0, token_rewards=[1.0, 1.0])}), episode)
    after = group.episodes[0].records[0]
    assert before.token_rewards.tolist() == [0, 0, 0, 0]
    for name in ("token_ids", "action_mask", "sampled_logprobs", "versions", "turn_index"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
