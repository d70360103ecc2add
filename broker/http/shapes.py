"""What goes in and out of `/api/v1`, as JSON. Times are milliseconds of the broker's clock."""

import base64
import binascii
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from broker.answering import ScheduleStatus
from broker.errors import InvalidTask
from broker.reading import history
from broker.spec import (
    ITEMS_MAX,
    Id,
    MaybeName,
    Millis,
    Name,
    Number,
    Parent,
    Resources,
    Schedule,
    Spec,
)
from broker.task import BACKOFF, HOUR_MS, Backoff, EventKind, Mode, Rule, Status, Task

Priority = Annotated[int, Meta(ge=-(2**31), le=2**31)]
Group = Annotated[int, Meta(ge=0, le=2**31)]
Limit = Annotated[int, Meta(ge=1, le=1_000)]
State = Literal[
    "waiting",
    "running",
    "finished",
    "error",
    "delayed",
    "blocked",
    "prepared",
    "cancelled",
    "lost",
]
STATES: Final = {status.name.lower(): status for status in Status}
_RULES: Final = {rule.name.lower(): rule for rule in Rule}


class BackoffShape(msgspec.Struct, forbid_unknown_fields=True):
    """How long a task waits before it is tried again."""

    first_ms: Annotated[int, Meta(ge=0, le=2**53)] = 1_000
    factor_percent: Annotated[int, Meta(ge=100, le=10_000)] = 200
    most_ms: Annotated[int, Meta(ge=0, le=2**53)] = HOUR_MS
    jitter_percent: Annotated[int, Meta(ge=0, le=100)] = 20


class ParentShape(msgspec.Struct, forbid_unknown_fields=True):
    """A task that must end first: by its id, or by its place in the same batch."""

    task_id: Id = 0
    index: Annotated[int, Meta(ge=-1, lt=ITEMS_MAX)] = -1
    rule: Literal["on_success", "on_failure", "always"] = "on_success"


class TaskShape(msgspec.Struct, forbid_unknown_fields=True):
    """A task to submit.

    The payload is one of: `payload`, a text; `payload_base64`, bytes; `arguments`, an object whose
    JSON is the payload. `delay_ms` and `timeout_ms` count from now, `due_ms` and `deadline_ms` are
    moments. Of a `slot` and a `unique_key` one task at a time has it. `group` and `resources` fix
    where it runs, whatever a mapping says.
    """

    type: Name
    tenant: MaybeName = ""
    payload: str | None = None
    payload_base64: str | None = None
    arguments: dict[str, Any] | None = None
    priority: Priority = 0
    delay_ms: Millis = 0
    due_ms: Millis = 0
    timeout_ms: Millis = 0
    deadline_ms: Millis = 0
    time_limit_ms: Millis = 0
    attempts_max: Number = 1
    at_most_once: bool = False
    slot: MaybeName = ""
    unique_key: MaybeName = ""
    group: Group = 0
    resources: Resources = ()
    backoff: BackoffShape | None = None
    retention_ms: Millis = HOUR_MS
    parents: Annotated[list[ParentShape], Meta(max_length=1_000)] = []
    codepool: MaybeName = ""

    def spec(self, now_ms: int, tenant: str = "", submitter: str = "") -> Spec:
        """The broker's form; `tenant` is what nobody named. Raises `InvalidTask`."""
        if (self.delay_ms and self.due_ms) or (self.timeout_ms and self.deadline_ms):
            raise InvalidTask("a time is given as a moment or from now on, not both")
        return Spec(
            self.type,
            self.tenant or tenant or "default",
            self._payload(),
            self.priority,
            now_ms + self.delay_ms if self.delay_ms else self.due_ms,
            now_ms + self.timeout_ms if self.timeout_ms else self.deadline_ms,
            self.time_limit_ms,
            self.attempts_max,
            mode=Mode.AT_MOST_ONCE if self.at_most_once else Mode.AT_LEAST_ONCE,
            slot=self.slot,
            unique_key=self.unique_key,
            fixed=bool(self.group or self.resources),
            group=self.group or int(bool(self.resources)),
            resources=self.resources,
            backoff=Backoff(*msgspec.structs.astuple(self.backoff)) if self.backoff else BACKOFF,
            retention_ms=self.retention_ms,
            parents=tuple(Parent(p.task_id, p.index, _RULES[p.rule]) for p in self.parents),
            codepool=self.codepool,
            submitter=submitter[:200],
        )

    def _payload(self) -> bytes:
        given = (self.payload, self.payload_base64, self.arguments)
        if sum(each is not None for each in given) > 1:
            raise InvalidTask("the payload is given as payload, payload_base64 or arguments, once")
        if self.payload_base64 is not None:
            try:
                return base64.b64decode(self.payload_base64, validate=True)
            except (binascii.Error, ValueError) as error:
                raise InvalidTask(f"payload_base64 is no base64: {error}") from error
        if self.arguments is not None:
            return msgspec.json.encode(self.arguments)
        return (self.payload or "").encode()


class Changed(msgspec.Struct):
    """Whether that made a difference."""

    changed: bool


class EventShape(msgspec.Struct):
    """Something that happened to a task."""

    at_ms: int
    kind: str
    attempt: int
    who: str
    detail: str


class TaskFacts(msgspec.Struct):
    """What is known of a task, without its payload and its result."""

    id: int
    tenant: str
    type: str
    status: State
    priority: int
    attempt: int
    attempts_max: int
    attempts_spent: int
    at_most_once: bool
    created_ms: int
    due_ms: int
    deadline_ms: int
    time_limit_ms: int
    started_ms: int
    finished_ms: int
    retention_ms: int
    slot: str
    unique_key: str
    group: int
    resources: tuple[str, ...]
    worker_id: str
    dead: bool
    cancel_asked: bool
    parents_left: int
    transaction: int
    codepool: str
    submitter: str
    error: str


class WholeTask(TaskFacts):
    """A task with its history, its payload and its result: texts, or bytes as base64.

    Of what is too big for the log, `payload_object` and `result_object` name where it is; it is
    told whole by `/tasks/{id}/payload` and `/tasks/{id}/result`.
    """

    events: list[EventShape] = []
    payload_object: str = ""
    result_object: str = ""
    payload: str | None = None
    payload_base64: str | None = None
    result: str | None = None
    result_base64: str | None = None


def _facts(task: Task) -> dict[str, Any]:
    facts: dict[str, Any] = {
        name: getattr(task, name)
        for name in TaskFacts.__struct_fields__
        if name not in ("status", "at_most_once")
    }
    facts["status"] = task.status.name.lower()
    facts["at_most_once"] = task.mode is Mode.AT_MOST_ONCE
    return facts


def facts_of(task: Task) -> TaskFacts:
    """What is told of a task in a list."""
    return TaskFacts(**_facts(task))


def whole_task(task: Task, payload: bytes, result: bytes) -> WholeTask:
    """What is told of one task."""
    facts = _facts(task)
    finished = task.status is Status.FINISHED and not task.result_object
    facts |= _text_or_base64("payload", None if task.payload_object else payload)
    facts |= _text_or_base64("result", result if finished else None)
    return WholeTask(
        **facts,
        payload_object=task.payload_object,
        result_object=task.result_object,
        events=[
            EventShape(at, EventKind(kind).name.lower(), n, who, detail)
            for at, kind, n, who, detail in history(task)
        ],
    )


def _text_or_base64(name: str, data: bytes | None) -> dict[str, str]:
    if data is None:
        return {}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


class ScheduleShape(msgspec.Struct, forbid_unknown_fields=True):
    """A schedule: by `cron` in a `zone`, or every `interval_ms`.

    `due_ms` and `deadline_ms` of its task count from each firing, as `delay_ms` and `timeout_ms`.
    """

    task: TaskShape
    cron: MaybeName = ""
    zone: Name = "UTC"
    interval_ms: Millis = 0
    catch_up: bool = True
    paused: bool = False

    def schedule(self, name: str, who: str) -> Schedule:
        """The broker's form. Raises `InvalidTask`."""
        if bool(self.cron) == bool(self.interval_ms):
            raise InvalidTask("a schedule has a cron expression or an interval, one of the two")
        spec = self.task.spec(0, "", who)
        return Schedule(
            name, spec, self.cron, self.zone, self.interval_ms, self.catch_up, self.paused
        )


class ScheduleFacts(msgspec.Struct):
    """A schedule, and what came of it."""

    name: str
    type: str
    tenant: str
    cron: str
    zone: str
    interval_ms: int
    catch_up: bool
    paused: bool
    next_due_ms: int
    last_due_ms: int
    fired: int
    skipped: int
    refused: int
    last_task: int
    by: str
    changed_ms: int
    trouble: str


def schedule_facts(schedule: ScheduleStatus) -> ScheduleFacts:
    """What is told of a schedule."""
    facts = {
        name: getattr(schedule, name)
        for name in ScheduleFacts.__struct_fields__
        if name not in ("type", "tenant")
    }
    return ScheduleFacts(type=schedule.spec.type, tenant=schedule.spec.tenant, **facts)
