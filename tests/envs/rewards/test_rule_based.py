import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.envs.errors import ConfigError
from turngym.envs.rewards import FormatReward, KeywordReward, LengthReward, Trajectory
from turngym.envs.rewards.rule_based import MAX_PATTERN_CHARS


def words(count: int) -> Trajectory:
    return Trajectory(response="word " * count)


def said(text: str) -> Trajectory:
    return Trajectory(response=text)


@pytest.mark.parametrize(
    ("reward_type", "values"),
    [("gaussian", (1.0, math.exp(-1 / 2), math.exp(-2), math.exp(-9 / 2))), ("linear", (1.0, 0.5, 0.0, 0.0))],
)
def test_length_at_no_one_two_and_three_tolerances(reward_type: Any, values: tuple[float, ...]):
    reward = LengthReward(target_length=100, tolerance=20, reward_type=reward_type)
    for off, value in enumerate(values):
        assert reward(words(100 + 20 * off)).reward == pytest.approx(value)
        assert reward(words(100 - 20 * off)).reward == pytest.approx(value)


def test_the_values_that_the_docs_name():
    reward = LengthReward(target=100, tolerance=20)
    assert [round(reward(words(count)).reward, 3) for count in (100, 120, 140)] == [1.0, 0.607, 0.135]


def test_length_has_the_documented_defaults():
    reward = LengthReward()
    assert (reward.target_length, reward.tolerance, reward.reward_type) == (200, 50, "gaussian")
    assert reward(words(200)).reward == 1.0
    assert LengthReward(150, 30, "linear").target_length == 150


def test_length_counts_words():
    assert LengthReward()(said(" one\ttwo\nthree\u00a0four  ")).metadata == {"num_words": 4}
    assert LengthReward()(said("")).metadata == {"num_words": 0}


def test_target_is_a_synonym():
    assert LengthReward(target=150).target_length == LengthReward(target_length=150).target_length == 150
    assert LengthReward(target_length=150, target=150).target_length == 150
    assert LengthReward(target=0).target_length == 0
    with pytest.raises(ConfigError) as caught:
        LengthReward(target_length=150, target=200)
    assert str(caught.value) == "target_length=150 and target=200 mean the same thing; give one of them"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"tolerance": 0}, "tolerance=0 must be greater than 0"),
        ({"tolerance": math.nan}, "tolerance=nan must be a finite number"),
        ({"target": -1}, "target_length=-1 must be at least 0"),
        ({"target": "long"}, "target_length='long' must be a finite number"),
        ({"reward_type": "cubic"}, "reward_type='cubic' must be 'gaussian' or 'linear'"),
    ],
)
def test_lengths_that_make_no_sense_are_refused(kwargs: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        LengthReward(**kwargs)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "required", "forbidden", "reward"),
    [
        ("Reason: x\nAnswer: 4", ["Reason:", "Answer:"], [], 1.0),
        ("reason: x", ["Reason:", "Answer:"], [], 0.5),
        ("", ["Reason:", "Answer:"], [], 0.0),
        ("anything", [], [], 1.0),
        ("I am an AI", [], ["as an ai", r"\bI am\b"], 0.5),
        ("Answer: 4 TODO", ["answer:"], ["todo", "fixme"], 0.5),
        ("todo", ["answer:"], ["todo"], 0.0),
        ("STRASSE", ["straße"], [], 1.0),
        ("(.*)", ["(.*)"], [], 1.0),
        ("abc", ["(.*)"], [], 0.0),
        ("line\nTODO", [], ["^todo$"], 1.0),
        ("line\nTODO", [], ["(?m)^todo$"], 0.0),
    ],
)
def test_format_is_the_share_present_less_the_share_forbidden(
    text: str, required: list[str], forbidden: list[str], reward: float
):
    assert FormatReward(required_sections=required, forbidden_patterns=forbidden)(said(text)).reward == reward


def test_format_shows_its_shares():
    output = FormatReward(["a", "b"], ["c", "d", "e", "f"])(said("A c"))
    assert output.reward == 0.25
    assert output.metadata == {"required_share": 0.5, "forbidden_share": 0.25}


def test_patterns_are_looked_for_up_to_a_bound():
    reward = FormatReward(forbidden_patterns=["todo"], required_sections=["answer"])
    assert reward(said("x" * (MAX_PATTERN_CHARS - 4) + "todo answer")).reward == 0.0
    assert reward(said("x" * (MAX_PATTERN_CHARS - 3) + "todo answer")).reward == 1.0


def test_a_bad_pattern_is_refused_with_a_remedy():
    with pytest.raises(ConfigError) as caught:
        FormatReward(forbidden_patterns=["fine", "***"])
    assert str(caught.value) == (
        "forbidden_patterns holds '***', which is no regular expression: nothing to repeat at position 0; "
        r"if it is meant literally, write '\\*\\*\\*'"
    )


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"required_sections": "Answer:"}, "required_sections='Answer:' must be a list of texts"),
        ({"required_sections": None}, "required_sections=None must be a list of texts"),
        ({"required_sections": [""]}, "required_sections holds ''; it must be a list of texts that aren't blank"),
        ({"forbidden_patterns": [1]}, "forbidden_patterns holds 1; it must be a list of texts that aren't blank"),
    ],
)
def test_lists_must_be_lists_of_texts(kwargs: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        FormatReward(**kwargs)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "required", "bonus", "penalty", "reward"),
    [
        ("therefore, because", ["therefore", "because"], [], [], 1.0),
        ("THEREFORE", ["therefore", "because"], [], [], 0.5),
        ("", ["therefore"], [], [], 0.0),
        ("", [], [], [], 1.0),
        ("a b c", ["a", "x"], ["b", "c"], [], 0.7),
        ("a b", ["a"], ["b"], [], 1.0),
        ("a b c", ["a"], [], ["b"], 0.8),
        ("a b c d e f", ["a"], [], ["b", "c", "d", "e", "f"], 0.0),
        ("b", ["a"], [], ["b"], 0.0),
        ("b b b b", ["a"], ["b"], [], 0.1),
        ("a a a", ["a", "x"], ["a"], ["a"], 0.4),
    ],
)
def test_keywords_earn_share_bonus_and_penalty(
    text: str, required: list[str], bonus: list[str], penalty: list[str], reward: float
):
    for output in (
        KeywordReward(required, bonus, penalty)(said(text)),
        KeywordReward(required_keywords=required, bonus_keywords=bonus, penalty_keywords=penalty)(said(text)),
        KeywordReward(required=required, bonus=bonus, penalty=penalty)(said(text)),
    ):
        assert output.reward == pytest.approx(reward)


def test_keywords_show_what_was_found():
    output = KeywordReward(required=["a", "x"], bonus=["b", "c", "y"], penalty=["d"])(said("a b c d"))
    assert output.metadata == {"required_share": 0.5, "bonus_found": 2, "penalty_found": 1}


@pytest.mark.parametrize("name", ["required", "bonus", "penalty"])
def test_two_spellings_of_keywords_must_agree(name: str):
    same: dict[str, Any] = {name: ["a"], f"{name}_keywords": ["a"]}
    other: dict[str, Any] = {name: ["a"], f"{name}_keywords": ["b"]}
    text: dict[str, Any] = {name: "abc"}
    assert getattr(KeywordReward(**same), f"{name}_keywords") == ("a",)
    with pytest.raises(ConfigError) as caught:
        KeywordReward(**other)
    assert str(caught.value) == f"{name}_keywords=['b'] and {name}=['a'] mean the same thing; give one of them"
    with pytest.raises(ConfigError, match=rf"^{name}_keywords='abc' must be a list of texts$"):
        KeywordReward(**text)


@pytest.mark.parametrize(
    ("keyword", "text", "is_whole", "is_inside"),
    [
        ("cat", "The cat sat.", True, True),
        ("cat", "category", False, True),
        ("cat", "concat", False, True),
        ("cat", "Cat!", True, True),
        ("cat", "cat's", True, True),
        ("cat", "cat_food", False, True),
        ("cat", "(cat)", True, True),
        ("C++", "I like c++.", True, True),
        ("C++", "misc++", False, True),
        ("C++", "c++20", True, True),
        ("####", "answer ####4", True, True),
        ("<think>", "a<think>b", True, True),
        ("in conclusion", "In\n  conclusion, yes", True, True),
        ("in conclusion", "in a conclusion", False, False),
        (" spaced ", "is spaced.", True, True),
        ("naïve", "a naïve view", True, True),
        ("na", "naïve", False, True),
        ("cafe", "cafe\u0301", False, True),
        ("über", "ÜBER alles", True, True),
        ("straße", "die STRASSE", True, True),
        ("кот", "Кот спит", True, True),
        ("кот", "котик", False, True),
        ("因为", "这是因为他", True, True),
        ("です", "猫です。", True, True),
        ("cat", "这是cat吗", True, True),
        ("학교", "학교에서", True, True),
        ("a.c", "abc", False, False),
    ],
)
def test_keywords_are_whole_words_unless_told_otherwise(keyword: str, text: str, is_whole: bool, is_inside: bool):
    assert KeywordReward(required=[keyword])(said(text)).reward == is_whole
    assert KeywordReward(required=[keyword], whole_words=False)(said(text)).reward == is_inside


@given(st.text(min_size=1).filter(lambda text: text.strip()))
def test_a_keyword_is_found_in_itself(keyword: str):
    assert KeywordReward(required=[keyword])(said(keyword)).reward == 1.0
    assert FormatReward(required_sections=[keyword])(said(keyword)).reward == 1.0


@pytest.mark.parametrize("text", ["a" + " " * 10**6, "a b " * 10**5, " " * 10**6, "a" * 10**6, "a\u0301" * 10**5])
def test_long_responses_take_time_in_proportion(text: str):
    for reward in (
        KeywordReward(required=["a b c", "aa", "a " * 20 + "c"]),
        FormatReward(["a b c", "aa"], ["b c"]),
        LengthReward(),
    ):
        assert 0 <= reward(said(text)).reward <= 1  # the test's time limit ends anything worse


@pytest.mark.parametrize("reward", [LengthReward(), FormatReward(["a"], ["b+"]), KeywordReward(["a"], ["b"], ["c"])])
def test_rules_take_name_scale_and_clip_and_survive_pickling(reward: Any):
    assert pickle.loads(pickle.dumps(reward))(said("a b")) == reward(said("a b"))
    changed = type(reward)(name="mine", scale=2.0, clip=(0.25, 1.5))
    assert (changed.name, changed.reward_range) == ("mine", (0.0, 1.0))
    assert 0.25 <= changed(said("a")).reward <= 1.5
