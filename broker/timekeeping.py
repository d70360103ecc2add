"""Corrects the broker's time after a leader's clock was wrong.

Commands are ordered by their position in the log. Time advances with them, and only the command of
this module sets it back, so every replica has the same time at the same position.

Invariants:
- After the time was set back, nothing is removed before its retention has passed.
- A wait that began at a time that is now in the future starts again from now. A task that waits for
  a date keeps the date.
"""

from broker.applying import Step, TransactionChanged
from broker.commands import RestartWaits, SetTime
from broker.keys import CLOCK, TRANSACTION, numbered
from broker.task import (
    ClockFacts,
    Status,
    decode_clock_facts,
    decode_transaction,
    encode,
    waits_since_ms,
)


def set_time(step: Step, wanted: SetTime) -> bytes:
    """Answers 1."""
    counters, before_ms = step.counters, step.time_before_ms
    row = step.get(CLOCK)
    facts = ClockFacts() if row is None else decode_clock_facts(row)
    if wanted.now_ms < before_ms:
        step.now_ms = counters.now_ms = wanted.now_ms
        # Tasks that end from now on may be purged before tasks that ended while time was ahead.
        counters.purged_ms = min(counters.purged_ms, wanted.now_ms)
        facts = ClockFacts(0, max(before_ms, facts.ahead_ms))
    elif wanted.doubtful:
        facts = ClockFacts(facts.jumped_from_ms or before_ms, facts.ahead_ms)
    else:
        facts = ClockFacts(0, facts.ahead_ms)
    step.put(CLOCK, encode(facts))
    return encode(1)


def restart_waits(step: Step, wanted: RestartWaits) -> bytes:
    """Answers how many waits were restarted, of tasks and of transactions."""
    tasks = sum(_restart_task(step, task_id) for task_id in wanted.ids)
    return encode(tasks + sum(_restart_transaction(step, each) for each in wanted.transactions))


def _restart_task(step: Step, task_id: int) -> bool:
    task = step.active(task_id)
    if task is None or task.status is not Status.DELAYED:
        return False
    since_ms = waits_since_ms(task)
    if since_ms <= step.now_ms:
        return False
    _, kind, attempt, who, detail = task.events[-1]
    task.due_ms = step.now_ms + max(0, task.due_ms - since_ms)
    task.events[-1] = (step.now_ms, kind, attempt, who, detail)
    step.store(Status.DELAYED, task)
    return True


def _restart_transaction(step: Step, transaction_id: int) -> bool:
    key = numbered(TRANSACTION, transaction_id)
    row = step.get(key)
    if row is None:
        return False
    transaction = decode_transaction(row)
    if transaction.created_ms <= step.now_ms:
        return False
    lasts_ms = transaction.expires_ms - transaction.created_ms
    transaction.created_ms, transaction.expires_ms = step.now_ms, step.now_ms + lasts_ms
    step.put(key, encode(transaction))
    step.changed(TransactionChanged(transaction.id, transaction))
    return True
