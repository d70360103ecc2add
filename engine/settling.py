"""Keep garbage collections short in a process that has started.

A full collection looks at every object. With all loaded modules that takes a tenth of a second, in
which the process does nothing else. Spark's workers collect garbage after each task, so the next
task waits for it. In a server each long statement makes enough objects to cause a full collection,
for which all other users wait.

Invariants:
- Objects that exist when a process has started are left out of all later collections. A worker of
  Spark has started after its first task, a server when it begins to serve.
- Garbage that exists at that moment is freed first.
- Later garbage in cycles is found by a full collection, which runs ten times less often than by
  Python's default. On a server, `herdbook/node/growth.py` then decides when it runs.
"""

import atexit
import gc
import os
from collections.abc import Iterator
from typing import Final, TypeVar

T = TypeVar("T")

_MIDDLE_FOR_FULL: Final = 100
"""A full collection runs after at least this many collections of the middle generation: when
700,000 more objects were created than freed. Python's default is 10."""
_settled_process = 0


def settled(task: Iterator[T]) -> Iterator[T]:
    """Yield what a task yields. When it ends, for whatever reason, its process settles.

    >>> list(settled(iter("ab")))
    ['a', 'b']
    """
    try:
        yield from task
    finally:
        settle()


def settle() -> None:
    """Call `keep_loaded`, once in each process."""
    global _settled_process
    if _settled_process != os.getpid():
        _settled_process = os.getpid()
        keep_loaded()


def keep_loaded() -> None:
    """Leave everything that exists now out of later collections, and run full ones less often.

    >>> keep_loaded()
    >>> gc.get_freeze_count() > 0
    True
    """
    gc.collect()
    gc.freeze()
    # What the end of the process does not collect, extension modules report as leaks.
    atexit.register(gc.unfreeze)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _MIDDLE_FOR_FULL)
