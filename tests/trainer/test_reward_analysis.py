"""The analysis says what earned rewards, warns where form explains more than the task, and trusts no text."""

from __future__ import annotations

import csv
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from turngym.agents import Ending, Episode, EpisodeBuilder, EpisodeWriter, Failure
from turngym.agents.engine import Generation, VersionSpan
from turngym.envs import SamplingParams, Task
from turngym.envs.errors import DataError
from turngym.trainer.reward_reports.analysis import analyse, save_reward_analysis
from turngym.trainer.reward_reports.features import FAULTS, SHAPES, features_of, holds_label
from turngym.trainer.reward_reports.findings import RewardAnalysis
from turngym.trainer.reward_reports.report import as_csv, as_markdown
from turngym.trainer.reward_reports.shown_text import fenced, head, markdown
from turngym.trainer.reward_reports.statistics import explained, pearson, ranks, skewness, spearman, variance_parts

FLOATS = st.floats(-1e6, 1e6)


def episode(
    text: str = "4",
    reward: float = 0.0,
    *,
    slot: int = 0,
    member: int = 0,
    score: float | None = None,
    parts: dict[str, Any] | None = None,
    prompt: str = "What is 2 + 2?",
    task_id: str | None = None,
    is_cut: bool = False,
    failure: Failure | None = None,
) -> Episode:
    """One turn, with a token for each word."""
    builder = EpisodeBuilder(
        episode_id=f"0000-{slot:08d}-{member:04d}-00", task_id=task_id or f"sum/{slot}", slot=slot, member=member
    )
    count = len(text.split())
    builder.observe([1])
    builder.act(
        Generation(
            token_ids=tuple(range(count)),
            logprobs=(-1.0,) * count,
            finish_reason="length" if is_cut else "stop",
            versions=(VersionSpan(0, count),) if count else (),
        ),
        sampling=SamplingParams(),
        text=text,
    )
    output = None if parts is None else {"name": "r", "value": reward, "metadata": parts}
    builder.feed_back(reward=reward, score=score, info={} if output is None else {"reward": output})
    ending = Ending.TERMINATED if failure is None else Ending.ENV_FAILED
    return builder.finish(ending, failure=failure, prompt=prompt)


Played = tuple[str, float, float | None]
"""Response, reward, score."""


def write_run(
    folder: Path,
    play: Callable[[np.random.Generator, int, int], Played],
    *,
    updates: int = 6,
    groups: int = 6,
    size: int = 6,
) -> Path:
    """A run whose episodes `play(random, update, slot)` gives."""
    random, writer = np.random.default_rng(0), EpisodeWriter(folder)
    for update in range(updates):
        episodes = []
        for slot in range(update * groups, (update + 1) * groups):
            for member in range(size):
                text, reward, score = play(random, update, slot)
                episodes.append(episode(text, reward, slot=slot, member=member, score=score))
        writer.write(episodes, update=update)
    return folder


def words(random: np.random.Generator, count: int) -> str:
    return " ".join(random.choice(["so", "it", "must", "be", "right", "then", "and", "thus"], count))


def by_length(random: np.random.Generator, update: int, slot: int) -> Played:
    text = words(random, int(random.integers(1, 40)))
    return text, len(text.split()) / 40 + 0.3 * random.random(), float(random.random() < 0.5)


def by_task(random: np.random.Generator, update: int, slot: int) -> Played:
    is_right = float(random.random() < 0.5)
    return words(random, int(random.integers(1, 40))), is_right, is_right


def by_format(random: np.random.Generator, update: int, slot: int) -> Played:
    text = words(random, int(random.integers(5, 9)))
    bold = random.random() < 0.5
    return (f"**Answer** {text}" if bold else text), 0.2 * random.random() + 0.8 * bold, None


def harder_is_longer(random: np.random.Generator, update: int, slot: int) -> Played:
    """Hard tasks take long answers and earn little; between answers to one task, length makes no difference."""
    hardness = slot % 6
    return words(random, 3 + 5 * hardness + int(random.integers(0, 3))), 1 - hardness / 6 + 0.1 * random.random(), None


def empty_or_not(random: np.random.Generator, update: int, slot: int) -> Played:
    text = "" if random.random() < 0.4 else words(random, 5)
    return text, float(bool(text)) * (0.5 + 0.5 * random.random()), None


def best_in_the_middle(random: np.random.Generator, update: int, slot: int) -> Played:
    text = words(random, count := int(random.integers(1, 40)))
    return text, math.exp(-(((count - 20) / 8) ** 2)), None


# The rule


def test_it_warns_where_longer_responses_earn_more_whatever_the_task(tmp_path: Path) -> None:
    analysis = analyse(write_run(tmp_path, by_length))
    (warning,) = analysis.warnings
    assert re.fullmatch(
        r"Length explains 9\d% of the variance of what responses earn \(9\d% within groups\), and the task \d%: "
        "longer responses earn more. Read the responses that earn most; the reward may pay for form",
        warning,
    )
    assert analysis.suspicion.by_score < 0.05
    assert analysis.length.spearman > 0.9


def test_it_warns_where_the_middle_length_earns_most(tmp_path: Path) -> None:
    analysis = analyse(write_run(tmp_path, best_in_the_middle))
    assert abs(analysis.length.spearman) < 0.3
    (warning,) = analysis.warnings
    assert "responses of some lengths earn more than shorter and longer ones" in warning


def test_it_warns_where_the_format_earns(tmp_path: Path) -> None:
    (warning,) = analyse(write_run(tmp_path, by_format)).warnings
    assert warning.startswith("Format explains 9")
    assert "responses with Markdown earn more" in warning


@pytest.mark.parametrize("play", [by_task, harder_is_longer, empty_or_not])
def test_it_does_not_warn_where_something_else_than_form_earns(tmp_path: Path, play: Any) -> None:
    assert analyse(write_run(tmp_path, play)).warnings == ()


def test_length_that_goes_with_the_task_alone_explains_much_over_all_and_nothing_inside(tmp_path: Path) -> None:
    found = analyse(write_run(tmp_path, harder_is_longer)).suspicion
    assert found.length > 0.8
    assert found.length_inside < 0.1
    assert found.between_tasks > 0.8


@pytest.mark.parametrize(("pay", "holds_cut", "num_warnings"), [(1.0, True, 1), (0.0, False, 0)])
def test_cut_responses_count_where_they_earn_no_less(
    tmp_path: Path, pay: float, holds_cut: bool, num_warnings: int
) -> None:
    """Half of the responses are cut at 40 words; where length pays they earn most, else nothing."""
    random, episodes = np.random.default_rng(0), []
    for slot in range(20):
        for member in range(6):
            count = 40 if member % 2 else int(random.integers(1, 40))
            reward = count / 40 if pay else float(member % 2 == 0 and random.random() < 0.5)
            episodes.append(episode(words(random, count), reward, slot=slot, member=member, is_cut=count == 40))
    EpisodeWriter(tmp_path).write(episodes)
    analysis = analyse(tmp_path)
    assert (analysis.suspicion.holds_cut, len(analysis.warnings)) == (holds_cut, num_warnings)
    assert analysis.suspicion.num_episodes == (120 if holds_cut else 60)


def test_few_episodes_are_not_compared(tmp_path: Path) -> None:
    analysis = analyse(write_run(tmp_path, by_length, updates=1))
    assert analysis.suspicion.num_episodes == 36
    assert math.isnan(analysis.suspicion.length)
    assert analysis.warnings == ()


def test_a_score_that_is_the_reward_over_again_is_no_evidence(tmp_path: Path) -> None:
    def play(random: np.random.Generator, update: int, slot: int) -> Played:
        text, reward, _ = by_length(random, update, slot)
        return text, reward, min(max(reward, 0.0), 1.0)

    analysis = analyse(write_run(tmp_path, play))
    assert math.isnan(analysis.suspicion.by_score)
    assert len(analysis.warnings) == 1


def test_a_label_clears_a_reward_that_only_right_answers_earn(tmp_path: Path) -> None:
    """Right answers are longer here, so that length alone would look like the cause."""

    def play(random: np.random.Generator, update: int, slot: int) -> Played:
        is_right = random.random() < 0.5
        return ("the answer that was asked for is 42" if is_right else "41"), float(is_right), float(is_right)

    run = write_run(tmp_path, play)
    tasks = {f"sum/{slot}": Task(id=f"sum/{slot}", options={"label": "42"}) for slot in range(36)}
    assert len(analyse(run, tasks={}).warnings) == 1
    cleared = analyse(run, tasks=tasks)
    assert cleared.suspicion.by_label == pytest.approx(1.0)
    assert cleared.warnings == ()


# What it finds


@pytest.fixture(scope="module")
def hacked(tmp_path_factory: pytest.TempPathFactory) -> RewardAnalysis:
    return analyse(write_run(tmp_path_factory.mktemp("hacked"), by_length))


def test_the_numbers_are_those_of_the_episodes(hacked: RewardAnalysis) -> None:
    rewards = np.array([row.reward for row in hacked.rows])
    assert (hacked.num_episodes, hacked.num_groups, hacked.num_failed) == (216, 36, 0)
    assert (hacked.mean, hacked.std, hacked.variance) == pytest.approx((rewards.mean(), rewards.std(), rewards.var()))
    assert (hacked.least, hacked.greatest) == (rewards.min(), rewards.max())
    assert [u.mean for u in hacked.updates] == pytest.approx(rewards.reshape(6, 36).mean(axis=1))
    assert [u.std for u in hacked.updates] == pytest.approx(rewards.reshape(6, 36).std(axis=1))


def test_examples_are_those_that_earn_most_and_least(hacked: RewardAnalysis) -> None:
    rewards = sorted(row.reward for row in hacked.rows)
    assert [row.reward for row in hacked.best] == rewards[:-6:-1]
    assert hacked.worst[0].reward == rewards[0]
    assert len({row.response for row in hacked.worst}) == 5


def test_drift_compares_the_first_third_with_the_last(tmp_path: Path) -> None:
    run = write_run(tmp_path, lambda _, update, slot: ("a b", update + slot % 2, None))
    drift = analyse(run).drift
    assert drift is not None
    assert (drift.first_mean, drift.last_mean) == (1.0, 5.0)
    assert drift.change_error == pytest.approx(math.sqrt(0.5 / 2 + 0.5 / 2))
    assert (drift.first_std, drift.last_std) == (0.5, 0.5)
    assert analyse(write_run(tmp_path / "short", by_task, updates=2)).drift is None


def test_groups_without_signal_failures_and_endings_are_counted(tmp_path: Path) -> None:
    failure = Failure(kind="infra", where="step", error="StepTimeoutError", message="m")
    writer = EpisodeWriter(tmp_path)
    writer.write(
        [
            *(episode(reward=0.5, slot=0, member=m) for m in range(3)),
            *(episode(reward=float(m), slot=1, member=m) for m in range(2)),
            episode(slot=2),
            episode(slot=2, member=1, failure=failure),
        ]
    )
    analysis = analyse(tmp_path)
    assert (analysis.num_episodes, analysis.num_groups, analysis.num_failed) == (6, 3, 1)
    assert analysis.without_signal == 0.5
    assert analysis.endings == {"terminated": 6, "env_failed": 1}
    assert analysis.failures == {"StepTimeoutError": 1}


def test_parts_are_compared_with_the_total_over_all_and_within_groups(tmp_path: Path) -> None:
    """The part `task` tells groups apart and nothing else; `own` tells siblings apart."""
    episodes = [
        episode(reward=slot + member / 10, slot=slot, member=member, parts={"task": slot, "own": member, "text": "x"})
        for slot in range(3)
        for member in range(3)
    ]
    EpisodeWriter(tmp_path).write(episodes)
    own, task = analyse(tmp_path).parts
    assert (own.name, own.num_episodes, own.mean, own.inside) == ("own", 9, 1.0, pytest.approx(1.0))
    assert own.pearson < 0.2
    assert (task.name, task.pearson > 0.9, math.isnan(task.inside)) == ("task", True, True)


def test_kinds_of_response_are_contrasted_over_all_and_within_groups(tmp_path: Path) -> None:
    """Digits occur in tasks that earn more, and make no difference between siblings."""
    play = [("1 2", 1.0), ("b c", 1.0), ("1 2", 1.0)], [("b c", 0.0), ("1 2", 0.0), ("b c", 0.0)]
    EpisodeWriter(tmp_path).write(
        [episode(t, r, slot=s, member=m) for s, members in enumerate(play) for m, (t, r) in enumerate(members)]
    )
    (digits,) = analyse(tmp_path).contrasts
    assert (digits.feature, digits.share) == ("digits", 0.5)
    assert digits.difference == pytest.approx(1 / 3)
    assert digits.effect == pytest.approx(2 / 3)
    assert digits.inside == pytest.approx(0.0)


def test_beginnings_fall_together_whatever_their_numbers(tmp_path: Path) -> None:
    texts = [*(f"It is {n}" for n in range(6)), *(f"No, {n}" for n in range(6)), "rare"]
    EpisodeWriter(tmp_path).write(
        [episode(t, float(t.startswith("It")), slot=i, member=0) for i, t in enumerate(texts)]
    )
    analysis = analyse(tmp_path)
    assert [(o.opening, o.num_episodes, o.mean) for o in analysis.best_openings] == [("it is #", 6, 1.0)]
    assert [(o.opening, o.num_episodes, o.mean) for o in analysis.worst_openings] == [("no, #", 6, 0.0)]


def test_a_group_holds_the_members_that_were_scored_again_and_no_other_draw(tmp_path: Path) -> None:
    first, again = episode(member=0), replace(episode(member=1), episode_id="scored1-0000-00000000-0000-00")
    other = replace(episode(member=0), episode_id="draw1-0000-00000000-0000-00")
    EpisodeWriter(tmp_path).write([first, again, other])
    analysis = analyse(tmp_path)
    assert [row.member for row in analysis.rows] == [0, 1, 0]
    assert analysis.groups == (0, 0, 1)


def test_of_a_larger_run_whole_groups_are_sampled_and_counts_are_of_all(tmp_path: Path) -> None:
    run = write_run(tmp_path, by_task)
    sample = analyse(run, max_episodes=60)
    assert len(sample.rows) == 60
    assert np.bincount(sample.groups).tolist() == [6] * 10
    assert sample.num_episodes == 216
    assert [u.num_episodes for u in sample.updates] == [36] * 6
    assert sample.rows == analyse(run, max_episodes=60).rows


def test_evaluations_are_analysed_apart(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path)
    writer.write([episode(reward=1.0)], split="eval", update=3)
    assert analyse(tmp_path, split="eval").mean == 1.0
    with pytest.raises(DataError, match=r"holds no episodes of split 'train'; give a run's folder"):
        analyse(tmp_path)


def test_a_run_of_failures_only_is_told_without_numbers(tmp_path: Path) -> None:
    failure = Failure(kind="infra", where="step", error="E", message="m")
    EpisodeWriter(tmp_path).write([episode(failure=failure)])
    analysis = analyse(tmp_path)
    assert (analysis.num_episodes, analysis.num_failed) == (0, 1)
    assert math.isnan(analysis.mean)
    assert save_reward_analysis(analyse(tmp_path)).is_file()


# The files

PLOTS = {"rewards.png", "distribution.png", "length.png", "kinds.png", "parts.png", "signal.png"}
HOSTILE = "```\n# Owned\n| a | b |\n<script>alert(1)</script> $x$ [click](http://evil) \x1b[31m\u202e\ud800"


@pytest.mark.slow
def test_report_table_and_plots_lie_in_the_runs_folder_whatever_responses_hold(tmp_path: Path) -> None:
    hostile = HOSTILE.encode("utf-8", "backslashreplace").decode()
    writer = EpisodeWriter(tmp_path)
    for update in range(3):
        writer.write(
            [
                episode(
                    f"{hostile} {member}" if member % 2 else "4",
                    member / 4,
                    slot=update * 2 + group,
                    member=member,
                    parts={hostile: member, "_ $": 1, "名": 0.5},
                    prompt=hostile,
                    task_id=f"={hostile}{group}",
                )
                for group in range(2)
                for member in range(4)
            ],
            update=update,
        )
    report = save_reward_analysis(analyse(tmp_path))
    text = report.read_text(encoding="utf-8")
    assert report == tmp_path / "reward_analysis" / "report.md"
    assert {path.name for path in report.parent.iterdir()} == {"report.md", "table.csv", *PLOTS}
    assert all(line.isprintable() for line in text.splitlines())
    outside = re.sub(r"^````+text\n.*?\n````+$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"(?<!\\)<script|(?<!\\)\[click|https?(?!\\):|^```|^# Owned", outside, re.MULTILINE)
    lines = list(csv.DictReader((report.parent / "table.csv").read_text(encoding="utf-8").splitlines()))
    assert len(lines) == 24
    assert all(line["task_id"].startswith("'=") for line in lines)
    assert [float(line["reward"]) for line in lines[:4]] == [0.0, 0.25, 0.5, 0.75]


def test_without_matplotlib_the_report_says_how_to_get_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    EpisodeWriter(tmp_path).write([episode()])
    report = save_reward_analysis(analyse(tmp_path))
    assert "they need matplotlib; pip install 'turngym\\[plots\\]'" in report.read_text(encoding="utf-8")
    assert {path.name for path in report.parent.iterdir()} == {"report.md", "table.csv"}


def test_warnings_stand_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text = save_reward_analysis(analyse(write_run(tmp_path, by_length))).read_text(encoding="utf-8")
    assert text.split("\n\n")[1].startswith("**WARNING** Length explains 9")


@given(st.text())
def test_a_fence_holds_any_text(text: str) -> None:
    block = fenced([text.replace("\n", "")])
    fence = block.partition("text\n")[0]
    assert set(fence) == {"`"}
    assert fence not in block.removeprefix(fence).removesuffix(fence)


@given(st.text(), st.integers(1, 50))
def test_a_head_is_one_printable_line_of_at_most_its_width(text: str, width: int) -> None:
    assert head(text, width).isprintable()
    assert len(head(text, width)) <= width
    assert not re.search(r"(?<!\\)(?:\\\\)*[|`<\[*_]", markdown(text, width))


@given(st.lists(st.tuples(st.text(max_size=30), st.floats(-1e38, 1e38), st.booleans()), max_size=8), st.integers(1, 4))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_responses_and_rewards_have_findings_and_a_report(
    tmp_path: Path, played: list[tuple[str, float, bool]], size: int
) -> None:
    """Eight times over, so that there are enough to compare."""
    episodes = [
        episode(text, reward, slot=index // size, member=index % size, parts={text: reward}, is_cut=is_cut)
        for index, (text, reward, is_cut) in enumerate(played * 8)
    ]
    EpisodeWriter(tmp_path).write(episodes)
    analysis = analyse(tmp_path, tasks={})
    assert analysis.num_episodes == len(episodes)
    text = as_markdown(analysis, plots={})
    assert all(line.isprintable() for line in text.split("\n"))
    assert as_csv(analysis.rows, analysis.groups).count("\n") == len(episodes) + 1


# Features


@pytest.mark.parametrize(
    ("response", "found"),
    [
        ("four", []),
        ("4", ["digits"]),
        ("one\ntwo", ["line breaks"]),
        ("one\n", []),
        ("- one", ["Markdown"]),
        ("**four**", ["Markdown"]),
        ("# Four", ["Markdown"]),
        ("<answer>four</answer>", ["tags"]),
        ("a < b and b > c", []),
        ("one two three four " * 3, ["repetitions"]),
        ("What is two plus two? Four.", ["a copy of the prompt"]),
        (" \n\t ", ["empty"]),
        ("", ["empty"]),
    ],
)
def test_features_of_a_response(response: str, found: Sequence[str]) -> None:
    features = features_of([response], "What is two plus two?")
    assert [name for name, there in features.items() if there] == found


def test_every_feature_is_described() -> None:
    assert [*features_of([""], "")] == [*SHAPES, *FAULTS]


def test_turns_are_no_line_breaks() -> None:
    assert not features_of(["one", "two"], "")["line breaks"]


@pytest.mark.parametrize(
    ("response", "label", "expected"),
    [
        ("It is 1,234.0.", "1234", True),
        ("It is 4, not 5", "4", False),
        ("-3", -3, True),
        ("none", "3", False),
        ("It is PARIS.", "Paris", True),
        ("Parisian", "Paris", False),
        ("new\n york", "New York", True),
        ("4", None, None),
        ("4", "", None),
        ("4", True, None),
        ("4", ["4"], None),
        ("9" * 300, "9" * 300, True),
        ("9" * 501, "9" * 501, None),
        ("1" * 400, "2" * 400, False),
    ],
)
def test_a_label_is_the_last_number_or_whole_words(response: str, label: object, expected: bool | None) -> None:
    assert holds_label(response, label) is expected


def test_a_label_that_cannot_be_written_out_is_unknown() -> None:
    assert holds_label("9", 10**5000) is None


@given(st.text(), st.text() | st.integers() | st.floats())
def test_any_text_has_features_and_holds_a_label_or_not(text: str, label: object) -> None:
    assert set(features_of([text, text], text)) == {*SHAPES, *FAULTS}
    assert holds_label(text, label) in (True, False, None)


# Statistics


def test_ranks_share_the_mean_of_equals() -> None:
    assert ranks(np.array([5.0, 1.0, 5.0, 5.0, 7.0])).tolist() == [2.0, 0.0, 2.0, 2.0, 4.0]


def test_correlations_against_numbers_worked_out_by_hand() -> None:
    """x - 2.5 = -1.5 -0.5 0.5 1.5 and y - 3 = -2 0 -1 3: 7 / sqrt(5 * 14). Ranks 0 2 1 3: 1 - 6 * 2 / (4 * 15)."""
    x, y = np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 6])
    assert pearson(x, y) == pytest.approx(7 / math.sqrt(70))
    assert spearman(x, y) == pytest.approx(0.8)
    assert math.isnan(pearson(x, np.ones(4)))
    assert math.isnan(pearson(np.array([]), np.array([])))


def test_skewness_against_a_number_worked_out_by_hand() -> None:
    """Mean 1, deviations -1 -1 -1 3, variance 3, third moment 6: 6 / 3^1.5."""
    assert skewness(np.array([0.0, 0, 0, 4])) == pytest.approx(6 / 3**1.5)
    assert math.isnan(skewness(np.full(3, 0.1)))


def test_variance_parts_against_numbers_worked_out_by_hand() -> None:
    """Groups (0, 2) and (4, 6): MSW = (2 + 2) / 2 = 2, MSB = 2 * (4 + 4) / 1 = 16, between = (16 - 2) / 2 = 7."""
    parts = variance_parts(np.array([0.0, 2, 4, 6]), np.array([0, 0, 1, 1]))
    assert (parts.within, parts.between, parts.icc) == pytest.approx((2, 7, 7 / 9))
    same = variance_parts(np.array([0.0, 2, 0, 2]), np.array([0, 0, 1, 1]))
    assert (same.within, same.between, same.icc) == (2, 0, 0)
    assert math.isnan(variance_parts(np.array([0.0, 1]), np.array([0, 1])).icc)
    assert math.isnan(variance_parts(np.zeros(4), np.array([0, 0, 1, 1])).icc)


def test_explained_variance_against_a_number_worked_out_by_hand() -> None:
    """R^2 = 0.7 of the correlation above; adjusted 1 - 0.3 * 3 / 2."""
    x, y = np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 6])
    assert explained(y, x[:, None]) == pytest.approx(0.55)
    twice = np.stack([x, 2 * x + 1, np.ones(4)], axis=1)  # what adds nothing costs no degree of freedom
    assert explained(y, twice) == pytest.approx(0.55)


def test_within_groups_only_differences_between_siblings_are_explained() -> None:
    groups = np.repeat(np.arange(10), 4)
    task, own = groups.astype(float), np.tile([0.0, 1, 2, 3], 10)
    assert explained(task + own, task[:, None], groups=groups) == 0.0
    assert explained(task + own, own[:, None], groups=groups) == pytest.approx(1.0)
    assert math.isnan(explained(task * 0.1, own[:, None], groups=groups))


def test_noise_explains_nothing_however_many_features_there_are() -> None:
    random = np.random.default_rng(0)
    assert explained(random.random(200), random.random((200, 30))) < 0.1


@given(st.lists(st.tuples(FLOATS, FLOATS, st.integers(0, 3)), max_size=12))
def test_statistics_stay_in_their_range_or_are_nan(rows: list[tuple[float, float, int]]) -> None:
    x, y = (np.array([row[i] for row in rows], dtype=np.float64) for i in (0, 1))
    groups = np.array([row[2] for row in rows], dtype=np.int64)
    for correlation in (pearson(x, y), spearman(x, y)):
        assert math.isnan(correlation) or -1 <= correlation <= 1
    for share in (explained(y, x[:, None]), explained(y, x[:, None], groups=groups), variance_parts(y, groups).icc):
        assert math.isnan(share) or 0 <= share <= 1 + 1e-9
