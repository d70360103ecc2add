"""Clients of a store of objects: they put, read, append, copy, delete and collect, all at once.

Invariants:
- A call whose client heard nothing may have happened; it is never made again under its number.
- A put may sleep for long between its data and its row, while everybody else goes on.
- After `stop` every client ends what it is doing and begins nothing new.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from blobit.bucket import AsyncBucket
from blobit.bucket_core import PartEnded
from blobit.errors import (
    BlobCorrupt,
    BlobError,
    BlobNotFound,
    BlobNotStored,
    BlobUnreadable,
    BucketNotEmpty,
    CommitOutcomeUnknown,
    ConditionFailed,
    DiskFull,
    MetadataUnavailable,
    NoSuchBucket,
    NoSuchObject,
    NoSuchUpload,
    ObjectChanged,
)
from blobit.object_id import ObjectId
from blobit.settings import BucketSettings
from blobit.sources import Source
from blobit.writers import LedgerPool
from tests.linearizability import Kind, Operation
from tests.simulation.blob_nodes import StoreNode
from tests.simulation.blob_oracle import (
    Appended,
    BlobOracle,
    body_of,
    number_of,
    numbers_in,
    token_of,
)
from tests.simulation.disturbances import CallCancelled
from tests.simulation.nodes import World
from tests.simulation.oracles import Violation

R = TypeVar("R")

NAMES: Final = 3
LOGS: Final = 2
SETTINGS: Final = BucketSettings()
BUCKET: Final = "cows"
MORTAL: Final = "calves"
DOOMED: Final = "milk"
_RETRY_S: Final = 0.3
_PATIENT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class BlobLoad:
    """What one run's clients do, drawn from its seed."""

    lengths: tuple[int, ...]
    sleeping_share: float
    sleeps_s: tuple[float, ...]
    think_s: float
    collect_s: float
    ttl_ms: int
    at_once: int
    move_s: float | None = None
    """How long a client waits between two moves of buckets, about; None: it moves none."""


class BlobWorkload:
    """The work of all clients of one run."""

    def __init__(self, world: World, load: BlobLoad, oracle: BlobOracle) -> None:
        self.world = world
        self.load = load
        self.oracle = oracle
        self.stopped = False
        self.doomed_deleted = False
        self.deletions = 0
        """How many, of that bucket or in it, were begun; and of how many it is not known yet, or
        never will be, what came of them."""
        self.deletions_under_way = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._copies = 0

    @property
    def ended(self) -> bool:
        """Whether every client that lives has come to its end."""
        dead = {
            task for process in self.world.processes if not process.alive for task in process.tasks
        }
        return all(task.done() or task in dead for task in self._tasks)

    def next_copy(self) -> str:
        """A name that nothing was ever copied to."""
        self._copies += 1
        return f"copy/{self._copies:04}"

    async def deleting(self, call: Awaitable[object]) -> None:
        """Await a deletion, and count it."""
        self.deletions += 1
        self.deletions_under_way += 1
        try:
            await call
        except (BucketNotEmpty, NoSuchBucket, NoSuchObject):
            self.deletions_under_way -= 1
            raise
        self.deletions_under_way -= 1

    def begin(self, node: StoreNode) -> None:
        """Let a client work, in the process that it has now."""
        rng = self.world.rng(f"{node.name} work")
        _let_sleep(node, self.load, rng)
        for turn in range(self.load.at_once):
            client = BlobClient(self, node, rng, f"{node.process.name}.{turn}")
            self._spawn(node, client.work(), f"{client.name} work")
        self._spawn(node, self._collect(node, rng), f"{node.name} collects")
        if self.load.move_s is not None:
            rng = self.world.rng(f"{node.name} moves")
            self._spawn(node, self._move(node, rng, self.load.move_s), f"{node.name} moves")

    def _spawn(self, node: StoreNode, work: Any, name: str) -> None:
        self._tasks.append(self.world.loop.spawn(node.process, work, name))

    async def _collect(self, node: StoreNode, rng: random.Random) -> None:
        while not self.stopped:
            await asyncio.sleep(rng.expovariate(1 / self.load.collect_s))
            collecting = node.blobs.collect()
            try:
                report = await self.world.disturbances.cancellable(collecting, "collection")
            except CallCancelled:
                continue
            except (MetadataUnavailable, NoSuchBucket, DiskFull) as error:
                self.world.trace.event("not collected", node.name, type(error).__name__)
                continue
            for field in ("dead_ledgers", "deleted_ledgers", "moved_objects", "expired_objects"):
                self.world.trace.counts[field] += report.total(field)
            self.world.trace.counts["orphans"] += report.orphan_ledgers
            self.world.trace.event("collected", node.name, report)

    async def _move(self, node: StoreNode, rng: random.Random, pause_s: float) -> None:
        while not self.stopped:
            await asyncio.sleep(rng.expovariate(1 / pause_s))
            name = rng.choice((BUCKET, MORTAL, DOOMED))
            moving = node.blobs.move_bucket(name)
            try:
                moved = await self.world.disturbances.cancellable(moving, "move bucket")
            except (CallCancelled, MetadataUnavailable, NoSuchBucket, DiskFull) as error:
                self.world.trace.event("not moved", node.name, name, type(error).__name__)
                continue
            self.world.trace.counts["moved buckets"] += 1
            self.world.trace.event("moved", node.name, name, moved.tablespace)


def _let_sleep(node: StoreNode, load: BlobLoad, rng: random.Random) -> None:
    """Some puts sleep when their data are durable, and their row is not written yet."""
    store = node.blobs.store

    async def sleepy(
        pool: LedgerPool, source: Source, part_ended: PartEnded | None = None
    ) -> ObjectId:
        stored = await store(pool, source, part_ended)
        if rng.random() < load.sleeping_share:
            node.world.trace.fault("sleeps before its row", node.name, stored.ledger_id)
            await asyncio.sleep(rng.choice(load.sleeps_s))
        return stored

    node.blobs.store = sleepy  # type: ignore[method-assign]


class BlobClient:
    """One client: one call after the other."""

    def __init__(
        self, workload: BlobWorkload, node: StoreNode, rng: random.Random, name: str
    ) -> None:
        self.name = name
        self._workload = workload
        self._oracle = workload.oracle
        self._load = workload.load
        self._world = workload.world
        self._node = node
        self._rng = rng
        self._etags: dict[str, tuple[str, str]] = {}
        self._kept: list[str] = []
        self._failures = 0

    async def work(self) -> None:
        """Call after call, until the workload stops."""
        buckets = {
            name: await self._bucket(name, settings)
            for name, settings in (
                (BUCKET, SETTINGS),
                (MORTAL, BucketSettings(ttl_ms=self._load.ttl_ms)),
                (DOOMED, SETTINGS),
            )
        }
        bucket = buckets[BUCKET]
        steps: tuple[tuple[int, Callable[[], Awaitable[None]]], ...] = (
            (10, lambda: self._put(bucket)),
            (10, lambda: self._read(bucket)),
            (3, lambda: self._delete(bucket)),
            (4, lambda: self._append(bucket)),
            (2, lambda: self._read_log(bucket)),
            (2, lambda: self._copy(bucket)),
            (3, lambda: self._keep(bucket)),
            (2, lambda: self._read_kept(bucket)),
            (2, lambda: self._put_in_parts(bucket)),
            (2, lambda: self._put_slowly(bucket)),
            (1, lambda: self._join(bucket)),
            (4, lambda: self._mortal(buckets[MORTAL])),
            (16 if self._world.disturbances.on else 4, lambda: self._doomed(buckets[DOOMED])),
        )
        while not self._workload.stopped:
            [(_, step)] = self._rng.choices(steps, [weight for weight, _ in steps])
            failures = self._failures
            try:
                await step()
            except CallCancelled:
                # It may have happened: what was begun stays begun.
                self._failures += 1
            self._oracle.answered += failures == self._failures
            await asyncio.sleep(self._load.think_s * self._rng.random())

    async def _bucket(self, name: str, settings: BucketSettings) -> AsyncBucket:
        while True:
            try:
                making = self._node.blobs.create_bucket(name, settings, exist_ok=True)
                return await self._user(making, "create bucket")
            except CallCancelled:
                continue
            except BlobError as error:
                self._note(error)
                await asyncio.sleep(_RETRY_S)

    # Calls on one name

    async def _put(self, bucket: AsyncBucket) -> None:
        name = f"cow{self._rng.randrange(NAMES)}"
        put, length = self._oracle.next_number(), self._rng.choice(self._load.lengths)
        known = self._etags.get(name) if self._rng.random() < 0.3 else None
        absent = known is None and self._rng.random() < 0.1
        body, value = body_of(put, length), str(put)
        self._oracle.put_under[put] = name
        kind = Kind.COMPARE_AND_SET if known or absent else Kind.WRITE
        expected = known[1] if known else None
        call = self._begin(Operation(self.name, name, kind, self._now, 0.0, value, expected))
        try:
            putting = bucket.put(name, body, if_absent=absent, if_match=known[0] if known else None)
            info = await self._user(putting, "put")
        except ConditionFailed:
            self._etags.pop(name, None)
            self._end(call, done=False)
        except BlobError as error:
            self._note(error, call)
        else:
            self._etags[name] = (info.etag, value)
            self._end(call)

    async def _read(self, bucket: AsyncBucket) -> None:
        name = f"cow{self._rng.randrange(NAMES)}"
        call = self._begin(Operation(self.name, name, Kind.READ, self._now, 0.0, None))
        try:
            if self._rng.random() < 0.3:
                body = b"".join([piece async for piece in bucket.stream(name)])
            else:
                body = await self._user(bucket.get(name), "get")
        except NoSuchObject:
            self._end(call)
        except BlobError as error:
            self._oracle.forget(call)
            self._note(error)
        else:
            self._end(call, value=self._oracle.on_body(name, body, self._now))

    async def _delete(self, bucket: AsyncBucket) -> None:
        name = f"cow{self._rng.randrange(NAMES)}"
        call = self._begin(Operation(self.name, name, Kind.WRITE, self._now, 0.0, None))
        try:
            await self._user(bucket.delete(name), "delete")
        except BlobError as error:
            self._note(error, call)
        else:
            self._end(call)

    async def _put_in_parts(self, bucket: AsyncBucket) -> None:
        name = f"cow{self._rng.randrange(NAMES)}"
        put, length = self._oracle.next_number(), self._rng.choice(self._load.lengths)
        body, value = body_of(put, length), str(put)
        self._oracle.put_under[put] = name
        call: int | None = None
        try:
            upload = await self._user(bucket.create_upload(name), "create upload")
            middle = len(body) // 2
            await self._user(bucket.put_part(upload, 1, body[:middle]), "put part")
            await self._user(bucket.put_part(upload, 2, body[middle:]), "put part")
            if self._rng.random() < 0.2:
                return
            call = self._begin(Operation(self.name, name, Kind.WRITE, self._now, 0.0, value))
            await self._user(bucket.complete_upload(upload), "complete upload")
        except BlobError as error:
            self._note(error, call)
        else:
            self._end(call)

    async def _put_slowly(self, bucket: AsyncBucket) -> None:
        """Write piece by piece, with pauses that are longer than anything a round waits for."""
        name = f"cow{self._rng.randrange(NAMES)}"
        put, length = self._oracle.next_number(), 3 * self._rng.choice(self._load.lengths)
        body, value = body_of(put, length), str(put)
        self._oracle.put_under[put] = name
        call = self._begin(Operation(self.name, name, Kind.WRITE, self._now, 0.0, value))
        upload = bucket.upload(name)
        try:
            for start in range(0, len(body), 1 + len(body) // 3):
                piece = body[start : start + 1 + len(body) // 3]
                await self._user(upload.write(piece), "write")
                await asyncio.sleep(self._rng.choice((0.0, 0.1, *self._load.sleeps_s[:2])))
            await self._user(upload.finish(), "finish")
        except CallCancelled:
            await upload.abort()
            raise
        except BlobError as error:
            self._note(error, call)
            await upload.abort()
        else:
            self._end(call)

    async def _join(self, bucket: AsyncBucket) -> None:
        """Make one object of two, without copying a byte."""
        name = self._workload.next_copy()
        sources = [f"{name}/{number}" for number in range(2)]
        puts = [self._oracle.next_number() for _ in sources]
        try:
            for source, put in zip(sources, puts, strict=True):
                await bucket.put(source, body_of(put, self._rng.choice(self._load.lengths)))
            await self._user(bucket.concat(name, sources), "concat")
            if numbers_in(await bucket.get(name)) != puts:
                raise Violation(f"{name} is not what was joined")
            if self._rng.random() < 0.7:
                await self._user(bucket.delete(name), "delete")
        except BlobError as error:
            self._note(error)

    # What is appended, copied or kept by its id

    async def _append(self, bucket: AsyncBucket) -> None:
        name = f"log{self._rng.randrange(LOGS)}"
        known = self._oracle.appended.setdefault(name, Appended())
        number = self._oracle.next_number()
        known.begun.append(number)
        known.by_client.setdefault(self.name, []).append(number)
        try:
            await self._user(bucket.append(name, token_of(number)), "append")
        except BlobError as error:
            self._note(error)
        else:
            known.done.append(number)

    async def _read_log(self, bucket: AsyncBucket) -> None:
        name = f"log{self._rng.randrange(LOGS)}"
        try:
            body = await bucket.get(name)
        except BlobError as error:
            self._note(error)
        else:
            self._oracle.on_tokens(name, body, whole=False)

    async def _copy(self, bucket: AsyncBucket) -> None:
        """A copy shares its bytes with the original, whatever becomes of that."""
        source, target = f"cow{self._rng.randrange(NAMES)}", self._workload.next_copy()
        try:
            await self._user(bucket.copy(source, target), "copy")
            number_of(await bucket.get(target))
            if self._rng.random() < 0.5:
                await self._user(bucket.rename(target, f"{target}/again"), "rename")
            elif self._rng.random() < 0.5:
                await self._user(bucket.delete(target), "delete")
        except BlobError as error:
            self._note(error)

    async def _keep(self, bucket: AsyncBucket) -> None:
        put, length = self._oracle.next_number(), self._rng.choice(self._load.lengths)
        body = body_of(put, length)
        try:
            if self._rng.random() < 0.5:
                stored = await self._user(self._node.blobs.put(body), "put")
            else:
                stored = await self._user(bucket.put_unnamed(body), "put unnamed")
                self._kept.append(str(stored))
        except BlobError as error:
            self._note(error)
        else:
            self._oracle.kept_ids[str(stored)] = put

    async def _read_kept(self, bucket: AsyncBucket) -> None:
        if not self._kept:
            return
        kept = self._rng.choice(self._kept)
        try:
            body = await bucket.core.blobs.get(kept)
            if number_of(body) != self._oracle.kept_ids[kept]:
                raise Violation(f"{kept} holds what another id does")
            if self._rng.random() < 0.3:
                self._kept.remove(kept)
                del self._oracle.kept_ids[kept]
                await self._user(bucket.delete_unnamed(kept), "delete unnamed")
        except BlobNotFound as error:
            raise Violation(f"{kept} was taken though it was kept: {error}") from error
        except BlobError as error:
            self._note(error)

    # Other buckets

    async def _mortal(self, bucket: AsyncBucket) -> None:
        name = f"calf{self._rng.randrange(NAMES)}"
        try:
            if self._rng.random() < 0.6:
                put = self._oracle.next_number()
                body = body_of(put, self._rng.choice(self._load.lengths))
                self._oracle.put_under[put] = name
                await self._user(bucket.put(name, body), "put")
            else:
                self._oracle.on_body(name, await bucket.get(name), self._now)
        except BlobError as error:
            self._note(error)

    async def _doomed(self, bucket: AsyncBucket) -> None:
        """Put into a bucket that somebody deletes, by force or when it is empty."""
        disturbed = self._world.disturbances.on
        try:
            name = f"drop{self._rng.randrange(NAMES)}"
            if self._rng.random() < (0.8 if disturbed else 0.5):
                await self._put_doomed(bucket, name)
            else:
                await self._workload.deleting(bucket.delete(name))
            if self._rng.random() < 0.1:
                force = self._rng.random() < 0.5
                deletion = self._node.blobs.delete_bucket(DOOMED, force=force)
                await self._workload.deleting(self._user(deletion, "delete bucket"))
                self._world.trace.event("deleted bucket", self._node.name)
                self._workload.doomed_deleted = True
                if disturbed and self._rng.random() < 0.5:
                    # Handles of the old one are still about.
                    await self._node.blobs.create_bucket(DOOMED, SETTINGS, exist_ok=True)
        except BucketNotEmpty:
            return
        except BlobError as error:
            self._note(error)

    async def _put_doomed(self, bucket: AsyncBucket, name: str) -> None:
        """What was acknowledged everybody finds, unless somebody deletes meanwhile."""
        workload = self._workload
        began, quiet = workload.deletions, not workload.deletions_under_way
        await self._user(bucket.put(name, b"milk"), "put")
        acknowledged = self._now
        try:
            found = await self._node.blobs.bucket(DOOMED)
            await found.get(name)
        except (NoSuchBucket, NoSuchObject) as error:
            if quiet and workload.deletions == began:
                raise Violation(
                    f"{self.name} put {name} into {DOOMED}, acknowledged at {acknowledged:.3f}, "
                    f"and nobody has deleted since: {error!r}"
                ) from error

    # What is told

    async def _user(self, call: Coroutine[Any, Any, R], what: str) -> R:
        """Await a call that its user may cancel. Raises `CallCancelled`: it may have happened."""
        return await self._world.disturbances.cancellable(call, what)

    @property
    def _now(self) -> float:
        return self._world.loop.now

    def _begin(self, call: Operation) -> int:
        return self._oracle.begin(call)

    def _end(self, call: int | None, **known: object) -> None:
        assert call is not None
        self._oracle.end(call, self._now, **known)
        self._world.trace.event("call", self._oracle.calls[call])

    def _note(self, error: BlobError, call: int | None = None) -> None:
        """A call failed; unless it is known to have done nothing it may have happened."""
        self._failures += 1
        self._world.trace.event("failed", self.name, type(error).__name__)
        nothing = isinstance(error, BlobNotStored | NoSuchBucket | MetadataUnavailable)
        if call is not None and nothing and not isinstance(error, CommitOutcomeUnknown):
            self._oracle.forget(call)
        allowed = (
            *(NoSuchBucket, NoSuchObject, NoSuchUpload),
            *(BlobNotStored, BlobUnreadable, MetadataUnavailable, ObjectChanged, ConditionFailed),
        )
        # What has a name is there, and as it was put: nothing but its row may say that it is gone.
        if isinstance(error, BlobCorrupt) or not isinstance(error, allowed):
            raise Violation(f"{self.name} is told {error!r}") from error
