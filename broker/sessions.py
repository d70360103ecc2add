"""Workers come, are lost, and leave.

Invariants:
- Sessions have growing numbers; a worker has one at a time, the newest.
- A new process of a worker has nothing of what the one before it ran.
- A running task belongs to one session, and ends with it unless a reconnect lists it: as an
  attempt that does not count if the same process came back, as one that does if not.
"""

from collections.abc import Iterable, Iterator

from broker import retrying
from broker.applying import SessionChanged, Step
from broker.commands import Forget, Lost, Running, Session, SessionOpened
from broker.keys import WORKER, named
from broker.task import (
    EventKind,
    SessionState,
    Status,
    Task,
    WorkerSession,
    decode_worker,
    encode,
    note,
)


def open_session(step: Step, wanted: Session) -> bytes:
    """Answers the session's number and what goes on."""
    before = _worker(step, wanted.worker_id)
    step.counters.session += 1
    worker = WorkerSession(
        wanted.worker_id,
        step.counters.session,
        wanted.process_id,
        wanted.location,
        SessionState.CONNECTED,
        step.now_ms,
        wanted.limits,
        wanted.version,
    )
    step.put(named(WORKER, worker.worker_id), encode(worker))
    step.changed(SessionChanged(worker))
    keep: list[Running] = []
    end, text = retrying.die, f"worker {worker.worker_id} died"
    if before is not None and before.process_id == wanted.process_id:
        keep = _keep(step, worker, wanted.running)
        end, text = retrying.unlisted, f"worker {worker.worker_id} came back without it"
    kept = {running.task_id for running in keep}
    for task in _running(step, worker.worker_id, wanted.held):
        if task.id not in kept:
            end(step, task, text)
    return encode(SessionOpened(worker.session, keep))


def lose(step: Step, wanted: Lost) -> bytes:
    """Answers how many tasks went with the session."""
    worker = _worker(step, wanted.worker_id)
    state = SessionState.LEFT if wanted.left else SessionState.LOST
    if worker is not None and worker.session == wanted.session:
        if worker.state is SessionState.CONNECTED:
            worker.state, worker.since_ms = state, step.now_ms
            step.put(named(WORKER, worker.worker_id), encode(worker))
            step.changed(SessionChanged(worker))
    text = f"worker {wanted.worker_id} {'left' if wanted.left else 'died'}"
    count = 0
    for task in _running(step, wanted.worker_id, wanted.held):
        if task.session == wanted.session:
            retrying.die(step, task, text)
            count += 1
    return encode(count)


def forget(step: Step, wanted: Forget) -> bytes:
    """Answers how many rows were removed."""
    count = 0
    for worker_id in wanted.worker_ids:
        worker = _worker(step, worker_id)
        if worker is not None and worker.state is not SessionState.CONNECTED:
            step.delete(named(WORKER, worker_id))
            step.changed(SessionChanged(worker, gone=True))
            count += 1
    return encode(count)


def _keep(step: Step, worker: WorkerSession, listed: Iterable[Running]) -> list[Running]:
    """Of what the worker lists, what it really has: that goes on in the new session."""
    keep = []
    for running in listed:
        task = step.active(running.task_id)
        if task is None or task.status is not Status.RUNNING:
            continue
        if task.worker_id != worker.worker_id or task.attempt != running.attempt:
            continue
        if task.session != worker.session:
            task.session = worker.session
            note(task, step.now_ms, EventKind.KEPT, worker.worker_id)
            step.store(Status.RUNNING, task)
            keep.append(running)
    return keep


def _running(step: Step, worker_id: str, held: Iterable[int]) -> Iterator[Task]:
    """Those of the tasks that the worker has at the moment."""
    for task_id in held:
        task = step.active(task_id)
        if task is not None and task.status is Status.RUNNING and task.worker_id == worker_id:
            yield task


def _worker(step: Step, worker_id: str) -> WorkerSession | None:
    row = step.get(named(WORKER, worker_id))
    return None if row is None else decode_worker(row)
