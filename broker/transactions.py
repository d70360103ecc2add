"""Tasks that are taken all together or not at all.

Invariants:
- Tasks of an open transaction are never given to a worker, and hold their slots already.
- A transaction that has passed its time is never committed, whether or not it was rolled back yet.
- What is rolled back leaves nothing: no task, no slot, no unique key, no payload, no edge.
- One command decides; the tasks follow, at most `ITEMS_MAX` a command, and nothing stops them.
- With `whole`, everybody sees all of the tasks follow at once: see `broker.following`.
"""

from broker import graphs
from broker.applying import Step, TransactionChanged
from broker.commands import (
    ITEMS_MAX,
    Begin,
    Commit,
    ExpireTransactions,
    Refusal,
    Rollback,
    Settle,
)
from broker.following import ROLLED_BACK, committed_at, follow
from broker.keys import ENDING, TRANSACTION, WHOLE, end_of, numbered, pack_id
from broker.spec import TRANSACTIONS_MAX
from broker.submitting import foreign, open_transaction
from broker.task import Transaction, decode_transaction, encode


def begin(step: Step, wanted: Begin) -> bytes:
    """Answers the transaction's id, or why there is none."""
    if step.counters.transactions_open >= TRANSACTIONS_MAX:
        return encode(Refusal("overloaded", f"{TRANSACTIONS_MAX:,} transactions are open"))
    step.counters.transactions_open += 1
    step.counters.transaction += 1
    transaction = Transaction(
        step.counters.transaction, step.now_ms, wanted.expires_ms, owner=wanted.owner
    )
    step.put(numbered(TRANSACTION, transaction.id), encode(transaction))
    step.changed(TransactionChanged(transaction.id, transaction))
    return encode(transaction.id)


def commit(step: Step, wanted: Commit) -> bytes:
    """Answers how many tasks go."""
    transaction = open_transaction(step, wanted.transaction, wanted.owner)
    if isinstance(transaction, Refusal):
        return encode(transaction)
    transaction.committed = True
    _end(step, transaction, ITEMS_MAX, wanted.whole)
    return encode(transaction.tasks)


def rollback(step: Step, wanted: Rollback) -> bytes:
    """Answers how many tasks are forgotten. One that has passed its time may be rolled back."""
    row = step.get(numbered(TRANSACTION, wanted.transaction))
    if row is None:
        return encode(
            Refusal("unknown_transaction", f"no transaction {wanted.transaction} is open")
        )
    transaction: Transaction = decode_transaction(row)
    if wanted.owner not in ("", transaction.owner):
        return encode(foreign(transaction))
    _end(step, transaction, ITEMS_MAX, wanted.whole)
    return encode(transaction.tasks)


def expire_transactions(step: Step, wanted: ExpireTransactions) -> bytes:
    """Answers how many have ended."""
    count, left = 0, ITEMS_MAX
    for _, row in step.scan(TRANSACTION, end_of(TRANSACTION), TRANSACTIONS_MAX):
        transaction: Transaction = decode_transaction(row)
        if transaction.expires_ms <= step.now_ms:
            count += 1
            left -= _end(step, transaction, left, wanted.whole)
    return encode(count)


def go_on(step: Step, wanted: Settle) -> bytes:
    """Go on with what earlier commands have left, of graphs and of transactions."""
    left = ITEMS_MAX
    for _, row in step.scan(ENDING, end_of(ENDING), ITEMS_MAX):
        if left:
            left -= _move(step, decode_transaction(row), left)
    return graphs.go_on(step, wanted)


def _end(step: Step, transaction: Transaction, most: int, whole: bool) -> int:
    """End the transaction; this command releases or undoes at most `ITEMS_MAX` of its tasks.

    `whole`: the others also appear as if they had followed.
    """
    step.delete(numbered(TRANSACTION, transaction.id))
    if whole and transaction.tasks > most:
        end = pack_id(step.now_ms) if transaction.committed else ROLLED_BACK
        step.put(numbered(WHOLE, transaction.id), end)
    step.counters.transactions_open -= 1
    step.changed(TransactionChanged(transaction.id, None))
    return _move(step, transaction, most)


def _move(step: Step, transaction: Transaction, most: int) -> int:
    ids = transaction.ids()
    whole = step.get(numbered(WHOLE, transaction.id))
    committed_ms = step.now_ms if transaction.committed else None
    if whole is not None:
        committed_ms = committed_at(whole)
    for task_id in ids[:most]:
        task = step.active(task_id)
        # A task that a command has touched since the end has already followed.
        if task is not None and task.transaction == transaction.id:
            follow(step, task, committed_ms)
    key = numbered(ENDING, transaction.id)
    if len(ids) > most:
        transaction.ranges = _without(transaction.ranges, most)
        step.put(key, encode(transaction))
        step.pending = True
    else:
        step.delete(key)
        step.delete(numbered(WHOLE, transaction.id))
    return min(most, len(ids))


def _without(ranges: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Ranges without their first so many ids.

    >>> _without([(1, 3), (7, 5)], 4)
    [(8, 4)]
    """
    left = []
    for first, size in ranges:
        gone = min(size, count)
        count -= gone
        if size > gone:
            left.append((first + gone, size - gone))
    return left
