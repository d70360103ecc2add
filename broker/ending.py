"""The one way in which a task comes to its final state.

Invariants:
- Whatever a task holds, its slot, its unique key and its code pool, is free when it has ended.
- A task that has ended moves from the active rows to the final ones in the same command.
"""

from broker.applying import Step, TaskChanged, purge_ms
from broker.keys import ACTIVE, FINAL, PAYLOAD, RESULT, SLOT, named, numbered, unique_key
from broker.task import FINAL_STATES, EventKind, Status, Task, encode, note

EXPIRED: str = "deadline_expired"


def end(step: Step, task: Task, status: Status, kind: int, who: str = "", detail: str = "") -> None:
    """End a task that has not ended. `kind` is an `EventKind`."""
    before = task.status
    assert status in FINAL_STATES and before not in FINAL_STATES
    task.status = status
    task.finished_ms = step.now_ms
    task.cancel_asked = False
    task.parents_left = task.transaction = 0
    note(task, step.now_ms, kind, who, detail)
    if task.slot or task.unique_key or task.codepool:
        free(step, task)
    if task.children:
        step.settling.append((task.id, status))
        task.children = 0
    key = numbered(ACTIVE, task.id)
    step.delete(key)
    step.put(FINAL + key[1:], encode(task))
    step.purge_later(task.id, purge_ms(task))
    if step.changes is not None:
        step.changes.append(TaskChanged(before, status, task))


def expire(step: Step, task: Task) -> None:
    """End a task whose deadline has passed."""
    assert 0 < task.deadline_ms <= step.now_ms
    task.error = EXPIRED
    end(step, task, Status.ERROR, EventKind.EXPIRED, task.worker_id, EXPIRED)


def overdue(step: Step, task: Task) -> bool:
    """Whether a task's deadline has passed."""
    return 0 < task.deadline_ms <= step.now_ms


def free(step: Step, task: Task) -> None:
    """Let go of what the task holds."""
    if task.slot:
        step.delete(named(SLOT, task.slot))
    if task.unique_key:
        step.delete(unique_key(task.tenant, task.unique_key))
    if task.codepool:
        step.use_pool(task.codepool, -1)


def remove(step: Step, task: Task, kind: bytes) -> None:
    """Remove a task altogether; `kind` says which row it has."""
    step.delete(numbered(kind, task.id))
    if task.payload_bytes:
        step.delete(numbered(PAYLOAD, task.id))
    if task.result_bytes:
        step.delete(numbered(RESULT, task.id))
    step.changed(TaskChanged(task.status, None, task))
