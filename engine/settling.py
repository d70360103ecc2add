"""A process that has started: what it has loaded is not garbage, and never was.

A full collection looks at everything, with all that is loaded for a tenth of a second, in which the
process does nothing else. Spark's workers collect garbage after each task, so the next task waits
for it. In a server one long statement after the other causes full collections, and all other users
wait: they look at all that the statement is made of, again and again while it becomes more.

Invariants:
- A worker of Spark does so once, after its first task, a server when it begins to serve; what comes
  later is looked at as ever.
- What is garbage then goes before the rest is kept.
- A server makes a tenth of the full collections. At most some 700,000 objects wait for one.
"""

import gc
import os
from collections.abc import Iterator
from typing import Final, TypeVar

_FULL_AFTER: Final = 100
"""So many collections of younger objects come before a full one; usually 10."""
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


def serve_many() -> None:
    """The same for a server, and full collections are rare from now on, in this process.

    >>> serve_many()
    >>> gc.get_threshold()[2]
    100
    """
    keep_loaded()
    youngest, younger, _ = gc.get_threshold()
    gc.set_threshold(youngest, younger, _FULL_AFTER)
