"""Gives tasks to workers.

Invariants:
- Only a waiting task is given, only to a session that is connected, each time as another attempt.
- A task whose deadline has passed never runs: it ends here.
"""

from typing import Final

from broker.applying import Step, TasksAssigned
from broker.commands import Assign, Assigned
from broker.ending import expire
from broker.following import followed
from broker.keys import ACTIVE, WORKER, named, numbered
from broker.task import (
    EVENTS_MAX,
    EventKind,
    SessionState,
    Status,
    Task,
    WorkerSession,
    decode_task,
    decode_worker,
    encode,
)

# Looking a member up in its enumeration costs more than most of what is done here with it.
_WAITING: Final = Status.WAITING
_PREPARED: Final = Status.PREPARED
_RUNNING: Final = Status.RUNNING
_ASSIGNED: Final = int(EventKind.ASSIGNED)


def assign(step: Step, wanted: Assign) -> bytes:
    """Answers for each worker the attempts of its tasks, 0 for those that it does not get."""
    answers = []
    given: list[Task] = []
    for assignment in wanted.assignments:
        if connected(step, assignment.worker_id, assignment.session) is None:
            answers.append([0] * len(assignment.items))
            continue
        worker_id, session = assignment.worker_id, assignment.session
        answers.append([_give(step, worker_id, session, item, given) for item in assignment.items])
    if given:
        step.changed(TasksAssigned(given))
    return encode(answers)


def connected(step: Step, worker_id: str, session: int) -> WorkerSession | None:
    """A worker's session if it is the newest one and has not ended."""
    row = step.get(named(WORKER, worker_id))
    if row is None:
        return None
    found: WorkerSession = decode_worker(row)
    return found if found.session == session and found.state is SessionState.CONNECTED else None


def _give(step: Step, worker_id: str, session: int, item: Assigned, given: list[Task]) -> int:
    key = numbered(ACTIVE, item.task_id)
    row = step.get(key)
    if row is None:
        return 0
    task = decode_task(row)
    if task.status is _PREPARED:
        task = followed(step, item.task_id) or task
    if task.status is not _WAITING:
        return 0
    now_ms = step.now_ms
    if 0 < task.deadline_ms <= now_ms:
        expire(step, task)
        return 0
    attempt = task.attempt + 1
    task.status = _RUNNING
    task.attempt = attempt
    task.worker_id = worker_id
    task.session = session
    task.started_ms = now_ms
    if not task.fixed:
        task.group = item.group
        task.resources = item.resources
    events = task.events
    events.append((now_ms, _ASSIGNED, attempt, worker_id, ""))
    if len(events) > EVENTS_MAX:
        del events[1]
    step.put(key, encode(task))
    given.append(task)
    return attempt
