import pytest
from turngym.envs import ConfigError, ListTaskSource, Task

TASKS = [Task(id=str(n)) for n in range(10)]


def ids(source: ListTaskSource) -> list[str]:
    return [source.task(index).id for index in range(len(source))]


def test_the_last_tasks_are_held_out():
    source = ListTaskSource(TASKS, held_out=3)
    assert source.num_tasks == 10
    assert ids(source.split("train")) == list("0123456")
    assert ids(source.split("held_out")) == list("789")


@pytest.mark.parametrize("index", [-1, 10])
def test_an_index_outside_is_refused(index: int):
    with pytest.raises(IndexError, match=rf"^task {index} of 10$"):
        ListTaskSource(TASKS).task(index)


@pytest.mark.parametrize(
    ("make_source", "message"),
    [
        (lambda: ListTaskSource([TASKS[3]] * 2), "task id '3' occurs twice; give each task an id of its own"),
        (lambda: ListTaskSource(TASKS, held_out=11), "held_out=11 must lie between 0 and the number of tasks, 10"),
        (lambda: ListTaskSource(TASKS).split("test"), "split 'test' is unknown; there are train, held_out"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_bad_argument_is_refused(make_source, message: str):
    with pytest.raises(ConfigError) as caught:
        make_source()
    assert str(caught.value) == message
