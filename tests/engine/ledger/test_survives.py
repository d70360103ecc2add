"""Entries that have to survive the loss of a host: how they are acknowledged and recovered."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from engine.errors import (
    AppendFailed,
    InvalidRequest,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
    OutcomeUnknown,
    QuorumsInvalid,
    RecoveryIncomplete,
)
from engine.ledger.client import LedgerClient
from engine.ledger.writer import LedgerWriter
from engine.metadata.bookies import Registration
from engine.metadata.ledgers import Fragment, LedgerMetadata, State
from engine.transport.contract import Status
from tests.engine.ledger.scripted import QUICK, ScriptedBookie, turns, until
from tests.engine.ledger.test_respreading import Hosts, hosts, shared

STILL = replace(QUICK, respread_ms=1_000_000)


def on_host(cluster: Hosts, writer: LedgerWriter, host: str) -> list[ScriptedBookie]:
    ensemble = writer.metadata.fragments[-1].ensemble
    return [cluster.transport.bookies[name] for name in ensemble if name[0] == host]


async def two_on_one_host(*more: str) -> tuple[Hosts, LedgerWriter]:
    """A ledger with two replicas on host a and one on b."""
    cluster = await hosts("a1", "a2", "b1")
    writer = await cluster.client(STILL).create_ledger(3, 3, 2, survives="host")
    await cluster.come(*more)
    assert sorted(writer.metadata.fragments[-1].ensemble) == ["a1", "a2", "b1"]
    return cluster, writer


async def bodies(client: LedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open_ledger(ledger_id)
    return [entry.body async for entry in reader.read(0, reader.last_add_confirmed)]


async def test_two_bookies_of_one_host_acknowledge_nothing() -> None:
    cluster, writer = await two_on_one_host()
    (far,) = on_host(cluster, writer, "b")
    far.holding = True
    waiting = asyncio.ensure_future(writer.append(b"moo"))
    await turns(200)
    assert not waiting.done() and writer.last_add_confirmed == -1
    assert all(0 in near.entries[writer.ledger_id] for near in on_host(cluster, writer, "a"))
    far.holding = False
    far.release()
    assert await waiting == 0


async def test_what_was_acknowledged_survives_a_host_with_two_of_three_replicas() -> None:
    cluster, writer = await two_on_one_host()
    for number in range(5):
        assert await writer.append(b"%d" % number) == number
    await turns()
    await cluster.go("a")
    for bookie in on_host(cluster, writer, "a"):
        bookie.entries.clear()
    await cluster.come("c1", "d1")
    client = cluster.client()
    assert await bodies(client, writer.ledger_id) == [b"%d" % number for number in range(5)]
    assert (await client.ledger_metadata(writer.ledger_id)).state is State.CLOSED


async def test_without_it_the_loss_of_that_host_stops_the_ledger() -> None:
    cluster = await hosts("a1", "a2", "b1")
    writer = await cluster.client(STILL).create_ledger(3, 3, 2, survives="bookie")
    await writer.append(b"moo")
    await cluster.go("a")
    await cluster.come("c1", "d1")
    with pytest.raises(RecoveryIncomplete):
        await cluster.client().open_ledger(writer.ledger_id)


async def test_followers_read_on_while_a_host_with_two_of_three_replicas_is_away() -> None:
    cluster, writer = await two_on_one_host()
    await writer.append(b"moo")
    await turns()
    await cluster.go("a")
    reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)
    assert await reader.read_last_add_confirmed() in (-1, 0)


async def test_a_writer_goes_on_with_bookies_of_a_third_host() -> None:
    cluster, writer = await two_on_one_host("c1", "c2")
    await writer.append(b"zero")
    await cluster.go("b")
    assert await writer.append(b"one") == 1
    assert writer.metadata.survives == "host"
    assert {name[0] for name in writer.metadata.fragments[-1].ensemble} == {"a", "c"}
    await cluster.go("a")
    await cluster.come("b1", "d1")
    assert await writer.append(b"two") == 2
    assert await writer.close() == 2
    assert await bodies(cluster.client(), writer.ledger_id) == [b"zero", b"one", b"two"]


async def test_an_append_fails_rather_than_stay_on_one_host() -> None:
    cluster, writer = await two_on_one_host("a3")
    await writer.append(b"zero")
    await cluster.go("b")
    with pytest.raises((AppendFailed, OutcomeUnknown)):
        await writer.append(b"one")
    await cluster.come("b2")
    assert await bodies(cluster.client(), writer.ledger_id) in ([b"zero"], [b"zero", b"one"])


async def test_an_append_fails_too_if_the_only_substitute_cannot_be_connected_to() -> None:
    cluster, writer = await two_on_one_host("c1")
    await writer.append(b"zero")
    cluster.transport.bookies["c1"].down = True
    await cluster.go("b")
    with pytest.raises((AppendFailed, OutcomeUnknown)):
        async with asyncio.timeout(20 * STILL.append_timeout_ms / 1000):
            await writer.append(b"one")


@pytest.mark.parametrize("host", ["b", "c"])
async def test_recovery_writes_back_to_two_hosts_if_there_are_two(host: str) -> None:
    """If there is one, that is better than a ledger that nobody can read on: a host is lost."""
    cluster, writer = await two_on_one_host()
    await writer.append(b"zero")
    near = on_host(cluster, writer, "a")
    for bookie in near:
        bookie.mute = True
    waiting = asyncio.ensure_future(writer.append(b"one"))
    await turns()
    for bookie in near:
        bookie.mute, bookie.append_status = False, Status.READ_ONLY
    await cluster.come("b2", f"{host}3")
    reader = await cluster.client().open_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 1 and reader.metadata.degraded
    having = [b for b in cluster.bookies if 1 in b.entries.get(writer.ledger_id, {})]
    assert {bookie.bookie_id[0] for bookie in having} == {"b", host}
    with pytest.raises((LedgerClosed, LedgerFenced)):
        await waiting


async def test_recovery_of_a_log_takes_bookies_that_are_full() -> None:
    cluster, writer = await two_on_one_host()
    await writer.append(b"zero")
    (far,) = on_host(cluster, writer, "b")
    await cluster.come("c1")
    full = msgspec.structs.replace(await registered(cluster, "c1"), writable=False)
    await cluster.registry.register(full)
    far.mute = True
    far.down = True
    reader = await cluster.client().open_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 0


async def test_an_earlier_program_that_writes_the_metadata_lowers_no_promise() -> None:
    """It knows neither what entries survive nor on which hosts bookies are, and drops both."""
    cluster, writer = await two_on_one_host("a3")
    await writer.append(b"zero")
    ledgers = cluster.client()._ledgers
    held = await ledgers.read(writer.ledger_id)
    first = held.metadata.fragments[0]
    dropped = msgspec.structs.replace(
        held.metadata,
        survives="bookie",
        strict=False,
        fragments=(Fragment(0, first.ensemble),),
        degraded=True,
    )
    await ledgers.update(held, lambda _: dropped)
    await cluster.go("b")
    waiting = asyncio.ensure_future(writer.append(b"one"))
    await turns(500)
    assert not waiting.done()
    await cluster.come("c1")
    assert await waiting == 1
    metadata = (await ledgers.read(writer.ledger_id)).metadata
    assert (metadata.survives, metadata.strict) == ("host", True)
    assert metadata.fragments[-1].domains and "c1" in metadata.fragments[-1].ensemble
    await writer.close()


async def test_what_is_usual_gives_way_where_only_one_host_is_left() -> None:
    cluster = await hosts("a1", "a2", "a3", "b1", "c1")
    writer = await cluster.client(STILL).create_ledger(3, 3, 2)
    assert writer.metadata.survives == "host" and not writer.metadata.strict
    await writer.append(b"zero")
    await cluster.go("b")
    await cluster.go("c")
    assert await writer.append(b"one") == 1
    metadata = (await cluster.client()._ledgers.read(writer.ledger_id)).metadata
    assert metadata.fragments[-1].domains == () and metadata.degraded
    # Hosts that come back do not count again in this ledger: the outcome of a change may be
    # unknown, and bookies of one host have acknowledged entries since.
    await cluster.come("b1", "c1")
    await cluster.go("a")
    await writer.append(b"two")
    assert writer.metadata.fragments[-1].domains == ()
    await cluster.come("a1", "a2", "a3")
    other = await cluster.client(STILL).create_ledger(3, 3, 2)
    assert other.metadata.fragments[-1].domains
    assert await bodies(cluster.client(), writer.ledger_id) == [b"zero", b"one", b"two"]


async def test_it_gives_way_to_the_bookies_that_are_left_too() -> None:
    cluster = await hosts("a1", "b1", "c1")
    writer = await cluster.client(STILL).create_ledger(3, 3, 2)
    await cluster.come("a2")
    await cluster.go("c")
    assert await writer.append(b"zero") == 0
    await until(lambda: "a2" in writer.metadata.fragments[-1].ensemble)
    assert writer.metadata.fragments[-1].domains
    await cluster.go("b")
    assert await writer.append(b"one") == 1
    last = (await cluster.client()._ledgers.read(writer.ledger_id)).metadata.fragments[-1]
    assert last.domains == () and "b1" in last.ensemble
    await writer.close()


async def registered(cluster: Hosts, name: str) -> Registration:
    found = await cluster.registry.registration(name)
    assert found is not None
    return found


async def test_an_entry_that_two_bookies_of_one_host_alone_may_have_is_not_waited_for() -> None:
    """The third bookie lacks it, and without it nothing was acknowledged."""
    cluster, writer = await two_on_one_host()
    await writer.append(b"zero")
    await turns()
    for near in on_host(cluster, writer, "a"):
        near.damaged.add((writer.ledger_id, 1))
    reader = await cluster.client().open_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 0


async def test_a_bookie_that_moves_changes_nothing_for_entries_that_are_acknowledged() -> None:
    cluster = await hosts("a1", "b1", "c1")
    writer = await cluster.client(STILL).create_ledger(3, 3, 2, survives="host")
    await writer.append(b"zero")
    await turns()
    for name in ("a1", "b1"):
        await cluster.registry.register(Registration(name, 1, host="c"))
    # All three are on one host now. Any two of them may have acknowledged the entry.
    cluster.transport.bookies["c1"].down = True
    cluster.transport.bookies["a1"].down = True
    with pytest.raises(RecoveryIncomplete, match="could be fenced"):
        await cluster.client().open_ledger(writer.ledger_id)
    cluster.transport.bookies["a1"].down = False
    assert await bodies(cluster.client(STILL), writer.ledger_id) == [b"zero"]


async def test_bookies_that_stay_count_for_the_hosts_that_they_were_on() -> None:
    """The outcome of a change may stay unknown: then the writer goes on by the fragment before it.

    What two bookies acknowledge meanwhile must be found by whoever reads the new fragment.
    """
    cluster = await hosts("a1", "b1", "c1")
    writer = await cluster.client(STILL).create_ledger(3, 3, 2, survives="host")
    await writer.append(b"zero")
    for name in ("a1", "b1"):
        await cluster.registry.register(Registration(name, 1, host="a"))
    await cluster.come("d1")
    await cluster.go("c")
    await writer.append(b"one")
    await until(lambda: "d1" in writer.metadata.fragments[-1].ensemble)
    fragment = writer.metadata.fragments[-1]
    domains = dict(zip(fragment.ensemble, fragment.domains, strict=True))
    assert len({domains["a1"], domains["b1"], domains["d1"]}) == 3
    await writer.close()


async def test_hosts_that_came_later_count_for_what_is_written_then() -> None:
    cluster = await hosts("a1", "b1", "c1")
    writer = await cluster.client(STILL).create_ledger(3, 3, 2, survives="host")
    assert await writer.append(b"zero") == 0
    await cluster.come("a2")
    await cluster.go("c")
    assert await writer.append(b"one") == 1
    await until(lambda: "a2" in writer.metadata.fragments[-1].ensemble)
    await until(lambda: writer._replication.complete)
    (far,) = on_host(cluster, writer, "b")
    far.holding = True
    waiting = asyncio.ensure_future(writer.append(b"two"))
    await turns(200)
    assert not waiting.done()
    far.holding = False
    far.release()
    assert await waiting == 2
    await writer.close()


async def test_what_entries_survive_is_a_setting_of_the_client_or_of_one_ledger() -> None:
    cluster = await hosts("a1", "a2", "b1", "c1")
    client = cluster.client(replace(QUICK, survives="bookie"))
    assert (await client.create_ledger(3, 3, 2)).metadata.survives == "bookie"
    assert (await client.create_ledger(3, 3, 2, survives="host")).metadata.survives == "host"
    usual = cluster.client()
    assert (await usual.create_ledger(3, 3, 2)).metadata.survives == "host"
    assert (await usual.create_ledger(2, 2, 1)).metadata.survives == "bookie"
    strict = cluster.client(replace(QUICK, survives="rack"))
    with pytest.raises(NotEnoughBookies, match="in two racks"):
        await strict.create_ledger(3, 3, 2)
    assert (await strict.create_ledger(1, 1, 1)).metadata.survives == "bookie"
    with pytest.raises(QuorumsInvalid, match="one bookie acknowledges"):
        await client.create_ledger(2, 2, 1, survives="host")
    with pytest.raises(InvalidRequest, match="bookie, host, rack, zone"):
        await client.create_ledger(survives="planet")  # type: ignore[arg-type]


async def test_a_ledger_that_is_written_on_bookies_of_many_hosts_is_as_it_was() -> None:
    cluster = await hosts("a1", "b1", "c1")
    writer = await cluster.client(STILL).create_ledger(3, 3, 2)
    assert writer.metadata.survives == "host" and not writer._replication.quorums.domains
    assert shared(writer) == 0
    cluster.transport.bookies["c1"].mute = True
    assert await writer.append(b"moo") == 0
    await writer.close()


def test_metadata_with_domains_for_other_bookies_are_damaged() -> None:
    with pytest.raises(AssertionError):
        LedgerMetadata(
            ledger_id=1,
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=2,
            fragments=(Fragment(0, ("a", "b", "c"), (0, 1)),),
            key_hash=b"",
            created_ms=0,
            token=0,
        )
