"""Compares a leader's memory with its rows. If they differ, the memory is wrong.

Invariants:
- `differences` may be called at any time on the event loop: the memory always follows from the rows
  and from the commands under way.
- The work of one `Checking.look` is bounded, however many tasks there are.
- Nothing here changes anything. The caller rebuilds the memory if there is a difference.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from broker import keys
from broker.leading.place import Place, place_of
from broker.leading.quotas import NOT_BEGUN, size_of
from broker.leading.timers import Kind
from broker.scheduling import QueueKey
from broker.task import Status, Task, decode_task, decode_transaction, waits_since_ms
from engine.errors import EngineError
from engine.replica import ReadRows

if TYPE_CHECKING:
    from broker.leading.term import Term

LOOKED_TASKS: Final = 100
"""At most this many rows are compared in one look."""
LOOKED_IDS_MAX: Final = 100_000
"""At most this many ids are searched in one look, in all queues together.

A single queue that is longer is never searched for tasks. It only counts in the totals.
"""
_ALL: Final = 1 << 31
_WAITING: Final = Status.WAITING


def differences(term: "Term") -> list[str]:
    """Describe all differences between memory and rows. This reads every active task."""
    found = [*_totals(term)]
    tasks = term.look(lambda rows: _stored(rows, 0, _ALL))
    queued = _queued(term)
    for task in tasks:
        found += _of_task(term, task, queued)
        found += term.look(partial(_of_holds, task))
    found += _of_queues(term, tasks, queued)
    found += _of_workers(term, tasks)
    found += _of_counts(term, tasks)
    found += _of_moments(term, tasks)
    return found


class Checking:
    """Compares some tasks at each look, from the first active task to the last, then again."""

    def __init__(self, term: "Term") -> None:
        self._term = term
        self._above = 0

    def look(self) -> list[str]:
        """Describe the differences of the next tasks."""
        term = self._term
        try:
            page = term.look(lambda rows: _stored(rows, self._above, LOOKED_TASKS))
            searched, tasks = self._within_bounds(page)
            holds = [text for task in tasks for text in term.look(partial(_of_holds, task))]
        except EngineError:
            # The term is over; others report that.
            return []
        at_end = len(page) < LOOKED_TASKS and len(tasks) == len(page)
        self._above = 0 if at_end else tasks[-1].id
        ids = {task.id for task in tasks}
        queued = {key: _times_in(term, key, ids) for key in searched}
        found = [*_totals(term), *holds]
        for task in tasks:
            found += _of_task(term, task, queued)
        return found

    def _within_bounds(self, tasks: list[Task]) -> tuple[set[QueueKey], list[Task]]:
        """The queues to search in this look, and the first tasks, whose queues these are."""
        searched: set[QueueKey] = set()
        room = LOOKED_IDS_MAX
        for number, task in enumerate(tasks):
            key = key_of(task)
            if task.status is not _WAITING or key in searched:
                continue
            length = self._term.scheduler.index.length(key) + len(self._term.incoming.get(key, ()))
            if length > LOOKED_IDS_MAX:
                continue
            if length > room:
                return searched, tasks[:number]
            room -= length
            searched.add(key)
        return searched, tasks


def _stored(rows: ReadRows, above: int, limit: int) -> list[Task]:
    """Active tasks, as in their rows: these may be behind the view of readers in a large commit."""
    page = rows.scan(keys.numbered(keys.ACTIVE, above + 1), keys.end_of(keys.ACTIVE), limit)
    return [decode_task(row) for _, row in page]


def key_of(task: Task) -> QueueKey:
    """The queue in which a task waits."""
    if task.fixed:
        return QueueKey(task.tenant, task.type, task.priority, task.group, task.resources)
    return QueueKey(task.tenant, task.type, task.priority)


_Queued = dict[QueueKey, Counter[int]]
"""For each queue that was searched, how often each id is in it."""


def _queued(term: "Term") -> _Queued:
    """All queues."""
    index = term.scheduler.index
    found: _Queued = {}
    for key in (*index.known_keys(), *map(QueueKey._make, term.incoming)):
        found[key] = Counter(index.ids(key))
        found[key].update(term.incoming.get(key, ()))
    return found


def _times_in(term: "Term", key: QueueKey, ids: set[int]) -> Counter[int]:
    """How often each of these ids is in a queue."""
    found = Counter(filter(ids.__contains__, term.scheduler.index.ids(key)))
    found.update(filter(ids.__contains__, term.incoming.get(key, ())))
    return found


def _totals(term: "Term") -> Iterator[str]:
    """Compare the number of waiting tasks in the rows and in the queues, which is cheap."""
    under_way = term.dispatching.under_way_tasks.values()
    taken = sum(task is None or task.status is _WAITING for task in under_way)
    coming = sum(map(len, term.incoming.values()))
    queued = term.scheduler.waiting + coming + len(term.withheld)
    waiting = term.counts[_WAITING]
    if queued + taken != waiting:
        yield f"{queued} tasks are queued and {taken} are under way, of {waiting} that wait"


def _of_task(term: "Term", task: Task, queued: _Queued) -> Iterator[str]:
    under_way = task.id in term.dispatching.under_way_tasks
    place = place_of(task.status, under_way)
    key = key_of(task)
    times = queued[key][task.id] if key in queued else None
    expected = place is Place.QUEUED and task.id not in term.withheld
    if times is not None and times != expected:
        yield f"task {task.id} is {place.name} and {times} times in its queue"
    pick = term.scheduler.running_pick(task.id)
    if place is not Place.TAKEN:
        if pick is not None:
            yield f"task {task.id} is {task.status.name} and counts for {pick.worker_id}"
    elif under_way:
        if pick is None:
            yield f"task {task.id} is under way and takes no place of a worker"
    else:
        yield from _of_running(term, task)


def _of_running(term: "Term", task: Task) -> Iterator[str]:
    pick = term.scheduler.running_pick(task.id)
    member = term.crew.get(task.worker_id)
    back = task.id in term.dispatching.handing_back
    if member is None or member.session != task.session:
        if not back and pick is not None:
            yield f"task {task.id} counts for {pick.worker_id}, whose session has ended"
        if not back and term.proposing.idle:
            yield f"task {task.id} runs in a session that has ended, and was not ended"
    elif task.id in member.told:
        if pick is not None:
            yield f"task {task.id} counts for {pick.worker_id}, which has reported its end"
    elif pick is None or pick.worker_id != task.worker_id:
        yield f"task {task.id} runs and does not count for {task.worker_id}"
    elif not back and member.attempts.get(task.id) != task.attempt:
        yield f"attempt {task.attempt} of task {task.id} is not known with {task.worker_id}"


def _of_holds(task: Task, rows: ReadRows) -> list[str]:
    """Slots and unique keys have rows of their own: each names the task that holds it."""
    names = [(f"slot {task.slot}", keys.named(keys.SLOT, task.slot))] if task.slot else []
    if task.unique_key:
        unique = keys.unique_key(task.tenant, task.unique_key)
        names.append((f"unique key {task.unique_key}", unique))
    found = []
    for name, key in names:
        row = rows.get(key)
        if row is None or keys.unpack_id(row) != task.id:
            found.append(f"{name} is not held by task {task.id}")
    return found


def _of_queues(term: "Term", tasks: list[Task], queued: _Queued) -> Iterator[str]:
    known = {task.id: task for task in tasks}
    for key, times in queued.items():
        for task_id in times:
            task = known.get(task_id)
            if task is None or key_of(task) != key or task.status is not _WAITING:
                yield f"task {task_id} is in the queue {tuple(key)} and does not wait there"
    for task_id in term.withheld:
        task = known.get(task_id)
        if task is None or task.status is not _WAITING:
            yield f"task {task_id} is withheld and does not wait"
    for gate in term.scheduler.index.gates():
        if gate.parked and gate.has_room() and gate.bucket is None:
            if not term.scheduler.opens_soon(gate):
                yield f"tasks are parked at {gate.kind} {gate.name}, which has room"


def _of_workers(term: "Term", tasks: list[Task]) -> Iterator[str]:
    running = {task.id: task for task in tasks if task.status is Status.RUNNING}
    under_way = term.dispatching.under_way_tasks
    picks = list(term.scheduler.picks())
    for pick in picks:
        if pick.id not in running and pick.id not in under_way:
            yield f"task {pick.id} counts for {pick.worker_id} and does not run"
    for member in term.crew:
        for task_id, attempt in (*member.attempts.items(), *member.told.items()):
            task = running.get(task_id)
            if task is None or (task.worker_id, task.attempt) != (member.worker_id, attempt):
                yield f"task {task_id} does not run with {member.worker_id}, which should run it"
    used = Counter(("worker", pick.worker_id) for pick in picks)
    used.update(("tenant", pick.tenant) for pick in picks)
    used.update(("type", pick.type) for pick in picks)
    used.update(("resource", name) for pick in picks for name in pick.resources)
    scheduler = term.scheduler
    counted = {("worker", one.worker_id): one.running for one in scheduler.workers.values()}
    counted |= {("tenant", one.name): one.gate.used for one in scheduler.index.tenants()}
    counted |= {(gate.kind, gate.name): gate.used for gate in scheduler.index.gates()}
    for what in sorted(used.keys() | counted.keys()):
        if used[what] != counted.get(what, 0):
            yield f"{' '.join(what)} has {counted.get(what, 0)} units in use, and {used[what]} run"


def _of_counts(term: "Term", tasks: list[Task]) -> Iterator[str]:
    by_status = Counter(task.status for task in tasks)
    for status in Status:
        if not status.final and term.counts[status] != by_status[status]:
            counted = term.counts[status]
            yield f"{counted} tasks are counted as {status.name}, {by_status[status]} are"
    rooms: dict[str, tuple[int, int]] = {}
    for task in tasks:
        if task.status in NOT_BEGUN:
            count, size_bytes = rooms.get(task.tenant, (0, 0))
            rooms[task.tenant] = count + 1, size_bytes + size_of(task)
    if rooms != (counted_rooms := term.quotas.counted()):
        yield f"tenants have {rooms} waiting, and {counted_rooms} by their quotas"


def _of_moments(term: "Term", tasks: list[Task]) -> Iterator[str]:
    """Compare timers, and whose transactions are open.

    Compare only timers in the future: for those that have fired, a command is under way."""
    ring_ms = term.time.ring_ms
    due = {
        task.id: ring_ms(task.due_ms, waits_since_ms(task))
        for task in tasks
        if task.status is Status.DELAYED
    }
    deadlines = {
        task.id: ring_ms(task.deadline_ms)
        for task in tasks
        if task.deadline_ms and task.status is not Status.PREPARED
    }
    rows = term.look(lambda rows: rows.scan(keys.TRANSACTION, keys.end_of(keys.TRANSACTION), _ALL))
    transactions = [decode_transaction(row) for _, row in rows]
    open_ = {one.id: ring_ms(one.expires_ms, one.created_ms) for one in transactions}
    if {one.id: one.owner for one in transactions} != term.owners:
        yield "the owners of open transactions are not those of the rows"
    now_ms = term.time.now_ms()
    wanted = ((Kind.DUE, due), (Kind.DEADLINE, deadlines), (Kind.TRANSACTION, open_))
    for kind, moments in wanted:
        yield from _of_kind(kind, moments, term.timers.moments(kind), lambda at: at > now_ms)


def _of_kind(
    kind: Kind, rows: dict[int, int], timers: dict[int | str, int], ahead: Callable[[int], bool]
) -> Iterator[str]:
    for key in sorted({*rows, *(key for key in timers if isinstance(key, int))}):
        there, rings = rows.get(key), timers.get(key)
        if there != rings and ((rings is not None) or (there is not None and ahead(there))):
            yield f"{kind.name} of {key} is due at {there} by its row and at {rings} in memory"
