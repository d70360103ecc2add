"""Rules of recovery that no other test would miss if they were gone."""

import asyncio

import msgspec
import pytest

from engine.errors import RecoveryIncomplete
from engine.ledger.writer import LedgerWriter
from engine.transport.contract import ReadReply, ReadRequest, Status
from tests.engine.ledger.scripted import Cluster, ScriptedBookie, turns


def ensemble(cluster: Cluster, writer: LedgerWriter) -> list[ScriptedBookie]:
    return [cluster.transport.bookies[name] for name in writer.metadata.fragments[-1].ensemble]


async def append_to_one(
    cluster: Cluster, writer: LedgerWriter, body: bytes, index: int
) -> "asyncio.Future[int]":
    """Append an entry that reaches one bookie of the ensemble only."""
    for at, bookie in enumerate(ensemble(cluster, writer)):
        bookie.mute = at != index
    future = asyncio.ensure_future(writer.append(body))
    await turns()
    for bookie in ensemble(cluster, writer):
        bookie.mute = False
    return future


async def test_recovery_writes_back_no_corrupt_copy() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"zero")
    future = await append_to_one(cluster, writer, b"one", 1)
    ensemble(cluster, writer)[1].corrupt(writer.ledger_id, 1)
    ensemble(cluster, writer)[0].mute = True
    with pytest.raises(RecoveryIncomplete):
        await cluster.client().open_ledger(writer.ledger_id)
    holders = [one for one in cluster.bookies if 1 in one.entries[writer.ledger_id]]
    assert holders == [ensemble(cluster, writer)[1]]
    future.cancel()


async def test_recovery_closes_only_when_its_copies_are_on_a_quorum() -> None:
    cluster = await Cluster.of(3)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2)
    await writer.append(b"zero")
    future = await append_to_one(cluster, writer, b"one", 1)
    for index in (0, 2):
        ensemble(cluster, writer)[index].holding = True
    opening = asyncio.ensure_future(cluster.client().open_ledger(writer.ledger_id))
    await turns(100)
    assert not (await client.ledger_metadata(writer.ledger_id)).closed
    for index in (0, 2):
        ensemble(cluster, writer)[index].holding = False
        ensemble(cluster, writer)[index].release()
    assert (await opening).last_add_confirmed == 1
    future.cancel()


async def test_recovery_asks_no_bookie_that_it_added_itself() -> None:
    """A bookie added while recovering lacks everything: its negatives would cut the ledger."""
    cluster = await Cluster.of(5)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"zero")
    future = await append_to_one(cluster, writer, b"one", 1)
    frozen = ensemble(cluster, writer)
    others = [bookie for bookie in cluster.bookies if bookie not in frozen]
    asked: list[str] = []
    for other in others:
        _note_reads(other, asked)
    for index in (0, 2):
        frozen[index].append_status = Status.UNAVAILABLE
    reader = await cluster.client().open_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 1
    assert any(other.entries for other in others)
    assert asked == []
    future.cancel()


def _note_reads(bookie: ScriptedBookie, asked: list[str]) -> None:
    inner = bookie.read

    async def read(request: ReadRequest) -> ReadReply:
        asked.append(bookie.bookie_id)
        return msgspec.structs.replace(await inner(request))

    bookie.read = read  # type: ignore[method-assign]
