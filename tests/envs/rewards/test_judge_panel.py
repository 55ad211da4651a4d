"""A panel is the mean or median of its judges, and says what each of them gave."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.envs.errors import ConfigError, InvalidRewardError, RewardError
from turngym.envs.rewards import FunctionReward, JudgePanel, RewardOutput, Trajectory, score_group
from turngym.envs.rewards.judge.panel import weighted_mean, weighted_median

from .judge_server import Asked, JudgeServer, Reply, judge_of, rated, refused

SHARES = st.floats(0, 1)
WEIGHTS = st.floats(0.01, 100)


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    """Models are called after the rating that they give; `broken` gives none."""

    def answer(asked: Asked) -> Reply:
        model = asked.body["model"]
        return refused(401) if model == "broken" else rated(int(model), reason=f"I am {model}.")

    with JudgeServer(answer) as server:
        yield server


def judges(server: JudgeServer, *models: str, **arguments: Any) -> list[Any]:
    return [judge_of(server, judge_model=model, name=f"judge {model}", **arguments) for model in models]


async def scored(panel: JudgePanel) -> RewardOutput | RewardError:
    (one,) = await score_group(panel, [Trajectory(response="4")])
    return one


async def output_of(panel: JudgePanel) -> RewardOutput:
    one = await scored(panel)
    assert isinstance(one, RewardOutput)
    return one


async def test_the_weighted_mean_counts_and_each_judge_is_in_the_metadata(server: JudgeServer) -> None:
    panel = JudgePanel(list(zip(judges(server, "1", "10", price_per_million=(10, 0)), (3, 1), strict=True)))
    output = await output_of(panel)
    assert output.reward == pytest.approx(0.25)
    metadata = output.metadata
    assert (metadata["judge 1"], metadata["judge 10"], metadata["failed_judges"]) == (0.0, 1.0, 0)
    assert metadata["judge 10/reason"] == "I am 10."
    assert (metadata["requests"], metadata["prompt_tokens"]) == (2, 200)
    assert metadata["cost"] == pytest.approx(0.002)


async def test_the_median_is_not_moved_far_by_one_judge(server: JudgeServer) -> None:
    for models, reward in ((("1", "4", "10"), 3 / 9), (("3", "4", "1"), 2 / 9), (("1", "4", "7", "10"), 4.5 / 9)):
        output = await output_of(JudgePanel(judges(server, *models), combine="median"))
        assert output.reward == pytest.approx(reward)


async def test_judges_of_the_same_name_are_numbered(server: JudgeServer) -> None:
    panel = JudgePanel([judge_of(server, judge_model=model) for model in ("1", "10")])
    output = await output_of(panel)
    assert (output.metadata["LLMJudge"], output.metadata["LLMJudge_2"]) == (0.0, 1.0)


async def test_one_judge_that_fails_fails_the_episode(server: JudgeServer) -> None:
    error = await scored(JudgePanel(judges(server, "1", "broken")))
    assert str(error) == (
        f"JudgePanel: judge broken: 'broken' at {server.url} answered 401 (no); check the key (given as api_key)"
    )


async def test_with_min_judges_the_others_count(server: JudgeServer) -> None:
    output = await output_of(JudgePanel(judges(server, "1", "broken", "10"), min_judges=2))
    assert output.reward == pytest.approx(0.5)
    assert output.metadata["failed_judges"] == 1
    assert "judge broken" not in output.metadata
    error = await scored(JudgePanel(judges(server, "broken", "1", "broken"), min_judges=2))
    trouble = f"'broken' at {server.url} answered 401 (no); check the key (given as api_key)"
    assert str(error) == (
        "JudgePanel: 1 of 3 judges answered, and 2 must; the others failed: "
        f"judge broken: {trouble}; judge broken: {trouble}"
    )


async def test_a_judge_that_breaks_the_contract_is_never_left_out(server: JudgeServer) -> None:
    panel = JudgePanel([*judges(server, "1"), FunctionReward(lambda trajectory: "good", name="bad")], min_judges=1)
    error = await scored(panel)
    assert isinstance(error, InvalidRewardError)


async def test_what_a_group_gets_does_not_depend_on_its_order(server: JudgeServer) -> None:
    panel = JudgePanel(judges(server, "2", "5"))
    trajectories = [Trajectory(response=str(n)) for n in range(6)]
    assert await score_group(panel, trajectories) == (await score_group(panel, trajectories[::-1]))[::-1]
    await panel.aclose()


def test_the_range_is_that_of_the_judges(server: JudgeServer) -> None:
    assert JudgePanel(judges(server, "1", "2")).reward_range == (0.0, 1.0)
    assert JudgePanel([*judges(server, "1"), *judges(server, "2", scale=-2.0, clip=1.5)]).reward_range == (-1.5, 1.0)


@pytest.mark.parametrize(
    ("given", "arguments", "message"),
    [
        ([], {}, "a panel needs at least one judge: JudgePanel([judge, ...]) or [(judge, weight), ...]"),
        ([(len, 0)], {}, "a weight=0 must be greater than 0"),
        ([len], {"combine": "max"}, "combine='max' must be 'mean' or 'median'"),
        ([len], {"min_judges": 2}, "min_judges=2 must be an integer from 1 to 1, all judges"),
        ([len], {"min_judges": 0}, "min_judges=0 must be an integer from 1 to 1, all judges"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(given: list[Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        JudgePanel(given, **arguments)
    assert str(caught.value) == message


@given(st.lists(st.tuples(SHARES, WEIGHTS), min_size=1, max_size=9))
def test_mean_and_median_lie_within_the_values(pairs: list[tuple[float, float]]) -> None:
    values, weights = zip(*pairs, strict=True)
    for combined in (weighted_mean(values, weights), weighted_median(values, weights)):
        assert min(values) <= combined <= max(values)


@given(st.lists(SHARES, min_size=1, max_size=9), WEIGHTS)
def test_with_equal_weights_they_are_the_usual_ones(values: list[float], weight: float) -> None:
    weights = [weight] * len(values)
    assert weighted_mean(values, weights) == pytest.approx(statistics.fmean(values))
    assert weighted_median(values, weights) == pytest.approx(statistics.median(values))


@given(st.lists(st.tuples(SHARES, st.integers(1, 4)), min_size=1, max_size=6))
def test_a_weight_counts_as_so_many_judges(pairs: list[tuple[float, int]]) -> None:
    values, weights = zip(*pairs, strict=True)
    repeated = [value for value, count in pairs for _ in range(count)]
    assert weighted_median(values, weights) == pytest.approx(statistics.median(repeated))
    assert weighted_mean(values, weights) == pytest.approx(statistics.fmean(repeated))
