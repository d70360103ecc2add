"""Owners killed with `kill -9` while they append: nothing acknowledged is ever lost."""

import asyncio
import os
import random
from pathlib import Path

import engine
from tests.engine.cluster.processes import body_of, started

ROUNDS = int(os.environ.get("HERDBOOK_KILLS", "20"))


async def test_twenty_kills_in_the_middle_of_appends_lose_no_acknowledged_entry(
    tmp_path: Path,
) -> None:
    rng = random.Random(20)
    folder = tmp_path / "herd"
    acknowledged: dict[int, int] = {}
    for _ in range(ROUNDS):
        async with started("append", folder) as owner:
            assert await owner.line("open") == "True"
            ledger_id = int(await owner.line("ledger"))
            last = -1
            for _ in range(rng.randrange(20, 400)):
                last = max(last, int(await owner.line("acknowledged")))
            owner.process.kill()
            while heard := await owner.line("acknowledged"):
                last = max(last, int(heard))
            acknowledged[ledger_id] = last
    async with engine.open(folder) as client:
        assert await client.list_ledgers() == sorted(acknowledged)
        for ledger_id, last in acknowledged.items():
            await _check(client, ledger_id, last)
    assert len(acknowledged) == ROUNDS


async def test_when_the_owner_is_killed_the_other_opener_owns_and_appends_on(
    tmp_path: Path,
) -> None:
    async with started("append", tmp_path) as owner:
        theirs = int(await owner.line("ledger"))
        async with engine.open(tmp_path) as client:
            assert not _owns(client)
            writer = await client.create_ledger()
            mine = writer.ledger_id
            for entry_id in range(20):
                await writer.append(body_of(mine, entry_id))
            pending = [writer.append(body_of(mine, entry_id)) for entry_id in range(20, 200)]
            await asyncio.sleep(0)
            owner.process.kill()
            last = -1
            while heard := await owner.line("acknowledged"):
                last = max(last, int(heard))
            assert await asyncio.gather(*pending) == list(range(20, 200))
            assert _owns(client)
            assert await writer.append(body_of(mine, 200)) == 200
            await _check(client, theirs, last)
            await _check(client, mine, 200)
            assert await writer.close() == 200


async def test_a_killed_opener_harms_neither_the_owner_nor_its_own_entries(
    tmp_path: Path,
) -> None:
    async with engine.open(tmp_path) as client:
        writer = await client.create_ledger()
        async with started("append", tmp_path) as other:
            assert await other.line("open") == "False"
            theirs = int(await other.line("ledger"))
            last = -1
            for _ in range(100):
                last = max(last, int(await other.line("acknowledged")))
            other.process.kill()
            while heard := await other.line("acknowledged"):
                last = max(last, int(heard))
        await _check(client, theirs, last)
        assert await writer.append(b"moo") == 0


async def test_a_reader_goes_on_when_the_owner_is_killed(tmp_path: Path) -> None:
    async with started("hold", tmp_path) as owner:
        await owner.line("open")
        async with engine.open(tmp_path) as client:
            writer = await client.create_ledger()
            bodies = [body_of(writer.ledger_id, entry_id) for entry_id in range(2_000)]
            await writer.append_many(bodies)
            await writer.close()
            reader = await client.open_ledger(writer.ledger_id)
            got: list[bytes] = []
            async for entry in reader.read(0, reader.last_add_confirmed):
                if len(got) == 10:
                    owner.process.kill()
                got.append(entry.body)
            assert got == bodies
            # Nothing read so far needed the new owner; this does.
            assert (await client.open_ledger(writer.ledger_id)).last_add_confirmed == 1_999
            again = [entry.body async for entry in reader.read(0, 5)]
            assert again == bodies[:6]


def _owns(client: engine.Engine) -> bool:
    return client.owner


async def _check(client: engine.Engine, ledger_id: int, last: int) -> None:
    """Every entry up to `last` is there as it was written, and so is whatever follows."""
    reader = await client.open_ledger(ledger_id)
    assert reader.last_add_confirmed >= last
    expected = 0
    async for entry in reader.read(0, reader.last_add_confirmed):
        assert entry.entry_id == expected
        assert entry.body == body_of(ledger_id, expected)
        expected += 1
    assert expected == reader.last_add_confirmed + 1
