"""Keeps the garbage collector's full passes short, which stop every thread for as long as the heap is large."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def settled_heap() -> Iterator[None]:
    """While the block runs, the collector leaves alone what there was before it.

    With torch and transformers loaded a full pass takes a quarter of a second, in which no event loop moves. Here one
    is made at the start; later ones look at newer objects only. What there was before is still freed once nothing
    refers to it; only cycles among it wait for the end of the block. Blocks may lie within each other.

    For whoever owns the process: it applies to all of it.

    >>> with settled_heap():
    ...     gc.get_freeze_count() > 0
    True
    """
    global _num_open
    with _lock:
        _num_open += 1
        if _num_open == 1:
            gc.collect()
            gc.freeze()
    try:
        yield
    finally:
        with _lock:
            _num_open -= 1
            if not _num_open:
                gc.unfreeze()


_lock = threading.RLock()  # a finalizer may run in the thread that has it
_num_open = 0
