"""A task to be submitted, a schedule of such tasks, and the bounds of whatever a command carries.

Invariants:
- Bounds are part of the types: what does not fit cannot be decoded, and so is no command.
- Sums of times, and of counts, within these bounds fit in 63 bits.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from broker.keys import ID_MAX
from broker.task import (
    BACKOFF,
    ERROR_LENGTH_MAX,
    HOUR_MS,
    PAYLOAD_BYTES_MAX,
    Backoff,
    Mode,
    Rule,
)

ITEMS_MAX: Final = 1_000
SETTLED_MAX: Final = 1_000
TRANSACTION_TASKS_MAX: Final = 10_000
TRANSACTIONS_MAX: Final = 10_000
OWNER_PARTS: Final = 16
"""One user has one in so many of those that other users leave."""
NAME_LENGTH_MAX: Final = 200
OBJECT_NAME_MAX: Final = 2_000
PARENTS_MAX: Final = 1_000
EDGES_MAX: Final = 1_000
"""How many parents all tasks of a batch may have."""
RESOURCES_MAX: Final = 64
SETTING_BYTES_MAX: Final = 64 * 1024
POOL_PART_BYTES_MAX: Final = 1024 * 1024
POOL_PARTS_MAX: Final = 64
HELD_MAX: Final = 100_000
TIME_MAX_MS: Final = 2**60
DAY_MS: Final = 86_400_000

Id = Annotated[int, Meta(ge=0, le=ID_MAX)]
Millis = Annotated[int, Meta(ge=0, le=TIME_MAX_MS)]
Number = Annotated[int, Meta(ge=0, le=2**31)]
Drawn = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
MaybeName = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
Resources = Annotated[tuple[Name, ...], Meta(max_length=RESOURCES_MAX)]
Payload = Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)]
ObjectName = Annotated[str, Meta(max_length=OBJECT_NAME_MAX)]
ErrorText = Annotated[str, Meta(max_length=ERROR_LENGTH_MAX)]


class Parent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A task that must end first: by its id, or by its place in the same batch (`task_id` 0)."""

    task_id: Id = 0
    index: Annotated[int, Meta(ge=-1, lt=ITEMS_MAX)] = -1
    rule: Rule = Rule.ON_SUCCESS


class Spec(msgspec.Struct, array_like=True, gc=False):
    """A task to be submitted. Times in milliseconds of the broker's clock, 0 where there is none.

    `attempts_spent` is for a task that has been tried elsewhere. `fixed` keeps `group` (0: 1) and
    `resources` as given here, whatever a mapping says later. A payload is given as bytes, or is
    `payload_object`, kept outside.
    """

    type: Name
    tenant: Name = "default"
    payload: Payload = b""
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31)] = 0
    due_ms: Millis = 0
    deadline_ms: Millis = 0
    time_limit_ms: Millis = 0
    attempts_max: Number = 1
    attempts_spent: Number = 0
    mode: Mode = Mode.AT_LEAST_ONCE
    slot: MaybeName = ""
    unique_key: MaybeName = ""
    fixed: bool = False
    group: Annotated[int, Meta(ge=-(2**31), le=2**31)] = 0
    resources: Resources = ()
    backoff: Backoff = BACKOFF
    retention_ms: Millis = HOUR_MS
    dead_retention_ms: Millis = 7 * 24 * HOUR_MS
    parents: Annotated[tuple[Parent, ...], Meta(max_length=PARENTS_MAX)] = ()
    codepool: MaybeName = ""
    execution: MaybeName = "factory"
    submitter: MaybeName = ""
    payload_object: ObjectName = ""


class Schedule(msgspec.Struct, array_like=True):
    """Tasks that are submitted again and again: by `cron` in a `zone`, or every `interval_ms`."""

    name: Name
    spec: Spec
    cron: MaybeName = ""
    zone: MaybeName = "UTC"
    interval_ms: Millis = 0
    catch_up: bool = True
    """What was missed while nobody led is made up for, once."""
    paused: bool = False
    next_due_ms: Millis = 0
    last_due_ms: Millis = 0
    fired: Id = 0
    skipped: Id = 0
    refused: Id = 0
    last_task: Id = 0
    by: MaybeName = ""
    changed_ms: Millis = 0
