"""Samples: what is trained of an episode, and what is refused."""

import numpy as np
import pytest
from turngym.envs.errors import ConfigError, RecordError
from turngym.envs.sampling import SamplingParams
from turngym.trainer.advantages import AdvantageConfig, group_advantages
from turngym.trainer.samples import samples_from_group, samples_from_groups

RAW = AdvantageConfig(estimator="reinforce", whiten=False)


def test_a_sample_carries_the_record_token_for_token(play, turn):
    episode = play(
        turn(reward=1.0, token_ids=[5, 6], logprobs=[-0.5, -0.25], sampling=SamplingParams(temperature=0.5)),
        turn(reward=2.0, token_ids=[7], logprobs=[-2.0], version=3),
        slot=4,
    )
    (sample,) = samples_from_groups([[episode]], RAW)
    assert sample.episode_id == "episode-4-0"
    assert sample.slot == 4
    assert sample.token_ids.tolist() == [1, 2, 5, 6, 1, 2, 7]
    assert sample.action_mask.tolist() == sample.loss_mask.tolist() == [False] * 2 + [True] * 2 + [False] * 2 + [True]
    assert sample.advantages.tolist() == [0, 0, 3, 3, 0, 0, 2]
    assert sample.temperatures.tolist() == [1, 1, 0.5, 0.5, 1, 1, 1]
    assert sample.versions.tolist() == [-1, -1, 0, 0, -1, -1, 3]
    assert sample.sampled_logprobs[sample.loss_mask].tolist() == [-0.5, -0.25, -2.0]
    assert sample.num_trained_tokens == 3


def test_each_sampled_token_of_a_fork_is_trained_exactly_once(play, turn):
    # The second record repeats the first action (5, 6) as observation.
    episode = play(
        turn(token_ids=[5, 6]), turn(token_ids=[7], observation=[1, 5, 6, 2], forks=True), turn(token_ids=[8, 9])
    )
    samples = samples_from_groups([[episode]], RAW)
    assert [s.token_ids[s.loss_mask].tolist() for s in samples] == [[5, 6], [7, 8, 9]]
    assert {s.episode_id for s in samples} == {"episode-0-0"}


def test_a_record_without_action_tokens_makes_no_sample(play, turn):
    assert samples_from_groups([[play(turn(token_ids=[])), play()], []], RAW) == []


def test_whitening_is_over_all_groups_of_the_update(play, turn):
    groups = [[play(turn(reward=r), slot=slot)] for slot, r in enumerate([1.0, 2.0, 6.0])]
    samples = samples_from_groups(groups, AdvantageConfig(estimator="reinforce"))
    found = [s.advantages[2] for s in samples]
    np.testing.assert_allclose(found, np.array([-2, -1, 3]) / (14 / 3) ** 0.5, rtol=1e-12)


def test_a_greedy_turn_is_refused_for_training(play, turn):
    episode = play(turn(), turn(sampling=SamplingParams(temperature=0)))
    with pytest.raises(ConfigError, match=r"turn 1 of episode-0-0 was sampled at temperature 0, .*temperature > 0"):
        samples_from_groups([[episode]], RAW)


def test_a_greedy_turn_without_tokens_teaches_nothing_and_harms_nothing(play, turn):
    episode = play(turn(), turn(token_ids=[], sampling=SamplingParams(temperature=0)))
    assert len(samples_from_groups([[episode]], RAW)) == 1


def test_a_truncated_turn_needs_its_kept_sets(play, turn):
    episode = play(turn(sampling=SamplingParams(top_p=0.9)))
    with pytest.raises(ConfigError, match=r"turn 0 of episode-0-0 was sampled with top_p=0.9, top_k=0, .*no kept sets"):
        samples_from_groups([[episode]], RAW)


def test_kept_sets_go_with_their_tokens(play, turn):
    sampling = SamplingParams(top_k=2)
    episode = play(turn(token_ids=[5]), turn(token_ids=[6, 7], sampling=sampling, kept=((6, 5), (7, 5))))
    (sample,) = samples_from_groups([[episode]], RAW)
    assert sample.kept_token_ids is not None
    assert [ids.tolist() for ids in sample.kept_token_ids] == [[], [6, 5], [7, 5]]


def test_a_token_outside_its_own_kept_set_is_refused(play, turn):
    episode = play(turn(token_ids=[6], sampling=SamplingParams(top_k=2), kept=((4, 5),)))
    with pytest.raises(RecordError, match="turn 0 of episode-0-0: token 6 was sampled and is not in its own kept set"):
        samples_from_groups([[episode]], RAW)


def test_a_token_with_nothing_before_it_is_refused(play, turn):
    with pytest.raises(RecordError, match="episode-0-0: the first token is trained, and nothing before it predicts it"):
        samples_from_groups([[play(turn(observation=[]))]], RAW)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_advantage_that_is_not_finite_is_refused_by_name(play, turn, value):
    episode = play(turn(reward=1.0))
    ((advantages,),) = group_advantages([episode], estimator="reinforce")
    advantages[2] = value
    with pytest.raises(RecordError, match=r"episode-0-0: advantages of token 2 is (nan|inf); it must be finite"):
        samples_from_group([episode], [[advantages]])


def test_an_engine_logprob_that_is_not_finite_is_refused_by_name(play, turn):
    episode = play(turn(logprobs=[-1.0, float("-inf")]))
    with pytest.raises(RecordError, match="episode-0-0: sampled_logprobs of token 3 is -inf; it must be finite"):
        samples_from_groups([[episode]], RAW)
