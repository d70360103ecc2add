"""A worker of Spark that has done its first task: what it has loaded is not garbage, and never was.

Spark's workers collect garbage after each task. With Spark, Arrow and a store's modules loaded one
look at all of it takes longer than reading a hundred thousand rows, and the next task waits for it.

Invariants:
- A process does so once, after its first task; what comes later is looked at as ever.
- What is garbage then goes before the rest is kept.
"""

import gc
import os
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")
_settled_process = 0


def settled(task: Iterator[T]) -> Iterator[T]:
    """What a task gives; when it ends, however, its process settles.

    >>> list(settled(iter("ab")))
    ['a', 'b']
    """
    try:
        yield from task
    finally:
        settle()


def settle() -> None:
    """Leave everything that is there now out of all later collections, in this process, once."""
    global _settled_process
    if _settled_process != os.getpid():
        _settled_process = os.getpid()
        gc.collect()
        gc.freeze()
