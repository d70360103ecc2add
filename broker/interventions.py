"""What people and clocks do to tasks from outside: cancel, retry, delete, let go, let expire.

Invariants:
- A cancelled task that has not begun ends at once; one that runs ends when its worker says so.
- A retry begins anew with the same id: slot and unique key are taken again or it is refused, and
  the history goes on.
"""

from broker.applying import Step, TaskChanged
from broker.commands import Answer, Cancel, Delete, Due, Expire, Refusal, Retry
from broker.ending import end, expire, overdue, remove
from broker.following import followed
from broker.keys import ACTIVE, FINAL, RESULT, UNSETTLED, numbered
from broker.rollout_commands import RESERVED
from broker.submitting import committing, hold, holding_refused
from broker.task import EventKind, Status, Task, encode, note

_NOT_BEGUN = frozenset((Status.WAITING, Status.DELAYED, Status.BLOCKED))


def cancel(step: Step, wanted: Cancel) -> bytes:
    """Answers for each id what became of it."""
    return encode([int(_cancel(step, task_id, wanted.by)) for task_id in wanted.ids])


def retry(step: Step, wanted: Retry) -> bytes:
    """Answers for each id what became of it, or what it held that another task holds now."""
    return encode([_retry(step, task_id, wanted.by) for task_id in wanted.ids])


def delete(step: Step, wanted: Delete) -> bytes:
    """Answers for each id what became of it."""
    return encode([int(_delete(step, task_id)) for task_id in wanted.ids])


def due(step: Step, wanted: Due) -> bytes:
    """Answers for each id what became of it."""
    return encode([int(_due(step, task_id)) for task_id in wanted.ids])


def expire_some(step: Step, wanted: Expire) -> bytes:
    """Answers for each id what became of it."""
    return encode([int(_expire(step, task_id)) for task_id in wanted.ids])


def _cancel(step: Step, task_id: int, by: str) -> Answer:
    task = followed(step, task_id)
    if task is None:
        ended = step.final(task_id)
        if ended is None:
            return Answer.UNKNOWN
        return Answer.REPEATED if ended.status is Status.CANCELLED else Answer.NOT_NOW
    if task.status in _NOT_BEGUN:
        end(step, task, Status.CANCELLED, EventKind.CANCELLED, by)
        return Answer.DONE
    if task.status is not Status.RUNNING and not committing(step, task.transaction):
        return Answer.NOT_NOW
    if not task.cancel_asked:
        task.cancel_asked = True
        note(task, step.now_ms, EventKind.CANCEL_ASKED, by)
        step.store(task.status, task)
    return Answer.ASKED


def _retry(step: Step, task_id: int, by: str) -> int | Refusal:
    followed(step, task_id)
    task = step.final(task_id)
    if task is None:
        return int(_answer_of_missing(step, task_id))
    if task.status is Status.FINISHED or step.get(numbered(UNSETTLED, task_id)) is not None:
        # Children that are not told of this end yet would mix with those of the next one.
        return int(Answer.NOT_NOW)
    if task.type.startswith(RESERVED):
        # A step of a roll-out that began anew by itself would be counted nowhere.
        return int(Answer.NOT_NOW)
    refusal = holding_refused(step, task)
    if refusal is not None:
        return refusal
    before = task.status
    _begin_anew(step, task)
    note(task, step.now_ms, EventKind.RETRIED, by)
    hold(step, task)
    step.delete(numbered(FINAL, task_id))
    step.put(numbered(ACTIVE, task_id), encode(task))
    step.changed(TaskChanged(before, task.status, task))
    return int(Answer.DONE)


def _begin_anew(step: Step, task: Task) -> None:
    if task.result_bytes:
        step.delete(numbered(RESULT, task.id))
    task.status = Status.WAITING
    task.dead = False
    task.attempts_spent = task.finished_ms = task.started_ms = task.result_bytes = 0
    task.result, task.result_object, task.error = b"", "", ""
    # Late word of an attempt of before is no repetition any more.
    task.worker_id, task.session = "", 0
    task.due_ms = step.now_ms
    if overdue(step, task):
        task.deadline_ms = 0


def _delete(step: Step, task_id: int) -> Answer:
    followed(step, task_id)
    task = step.final(task_id)
    if task is None:
        return _answer_of_missing(step, task_id)
    remove(step, task, FINAL)
    return Answer.DONE


def _due(step: Step, task_id: int) -> Answer:
    task = followed(step, task_id)
    if task is None:
        return _answer_of_ended(step, task_id)
    if task.status is not Status.DELAYED or task.due_ms > step.now_ms:
        return Answer.NOT_NOW
    if overdue(step, task):
        expire(step, task)
    else:
        task.status = Status.WAITING
        note(task, step.now_ms, EventKind.DUE)
        step.store(Status.DELAYED, task)
    return Answer.DONE


def _expire(step: Step, task_id: int) -> Answer:
    task = followed(step, task_id)
    if task is None:
        return _answer_of_ended(step, task_id)
    if task.status not in _NOT_BEGUN or not overdue(step, task):
        return Answer.NOT_NOW
    expire(step, task)
    return Answer.DONE


def _answer_of_missing(step: Step, task_id: int) -> Answer:
    there = step.get(numbered(ACTIVE, task_id)) is not None
    return Answer.NOT_NOW if there else Answer.UNKNOWN


def _answer_of_ended(step: Step, task_id: int) -> Answer:
    there = step.get(numbered(FINAL, task_id)) is not None
    return Answer.REPEATED if there else Answer.UNKNOWN
