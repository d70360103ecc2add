"""What the broker keeps: tasks, edges between them, transactions, workers' sessions, schedules.

Every record is an array of MessagePack with the fields in the order of its class; a reader of an
older record fills in what is missing at its end.

Invariants:
- A task is in a row of the active ones or in one of the final ones, never in both.
- `attempt` grows with each attempt and never goes back: with the id it is the task's token.
- `attempts_spent` counts the attempts that failed; only they come up against `attempts_max`.
- A slot and a unique key are held from submit until the final state.
- The first event stays for as long as the task is kept; beyond `EVENTS_MAX` those after it go.
"""

import enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

EVENTS_MAX: Final = 64
DETAIL_LENGTH_MAX: Final = 200
ERROR_LENGTH_MAX: Final = 4_000
INLINE_BYTES_MAX: Final = 256
PAYLOAD_BYTES_MAX: Final = 1024 * 1024
HOUR_MS: Final = 3_600_000

_Wait = Annotated[int, Meta(ge=0, le=2**53)]


class Status(enum.IntEnum):
    """Where a task is. The first ones have the numbers of the published broker."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    ERROR = 4
    DELAYED = 5
    BLOCKED = 6
    PREPARED = 7
    CANCELLED = 8
    LOST = 9

    # Equal to its number, so of the same hash; an enumeration's own one is ten times as slow.
    __hash__ = int.__hash__

    @property
    def final(self) -> bool:
        """Whether the task has ended."""
        return self in FINAL_STATES


FINAL_STATES: Final = frozenset((Status.FINISHED, Status.ERROR, Status.CANCELLED, Status.LOST))


class Mode(enum.IntEnum):
    """How often a task may begin."""

    AT_LEAST_ONCE = 0
    AT_MOST_ONCE = 1


class Rule(enum.IntEnum):
    """What a child needs of a parent's end."""

    ON_SUCCESS = 0
    ON_FAILURE = 1
    ALWAYS = 2


class EventKind(enum.IntEnum):
    """What happened to a task."""

    SUBMITTED = 0
    COMMITTED = 1
    RELEASED = 2
    DUE = 3
    ASSIGNED = 4
    FINISHED = 5
    FAILED = 6
    DIED = 7
    HANDED_BACK = 8
    INTERRUPTED = 9
    CANCEL_ASKED = 10
    CANCELLED = 11
    EXPIRED = 12
    LOST = 13
    RETRIED = 14
    KEPT = 15


Event = tuple[int, int, int, str, str]
"""at_ms, `EventKind`, attempt, who, detail."""


_DATED: Final = frozenset((EventKind.COMMITTED, EventKind.RELEASED))
"""After these a task waits for the date that its submitter gave, not for a length of time."""


class Backoff(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How long a task waits before it is tried again: whole numbers, so that all replicas agree.

    The first wait is `first_ms`, each further one `factor_percent` of the one before, none over
    `most_ms`. Of each up to `jitter_percent` are taken off by chance.
    """

    first_ms: _Wait = 1_000
    factor_percent: Annotated[int, Meta(ge=100, le=10_000)] = 200
    most_ms: _Wait = HOUR_MS
    jitter_percent: Annotated[int, Meta(ge=0, le=100)] = 20


BACKOFF: Final = Backoff()


class Task(msgspec.Struct, array_like=True, gc=False):
    """One task. Times are in milliseconds of the broker's clock, 0 where there is none."""

    id: int
    tenant: str
    type: str
    status: Status
    priority: int = 0
    attempt: int = 0
    attempts_max: int = 1
    """0: without limit."""
    attempts_spent: int = 0
    mode: Mode = Mode.AT_LEAST_ONCE
    created_ms: int = 0
    due_ms: int = 0
    """Not before. While it is delayed, when it goes on."""
    deadline_ms: int = 0
    time_limit_ms: int = 0
    slot: str = ""
    unique_key: str = ""
    fixed: bool = False
    """Group and resources were fixed at submit and no mapping changes them."""
    group: int = 0
    resources: tuple[str, ...] = ()
    worker_id: str = ""
    """Who has it, or had it last."""
    session: int = 0
    """In which session; 0 again if the attempt ended without word of the worker."""
    started_ms: int = 0
    finished_ms: int = 0
    backoff: Backoff = BACKOFF
    retention_ms: int = HOUR_MS
    dead_retention_ms: int = 7 * 24 * HOUR_MS
    dead: bool = False
    """A dead letter: it failed for good and waits for somebody to look at it."""
    cancel_asked: bool = False
    parents_left: int = 0
    children: int = 0
    """Not 0: edges lead from it to tasks that wait for its end."""
    transaction: int = 0
    """The open transaction that it is part of."""
    codepool: str = ""
    execution: str = "factory"
    submitter: str = ""
    payload: bytes = b""
    payload_bytes: int = 0
    """The length of a payload that has a row of its own; 0: it is in `payload`."""
    payload_object: str = ""
    """The object that the payload is, if it is kept outside of the broker."""
    result: bytes = b""
    result_bytes: int = 0
    result_object: str = ""
    error: str = ""
    events: list[Event] = []

    @property
    def token(self) -> tuple[int, int]:
        """Grows with each attempt: for the conditional writes of the task's own code."""
        return self.id, self.attempt


class Edge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From a parent to a child that waits for it."""

    rule: Rule


class Unsettled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A parent that has ended and whose children do not all know yet."""

    status: Status


class Transaction(msgspec.Struct, array_like=True):
    """Tasks that are taken all together or not at all."""

    id: int
    created_ms: int
    expires_ms: int
    tasks: int = 0
    ranges: list[tuple[int, int]] = []
    """Its tasks: first id and how many, in order."""
    owner: str = ""
    edges: int = 0
    committed: bool = False
    """Of one that is ending: whether its tasks go, or are undone. `ranges` are those left."""

    def ids(self) -> list[int]:
        """The ids of its tasks."""
        return [task for first, count in self.ranges for task in range(first, first + count)]


class SessionState(enum.IntEnum):
    """What is known of a worker."""

    CONNECTED = 0
    LOST = 1
    LEFT = 2


class WorkerSession(msgspec.Struct, array_like=True):
    """A worker's newest session. `limits` are the worker's own, as it sent them."""

    worker_id: str
    session: int
    process_id: str = ""
    location: str = ""
    state: SessionState = SessionState.CONNECTED
    since_ms: int = 0
    limits: bytes = b""
    version: str = ""


class Setting(msgspec.Struct, frozen=True, array_like=True):
    """A limit, weight, mapping or whatever else may change while the broker runs."""

    value: bytes
    by: str = ""
    at_ms: int = 0


class CodePool(msgspec.Struct, array_like=True):
    """Code that workers load. It goes when it has expired and no task needs it."""

    name: str
    size_bytes: int
    parts: int
    digest: bytes = b""
    created_ms: int = 0
    expires_ms: int = 0
    """0: never."""
    tasks: int = 0
    """How many tasks that have not ended name it."""
    by: str = ""
    parts_stored: int = 0
    schedule: str = ""
    """A schedule that named it when it had expired. It may have changed since."""


class ClockFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Past changes of the broker's time, in milliseconds; 0 for none."""

    jumped_from_ms: int = 0
    """The time before a jump forward that no other clock has confirmed yet."""
    ahead_ms: int = 0
    """The time before it was last set back."""


class Counters(msgspec.Struct, array_like=True, gc=False):
    """What was given away last, and the newest time that a command told."""

    task: int = 0
    transaction: int = 0
    session: int = 0
    now_ms: int = 0
    purged_ms: int = 0
    """No row of what is to be purged is from before this time."""
    transactions_open: int = 0
    rollouts: int = 0


encode: Final = msgspec.msgpack.Encoder().encode
decode_task: Final = msgspec.msgpack.Decoder(Task).decode
decode_edge: Final = msgspec.msgpack.Decoder(Edge).decode
decode_unsettled: Final = msgspec.msgpack.Decoder(Unsettled).decode
decode_transaction: Final = msgspec.msgpack.Decoder(Transaction).decode
decode_worker: Final = msgspec.msgpack.Decoder(WorkerSession).decode
decode_setting: Final = msgspec.msgpack.Decoder(Setting).decode
decode_pool: Final = msgspec.msgpack.Decoder(CodePool).decode
decode_clock_facts: Final = msgspec.msgpack.Decoder(ClockFacts).decode
decode_counters: Final = msgspec.msgpack.Decoder(Counters).decode


def note(task: Task, at_ms: int, kind: int, who: str = "", detail: str = "") -> None:
    """Add an event to a task's history; `kind` is an `EventKind`."""
    events = task.events
    if len(detail) > DETAIL_LENGTH_MAX:
        detail = detail[:DETAIL_LENGTH_MAX]
    events.append((at_ms, int(kind), task.attempt, who, detail))
    if len(events) > EVENTS_MAX:
        del events[1]


def waits_since_ms(task: Task) -> int:
    """When a delayed task began to wait for a length of time; 0: it waits for a date."""
    if not task.events or task.events[-1][1] in _DATED:
        return 0
    return task.events[-1][0]
