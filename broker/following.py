"""Tasks that follow the end of their transaction.

A commit or a rollback is one command. The rows of its tasks are rewritten afterwards, some in each
command, because the work of a command is bounded. If the transaction has ended `whole`, this is
invisible: readers see its tasks as they will be (`broker.reading`), and a command that touches one
of them rewrites it first.

Invariants:
- A task of a transaction that has ended whole is never shown, or treated, as prepared.
"""

from typing import Final

from broker.applying import Step
from broker.ending import end, free, remove
from broker.graphs import unlink
from broker.keys import ACTIVE, PARENTS, WHOLE, numbered, unpack_id
from broker.task import EventKind, Status, Task, note

ROLLED_BACK: Final = b""
"""The value for a whole transaction that was rolled back; otherwise it is the commit time."""


def committed_at(row: bytes) -> int | None:
    """The time of the transaction's commit, from its row; None if it was rolled back."""
    return None if row == ROLLED_BACK else unpack_id(row)


def followed(step: Step, task_id: int) -> Task | None:
    """A task that has not ended, as it is after it has followed the end of its transaction."""
    task = step.active(task_id)
    if task is None or task.status is not Status.PREPARED:
        return task
    row = step.get(numbered(WHOLE, task.transaction))
    if row is None:
        return task
    follow(step, task, committed_at(row))
    return step.active(task_id)


def follow(step: Step, task: Task, committed_ms: int | None) -> None:
    """Release a prepared task as of the time of the commit; None: undo it."""
    if committed_ms is None:
        free(step, task)
        unlink(step, task)
        remove(step, task, ACTIVE)
        return
    task.transaction = 0
    if task.parents_left:
        step.delete(numbered(PARENTS, task.id))
    if task.cancel_asked:
        end(step, task, Status.CANCELLED, EventKind.CANCELLED)
    elif task.error:
        end(step, task, Status.CANCELLED, EventKind.CANCELLED, "", task.error)
    else:
        note(task, committed_ms, EventKind.COMMITTED)
        task.status = status_at(task, committed_ms)
        step.store(Status.PREPARED, task)


def status_at(task: Task, committed_ms: int) -> Status:
    """A prepared task as it is after its commit."""
    if task.parents_left or task.error:
        # If a parent's outcome is not the one that the task needs, it is cancelled when it follows.
        return Status.BLOCKED
    return Status.DELAYED if task.due_ms > committed_ms else Status.WAITING
