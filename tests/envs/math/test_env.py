import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from turngym.envs import Action, ConfigError, StepResult, make, spec
from turngym.envs.math import MathEnv, MathRewards, MathTasks
from turngym.envs.math.questions import LEVELS

SUM = {"prompt": "12 + 7 = ?", "label": "19"}
EQUATION = {"prompt": "x + 7 = 19, x = ?", "label": "12", "sides": ((1, 7), (0, 19))}
FORMULA = {"prompt": "Simplify 2x + 3x.", "label": "5x"}


async def play(options: dict, *texts: str, **kwargs) -> list[StepResult]:
    env = MathEnv(**kwargs)
    await env.reset(options=options)
    return [await env.step(Action(text=text)) for text in texts]


async def test_the_prompt_is_the_first_observation():
    assert await MathEnv().reset(options=SUM) == ("12 + 7 = ?", {})


async def test_a_right_answer_ends_the_episode_with_score_1():
    (result,) = await play(SUM, "19")
    assert result == StepResult(
        observation="Correct.",
        reward=1.0,
        terminated=True,
        score=1.0,
        info={"attempt": 1, "answer": "19", "correct": True},
    )


async def test_a_wrong_answer_gets_a_hint_and_another_attempt():
    wrong, right = await play(SUM, "20", "19")
    assert (wrong.observation, wrong.reward, wrong.score, wrong.terminated) == ("Too high.", -0.1, 0.0, False)
    assert wrong.info == {"attempt": 1, "answer": "20", "correct": False}
    assert (right.reward, right.score, right.info["attempt"]) == (1.0, 1.0, 2)


async def test_a_wrong_solution_of_an_equation_is_put_into_it():
    (result,) = await play(EQUATION, "11")
    assert result.observation == "x = 11 gives 18, not 19. Too low."


async def test_a_hint_that_would_name_the_answer_by_chance_is_shortened():
    (result,) = await play(EQUATION, "5")  # 5 + 7 is 12, which is the answer
    assert result.observation == "Too low."


async def test_no_answer_is_told_from_a_wrong_one():
    (result,) = await play(SUM, "I don't know.")
    assert (result.observation, result.reward) == ("No answer found. Reply with one number.", -0.2)
    assert result.info == {"attempt": 1, "answer": None, "correct": False}


async def test_the_last_attempt_ends_the_episode():
    first, last = await play(SUM, "1", "2", max_attempts=2)
    assert not first.terminated
    assert (last.observation, last.terminated, last.truncated) == ("Wrong. No attempts are left.", True, False)
    assert last.reward == pytest.approx(-0.2)
    assert last.score == 0.0


async def test_every_reward_is_configurable():
    rewards = MathRewards(right=5.0, wrong=-1.0, no_answer=-2.0, out_of_attempts=-10.0)
    results = await play(SUM, "1", "?", "2", rewards=rewards)
    assert [result.reward for result in results] == [-1.0, -2.0, -11.0]
    assert (await play(SUM, "19", rewards={"right": 5.0}))[0].reward == 5.0
    assert (await play(SUM, "?", "?", "?", rewards=rewards))[-1].reward == -12.0


def test_the_specs_reward_range_is_that_of_the_defaults():
    rewards = MathRewards()
    least = min(rewards.wrong, rewards.no_answer) + rewards.out_of_attempts
    assert spec("Math-v0").reward_range == (least, rewards.right)


async def test_formulas_are_compared_as_formulas():
    (result,) = await play(FORMULA, r"The answer is $5 \cdot x$.")
    assert result.score == 1.0


@pytest.mark.parametrize("label", ["1,234", "1234.0", "$1234$", r"\boxed{1234}", 1234])
async def test_labels_of_files_are_read_as_they_are_written(label: object):
    for answer in ("1234", "1,234", r"\boxed{1234}"):
        (result,) = await play({"prompt": "How many?", "label": label}, answer)
        assert result.score == 1.0


@pytest.mark.parametrize("echo", ["Simplify 2x + 3x.", "2x + 3x", "The answer is 2x + 3x.", r"\boxed{2x + 3x}"])
async def test_repeating_a_formula_of_the_question_is_no_answer(echo: str):
    (result,) = await play(FORMULA, echo)
    assert result.info["answer"] is None
    assert result.reward < 0


async def test_an_answer_that_the_question_offers_is_an_answer():
    (result,) = await play({"prompt": "Which is larger, 3 or 5?", "label": "5"}, "5")
    assert result.score == 1.0


async def test_repeating_a_question_that_ends_in_its_answer_is_no_answer():
    (result,) = await play({"prompt": "How many legs have 8 spiders less 56?", "label": "8"}, "How many legs have 8?")
    assert result.score == 1.0
    (result,) = await play({"prompt": "Is it 3, or is it 5?", "label": "5"}, "Is it 3, or is it 5?")
    assert result.info["answer"] is None


def cheap(prompt: str) -> list[str]:
    return [
        "",
        " ",
        "?!",
        "asdf jkl",
        prompt,
        prompt.split(",")[0],
        prompt.removesuffix("= ?"),
        prompt.removesuffix(" = ?"),
        rf"\boxed{{{prompt.removesuffix(' = ?')}}}",
        f"The answer is {prompt.removesuffix(' = ?')}",
        prompt * 100,
        " ".join(map(str, range(-200, 2000))),
        "\n".join(map(str, range(-200, 2000))),
        " or ".join(map(str, range(100))),
        "a" * 100_000,
        "9" * 100_000,
        "19 " * 100_000,
    ]


@pytest.mark.parametrize("level", LEVELS)
async def test_nothing_cheap_is_rewarded(level: int):
    source, env = MathTasks(level=level), MathEnv(max_attempts=1)
    for index in range(20):
        task = source.task(index)
        for text in cheap(task.options["prompt"]):
            await env.reset(options=task.options)
            result = await env.step(Action(text=text))
            assert result.reward < 0, (task.id, text[:80])
            assert result.score == 0.0


@pytest.mark.parametrize("level", LEVELS)
async def test_demonstrations_solve_the_task(level: int):
    source, rng = MathTasks(level=level), np.random.default_rng(0)
    async with make("Math-v0") as env:
        for index in range(100):
            task = source.task(index)
            await env.reset(options=task.options)
            results = [await env.step(Action(text=text)) for text in env.demonstrations(task, rng) or ()]
            assert tuple(results[-1])[1:3] == (1.0, True)


@pytest.mark.parametrize("form", ["{}", "{}.", "The answer is {}.", r"\boxed{{{}}}", "#### {}", "${}$", "x = {}"])
async def test_the_usual_forms_of_an_answer_are_read(form: str):
    for level in LEVELS:
        for index in range(20):
            options = dict(MathTasks(level=level).task(index).options)
            (result,) = await play(options, form.format(options["label"]))
            assert result.score == 1.0


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(LEVELS)), st.integers(0, 3000), st.integers(-300, 300), st.sampled_from([1, 1, 1, 2, 3]))
async def test_feedback_never_holds_the_answer(level: int, index: int, top: int, bottom: int):
    options = dict(MathTasks(level=level).task(index).options)
    guess, label = Fraction(top, bottom), options["label"]
    for result in await play(options, str(guess), "nothing", str(guess), max_attempts=3):
        if result.score == 1.0:
            break
        assert isinstance(result.observation, str)
        assert label.lstrip("-") not in re.findall(r"\d+/\d+|\d+", result.observation)
        assert label.lstrip("-") not in re.findall(r"\d+", result.observation)


@given(st.integers(0, 3000), st.integers(-300, 300))
async def test_a_hint_points_towards_the_answer(index: int, guess: int):
    options = dict(MathTasks(level=3).task(index).options)
    (result,) = await play(options, str(guess))
    if result.score == 0.0:
        assert str(result.observation).endswith("Too low." if guess < Fraction(options["label"]) else "Too high.")


@given(st.text(max_size=300))
@settings(deadline=None)
async def test_whatever_is_said_a_turn_is_graded(text: str):
    for options in (SUM, EQUATION):
        (result,) = await play(options, text)
        assert result.reward in (1.0, -0.1, -0.2)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_attempts": 0}, "max_attempts=0 must be an integer of at least 1"),
        ({"max_attempts": 1.5}, "max_attempts=1.5 must be an integer of at least 1"),
        ({"rewards": {"rihgt": 1}}, "rewards has no field 'rihgt'; there are right, wrong, no_answer, out_of_attempts"),
        ({"rewards": {"right": float("nan")}}, "rewards: right=nan must be a finite number"),
    ],
)
def test_a_bad_argument_is_refused(kwargs: dict, message: str):
    with pytest.raises(ConfigError) as caught:
        MathEnv(**kwargs)
    assert str(caught.value) == message


@pytest.mark.parametrize("missing", ["prompt", "label"])
async def test_a_task_without_prompt_or_label_is_refused(missing: str):
    options = {name: text for name, text in SUM.items() if name != missing}
    with pytest.raises(ConfigError) as caught:
        await MathEnv().reset(options=options)
    (other,) = options
    assert str(caught.value) == (
        f"Math-v0 needs the option {missing!r}, as text; the task has {other}: "
        "choose the columns with --input_key and --label_key"
    )
