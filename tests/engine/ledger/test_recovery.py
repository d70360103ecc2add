"""Taking a ledger over: fencing, finding the end, writing back, closing, with the known traps."""

import asyncio
from dataclasses import replace as with_settings

import msgspec
import pytest

from engine.errors import LedgerFenced, OutcomeUnknown, RecoveryIncomplete, Unauthorized
from engine.ledger.client import LedgerClient
from engine.ledger.reader import LedgerReader
from engine.ledger.writer import LedgerWriter
from engine.metadata.ledgers import LedgerMetadata, State
from engine.metadata.memory import FaultyStore
from engine.run import NO_ENTRY
from engine.transport.contract import Status
from tests.engine.ledger.scripted import QUICK, Cluster, ScriptedBookie, turns


async def bodies(client: LedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open_ledger(ledger_id)
    return [entry.body async for entry in reader.read(0, reader.last_add_confirmed)]


def ensemble(cluster: Cluster, writer: LedgerWriter) -> list[ScriptedBookie]:
    return [cluster.transport.bookies[name] for name in writer.metadata.fragments[-1].ensemble]


async def append_to(
    cluster: Cluster, writer: LedgerWriter, body: bytes, indexes: tuple[int, ...]
) -> "asyncio.Future[int]":
    """Append an entry that reaches only some of the ensemble."""
    for index, bookie in enumerate(ensemble(cluster, writer)):
        bookie.mute = index not in indexes
    future = asyncio.ensure_future(writer.append(body))
    await turns()
    for bookie in ensemble(cluster, writer):
        bookie.mute = False
    return future


async def test_recovery_finds_every_acknowledged_entry_and_closes_the_ledger() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    for number in range(10):
        await writer.append(b"%d" % number)
    client = cluster.client()
    assert await bodies(client, writer.ledger_id) == [b"%d" % number for number in range(10)]
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert (metadata.state, metadata.last_entry, metadata.length) == (State.CLOSED, 9, 10)


async def test_a_fenced_writer_acknowledges_nothing_past_the_closed_end() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"before")
    reader = await cluster.client().open_ledger(writer.ledger_id)
    with pytest.raises(LedgerFenced):
        await writer.append(b"after")
    assert reader.last_add_confirmed == 0
    assert await writer.close() == 0


async def test_an_entry_on_one_bookie_only_is_written_back_to_a_quorum() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"zero")
    future = await append_to(cluster, writer, b"one", (1,))
    reader = await cluster.client().open_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 1
    holders = [b for b in cluster.bookies if 1 in b.entries[writer.ledger_id]]
    assert len(holders) >= 2
    future.cancel()


async def test_recovery_ends_with_enough_negatives_though_one_bookie_hangs() -> None:
    """BookKeeper issue 1067: waiting for every bookie lets one hung bookie block fencing."""
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"zero")
    await turns()
    hung = asyncio.Event()

    async def never(*_: object) -> None:
        await hung.wait()

    ensemble(cluster, writer)[0].read = never  # type: ignore[method-assign,assignment]
    ensemble(cluster, writer)[0].fence = never  # type: ignore[method-assign,assignment]
    reader = await cluster.client().open_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 0


async def test_recovery_is_not_decided_without_enough_explicit_negatives() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"zero")
    for bookie in ensemble(cluster, writer)[:2]:
        bookie.damaged.add((writer.ledger_id, 1))
    client = cluster.client()
    with pytest.raises(RecoveryIncomplete):
        await client.open_ledger(writer.ledger_id)
    assert (await client.ledger_metadata(writer.ledger_id)).state is State.IN_RECOVERY
    for bookie in cluster.bookies:
        bookie.damaged.clear()
    assert await bodies(client, writer.ledger_id) == [b"zero"]


async def test_a_damaged_copy_is_never_counted_as_no_such_entry() -> None:
    """BookKeeper issue 2908: the acknowledged entry is on the damaged bookie and a silent one."""
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"zero")
    await turns()
    cluster.bookies[0].corrupt(writer.ledger_id, 0)
    for bookie in cluster.bookies:
        bookie.lacs.clear()
    del cluster.bookies[1].entries[writer.ledger_id][0]
    cluster.bookies[2].down = True
    with pytest.raises(RecoveryIncomplete):
        await cluster.client().open_ledger(writer.ledger_id)


async def test_too_few_fenced_bookies_leave_the_ledger_in_recovery() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"zero")
    for bookie in ensemble(cluster, writer)[:2]:
        bookie.fence_status = Status.UNKNOWN
    with pytest.raises(RecoveryIncomplete):
        await cluster.client().open_ledger(writer.ledger_id)


async def test_every_recovery_read_fences() -> None:
    """BookKeeper issue 2614: an entry at ack quorum - 1 was committed after the close."""
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    for bookie in cluster.bookies:
        bookie.holding = True
    future = asyncio.ensure_future(writer.append(b"in the air"))
    await turns()
    for bookie in cluster.bookies:
        bookie.holding = False
    unfenced = ensemble(cluster, writer)[2]
    fence = unfenced.fence

    async def deaf(ledger_id: int, key: bytes) -> object:
        await asyncio.Event().wait()
        return await fence(ledger_id, key)

    unfenced.fence = deaf  # type: ignore[method-assign,assignment]
    await cluster.client().open_ledger(writer.ledger_id)
    assert all(bookie.unfenced_reads == 0 for bookie in cluster.bookies)
    future.cancel()


async def test_recovery_of_an_empty_new_fragment_starts_at_that_fragment() -> None:
    """BookKeeper issue 2615: a fresh fragment's bookies know no LAC and answer -1."""
    cluster = await Cluster.of(6)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2)
    for number in range(5):
        await writer.append(b"%d" % number)
    fresh = [b.bookie_id for b in cluster.bookies if b not in ensemble(cluster, writer)]
    held = await client._ledgers.read(writer.ledger_id)

    def moved(metadata: LedgerMetadata) -> LedgerMetadata:
        return metadata.with_fragment(5, tuple(fresh))

    await client._ledgers.update(held, moved)
    assert await bodies(client, writer.ledger_id) == [b"%d" % number for number in range(5)]


async def test_write_backs_carry_the_lac_found_when_fencing() -> None:
    """A moving LAC of a slow second recoverer could pass the closed end."""
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"zero")
    await turns()
    futures = [await append_to(cluster, writer, b"unacknowledged", (0,)) for _ in range(300)]
    await cluster.client().open_ledger(writer.ledger_id)
    assert max(bookie.lacs[writer.ledger_id] for bookie in cluster.bookies) == 0
    for future in futures:
        future.cancel()


async def test_a_bookie_that_fails_during_recovery_is_replaced_in_memory_until_the_close() -> None:
    cluster = await Cluster.of(4)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 3)
    await writer.append(b"zero")
    future = await append_to(cluster, writer, b"one", (0, 1))
    failing = ensemble(cluster, writer)[2]
    failing.append_status = Status.UNAVAILABLE
    seen: list[int] = []
    watched = client._ledgers.watch(writer.ledger_id, lambda: seen.append(1))
    reader = await client.open_ledger(writer.ledger_id)
    watched()
    assert reader.last_add_confirmed == 1
    fragments = reader.metadata.fragments
    assert fragments[-1].first == 1 and failing.bookie_id not in fragments[-1].ensemble
    assert reader.metadata.degraded
    future.cancel()


async def test_two_recoverers_agree_on_the_end() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"zero")
    future = await append_to(cluster, writer, b"one", (0,))
    readers = await asyncio.gather(
        *[cluster.client().open_ledger(writer.ledger_id) for _ in range(4)]
    )
    assert len({reader.last_add_confirmed for reader in readers}) == 1
    future.cancel()


async def test_a_recoverer_adopts_the_end_that_another_wrote_first() -> None:
    cluster = await Cluster.of(3)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2)
    await writer.append(b"zero")
    store = FaultyStore(cluster.tree.session())
    slow = cluster.client(store=store)
    closed: list[LedgerReader] = []

    async def close_first() -> None:
        closed.append(await client.open_ledger(writer.ledger_id))

    async def let_pass() -> None:
        return None

    store.before_write(let_pass)
    store.before_write(close_first)
    reader = await slow.open_ledger(writer.ledger_id)
    first = closed[0]
    assert (reader.last_add_confirmed, reader.length) == (first.last_add_confirmed, first.length)


async def test_close_that_meets_a_recovery_finishes_it_and_reports_its_end() -> None:
    cluster = await Cluster.of(3)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2)
    await writer.append(b"zero")
    held = await client._ledgers.read(writer.ledger_id)

    def to_recovery(metadata: LedgerMetadata) -> LedgerMetadata:
        return msgspec.structs.replace(metadata, state=State.IN_RECOVERY)

    await client._ledgers.update(held, to_recovery)
    assert await writer.close() == 0
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert (metadata.state, metadata.last_entry, metadata.length) == (State.CLOSED, 0, 4)


async def test_a_wrong_password_opens_nothing_and_fences_nobody() -> None:
    cluster = await Cluster.of(3)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2, password=b"secret")
    with pytest.raises(Unauthorized):
        await client.open_ledger(writer.ledger_id, password=b"guess")
    assert await writer.append(b"still mine") == 0
    reader = await client.open_ledger(writer.ledger_id, password=b"secret")
    assert reader.last_add_confirmed == 0


async def test_an_empty_ledger_is_recovered_as_empty() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    reader = await cluster.client().open_ledger(writer.ledger_id)
    assert (reader.last_add_confirmed, reader.length, reader.closed) == (NO_ENTRY, 0, True)
    assert [entry async for entry in reader.read(0, reader.last_add_confirmed)] == []


async def test_an_append_that_meets_a_recovery_says_its_outcome_is_unknown() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client(with_settings(QUICK)).create_ledger(3, 3, 2)
    future = await append_to(cluster, writer, b"maybe", (0,))
    reader = await cluster.client().open_ledger(writer.ledger_id)
    late = asyncio.ensure_future(writer.append(b"late"))
    with pytest.raises(OutcomeUnknown):
        await late
    assert reader.last_add_confirmed == 0, "the entry of unknown outcome was stored after all"
    future.cancel()
