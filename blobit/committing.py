"""Changes of names, committed many at a time.

A change names the rows that it decides by and says, when it is given them, what to write. All
changes that wait are decided one after the other over the same locked rows and written as one
transaction; while it is on its way the next ones gather.

Invariants:
- A change is decided on rows that are locked until its transaction ends: conditions hold when it
  becomes visible.
- A change that is refused leaves the others of its batch alone.
- A change is answered when it is durable. Where nobody can say whether a transaction was committed,
  the rows are read again: what carries the change's own mark has happened. A change that wrote
  nothing in that transaction, for example because it was refused, is decided again.
- The objects and bytes that a batch adds are counted in its own transaction (`counting.py`), which
  also refuses changes of objects or uploads in a deleted bucket.
- Changes that wait or are on their way hold at most `commit_pending_bytes_max`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from blobit.budget import ByteBudget
from blobit.counting import BASE, NO_ROOM, SHARES, Counting, Crowded, Room
from blobit.errors import (
    BlobError,
    BlobNotStored,
    BlobsClosed,
    CommitOutcomeUnknown,
    DiskFull,
    MetadataUnavailable,
    NoSuchBucket,
)
from blobit.rows import Rows, told
from blobit.settings import BlobSettings
from blobit.tables import Row, RowKey, lives_here, moving_key
from engine.ports.clock import Clock
from herd.errors import CommitUnknown, Error, ForeignKeyViolation, TooLarge

T = TypeVar("T")
Found = Mapping[RowKey, Row | None]
"""The rows that a change has locked, by key; None: there is no row."""

_CHANGE_BYTES: Final = 512
_PAUSE_MS: Final = 20
_PAUSE_MS_MAX: Final = 1_000


@dataclass(slots=True)
class Effect(Generic[T]):
    """What a change writes (None removes a row), and what it answers."""

    writes: dict[RowKey, Row | None]
    answer: T


@dataclass(slots=True)
class Change(Generic[T]):
    """One atomic change of rows.

    `decide` is given the rows of `keys` and must not wait; what it raises of `BlobError` is the
    answer. It may be asked several times. `confirm` is asked after a commit of unknown outcome, of
    the rows as they are then: the answer if they show that the change was made, else None.
    `buckets` are those of which it changes rows that are not counted: like changes of objects it is
    refused while one of them is on its way elsewhere.
    """

    keys: tuple[RowKey, ...]
    decide: Callable[[Found], Effect[T]]
    confirm: Callable[[Found], T | None]
    size_bytes: int = 0
    buckets: tuple[int, ...] = ()


class Deciding(Protocol[T]):
    """What a committer needs of a change: `Change`, or what does as it does without closures."""

    @property
    def keys(self) -> tuple[RowKey, ...]:
        """See `Change`."""
        ...

    @property
    def size_bytes(self) -> int:
        """About so much it holds while it waits."""
        ...

    @property
    def buckets(self) -> tuple[int, ...]:
        """See `Change`."""
        ...

    def decide(self, found: Found, /) -> Effect[T]:
        """See `Change`."""
        ...

    def confirm(self, found: Found, /) -> T | None:
        """See `Change`."""
        ...


class LedgerGone(BlobError):
    """The row of a ledger that holds the object's bytes has gone: they are written again."""


class _Pending:
    """A change that waits for its answer."""

    __slots__ = ("answered", "change", "writes")

    def __init__(self, change: Deciding[Any], answered: "asyncio.Future[Any]") -> None:
        self.change = change
        self.answered = answered
        self.writes = True
        """Whether the last transaction attempted may have written anything for this change."""

    def answer(self, value: Any) -> None:
        if not self.answered.done():
            self.answered.set_result(value)

    def fail(self, error: BaseException) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)


class _Decided:
    """What the changes of a batch write, one after the other, and what each will hear."""

    def __init__(
        self, batch: list[_Pending], found: dict[RowKey, Row | None], counting: Counting
    ) -> None:
        """Raises `Crowded`."""
        counting.begin(found)
        self.writes: dict[RowKey, Row | None] = {}
        self._made: list[tuple[_Pending, Any]] = []
        self._refused: list[tuple[_Pending, BlobError]] = []
        writes, made = self.writes, self._made
        for pending in batch:
            pending.writes = False
            try:
                counting.check(pending.change.keys, pending.change.buckets)
                effect = pending.change.decide(found)
                counting.add(effect.writes)
            except BlobError as error:
                self._refused.append((pending, error))
                continue
            pending.writes = bool(effect.writes)
            for key, row in effect.writes.items():
                writes[key] = row
                if key in found:
                    # The next one decides by what this one leaves.
                    found[key] = row
            if any(table == "counts" for table, _ in effect.writes):
                counting.look()
            made.append((pending, effect.answer))
        writes.update(counting.writes())

    def answer(self) -> None:
        """Tell all of them."""
        for pending, answer in self._made:
            pending.answer(answer)
        for pending, refusal in self._refused:
            pending.fail(refusal)


class Committer:
    """Commits changes to one tablespace. On one event loop."""

    def __init__(
        self, rows: Rows, clock: Clock, settings: BlobSettings, first_count: int = 0
    ) -> None:
        """Committers of other processes had better have another `first_count`."""
        self.rows = rows
        self._room: dict[int, Room] = {}
        self._clock = clock
        self._settings = settings
        self._budget = ByteBudget(settings.commit_pending_bytes_max)
        self._waiting: deque[_Pending] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._patience_ms = settings.commit_patience_ms
        self._closed = False
        # One for each transaction that may be on its way.
        taken = range(first_count, first_count + settings.commits_max)
        self._counts = [1 + number % SHARES for number in taken]

    async def change(self, change: Deciding[T]) -> T:
        """Make a change, and return its answer once it is durable.

        Raises what `decide` raises, `LedgerGone`, `NoSuchBucket`, `MetadataUnavailable` (nothing
        was changed), `CommitOutcomeUnknown`. Who is cancelled abandons the wait, not the change.
        """
        size_bytes = change.size_bytes + _CHANGE_BYTES
        if not self._budget.take_now(size_bytes):
            await self._budget.take(size_bytes)
        try:
            if self._closed:
                raise BlobsClosed("the blob store is closed")
            loop = asyncio.get_running_loop()
            answered: asyncio.Future[T] = loop.create_future()
            self._waiting.append(_Pending(change, answered))
            if len(self._under_way) < self._settings.commits_max:
                self._start()
            return await answered
        finally:
            self._budget.give_back(size_bytes)

    def may_lack_room(self, bucket_id: int, size_bytes: int) -> bool:
        """Whether an object might be over its bucket's quota, by what changes here have shown."""
        objects, room_bytes = self._room.get(bucket_id, NO_ROOM)
        return objects < 1 or room_bytes < size_bytes

    def learn_room(self, bucket_id: int, room: Room) -> None:
        """What was found out of a bucket's room elsewhere."""
        self._room[bucket_id] = room

    def hurry(self) -> None:
        """The end is near: whoever cannot be reached is not waited for as long as else."""
        self._patience_ms = min(self._patience_ms, _PAUSE_MS_MAX)

    async def close(self) -> None:
        """Let the changes that wait end; no other one begins."""
        self._closed = True
        while self._under_way:
            await asyncio.wait(self._under_way)
        await self.rows.close()

    def _start(self) -> None:
        task = asyncio.get_running_loop().create_task(self._work())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _work(self) -> None:
        try:
            await self._commit_waiting()
        finally:
            # Not a turn later: whoever was answered may already have more, and would start nobody.
            self._under_way.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _commit_waiting(self) -> None:
        while self._waiting:
            count = min(len(self._waiting), self._settings.commit_changes_max)
            batch = [self._waiting.popleft() for _ in range(count)]
            batch = [pending for pending in batch if not pending.answered.done()]
            try:
                await self._commit(batch)
            except BaseException as error:
                for pending in batch:
                    pending.fail(_unexpected(error))
                if not isinstance(error, Exception):
                    raise

    async def _commit(self, batch: list[_Pending]) -> None:
        """Answer all of a batch, trying again what may be tried again."""
        began_s, pause_ms = self._clock.monotonic(), _PAUSE_MS
        while batch:
            try:
                await self._attempt(batch)
                return
            except CommitUnknown as error:
                wrote = [pending for pending in batch if pending.writes]
                assert wrote, "a commit of unknown outcome without writes"
                await self._find_out(wrote, error)
                batch = [pending for pending in batch if not pending.writes]
                began_s, pause_ms = self._clock.monotonic(), _PAUSE_MS
                continue
            except (ForeignKeyViolation, TooLarge) as error:
                if len(batch) == 1:
                    batch[0].fail(_refused(error))
                    return
                # One of them is to blame: the others go without it.
                for pending in batch:
                    await self._commit([pending])
                return
            except Error as error:
                waited_ms = (self._clock.monotonic() - began_s) * 1_000
                heard = await self.rows.why(error)
                # A disk may stay full for long, so the caller gets an error that says what to do.
                over = isinstance(heard, NoSuchBucket | DiskFull)
                if over or not error.retryable or waited_ms > self._patience_ms:
                    for pending in batch:
                        pending.fail(_caused(heard, error))
                    return
            await asyncio.sleep(pause_ms / 1_000)
            pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)
            batch = [pending for pending in batch if not pending.answered.done()]

    async def _attempt(self, batch: list[_Pending]) -> None:
        """One transaction of a batch. Raises what is in `herd.errors`; then nobody is answered."""
        keys = dict.fromkeys(key for pending in batch for key in pending.change.keys)
        buckets = {each for pending in batch for each in pending.change.buckets}
        whole: set[int] = set()
        number = self._counts.pop()
        try:
            while True:
                counting = Counting(keys, number, whole, sorted(buckets))
                try:
                    await self._attempt_counting(batch, [*keys, *counting.keys], counting)
                    return
                except Crowded as crowded:
                    whole.add(crowded.bucket_id)
        finally:
            self._counts.append(number)

    async def _attempt_counting(
        self, batch: list[_Pending], keys: Collection[RowKey], counting: Counting
    ) -> None:
        """Raises `Crowded`, too; then nothing was done."""
        if await self._attempt_at_once(batch, keys, counting):
            return
        async with self.rows.transaction() as transaction:
            decided = _Decided(batch, await transaction.lock(keys) if keys else {}, counting)
            self._room.update(counting.room())
            if decided.writes:
                await transaction.write(decided.writes)
                await transaction.commit()
        decided.answer()

    async def _attempt_at_once(
        self, batch: list[_Pending], keys: Collection[RowKey], counting: Counting
    ) -> bool:
        """The same in one turn of the loop, where that is possible; else nothing was done."""
        short = self.rows.at_once(keys)
        if short is None:
            return False
        try:
            decided = _Decided(batch, short.found, counting)
            self._room.update(counting.room())
            logged = short.write(decided.writes) if decided.writes else None
            if logged is None and decided.writes:
                return False
        finally:
            short.drop()
        if logged is not None:
            await logged
        decided.answer()
        return True

    async def _find_out(self, batch: list[_Pending], error: CommitUnknown) -> None:
        """Tell each of a batch whether its change was made, by what the rows say now.

        Rows of a bucket that has left may have been removed since, and tell nothing.
        """
        keys = dict.fromkeys(key for pending in batch for key in pending.change.keys)
        places = {moving_key(each) for pending in batch for each in _buckets_of(pending.change)}
        found: dict[RowKey, Row | None] = {}
        began_s, pause_ms = self._clock.monotonic(), _PAUSE_MS
        while True:
            try:
                async with self.rows.transaction() as transaction:
                    found = await transaction.lock([*keys, *places])
                break
            except Error as failure:
                waited_ms = (self._clock.monotonic() - began_s) * 1_000
                if not failure.retryable or waited_ms > self._patience_ms:
                    break
            await asyncio.sleep(pause_ms / 1_000)
            pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)
        for pending in batch:
            own = _buckets_of(pending.change)
            known = found and all(lives_here(found[moving_key(each)]) for each in own)
            shown = pending.change.confirm(found) if known else None
            if shown is not None:
                pending.answer(shown)
            else:
                pending.fail(_caused(told(error), error))


def _buckets_of(change: Deciding[Any]) -> list[int]:
    """The buckets whose rows a change changes."""
    return Counting(change.keys, BASE, (), change.buckets).buckets


def _refused(error: Error) -> BlobError:
    """Why a change of its own was refused."""
    if isinstance(error, TooLarge):
        return _caused(BlobNotStored(f"too much for one change: {error.message}"), error)
    if "_home " in error.message or "_open " in error.message:
        return _caused(NoSuchBucket("the bucket has been deleted"), error)
    return _caused(LedgerGone(f"a ledger was collected meanwhile: {error.message}"), error)


def _unexpected(error: BaseException) -> BaseException:
    if isinstance(error, Exception):
        return _caused(MetadataUnavailable(f"names cannot be changed: {error}"), error)
    return CommitOutcomeUnknown("the change was abandoned on its way: look, then try again")


def _caused(error: BlobError, cause: BaseException) -> BlobError:
    error.__cause__ = cause
    return error
