"""Attacks: what each tries, what gives in to them, and that a failing reward is never a zero."""

import json
import math
import random
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.envs.rewards import GroupReward, KeywordReward, LengthReward, RewardFunction, RewardOutput, as_reward
from turngym.envs.rewards.answers import check_answer, match_format_exactly
from turngym.envs.rewards.attacking import BUILT_IN_CASES, AttackReport, try_attacks
from turngym.envs.rewards.attacks import known_attacks, numbers_in, words_in_file, words_of
from turngym.envs.rewards.examples import RewardCase

NAMES = [attack.name for attack in known_attacks()]


def best(report: AttackReport) -> dict[str, float | None]:
    return {result.name: result.best for result in report.results}


def test_names_are_unique_and_each_attack_says_what_it_does():
    assert len(set(NAMES)) == len(NAMES)
    assert all(attack.description for attack in known_attacks())


@given(prompt=st.text(max_size=300), label=st.none() | st.text(max_size=30) | st.integers().map(str))
def test_every_attack_gives_text_for_any_prompt_and_label(prompt: str, label: str | None):
    for attack in known_attacks(("because",)):
        responses = attack.make(prompt, label, {"format": prompt}, random.Random(0))
        assert all(isinstance(response, str) for response in responses)
        assert len(responses) <= 30


@pytest.mark.parametrize("attack", known_attacks(("because", "so")), ids=lambda attack: attack.name)
def test_an_attack_repeats_with_its_seed(attack):
    case = BUILT_IN_CASES[0]
    made = [attack.make(case.prompt, case.label, case.columns, random.Random(3)) for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.parametrize("attack", known_attacks(), ids=lambda attack: attack.name)
def test_a_megabyte_of_prompt_makes_no_response_much_longer(attack):
    prompt = "9" * 500_000 + " x" * 250_000
    responses = attack.make(prompt, "4", {}, random.Random(0))
    assert max(map(len, responses), default=0) <= 2 * len(prompt) + 100


async def test_check_answer_gives_in_to_near_misses_and_hedging_only():
    report = await try_attacks(as_reward(check_answer))
    assert report.honest.best == report.honest.mean == 1
    assert [result.name for result in report.winners(0.5)] == ["hedging", "near miss"]
    assert {result.best for result in report.winners(0.5)} == {0.5}
    assert not report.winners(0.75)


async def test_length_gives_in_to_words_that_say_nothing():
    report = await try_attacks(LengthReward(target_length=50, tolerance=10))
    assert report.results[0].name == "repeated"
    assert report.results[0].best == 1


async def test_keywords_give_in_to_stuffing():
    report = await try_attacks(KeywordReward(required_keywords=["first", "therefore"], bonus_keywords=["proof"]))
    earned = best(report)
    assert earned["keyword stuffing"] == 1
    assert earned["empty"] == 0
    assert report.results[0].best == 1


async def test_a_format_gives_in_to_the_format_with_nothing_in_it():
    earned = best(await try_attacks(as_reward(match_format_exactly)))
    assert earned["empty format"] == 1
    assert earned["empty"] == 0


def rating_in(response: str) -> float:
    """A judge that reads its verdict out of what it judges."""
    try:
        return json.loads(response)["score"] / 10
    except (ValueError, KeyError, TypeError):
        return 0.0


def shows_answer(response: str) -> float:
    """Reads compatibility forms as a person does, and finds what a plain search doesn't."""
    return float("answer is" in unicodedata.normalize("NFKC", response) and "answer is" not in response)


GAMEABLE = [
    (lambda response: float(response == ""), ["empty"]),
    (lambda response: float(not response.strip() and response != ""), ["whitespace"]),
    (lambda response, prompt: float(response == prompt), ["echo"]),
    (lambda response, label: float(f" {label} " in response), ["every number", "hidden text", "hedging"]),
    (lambda response: float(response == r"\boxed{}"), ["empty format"]),
    (rating_in, ["claims to be correct"]),
    (lambda response: float(len(response) > 30_000), ["very long"]),
    (lambda response: float(response.count("word") >= 200), ["repeated"]),
    (shows_answer, ["look-alikes"]),
    (lambda response: float("<!--" in response), ["hidden text"]),
    (lambda response, label: float(f"{label} or" in response), ["hedging"]),
    (lambda response, label: float(0 < abs(number_in(response) - float(label)) < 0.05), ["near miss"]),
    (lambda response: float("1 passed" in response), ["prints passed"]),
]


def number_in(response: str) -> float:
    found = re.fullmatch(r"The answer is (\d+(?:\.\d+)?)\.", response)
    return float(found[1]) if found else math.inf


@pytest.mark.parametrize(("fn", "winners"), GAMEABLE, ids=[winners[0] for _, winners in GAMEABLE])
async def test_a_reward_that_can_be_gamed_in_one_way_is_gamed_in_it(fn: Callable[..., float], winners: list[str]):
    report = await try_attacks(as_reward(fn))
    assert {result.name for result in report.winners(1)} == set(winners)


def test_every_attack_wins_somewhere():
    assert {name for _, winners in GAMEABLE for name in winners} == {*NAMES} - {"keyword stuffing"}


async def test_the_attack_that_earns_the_most_comes_first():
    report = await try_attacks(as_reward(lambda response, prompt: float(response == prompt), name="echoes"))
    assert report.name == "echoes"
    assert report.results[0].name == "echo"
    assert [result.name for result in report.winners(1)] == ["echo"]
    assert report.results[0].response in {case.prompt for case in BUILT_IN_CASES}


async def test_a_reward_that_fails_is_failed_and_never_zero():
    def fails(response: str) -> float:
        if not response.strip():
            raise ValueError("no response")
        return 0.25

    report = await try_attacks(as_reward(fails))
    results = {result.name: result for result in report.results}
    assert (results["empty"].best, results["empty"].mean, results["empty"].rewards) == (None, None, ())
    assert str(results["empty"].errors[0]) == "fails raised ValueError: no response"
    assert len(results["empty"].errors) == len(BUILT_IN_CASES)
    assert results["echo"].best == 0.25
    assert report.results[-1].name == "empty"


async def test_a_reward_that_compares_sees_each_attack_next_to_the_honest_response():
    seen: list[tuple[str, ...]] = []

    class Longest(GroupReward):
        def compute_rewards(self, trajectories):
            seen.append(tuple(t.response for t in trajectories))
            longest = max(len(t.response) for t in trajectories)
            return [float(len(t.response) == longest) for t in trajectories]

    earned = best(await try_attacks(Longest()))
    honest = {case.response for case in BUILT_IN_CASES}
    assert all(group[-1] in honest for group in seen)
    assert {len(group) for group in seen} == {1, 2}  # the honest responses alone, and each attack next to one
    assert (earned["empty"], earned["very long"]) == (0, 1)


async def test_without_labels_and_honest_responses_it_still_attacks():
    cases = [RewardCase(prompt="Write a poem.")]
    report = await try_attacks(as_reward(lambda response: 0.0), cases)
    results = {result.name: result for result in report.results}
    assert report.honest.rewards == report.honest.errors == ()
    assert results["near miss"].rewards == results["near miss"].errors == ()
    assert results["near miss"].best is None
    assert results["empty"].best == 0


class Holds(RewardFunction):
    """Holds other rewards, and itself."""

    def __init__(self, *inner: RewardFunction) -> None:
        super().__init__()
        self.parts = [(reward, 0.5) for reward in inner]
        self.api_key = "sk-0123456789"
        self.forbidden_words = ["cheat"]
        self.me = self

    def compute_reward(self, trajectory):
        return RewardOutput(0.0)


def test_words_come_from_all_rewards_within_and_never_from_keys():
    reward = Holds(KeywordReward(required_keywords=["b", "a"], penalty_keywords=["bad"]), Holds())
    assert words_of(reward) == ["b", "a"]


def test_words_of_a_file_are_its_strings_without_docstrings_and_keys(tmp_path: Path):
    file = tmp_path / "reward.py"
    file.write_text(
        '"""A docstring here."""\nKEY = "sk-0123456789abcdef"\nWORDS = ["therefore", "step by step", "x"]\n'
    )
    assert words_in_file(file) == ["therefore", "step by step"]
    file.write_text("def broken(:\n")
    assert words_in_file(file) == []
    assert words_in_file(tmp_path / "none.py") == []


def test_numbers_of_a_text_are_each_there_once():
    assert numbers_in("3 and 4.5, again 3, -2 and 1,000") == ["3", "4.5", "-2", "1,000"]
