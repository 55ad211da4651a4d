import math
import pickle

import numpy as np
import pytest
from turngym.agents import Ending, Episode, EpisodeBuilder, Failure, TokenRecord
from turngym.agents.engine import Generation, VersionSpan
from turngym.envs.errors import RecordError
from turngym.envs.sampling import SamplingParams

NAN = float("nan")
SAMPLING = SamplingParams(temperature=0.7)


def generation(token_ids, logprobs, *versions, kept=None):
    spans = tuple(VersionSpan(version, count) for version, count in versions)
    return Generation(
        token_ids=tuple(token_ids), logprobs=tuple(logprobs), finish_reason="stop", versions=spans, kept_token_ids=kept
    )


def builder():
    return EpisodeBuilder(episode_id="e", task_id="t")


def two_turns():
    b = builder()
    b.observe([11, 12, 13])
    b.act(generation([21, 22, 9], [-1.0, -2.0, -0.5], (4, 2), (5, 1)), sampling=SAMPLING, text="ab")
    b.feed_back(reward=0.25, token_rewards=[0.5, 0.125], score=0.0, feedback="no", info={"k": 1}, step_s=2.0)
    b.observe([31, 32])
    b.act(generation([23, 9], [-3.0, -0.25], (5, 2)), sampling=SAMPLING, text="c")
    b.feed_back(reward=-1.0, token_rewards=[0.0, 2.0], score=1.0)
    return b


def assert_table(record, **rows):
    """Each row of a token table, element by element; NaN equals NaN."""
    for name, row in rows.items():
        np.testing.assert_array_equal(getattr(record, name), np.array(row), err_msg=name)


def test_two_turns_in_one_record():
    """Written out by hand: prompt 11-13, action 21 22 9, feedback 31 32, action 23 9."""
    episode = two_turns().finish(Ending.TERMINATED)
    (record,) = episode.records
    assert_table(
        record,
        token_ids=[11, 12, 13, 21, 22, 9, 31, 32, 23, 9],
        action_mask=[False, False, False, True, True, True, False, False, True, True],
        turn_index=[0, 0, 0, 0, 0, 0, 1, 1, 1, 1],
        sampled_logprobs=[NAN, NAN, NAN, -1.0, -2.0, -0.5, NAN, NAN, -3.0, -0.25],
        versions=[-1, -1, -1, 4, 4, 5, -1, -1, 5, 5],
        token_rewards=[0, 0, 0, 0.5, 0.125, 0, 0, 0, 0, 2.0],
    )
    first, second = episode.turns
    assert [(t.record, t.observation_start, t.action_start, t.action_end) for t in episode.turns] == [
        (0, 0, 3, 6),
        (0, 6, 8, 10),
    ]
    assert (first.reward, first.token_reward, first.earned) == (0.25, 0.625, 0.875)
    assert (second.reward, second.token_reward, second.earned) == (-1.0, 2.0, 1.0)
    assert (first.action_text, first.feedback, first.info, first.step_s) == ("ab", "no", {"k": 1}, 2.0)
    assert first.sampling is SAMPLING
    assert (episode.reward, episode.score, episode.is_solved, episode.num_action_tokens) == (1.875, 1.0, True, 5)


def test_a_fork_begins_a_record_whose_context_is_observation():
    """What was sampled in record 0 is trained there; record 1 reads it again."""
    b = builder()
    b.observe([11])
    b.act(generation([21, 9], [-1.0, -2.0], (0, 2)), sampling=SAMPLING, text="a")
    b.feed_back(reward=1.0)
    b.fork([11, 21, 31])
    b.act(generation([22], [-4.0], (1, 1)), sampling=SAMPLING, text="b")
    b.feed_back(reward=2.0, token_rewards=[8.0])
    episode = b.finish(Ending.MAX_TURNS)
    before, after = episode.records
    assert_table(
        before,
        token_ids=[11, 21, 9],
        action_mask=[False, True, True],
        turn_index=[0, 0, 0],
        sampled_logprobs=[NAN, -1.0, -2.0],
        versions=[-1, 0, 0],
        token_rewards=[0, 0, 0],
    )
    assert_table(
        after,
        token_ids=[11, 21, 31, 22],
        action_mask=[False, False, False, True],
        turn_index=[1, 1, 1, 1],
        sampled_logprobs=[NAN, NAN, NAN, -4.0],
        versions=[-1, -1, -1, 1],
        token_rewards=[0, 0, 0, 8.0],
    )
    assert [(t.record, t.observation_start, t.action_start, t.action_end) for t in episode.turns] == [
        (0, 0, 1, 3),
        (1, 0, 3, 4),
    ]
    assert episode.num_action_tokens == 3
    assert episode.reward == 11.0


def test_kept_sets_stand_on_their_tokens_and_untruncated_turns_keep_everything():
    b = builder()
    b.observe([11])
    b.act(generation([21], [-1.0], (0, 1)), sampling=SAMPLING, text="")
    b.feed_back(reward=0.0)
    b.act(generation([22, 23], [-1.0, 0.0], (0, 2), kept=((22, 25), (23,))), sampling=SAMPLING, text="")
    b.feed_back(reward=0.0)
    (record,) = b.finish(Ending.TERMINATED).records
    assert record.kept_token_ids is not None
    assert [kept.tolist() for kept in record.kept_token_ids] == [[], [22, 25], [23]]
    (record,) = two_turns().finish(Ending.TERMINATED).records
    assert record.kept_token_ids is None


def test_a_turn_without_action_tokens_keeps_its_reward():
    b = builder()
    b.observe([11])
    b.act(generation([], []), sampling=SAMPLING, text="")
    b.feed_back(reward=0.5, token_rewards=[])
    b.observe([12])
    episode = b.finish(Ending.TRUNCATED)
    assert (episode.reward, episode.num_action_tokens) == (0.5, 0)
    assert episode.records[0].token_ids.tolist() == [11, 12]


def test_an_action_without_feedback_is_a_turn_with_reward_zero():
    b = builder()
    b.observe([11])
    b.act(generation([21], [-1.0], (0, 1)), sampling=SAMPLING, text="a")
    failure = Failure(kind="infra", where="step", error="OSError", message="gone")
    episode = b.finish(Ending.ENV_FAILED, failure=failure, duration_s=3.0)
    assert [turn.earned for turn in episode.turns] == [0.0]
    assert episode.is_failed
    assert episode.duration_s == 3.0


def test_an_episode_of_nothing_is_an_episode():
    episode = builder().finish(Ending.CANCELLED)
    assert (episode.reward, episode.score, episode.is_solved, len(episode.records[0])) == (0.0, None, False, 0)


def test_the_score_is_the_last_turns_that_has_one():
    b = builder()
    for score in (1.0, 0.5, None):
        b.observe([11])
        b.act(generation([21], [-1.0], (0, 1)), sampling=SAMPLING, text="a")
        b.feed_back(reward=0.0, score=score)
    assert b.finish(Ending.TERMINATED).score == 0.5


def test_what_the_builder_shows_is_what_the_engine_gets_next():
    b = two_turns()
    b.observe([41])
    assert b.token_ids == [11, 12, 13, 21, 22, 9, 31, 32, 23, 9, 41]
    assert (b.num_turns, b.num_action_tokens) == (2, 5)
    b.fork([51])
    assert b.token_ids == [51]
    assert b.num_action_tokens == 5


def test_an_episode_can_not_be_changed_and_survives_pickling():
    episode = two_turns().finish(Ending.TERMINATED)
    with pytest.raises(AttributeError):
        episode.slot = 2  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="read-only"):
        episode.records[0].token_ids[0] = 1
    again = pickle.loads(pickle.dumps(episode))
    assert again.turns == episode.turns
    assert_table(again.records[0], **{name: getattr(episode.records[0], name) for name in FIELDS})


def test_truncations_are_told_from_endings():
    truncations = {e for e in Ending if e.is_truncation}
    assert truncations == {
        Ending.TRUNCATED, Ending.MAX_TURNS, Ending.MAX_LENGTH, Ending.TIME_LIMIT, Ending.POLICY_FAULT,
    }  # fmt: skip


def test_only_failures_of_the_infrastructure_leave_the_baseline():
    failures = {"infra": True, "policy": False}
    for kind, is_failed in failures.items():
        failure = Failure(kind=kind, where="step", error="E", message="m")  # pyright: ignore[reportArgumentType]
        assert builder().finish(Ending.TRUNCATED, failure=failure).is_failed is is_failed
    assert not builder().finish(Ending.TERMINATED).is_failed


# --- what the builder refuses


def refused(message):
    return pytest.raises(RecordError, match=f"^{message}")


def test_the_builder_refuses_calls_out_of_order():
    b = builder()
    with refused("feed_back without act; a turn acts first$"):
        b.feed_back(reward=0.0)
    b.act(generation([21], [-1.0], (0, 1)), sampling=SAMPLING, text="a")
    with refused("act twice in one turn; call feed_back in between$"):
        b.act(generation([21], [-1.0], (0, 1)), sampling=SAMPLING, text="a")
    with refused("observe between act and feed_back; a turn's feedback is appended after its result$"):
        b.observe([1])
    with refused("fork between act and feed_back; finish the turn first$"):
        b.fork([1])


def test_token_rewards_belong_to_action_tokens():
    for count in (0, 1, 4):
        b = builder()
        b.act(generation([1, 2, 3], [0.0] * 3, (0, 3)), sampling=SAMPLING, text="")
        with refused(
            f"{count} token_rewards and 3 action tokens in turn 0; return one per action token "
            r"\(the closing token may be left out\)$"
        ):
            b.feed_back(reward=0.0, token_rewards=[1.0] * count)


def test_refused_token_rewards_leave_the_turn_as_it_was():
    b = builder()
    b.act(generation([1, 2], [0.0] * 2, (0, 2)), sampling=SAMPLING, text="")
    with refused("9 token_rewards"):
        b.feed_back(reward=1.0, token_rewards=[1.0] * 9)
    b.feed_back(reward=0.5)
    assert b.finish(Ending.TERMINATED).reward == 0.5


def test_a_generation_whose_parts_disagree_is_refused():
    with refused("2 token_ids and 1 logprobs; one logprob per token$"):
        generation([1, 2], [0.0], (0, 2))
    with refused("2 token_ids and version spans over 3; they must agree$"):
        generation([1, 2], [0.0, 0.0], (0, 3))
    with refused("2 token_ids and 1 kept sets; one set per token$"):
        generation([1, 2], [0.0, 0.0], (0, 2), kept=((1,),))


# --- what a record refuses

FIELDS = ("token_ids", "action_mask", "sampled_logprobs", "versions", "token_rewards", "turn_index")


def record(**changes):
    fields = {
        "token_ids": np.array([1, 2, 3]),
        "action_mask": np.array([False, True, True]),
        "sampled_logprobs": np.array([NAN, -1.0, -2.0], dtype=np.float32),
        "versions": np.array([-1, 0, 0], dtype=np.int32),
        "token_rewards": np.zeros(3, dtype=np.float32),
        "turn_index": np.zeros(3, dtype=np.int32),
    }
    return TokenRecord(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"versions": np.array([-1, 0])}, r"versions has shape \(2,\) and token_ids \(3,\); all must be \[L\]$"),
        (
            {"sampled_logprobs": np.array([NAN, -1.0, NAN])},
            "sampled_logprobs at token 2 disagrees with the action mask: a number on sampled tokens, NaN elsewhere$",
        ),
        (
            {"sampled_logprobs": np.array([-1.0, -1.0, -1.0])},
            "sampled_logprobs at token 0 disagrees with the action mask: a number on sampled tokens, NaN elsewhere$",
        ),
        (
            {"versions": np.array([-1, 0, -1])},
            "versions at token 2 disagrees with the action mask: 0 or more on sampled tokens, -1 elsewhere$",
        ),
        (
            {"token_rewards": np.array([1.0, 0.0, 0.0])},
            "token_rewards at token 0 is not zero, and no action token is there$",
        ),
        ({"token_rewards": np.array([0.0, np.inf, 0.0])}, "token_rewards holds a value that is not finite$"),
        ({"turn_index": np.array([0, 1, 0])}, "turn_index goes down somewhere; turns stand in order$"),
        ({"kept_token_ids": (np.array([1]),)}, "1 kept sets and 2 action tokens$"),
    ],
)
def test_a_record_whose_arrays_disagree_is_refused(changes, message):
    with refused(message):
        record(**changes)


def test_a_sampled_token_without_a_logprob_is_refused():
    b = builder()
    b.act(generation([1], [NAN], (0, 1)), sampling=SAMPLING, text="")
    b.feed_back(reward=0.0)
    with refused("sampled_logprobs at token 0 disagrees"):
        b.finish(Ending.TERMINATED)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([{"record": 1}], "turn 0 lies in record 1, and there are 1$"),
        ([{"action_end": 4}], "turn 0 spans 0, 1, 4 in a record of 3 tokens$"),
        ([{"observation_start": 2}], "turn 0 spans 2, 1, 3 in a record of 3 tokens$"),
        ([{"action_start": 0}], "turn 0 holds a token off the action mask between its bounds$"),
        ([{"action_end": 2}], "the turns hold 1 action tokens and the masks 2; they must agree$"),
        ([{"reward": math.inf}], "turn 0 has reward inf; rewards are finite$"),
        (
            [{"action_end": 2}, {"action_end": 2}],
            "turn 1 acts at token 1 of record 0, and the turn before it ended at token 2 of record 0; "
            "turns stand in order$",
        ),
    ],
)
def test_an_episode_whose_turns_disagree_with_its_records_is_refused(changes, message):
    b = builder()
    b.observe([1])
    b.act(generation([2, 3], [-1.0, -2.0], (0, 2)), sampling=SAMPLING, text="")
    b.feed_back(reward=0.0)
    good = b.finish(Ending.TERMINATED)
    turn = {name: getattr(good.turns[0], name) for name in good.turns[0].__slots__}
    with refused(message):
        Episode(
            episode_id="e",
            task_id="t",
            slot=0,
            member=0,
            attempt=0,
            ending=Ending.TERMINATED,
            failure=None,
            turns=tuple(type(good.turns[0])(**{**turn, **change}) for change in changes),
            records=good.records,
        )
