"""Rounds of collection: what nobody can read any more gives its space back.

For each bucket: what has expired goes, ledgers that writers abandoned are sealed, sealed ledgers
are weighed by the rows that hold their ranges, those of which little is live are emptied, those of
which nothing is live die, and of those that have been dead for long enough the bytes go. Then
deleted buckets are cleaned, and ledgers are looked for that no row names.

Any number of rounds may run at once, anywhere; one that is cut short is finished by the next.

Invariants:
- Nothing here is safe by a clock, or because nobody else is at work: the rule of dying decides.
- A dry run changes nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from blobit.bucket_core import BucketCore
from blobit.bucket_removal import remove_bucket
from blobit.compaction import Compaction, Weight, weigh
from blobit.counting import BASE, count_key, is_shut
from blobit.dying import count_due, finish, let_die
from blobit.errors import BlobError, DiskFull, MetadataUnavailable, NoSuchBucket
from blobit.expiry import abort_expired_uploads, expire_objects
from blobit.garbage_report import BucketGarbage, GarbageReport
from blobit.garbage_scope import BucketScope
from blobit.moving import former_places, is_under_way
from blobit.orphans import OrphanScan
from blobit.ownership import is_of_bucket
from blobit.pinned import PinnedCheckpoints
from blobit.rows import Rows, told
from blobit.sealing import is_abandoned, seal
from blobit.settings import BucketSettings
from blobit.tables import (
    REGISTRY,
    BucketInfo,
    BucketState,
    LedgerKind,
    LedgerState,
    Row,
    bucket_info,
    is_own,
)
from engine.errors import EngineError
from engine.ledger.reader import LedgerReader
from herd.errors import Error

if TYPE_CHECKING:
    from blobit.blobs import AsyncBlobs


class Collector:
    """Collects the garbage of a store. On one event loop."""

    def __init__(self, blobs: "AsyncBlobs") -> None:
        self._blobs = blobs
        self._client = blobs.client
        self._settings = blobs.settings.garbage
        self._orphans = OrphanScan(blobs.client)
        self._pinned = PinnedCheckpoints(blobs.client)
        self._former: dict[int, tuple[str, ...]] = {}

    async def collect(self, bucket: str | None = None, *, dry_run: bool = False) -> GarbageReport:
        """One round: for one bucket, or for all buckets, deleted buckets and ledgers without a row.

        What is unreachable now, or needs more disk space than is free, is left to the next round.
        Raises `NoSuchBucket`, `MetadataUnavailable`, `DiskFull` (not even the reserve is free).
        """
        try:
            return await self._collect(bucket, dry_run)
        except Error as error:
            raise told(error) from error

    async def unpin(self, name: str) -> int:
        """Remove the pins of a name from all tablespaces of buckets; returns how many there were.

        Raises `MetadataUnavailable`.
        """
        try:
            spaces = set((await self._tablespaces()).values())
            for move in (await self._blobs.moves.every()).values():
                spaces.update(former_places(move))
            return sum([await self._pinned.unpin(each, name) for each in sorted(spaces)])
        except Error as error:
            raise told(error) from error
        except EngineError as error:
            raise MetadataUnavailable(f"pins cannot be changed now: {error}: retry") from error

    async def has_pins(self, tablespace: str) -> bool:
        """Whether somebody reads a checkpoint of it. Raises `MetadataUnavailable`."""
        try:
            return await self._pinned.any(tablespace)
        except EngineError as error:
            raise MetadataUnavailable(f"pins cannot be read now: {error}: retry") from error

    async def _collect(self, bucket: str | None, dry_run: bool) -> GarbageReport:
        report = GarbageReport(dry_run)
        known: set[int] = set()
        moves = await self._blobs.moves.every()
        if not dry_run:
            for bucket_id, move in moves.items():
                if is_under_way(move):
                    await self._blobs.moves.finish(bucket_id, alive=False)
        self._former = {each: tuple(former_places(move)) for each, move in moves.items()}
        for tablespace, infos in _by_tablespace(await self._buckets(bucket)).items():
            try:
                report.buckets += await self._rounds(tablespace, infos, known, dry_run)
            except (Error, MetadataUnavailable, DiskFull):
                # This tablespace is unavailable or its disks are full; the others may still work.
                if bucket is not None:
                    raise
                report.unreachable_buckets += [info.name for info in infos]
        if bucket is None:
            if not dry_run:
                await self._clean(report)
                await self._remove_strays()
                await self._drop_left(moves)
                await self._blobs.measure_pool()
            await self._find_orphans(report, known)
        return report

    async def _rounds(
        self, tablespace: str, infos: Sequence[BucketInfo], known: set[int], dry_run: bool
    ) -> list[BucketGarbage]:
        """A round for each bucket of a tablespace; `known` is told of their ledgers."""
        rows = (await self._blobs.committer(tablespace)).rows
        if len(infos) == 1:
            [one] = [info.bucket_id for info in infos]
            # However many others share its tablespace.
            ledgers, dying = {one: await rows.ledgers(one)}, {one: await rows.dying(one)}
        else:
            ledgers, dying = await _by_bucket(rows, "ledgers"), await _by_bucket(rows, "dying")
        reports: list[BucketGarbage] = []
        for info in infos:
            own = ledgers.get(info.bucket_id, []), dying.get(info.bucket_id, [])
            known.update(row["ledger_id"] for some in own for row in some)
            reports.append(await self._round(info, *own, dry_run))
        return reports

    async def _buckets(self, bucket: str | None) -> list[BucketInfo]:
        registry = await self._blobs.rows(REGISTRY)
        if bucket is not None:
            row = await registry.get("buckets", (bucket,))
            if row is None or row["state"] == BucketState.BEING_MADE:
                raise NoSuchBucket(f"there is no bucket {bucket}: list them to see which there are")
            return [bucket_info(row)]
        rows = [row async for row in registry.scan("buckets")]
        # What was deleted in a bucket is garbage also if the deletion of the bucket was cut short.
        return [bucket_info(row) for row in rows if row["state"] != BucketState.BEING_MADE]

    async def _scope(self, info: BucketInfo, dry_run: bool) -> BucketScope:
        core = BucketCore(self._blobs, info, await self._blobs.committer(info.tablespace))
        report = BucketGarbage(info.name, info.bucket_id)
        now_ms = await self._client.time.earliest_ms()
        client, settings = self._client, self._settings
        former = self._former.get(info.bucket_id, ())
        return BucketScope(core, client, settings, report, now_ms, dry_run, self._pinned, former)

    # One bucket

    async def _round(
        self, info: BucketInfo, ledgers: Sequence[Row], dying: Sequence[Row], dry_run: bool
    ) -> BucketGarbage:
        scope = await self._scope(info, dry_run)
        report = scope.report
        report.ledgers = len(ledgers)
        try:
            report.expired_objects = await expire_objects(scope)
            report.expired_uploads = await abort_expired_uploads(scope)
            dead, half_dead = await self._looked_at(scope, ledgers)
            dead += await self._compact(scope, half_dead)
            await self._end(scope, dead, dying)
        except NoSuchBucket:
            # It was deleted meanwhile; whoever cleans it does the rest.
            return report
        return report

    async def _looked_at(
        self, scope: BucketScope, ledgers: Sequence[Row]
    ) -> tuple[list[int], dict[int, Weight]]:
        """The ledgers of which nothing is live, and those of which so little is that they move."""
        dead: list[int] = []
        half_dead: dict[int, Weight] = {}
        names_count = 0
        report = scope.report
        for row in ledgers:
            sealed = row if row["state"] == LedgerState.SEALED else await self._sealed(scope, row)
            if sealed is None:
                continue
            ledger_id, stored_bytes = sealed["ledger_id"], sealed["stored_bytes"] or 0
            weight = await weigh(scope, ledger_id)
            report.stored_bytes += stored_bytes
            report.live_bytes += weight.live_bytes
            if (sealed["sealed_ms"] or 0) + self._settings.settle_ms > scope.now_ms:
                # Puts whose bytes lie in it may be about to commit.
                continue
            if weight.is_empty:
                report.dead_bytes += stored_bytes
                dead.append(ledger_id)
            elif _is_worth_moving(sealed, weight, self._settings.live_share_min):
                names_count += len(weight.names)
                if half_dead and names_count > self._settings.names_max:
                    # The next round goes on.
                    continue
                half_dead[ledger_id] = weight
                report.dead_bytes += stored_bytes - weight.live_bytes
        return dead, half_dead

    async def _sealed(self, scope: BucketScope, row: Row) -> Row | None:
        """The row of an open ledger once it is sealed; None if that is not yet to be."""
        if not is_abandoned(scope, row):
            return None
        if scope.dry_run:
            scope.report.sealed_ledgers += 1
            return None
        sealed = await seal(scope, row)
        scope.report.sealed_ledgers += sealed is not None
        return sealed

    async def _compact(self, scope: BucketScope, half_dead: Mapping[int, Weight]) -> list[int]:
        """Empty ledgers; those of which nothing is live any more."""
        report = scope.report
        if scope.dry_run:
            moving = {name for weight in half_dead.values() for name in weight.names}
            report.compacted_ledgers, report.moved_objects = len(half_dead), len(moving)
            report.moved_bytes = sum(weight.live_bytes for weight in half_dead.values())
            return []
        readers: dict[int, LedgerReader] = {}
        names: dict[str, None] = {}
        for ledger_id, weight in half_dead.items():
            try:
                reader = await self._client.open_ledger(ledger_id, recover=False)
            except EngineError:
                report.unreadable_ledgers += 1
                continue
            if not is_of_bucket(reader.metadata.custom, scope.bucket_id):
                report.foreign_ledgers += 1
                continue
            readers[ledger_id] = reader
            names |= weight.names
        await Compaction(scope, readers).move(names)
        empty = [one for one in readers if (await weigh(scope, one)).is_empty]
        report.compacted_ledgers = len(empty)
        report.unreadable_ledgers += len(readers) - len(empty)
        return empty

    async def _end(self, scope: BucketScope, ids: Sequence[int], dying: Sequence[Row]) -> None:
        """Let dead ledgers die, and delete those that have been dying for long enough."""
        report = scope.report
        if scope.dry_run:
            report.dead_ledgers = len(ids)
            report.deleted_ledgers = await count_due(scope, dying)
            report.waiting_ledgers = len(dying) - report.deleted_ledgers
            return
        died = await let_die(scope, ids)
        report.dead_ledgers = len(died)
        ending = [{"ledger_id": ledger_id, "since_ms": scope.now_ms} for ledger_id in died]
        every = [*dying, *ending]
        report.deleted_ledgers = len(await finish(scope, every))
        report.waiting_ledgers = len(every) - report.deleted_ledgers

    # What belongs to no bucket any more

    async def _clean(self, report: GarbageReport) -> None:
        """Clean deleted buckets; one of which nothing is left is forgotten."""
        registry = await self._blobs.rows(REGISTRY)
        for row in [row async for row in registry.scan("deleted_buckets")]:
            info = bucket_info(row)
            try:
                clean = await self._cleaned(info, report)
            except (Error, BlobError):
                report.unreachable_buckets.append(info.name)
                continue
            if clean:
                report.cleaned_buckets.append(info.name)

    async def _cleaned(self, info: BucketInfo, report: GarbageReport) -> bool:
        """Clean a deleted bucket; whether nothing of it is left."""
        if is_under_way(await self._blobs.moves.find(info.bucket_id)):
            # Somebody still removes what is left where it was.
            return False
        # Made anew where whoever dropped it was cut short: then there is nothing in it.
        await self._blobs.rows(info.tablespace)
        scope = await self._scope(info, False)
        report.buckets.append(scope.report)
        if not await remove_bucket(scope, await scope.rows.ledgers(info.bucket_id)):
            return False
        await self._blobs.forget_bucket(info)
        return True

    async def _remove_strays(self) -> None:
        """Remove the rows that were written for a bucket after it had been removed.

        These are its row of `homes`, and what a put added while that was removed. Only in shared
        tablespaces: a bucket's own tablespace is dropped with the bucket.
        """
        registry = await self._blobs.rows(REGISTRY)
        buckets = [row async for row in registry.scan("buckets")]
        named = {row["bucket_id"] for row in buckets}
        places = {each.tablespace for each in await self._blobs.pool_tablespaces()}
        # Tablespaces that users chose by name may be shared, too.
        places |= {
            row["tablespace"]
            for row in buckets
            if not is_own(row["tablespace"], row["name"], row["bucket_id"])
        }
        for place in sorted(places - {REGISTRY}):
            try:
                await self._remove_strays_in(place, named)
            except (Error, BlobError):
                continue

    async def _remove_strays_in(self, place: str, named: Collection[int]) -> None:
        rows = (await self._blobs.committer(place)).rows
        strays: set[int] = set()
        for table in ("homes", "dying"):
            strays |= {row["bucket_id"] async for row in rows.scan(table)}.difference(named)
        if strays:
            # Must be read after both tables: a bucket is registered before its rows are written.
            strays -= {*await self._tablespaces(), *await self._blobs.moves.every()}
        for bucket_id in strays:
            info = BucketInfo("", bucket_id, place, BucketSettings(), 0)
            scope = await self._scope(info, False)
            if await _is_empty(scope) or await _is_shut(scope):
                await remove_bucket(scope, await scope.rows.ledgers(bucket_id))

    async def _drop_left(self, moves: Mapping[int, Row]) -> None:
        """Drop the tablespaces that buckets had for themselves and have left."""
        for bucket_id, move in moves.items():
            if not is_under_way(move):
                for tablespace in former_places(move):
                    with suppress(MetadataUnavailable, DiskFull):
                        await self._blobs.drop_left(tablespace, move["name"], bucket_id)

    async def _find_orphans(self, report: GarbageReport, known: set[int]) -> None:
        spaces: dict[int, str | None] = {}
        moves: dict[int, Row] = {}

        async def place_of(bucket_id: int) -> str | None:
            if bucket_id not in spaces:
                # Only now: its ledger was seen, so it is here, or it is gone for good.
                moved = await self._blobs.moves.every()
                places = await self._tablespaces()
                # What is known of others stays: by that their rows were looked for.
                fresh = [each for each in places if each not in spaces]
                spaces.update({each: places[each] for each in fresh})
                moves.update({each: moved[each] for each in fresh if each in moved})
            return spaces.setdefault(bucket_id, None)

        async def rows_in(tablespace: str) -> Rows:
            return (await self._blobs.committer(tablespace)).rows

        now_ms = await self._client.time.earliest_ms()
        try:
            age_ms = self._settings.orphan_ms
            found = await self._orphans.find(known, place_of, rows_in, now_ms, age_ms)
        except EngineError as error:
            raise MetadataUnavailable(f"ledgers cannot be listed now: {error}") from error
        ids = await self._at_rest(found, moves)
        report.orphan_ledgers = len(ids) if report.dry_run else await self._orphans.delete(ids)

    async def _at_rest(self, found: Mapping[int, int], before: Mapping[int, Row]) -> list[int]:
        """Of ledgers, by their buckets, those whose bucket did not move while rows were read.

        A row that was looked for where the bucket no longer was says nothing.
        """
        after = await self._blobs.moves.every()

        def stayed(bucket_id: int) -> bool:
            one, other = before.get(bucket_id), after.get(bucket_id)
            return not (is_under_way(one) or is_under_way(other)) and one == other

        return [ledger_id for ledger_id, bucket_id in found.items() if stayed(bucket_id)]

    async def _tablespaces(self) -> dict[int, str]:
        """Where the rows of all buckets are, of deleted ones too, by their ids."""
        registry = await self._blobs.rows(REGISTRY)
        return {
            row["bucket_id"]: row["tablespace"]
            for table in ("buckets", "deleted_buckets")
            async for row in registry.scan(table)
        }


def _is_worth_moving(row: Row, weight: Weight, live_share_min: float) -> bool:
    if row["kind"] != LedgerKind.NAMED or not weight.movable:
        return False
    return weight.live_bytes < live_share_min * (row["stored_bytes"] or 0)


def _by_tablespace(infos: Sequence[BucketInfo]) -> dict[str, list[BucketInfo]]:
    found: dict[str, list[BucketInfo]] = {}
    for info in infos:
        found.setdefault(info.tablespace, []).append(info)
    return found


async def _is_empty(scope: BucketScope) -> bool:
    """Whether nothing of a bucket is left that can be read. Ledgers that are dying do not count.

    One that has objects but no name may belong to an older state of the registry, restored alone.
    """
    key = (scope.bucket_id,)
    for table in ("objects", "uploads"):
        async for _ in scope.rows.scan(table, first=key, last=key):
            return False
    return not await scope.rows.ledgers(scope.bucket_id)


async def _is_shut(scope: BucketScope) -> bool:
    """Whether a removal of the bucket has begun."""
    [_, key] = count_key(scope.bucket_id, BASE)
    return is_shut(await scope.rows.get("counts", key))


async def _by_bucket(rows: Rows, table: str) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    async for row in rows.scan(table):
        found.setdefault(row["bucket_id"], []).append(row)
    return found
