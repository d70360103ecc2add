"""Where a task is in a leader's memory.

Invariants:
- The place depends only on the status in the task's row and on whether its assignment is under way.
  So it does not matter in which order changes arrive.
"""

import enum
from typing import Final

from broker.task import Status

_WAITING: Final = Status.WAITING
_RUNNING: Final = Status.RUNNING


class Place(enum.Enum):
    """A task's place."""

    NOWHERE = 0
    """The scheduler does not know it: it has ended, or it may not begin yet."""
    QUEUED = 1
    """It is once in its queue, for any worker."""
    TAKEN = 2
    """It takes one place of a worker, and units of its tenant, its type and its resources."""


def place_of(status: Status | None, under_way: bool) -> Place:
    """The place of a task with this status (None: it has no row).

    `under_way`: it is being assigned to a worker, and the log has not answered yet.

    >>> place_of(Status.CANCELLED, True), place_of(Status.WAITING, False)
    (<Place.TAKEN: 2>, <Place.QUEUED: 1>)
    """
    if under_way or status is _RUNNING:
        return Place.TAKEN
    return Place.QUEUED if status is _WAITING else Place.NOWHERE
