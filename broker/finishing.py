"""Takes what workers tell of their attempts.

Invariants:
- Word counts only from the session and the attempt that have the task.
- The same word again is answered as known, from whatever session: the first answer may be lost.
- Word of an attempt that was given up, because its worker was, changes nothing.
"""

from typing import Final

from broker import retrying
from broker.applying import Step, TasksFinished
from broker.commands import Answer, Ended, Finish, Outcome
from broker.ending import free
from broker.keys import ACTIVE, FINAL, RESULT, numbered
from broker.task import (
    EVENTS_MAX,
    INLINE_BYTES_MAX,
    EventKind,
    Status,
    Task,
    decode_task,
    encode,
)

# Looking a member up in its enumeration costs more than most of what is done here with it.
_RUNNING: Final = Status.RUNNING
_FINISHED: Final = Status.FINISHED
_SUCCESS: Final = Outcome.FINISHED
_EVENT: Final = int(EventKind.FINISHED)
_DONE: Final = int(Answer.DONE)


def finish(step: Step, wanted: Finish) -> bytes:
    """Answers for each worker what became of its items."""
    answers = []
    finished: list[Task] = []
    for completion in wanted.completions:
        worker_id, session = completion.worker_id, completion.session
        items = completion.items
        answers.append([_take(step, worker_id, session, item, finished) for item in items])
    if finished:
        step.changed(TasksFinished(finished))
    return encode(answers)


def _take(step: Step, worker_id: str, session: int, item: Ended, finished: list[Task]) -> int:
    key = numbered(ACTIVE, item.task_id)
    row = step.get(key)
    task = step.final(item.task_id) if row is None else decode_task(row)
    if task is None:
        return Answer.UNKNOWN
    if task.attempt != item.attempt or task.worker_id != worker_id:
        return Answer.STALE
    if task.status is not _RUNNING:
        return Answer.REPEATED if task.session else Answer.STALE
    if task.session != session:
        return Answer.STALE
    outcome = item.outcome
    if outcome is _SUCCESS:
        _succeed(step, key, task, item)
        finished.append(task)
    elif outcome is Outcome.FAILED:
        retrying.fail(
            step,
            task,
            item.error,
            retry_after_ms=item.retry_after_ms,
            no_retry=item.no_retry,
        )
    elif outcome is Outcome.HANDED_BACK:
        retrying.handed_back(step, task, item.error)
    else:
        retrying.interrupted(step, task, item.error)
    return _DONE


def _succeed(step: Step, key: bytes, task: Task, item: Ended) -> None:
    """As `end`, of the tasks of which there are millions."""
    result = item.result
    if len(result) > INLINE_BYTES_MAX:
        task.result_bytes = len(result)
        step.put(numbered(RESULT, task.id), result)
    else:
        task.result = result
    task.result_object = item.result_object
    task.error = ""
    task.status = _FINISHED
    now_ms = task.finished_ms = step.now_ms
    task.cancel_asked = False
    events = task.events
    events.append((now_ms, _EVENT, task.attempt, task.worker_id, ""))
    if len(events) > EVENTS_MAX:
        del events[1]
    if task.slot or task.unique_key or task.codepool:
        free(step, task)
    if task.children:
        step.settling.append((task.id, _FINISHED))
        task.children = 0
    step.delete(key)
    step.put(FINAL + key[1:], encode(task))
    step.purge_later(task.id, now_ms + task.retention_ms)
