from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.envs import Action, ConfigError, StepResult, make, spec
from turngym.envs.math import GuessNumberEnv, GuessNumberTasks, bisection_turns

MAX_SIZE = 99


async def play(low: int, high: int, secret: int, *texts: str) -> list[StepResult]:
    env = GuessNumberEnv()
    await env.reset(options={"low": low, "high": high, "secret": secret})
    return [await env.step(Action(text=text)) for text in texts]


async def test_an_episode_by_hand():
    results = await play(1, 10, 7, "5", "My guess is 9.", r"\boxed{7}")
    assert [result.observation for result in results] == [
        "Higher. Guess from 6 to 10.",
        "Lower. Guess from 6 to 8.",
        "Correct.",
    ]
    assert [result.reward for result in results] == [5 / 10, 2 / 5, 1.0]
    assert [result.score for result in results] == [0.0, 0.0, 1.0]
    assert [result.terminated for result in results] == [False, False, True]
    assert [result.info for result in results] == [
        {"guess": 5, "size": 10},
        {"guess": 9, "size": 5},
        {"guess": 7, "size": 3},
    ]


@pytest.mark.parametrize("text", ["0", "-5", "11", "5", "1000000"])
async def test_a_guess_outside_the_interval_removes_nothing(text: str):
    result = (await play(1, 10, 8, "5", text))[-1]
    assert result.reward == 0.0
    assert str(result.observation).endswith("Guess from 6 to 10.")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "seven",
        "Guess a number from 1 to 10.",
        "from 1 to 10",
        "1 2 3 4 5 6 7 8 9 10",
        "5.5",
        "7/2",
        "50%",
        "a" * 100_000,
        "7 " * 50_000,
        "7" + " " * 100_000,
    ],
    ids=lambda text: text[:20],
)
async def test_without_one_whole_number_nothing_is_earned(text: str):
    (result,) = await play(1, 10, 7, text)
    assert result.reward == 0.0
    assert result.info["guess"] is None
    assert result.observation == "No number found. Guess one from 1 to 10."


async def test_repeating_the_feedback_is_no_guess():
    first, second = await play(6, 8, 8, "7", "Higher. Guess from 8 to 8.")
    assert first.observation == "Higher. Guess from 8 to 8."
    assert second.reward == 0.0


@given(st.data())
async def test_the_feedback_alone_says_where_the_secret_is(data: st.DataObject):
    low = data.draw(st.integers(1, 50))
    high = data.draw(st.integers(low, 99))
    secret = data.draw(st.integers(low, high))
    size = high - low + 1
    for result in await play(low, high, secret, *data.draw(st.lists(st.integers(0, 100).map(str), max_size=8))):
        assert result.info["size"] == size
        if result.terminated:
            break
        words = str(result.observation).rstrip(".").split()
        left, right = int(words[-3]), int(words[-1])
        assert left <= secret <= right
        assert result.reward == (size - (right - left + 1)) / size
        size = right - left + 1


def expected_reward(size: int, guess: int) -> Fraction:
    """What guessing the guess-th of `size` numbers earns on average: 1 if right, else the share removed."""
    below, above = guess - 1, size - guess
    return (
        Fraction(1, size)
        + Fraction(above, size) * Fraction(guess, size)
        + Fraction(below, size) * Fraction(size - below, size)
    )


def middles(size: int) -> set[int]:
    return {(size + 1) // 2, (size + 2) // 2}


async def test_the_formula_of_the_expectation_is_that_of_the_env():
    for guess in range(1, 8):
        rewards = [(await play(1, 7, secret, str(guess)))[0].reward for secret in range(1, 8)]
        assert sum(rewards) / 7 == pytest.approx(float(expected_reward(7, guess)))


def test_the_middle_earns_most_at_each_turn():
    for size in range(1, MAX_SIZE + 1):
        earned = {guess: expected_reward(size, guess) for guess in range(1, size + 1)}
        assert {guess for guess in earned if earned[guess] == max(earned.values())} == middles(size)


@cache
def best_sum(size: int) -> tuple[Fraction, Fraction]:
    """The most that any strategy earns in sum, and the most turns that a strategy which earns it takes on average."""
    if size == 0:
        return Fraction(0), Fraction(0)
    outcomes = []
    for guess in range(1, size + 1):
        below, above = best_sum(guess - 1), best_sum(size - guess)
        shares = Fraction(guess - 1, size), Fraction(size - guess, size)
        reward = expected_reward(size, guess) + shares[0] * below[0] + shares[1] * above[0]
        outcomes.append((reward, 1 + shares[0] * below[1] + shares[1] * above[1]))
    return max(outcomes)


@cache
def bisection_sum(size: int) -> Fraction:
    if size == 0:
        return Fraction(0)
    guess = (size + 1) // 2
    return (
        expected_reward(size, guess)
        + Fraction(guess - 1, size) * bisection_sum(guess - 1)
        + Fraction(size - guess, size) * bisection_sum(size - guess)
    )


def test_whoever_earns_the_most_in_sum_takes_as_few_turns_as_bisection():
    for size in range(1, MAX_SIZE + 1):
        most, turns = best_sum(size)
        assert float(turns) == pytest.approx(bisection_turns(1, size))
        assert bisection_sum(size) > Fraction(999, 1000) * most


def test_bisections_turns_are_those_of_playing_it():
    @cache
    def total(size: int) -> int:
        if size == 0:
            return 0
        guess = (size + 1) // 2
        return size + total(guess - 1) + total(size - guess)

    for size in range(1, 200):
        assert bisection_turns(5, size + 4) == total(size) / size


def test_no_strategy_takes_fewer_turns_than_bisection():
    least = [0]
    for size in range(1, 65):
        least.append(size + min(least[guess] + least[size - guess - 1] for guess in range(size)))
        assert bisection_turns(1, size) == least[size] / size


def test_bisection_needs_an_interval():
    with pytest.raises(ConfigError, match=r"^low=3 must not be greater than high=2$"):
        bisection_turns(3, 2)


async def test_demonstrations_find_every_secret_by_bisection():
    source, rng = GuessNumberTasks(), np.random.default_rng(0)
    turns, best = 0, 0.0
    async with make("GuessNumber-v0") as env:
        for index in range(1000):
            task = source.task(index)
            await env.reset(options=task.options)
            guesses = env.demonstrations(task, rng) or ()
            results = [await env.step(Action(text=text)) for text in guesses]
            assert tuple(results[-1])[1:3] == (1.0, True)
            turns += len(results)
            best += bisection_turns(task.options["low"], task.options["high"])
    assert turns == pytest.approx(best, rel=0.05)


async def test_too_many_turns_truncate():
    async with make("GuessNumber-v0") as env:
        await env.reset(options={"low": 1, "high": 9, "secret": 9})
        results = [await env.step(Action(text="1")) for _ in range(spec("GuessNumber-v0").max_turns or 0)]
    assert [tuple(result)[2:4] for result in results] == [(False, False)] * (len(results) - 1) + [(False, True)]


def test_the_secret_is_uniform():
    counts = np.zeros(10, dtype=int)
    source = GuessNumberTasks(max_number=10, min_size=10)
    for index in range(2000):
        counts[source.task(index).options["secret"] - 1] += 1
    assert counts.min() > 150  # each is 200 on average, with a standard deviation of 13
    assert counts.max() < 250


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"low": 1, "high": 9},
            "GuessNumber-v0 needs the options low, high and secret, all integers; the task has {'low': 1, 'high': 9}",
        ),
        (
            {"low": "a", "high": 9, "secret": 3},
            "GuessNumber-v0 needs the options low, high and secret, all integers; "
            "the task has {'low': 'a', 'high': 9, 'secret': 3}",
        ),
        ({"low": 1, "high": 9, "secret": 10}, "GuessNumber-v0: secret=10 must lie from low=1 to high=9"),
    ],
)
async def test_a_task_that_cant_be_played_is_refused(options: dict, message: str):
    with pytest.raises(ConfigError) as caught:
        await GuessNumberEnv().reset(options=options)
    assert str(caught.value) == message
