"""The final checks of an object store: everything promised exists, and nothing else.

Invariants checked:
- Every name and every kept id can be read completely, and all appends are there.
- Every row of `refs` belongs to an existing object, and every existing object has its rows.
- Each bucket's counts match its contents, and the pool counts the buckets that there are.
- Every ledger of a bucket has a row, and every row a ledger. No ledger without live data is left.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from blobit.bucket_core import owner_of
from blobit.errors import MetadataUnavailable, NoSuchBucket
from blobit.garbage_report import GarbageReport
from blobit.moving import is_under_way
from blobit.naming import pool_tablespace_name
from blobit.object_id import Kind, ObjectId
from blobit.orphans import is_of_a_bucket
from blobit.rows import Rows
from blobit.tables import REGISTRY, LedgerState, Row
from engine.expiry import CLOCK_DIFFERENCE_MS
from engine.metadata.ledgers import LEDGERS, decode_metadata
from tests.simulation.blob_nodes import StoreNode
from tests.simulation.blob_oracle import BlobOracle, number_of, numbers_in
from tests.simulation.blob_workload import BUCKET, DOOMED, BlobWorkload
from tests.simulation.nodes import World
from tests.simulation.oracles import Violation

_BETWEEN_S: Final = 4.5
_TRIES: Final = 10
_QUIET: Final = (
    *("dead_ledgers", "deleted_ledgers", "waiting_ledgers", "compacted_ledgers"),
    *("sealed_ledgers", "expired_objects", "expired_uploads", "unreadable_ledgers"),
)

Ref = tuple[int, int, str, int]


class BlobVerdict:
    """Looks at what is left, with a store of its own."""

    def __init__(
        self, node: StoreNode, world: World, oracle: BlobOracle, load: BlobWorkload
    ) -> None:
        self._node = node
        self._world = world
        self._oracle = oracle
        self._load = load

    async def settle(self, rounds_max: int) -> None:
        """Collect until there is nothing to collect. Raises `Violation` if that never comes."""
        report: GarbageReport | None = None
        quiet = 0
        # Until what one clock has dated is over by another one, with what is allowed for clocks.
        await asyncio.sleep(2 * CLOCK_DIFFERENCE_MS / 1000)
        for _ in range(rounds_max):
            # Longer than any age that a round asks for.
            await asyncio.sleep(_BETWEEN_S)
            try:
                report = await self._node.blobs.collect()
            except MetadataUnavailable:
                continue
            self._world.trace.event("collected at the end", report)
            busy = any(report.total(field) for field in _QUIET)
            quiet = 0 if busy or report.orphan_ledgers or report.cleaned_buckets else quiet + 1
            if quiet == 2:
                return
        raise Violation(f"collection does not finish: {report}")

    async def judge(self) -> None:
        """Raises `Violation`."""
        for tries_left in reversed(range(_TRIES)):
            try:
                await self._judge()
                return
            except MetadataUnavailable:
                # A leader may still be giving way.
                if not tries_left:
                    raise
                await asyncio.sleep(1.0)

    async def _judge(self) -> None:
        await self._judge_names()
        await self._judge_kept()
        blobs = self._node.blobs
        registry = await blobs.rows(REGISTRY)
        second = pool_tablespace_name(2)
        places = {REGISTRY: registry}
        if second in await blobs.herd.names():
            places[second] = await blobs.rows(second)
        await self._judge_places(registry, places)
        await self._judge_refs(list(places.values()))
        await self._judge_counts(registry, list(places.values()))
        await self._judge_ledgers(list(places.values()))
        await self._judge_deleted(registry, list(places.values()))
        self._world.trace.event("judged")

    async def _judge_names(self) -> None:
        blobs = self._node.blobs
        for info in await blobs.buckets():
            bucket = await blobs.bucket(info.name)
            async for found in bucket.scan():
                body = await bucket.get(found.name)
                if found.name.startswith("log"):
                    self._oracle.on_tokens(found.name, body, whole=True)
                elif found.name.startswith("copy/"):
                    numbers_in(body)
                elif info.name != DOOMED:
                    self._oracle.on_body(found.name, body, self._world.loop.now)
        present = {found.name async for found in (await blobs.bucket(BUCKET)).scan("log")}
        for name, known in self._oracle.appended.items():
            if known.done and name not in present:
                raise Violation(f"{name} is gone with all that was appended to it")

    async def _judge_kept(self) -> None:
        for kept, put in self._oracle.kept_ids.items():
            if number_of(await self._node.blobs.get(kept)) != put:
                raise Violation(f"{kept} does not hold what was put")

    async def _judge_places(self, registry: Rows, places: Mapping[str, Rows]) -> None:
        """Check that each bucket is in one tablespace, the one where the registry looks for it."""
        if moves := [row async for row in registry.scan("moves") if is_under_way(row)]:
            raise Violation(f"buckets are still being moved: {moves}")
        lives_in = {info.bucket_id: info.tablespace for info in await self._node.blobs.buckets()}
        for place, rows in places.items():
            for table in ("objects", "expiries", "ledgers", "refs", "uploads", "open_buckets"):
                async for row in rows.scan(table):
                    lives = lives_in.get(row["bucket_id"], place)
                    # The registry and the first tablespace of the pool are one here.
                    if (lives == pool_tablespace_name(2)) != (place == pool_tablespace_name(2)):
                        raise Violation(f"{place} has {row} of {table}, and the bucket is {lives}")

    async def _judge_refs(self, places: Sequence[Rows]) -> None:
        """Check that exactly the existing objects, named or not, have refs, and no upload does."""
        found: dict[Ref, bytes] = {}
        async for row in _scan(places, "refs"):
            key = (row["ledger_id"], row["bucket_id"], row["owner"], row["part"])
            found[key] = row["object_id"]
        wanted: dict[Ref, bytes] = {}
        async for row in _scan(places, "objects"):
            object_id = ObjectId.from_bytes(row["object_id"])
            held = [object_id] if object_id.length else []
            if object_id.kind is Kind.LIST:
                held += await self._node.blobs.parts_of(object_id)
            for number, part in enumerate(held):
                key = (part.ledger_id, row["bucket_id"], owner_of(row["name"]), number)
                wanted[key] = part.to_bytes()
        unnamed = {key: value for key, value in found.items() if key[2].startswith("u:")}
        if (left := {**found}) != {**wanted, **unnamed}:
            lacking = [key for key in wanted if key not in left]
            extra = [key for key in left if key not in wanted and key not in unnamed]
            raise Violation(f"refs lack {lacking} and have {extra} left over")
        owners = {owner[2:] for _, _, owner, _ in unnamed}
        loose = [kept for kept in self._oracle.kept_ids if kept not in owners]
        for kept in loose:
            if is_of_a_bucket(await self._node.client.ledger_metadata(_ledger_of(kept))):
                raise Violation(f"nothing holds {kept}")

    async def _judge_counts(self, registry: Rows, places: Sequence[Rows]) -> None:
        """Check that each bucket's counts match its contents."""
        wanted, counted = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
        async for row in _scan(places, "objects"):
            wanted[row["bucket_id"], "objects"] += 1
            wanted[row["bucket_id"], "size_bytes"] += row["length"]
        async for row in _scan(places, "counts"):
            for what in ("objects", "size_bytes"):
                counted[row["bucket_id"], what] += row[what]
        if wanted != counted:
            raise Violation(f"buckets counted {counted} and hold {wanted}")
        # One whose creation was cut short is counted, too.
        live = Counter([row["tablespace"] async for row in registry.scan("buckets")])
        pool = {each.tablespace: each.buckets for each in await self._node.blobs.pool_tablespaces()}
        if Counter(pool) != live:
            raise Violation(f"the pool counted {pool}, and there are {dict(live)} buckets")

    async def _judge_ledgers(self, places: Sequence[Rows]) -> None:
        recorded = {row["ledger_id"]: row async for row in _scan(places, "ledgers")}
        held = {row["ledger_id"] async for row in _scan(places, "refs")}
        if dying := [row async for row in _scan(places, "dying")]:
            raise Violation(f"ledgers are still dying: {dying}")
        tree, there = self._world.tree.tree, set[int]()
        for name in tree.children(LEDGERS):
            value = tree.get(f"{LEDGERS}/{name}")
            assert value is not None
            if name.isdigit() and is_of_a_bucket(decode_metadata(value.value)):
                there.add(int(name))
        if there != set(recorded):
            raise Violation(
                f"ledgers without a row: {sorted(there - set(recorded))}, rows without a ledger: "
                f"{sorted(set(recorded) - there)}"
            )
        empty = [
            ledger_id
            for ledger_id, row in recorded.items()
            if row["state"] == LedgerState.SEALED and ledger_id not in held
        ]
        if empty:
            raise Violation(f"these ledgers still exist without any live data: {empty}")
        self._world.trace.counts["ledgers at the end"] += len(there)

    async def _judge_deleted(self, registry: Rows, places: Sequence[Rows]) -> None:
        """Check that nothing of a deleted bucket is left."""
        if left := [row["name"] async for row in registry.scan("deleted_buckets")]:
            raise Violation(f"deleted buckets are still remembered: {left}")
        live = {info.bucket_id for info in await self._node.blobs.buckets()}
        of_buckets = ("homes", "objects", "expiries", "ledgers", "refs", "uploads", "counts")
        for table in (*of_buckets, "moving_buckets"):
            async for row in _scan(places, table):
                if row["bucket_id"] not in live:
                    raise Violation(f"{table} still has {row} of a bucket that is gone")
        async for row in _scan(places, "upload_parts"):
            raise Violation(f"a part of an upload is left: {row}")
        if not self._load.doomed_deleted:
            return
        try:
            await self._node.blobs.bucket(DOOMED)
        except NoSuchBucket:
            return


async def _scan(places: Sequence[Rows], table: str) -> AsyncIterator[Row]:
    """The rows of a table in all tablespaces."""
    for rows in places:
        async for row in rows.scan(table):
            yield row


def _ledger_of(object_id: str) -> int:
    return ObjectId.parse(object_id).ledger_id
