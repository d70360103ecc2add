"""What a forked child must not do with its parent's folders: use them, or keep them alive.

A child inherits the descriptors of its parent. Kept open they would hold the folder's lock after
the parent's end, and keep its connections from breaking.

Invariants:
- In a child every member made before the fork raises.
- A descriptor taken from a child keeps its number, so that whoever closes it later closes nothing
  else.
"""

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something with descriptors that only the parent may keep."""

    def after_fork(self) -> list[int]:
        """In the child: be over. Returns the descriptors to take."""
        ...


_open: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def guard(member: Forkable) -> None:
    """Make `member` be over in every child forked from now on."""
    _open.add(member)


def _after_fork() -> None:
    for member in list(_open):
        for descriptor in member.after_fork():
            _take(descriptor)
    _open.clear()


def _take(descriptor: int) -> None:
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), descriptor)


os.register_at_fork(after_in_child=_after_fork)
