import asyncio
import math
import pickle
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from turngym.envs.errors import ConfigError, InvalidRewardError, RewardError
from turngym.envs.rewards import (
    DiversityPenalty,
    GroupReward,
    PairwiseReward,
    RankingReward,
    RewardFunction,
    RewardOutput,
    Trajectory,
    score_group,
)
from turngym.envs.rewards.pairings import content_key, pairings
from turngym.envs.rewards.similarity import MAX_WORDS, jaccard, word_ngrams

groups = st.lists(st.text(st.characters(), max_size=30), min_size=1, max_size=9)
few_texts = st.lists(
    st.sampled_from(["a", "bb", "cc", "ddd", "the cat sat", "the cat sat down"]), min_size=1, max_size=9
)


def group_of(texts: Sequence[str]) -> list[Trajectory]:
    return [Trajectory(prompt="Q", response=text, id=str(place)) for place, text in enumerate(texts)]


def scored(reward: RewardFunction, texts: Sequence[str]) -> list[Any]:
    return asyncio.run(score_group(reward, group_of(texts)))


def rewards_of(reward: RewardFunction, texts: Sequence[str]) -> list[float]:
    return [output.reward for output in scored(reward, texts)]


def longer(a: Trajectory, b: Trajectory) -> float:
    return 0.5 + 0.5 * ((len(a.response) > len(b.response)) - (len(a.response) < len(b.response)))


def noisy(a: Trajectory, b: Trajectory) -> float:
    """Any judge: what it says has to do with both texts and their order."""
    return random.Random(f"{a.response!r} {b.response!r}").random()


ALL: dict[str, Callable[[], RewardFunction]] = {
    "pairwise": lambda: PairwiseReward(noisy),
    "pairwise in one order": lambda: PairwiseReward(noisy, both_orders=False),
    "tournament": lambda: PairwiseReward(noisy, num_rounds=2, seed=3),
    "ranking": lambda: RankingReward(lambda response: float(len(response) % 4)),
    "rank": lambda: RankingReward(rank=lambda trajectories: [len(t.response) for t in trajectories]),
    "diversity": DiversityPenalty,
    "mean diversity": lambda: DiversityPenalty(weight=0.3, over="mean"),
    "own similarity": lambda: DiversityPenalty(lambda a, b: random.Random(a + "|" + b).random()),
}


@pytest.mark.parametrize("name", ALL)
@given(texts=st.one_of(groups, few_texts), data=st.data())
@settings(max_examples=40)
def test_permuting_siblings_permutes_rewards(name: str, texts: list[str], data: st.DataObject):
    reward = ALL[name]()
    order = data.draw(st.permutations(range(len(texts))))
    given = rewards_of(reward, texts)
    assert rewards_of(reward, [texts[place] for place in order]) == [given[place] for place in order]


@pytest.mark.parametrize("name", ALL)
@given(texts=st.one_of(groups, few_texts))
@settings(max_examples=40)
def test_rewards_are_in_the_stated_range_and_the_same_for_copies(name: str, texts: list[str]):
    reward = ALL[name]()
    low, high = reward.reward_range
    given = rewards_of(reward, texts)
    assert all(low <= value <= high for value in given)
    assert len(dict(zip(texts, given, strict=True)).items() | set(zip(texts, given, strict=True))) == len(set(texts))


@pytest.mark.parametrize("name", ALL)
def test_outputs_are_not_shared(name: str):
    outputs = scored(ALL[name](), ["a", "a", "b"])
    outputs[0].metadata["mark"] = 1.0
    assert all("mark" not in output.metadata for output in outputs[1:])


@pytest.mark.parametrize(
    ("name", "alone"),
    [
        ("pairwise", 0.5),
        ("tournament", 0.5),
        ("ranking", 0.5),
        ("rank", 0.5),
        ("diversity", 0.0),
        ("mean diversity", 0.0),
    ],
)
def test_a_response_that_is_alone(name: str, alone: float):
    assert rewards_of(ALL[name](), ["a"]) == [alone]


@pytest.mark.parametrize("name", ["pairwise", "diversity"])
async def test_a_trajectory_can_be_scored_by_itself(name: str):
    given = ALL[name]()(Trajectory(response="4"))
    output = await given if asyncio.iscoroutine(given) else given
    assert output.reward in (0.5, 0.0)


# Pairs.


def test_the_win_rate_is_the_mean_over_siblings():
    # lengths 1, 2, 2, 3: "bb" beats "a", ties with "cc", loses to "ddd"
    assert rewards_of(PairwiseReward(longer), ["a", "bb", "cc", "ddd"]) == [0.0, 0.5, 0.5, 1.0]


def test_copies_tie_without_being_compared():
    asked: list[tuple[str, str]] = []

    def compare(a: Trajectory, b: Trajectory) -> float:
        asked.append((a.response, b.response))
        return longer(a, b)

    outputs = scored(PairwiseReward(compare), ["a", "bb", "a", "bb", "bb"])
    # of its 4 siblings, "a" ties with 1 and loses to 3; "bb" ties with 2 and beats 2
    assert [output.reward for output in outputs] == [0.125, 0.75, 0.125, 0.75, 0.75]
    assert sorted(asked) == [("a", "bb"), ("bb", "a")]
    assert outputs[0].metadata == {"compared": 3, "failed": 0, "copies": 1}


def test_asking_in_both_orders_takes_a_judges_liking_for_a_place_away():
    def first(a: Trajectory, b: Trajectory) -> float:
        return 0.9

    assert rewards_of(PairwiseReward(first), ["a", "b", "c"]) == [0.5, 0.5, 0.5]
    assert rewards_of(PairwiseReward(first, both_orders=False), ["a", "b", "c"]) != [0.5, 0.5, 0.5]


async def test_compare_may_be_async_and_runs_a_few_at_a_time():
    running, most = 0, 0

    async def compare(a: Trajectory, b: Trajectory) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return longer(a, b)

    outputs: Any = await score_group(PairwiseReward(compare, max_concurrency=3), group_of(["a", "bb", "ccc", "dddd"]))
    assert [output.reward for output in outputs] == [0.0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]
    assert most == 3


async def test_a_plain_compare_may_block():
    both = threading.Barrier(2)

    def compare(a: Trajectory, b: Trajectory) -> float:
        both.wait(30)  # passes only where two comparisons run at once
        return longer(a, b)

    reward = PairwiseReward(compare, both_orders=False, max_concurrency=2)
    outputs: Any = await score_group(reward, group_of(["a", "bb", "ccc", "dddd"]))
    assert [output.reward for output in outputs][::3] == [0.0, 1.0]


def test_a_comparison_that_fails_is_left_out():
    def compare(a: Trajectory, b: Trajectory) -> float:
        if {a.response, b.response} == {"a", "bb"}:
            raise ConnectionError("no answer")
        return longer(a, b)

    outputs = scored(PairwiseReward(compare), ["a", "bb", "ccc"])
    assert [output.reward for output in outputs] == [0.0, 0.0, 1.0]
    assert outputs[0].metadata == {"compared": 1, "failed": 1, "copies": 0}


def test_a_response_that_was_compared_too_rarely_fails_alone():
    def compare(a: Trajectory, b: Trajectory) -> float:
        if "a" in (a.response, b.response):
            raise ConnectionError("no answer")
        return longer(a, b)

    failed, *others = scored(PairwiseReward(compare), ["a", "bb", "ccc"])
    assert isinstance(failed, RewardError)
    assert str(failed) == (
        "PairwiseReward: it was compared with 0 of 2 siblings, and at least 1 are wanted; the first failure: "
        "ConnectionError: no answer"
    )
    assert [output.reward for output in others] == [0.0, 1.0]
    assert all(
        isinstance(output, RewardError)
        for output in scored(PairwiseReward(compare, min_comparisons=9), ["a", "bb", "ccc"])
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (1.5, "compare gave 1.5; it must be the probability that the first is better, in [0, 1]"),
        (-1.0, "compare gave -1; it must be the probability that the first is better, in [0, 1]"),
        ("A", "compare's result is str 'A'; it must be one number"),
        (None, "compare's result is NoneType None; it must be one number"),
    ],
)
def test_what_is_no_probability_ends_the_run(given: Any, message: str):
    for error in scored(PairwiseReward(lambda a, b: given), ["a", "b"]):
        assert isinstance(error, InvalidRewardError)
        assert str(error) == f"PairwiseReward: {message}"


def test_a_probability_that_is_not_finite_is_left_out():
    outputs = scored(PairwiseReward(lambda a, b: math.nan), ["a", "b"])
    assert [type(output) for output in outputs] == [RewardError, RewardError]


async def test_a_comparison_that_takes_too_long_is_left_out():
    async def compare(a: Trajectory, b: Trajectory) -> float:
        if {a.response, b.response} == {"a", "bb"}:
            await asyncio.Event().wait()
        return longer(a, b)

    outputs: Any = await score_group(PairwiseReward(compare, timeout_s=0.05), group_of(["a", "bb", "ccc"]))
    assert [output.reward for output in outputs] == [0.0, 0.0, 1.0]


async def test_cancelling_ends_every_comparison():
    entered, ended = asyncio.Event(), 0

    async def compare(a: Trajectory, b: Trajectory) -> float:
        nonlocal ended
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1
        return 0.5

    scoring = asyncio.create_task(score_group(PairwiseReward(compare), group_of(["a", "bb", "ccc"])))
    await entered.wait()
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring
    assert ended == 3


@given(count=st.integers(0, 15), num_rounds=st.one_of(st.none(), st.integers(0, 20)))
def test_nobody_meets_the_same_twice_or_more_than_a_round_allows(count: int, num_rounds: int | None):
    pairs = pairings(count, num_rounds)
    assert len(set(pairs)) == len(pairs)
    assert all(0 <= i < j < count for i, j in pairs)
    met = Counter(player for pair in pairs for player in pair)
    rounds = count if num_rounds is None else num_rounds
    if rounds >= count:
        assert len(pairs) == count * (count - 1) // 2
    else:
        assert all(rounds - count % 2 <= met[player] <= rounds for player in range(count))


@given(texts=st.lists(st.text(), min_size=2, max_size=12, unique=True), num_rounds=st.integers(2, 4))
def test_a_tournament_is_bounded_and_nobody_is_left_out(texts: list[str], num_rounds: int):
    calls: list[int] = []

    async def compare(a: Trajectory, b: Trajectory) -> float:
        calls.append(1)
        return longer(a, b)

    outputs = scored(PairwiseReward(compare, num_rounds=num_rounds), texts)
    assert len(calls) <= len(texts) * num_rounds
    assert all(1 <= output.metadata["compared"] <= num_rounds for output in outputs)


def test_the_seed_changes_who_meets_whom():
    def met(seed: int) -> set[frozenset[str]]:
        pairs: list[frozenset[str]] = []

        async def compare(a: Trajectory, b: Trajectory) -> float:
            pairs.append(frozenset((a.response, b.response)))
            return 0.5

        scored(PairwiseReward(compare, num_rounds=2, seed=seed), [str(n) for n in range(10)])
        return set(pairs)

    assert met(0) == met(0) != met(1)


def test_the_key_of_a_response_is_that_of_its_text():
    a, b = Trajectory(response="\ud800", id="1"), Trajectory(response="\ud800", id="2")
    assert content_key(a) == content_key(b) != content_key(Trajectory(response="x"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"compare": "judge"}, "compare='judge' must be a function of two trajectories"),
        (
            {"num_rounds": 1},
            "num_rounds=1 must be an integer of at least 2; with one round, one of an odd group would meet nobody",
        ),
        ({"min_comparisons": 0}, "min_comparisons=0 must be an integer of at least 1"),
        ({"max_concurrency": 0}, "max_concurrency=0 must be an integer of at least 1"),
        ({"timeout_s": 0}, "timeout_s=0 must be greater than 0"),
    ],
)
def test_arguments_of_a_tournament_are_checked(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        PairwiseReward(**{"compare": longer, **arguments})
    assert str(caught.value) == message


# Ranks.


def test_ties_share_the_mean_of_their_places():
    # lengths 1, 2, 2, 2, 5: places 0, (1 + 2 + 3) / 3, 4, of 4
    texts = ["bb", "a", "cc", "eeeee", "dd"]
    assert rewards_of(RankingReward(lambda response: float(len(response))), texts) == [0.5, 0.0, 0.5, 1.0, 0.5]


@given(few_texts)
def test_ranks_centre_on_a_half(texts: list[str]):
    assert math.fsum(rewards_of(ALL["ranking"](), texts)) == pytest.approx(len(texts) / 2)


def test_a_ranked_reward_keeps_score_and_parts():
    class Scored(RewardFunction):
        def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
            size = len(trajectory.response)
            return RewardOutput(reward=100.0 * size, token_rewards=[1.0], metadata={"size": size}, score=0.25)

    low, high = scored(RankingReward(Scored()), ["a", "bb"])
    assert low == RewardOutput(reward=0.0, metadata={"Scored": 100.0, "Scored/size": 1}, score=0.25)
    assert high == RewardOutput(reward=1.0, metadata={"Scored": 200.0, "Scored/size": 2}, score=0.25)


def test_what_failed_is_not_ranked():
    def size(response: str) -> float:
        if response == "bb":
            raise ValueError("no")
        return float(len(response))

    low, failed, high = scored(RankingReward(size), ["a", "bb", "ccc"])
    assert (low.reward, high.reward) == (0.0, 1.0)
    assert str(failed) == "RankingReward: size raised ValueError: no"


async def test_a_rank_function_sees_the_group():
    async def rank(trajectories: Sequence[Trajectory]) -> list[int]:
        return [-len(t.response) for t in trajectories]

    low, high = await score_group(RankingReward(rank=rank), group_of(["aa", "b"]))
    assert low == RewardOutput(reward=0.0, metadata={"rank": -2.0})
    assert high == RewardOutput(reward=1.0, metadata={"rank": -1.0})


def test_a_rank_function_gives_one_number_for_each():
    for error in scored(RankingReward(rank=lambda trajectories: [1.0]), ["a", "b"]):
        assert isinstance(error, InvalidRewardError)
        assert str(error) == (
            "RankingReward: rank: rank's result is list of 1, and there were 2 responses; it must be [2]"
        )


def test_a_group_reward_can_be_ranked():
    inner = PairwiseReward(longer)
    assert rewards_of(RankingReward(inner), ["a", "bb", "ccc"]) == [0.0, 0.5, 1.0]


def test_a_ranking_needs_one_thing_to_rank_by():
    both: dict[str, Any] = {"reward": len, "rank": len}
    for arguments in ({}, both):
        with pytest.raises(ConfigError, match=r"^give either a reward to rank by, or rank=, a function of all"):
            RankingReward(**arguments)


# Likeness.


def test_exact_copies_get_the_full_penalty():
    given = rewards_of(DiversityPenalty(weight=0.4), ["It is 4.", "It is 4.", "Two and two make four."])
    assert given == [-0.4, -0.4, 0.0]


def test_the_penalty_is_the_share_of_trigrams_in_common():
    # {the cat sat, cat sat on, sat on it} and {the cat sat, cat sat down}: 1 in common of 4
    texts = ["The cat sat on it", "the cat sat down", "something else entirely"]
    assert rewards_of(DiversityPenalty(), texts) == [-0.25, -0.25, 0.0]
    assert rewards_of(DiversityPenalty(over="mean"), texts) == [-0.125, -0.125, 0.0]


def test_own_similarities_are_asked_once_a_pair():
    asked: list[tuple[str, str]] = []

    def similarity(a: str, b: str) -> float:
        asked.append((a, b))
        return 0.5

    assert rewards_of(DiversityPenalty(similarity), ["b", "a", "c", "a"]) == [-0.5, -1.0, -0.5, -1.0]
    assert sorted(asked) == [("a", "b"), ("a", "c"), ("b", "c")]


def test_a_similarity_outside_its_range_ends_the_run():
    for error in scored(DiversityPenalty(lambda a, b: 2.0), ["a", "b"]):
        assert isinstance(error, InvalidRewardError)
        assert str(error) == "DiversityPenalty: similarity gave 2; it must be in [0, 1]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": -1.0}, "weight=-1.0 must be at least 0"),
        ({"weight": math.inf}, "weight=inf must be a finite number"),
        ({"over": "sum"}, "over='sum' must be 'max' or 'mean'"),
        ({"similarity": "cosine"}, "similarity='cosine' must be a function of two texts"),
    ],
)
def test_arguments_of_the_penalty_are_checked(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        DiversityPenalty(**arguments)
    assert str(caught.value) == message


@given(st.text(st.characters()), st.text(st.characters()), st.integers(1, 4))
def test_similarity_is_symmetric_and_whole_for_the_same_text(a: str, b: str, n: int):
    first, second = word_ngrams(a, n), word_ngrams(b, n)
    assert jaccard(first, first) == 1
    assert 0 <= jaccard(first, second) == jaccard(second, first) <= 1


def test_megabytes_take_a_bounded_number_of_words():
    assert len(word_ngrams("a b " * 1_000_000)) == 2
    assert len(word_ngrams(" ".join(map(str, range(3 * MAX_WORDS))))) == MAX_WORDS - 2
    assert word_ngrams("x" * 5_000_000) == frozenset([("x" * 5_000_000,)])


@pytest.mark.parametrize("name", ["diversity", "mean diversity"])
def test_a_penalty_can_be_pickled(name: str):
    again = pickle.loads(pickle.dumps(ALL[name]()))
    assert isinstance(again, GroupReward)
    assert rewards_of(again, ["a", "a"]) == rewards_of(ALL[name](), ["a", "a"])
