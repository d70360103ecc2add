"""Tasks that follow the end of their transaction.

A commit or a rollback is one command. Its tasks are written anew afterwards, some in each command,
because the work of a command is bounded. If the transaction has ended `whole`, nobody sees that:
readers are shown its tasks as they will be (`broker.reading`), and a command that touches one of
them moves it first.

Invariants:
- A task of a transaction that has ended whole is never seen, or treated, as one that is prepared.
"""

from collections.abc import Callable

from broker.applying import Step
from broker.ending import end, free, remove
from broker.graphs import release, unlink
from broker.keys import ACTIVE, PARENTS, WHOLE, numbered
from broker.task import EventKind, Status, Task, note

COMMITTED = b"\x01"
ROLLED_BACK = b"\x00"


def whole_end(get: Callable[[bytes], bytes | None], transaction_id: int) -> bytes | None:
    """How a transaction has ended whose tasks are still to follow; None: not so, or not whole."""
    return get(numbered(WHOLE, transaction_id))


def followed(step: Step, task_id: int) -> Task | None:
    """A task that has not ended, after it has followed the end of its transaction."""
    task = step.active(task_id)
    if task is None or task.status is not Status.PREPARED:
        return task
    ended = whole_end(step.get, task.transaction)
    if ended is None:
        return task
    follow(step, task, committed=ended == COMMITTED)
    return step.active(task_id)


def follow(step: Step, task: Task, *, committed: bool) -> None:
    """Let a prepared task go, or undo it."""
    if not committed:
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
    elif task.parents_left:
        note(task, step.now_ms, EventKind.COMMITTED)
        task.status = Status.BLOCKED
        step.store(Status.PREPARED, task)
    else:
        release(step, task, Status.PREPARED, EventKind.COMMITTED)
