"""A process that has started: what it has loaded is not garbage, and never was.

A full collection looks at everything, with all that is loaded for a tenth of a second, in which the
process does nothing else. Spark's workers collect garbage after each task, so the next task waits
for it. In a server one long statement after the other causes full collections, and all other users
wait.

Invariants:
- A worker of Spark does so once, after its first task, a server when it begins to serve; what comes
  later is looked at as ever.
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
        keep_loaded()


def keep_loaded() -> None:
    """Leave everything that is there now out of all later collections, in this process.

    >>> keep_loaded()
    >>> gc.get_freeze_count() > 0
    True
    """
    gc.collect()
    gc.freeze()
