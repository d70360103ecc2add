"""What the broker's rows tell whoever asks.

All are functions over rows to read from: a replica's own ones, or those of a snapshot. Lists come
in pages; one goes on above the last key of the page before.

Invariants:
- No call looks at more than a bounded number of rows, however little of them is wanted.
- A task is found where it is, whether it has ended or not; nothing is told twice within a page.
"""

from collections import Counter
from collections.abc import Iterator
from heapq import merge
from typing import Final

import msgspec

from broker.commands import Schedule, decode_schedule
from broker.errors import PayloadMissing
from broker.following import committed_at, status_at
from broker.keys import (
    ACTIVE,
    CLOCK,
    CLUSTER,
    COUNTERS,
    ENDING,
    EXPIRY,
    FINAL,
    ID_MAX,
    PAYLOAD,
    POOL,
    RESULT,
    ROLLOUT,
    SCHEDULE,
    SETTING,
    SLOT,
    TRANSACTION,
    UNSETTLED,
    WHOLE,
    WORKER,
    end_of,
    name_of,
    named,
    note_key,
    note_number,
    note_prefix,
    number_of,
    numbered,
    paired,
    part_prefix,
    setting_prefix,
    split_setting,
    unpack_id,
)
from broker.rollout_commands import Note, RolloutRow, decode_notes, decode_row
from broker.spec import POOL_PARTS_MAX
from broker.task import (
    FINAL_STATES,
    ClockFacts,
    CodePool,
    Counters,
    Event,
    EventKind,
    Setting,
    Status,
    Task,
    Transaction,
    WorkerSession,
    decode_clock_facts,
    decode_counters,
    decode_pool,
    decode_setting,
    decode_task,
    decode_transaction,
    decode_worker,
)
from engine.replica.contract import ReadRows
from engine.state.contract import Row

LOOKS_MAX: Final = 2_000
ROLLOUTS_BYTES_MAX: Final = 2 * 1024 * 1024
_PAGE_ROWS: Final = 200

Tally = Counter[tuple[Status, str, str]]
"""How many tasks by status, tenant and type."""


class TaskFilter(msgspec.Struct, frozen=True):
    """Which tasks; what is empty does not matter. `statuses` and `dead` both hold."""

    statuses: frozenset[Status] = frozenset()
    tenant: str = ""
    type: str = ""
    worker_id: str = ""
    slot: str = ""
    dead: bool = False
    """Dead letters only."""

    def fits(self, task: Task) -> bool:
        """Whether a task is one of them."""
        return (
            (not self.statuses or task.status in self.statuses)
            and (not self.tenant or task.tenant == self.tenant)
            and (not self.type or task.type == self.type)
            and (not self.worker_id or task.worker_id == self.worker_id)
            and (not self.slot or task.slot == self.slot)
            and (not self.dead or task.dead)
        )


class TaskPage(msgspec.Struct, frozen=True):
    """Tasks in the order of their ids. `above` is where the next page begins; None: no more."""

    tasks: list[Task]
    above: int | None


def get_task(rows: ReadRows, task_id: int) -> Task | None:
    """A task, or None if there is none or none any more."""
    if not 0 <= task_id <= ID_MAX:
        return None
    row = rows.get(numbered(ACTIVE, task_id)) or rows.get(numbered(FINAL, task_id))
    return None if row is None else Seeing(rows).task(row)


class Seeing:
    """Decodes tasks as they appear at one position of the log.

    A task whose transaction has ended whole appears as if it had followed, even if its row was not
    rewritten yet.
    """

    def __init__(self, rows: ReadRows) -> None:
        self._rows = rows
        self._ends: dict[int, bytes | None] = {}

    def task(self, row: bytes) -> Task | None:
        """The task of a row; None if it was rolled back."""
        task = decode_task(row)
        if task.status is not Status.PREPARED:
            return task
        number = task.transaction
        if number not in self._ends:
            self._ends[number] = self._rows.get(numbered(WHOLE, number))
        end = self._ends[number]
        if end is None:
            return task
        committed_ms = committed_at(end)
        if committed_ms is None:
            return None
        task.status = status_at(task, committed_ms)
        task.transaction, task.error = 0, ""
        return task


def payload_of(rows: ReadRows, task: Task) -> bytes:
    """A task's payload, empty if it is kept outside. Raises `PayloadMissing` if it has gone."""
    if not task.payload_bytes:
        return task.payload
    return _there(rows.get(numbered(PAYLOAD, task.id)), task, "payload")


def result_of(rows: ReadRows, task: Task) -> bytes:
    """A task's result, empty if it is kept outside. Raises `PayloadMissing` if it has gone."""
    if not task.result_bytes:
        return task.result
    return _there(rows.get(numbered(RESULT, task.id)), task, "result")


def _there(found: bytes | None, task: Task, what: str) -> bytes:
    if found is None:
        raise PayloadMissing(f"the {what} of task {task.id} has been removed", task_id=task.id)
    return found


def history(task: Task) -> list[Event]:
    """What happened to a task, from its submit on."""
    return [(task.created_ms, int(EventKind.SUBMITTED), 0, task.submitter, ""), *task.events]


def list_tasks(
    rows: ReadRows,
    wanted: TaskFilter,
    above: int = 0,
    limit: int = 100,
    looks_max: int = LOOKS_MAX,
) -> TaskPage:
    """Tasks with ids over `above` that fit, at most `limit`.

    A page may have fewer, even none, and still not be the last: it ends after `looks_max` rows.
    """
    found: list[Task] = []
    above = task_id = max(above, 0)
    if limit <= 0:
        return TaskPage([], above)
    seeing = Seeing(rows)
    for looks, (key, value) in enumerate(_tasks(rows, wanted, above), 1):
        task_id = number_of(key)
        task = seeing.task(value)
        if task is not None and wanted.fits(task):
            found.append(task)
        if len(found) >= limit or looks >= looks_max:
            return TaskPage(found, task_id)
    return TaskPage(found, None)


def _tasks(rows: ReadRows, wanted: TaskFilter, above: int) -> Iterator[Row]:
    statuses = wanted.statuses
    kinds = []
    if not wanted.dead and (not statuses or statuses - FINAL_STATES):
        kinds.append(_rows(rows, ACTIVE, above))
    if not statuses or statuses & FINAL_STATES:
        kinds.append(_rows(rows, FINAL, above))
    return merge(*kinds, key=lambda row: row[0][1:])


def _rows(rows: ReadRows, kind: bytes, above: int) -> Iterator[Row]:
    while above < ID_MAX:
        page = rows.scan(numbered(kind, above + 1), end_of(kind), _PAGE_ROWS)
        yield from page
        if len(page) < _PAGE_ROWS:
            return
        above = number_of(page[-1][0])


def active_tasks(rows: ReadRows, above: int = 0, limit: int = 1_000) -> list[Task]:
    """Tasks that have not ended, over an id: for who builds a queue of them page by page."""
    if above >= ID_MAX:
        return []
    page = rows.scan(numbered(ACTIVE, max(above, 0) + 1), end_of(ACTIVE), limit)
    seeing = Seeing(rows)
    return [task for _, value in page if (task := seeing.task(value)) is not None]


def tally(
    rows: ReadRows, into: Tally, *, final: bool, above: int = 0, looks_max: int = LOOKS_MAX
) -> int | None:
    """Count tasks over an id, those that have ended or the others. Returns where to go on."""
    kind = FINAL if final else ACTIVE
    page = rows.scan(numbered(kind, above + 1), end_of(kind), looks_max)
    seeing = Seeing(rows)
    for _, value in page:
        task = seeing.task(value)
        if task is not None:
            into[task.status, task.tenant, task.type] += 1
    return None if len(page) < looks_max else number_of(page[-1][0])


def list_slots(rows: ReadRows, above: str = "", limit: int = 1_000) -> list[tuple[str, int]]:
    """Slots that are held, and the task in each."""
    page = _named(rows, SLOT, above, limit)
    found = [(name_of(key), unpack_id(value)) for key, value in page]
    if rows.scan(WHOLE, end_of(WHOLE), 1):
        # A rolled-back transaction holds nothing, even if its rows still exist.
        found = [(name, task_id) for name, task_id in found if get_task(rows, task_id) is not None]
    return found


def list_workers(
    rows: ReadRows, above: str = "", limit: int = 1_000, prefix: str = ""
) -> list[WorkerSession]:
    """Workers' newest sessions, those that ended too; with a prefix, of names that begin so."""
    first = named(WORKER, above) + b"\0" if above else named(WORKER, prefix)
    page = rows.scan(first, end_of(named(WORKER, prefix)), max(limit, 0))
    return [decode_worker(value) for _, value in page]


def get_worker(rows: ReadRows, worker_id: str) -> WorkerSession | None:
    """A worker's newest session."""
    row = rows.get(named(WORKER, worker_id))
    return None if row is None else decode_worker(row)


def list_schedules(rows: ReadRows, above: str = "", limit: int = 1_000) -> list[Schedule]:
    """Schedules by name."""
    return [decode_schedule(value) for _, value in _named(rows, SCHEDULE, above, limit)]


def list_pools(rows: ReadRows, above: str = "", limit: int = 1_000) -> list[CodePool]:
    """Code pools by name, those too whose parts are still coming."""
    return [decode_pool(value) for _, value in _named(rows, POOL, above, limit)]


def get_pool(rows: ReadRows, name: str) -> CodePool | None:
    """A code pool that is whole."""
    row = rows.get(named(POOL, name))
    pool = None if row is None else decode_pool(row)
    return pool if pool is not None and pool.parts_stored == pool.parts else None


def pool_parts(rows: ReadRows, name: str) -> list[bytes]:
    """The bytes of a code pool, part by part."""
    prefix = part_prefix(name)
    return [value for _, value in rows.scan(prefix, end_of(prefix), POOL_PARTS_MAX)]


def list_transactions(rows: ReadRows, above: int = 0, limit: int = 1_000) -> list[Transaction]:
    """Open transactions, those that have passed their time and wait to be rolled back too."""
    if above >= ID_MAX:
        return []
    first = numbered(TRANSACTION, max(above, 0) + 1)
    page = rows.scan(first, end_of(TRANSACTION), max(limit, 0))
    return [decode_transaction(value) for _, value in page]


def list_settings(
    rows: ReadRows, kind: str = "", above: tuple[str, str] | None = None, limit: int = 1_000
) -> list[tuple[str, str, Setting]]:
    """Settings of a kind, or of all: kind, name, value."""
    prefix = setting_prefix(kind) if kind else SETTING
    first = prefix if above is None else setting_prefix(above[0]) + above[1].encode() + b"\0"
    return [
        (*split_setting(key), decode_setting(value))
        for key, value in rows.scan(first, end_of(prefix), max(limit, 0))
    ]


def get_counters(rows: ReadRows) -> Counters:
    """What was given away last, and the newest time that a command told."""
    row = rows.get(COUNTERS)
    return Counters() if row is None else decode_counters(row)


def time_of(rows: ReadRows) -> tuple[int, ClockFacts]:
    """The newest time in a command (0 if there was none), and how it was changed."""
    row = rows.get(CLOCK)
    return get_counters(rows).now_ms, ClockFacts() if row is None else decode_clock_facts(row)


def purgeable(rows: ReadRows, now_ms: int) -> bool:
    """Whether there are tasks that `Purge` would look at."""
    first = paired(EXPIRY, get_counters(rows).purged_ms, 0)
    return bool(rows.scan(first, paired(EXPIRY, now_ms + 1, 0), 1))


def unsettled(rows: ReadRows) -> bool:
    """Whether something of graphs or transactions is left: then `Settle` is to be sent."""
    return any(rows.scan(kind, end_of(kind), 1) for kind in (UNSETTLED, ENDING))


def _named(rows: ReadRows, kind: bytes, above: str, limit: int) -> list[Row]:
    first = named(kind, above) + b"\0" if above else kind
    return rows.scan(first, end_of(kind), max(limit, 0))


def get_rollout(rows: ReadRows, name: str) -> RolloutRow | None:
    """A roll-out, or None if there is none or none any more."""
    row = rows.get(named(ROLLOUT, name))
    return None if row is None else decode_row(row)


def list_rollouts(rows: ReadRows, above: str = "", limit: int = 100) -> list[RolloutRow]:
    """Roll-outs by name, those too that have ended: a page, which ends early if they are big.

    There are no more only if there is none.
    """
    found: list[RolloutRow] = []
    size_bytes = 0
    while len(found) < limit and size_bytes < ROLLOUTS_BYTES_MAX:
        page = _named(rows, ROLLOUT, above, 1)
        if not page:
            break
        found.append(decode_row(page[0][1]))
        size_bytes += len(page[0][1])
        above = found[-1].name
    return found


def held_clusters(rows: ReadRows, above: str = "", limit: int = 1_000) -> list[tuple[str, str]]:
    """Clusters, and the roll-out that holds each."""
    return [(name_of(key), value.decode()) for key, value in _named(rows, CLUSTER, above, limit)]


def rollout_notes(
    rows: ReadRows, name: str, above: int = 0, limit: int = 1_000
) -> list[tuple[int, list[Note]]]:
    """What was noted of a roll-out, change by change; `above` is the last change seen."""
    first = note_key(name, max(above, 0) + 1)
    page = rows.scan(first, end_of(note_prefix(name)), max(limit, 0))
    return [(note_number(key), decode_notes(value)) for key, value in page]
