"""What follows when an attempt ends without a result: the one place that decides it.

Invariants:
- A task that may begin at most once is never put back after its code may have run.
- Only attempts that failed, or whose worker died, come up against `attempts_max`.
- A wait is made of whole numbers and the command's drawn one: equal on all replicas.
"""

from typing import Final

from broker.applying import Step
from broker.ending import end, expire, overdue
from broker.spec import TIME_MAX_MS
from broker.task import Backoff, EventKind, Mode, Status, Task, note

_STEPS_MAX: Final = 200
_MASK: Final = 2**64 - 1


def fail(
    step: Step, task: Task, text: str, *, retry_after_ms: int = -1, no_retry: bool = False
) -> None:
    """The attempt failed and says why."""
    task.error = text
    if task.cancel_asked:
        _cancelled(step, task, text)
    elif task.mode is Mode.AT_MOST_ONCE:
        task.attempts_spent += 1
        _bury(step, task, text)
    else:
        _again(step, task, EventKind.FAILED, text, retry_after_ms, no_retry)


def die(step: Step, task: Task, text: str) -> None:
    """The attempt's worker has gone, nobody knows how far it came."""
    task.error = text
    # Word of this attempt may still come: it is stale from now on.
    task.session = 0
    if task.cancel_asked:
        _cancelled(step, task, text)
    elif task.mode is Mode.AT_MOST_ONCE:
        task.attempts_spent += 1
        end(step, task, Status.LOST, EventKind.LOST, task.worker_id, text)
    else:
        _again(step, task, EventKind.DIED, text, -1, False)


def interrupted(step: Step, task: Task, text: str) -> None:
    """The attempt was ended because that was asked for, or as a bystander: it does not count."""
    if task.cancel_asked:
        _cancelled(step, task, text)
    elif overdue(step, task):
        expire(step, task)
    elif task.mode is Mode.AT_MOST_ONCE:
        task.error = text
        end(step, task, Status.LOST, EventKind.LOST, task.worker_id, text)
    else:
        _back(step, task, EventKind.INTERRUPTED, text)


def unlisted(step: Step, task: Task, text: str) -> None:
    """The very process that was given the task came back and does not have it.

    What a process has received it lists until the end of it was acknowledged; so either it never
    had it, or it ended it when it could not reach its broker for too long. That is no failure of
    the task.
    """
    task.session = 0
    interrupted(step, task, text)


def handed_back(step: Step, task: Task, text: str) -> None:
    """The attempt never began: the task waits again as if it had not been given away."""
    if task.cancel_asked:
        _cancelled(step, task, text)
    else:
        _back(step, task, EventKind.HANDED_BACK, text)


def wait_ms(backoff: Backoff, spent: int, drawn: int) -> int:
    """How long to wait after so many attempts failed. `drawn` has 64 bits.

    >>> [wait_ms(Backoff(1_000, 200, 60_000, 0), spent, 0) for spent in (1, 2, 3, 9)]
    [1000, 2000, 4000, 60000]
    """
    wait = backoff.first_ms
    for _ in range(min(spent - 1, _STEPS_MAX)):
        if wait >= backoff.most_ms:
            break
        wait = wait * backoff.factor_percent // 100
    wait = min(wait, backoff.most_ms)
    return wait - (wait * backoff.jitter_percent * (drawn >> 32) // (100 << 32))


def mixed(drawn: int, task_id: int, attempt: int) -> int:
    """A number for one task of a command that has one drawn number for all (SplitMix64)."""
    mix = (drawn + task_id * 0x9E3779B97F4A7C15 + attempt * 0xD1B54A32D192ED03) & _MASK
    mix = ((mix ^ (mix >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mix = ((mix ^ (mix >> 27)) * 0x94D049BB133111EB) & _MASK
    return mix ^ (mix >> 31)


def _again(
    step: Step, task: Task, kind: EventKind, text: str, retry_after_ms: int, no_retry: bool
) -> None:
    task.attempts_spent += 1
    if no_retry or 0 < task.attempts_max <= task.attempts_spent:
        _bury(step, task, text, kind)
        return
    wait = min(retry_after_ms, TIME_MAX_MS)
    if wait < 0:
        wait = wait_ms(task.backoff, task.attempts_spent, mixed(step.drawn, task.id, task.attempt))
    due_ms = step.now_ms + wait
    if 0 < task.deadline_ms <= due_ms:
        # It would only wait to miss its deadline; whoever waits for it knows now.
        _bury(step, task, text, kind)
        return
    task.due_ms = due_ms
    note(task, step.now_ms, kind, task.worker_id, text)
    task.status = Status.DELAYED if due_ms > step.now_ms else Status.WAITING
    step.store(Status.RUNNING, task)


def _bury(step: Step, task: Task, text: str, kind: EventKind = EventKind.FAILED) -> None:
    task.dead = True
    end(step, task, Status.ERROR, kind, task.worker_id, text)


def _back(step: Step, task: Task, kind: EventKind, text: str) -> None:
    note(task, step.now_ms, kind, task.worker_id, text)
    task.status = Status.WAITING
    step.store(Status.RUNNING, task)


def _cancelled(step: Step, task: Task, text: str) -> None:
    end(step, task, Status.CANCELLED, EventKind.CANCELLED, task.worker_id, text)
