"""Micro-batches: golden layout, budget, order, and nothing lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.envs.sampling import SamplingParams
from turngym.trainer.advantages import AdvantageConfig
from turngym.trainer.packing import collate, micro_batches
from turngym.trainer.samples import samples_from_groups

RAW = AdvantageConfig(estimator="reinforce", whiten=False)


def test_golden_layout_of_two_samples(play, turn):
    group = [
        play(turn(reward=1.0, token_ids=[5, 6]), turn(reward=0.0, token_ids=[7], observation=[3])),
        play(turn(reward=2.0, token_ids=[8]), turn(token_ids=[], observation=[3, 3, 3]), member=1),
    ]
    batch = collate(samples_from_groups([group], RAW), weights={"episode-0-0": 0.25, "episode-0-1": 0.5})
    # Each row ends before its last trained token; position c predicts the token at c + 1.
    assert batch.token_ids.tolist() == [[1, 2, 5, 6, 3], [1, 2, 0, 0, 0]]
    assert batch.rows.tolist() == [0, 0, 0, 1]
    assert batch.columns.tolist() == [1, 2, 4, 1]
    assert batch.targets.tolist() == [5, 6, 7, 8]
    assert batch.advantages.tolist() == [1, 1, 0, 2]
    assert batch.weights.tolist() == [0.25, 0.25, 0.25, 0.5]
    assert batch.kept_counts.tolist() == [0, 0, 0, 0]
    assert batch.num_tokens == 4


def test_kept_sets_are_laid_out_one_after_another(play, turn):
    sampling = SamplingParams(top_k=3)
    group = [
        play(turn(token_ids=[5]), turn(token_ids=[6, 7], sampling=sampling, kept=((6, 4), (7, 5, 4)))),
        play(turn(token_ids=[8]), member=1),
    ]
    batch = collate(samples_from_groups([group], RAW), weights={"episode-0-0": 1.0, "episode-0-1": 1.0})
    assert batch.kept_counts.tolist() == [0, 2, 3, 0]
    assert batch.kept_ids.tolist() == [6, 4, 7, 5, 4]


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40), max_tokens=st.integers(1, 200))
def test_every_sample_is_in_one_micro_batch_within_the_budget(play, turn, lengths, max_tokens):
    group = [play(turn(token_ids=[5] * n), member=i) for i, n in enumerate(lengths)]
    weights = {episode.episode_id: float(i) for i, episode in enumerate(group)}
    batches = micro_batches(samples_from_groups([group], RAW), max_tokens=max_tokens, weights=weights)
    for batch in batches:
        assert batch.token_ids.numel() <= max_tokens or len(batch.token_ids) == 1
    found = np.concatenate([batch.weights.numpy() for batch in batches])
    assert sorted(found.tolist()) == sorted(float(i) for i, n in enumerate(lengths) for _ in range(n))


def test_like_lengths_lie_together_so_that_little_is_padded(play, turn):
    lengths = [int(n) for n in np.random.default_rng(0).integers(20, 120, size=256)]
    group = [play(turn(token_ids=[5] * n), member=i) for i, n in enumerate(lengths)]
    weights = {episode.episode_id: 1.0 for episode in group}
    batches = micro_batches(samples_from_groups([group], RAW), max_tokens=2048, weights=weights)
    tokens = sum(n + 1 for n in lengths)
    assert sum(batch.token_ids.numel() for batch in batches) < 1.1 * tokens


def test_samples_without_trained_tokens_are_left_out():
    assert micro_batches([], max_tokens=10, weights={}) == []


def test_weights_of_another_step_are_an_error(play, turn):
    with pytest.raises(KeyError):
        micro_batches(samples_from_groups([[play(turn())]], RAW), max_tokens=10, weights={})
