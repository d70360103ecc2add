"""Removes tasks that were kept long enough after their end.

Invariants:
- How long is counted from the end of the task, never from its creation.
- A task that was begun anew meanwhile stays; its next end has a row of its own.
- A purge begins where the one before it ended: stepping over rows that are gone is not free.
"""

from broker import pools
from broker.applying import Step, purge_ms
from broker.commands import Purge
from broker.ending import remove
from broker.keys import EXPIRY, FINAL, pack_ids, pair_of, paired, unpack_ids
from broker.task import encode


def purge(step: Step, wanted: Purge) -> bytes:
    """Answers how many tasks were looked at: as many as the limit, then there may be more."""
    left = wanted.limit
    first = paired(EXPIRY, step.counters.purged_ms, 0)
    rows = step.scan(first, paired(EXPIRY, step.now_ms + 1, 0), wanted.limit)
    purged_ms = step.now_ms
    for key, row in rows:
        ids = unpack_ids(row)
        some, rest = ids[:left], ids[left:]
        for task_id in some:
            _remove(step, task_id)
        if rest:
            step.put(key, pack_ids(rest))
        else:
            step.delete(key)
        left -= len(some)
        if not left:
            purged_ms = pair_of(key)[0]
            break
    step.counters.purged_ms = purged_ms
    pools.purge(step, keep_scheduled=wanted.keep_code)
    return encode(wanted.limit - left)


def _remove(step: Step, task_id: int) -> None:
    task = step.final(task_id)
    if task is not None and purge_ms(task) <= step.now_ms:
        remove(step, task, FINAL)
