"""Where a task stands in a leader's memory.

Invariants:
- The place follows from the status in the task's row and from whether its assignment is under way.
  Nothing else decides it, so the order in which changes come cannot matter.
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
    """It is once in the queue of its kind, for any worker."""
    TAKEN = 2
    """It counts for one worker: for its places, its tenant, its type and its resources."""


def place_of(status: Status | None, under_way: bool) -> Place:
    """The place of a task of this status (None: there is no row).

    `under_way`: it was taken for a worker, and the log has not answered the assignment yet.

    >>> place_of(Status.CANCELLED, True), place_of(Status.WAITING, False)
    (<Place.TAKEN: 2>, <Place.QUEUED: 1>)
    """
    if under_way or status is _RUNNING:
        return Place.TAKEN
    return Place.QUEUED if status is _WAITING else Place.NOWHERE
