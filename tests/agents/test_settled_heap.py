"""The collector leaves old objects alone for a while, and nothing else changes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from turngym.agents.settled_heap import settled_heap


class Knot:
    """Refers to itself: only the collector can free it."""

    def __init__(self) -> None:
        self.own: Knot | None = self


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    assert gc.get_freeze_count() == 0
    yield
    assert gc.get_freeze_count() == 0


def test_old_objects_are_not_looked_at_until_the_end() -> None:
    knot = Knot()
    old = weakref.ref(knot)
    with settled_heap():
        del knot
        gc.collect()
        assert old() is not None
    gc.collect()
    assert old() is None


def test_new_objects_are_collected_as_ever() -> None:
    with settled_heap():
        new = weakref.ref(Knot())
        gc.collect()
        assert new() is None


def test_what_was_garbage_before_is_gone() -> None:
    garbage = weakref.ref(Knot())
    with settled_heap():
        assert garbage() is None


def test_an_old_object_that_nothing_refers_to_is_freed_at_once() -> None:
    held = [Knot()]
    held[0].own = None
    old = weakref.ref(held[0])
    with settled_heap():
        held.clear()
        assert old() is None


def test_the_outermost_block_counts() -> None:
    with settled_heap():
        with settled_heap():
            pass
        assert gc.get_freeze_count() > 0


def test_an_error_ends_it_too() -> None:
    with pytest.raises(KeyError), settled_heap():
        raise KeyError
