"""Several openers of one folder, in one process and in many."""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import engine
from engine.errors import (
    BookieUnavailable,
    EngineError,
    FolderError,
    InvalidRequest,
    LedgerClosed,
    NotEnoughBookies,
)
from engine.ports.switching import SWITCH_INTERVAL_S
from tests.engine.cluster.processes import started


async def bodies(client: engine.Engine, ledger_id: int) -> list[bytes]:
    """All entries of a ledger, closed by this."""
    reader = await client.open_ledger(ledger_id)
    return [entry.body async for entry in reader.read(0, reader.last_add_confirmed)]


async def filled(client: engine.Engine, *entries: bytes) -> int:
    """A closed ledger with the given entries."""
    writer = await client.create_ledger()
    if entries:
        await writer.append_many(list(entries))
    await writer.close()
    return writer.ledger_id


async def test_a_tail_does_not_outlive_the_opener_of_its_folder(tmp_path: Path) -> None:
    async with engine.open(tmp_path) as client:
        writer = await client.create_ledger()
        await writer.append(b"moo")
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        tail = reader.tail()
        assert (await anext(tail)).body == b"moo"
        waiting = asyncio.ensure_future(anext(tail))
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        with pytest.raises(InvalidRequest, match="was closed: open it again"):
            await waiting


async def test_two_processes_append_and_read_and_neither_harms_the_other(tmp_path: Path) -> None:
    async with started("append", tmp_path) as other:
        theirs = int(await other.line("ledger"))
        async with engine.open(tmp_path) as client:
            writer = await client.create_ledger()
            for entry_id in range(50):
                assert await writer.append(b"mine") == entry_id
                assert int(await other.line("acknowledged")) >= 0
            follower = await client.open_ledger(theirs, recover=False)
            heard = int(await other.line("acknowledged"))
            async for entry in follower.tail(from_entry=0):
                assert entry.body.startswith(f"{theirs}:{entry.entry_id} ".encode())
                if entry.entry_id >= heard:
                    break
            await follower.close()
            await writer.close()
            assert await bodies(client, writer.ledger_id) == [b"mine"] * 50
            assert int(await other.line("acknowledged")) >= 0


async def test_a_folder_keeps_what_was_written_from_one_opening_to_the_next(
    tmp_path: Path,
) -> None:
    async with engine.open(tmp_path / "new" / "herd") as client:
        assert client.owner and len(client.bookies) == 1
        ledger_id = await filled(client, b"moo", b"", b"baa")
        names = client.bookies
    async with engine.open(tmp_path / "new" / "herd") as client:
        assert client.owner and client.bookies == names
        assert await client.list_ledgers() == [ledger_id]
        assert await bodies(client, ledger_id) == [b"moo", b"", b"baa"]


async def test_of_many_openers_one_owns_and_the_next_one_follows_it(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        stacks = [await stack.enter_async_context(AsyncExitStack()) for _ in range(4)]
        clients = await asyncio.gather(
            *(each.enter_async_context(engine.open(tmp_path)) for each in stacks)
        )
        written: list[int] = []
        for left in range(len(clients), 0, -1):
            assert [client.owner for client in clients].count(True) == 1
            for client in clients:
                written.append(await filled(client, b"moo"))
            for client in clients:
                assert await client.list_ledgers() == written
                assert await bodies(client, written[0]) == [b"moo"]
            ending = next(index for index in range(left) if clients[index].owner)
            del clients[ending]
            await stacks.pop(ending).aclose()
            for client in clients:
                await client.list_ledgers()


async def test_a_writer_survives_the_orderly_end_of_the_owner(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(engine.open(tmp_path))
        async with engine.open(tmp_path) as client:
            writer = await client.create_ledger()
            await writer.append(b"before")
            pending = [writer.append(b"during") for _ in range(100)]
            await stack.aclose()
            assert await asyncio.gather(*pending) == list(range(1, 101))
            assert await writer.append(b"after") == 101
            assert client.owner
            await writer.close()
            assert await bodies(client, writer.ledger_id) == [
                b"before",
                *[b"during"] * 100,
                b"after",
            ]


async def test_a_follower_goes_on_with_the_next_owner(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(engine.open(tmp_path))
        async with engine.open(tmp_path) as writing, engine.open(tmp_path) as reading:
            writer = await writing.create_ledger()
            await writer.append(b"0")
            follower = await reading.open_ledger(writer.ledger_id, recover=False)
            tail = follower.tail(from_entry=0)
            assert (await anext(tail)).body == b"0"
            await stack.aclose()
            await writer.append(b"1")
            assert (await anext(tail)).body == b"1"
            await follower.close()


async def test_one_of_three_bookies_is_lost_and_nobody_notices(tmp_path: Path) -> None:
    async with engine.open(tmp_path, bookies=3) as client, engine.open(tmp_path) as other:
        assert len(set(client.bookies)) == 3 and other.bookies == client.bookies
        for stopping, writing in ((client, other), (other, client)):
            writer = await writing.create_ledger()
            await writer.append(b"all")
            await stopping.stop_bookie(1)
            await writer.append(b"two")
            await stopping.stop_bookie(1)
            await writer.close()
            assert await bodies(other, writer.ledger_id) == [b"all", b"two"]
            await stopping.start_bookie(1)
            await stopping.start_bookie(1)
            assert (await writing.ledger_metadata(writer.ledger_id)).degraded
            assert writer.ledger_id in await other.repairs()


async def test_two_of_three_bookies_lost_are_too_many(tmp_path: Path) -> None:
    async with engine.open(tmp_path, bookies=3) as client:
        await client.stop_bookie(0)
        await client.stop_bookie(2)
        with pytest.raises(NotEnoughBookies):
            await client.create_ledger()
        for index in (-1, 3):
            with pytest.raises(InvalidRequest, match="only 0 to 2"):
                await client.stop_bookie(index)


async def test_a_folder_keeps_its_bookies_and_may_be_given_more(tmp_path: Path) -> None:
    async with engine.open(tmp_path, bookies=2) as client:
        assert client.settings.ack_quorum == client.settings.write_quorum == 2
        two = client.bookies
    async with engine.open(tmp_path) as client:
        assert client.bookies == two
    async with engine.open(tmp_path, bookies=3) as client:
        assert client.bookies[:2] == two and len(client.bookies) == 3
        assert (client.settings.ensemble, client.settings.ack_quorum) == (3, 2)


async def test_an_engine_in_a_process_of_its_own_serves_and_ends_with_this_one(
    tmp_path: Path,
) -> None:
    async with engine.open(tmp_path, bookies=2, process=True) as client:
        assert not client.owner and len(client.bookies) == 2
        ledger_id = await filled(client, b"moo")
        assert await bodies(client, ledger_id) == [b"moo"]
    async with engine.open(tmp_path) as client:
        assert client.owner
        assert await bodies(client, ledger_id) == [b"moo"]


async def test_a_killed_engine_process_is_started_anew_and_loses_nothing(tmp_path: Path) -> None:
    async with engine.open(tmp_path, process=True) as client:
        writer = await client.create_ledger()
        for entry in (b"before", b"after"):
            await writer.append(entry)
            os.kill(json.loads((tmp_path / "lock").read_text())["process"], 9)
        await writer.append(b"again")
        assert not client.owner
        await writer.close()
        assert await bodies(client, writer.ledger_id) == [b"before", b"after", b"again"]


async def test_a_forked_child_cannot_use_the_folder_nor_keep_it_locked(tmp_path: Path) -> None:
    async with started("fork", tmp_path) as parent:
        ledger_id = int(await parent.line("ledger"))
        child = 0
        heard = ""
        while not (child and heard):
            assert parent.process.stdout is not None
            word, _, rest = (await parent.process.stdout.readline()).decode().partition(" ")
            child = int(rest) if word == "child" else child
            heard = rest.strip() if word == "heard" else heard
        try:
            assert heard == "InvalidRequest LedgerClosed"
            parent.process.kill()
            await parent.process.wait()
            os.kill(child, 0)
            async with engine.open(tmp_path) as client:
                assert client.owner
                assert await bodies(client, ledger_id) == [b"moo"]
        finally:
            os.kill(child, 9)


async def test_a_closed_folder_says_so(tmp_path: Path) -> None:
    async with engine.open(tmp_path) as client:
        writer = await client.create_ledger()
        await writer.append(b"moo")
    with pytest.raises(LedgerClosed):
        await writer.append(b"baa")
    with pytest.raises(EngineError, match="closed"):
        await client.list_ledgers()
    with pytest.raises((FolderError, BookieUnavailable), match="closed"):
        await client.stop_bookie(0)


async def test_threads_take_turns_quickly_while_a_folder_is_open_and_only_then(
    tmp_path: Path,
) -> None:
    before = sys.getswitchinterval()
    async with engine.open(tmp_path / "a"):
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
        async with engine.open(tmp_path / "b", switch_interval_s=0.01):
            assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() == pytest.approx(before)
    async with engine.open(tmp_path / "c", switch_interval_s=None):
        assert sys.getswitchinterval() == pytest.approx(before)
