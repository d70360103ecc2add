"""Moves of buckets between tablespaces while they are in use.

The rows of a bucket are copied from the source to the target tablespace while it is in use. Then
its changes are refused, and the rows that have changed since are copied. Then the registry names
the target, and the rows in the source are removed. If a handle's change is refused, or it reads
from a tablespace that the bucket has left, it looks the bucket up again.

Invariants:
- A bucket accepts changes in at most one tablespace: its counts in the target are opened after
  those in the source were frozen and all of its rows were copied.
- A read is valid if the bucket still lived in that tablespace after the read (`moving_buckets`): a
  bucket stops living in the source before it accepts changes in the target.
- Whoever continues a move first claims it with a higher number, in the registry and then in both
  tablespaces. Each transaction of a mover is refused if somebody else has claimed the move since.
- An interrupted move is finished by whoever waits for it, collects garbage, deletes the bucket or
  moves it, once its mover has sent no heartbeat for a while. The clock decides when to take over,
  never whether a mover may write.
- Rows are copied and removed in transactions of a few hundred rows.
"""

import asyncio
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from blobit.committing import Change, Committer, Effect, Found, LedgerGone
from blobit.counting import (
    BASE,
    SHARES,
    all_keys,
    count_key,
    count_row,
    divided,
    frozen,
    is_frozen,
    thawed,
)
from blobit.errors import (
    BlobError,
    BlobsClosed,
    CommitOutcomeUnknown,
    NoSuchBucket,
    SettingsInvalid,
)
from blobit.garbage_scope import in_batches
from blobit.naming import is_of_pool
from blobit.rows import Rows, told
from blobit.tables import (
    PRIMARY,
    BucketInfo,
    BucketState,
    Row,
    RowKey,
    bucket_info,
    key_of,
    moving_key,
    packed_settings,
)
from blobit.tablespace_pool import PoolFull, joined, left
from herd.errors import Error
from herd.store import AsyncHerd

if TYPE_CHECKING:
    from blobit.blobs import AsyncBlobs

T = TypeVar("T")

STILL_S: Final = 10.0
"""A mover that has sent no heartbeat for this long is presumed dead."""
_BEAT_S: Final = 2.0
_PAUSE_S: Final = 0.1
_PASSES_MAX: Final = 4
_BATCH_BYTES: Final = 1 << 20
_ROW_BYTES: Final = 256
_LOOKED_AT_ONCE: Final = 500
_LEDGERS_AT_ONCE: Final = 16
_PREFIXED: Final = ("objects", "expiries", "uploads")
"""Tables whose keys begin with the bucket's id."""


class Phase(enum.IntEnum):
    """The phase of a move, stored in its row of `moves`. The numbers are part of the format."""

    COPYING = 1
    CLEANING = 2
    DONE = 3


class MoveTaken(BlobError):
    """Somebody else has taken over the move."""


class _Place(NamedTuple):
    """One end of a move."""

    committer: Committer
    bucket_id: int

    @property
    def key(self) -> RowKey:
        """Of the row that says whether the bucket lives there, and who may move it."""
        return moving_key(self.bucket_id)


def is_under_way(move: Row | None) -> bool:
    """Whether a row of `moves` is of a move that has not ended."""
    return move is not None and move["phase"] != Phase.DONE


def is_copied(move: Row | None) -> bool:
    """Whether rows of the move are still being copied: the bucket is not yet in the target."""
    return move is not None and move["phase"] == Phase.COPYING


def former_places(move: Row | None) -> list[str]:
    """The tablespaces where a bucket has lived before."""
    return [] if move is None else [name for name in move["former"].split(",") if name]


class Moves:
    """The moves of one store. On one event loop."""

    def __init__(self, blobs: "AsyncBlobs") -> None:
        self._blobs = blobs
        self._seen: dict[int, tuple[int, float]] = {}
        """The last sign of life of a mover, and when it was first seen here."""
        self._waits: dict[int, asyncio.Task[None]] = {}

    async def find(self, bucket_id: int) -> Row | None:
        """The row of a bucket that was ever moved. Raises `MetadataUnavailable`."""
        try:
            return await (await self._registry()).rows.get("moves", (bucket_id,))
        except Error as error:
            raise told(error) from error

    async def every(self) -> dict[int, Row]:
        """All of them, by the bucket's id. Raises `MetadataUnavailable`."""
        try:
            rows = (await self._registry()).rows.scan("moves")
            return {row["bucket_id"]: row async for row in rows}
        except Error as error:
            raise told(error) from error

    async def move(self, info: BucketInfo, target: str | None) -> None:
        """Move a bucket to a tablespace of the pool; if `target` is None, the pool chooses one.

        Raises `SettingsInvalid`, `NoSuchBucket`, `MetadataUnavailable`: it may be called again.
        """
        if isinstance(self._blobs.herd, AsyncHerd):
            raise SettingsInvalid("a folder keeps all buckets in one tablespace: none can be moved")
        while True:
            await self.finish(info.bucket_id)
            info = await self._blobs.find_again(info)
            if info.tablespace == target:
                return
            try:
                await self._begin(info, target)
            except PoolFull as error:
                if target is not None:
                    raise SettingsInvalid(
                        f"{error}: choose another one, or raise the limit"
                    ) from None
                continue
            except _UnderWay:
                continue
            await self._go_on(info.bucket_id)
            await self.finish(info.bucket_id)
            return

    async def finish(self, bucket_id: int, *, alive: bool = True) -> None:
        """Wait until no move of a bucket is under way, and take over a move that makes no progress.

        If `alive` is False, do not wait for a move whose mover is alive. Raises
        `MetadataUnavailable`.
        """
        first: int | None = None
        while (move := await self.find(bucket_id)) is not None and is_under_way(move):
            first = move["beat"] if first is None else first
            if not alive and move["beat"] != first:
                return
            await self.wait(bucket_id)

    async def wait(self, bucket_id: int) -> None:
        """Wait a moment for a move, or go on with it. Raises `MetadataUnavailable`."""
        task = self._waits.get(bucket_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._wait(bucket_id))
            self._waits[bucket_id] = task
            task.add_done_callback(lambda _: self._waits.pop(bucket_id, None))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise BlobsClosed("the blob store is closed") from None
            raise

    async def close(self) -> None:
        """Cancel the moves that this process continues or waits for; others finish them."""
        tasks = list(self._waits.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _wait(self, bucket_id: int) -> None:
        move = await self.find(bucket_id)
        if move is not None and is_under_way(move):
            now_s, seen = self._blobs.client.clock.monotonic(), self._seen.get(bucket_id)
            if seen is None or seen[0] != move["beat"]:
                self._seen[bucket_id] = move["beat"], now_s
            elif now_s - seen[1] >= STILL_S:
                await self._go_on(bucket_id)
                return
        else:
            self._seen.pop(bucket_id, None)
        await asyncio.sleep(_PAUSE_S)

    async def _begin(self, info: BucketInfo, target: str | None) -> None:
        """Write down that a bucket is to be moved. Raises `PoolFull`, `SettingsInvalid`."""
        registry, pool = await self._registry(), await self._blobs.tablespace_pool()
        limits = await pool.limits()
        if target is None:
            chosen = await pool.choose(limits, but=info.tablespace)
        else:
            chosen = await pool.named(target)
        place: str = chosen["tablespace"]
        bucket_key: RowKey = ("buckets", (info.name,))
        move_key: RowKey = ("moves", (info.bucket_id,))
        pool_key: RowKey = ("pool_tablespaces", (place,))

        move: Row = {}

        def decide(found: Found) -> Effect[bool]:
            nonlocal move
            row, before = found[bucket_key], found[move_key]
            if row is None or row["bucket_id"] != info.bucket_id:
                raise NoSuchBucket(f"bucket {info.name} was deleted")
            if is_under_way(before) or row["state"] != BucketState.ACTIVE:
                raise _UnderWay(f"bucket {info.name} is being moved or closed")
            if row["tablespace"] != info.tablespace:
                raise _UnderWay(f"bucket {info.name} was moved")
            former = dict.fromkeys([*former_places(before), info.tablespace])
            counted = 0 if before is None else before["claim"]
            move = {
                "bucket_id": info.bucket_id,
                "name": info.name,
                "source": info.tablespace,
                "target": place,
                "phase": int(Phase.COPYING),
                "claim": counted,
                "beat": 0 if before is None else before["beat"] + 1,
                "former": ",".join(former),
            }
            return Effect({move_key: move, **joined(found[pool_key], chosen, limits)}, True)

        def confirm(found: Found) -> bool | None:
            # It may be the move of another process.
            return True if found[move_key] == move else None

        await registry.change(Change((bucket_key, move_key, pool_key), decide, confirm))

    async def _go_on(self, bucket_id: int) -> None:
        """Claim a move and bring it to its end. Raises `MetadataUnavailable`."""
        move = await self._claim(bucket_id)
        if move is None:
            return
        try:
            await _Mover(self._blobs, await self._registry(), move).run()
        except MoveTaken:
            return
        except Error as error:
            raise told(error) from error

    async def _claim(self, bucket_id: int) -> Row | None:
        key: RowKey = ("moves", (bucket_id,))

        def decide(found: Found) -> Effect[Row | None]:
            row = found[key]
            if row is None or not is_under_way(row):
                return Effect({}, None)
            claimed = {**row, "claim": row["claim"] + 1, "beat": row["beat"] + 1}
            return Effect({key: claimed}, claimed)

        registry = await self._registry()
        return await _done(lambda: registry.change(Change((key,), decide, lambda _: None)))

    async def _registry(self) -> Committer:
        return await self._blobs.registry_committer()


class _UnderWay(BlobError):
    """The bucket was moved or closed, or a move of it is already under way."""


class _Mover:
    """Brings one claimed move to its end."""

    def __init__(self, blobs: "AsyncBlobs", registry: Committer, move: Row) -> None:
        self._blobs = blobs
        self._registry = registry
        self._move = move
        self._bucket_id: int = move["bucket_id"]
        self._claim: int = move["claim"]
        self._beat_s = blobs.client.clock.monotonic()
        self._source: _Place
        self._target: _Place

    async def run(self) -> None:
        """Go on from the phase that was reached. Raises `MoveTaken`, and as `Moves.move`."""
        blobs, move = self._blobs, self._move
        ends = [await blobs.committer(move[end], create=True) for end in ("source", "target")]
        self._source, self._target = (_Place(each, self._bucket_id) for each in ends)
        await self._claim_places()
        if move["phase"] == Phase.COPYING:
            for _ in range(_PASSES_MAX):
                if await self._copy() < blobs.settings.garbage.batch_rows:
                    break
            await self._freeze()
            await self._copy(last=True)
            await self._copy_counts()
            await self._leave()
            await self._switch()
        await self._open()
        await self._clean()
        await self._end()

    # Transactions

    async def _change(
        self,
        place: _Place,
        keys: Iterable[RowKey],
        writes: Callable[[Found], dict[RowKey, Row | None]],
        size_bytes: int = 0,
    ) -> None:
        """Make a transaction in one of the tablespaces, unless somebody else has claimed the move.

        It is idempotent. Raises `MoveTaken`, `LedgerGone`, `MetadataUnavailable`.
        """
        key = place.key

        def decide(found: Found) -> Effect[bool]:
            row = found[key]
            if row is None or row["claim"] != self._claim:
                raise MoveTaken(f"somebody else moves bucket {self._move['name']}")
            return Effect(writes(found), True)

        change = Change((key, *keys), decide, lambda _: None, size_bytes)
        await _done(lambda: place.committer.change(change))

    async def _write(self, place: _Place, rows: dict[RowKey, Row | None]) -> None:
        await self._change(place, (), lambda _: rows, _ROW_BYTES * len(rows))
        await self._show_life()

    async def _show_life(self) -> None:
        now_s = self._blobs.client.clock.monotonic()
        if now_s - self._beat_s >= _BEAT_S:
            self._beat_s = now_s
            await self._note({})

    async def _note(
        self,
        changes: Row,
        more: Callable[[Found], dict[RowKey, Row | None]] | None = None,
        keys: Sequence[RowKey] = (),
    ) -> None:
        """Change the row of the move, and others with it. Raises `MoveTaken`."""
        key: RowKey = ("moves", (self._bucket_id,))

        def decide(found: Found) -> Effect[bool]:
            row = found[key]
            if row is None or row["claim"] != self._claim or not is_under_way(row):
                raise MoveTaken(f"somebody else moves bucket {self._move['name']}")
            writes = {} if more is None else more(found)
            return Effect({key: {**row, **changes, "beat": row["beat"] + 1}, **writes}, True)

        change = Change((key, *keys), decide, lambda _: None)
        await _done(lambda: self._registry.change(change))

    # Steps

    async def _claim_places(self) -> None:
        """Refuse the writes of everybody who claimed the move before, in both tablespaces."""
        shares = _shares(self._bucket_id)
        home: RowKey = ("homes", (self._bucket_id,))
        copying = self._move["phase"] == Phase.COPYING
        for place, lives_here in ((self._source, int(copying)), (self._target, 0)):
            key = place.key

            def decide(found: Found, key: RowKey = key, lives: int = lives_here) -> Effect[bool]:
                row = found[key]
                if row is not None and row["claim"] > self._claim:
                    raise MoveTaken(f"somebody else moves bucket {self._move['name']}")
                if found[home] is None and (lives or not copying):
                    # Nobody would ever remove the row.
                    raise MoveTaken(f"bucket {self._move['name']} was moved and deleted meanwhile")
                claimed = {"bucket_id": self._bucket_id, "claim": self._claim, "lives_here": lives}
                if row is not None:
                    claimed["lives_here"] = row["lives_here"]
                writes: dict[RowKey, Row | None] = {key: claimed}
                if copying and not lives and found[home] is None:
                    # Frozen from the start: handles from an earlier stay here may still be open.
                    writes[home] = {"bucket_id": self._bucket_id}
                    writes.update(
                        {one: frozen(self._bucket_id, one[1][1], found[one]) for one in shares}
                    )
                return Effect(writes, True)

            keys = (key, home, *shares) if place is self._target else (key, home)
            await _claimed(place, Change(keys, decide, lambda _: None))

    async def _freeze(self) -> None:
        """Refuse all changes of the bucket in the source, after those in progress have ended."""
        shares = _shares(self._bucket_id)
        await self._change(
            self._source,
            shares,
            lambda found: {
                key: frozen(self._bucket_id, key[1][1], found[key])
                for key in shares
                if not is_frozen(found[key])
            },
        )

    async def _leave(self) -> None:
        """Record in the source that the bucket has left: what is read there is no longer valid."""
        key, row = self._source.key, {"bucket_id": self._bucket_id, "claim": self._claim}
        await self._change(self._source, (), lambda _: {key: {**row, "lives_here": 0}})

    async def _switch(self) -> None:
        """Let the registry name the new place."""
        move = self._move
        key: RowKey = ("buckets", (move["name"],))

        def named(found: Found) -> dict[RowKey, Row | None]:
            row = found[key]
            if row is None or row["bucket_id"] != self._bucket_id:
                raise MoveTaken(f"bucket {move['name']} was deleted")
            # What was chosen for the old tablespace does not hold for one that is shared.
            settings = msgspec.structs.replace(
                bucket_info(row).settings, tablespace=None, leader=None, own_tablespace=False
            )
            packed = packed_settings(settings, move["target"])
            return {key: {**row, "tablespace": move["target"], "settings": packed}}

        await self._note({"phase": int(Phase.CLEANING)}, named, [key])

    async def _open(self) -> None:
        """Take changes at the new place."""
        counts, key = all_keys(self._bucket_id), self._target.key
        row = {"bucket_id": self._bucket_id, "claim": self._claim, "lives_here": 1}

        def writes(found: Found) -> dict[RowKey, Row | None]:
            there = [each for one in counts if (each := found[one]) is not None]
            if not any(map(is_frozen, there)):
                # It is open, or was deleted meanwhile.
                return {key: row}
            rows = [thawed(each) for each in there]
            if all(each["number"] != BASE for each in rows):
                rows.append(count_row(self._bucket_id, BASE))
            rows = divided(rows)
            made = {count_key(self._bucket_id, each["number"]): each for each in rows}
            return {key: row, **made}

        await self._change(self._target, counts, writes)

    async def _end(self) -> None:
        """Mark the move as done, and drop the source if it was the bucket's own tablespace."""
        pool_key: RowKey = ("pool_tablespaces", (self._move["source"],))
        keys = [pool_key] if is_of_pool(self._move["source"]) else []
        await self._note({"phase": int(Phase.DONE)}, lambda found: left(found.get(pool_key)), keys)
        # If this is interrupted, garbage collection does it later.
        await self._blobs.drop_left(self._move["source"], self._move["name"], self._bucket_id)

    # Copying

    async def _copy(self, *, last: bool = False) -> int:
        """Make the rows in the target equal to those in the source; returns how many differed.

        While the source accepts changes, some rows may be inconsistent; the next pass fixes them.
        """
        source, target = self._source.committer.rows, self._target.committer.rows
        bucket_id, count = self._bucket_id, 0
        here, there = await source.ledgers(bucket_id), await target.ledgers(bucket_id)
        count += await self._level("ledgers", _each(here), _each(there), adding=True)
        ids = sorted({row["ledger_id"] for row in (*here, *there)})
        for some in in_batches(ids, _LEDGERS_AT_ONCE):
            levels = [self._level_refs(ledger_id, last=last) for ledger_id in some]
            count += sum(await asyncio.gather(*levels))
        try:
            count += await self._level(
                "ledgers", _each(here), _each(await target.ledgers(bucket_id))
            )
        except LedgerGone:
            if last:
                raise
        dying = await source.dying(bucket_id), await target.dying(bucket_id)
        count += await self._level("dying", _each(dying[0]), _each(dying[1]))
        opened_row = await source.get("open_buckets", (bucket_id,))
        if opened_row is not None:
            await self._write(self._target, {("open_buckets", (bucket_id,)): opened_row})
        own = (bucket_id,)
        for table in ("objects", "expiries"):
            scans = [rows.scan(table, first=own, last=own) for rows in (source, target)]
            count += await self._level(table, *scans)
        return count + await self._copy_uploads()

    async def _copy_uploads(self) -> int:
        """Copy the uploads and their parts; returns how many rows differed.

        Parts can be found only through their upload's row, so the row is added before the parts
        and removed after them. An interruption never leaves parts that nothing leads to.
        """
        source, target = self._source.committer.rows, self._target.committer.rows
        own = (self._bucket_id,)

        def uploads(rows: Rows) -> AsyncIterator[Row]:
            return rows.scan("uploads", first=own, last=own)

        count = await self._level("uploads", uploads(source), uploads(target), adding=True)
        here = set(await self._upload_ids(uploads(source)))
        there = await self._upload_ids(uploads(target))
        for upload_id in there:
            part = (upload_id,)
            parts = source.scan("upload_parts", first=part, last=part)
            count += await self._level(
                "upload_parts",
                # An upload that is removed below gets no parts, even if there is a new one with
                # the same id by now.
                parts if upload_id in here else _each(()),
                target.scan("upload_parts", first=part, last=part),
            )
        gone: Iterable[Row] = (
            {"bucket_id": self._bucket_id, "upload_id": upload_id}
            for upload_id in there
            if upload_id not in here
        )
        return count + await self._level("uploads", _each(()), _each(gone))

    async def _upload_ids(self, uploads: AsyncIterator[Row]) -> list[str]:
        found: list[str] = []
        async for row in uploads:
            if len(found) % _LOOKED_AT_ONCE == 0:
                await self._show_life()
            found.append(row["upload_id"])
        return found

    async def _level_refs(self, ledger_id: int, *, last: bool) -> int:
        """What holds ranges of one ledger."""
        held = (ledger_id, self._bucket_id)
        scans = [
            place.committer.rows.scan("refs", first=held, last=held)
            for place in (self._source, self._target)
        ]
        try:
            return await self._level("refs", *scans)
        except LedgerGone:
            # It was made since the ledgers were read.
            if last:
                raise
            return 0

    async def _level(
        self,
        table: str,
        here: AsyncIterator[Row],
        there: AsyncIterator[Row],
        *,
        adding: bool = False,
    ) -> int:
        """Write the differences of two scans to the target; with `adding` nothing is removed."""
        count = size_bytes = 0
        writes: dict[RowKey, Row | None] = {}
        async for key, row in _differences(table, here, there, self._show_life):
            if adding and row is None:
                continue
            writes[key] = row
            count += 1
            size_bytes += _ROW_BYTES + (len(row.get("metadata") or b"") if row else 0)
            full = len(writes) >= self._blobs.settings.garbage.batch_rows
            if full or size_bytes >= _BATCH_BYTES:
                await self._write(self._target, writes)
                writes, size_bytes = {}, 0
        if writes:
            await self._write(self._target, writes)
        await self._show_life()
        return count

    async def _copy_counts(self) -> None:
        """Copy the counts, frozen in the target."""
        rows = {
            row["number"]: row for row in await self._source.committer.rows.counts(self._bucket_id)
        }
        keys = all_keys(self._bucket_id)

        def writes(found: Found) -> dict[RowKey, Row | None]:
            made: dict[RowKey, Row | None] = {}
            for key in keys:
                number = key[1][1]
                row = rows.get(number)
                if number != BASE:
                    made[key] = frozen(self._bucket_id, number, row)
                elif row is not None:
                    made[key] = row
            return made

        await self._change(self._target, keys, writes)

    # Cleaning

    async def _clean(self) -> None:
        """Remove the bucket's rows from the source, except its counts, which stay frozen.

        The frozen counts tell whoever still uses the source that the bucket has moved. Missing rows
        would not tell that.
        """
        rows, bucket_id, own = self._source.committer.rows, self._bucket_id, (self._bucket_id,)
        uploads = [row["upload_id"] async for row in rows.scan("uploads", first=own, last=own)]
        for upload_id in uploads:
            part = (upload_id,)
            await self._remove("upload_parts", rows.scan("upload_parts", first=part, last=part))
        for table in _PREFIXED:
            await self._remove(table, rows.scan(table, first=own, last=own))
        ledgers = await rows.ledgers(bucket_id)
        for ledger in ledgers:
            held = (ledger["ledger_id"], bucket_id)
            await self._remove("refs", rows.scan("refs", first=held, last=held))
        await self._remove("ledgers", _each(ledgers))
        await self._remove("dying", _each(await rows.dying(bucket_id)))
        closed: dict[RowKey, Row | None] = {
            key: frozen(bucket_id, key[1][1], None) for key in _shares(bucket_id)
        }
        gone: list[RowKey] = [("open_buckets", own), count_key(bucket_id, BASE)]
        await self._write(self._source, closed | dict.fromkeys(gone))

    async def _remove(self, table: str, rows: AsyncIterator[Row]) -> None:
        gone: dict[RowKey, Row | None] = {}
        async for row in rows:
            gone[key_of(table, row)] = None
            if len(gone) >= self._blobs.settings.garbage.batch_rows:
                await self._write(self._source, gone)
                gone = {}
        if gone:
            await self._write(self._source, gone)


def _shares(bucket_id: int) -> list[RowKey]:
    """The keys of all counts except `BASE`; each change locks one of them."""
    return [count_key(bucket_id, number) for number in range(1, SHARES + 1)]


async def _done(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat an idempotent change until its outcome is known."""
    while True:
        try:
            return await call()
        except CommitOutcomeUnknown:
            await asyncio.sleep(_PAUSE_S)


async def _claimed(place: _Place, change: Change[bool]) -> None:
    await _done(lambda: place.committer.change(change))


async def _each(rows: Iterable[Row]) -> AsyncIterator[Row]:
    for row in rows:
        yield row


async def _differences(
    table: str,
    here: AsyncIterator[Row],
    there: AsyncIterator[Row],
    show_life: Callable[[], Awaitable[None]],
) -> AsyncIterator[tuple[RowKey, Row | None]]:
    """The changes that make the rows `there` equal to those `here`; both are sorted by key."""
    columns, count = PRIMARY[table], 0

    async def keyed(rows: AsyncIterator[Row]) -> tuple[tuple[Any, ...], Row] | None:
        nonlocal count
        count += 1
        if count % _LOOKED_AT_ONCE == 0:
            await show_life()
        row = await anext(rows, None)
        return None if row is None else (tuple(row[column] for column in columns), row)

    one, other = await keyed(here), await keyed(there)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            assert one is not None
            yield (table, one[0]), one[1]
            one = await keyed(here)
        elif one is None or other[0] < one[0]:
            yield (table, other[0]), None
            other = await keyed(there)
        else:
            if one[1] != other[1]:
                yield (table, one[0]), one[1]
            one, other = await keyed(here), await keyed(there)
