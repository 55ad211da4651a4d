import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.envs import InvalidStepError, SamplingParams, StepResult, Verbatim, as_step_result
from turngym.envs.types import check_observation


def test_a_checked_result_is_given_back_as_it_is():
    plain = StepResult(observation="x", reward=1.0, score=0.5, info={"a": 1})
    rich = StepResult(
        observation=Verbatim("x"), reward=0.0, token_rewards=(0.5, 0.25), sampling=SamplingParams(), score=1.0
    )
    assert as_step_result(plain, "Env") is plain
    assert as_step_result(rich, "Env") is rich


@given(st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.booleans())
def test_normalising_twice_changes_nothing(reward: float, terminated: bool, truncated: bool):
    once = as_step_result(("x", np.float64(reward), np.bool_(terminated), truncated, {}), "Env")
    assert as_step_result(once, "Env") is once
    assert tuple(once) == ("x", reward, terminated, truncated, {})


def test_numbers_of_other_libraries_become_python_numbers():
    result = as_step_result(
        StepResult(observation="x", reward=np.float32(0.5), score=1, token_rewards=np.array([1, 2])),  # pyright: ignore[reportArgumentType]
        "Env",
    )
    assert (result.reward, result.score, result.token_rewards) == (0.5, 1.0, (1.0, 2.0))
    assert {type(result.reward), type(result.score)} == {float}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            None,
            "Env: step returned NoneType None; return a StepResult, or the tuple "
            "(observation, reward, terminated, truncated, info)",
        ),
        (
            ("x", 0.0, False, {}),
            "Env: step returned tuple ('x', 0.0, False, {}); return a StepResult, or the tuple "
            "(observation, reward, terminated, truncated, info)",
        ),
        (("x", math.nan, False, False, {}), "Env: reward is nan; it must be a finite number"),
        (("x", math.inf, False, False, {}), "Env: reward is inf; it must be a finite number"),
        (("x", "1", False, False, {}), "Env: reward is str '1'; it must be a finite number"),
        (
            ("x", np.array([1.0, 2.0]), False, False, {}),
            "Env: reward is ndarray array([1., 2.]); it must be a finite number",
        ),
        (("x", 0.0, 1, False, {}), "Env: terminated is int 1; it must be True or False"),
        (("x", 0.0, False, None, {}), "Env: truncated is NoneType None; it must be True or False"),
        (("x", 0.0, False, False, None), "Env: info is NoneType None; it must be a mapping"),
        (
            (None, 0.0, False, False, {}),
            "Env: observation is NoneType None; return a str, a Verbatim, a chat message, "
            "a list of chat messages, or a sequence of token ids",
        ),
        (
            ({"role": "robot", "content": "x"}, 0.0, False, False, {}),
            "Env: message dict {'role': 'robot', 'content': 'x'} needs a 'role' (system, user, assistant or tool) "
            "and a 'content' that is a str",
        ),
        (StepResult(observation="x", score=1.5), "Env: score is 1.5; it must lie in [0, 1], or be None"),
        (
            StepResult(observation="x", token_rewards=(0.0, math.nan)),
            "Env: token_rewards[1] is nan; it must be a finite number",
        ),
        (
            StepResult(observation="x", token_rewards=1.0),  # pyright: ignore[reportArgumentType]
            "Env: token_rewards is float 1.0; it must hold one number per action token",
        ),
        (
            StepResult(observation="x", sampling={"top_p": 1}),  # pyright: ignore[reportArgumentType]
            "Env: sampling is dict {'top_p': 1}; it must be SamplingParams or None",
        ),
    ],
)
def test_a_result_that_breaks_the_contract_is_named(value: object, message: str):
    with pytest.raises(InvalidStepError) as caught:
        as_step_result(value, "Env")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "observation",
    [
        "",
        "x",
        Verbatim("x"),
        {"role": "tool", "content": "x"},
        [],
        [{"role": "user", "content": "x"}],
        [1, 2],
        (1,),
        np.arange(2),
    ],
    ids=repr,
)
def test_every_form_of_observation_is_taken(observation: object):
    check_observation(observation, "Env")


@pytest.mark.parametrize(
    "observation", [1, b"x", [1.0], [True], ["x"], [1, {"role": "user", "content": "x"}]], ids=repr
)
def test_no_other_form_of_observation_is_taken(observation: object):
    with pytest.raises(InvalidStepError):
        check_observation(observation, "Env")
