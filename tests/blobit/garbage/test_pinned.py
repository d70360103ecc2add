"""What a pinned checkpoint names stays readable, and nothing else does for its sake."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

import engine
from blobit import AsyncBlobs, AsyncBucket, BlobNotFound, GarbageReport
from blobit.garbage_settings import GarbageSettings
from blobit.pinned import PinnedCheckpoints
from engine.errors import MetadataUnavailable
from engine.expiry import CLOCK_DIFFERENCE_MS
from engine.ledger.client import LedgerClient
from engine.ports.system_workers import ThreadWorkers
from herd.checkpoint.record import CheckpointList
from herd.store import AsyncHerd
from tests.blobit.contract.stores import SMALL
from tests.blobit.garbage.grounds import BUCKET, HOUR_MS, StillClock
from tests.herd.checkpoint.built_here import in_this_process

SETTINGS = replace(SMALL, garbage=GarbageSettings(grace_ms=0, settle_ms=0, live_share_min=0.9))


class Barn(NamedTuple):
    client: LedgerClient
    herd: AsyncHerd
    blobs: AsyncBlobs
    bucket: AsyncBucket
    clock: StillClock

    async def sealed(self, **objects: bytes) -> None:
        """Put objects as a process does that ends afterwards: its ledgers are sealed."""
        async with AsyncBlobs(self.client, SETTINGS, self.herd.workers, self.herd) as other:
            await (await other.bucket(BUCKET)).put_many(objects.items())

    async def pin(self, name: str) -> None:
        """Take a checkpoint, and keep it for an hour."""
        space = await self.herd.tablespace("blobs")
        assert space.checkpointer is not None
        space.checkpointer.build = in_this_process
        await space.checkpoint()
        await self.pins.pin(name, None, HOUR_MS)

    @property
    def pins(self) -> CheckpointList:
        return CheckpointList(self.client.store, "blobs", self.client.time)

    async def collect(self, *, dry_run: bool = False) -> GarbageReport:
        return await self.blobs.collect(BUCKET, dry_run=dry_run)


@asynccontextmanager
async def barns(folder: Path) -> AsyncIterator[Barn]:
    """A folder with one bucket, whose clock stands still."""
    async with engine.open(folder) as client:
        clock = client.clock = client.time.clock = StillClock()
        workers = ThreadWorkers(asyncio.get_running_loop())
        herd = AsyncHerd(client, folder, workers)
        try:
            async with AsyncBlobs(client, SETTINGS, workers, herd) as blobs:
                yield Barn(client, herd, blobs, await blobs.create_bucket(BUCKET), clock)
        finally:
            await herd.close()
            await workers.close()


async def test_what_a_pinned_checkpoint_names_is_readable_until_the_pin_ends(
    tmp_path: Path,
) -> None:
    async with barns(tmp_path) as barn:
        await barn.sealed(elsa=b"moo")
        object_id = (await barn.bucket.stat("elsa")).object_id
        await barn.pin("reader")
        await barn.bucket.delete("elsa")
        for _ in range(2):
            [told] = (await barn.collect()).buckets
            assert (told.deleted_ledgers, told.waiting_ledgers, told.pinned_bytes) == (0, 1, 3)
            [pin] = told.pins
            assert (pin.pin, pin.checkpoint, pin.ledgers, pin.bytes) == ("reader", 1, 1, 3)
            assert await barn.blobs.get(object_id) == b"moo"
        barn.clock.pass_ms(HOUR_MS + CLOCK_DIFFERENCE_MS - 1)
        [told] = (await barn.collect()).buckets
        assert (told.deleted_ledgers, told.pinned_ledgers) == (0, 1), "who pinned may be behind"
        barn.clock.pass_ms(1)
        [told] = (await barn.collect()).buckets
        assert (told.deleted_ledgers, told.pins, told.pinned_ledgers) == (1, [], 0)
        async with AsyncBlobs(barn.client) as other:
            with pytest.raises(BlobNotFound):
                await other.get(object_id)


async def test_what_came_after_a_checkpoint_is_not_held_by_its_pin(tmp_path: Path) -> None:
    async with barns(tmp_path) as barn:
        await barn.sealed(elsa=b"moo")
        await barn.pin("reader")
        await barn.sealed(clara=b"meh")
        await barn.bucket.delete_many(["elsa", "clara"])
        [told] = (await barn.collect()).buckets
        assert (told.dead_ledgers, told.deleted_ledgers, told.pinned_ledgers) == (2, 1, 1)


async def test_compaction_leaves_what_it_emptied_to_who_has_a_pin(tmp_path: Path) -> None:
    async with barns(tmp_path) as barn:
        await barn.sealed(alma=b"muh", berta=b"mah")
        object_id = (await barn.bucket.stat("berta")).object_id
        await barn.pin("reader")
        await barn.bucket.delete("alma")
        [told] = (await barn.collect()).buckets
        assert (told.moved_objects, told.pinned_ledgers) == (1, 1)
        assert (await barn.bucket.stat("berta")).object_id != object_id
        assert await barn.blobs.get(object_id) == b"mah"


async def test_a_dry_run_counts_what_pins_hold_as_a_round_does(tmp_path: Path) -> None:
    async with barns(tmp_path) as barn:
        await barn.sealed(elsa=b"moo")
        await barn.pin("reader")
        await barn.bucket.delete("elsa")
        await barn.collect()
        [dry] = (await barn.collect(dry_run=True)).buckets
        [told] = (await barn.collect()).buckets
        assert (dry.pins, dry.deleted_ledgers, dry.waiting_ledgers) == (told.pins, 0, 1)


async def test_an_operator_removes_a_pin_and_the_next_round_deletes(tmp_path: Path) -> None:
    async with barns(tmp_path) as barn:
        await barn.sealed(elsa=b"moo")
        await barn.pin("reader")
        await barn.bucket.delete("elsa")
        assert (await barn.collect()).total("deleted_ledgers") == 0
        assert await barn.blobs.unpin("nobody") == 0
        assert await barn.blobs.unpin("reader") == 1
        assert (await barn.collect()).total("deleted_ledgers") == 1


async def test_a_deleted_bucket_is_forgotten_only_when_no_pin_needs_its_bytes(
    tmp_path: Path,
) -> None:
    async with barns(tmp_path) as barn:
        await barn.sealed(elsa=b"moo")
        object_id = (await barn.bucket.stat("elsa")).object_id
        await barn.pin("reader")
        await barn.blobs.delete_bucket(BUCKET, force=True)
        report = await barn.blobs.collect()
        assert report.cleaned_buckets == [] and report.total("pinned_ledgers") == 1
        async with AsyncBlobs(barn.client) as other:
            assert await other.get(object_id) == b"moo"
        await barn.pins.unpin("reader")
        assert (await barn.blobs.collect()).cleaned_buckets == [BUCKET]


async def test_a_checkpoint_that_cannot_be_read_is_taken_to_name_everything(
    tmp_path: Path,
) -> None:
    async with barns(tmp_path) as barn:
        await barn.sealed(elsa=b"moo")
        await barn.pin("reader")
        await barn.bucket.delete("elsa")
        [record] = (await barn.pins.get()).kept
        await barn.client.delete_ledger(record.locator.ledger_id)
        assert (await barn.collect()).total("pinned_ledgers") == 1


async def test_nothing_is_deleted_while_nobody_can_tell_what_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(self: PinnedCheckpoints, tablespace: str, ledger_ids: object) -> None:
        raise MetadataUnavailable("nobody answers: try again later")

    async with barns(tmp_path) as barn:
        await barn.sealed(elsa=b"moo")
        await barn.bucket.delete("elsa")
        with monkeypatch.context() as patched:
            patched.setattr(PinnedCheckpoints, "holding", away)
            [told] = (await barn.collect()).buckets
            assert (told.deleted_ledgers, told.waiting_ledgers) == (0, 1)
        assert (await barn.collect()).total("deleted_ledgers") == 1
