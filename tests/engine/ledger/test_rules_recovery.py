"""Rules of recovery that no other test would miss if they were gone."""

import asyncio
import random

import msgspec
import pytest

from engine.errors import RecoveryIncomplete
from engine.ledger.client import LedgerClient
from engine.ledger.writer import LedgerWriter
from engine.metadata.ledgers import Fragment, LedgerMetadata, Ledgers, State
from engine.metadata.memory import FaultyStore
from engine.transport.contract import LacReply, ReadReply, ReadRequest, Status
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


async def announce_recovery(client: LedgerClient, ledger_id: int) -> None:
    """Do what another recoverer does first, and no more."""

    def change(current: LedgerMetadata) -> LedgerMetadata:
        return msgspec.structs.replace(current, state=State.IN_RECOVERY)

    await client._ledgers.update(await client._ledgers.read(ledger_id), change)


async def test_a_recovery_announces_itself_before_it_asks_any_bookie() -> None:
    """The old writer's next ensemble change must meet IN_RECOVERY, or it writes on elsewhere."""
    cluster = await Cluster.of(3)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2)
    await writer.append(b"zero")
    for bookie in ensemble(cluster, writer):
        bookie.fence_status = Status.UNKNOWN
    with pytest.raises(RecoveryIncomplete):
        await cluster.client().open_ledger(writer.ledger_id)
    assert (await client.ledger_metadata(writer.ledger_id)).state is State.IN_RECOVERY


async def test_a_close_that_meets_a_recovery_ends_where_the_recovery_does() -> None:
    cluster = await Cluster.of(3)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2)
    await writer.append(b"zero")
    future = await append_to_one(cluster, writer, b"one", 1)
    await announce_recovery(client, writer.ledger_id)
    assert writer.last_add_confirmed == 0
    assert await writer.close() == 1
    assert isinstance(await asyncio.gather(future, return_exceptions=True), list)


async def test_a_recoverys_own_ensemble_is_published_only_with_the_close() -> None:
    """A retry that read bookies added meanwhile would take their negatives for the end."""
    cluster = await Cluster.of(4)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 3)
    await writer.append(b"zero")
    future = await append_to_one(cluster, writer, b"one", 0)
    frozen = ensemble(cluster, writer)
    spare = next(bookie for bookie in cluster.bookies if bookie not in frozen)
    frozen[2].append_status = Status.UNAVAILABLE
    spare.holding = True
    opening = asyncio.ensure_future(cluster.client().open_ledger(writer.ledger_id))
    await turns(200)
    assert spare.held
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert metadata.state is State.IN_RECOVERY and len(metadata.fragments) == 1
    spare.holding = False
    spare.release()
    reader = await opening
    assert spare.bookie_id in reader.metadata.fragments[-1].ensemble
    future.cancel()


async def test_a_recoverer_that_found_more_adopts_the_end_written_first() -> None:
    cluster = await Cluster.of(3)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2)
    await writer.append(b"zero")
    future = await append_to_one(cluster, writer, b"one", 1)
    store = FaultyStore(cluster.tree.session())

    async def let_pass() -> None:
        return None

    async def close_first() -> None:
        held = await client._ledgers.read(writer.ledger_id)
        await client._ledgers.update(held, _closed_at_zero)

    store.before_write(let_pass)
    store.before_write(close_first)
    reader = await cluster.client(store=store).open_ledger(writer.ledger_id)
    assert (reader.last_add_confirmed, reader.length) == (0, 4)
    future.cancel()


def _closed_at_zero(current: LedgerMetadata) -> LedgerMetadata:
    return msgspec.structs.replace(current, state=State.CLOSED, last_entry=0, length=4)


async def moved(cluster: Cluster, ledger_id: int) -> Fragment:
    """Do what repair does to a first fragment that names a lost bookie; what it is then."""
    ledgers = Ledgers(cluster.tree.session(), random.Random(3))
    held = await ledgers.read(ledger_id)
    old = held.metadata.fragments[0]
    spare = next(one for one in cluster.transport.bookies if one not in held.metadata.bookies())
    new = Fragment(old.first, (spare, *old.ensemble[1:]))
    fragments = (new, *held.metadata.fragments[1:])
    await ledgers.update(held, lambda now: msgspec.structs.replace(now, fragments=fragments))
    return new


async def test_recovery_keeps_what_repair_did_to_older_fragments_meanwhile() -> None:
    cluster = await Cluster.of(6)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"zero")
    lost = ensemble(cluster, writer)[0]
    lost.down = True
    writer._replication.suspect(frozenset([lost.bookie_id]))
    await writer.append(b"one")
    await turns(100)
    assert len(writer.metadata.fragments) == 2
    gate = asyncio.Event()
    for bookie in ensemble(cluster, writer):
        _hold_fences(bookie, gate)
    opening = asyncio.ensure_future(cluster.client().open_ledger(writer.ledger_id))
    await turns(100)
    fragment = await moved(cluster, writer.ledger_id)
    gate.set()
    assert (await opening).last_add_confirmed == 1
    metadata = await cluster.client().ledger_metadata(writer.ledger_id)
    assert metadata.closed and metadata.fragments[0] == fragment
    assert lost.bookie_id not in metadata.bookies()


def _hold_fences(bookie: ScriptedBookie, gate: asyncio.Event) -> None:
    inner = bookie.fence

    async def fence(ledger_id: int, key: bytes) -> LacReply:
        await gate.wait()
        return await inner(ledger_id, key)

    bookie.fence = fence  # type: ignore[method-assign]


async def test_a_writer_keeps_what_repair_did_to_older_fragments_meanwhile() -> None:
    cluster = await Cluster.of(9)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2)
    await writer.append(b"zero")
    repaired: list[Fragment] = []
    for fragments in (2, 3):
        first = ensemble(cluster, writer)[0]
        first.down = True
        writer._replication.suspect(frozenset([first.bookie_id]))
        await writer.append(b"next")
        await turns(100)
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert len(metadata.fragments) == fragments
        assert repaired in ([], [metadata.fragments[0]]), "a change of ensemble undid the repair"
        repaired = [await moved(cluster, writer.ledger_id)]
    await writer.close()
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert metadata.closed and metadata.fragments[0] == repaired[0], "the close undid the repair"
