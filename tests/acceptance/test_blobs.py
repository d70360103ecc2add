"""Buckets over real nodes and bookies: the leader of their names is killed and moved under puts.

`HERDBOOK_ACCEPTANCE=full` runs the full size, as `make soak` does.
"""

import asyncio
import os
import random
from pathlib import Path
from typing import Final

import engine
from blobit import (
    AsyncBlobs,
    AsyncBucket,
    BlobSettings,
    BucketSettings,
    CommitOutcomeUnknown,
    GarbageSettings,
    MetadataUnavailable,
    NoSuchObject,
)
from tests.acceptance.herd_machines import leader_of
from tests.acceptance.machines import until
from tests.acceptance.test_herd import herds, ids_of

FULL: Final = os.environ.get("HERDBOOK_ACCEPTANCE") == "full"
KILLS: Final = 8 if FULL else 1
WRITERS: Final = 4
NAMES: Final = 20
_BETWEEN: Final = 40
_PAUSE_S: Final = 0.02


class Writer:
    """Puts, appends and deletes names that nobody else has, and remembers what they hold."""

    def __init__(self, bucket: AsyncBucket, number: int) -> None:
        self.done = 0
        self.refused = 0
        self.ending = False
        self._bucket = bucket
        self._number = number
        self._rng = random.Random(number)
        self.held: dict[str, set[bytes | None]] = {}
        """What a name may hold: one thing, or several where an outcome is unknown."""

    async def work(self) -> None:
        """Until it is told to end."""
        while not self.ending:
            name = f"{self._number}/{self._rng.randrange(NAMES)}"
            before = self.held.get(name, {None})
            action = self._rng.choice(("put", "put", "append", "delete"))
            data = self._rng.randbytes(self._rng.choice((0, 10, 5_000)))
            wanted: set[bytes | None] = {None}
            if action == "put":
                wanted = {data}
            elif action == "append":
                wanted = {(held or b"") + data for held in before}
            try:
                await getattr(self._bucket, action)(name, *((data,) if action != "delete" else ()))
            except CommitOutcomeUnknown:
                self.held[name] = before | wanted
                self.refused += 1
            except MetadataUnavailable:
                self.refused += 1
            else:
                self.held[name] = wanted
                self.done += 1
                continue
            await asyncio.sleep(_PAUSE_S)

    async def check(self) -> None:
        """Everything is as it was answered."""
        for name, held in sorted(self.held.items()):
            try:
                found: bytes | None = await self._bucket.get(name)
            except NoSuchObject:
                found = None
            assert found in held, name


async def more(writers: list[Writer]) -> None:
    """Wait until each has done some more."""
    goals = [writer.done + _BETWEEN // WRITERS for writer in writers]

    async def reached() -> bool:
        return all(w.done >= goal for w, goal in zip(writers, goals, strict=True))

    await until("more is written", reached)


async def made(blobs: AsyncBlobs, name: str, settings: BucketSettings) -> AsyncBucket:
    """A bucket, as soon as its names have a leader: machines that begin take their time."""

    async def is_made() -> bool:
        try:
            await blobs.create_bucket(name, settings, exist_ok=True)
        except MetadataUnavailable:
            return False
        return True

    await until("the bucket is made", is_made)
    return await blobs.bucket(name)


async def test_the_leader_of_names_is_killed_and_no_answered_put_is_lost(tmp_path: Path) -> None:
    async with herds(tmp_path) as (nodes, herd, commands, url), engine.connect(url) as client:
        ids = await ids_of(nodes, commands)
        eager = GarbageSettings(grace_ms=0, settle_ms=0)
        async with AsyncBlobs(client, BlobSettings(garbage=eager), herd=herd) as blobs:
            first = nodes[1]
            settings = BucketSettings(leader=ids[first.address])
            bucket = await made(blobs, "cows", settings)
            space = bucket.core.rows.tablespace
            await commands.until_led(space, 30_000, first.address)
            writers = [Writer(bucket, number) for number in range(WRITERS)]
            working = [asyncio.create_task(writer.work()) for writer in writers]
            await more(writers)
            for _ in range(KILLS):
                leader = await leader_of(commands, space, nodes)
                leader.kill()
                await more(writers)
                leader.start()
            for writer in writers:
                writer.ending = True
            await asyncio.gather(*working)
            for writer in writers:
                await writer.check()
            await refs_are_right(bucket)
            await blobs.delete_bucket("cows", force=True)
            assert await blobs.buckets() == []
            report = await blobs.collect()
            assert report.cleaned_buckets == ["cows"]
            assert space not in await herd.names()
            again = await blobs.create_bucket("cows")
            await again.put("cow", b"moo")
            assert await again.get("cow") == b"moo"


async def refs_are_right(bucket: AsyncBucket) -> None:
    """Every object is held, and nothing else is."""
    owners = {row["owner"] async for row in bucket.core.rows.scan("refs")}
    named = {f"n:{info.name}" async for info in bucket.scan() if info.length}
    assert owners == named
