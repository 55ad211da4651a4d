import asyncio
import dataclasses
import inspect
import pickle
from pathlib import Path

import pytest
from turngym.envs import (
    Action,
    AgentInstance,
    ConfigError,
    EnvFactory,
    EnvSpec,
    ListTaskSource,
    OrderEnforcing,
    Task,
    TimeLimit,
    UnknownEnvError,
    make,
    register,
    registered,
    registry,
    spec,
    task_source,
)
from turngym.envs.math import MathEnv

FILE = '''
from turngym.envs import AgentInstance, ListTaskSource, Task

loaded = []
loaded.append(1)


class Coin(AgentInstance):
    """Heads or tails.

    More about it.
    """

    max_turns = 2
    reward_range = (0.0, 1.0)

    def __init__(self, sides=2):
        self.sides = sides

    def reset(self, *, seed=None, options=None):
        return f"A coin with {self.sides} sides.", {"loaded": len(loaded)}

    async def step(self, action):
        return "again", 0.5, False, False, {}

    @staticmethod
    def tasks(count=3):
        return ListTaskSource([Task(id=str(n)) for n in range(count)])


class Plain:
    pass
'''


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch):
    built_in = {id_: registry._registry[id_] for id_ in ("GuessNumber-v0", "Math-v0")}
    monkeypatch.setattr(registry, "_registry", built_in)


@pytest.fixture
def coin_file(tmp_path: Path) -> Path:
    path = tmp_path / "coin.py"
    path.write_text(FILE)
    return path


class Nop(AgentInstance):
    def __init__(self, *, size: int = 1) -> None:
        self.size = size

    async def reset(self, *, seed=None, options=None):
        return "", {}

    async def step(self, action):
        return "", 0.0, False, False, {}


def nop_tasks(*, level: int = 1, size: int = 1) -> ListTaskSource:
    return ListTaskSource([Task(id=f"{level}/{size}")])


def test_the_built_in_environments_are_registered():
    assert [env.id for env in registered()] == ["GuessNumber-v0", "Math-v0"]
    assert all(env.description for env in registered())


def test_register_takes_the_fields_of_a_spec():
    parameters = set(inspect.signature(register).parameters) - {"replace"}
    assert parameters == {field.name for field in dataclasses.fields(EnvSpec)}


def test_what_is_registered_can_be_made():
    registered_spec = register("lab/Nop-v3", entry_point=Nop, kwargs={"size": 4}, max_turns=7, tasks=nop_tasks)
    assert spec("lab/Nop-v3") is registered_spec
    env = make("lab/Nop-v3")
    assert isinstance(env, OrderEnforcing)
    assert isinstance(env.env, TimeLimit)
    assert env.env.max_turns == 7
    assert env.spec is registered_spec
    assert env.name == "lab/Nop-v3"
    assert env.unwrapped.size == 4  # pyright: ignore[reportAttributeAccessIssue]
    assert make("lab/Nop-v3", size=5).unwrapped.size == 5  # pyright: ignore[reportAttributeAccessIssue]


def test_arguments_go_where_they_are_taken():
    register("Nop-v0", entry_point=Nop, tasks=nop_tasks)
    both = {"level": 3, "size": 2}
    assert make("Nop-v0", **both).unwrapped.size == 2  # pyright: ignore[reportAttributeAccessIssue]
    assert task_source("Nop-v0", **both).task(0).id == "3/2"


@pytest.mark.parametrize("function", [make, task_source])
def test_an_argument_that_nobody_takes_is_named(function):
    register("Nop-v0", entry_point=Nop, tasks=nop_tasks)
    with pytest.raises(ConfigError) as caught:
        function("Nop-v0", levle=3)
    assert str(caught.value) == "Nop-v0 takes no argument 'levle'; it takes: level, size"


def test_an_environment_that_takes_any_argument_gets_all():
    register("Any-v0", entry_point=lambda **kwargs: Nop(size=len(kwargs)))
    assert make("Any-v0", a=1, b=2).unwrapped.size == 2  # pyright: ignore[reportAttributeAccessIssue]


def test_an_id_can_be_taken_once():
    first = register("Nop-v0", entry_point=Nop)
    assert register("Nop-v0", entry_point=Nop) == first
    with pytest.raises(ConfigError) as caught:
        register("Nop-v0", entry_point="elsewhere:Nop")
    assert str(caught.value) == (f"environment id 'Nop-v0' is taken by {Nop!r}; choose another, or pass replace=True")
    assert register("Nop-v0", entry_point="elsewhere:Nop", replace=True) is spec("Nop-v0")


@pytest.mark.parametrize("id_", ["", "Nop", "Nop-v", "Nop-v0.1", "a/b/Nop-v0", "file.py:Nop-v0", "No p-v0"])
def test_an_id_of_another_form_is_refused(id_: str):
    with pytest.raises(ConfigError) as caught:
        register(id_, entry_point=Nop)
    assert str(caught.value) == f"environment id {id_!r} must look like Name-v0 or namespace/Name-v0"


def test_an_unknown_id_names_its_neighbours():
    with pytest.raises(UnknownEnvError) as caught:
        make("Maths-v0")
    assert str(caught.value) == (
        "no environment 'Maths-v0'; did you mean Math-v0? Otherwise give module:Class or path/to/file.py:Class"
    )


def test_an_unknown_id_without_neighbours_names_all():
    with pytest.raises(UnknownEnvError) as caught:
        spec("zzz")
    assert str(caught.value) == (
        "no environment 'zzz'; there are GuessNumber-v0, Math-v0. Otherwise give module:Class or path/to/file.py:Class"
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reward_range": (1, 0)}, "Bad-v0: reward_range=(1, 0) must be (least, greatest)"),
        ({"max_turns": 0}, "Bad-v0: max_turns=0 must be an integer of at least 1, or None"),
        ({"max_turns": "9"}, "Bad-v0: max_turns='9' must be an integer of at least 1, or None"),
    ],
)
def test_a_spec_is_checked_where_it_is_made(fields: dict, message: str):
    with pytest.raises(ConfigError) as caught:
        EnvSpec(id="Bad-v0", entry_point=Nop, **fields)
    assert str(caught.value) == message


def test_a_class_that_can_be_imported_is_an_id():
    env = make("turngym.envs.math:MathEnv", max_attempts=5)
    assert isinstance(env.unwrapped, MathEnv)
    assert env.unwrapped.max_attempts == 5
    assert env.name == "turngym.envs.math:MathEnv"


async def test_a_class_in_a_file_is_an_id(coin_file: Path):
    id_ = f"{coin_file}:Coin"
    found = spec(id_)
    assert (found.max_turns, found.reward_range, found.description) == (2, (0.0, 1.0), "Heads or tails.")
    assert pickle.loads(pickle.dumps(found)) == found
    assert task_source(id_, count=2).num_tasks == 2
    for _ in range(2):
        async with make(id_, sides=3) as env:
            assert await env.reset() == ("A coin with 3 sides.", {"loaded": 1})
            results = [await env.step(Action(text="heads")) for _ in range(2)]
            assert [tuple(result)[3] for result in results] == [False, True]


@pytest.mark.parametrize(
    ("id_", "message"),
    [
        ("{file}:Dice", "{file}:Dice: {file} defines no 'Dice'"),
        (
            "{file}:Plain",
            "{file}:Plain isn't derived from turngym.envs.AgentInstance: derive it, define reset and step",
        ),
        ("{file}:loaded", "{file}:loaded is a list; it must be a class derived from AgentInstance"),
        ("{file}x.py:Coin", "{file}x.py:Coin: there is no file {file}x.py"),
        ("no_such_module:Env", "no_such_module:Env: can't import 'no_such_module': No module named 'no_such_module'"),
        ("turngym.envs:Nothing", "turngym.envs:Nothing: turngym.envs defines no 'Nothing'"),
    ],
)
def test_a_class_that_cant_be_loaded_is_named(coin_file: Path, id_: str, message: str):
    with pytest.raises(UnknownEnvError) as caught:
        make(id_.format(file=coin_file))
    assert str(caught.value) == message.format(file=coin_file)


def test_a_file_that_raises_keeps_its_own_error(tmp_path: Path):
    path = tmp_path / "broken.py"
    path.write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            make(f"{path}:Env")


def test_an_entry_point_must_give_an_instance():
    register("Str-v0", entry_point=lambda: "no env")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"^Str-v0: its entry point gave str; it must give an AgentInstance$"):
        make("Str-v0")


def test_an_environment_without_tasks_says_so():
    register("Nop-v0", entry_point=Nop)
    with pytest.raises(ConfigError) as caught:
        task_source("Nop-v0")
    assert str(caught.value) == (
        "Nop-v0 has no tasks of its own; give a file with --prompt_data, or register it with tasks="
    )


def test_a_class_may_hold_its_tasks_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder, count in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "env.py").write_text(FILE + f"\nCoin.tasks = Coin.tasks({count})\n")
        monkeypatch.chdir(tmp_path / folder)  # the same relative path is another file
        assert task_source("env.py:Coin", sides=2).num_tasks == count
    with pytest.raises(ConfigError, match=r"^env.py:Coin takes no argument 'level'; it takes: sides$"):
        task_source("env.py:Coin", level=2)


async def test_a_factory_makes_separate_instances():
    factory = pickle.loads(pickle.dumps(EnvFactory(id="GuessNumber-v0")))
    first, second = factory(), factory()
    await asyncio.gather(
        first.reset(options={"low": 1, "high": 9, "secret": 1}),
        second.reset(options={"low": 1, "high": 9, "secret": 9}),
    )
    assert (await first.step(Action(text="1"))).terminated
    assert not (await second.step(Action(text="1"))).terminated
