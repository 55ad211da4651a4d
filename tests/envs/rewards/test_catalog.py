import subprocess
import sys
from pathlib import Path

import pytest
from turngym.envs import ConfigError
from turngym.envs.rewards import (
    LengthReward,
    RewardFunction,
    RewardOutput,
    Trajectory,
    catalog,
    find_reward,
    register_reward,
    registered_rewards,
)
from turngym.envs.rewards.catalog import READY, shared_reward

REFUSE = ("CodeReward", "RankingReward")
"""Ready rewards whose constructors say what is missing: a sandbox, and what to rank by."""
FOUR = Trajectory(prompt="2 + 2 = ?", response="4", label="4")


class Always(RewardFunction):
    """Always the same."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def compute_reward(self, trajectory):
        return RewardOutput(self.value)


HALF = Always(0.5)


def quarter() -> RewardFunction:
    """Makes a reward."""
    return Always(0.25)


def polite(response: str) -> float:
    """Whether it says please."""
    return float("please" in response)


@pytest.fixture(autouse=True)
def forget():
    before = dict(catalog._registered)
    yield
    catalog._registered.clear()
    catalog._registered.update(before)
    shared_reward.cache_clear()


def test_every_ready_reward_is_listed_with_a_description_and_what_it_needs():
    listed = {reward.name: reward for reward in registered_rewards()}
    assert set(READY) <= set(listed)
    assert all(listed[name].description for name in READY)
    assert [listed[name].needs for name in ("check_answer", "LengthReward", "CompositeReward", "FunctionReward")] == [
        (),
        (),
        ("rewards",),
        ("fn",),
    ]
    assert list(listed) == sorted(listed, key=str.casefold)


@pytest.mark.parametrize("name", READY)
def test_a_ready_reward_is_found_unless_it_needs_arguments(name):
    (needs,) = (reward.needs for reward in registered_rewards() if reward.name == name)
    if not needs and name not in REFUSE:
        found = find_reward(name)
        assert isinstance(found, RewardFunction)
        assert found.name
        return
    with pytest.raises(ConfigError) as caught:
        find_reward(name)
    missing = f" needs {' and '.join(needs)}, which a name can't give; " if needs else ": "
    assert str(caught.value).startswith(f"the reward {name}{missing}")


def test_check_answer_by_name():
    assert find_reward("check_answer")(FOUR).reward == 1.0


def test_what_a_class_needs_is_said_with_a_remedy():
    with pytest.raises(ConfigError) as caught:
        find_reward(f"{__name__}:Always")
    assert str(caught.value) == (
        f"the reward {__name__}:Always needs value, which a name can't give; make it in a file, "
        "REWARD = Always(value=...), and name that: path/to/file.py:REWARD"
    )


@pytest.mark.parametrize(("attribute", "value"), [("HALF", 0.5), ("quarter", 0.25), ("polite", 0.0)])
def test_a_reward_is_found_in_a_module(attribute, value):
    assert find_reward(f"{__name__}:{attribute}")(FOUR).reward == value


def test_a_reward_is_found_in_a_file(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from flux.rewards import LengthReward\n"
        "REWARD = LengthReward(target=1, tolerance=1)\n"
        "class Box:\n"
        "    def score(response, label): return float(response == label)\n"
    )
    assert find_reward(f"{file}:REWARD")(FOUR).reward == 1.0
    assert find_reward(f"{file}:REWARD") is find_reward(f"{file}:REWARD")
    assert find_reward(f"{file}:Box.score")(FOUR).reward == 1.0


@pytest.mark.parametrize(("name", "message"), [
    ("chek_answer", "no reward 'chek_answer'; did you mean check_answer"),
    ("lengthreward", "no reward 'lengthreward'; did you mean LengthReward"),
    ("zzz", "no reward 'zzz'; there are BinaryReward, "),
    ("mine.py", "mine.py is a file; name the reward in it: mine.py:NAME"),
    ("nowhere.py:NAME", "there is no file nowhere.py"),
    ("nowhere:NAME", "the reward nowhere:NAME: can't import 'nowhere': No module named 'nowhere'"),
    (":NAME", "the reward :NAME: can't import '': Empty module name"),
    ("math:sqrtt", "the reward math:sqrtt: math defines no 'sqrtt'; did you mean sqrt?"),
    ("math:", "the reward math:: math defines no ''"),
    ("math:pi", "the reward math:pi: 3.141592653589793 is no reward; give a RewardFunction, or a function such as "),
])  # fmt: skip
def test_a_name_that_is_none_is_refused_with_what_there_is(name, message):
    with pytest.raises(ConfigError) as caught:
        find_reward(name)
    assert str(caught.value).startswith(message)


def test_a_registered_reward_is_called_by_its_name():
    register_reward("polite", polite)
    found = find_reward("polite")
    assert (found.name, found(FOUR).reward) == ("polite", 0.0)
    assert "polite" in [reward.name for reward in registered_rewards()]


def test_a_factory_makes_a_reward_each_time():
    register_reward("quarter", quarter)
    first, second = find_reward("quarter"), find_reward("quarter")
    assert first is not second
    assert first(FOUR).reward == 0.25


def test_a_name_is_given_once():
    register_reward("polite", polite)
    register_reward("polite", polite)
    for name in ("polite", "check_answer"):
        with pytest.raises(ConfigError) as caught:
            register_reward(name, LengthReward)
        assert str(caught.value) == f"the reward name {name!r} is taken; choose another, or pass replace=True"
    register_reward("polite", LengthReward, replace=True)
    assert isinstance(find_reward("polite"), LengthReward)


@pytest.mark.parametrize("name", ["", "a:b"])
def test_a_name_that_could_not_be_found_is_refused(name):
    with pytest.raises(ConfigError) as caught:
        register_reward(name, polite)
    assert str(caught.value) == f"the name {name!r} of a reward must have a character or more, and no colon"


def test_what_is_no_reward_can_not_be_registered():
    with pytest.raises(ConfigError, match=r"^3 is no reward; give a RewardFunction"):
        register_reward("three", 3)


def test_a_shared_reward_is_one_object_until_its_name_is_given_anew():
    register_reward("always", quarter)
    shared = shared_reward("always")
    assert shared_reward("always") is shared
    register_reward("always", HALF, replace=True)
    assert shared_reward("always") is HALF


def test_listing_the_rewards_imports_nothing_heavy():
    heavy = ("torch", "transformers", "openai", "math_verify", "matplotlib", "pyarrow")
    code = (
        "import sys; from turngym.envs.rewards import registered_rewards; registered_rewards(); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert listed.stdout.strip() == "[]"
