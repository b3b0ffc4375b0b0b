"""Cyclic garbage collection, made rare.

A flush creates a hundred thousand tuples that live for a second and are part of no cycle, and a look at a log
as many objects that live until its end. With the default thresholds, scanning them costs more than creating
them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARE = (100_000, 50, 100)  # thresholds of `gc.set_threshold`


def tune_garbage_collector() -> None:
    """Makes collections rare for the life of the process."""
    gc.collect()
    gc.freeze()  # modules and settings live as long as the process: never scan them again
    gc.set_threshold(*RARE)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Makes collections rare for a while."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*RARE)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
