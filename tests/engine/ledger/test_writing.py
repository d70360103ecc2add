"""What a writer promises: ids in order, durable when they resolve, and bounded memory."""

import asyncio
from dataclasses import replace as with_settings

import pytest

from engine import limits
from engine.errors import (
    AppendFailed,
    CannotRead,
    DuplicateEntryId,
    EntryTooLarge,
    InvalidRequest,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
    Overloaded,
    QuorumsInvalid,
)
from engine.ledger.settings import ClientSettings
from engine.metadata.memory import FaultyStore
from engine.transport.contract import Status
from tests.engine.ledger.scripted import QUICK, Cluster, turns


async def test_appends_of_one_turn_get_consecutive_ids_in_the_order_of_the_calls() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    single = [writer.append(b"%d" % number) for number in range(5)]
    many = writer.append_many([b"a", b"b", b"c"])
    assert [await future for future in single] == [0, 1, 2, 3, 4]
    assert await many == [5, 6, 7]
    assert await writer.append(b"") == 8
    assert writer.last_add_confirmed == 8


async def test_a_ledger_that_repair_closes_before_its_creator_has_the_reply_is_replaced() -> None:
    cluster = await Cluster.of(3)
    store = FaultyStore(cluster.tree.session())
    client = cluster.client(store=store)
    announced: list[int] = []

    async def announce(ledger_id: int) -> None:
        announced.append(ledger_id)
        store.lose_reply(lambda: cluster.client().open_ledger(announced[0]))

    writer = await client.create_ledger(3, 3, 2, announce=announce)
    assert store.faults_left == 0 and len(announced) == 2
    assert writer.ledger_id == announced[1] and await writer.append(b"moo") == 0
    assert (await cluster.client().open_ledger(announced[0])).last_add_confirmed == -1


async def test_an_append_resolves_only_when_an_ack_quorum_has_it() -> None:
    cluster = await Cluster.of(3)
    for bookie in cluster.bookies:
        bookie.holding = True
    writer = await cluster.client().create_ledger(3, 3, 2)
    future = asyncio.ensure_future(writer.append(b"moo"))
    await turns()
    cluster.bookies[0].release()
    await turns()
    assert not future.done() and writer.last_add_confirmed == -1
    cluster.bookies[2].release()
    assert await future == 0


async def test_a_later_entry_is_not_confirmed_before_an_earlier_one() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    for bookie in cluster.bookies:
        bookie.holding = True
    first = asyncio.ensure_future(writer.append(b"first"))
    await turns()
    second = asyncio.ensure_future(writer.append(b"second"))
    await turns()
    for bookie in cluster.bookies:
        bookie.held.pop()()
    await turns()
    assert not first.done() and not second.done()
    for bookie in cluster.bookies:
        bookie.release()
    assert (await first, await second) == (0, 1)


async def test_runs_never_cross_a_stripe() -> None:
    cluster = await Cluster.of(1)
    writer = await cluster.client().create_ledger(1, 1, 1)
    await writer.append_many([b"x"] * 100)
    await writer.append_many([b"x"] * 700)
    runs = list(cluster.bookies[0].entries[writer.ledger_id])
    assert runs == list(range(800))
    assert await writer.close() == 799


async def test_a_striped_ledger_stores_each_stripe_on_its_write_set_only() -> None:
    cluster = await Cluster.of(5)
    writer = await cluster.client().create_ledger(5, 3, 2)
    await writer.append_many([b"x"] * 256 * 6)
    metadata = writer.metadata
    for stripe in range(6):
        holders = {
            bookie.bookie_id
            for bookie in cluster.bookies
            if stripe * 256 in bookie.entries.get(writer.ledger_id, {})
        }
        expected = {metadata.fragments[0].ensemble[(stripe + step) % 5] for step in range(3)}
        assert holders == expected


async def test_an_entry_over_the_limit_is_refused_and_the_writer_goes_on() -> None:
    cluster = await Cluster.of(1)
    writer = await cluster.client().create_ledger(1, 1, 1)
    with pytest.raises(EntryTooLarge):
        await writer.append(b"x" * (limits.ENTRY_BYTES_MAX + 1))
    with pytest.raises(EntryTooLarge):
        await writer.append_many([b"x", b"x" * (limits.ENTRY_BYTES_MAX + 1)])
    assert await writer.append(b"x" * limits.ENTRY_BYTES_MAX) == 0


async def test_quorums_that_do_not_fit_are_refused() -> None:
    client = (await Cluster.of(3)).client()
    for sizes in [(2, 3, 2), (3, 2, 3), (3, 3, 0), (65, 3, 2)]:
        with pytest.raises(QuorumsInvalid):
            await client.create_ledger(*sizes)


async def test_a_ledger_needs_enough_bookies() -> None:
    with pytest.raises(NotEnoughBookies):
        await (await Cluster.of(2)).client().create_ledger(3, 3, 2)


async def test_custom_metadata_over_the_limit_is_refused() -> None:
    client = (await Cluster.of(1)).client()
    with pytest.raises(InvalidRequest):
        await client.create_ledger(1, 1, 1, metadata={"k": b"x" * 70_000})


async def test_appends_over_the_byte_limit_wait_and_then_are_refused() -> None:
    cluster = await Cluster.of(1)
    settings = with_settings(QUICK, writer_bytes_max=1000, writer_parked_bytes_max=500)
    writer = await cluster.client(settings).create_ledger(1, 1, 1)
    bookie = cluster.bookies[0]
    bookie.holding = True
    futures = [asyncio.ensure_future(writer.append(b"x" * 500)) for _ in range(3)]
    await turns()
    stored = sorted(bookie.entries[writer.ledger_id])
    assert stored == [0, 1], "the third waits for room"
    with pytest.raises(Overloaded):
        await writer.append(b"x" * 500)
    bookie.holding = False
    bookie.release()
    assert [await future for future in futures] == [0, 1, 2]


async def test_cancelling_a_wait_abandons_the_wait_and_not_the_entry() -> None:
    cluster = await Cluster.of(1)
    writer = await cluster.client().create_ledger(1, 1, 1)
    cluster.bookies[0].holding = True
    abandoned = asyncio.ensure_future(writer.append(b"kept"))
    await turns()
    abandoned.cancel()
    cluster.bookies[0].holding = False
    cluster.bookies[0].release()
    assert await writer.append(b"next") == 1
    assert sorted(cluster.bookies[0].entries[writer.ledger_id]) == [0, 1]


async def test_deferred_sync_resolves_before_durability_and_force_waits_for_it() -> None:
    cluster = await Cluster.of(1)
    writer = await cluster.client().create_ledger(1, 1, 1, deferred_sync=True)
    cluster.bookies[0].holding = True
    assert await writer.append(b"soon") == 0
    assert writer.last_add_confirmed == -1, "the LAC covers durable entries only"
    force = asyncio.ensure_future(writer.force())
    await turns()
    assert not force.done()
    cluster.bookies[0].release()
    await force
    assert writer.last_add_confirmed == 0


async def test_deferred_sync_promises_an_id_alone_and_force_tells_what_became_of_it() -> None:
    cluster = await Cluster.of(1)
    writer = await cluster.client().create_ledger(1, 1, 1, deferred_sync=True)
    cluster.bookies[0].down = True
    cluster.transport.bookies.clear()
    writer._replication.suspect(frozenset(["b0"]))
    assert [await writer.append(b"nowhere") for _ in range(3)] == [0, 1, 2]
    assert writer.last_add_confirmed == -1
    with pytest.raises(AppendFailed):
        await writer.force()
    with pytest.raises(AppendFailed):
        await writer.append(b"later")


async def test_explicit_ids_resolve_in_order_and_a_gap_holds_back_what_follows() -> None:
    cluster = await Cluster.of(1)
    writer = await cluster.client().create_ledger(1, 1, 1, explicit_ids=True)
    late = asyncio.ensure_future(writer.append_at(2, b"two"))
    assert await writer.append_at(0, b"zero") == 0
    await turns()
    assert not late.done()
    with pytest.raises(DuplicateEntryId):
        await writer.append_at(2, b"again")
    with pytest.raises(DuplicateEntryId):
        await writer.append_at(0, b"again")
    with pytest.raises(InvalidRequest):
        await writer.append(b"plain")
    assert await writer.append_at(1, b"one") == 1
    assert await late == 2
    assert await writer.append_at(3, b"three") == 3


async def test_a_fenced_append_fails_as_outcome_unknown_and_so_does_all_that_follows() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    assert await writer.append(b"mine") == 0
    for bookie in cluster.bookies:
        bookie.fenced.add(writer.ledger_id)
    with pytest.raises(LedgerFenced):
        await writer.append(b"too late")
    with pytest.raises(LedgerFenced):
        await writer.append(b"later still")


async def test_a_closed_writer_refuses_appends_and_closing_twice_gives_the_same_end() -> None:
    cluster = await Cluster.of(1)
    writer = await cluster.client().create_ledger(1, 1, 1)
    pending = asyncio.ensure_future(writer.append(b"last"))
    await turns(1)
    assert await writer.close() == 0
    assert await pending == 0
    with pytest.raises(LedgerClosed):
        await writer.append(b"late")
    assert await writer.close() == 0


async def test_close_ends_the_ledger_at_the_lac_not_at_what_was_sent() -> None:
    cluster = await Cluster.of(3)
    client = cluster.client()
    writer = await client.create_ledger(3, 3, 2)
    assert await writer.append(b"safe") == 0
    for bookie in cluster.bookies[1:]:
        bookie.mute = True
    lost = asyncio.ensure_future(writer.append(b"unsafe"))
    await turns()
    assert await writer.close() == 0
    with pytest.raises((AppendFailed, LedgerClosed)):
        await lost
    assert (await client.ledger_metadata(writer.ledger_id)).last_entry == 0


async def test_an_overloaded_bookie_is_asked_again_and_not_replaced() -> None:
    cluster = await Cluster.of(2)
    writer = await cluster.client().create_ledger(1, 1, 1)
    bookie = cluster.at(writer.metadata.fragments[0].ensemble, 0)
    bookie.append_status = Status.OVERLOADED
    future = asyncio.ensure_future(writer.append(b"patience"))
    await turns()
    bookie.append_status = Status.OK
    assert await future == 0
    assert len(writer.metadata.fragments) == 1


async def test_the_lac_is_announced_at_once_when_nothing_is_left_to_send() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"only")
    await turns()
    assert [bookie.lacs[writer.ledger_id] for bookie in cluster.bookies] == [0, 0, 0]


def test_client_settings_hold_plain_values_only() -> None:
    assert all(
        isinstance(getattr(ClientSettings(), name), int | float | str)
        for name in ClientSettings.__slots__
    )


@pytest.mark.parametrize("body", ["text", {}, [b"moo"]])
async def test_what_is_no_bytes_is_refused_and_nothing_is_stored(body: object) -> None:
    cluster = await Cluster.of(1)
    writer = await cluster.client().create_ledger(1, 1, 1)
    for append in (writer.append, lambda one: writer.append_many([b"moo", one])):
        with pytest.raises(InvalidRequest):
            append(body)  # type: ignore[arg-type]
    assert await writer.append(memoryview(b"moo")) == 0  # type: ignore[arg-type]
    assert await writer.close() == 0


@pytest.mark.parametrize("entry_id", [-1, 2**63 - 1, 2**64])
async def test_what_is_no_entry_id_is_refused(entry_id: int) -> None:
    cluster = await Cluster.of(1)
    writer = await cluster.client().create_ledger(1, 1, 1, explicit_ids=True)
    with pytest.raises(InvalidRequest):
        writer.append_at(entry_id, b"moo")


@pytest.mark.parametrize("custom", [{"k": "v"}, {1: b"x"}, {"k": 5}])
async def test_custom_metadata_are_bytes_by_text(custom: dict[str, bytes]) -> None:
    cluster = await Cluster.of(1)
    with pytest.raises(InvalidRequest):
        await cluster.client().create_ledger(1, 1, 1, metadata=custom)
    assert await cluster.client().list_ledgers() == []


async def test_a_ledger_whose_metadata_are_damaged_says_so_and_can_be_deleted() -> None:
    cluster = await Cluster.of(1)
    client = cluster.client()
    writer = await client.create_ledger(1, 1, 1)
    await writer.close()
    store, key = cluster.tree.session(), f"/ledgers/{writer.ledger_id}"
    stored = await store.get(key)
    assert stored is not None
    for value in (b"", b"\xc1", stored.value[:-3]):
        stored = await store.get(key)
        assert stored is not None
        await store.set(key, value, stored.version)
        with pytest.raises(CannotRead):
            await client.open_ledger(writer.ledger_id)
    await client.delete_ledger(writer.ledger_id)
    assert await client.list_ledgers() == []


async def test_an_entry_that_comes_alone_as_those_before_is_sent_as_it_is_appended() -> None:
    cluster = await Cluster.of(3)
    # All bookies are asked, none is passed over.
    writer = await cluster.client(with_settings(QUICK, spare_ms_max=0)).create_ledger(3, 3, 2)
    for _ in range(8):
        await writer.append(b"x")
    before = len(cluster.bookies[0].requests)
    alone = writer.append(b"x")
    behind = [writer.append(b"y"), writer.append(b"z")]
    assert len(cluster.bookies[0].requests) == before + 1, "the others wait for each other"
    assert [await alone, *[await future for future in behind]] == [8, 9, 10]
    assert cluster.bookies[0].requests[-1] == ("append", 9, 10)


async def test_bookies_hear_of_the_last_entry_that_was_sent_as_it_was_appended() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    for _ in range(20):
        last = await writer.append(b"x")
    await turns(4)
    assert {bookie.lacs[writer.ledger_id] for bookie in cluster.bookies} == {last}


async def test_of_a_striped_ledger_entries_that_follow_one_another_are_announced_once() -> None:
    cluster = await Cluster.of(4)
    settings = with_settings(QUICK, stripe_entries=4)
    writer = await cluster.client(settings).create_ledger(4, 2, 2)
    for _ in range(20):
        last = await writer.append(b"x")
    assert max(bookie.confirms for bookie in cluster.bookies) <= 1, "runs carry it"
    await turns(4)
    assert {bookie.lacs[writer.ledger_id] for bookie in cluster.bookies} == {last}
