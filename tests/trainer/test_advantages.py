"""Advantages against numbers worked out by hand, and the rules that hold for any numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.agents.episode import Ending, Failure
from turngym.envs.errors import ConfigError, RecordError
from turngym.trainer.advantages import AdvantageConfig, group_advantages, turn_returns, whiten

ESTIMATORS = ["reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo"]
BASELINED = ESTIMATORS[1:]


def per_turn(episodes, **options):
    """The advantage of each turn's first action token."""
    return [
        [float(arrays[turn.record][turn.action_start]) for turn in episode.turns]
        for episode, arrays in zip(episodes, group_advantages(episodes, **options), strict=True)
    ]


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # Rewards 1, 2, 6: mean 3; means of the others 4, 3.5, 1.5; deviation sqrt((4 + 1 + 9) / 2) = sqrt(7).
        ("reinforce", [1, 2, 6]),
        ("reinforce_baseline", [-2, -1, 3]),
        ("dr_grpo", [-2, -1, 3]),
        ("rloo", [-3, -1.5, 4.5]),
        ("group_norm", [-2 / (7**0.5 + 1e-9), -1 / (7**0.5 + 1e-9), 3 / (7**0.5 + 1e-9)]),
    ],
)
@pytest.mark.parametrize("credit", ["episode", "turn", "token"])
def test_each_estimator_gives_the_numbers_worked_out_by_hand(play, turn, estimator, credit, expected):
    group = [play(turn(reward=r), member=i) for i, r in enumerate([1.0, 2.0, 6.0])]
    found = per_turn(group, estimator=estimator, credit=credit)
    np.testing.assert_allclose(np.ravel(found), expected, rtol=1e-15)


@pytest.mark.parametrize(
    ("credit", "tokens"),
    [
        # Turn 0 earns 1 and (0.5, 0.25) on its tokens, turn 1 earns 2 and (0, -1); discount 0.5.
        ("episode", [0, 0, 2.25, 2.25, 0, 0, 2.25, 2.25]),  # 1.75 + 0.5 * 1
        ("turn", [0, 0, 2.5, 2.25, 0, 0, 2, 1]),  # returns 1 + 0.5 * 2 and 2, plus each token's own reward
        ("token", [0, 0, 2.25, 1.75, 0, 0, 1, 1]),  # what is still to come, from each token on
    ],
)
def test_golden_table_of_two_turns_with_token_rewards(play, turn, credit, tokens):
    episode = play(turn(reward=1.0, token_rewards=[0.5, 0.25]), turn(reward=2.0, token_rewards=[0.0, -1.0]))
    ((found,),) = group_advantages([episode], estimator="reinforce", credit=credit, discount=0.5)
    assert found.tolist() == tokens


def test_token_rewards_have_no_baseline_with_turn_credit_and_one_with_token_credit(play, turn):
    group = [play(turn(reward=1.0, token_rewards=[0.5, 0.25])), play(turn(reward=4.0), member=1)]
    (by_turn,), _ = group_advantages(group, estimator="rloo", credit="turn")
    assert by_turn.tolist() == [0, 0, 1 - 4 + 0.5, 1 - 4 + 0.25]
    (by_token,), _ = group_advantages(group, estimator="rloo", credit="token")
    assert by_token.tolist() == [0, 0, 1.75 - 4, 1.25 - 4]


def test_token_rewards_may_leave_out_the_closing_token(play, turn):
    episode = play(turn(reward=1.0, token_ids=[5, 6, 7], token_rewards=[0.5, 0.25]))
    ((found,),) = group_advantages([episode], estimator="reinforce", credit="turn")
    assert found.tolist() == [0, 0, 1.5, 1.25, 1]


@pytest.mark.parametrize(
    ("estimator", "ended", "expected"),
    [
        # Returns per turn: (6, 5, 3), (4, 2), (2). Turn 1 compares 5, 2 and, with "zero", 0; turn 2 3, 0, 0 or only 3.
        ("rloo", "zero", [[3, 4, 3], [0, -0.5], [-3]]),
        ("rloo", "reached", [[3, 3, 3], [0, -3], [-3]]),
        ("dr_grpo", "zero", [[2, 5 - 7 / 3, 2], [0, 2 - 7 / 3], [-2]]),
        ("dr_grpo", "reached", [[2, 1.5, 0], [0, -1.5], [-2]]),
        # Deviations with "reached": 2 in turn 0, 1.5 * sqrt(2) in turn 1, none in turn 2.
        ("group_norm", "reached", [[1, 0.5**0.5, 0], [0, -(0.5**0.5)], [-1]]),
    ],
)
def test_a_turn_is_compared_with_the_same_turn_of_its_siblings(play, turn, estimator, ended, expected):
    rewards = [[1, 2, 3], [2, 2], [2]]
    group = [play(*(turn(reward=float(r)) for r in row), member=i) for i, row in enumerate(rewards)]
    found = per_turn(group, estimator=estimator, credit="turn", ended=ended)
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, rtol=1e-8, atol=1e-15)


def test_episode_credit_puts_one_number_on_all_tokens(play, turn):
    group = [play(turn(reward=1.0), turn(reward=2.0)), play(turn(reward=2.0), member=1)]
    assert per_turn(group, estimator="rloo", credit="episode") == [[1, 1], [-1]]


def test_the_discount_is_per_turn_and_feedback_takes_no_time(play, turn):
    short = [play(turn(reward=0.0), turn(reward=4.0, observation=[1]))]
    long = [play(turn(reward=0.0), turn(reward=4.0, observation=[1] * 100))]
    options = {"estimator": "reinforce", "credit": "turn", "discount": 0.5}
    assert per_turn(short, **options) == per_turn(long, **options) == [[2, 4]]


def test_a_turn_without_action_tokens_keeps_its_reward(play, turn):
    group = [play(turn(reward=0.0), turn(reward=3.0, token_ids=[])), play(turn(reward=1.0), member=1)]
    (first,), (second,) = group_advantages(group, estimator="rloo", credit="turn")
    assert first.tolist() == [0, 0, 2, 2, 0, 0]
    assert second.tolist() == [0, 0, -2, -2]


def test_an_episode_without_turns_enters_the_baseline_with_nothing(play, turn):
    group = [play(ending=Ending.MAX_LENGTH), play(turn(reward=1.0), member=1), play(turn(reward=3.0), member=2)]
    assert per_turn(group, estimator="rloo", credit="episode") == [[], [-0.5], [2.5]]
    assert per_turn(group, estimator="rloo", credit="turn", ended="zero") == [[], [-0.5], [2.5]]
    assert per_turn(group, estimator="rloo", credit="turn", ended="reached") == [[], [-2], [2]]


def test_a_forked_episode_weighs_as_one(play, turn):
    def group(*, forks):
        return [
            play(turn(reward=1.0), turn(reward=2.0, forks=forks), turn(reward=4.0)),
            play(turn(reward=5.0), turn(reward=1.0), member=1),
        ]

    for credit in ("episode", "turn", "token"):
        options = {"estimator": "group_norm", "credit": credit}
        assert per_turn(group(forks=True), **options) == per_turn(group(forks=False), **options)
    forked = group_advantages(group(forks=True), estimator="rloo", credit="turn")
    assert [[len(a) for a in arrays] for arrays in forked] == [[4, 8], [8]]


@pytest.mark.parametrize("estimator", BASELINED)
def test_a_lone_survivor_has_no_one_to_be_compared_with(play, turn, estimator):
    expected = 7.0 if estimator == "rloo" else 0.0
    assert per_turn([play(turn(reward=7.0))], estimator=estimator, credit="turn") == [[expected]]


def test_an_empty_group_has_no_advantages():
    assert group_advantages([], estimator="rloo") == ()


rewards_of_a_group = st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=4), min_size=2, max_size=5)


@given(
    reward=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=3),
    size=st.integers(2, 8),
    estimator=st.sampled_from(BASELINED),
    credit=st.sampled_from(["episode", "turn"]),
    ended=st.sampled_from(["zero", "reached"]),
)
def test_equal_rewards_give_exactly_zero(play, turn, reward, size, estimator, credit, ended):
    group = [play(*(turn(reward=r) for r in reward), member=i) for i in range(size)]
    for (array,) in group_advantages(group, estimator=estimator, credit=credit, ended=ended):
        assert not array.any()


def test_rounding_is_no_difference_to_normalise(play, turn):
    # 0.1 + 0.2 is not 0.3 in binary; the deviation of such returns is 1e-17.
    group = [play(turn(reward=0.3)), play(turn(reward=0.1), turn(reward=0.2), member=1)]
    assert per_turn(group, estimator="group_norm", credit="episode") == [[0], [0, 0]]


@given(rewards=rewards_of_a_group, data=st.data(), estimator=st.sampled_from(ESTIMATORS))
def test_permuting_siblings_permutes_advantages(play, turn, rewards, data, estimator):
    order = data.draw(st.permutations(range(len(rewards))))
    credit = data.draw(st.sampled_from(["episode", "turn", "token"]))
    ended = data.draw(st.sampled_from(["zero", "reached"]))
    group = [play(*(turn(reward=r) for r in row), member=i) for i, row in enumerate(rewards)]
    options = {"estimator": estimator, "credit": credit, "ended": ended}
    straight = per_turn(group, **options)
    permuted = per_turn([group[i] for i in order], **options)
    for place, i in enumerate(order):
        np.testing.assert_allclose(permuted[place], straight[i], rtol=1e-6, atol=1e-6)


@given(rewards=rewards_of_a_group, estimator=st.sampled_from(BASELINED))
def test_advantages_of_whole_episodes_sum_to_zero(play, turn, rewards, estimator):
    group = [play(*(turn(reward=r) for r in row), member=i) for i, row in enumerate(rewards)]
    total = sum(row[0] for row in per_turn(group, estimator=estimator, credit="episode"))
    assert total == pytest.approx(0, abs=1e-6)


def test_turn_returns_discount_per_turn():
    assert turn_returns(np.array([1.0, 2.0, 4.0]), discount=0.5).tolist() == [3.0, 4.0, 4.0]
    assert turn_returns(np.array([])).tolist() == []


def test_whitening_is_over_all_action_tokens_of_the_update():
    # Values 1, 2, 6: mean 3, variance (4 + 1 + 9) / 3.
    advantages = [np.array([0.0, 1.0, 2.0]), np.array([0.0, 6.0])]
    masks = [np.array([False, True, True]), np.array([False, True])]
    first, second = whiten(advantages, masks)
    deviation = (14 / 3) ** 0.5
    np.testing.assert_allclose(first, [0, -2 / deviation, -1 / deviation], rtol=1e-15)
    np.testing.assert_allclose(second, [0, 3 / deviation], rtol=1e-15)


def test_whitening_equal_advantages_gives_exactly_zero():
    (found,) = whiten([np.full(8, 0.1)], [np.ones(8, dtype=bool)])
    assert not found.any()
    assert whiten([], []) == []


@pytest.mark.parametrize(
    ("estimator", "is_whitened"), [("reinforce", True), ("reinforce_baseline", True), ("rloo", False)]
)
def test_the_estimators_that_openrlhf_whitens_are_whitened_unless_told_otherwise(estimator, is_whitened):
    assert AdvantageConfig(estimator=estimator).is_whitened is is_whitened
    assert AdvantageConfig(estimator=estimator, whiten=not is_whitened).is_whitened is not is_whitened


def test_a_failed_episode_enters_no_baseline(play, turn):
    failure = Failure(kind="infra", where="step", error="OSError", message="gone")
    group = [play(turn(reward=1.0)), play(turn(), member=1, ending=Ending.ENV_FAILED, failure=failure)]
    with pytest.raises(RecordError, match=r"episode-0-1 failed \(env_failed\); failed episodes enter no baseline"):
        group_advantages(group, estimator="rloo")


def test_a_fault_of_the_policy_is_trained_like_any_other(play, turn):
    failure = Failure(kind="policy", where="step", error="PolicyFault", message="rm -rf")
    group = [play(turn(reward=1.0)), play(turn(), member=1, ending=Ending.POLICY_FAULT, failure=failure)]
    assert per_turn(group, estimator="rloo", credit="turn") == [[1], [-1]]


def test_a_return_that_is_not_finite_is_refused_by_name(play, turn):
    group = [play(turn(reward=1.0)), play(turn(reward=1e308), turn(reward=1e308), member=1)]
    with pytest.raises(RecordError, match=r"episode-0-1 has a return that is not finite: \[inf, 1e\+308\]"):
        group_advantages(group, estimator="rloo")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"estimator": "grpo"},
            "estimator='grpo'; choose one of reinforce, reinforce_baseline, rloo, group_norm, dr_grpo",
        ),
        ({"credit": "step"}, "credit='step'; choose one of episode, turn, token"),
        ({"ended": "none"}, "ended='none'; choose one of zero, reached"),
        ({"discount": 1.5}, r"discount=1.5 must lie in \[0, 1\]; 1 doesn't discount"),
        ({"discount": float("nan")}, r"discount=nan must lie in \[0, 1\]; 1 doesn't discount"),
    ],
)
def test_a_wrong_setting_is_named(options, message):
    with pytest.raises(ConfigError, match=message):
        AdvantageConfig(**options)
