import pytest
from hypothesis import given
from hypothesis import strategies as st
from turngym.envs import ConfigError, TaskSource, make, task_source
from turngym.envs.math import GuessNumberTasks, MathTasks
from turngym.envs.math.questions import LEVELS, questions

IDS = ("Math-v0", "GuessNumber-v0")
seeds = st.integers(0, 2**32)
indices = st.integers(0, 2**40)


def question(source: TaskSource, index: int) -> str:
    """What the policy reads first."""
    options = source.task(index).options
    return options["prompt"] if "prompt" in options else f"{options['low']} to {options['high']}"


@given(st.sampled_from(IDS), seeds, indices)
def test_an_index_always_gives_the_same_task(id_: str, seed: int, index: int):
    assert task_source(id_, seed=seed).task(index) == task_source(id_, seed=seed).task(index)


@given(st.sampled_from(IDS), seeds, seeds, st.lists(indices, min_size=20, max_size=20))
def test_train_and_held_out_never_overlap_whatever_the_seeds(id_: str, one: int, other: int, at: list[int]):
    train = {question(task_source(id_, seed=one).split("train"), index) for index in at}
    held_out = {question(task_source(id_, seed=other).split("held_out"), index) for index in at}
    assert not train & held_out


@pytest.mark.parametrize("id_", IDS)
def test_the_splits_are_the_whole(id_: str):
    whole = task_source(id_)
    train, held_out = whole.split("train"), whole.split("held_out")
    parts = [{question(source, index) for index in range(source.num_distinct)} for source in (whole, train, held_out)]  # pyright: ignore[reportAttributeAccessIssue]
    assert parts[1] | parts[2] == parts[0]
    assert not parts[1] & parts[2]
    assert 0.15 < len(parts[2]) / len(parts[0]) < 0.25


@pytest.mark.parametrize("id_", IDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_first_held_out_tasks_are_distinct(id_: str, seed: int):
    source = task_source(id_, seed=seed).split("held_out")
    assert len({question(source, index) for index in range(500)}) == 500
    assert len({source.task(index).id for index in range(500)}) == 500


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_holds_hundreds_of_tasks_out(level: int):
    source = MathTasks(level=level).split("held_out")
    assert source.num_distinct >= 500
    assert all(source.task(index).options["level"] == level for index in range(5))


@pytest.mark.parametrize("id_", IDS)
def test_a_source_has_no_end(id_: str):
    source = task_source(id_)
    assert source.num_tasks is None
    source.task(10**15)
    with pytest.raises(IndexError, match=r"^task -1; indices start at 0$"):
        source.task(-1)


@pytest.mark.parametrize("id_", IDS)
def test_other_seeds_give_another_order(id_: str):
    first, second = task_source(id_, seed=1), task_source(id_, seed=2)
    assert [question(first, index) for index in range(9)] != [question(second, index) for index in range(9)]


def test_making_environments_and_sources_works_nothing_out():
    questions.cache_clear()
    for _ in range(1000):
        make("Math-v0")
        task_source("Math-v0", level=4)
    assert questions.cache_info().misses == 0


def test_an_interval_comes_back_with_another_secret():
    source = GuessNumberTasks(max_number=60, min_size=50)
    rounds = [{source.task(n * source.num_distinct + i).id for i in range(source.num_distinct)} for n in range(3)]
    assert len(set().union(*rounds)) > 2.5 * source.num_distinct


@pytest.mark.parametrize("id_", IDS)
def test_one_split_cant_be_split_into_the_other(id_: str):
    with pytest.raises(ConfigError, match=r"^these tasks are the train split already; held_out is another$"):
        task_source(id_).split("train").split("held_out")


@pytest.mark.parametrize(
    ("make_source", "message"),
    [
        (lambda: MathTasks(level=9), "level=9 must be one of 1, 2, 3, 4"),
        (lambda: MathTasks(split="test"), "split 'test' is unknown; there are train, held_out"),  # pyright: ignore[reportArgumentType]
        (lambda: GuessNumberTasks(max_number=5, min_size=9), "min_size=9 must lie between 1 and max_number=5"),
    ],
)
def test_a_bad_argument_is_refused(make_source, message: str):
    with pytest.raises(ConfigError) as caught:
        make_source()
    assert str(caught.value) == message


@pytest.mark.parametrize("id_", IDS)
async def test_without_options_the_seed_draws_the_task(id_: str):
    async with make(id_) as env:
        observations = [(await env.reset(seed=seed))[0] for seed in (1, 1, 2)]
    assert observations[0] == observations[1] != observations[2]
