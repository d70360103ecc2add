"""Lone requests that pass the slowest bookies over: what they get, when, and when none is."""

import asyncio
import random
from dataclasses import replace as with_settings

import pytest

from engine.ledger.placement import Placement
from engine.ledger.quorum import Quorums
from engine.ledger.settings import ClientSettings
from engine.ledger.writer import LedgerWriter
from engine.metadata.bookies import Registration
from engine.ports.clock import SystemClock
from engine.transport.contract import Status
from tests.engine.ledger.scripted import QUICK, Cluster, LoopClock, ScriptedBookie, turns
from tests.simulation.virtual import elapse, virtually

pytestmark = pytest.mark.real_time  # A writer measures how long bookies take.

_ADDS_MAX = 20_000
SPARING = with_settings(QUICK, spare_ms_max=20)


async def begun(
    settings: ClientSettings = SPARING, ack: int = 2, adds: int = _ADDS_MAX
) -> tuple[Cluster, LedgerWriter, list[ScriptedBookie]]:
    """Three bookies, a writer whose caller waits for each entry, and who was passed over so far."""
    cluster = await Cluster.of(3)
    writer = await cluster.client(settings).create_ledger(3, 3, ack)
    over: list[ScriptedBookie] = []
    for _ in range(adds):
        if over:
            break
        over = lacking(cluster, writer, await writer.append(b"x"))
    return cluster, writer, over


def lacking(cluster: Cluster, writer: LedgerWriter, entry_id: int) -> list[ScriptedBookie]:
    held = [(bookie, bookie.entries.get(writer.ledger_id, {})) for bookie in cluster.bookies]
    return [bookie for bookie, entries in held if entry_id not in entries]


async def test_adds_that_follow_one_another_pass_one_bookie_over_and_no_more_than_that() -> None:
    cluster, writer, over = await begun()
    assert len(over) == 1
    for _ in range(2_000):
        assert len(lacking(cluster, writer, await writer.append(b"x"))) <= 1


async def test_a_bookie_that_was_passed_over_gets_what_it_lacks_in_one_request_after_a_while() -> (
    None
):
    cluster, writer, over = await begun()
    while not any(first < last for bookie in cluster.bookies for _, first, last in bookie.requests):
        await writer.append(b"x")
    assert over and writer.metadata.fragments[-1].first == 0


async def test_it_gets_all_at_once_when_nothing_follows() -> None:
    cluster, writer, over = await begun()
    await turns(3)
    last = writer.last_add_confirmed
    assert over and not lacking(cluster, writer, last)
    assert {bookie.lacs[writer.ledger_id] for bookie in cluster.bookies} == {last}


async def test_one_add_now_and_then_goes_to_all_at_once() -> None:
    cluster, writer, _ = await begun()
    await turns(3)
    for bookie in cluster.bookies:
        bookie.requests.clear()
    for _ in range(5):
        entry_id = await writer.append(b"x")
        assert not lacking(cluster, writer, entry_id)
        await turns(3)


async def test_a_bookie_that_stands_still_keeps_an_add_waiting_for_a_moment_only() -> None:
    cluster, writer, over = await begun()
    still = next(bookie for bookie in cluster.bookies if bookie not in over)
    still.holding = True
    entry_id = await writer.append(b"x")
    assert not lacking(cluster, writer, entry_id), "the third one was asked in its place"
    assert len(still.held) == 1
    still.holding = False
    await writer.append(b"x")
    still.release()
    assert await writer.close() == entry_id + 1
    assert len(writer.metadata.fragments) == 1 and not writer.metadata.degraded


async def test_when_a_bookie_fails_the_others_get_everything() -> None:
    cluster, writer, over = await begun()
    lost = next(bookie for bookie in cluster.bookies if bookie not in over)
    lost.append_status = Status.UNAVAILABLE
    await writer.append(b"x")
    for _ in range(100):
        future = asyncio.ensure_future(writer.append(b"x"))
        await turns(5)
        assert future.done(), "no moment has to pass before the third one is asked"
        assert lacking(cluster, writer, future.result()) == [lost]


async def test_a_writer_that_is_closed_leaves_no_bookie_behind() -> None:
    cluster, writer, over = await begun()
    pending = writer.append(b"x")
    last = await writer.close(straggler_ms=0)
    assert over and await pending == last and not lacking(cluster, writer, last)
    assert not writer.metadata.degraded


async def test_nobody_is_passed_over_where_all_must_acknowledge_or_it_is_not_wanted() -> None:
    for settings, ack in ((SPARING, 3), (with_settings(QUICK, spare_ms_max=0), 2)):
        _, _, over = await begun(settings, ack, 2_000)
        assert not over


async def test_an_entry_goes_to_two_at_once_though_one_acknowledgement_is_enough() -> None:
    cluster, writer, over = await begun(ack=1)
    assert len(over) == 1
    for _ in range(2_000):
        assert len(lacking(cluster, writer, await writer.append(b"x"))) <= 1


async def test_what_a_bookie_may_lack_is_bounded_in_bytes() -> None:
    bounded = with_settings(SPARING, straggler_bytes_max=40)
    cluster, writer, over = await begun(bounded)
    for _ in range(2_000):
        last = await writer.append(b"xx")
        assert last < 10 or not lacking(cluster, writer, last - 10)
    assert over and len(writer.metadata.fragments) == 1


async def test_a_large_entry_goes_to_all_at_once() -> None:
    cluster, writer, over = await begun()
    assert over and not lacking(cluster, writer, await writer.append(b"x" * 65_537))


async def test_a_bookie_may_lack_no_more_than_some_entries() -> None:
    patient = with_settings(SPARING, spare_ms_max=60_000)
    cluster, writer, over = await begun(patient)
    # However long a while is: as if each add had taken long.
    for slot in writer._replication.slots:
        slot.mean_s = 1.0
    for _ in range(2_000):
        last = await writer.append(b"x")
        assert last < 33 or not lacking(cluster, writer, last - 33)
    assert over


async def test_when_a_bookie_fails_what_is_acknowledged_goes_to_the_others_before_the_change() -> (
    None
):
    cluster, writer, over = await begun()
    (spared,) = over
    lost = next(bookie for bookie in cluster.bookies if bookie not in over)
    last = writer.last_add_confirmed
    # Nothing of the loop has run since: the bookie's end is all that is heard.
    writer._replication.suspect(frozenset([lost.bookie_id]))
    assert spared not in lacking(cluster, writer, last)


async def test_no_bookie_is_told_of_a_last_add_that_it_was_not_sent() -> None:
    cluster, writer, over = await begun()
    (spared,) = over
    lost = next(bookie for bookie in cluster.bookies if bookie not in over)
    replication = writer._replication
    replication.suspect(frozenset([lost.bookie_id]))
    future = writer.append(b"x")
    replication.lac += 1
    replication.announce()
    assert spared.lacs[writer.ledger_id] < replication.lac
    replication.lac -= 1
    await future


async def test_nobody_is_passed_over_where_a_bookie_is_reached_from_other_machines() -> None:
    for address, grpc in (("tcp:10.0.0.7:3181", ""), ("", "cow.example:4181")):
        cluster = await Cluster.of(3)
        for number, name in enumerate(("b0", "b1", "b2")):
            near = Registration(name, 1, address=f"tcp:127.0.0.1:{3181 + number}")
            far = Registration(name, 1, address=address, grpc=grpc)
            await cluster.registry.register(near if number else far)
        writer = await cluster.client(SPARING).create_ledger(3, 3, 2)
        for _ in range(2_000):
            assert not lacking(cluster, writer, await writer.append(b"x"))


async def test_of_this_machine_are_sockets_and_addresses_of_the_loopback() -> None:
    cluster = await Cluster.of(0)
    near = [("unix:/run/x", ""), ("tcp:127.0.0.1:1", "cow:2"), ("", "[::1]:3"), ("", "")]
    for number, (address, grpc) in enumerate(near):
        await cluster.registry.register(Registration(f"n{number}", 1, address=address, grpc=grpc))
    await cluster.registry.register(Registration("far", 1, address="tcp:cow:1", grpc="[::1]:3"))
    await cluster.registry.register(Registration("garbled", 1, address="tcp:cow"))
    placement = Placement(cluster.registry, random.Random(1), SystemClock(), 0)
    await placement.substitutes(("n0",), frozenset(), Quorums(1, 1, 1, 256))
    names = [f"n{number}" for number in range(len(near))]
    assert placement.beside(names)
    for name in ("far", "garbled", "never-seen"):
        assert not placement.beside([*names, name])


def test_passed_over_are_those_without_whom_adds_are_quickest() -> None:
    async def script() -> None:
        cluster = await Cluster.of(3)
        cluster.client_clock = LoopClock()
        writer = await cluster.client(SPARING).create_ledger(3, 3, 2)
        slow = {writer.metadata.fragments[-1].ensemble[index] for index in (0, 2)}
        over: list[str] = []
        for _ in range(4_000):
            for bookie in cluster.bookies:
                bookie.holding = True
            future = asyncio.ensure_future(writer.append(b"x"))
            asked = {bookie.bookie_id for bookie in cluster.bookies if bookie.held}
            # Two that share something: together they take three times as long.
            await elapse(0.0009 if slow <= asked else 0.0003)
            for bookie in cluster.bookies:
                bookie.release()
            entry_id = await future
            over += [bookie.bookie_id for bookie in lacking(cluster, writer, entry_id)]
        late = over[len(over) // 2 :]
        assert len(late) > 500
        assert sum(name in slow for name in late) > 0.8 * len(late)

    virtually(script())
