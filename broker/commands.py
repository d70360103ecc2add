"""What the broker writes into its log, and what the state machine answers.

All are arrays of MessagePack, the first element of a command says which. Every command carries
`now_ms`, the broker's time, and a drawn number where chance is needed.

Invariants:
- Sizes are bounded by the types themselves: what does not fit is no command.
- What cannot be done is an answer; items of a batch are answered one by one, in their order.
- A command has bounded work: at most `ITEMS_MAX` tasks, children beyond `SETTLED_MAX` wait for the
  next `Settle`.
"""

import enum
from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from broker.errors import BrokerError, CommandUnknown, InvalidTask, error_of
from broker.rollout_commands import RolloutPut, RolloutRemove
from broker.spec import (
    HELD_MAX,
    SETTING_BYTES_MAX,
    Drawn,
    ErrorText,
    Id,
    MaybeName,
    Millis,
    Name,
    ObjectName,
    Payload,
)
from broker.spec import ITEMS_MAX as ITEMS_MAX
from broker.spec import NAME_LENGTH_MAX as NAME_LENGTH_MAX
from broker.spec import POOL_PART_BYTES_MAX as POOL_PART_BYTES_MAX
from broker.spec import POOL_PARTS_MAX as POOL_PARTS_MAX
from broker.spec import SETTLED_MAX as SETTLED_MAX
from broker.spec import TRANSACTION_TASKS_MAX as TRANSACTION_TASKS_MAX
from broker.spec import Parent as Parent
from broker.spec import Schedule as Schedule
from broker.spec import Spec as Spec

LEVEL: Final = 2
"""The newest level of commands. A command or field is of level 1 unless it says level 2."""


class Outcome(enum.IntEnum):
    """How an attempt ended, as the worker tells."""

    FINISHED = 0
    """It has a result."""
    FAILED = 1
    """It raised, or went over its time limit. The attempt counts."""
    HANDED_BACK = 2
    """It never began: no code of the task ran. Does not count; it goes back to the queue."""
    INTERRUPTED = 3
    """It was ended because the broker asked, or by no fault of its own. Does not count."""


class Answer(enum.IntEnum):
    """What became of one item."""

    DONE = 1
    ASKED = 2
    """The worker has it and is asked to end it; or it ends as soon as its commit comes to it."""
    REPEATED = 3
    """Known already; take it as done."""
    STALE = 4
    """Another attempt or another session has the task: forget it."""
    NOT_NOW = 5
    """The task is not in a state for that."""
    UNKNOWN = 6
    """There is no such task."""


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """Why something was not done: the `code` of an error, words, and the task in the way."""

    code: str
    message: str
    task_id: int = 0

    @property
    def error(self) -> BrokerError:
        """The same as an exception."""
        return error_of(self.code, self.message, self.task_id)


_Any = Annotated[int, Meta(ge=0)]
"""A number that somebody else made up. What is not there is answered so."""


class Submit(msgspec.Struct, array_like=True, tag=1):
    """Take tasks. Answers `list[int | Refusal]`: ids, or why not.

    `atomic`: all or none. `transaction`: they wait until it is committed; with an `owner` it must
    be that one's.
    """

    specs: Annotated[Sequence[Spec | Payload], Meta(max_length=ITEMS_MAX)]
    """Bytes: a task as the one before it, but with this payload."""
    now_ms: Millis
    transaction: Id = 0
    atomic: bool = False
    owner: MaybeName = ""


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Open a transaction that is rolled back at `expires_ms`. Answers its id, or a `Refusal`."""

    expires_ms: Millis
    now_ms: Millis
    owner: MaybeName = ""


class Commit(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Let all tasks of a transaction go. Answers how many, or a `Refusal`.

    With an `owner`, the transaction must be that owner's. `whole`, level 2: everybody sees all of
    its tasks start at once; without it, tasks beyond `ITEMS_MAX` become visible with later
    commands.
    """

    transaction: Id
    now_ms: Millis
    owner: MaybeName = ""
    whole: bool = False


class Rollback(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Forget a transaction and its tasks. Answers how many, or a `Refusal`.

    With an `owner`, the transaction must be that owner's. `whole`: as in `Commit`.
    """

    transaction: Id
    now_ms: Millis
    owner: MaybeName = ""
    whole: bool = False


class ExpireTransactions(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Roll back transactions that have timed out. Answers how many.

    `whole`: as in `Commit`.
    """

    now_ms: Millis
    whole: bool = False


class Assigned(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A task for a worker, with group and resources as they are now.

    Any numbers and names: a mapping of one tenant must not make the tasks of others no command.
    """

    task_id: _Any
    group: int = 0
    resources: tuple[str, ...] = ()


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """Tasks for one worker's session."""

    worker_id: Name
    session: Id
    items: Annotated[Sequence[Assigned], Meta(max_length=ITEMS_MAX)]


class Assign(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Give tasks to workers. Answers `list[list[int]]`: numbers of attempts, 0 for none."""

    assignments: Annotated[Sequence[Assignment], Meta(max_length=ITEMS_MAX)]
    now_ms: Millis


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An attempt that has ended. `retry_after_ms` -1: as the task's own backoff says.

    Any numbers: what one worker tells must not make what others tell no command.
    """

    task_id: _Any
    attempt: _Any
    outcome: Outcome
    result: Payload = b""
    error: ErrorText = ""
    retry_after_ms: int = -1
    no_retry: bool = False
    result_object: ObjectName = ""


class Completion(msgspec.Struct, frozen=True, array_like=True):
    """What one worker's session tells."""

    worker_id: Name
    session: Id
    items: Annotated[Sequence[Ended], Meta(max_length=ITEMS_MAX)]


class Finish(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Take the ends of attempts. Answers `list[list[int]]` of `Answer`."""

    completions: Annotated[Sequence[Completion], Meta(max_length=ITEMS_MAX)]
    now_ms: Millis
    drawn: Drawn = 0


Ids = Annotated[Sequence[Id], Meta(max_length=ITEMS_MAX)]


class Due(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Delayed tasks whose time has come wait from now on. Answers `list[int]` of `Answer`."""

    ids: Ids
    now_ms: Millis


class Expire(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Tasks that passed their deadline before they ran end. Answers `list[int]` of `Answer`."""

    ids: Ids
    now_ms: Millis


class Purge(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Remove tasks and code pools whose retention has passed. Answers how many tasks.

    `keep_code`, level 2: keep code pools that a schedule names.
    """

    now_ms: Millis
    limit: Annotated[int, Meta(ge=1, le=ITEMS_MAX)] = ITEMS_MAX
    keep_code: bool = False


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """End tasks: at once, or ask their worker to. Answers `list[int]` of `Answer`."""

    ids: Ids
    by: MaybeName
    now_ms: Millis


class Retry(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Begin ended tasks anew. Answers `list[int | Refusal]`: an `Answer`, or what is taken."""

    ids: Ids
    by: MaybeName
    now_ms: Millis


class Delete(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Remove ended tasks at once. Answers `list[int]` of `Answer`."""

    ids: Ids
    now_ms: Millis


class Running(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An attempt that a worker says it has: any numbers."""

    task_id: _Any
    attempt: _Any


class Session(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """A worker connects. Answers a `SessionOpened`.

    `running` is what it says it has, `held` the tasks that the leader knows with it: those of them
    that the worker does not have have died.
    """

    worker_id: Name
    process_id: MaybeName
    location: MaybeName
    now_ms: Millis
    running: Annotated[Sequence[Running], Meta(max_length=HELD_MAX)] = ()
    held: Annotated[Sequence[Id], Meta(max_length=HELD_MAX)] = ()
    limits: Annotated[bytes, Meta(max_length=SETTING_BYTES_MAX)] = b""
    version: MaybeName = ""
    drawn: Drawn = 0


class SessionOpened(msgspec.Struct, frozen=True, array_like=True):
    """The session's number, and which of those that were running go on."""

    session: int
    keep: list[Running]


class Lost(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """A worker's session has ended without a word (`left`: with one). Answers how many tasks.

    `held` are tasks that the leader knows with it. It may be sent again for more of them.
    """

    worker_id: Name
    session: Id
    now_ms: Millis
    held: Annotated[Sequence[Id], Meta(max_length=HELD_MAX)] = ()
    left: bool = False
    drawn: Drawn = 0


class Forget(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """Remove the rows of workers that are not connected. Answers how many."""

    worker_ids: Annotated[Sequence[Name], Meta(max_length=ITEMS_MAX)]
    now_ms: Millis


class Set(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Change a setting; no value removes it. Answers 1 if that changed anything, else 0."""

    kind: Name
    name: MaybeName
    value: Annotated[bytes, Meta(max_length=SETTING_BYTES_MAX)] | None
    by: MaybeName
    now_ms: Millis


class ScheduleSet(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Add or replace a schedule. Answers 1, or a `Refusal`.

    If it exists already, it keeps its counts, whether it is paused, and, if its rhythm is the same,
    its next due time. `count_due`, level 2: if the rhythm changes, a due time that has not fired
    counts as skipped.
    """

    schedule: Schedule
    by: MaybeName
    now_ms: Millis
    count_due: bool = False


class ScheduleDelete(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """Remove a schedule. Answers 1, or a `Refusal`."""

    name: Name
    now_ms: Millis


class SchedulePause(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Pause a schedule, or resume it at `next_due_ms`. Answers 1, or a `Refusal`.

    `keep_due`, level 2: keep its next due time, and change nothing if the state is as requested.
    """

    name: Name
    paused: bool
    next_due_ms: Millis
    by: MaybeName
    now_ms: Millis
    keep_due: bool = False


class Fire(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Submit a schedule's task, once for each due time. Answers `int | Refusal`: id, or why not.

    0: that due time is not the schedule's next one, so somebody else has fired it. `skip`: move on
    without a task, which also answers 0. `keep_code`, level 2: the schedule's code pool may have
    expired.
    """

    name: Name
    due_ms: Millis
    next_due_ms: Millis
    now_ms: Millis
    skipped: Id = 0
    skip: bool = False
    keep_code: bool = False


class Settle(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """Go on telling children of their parents' end. Answers 1 if there is more to do, else 0."""

    now_ms: Millis


class PoolPut(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Store a part of a code pool; the last one makes it known. Answers 1, or a `Refusal`."""

    name: Name
    part: Annotated[int, Meta(ge=0, lt=POOL_PARTS_MAX)]
    parts: Annotated[int, Meta(ge=1, le=POOL_PARTS_MAX)]
    content: Annotated[bytes, Meta(max_length=POOL_PART_BYTES_MAX)]
    digest: Annotated[bytes, Meta(max_length=64)]
    expires_ms: Millis
    by: MaybeName
    now_ms: Millis


class PoolDelete(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """Remove a code pool that no task needs. Answers 1, or a `Refusal`.

    `keep_code`, level 2: refuse also if a schedule names it.
    """

    name: Name
    now_ms: Millis
    keep_code: bool = False


class SetTime(msgspec.Struct, frozen=True, array_like=True, tag=27):
    """Set the broker's time to `now_ms`, which may be earlier. Answers 1. Level 2.

    `doubtful`: it jumps forward by more than the leader can confirm. Without it, an earlier such
    jump counts as confirmed.
    """

    now_ms: Millis
    doubtful: bool = False


class RestartWaits(msgspec.Struct, frozen=True, array_like=True, tag=28):
    """Restart waits that began at a time that is now in the future. Level 2.

    These are tasks that are delayed after an attempt, and open transactions. Answers how many.
    """

    now_ms: Millis
    ids: Ids = ()
    transactions: Ids = ()


class CorrectDue(msgspec.Struct, frozen=True, array_like=True, tag=29):
    """Change a schedule's next due time, if it is still the one given. Level 2.

    Answers 1, 0 if the next due time is another one, or a `Refusal`.
    """

    name: Name
    due_ms: Millis
    next_due_ms: Millis
    now_ms: Millis


Command = (
    Submit
    | Begin
    | Commit
    | Rollback
    | ExpireTransactions
    | Assign
    | Finish
    | Due
    | Expire
    | Purge
    | Cancel
    | Retry
    | Delete
    | Session
    | Lost
    | Forget
    | Set
    | ScheduleSet
    | ScheduleDelete
    | SchedulePause
    | Fire
    | Settle
    | PoolPut
    | PoolDelete
    | RolloutPut
    | RolloutRemove
    | SetTime
    | RestartWaits
    | CorrectDue
)


def level_of(command: Command) -> int:
    """The level that every replica must support before the command is logged."""
    if isinstance(command, SetTime | RestartWaits | CorrectDue):
        return LEVEL
    if isinstance(command, Commit | Rollback | ExpireTransactions):
        return LEVEL if command.whole else 1
    if isinstance(command, SchedulePause):
        return LEVEL if command.keep_due else 1
    if isinstance(command, Purge | Fire | PoolDelete):
        return LEVEL if command.keep_code else 1
    return LEVEL if isinstance(command, ScheduleSet) and command.count_due else 1


encode: Final = msgspec.msgpack.Encoder().encode
decode_command: Final = msgspec.msgpack.Decoder(Command).decode
decode_spec: Final = msgspec.msgpack.Decoder(Spec).decode
decode_schedule: Final = msgspec.msgpack.Decoder(Schedule).decode

UNKNOWN_COMMAND: Final = encode(
    Refusal("unknown_command", "the replicas do not know the command, or it is damaged")
)
"""What is answered to bytes that are no command."""

_items: Final = msgspec.msgpack.Decoder(list[int | Refusal]).decode
_numbers: Final = msgspec.msgpack.Decoder(list[int]).decode
_lists: Final = msgspec.msgpack.Decoder(list[list[int]]).decode
_one: Final = msgspec.msgpack.Decoder(int | Refusal).decode
_session: Final = msgspec.msgpack.Decoder(SessionOpened).decode


def _known(answer: bytes) -> bytes:
    if answer == UNKNOWN_COMMAND:
        raise CommandUnknown("the replicas do not know the command, or it is damaged")
    return answer


def decode_items(answer: bytes) -> list[int | Refusal]:
    """The answer to `Submit` and `Retry`. Raises `CommandUnknown`, as all of these do."""
    return _items(_known(answer))


def decode_numbers(answer: bytes) -> list[int]:
    """The answer to `Due`, `Expire`, `Cancel` and `Delete`."""
    return _numbers(_known(answer))


def decode_lists(answer: bytes) -> list[list[int]]:
    """The answer to `Assign` and `Finish`."""
    return _lists(_known(answer))


def decode_one(answer: bytes) -> int | Refusal:
    """The answer of what answers one number, or why not."""
    found: int | Refusal = _one(_known(answer))
    return found


def decode_session(answer: bytes) -> SessionOpened:
    """The answer to `Session`."""
    return _session(_known(answer))


S = TypeVar("S", bound=Spec | Schedule)


def checked(wanted: S) -> S:
    """The same, if the state machine would take it. Raises `InvalidTask`.

    >>> checked(Spec(""))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    broker.errors.InvalidTask: type: Expected `str` of length >= 1 ...
    """
    try:
        if isinstance(wanted, Spec):
            decode_spec(encode(wanted))
        else:
            decode_schedule(encode(wanted))
    except (msgspec.MsgspecError, TypeError, OverflowError, ValueError) as error:
        raise InvalidTask(_told(wanted, str(error))) from None
    return wanted


def _told(wanted: Spec | Schedule, message: str) -> str:
    """The decoder names fields by their place; people know them by name."""
    head, _, place = message.partition(" - at `$[")
    number = place.partition("]")[0]
    fields = wanted.__struct_fields__
    if number.isdigit() and int(number) < len(fields):
        return f"{fields[int(number)]}: {head}"
    return message
