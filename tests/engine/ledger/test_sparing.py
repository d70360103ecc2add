"""Lone requests that pass the slowest bookies over: what they get, when, and when none is."""

import asyncio
from dataclasses import replace as with_settings

from engine.errors import OutcomeUnknown
from engine.ledger.settings import ClientSettings
from engine.ledger.writer import LedgerWriter
from engine.transport.contract import LacReply, Status
from tests.engine.ledger.scripted import QUICK, Cluster, ScriptedBookie, turns

_ADDS_MAX = 20_000


async def begun(
    settings: ClientSettings = QUICK, ack: int = 2, adds: int = _ADDS_MAX
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
    for settings, ack in ((QUICK, 3), (with_settings(QUICK, spare_ms_max=0), 2)):
        _, _, over = await begun(settings, ack, 2_000)
        assert not over


async def test_an_entry_goes_to_two_at_once_though_one_acknowledgement_is_enough() -> None:
    cluster, writer, over = await begun(ack=1)
    assert len(over) == 1
    for _ in range(2_000):
        assert len(lacking(cluster, writer, await writer.append(b"x"))) <= 1


async def test_what_a_bookie_may_lack_is_bounded_in_bytes() -> None:
    bounded = with_settings(QUICK, straggler_bytes_max=40)
    cluster, writer, over = await begun(bounded)
    for _ in range(2_000):
        last = await writer.append(b"xx")
        assert not lacking(cluster, writer, last - 10)
    assert over and len(writer.metadata.fragments) == 1


async def test_a_large_entry_goes_to_all_at_once() -> None:
    cluster, writer, over = await begun()
    assert over and not lacking(cluster, writer, await writer.append(b"x" * 65_537))


async def test_what_it_lacks_when_its_writer_dies_is_written_back_by_the_recovery() -> None:
    cluster, writer, over = await begun()
    while not over or not lacking(cluster, writer, writer.last_add_confirmed - 2):
        over = lacking(cluster, writer, await writer.append(b"x"))
    # The writer ends before it could say that nothing follows.
    writer.abandon(OutcomeUnknown("the process ended"))
    last = writer.last_add_confirmed
    assert lacking(cluster, writer, last) == over
    client = cluster.client()
    reader = await client.open_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == last
    held = [sorted(bookie.entries[writer.ledger_id]) for bookie in cluster.bookies]
    assert held == [list(range(last + 1))] * 3
    assert not (await client.ledger_metadata(writer.ledger_id)).degraded


async def test_a_recovery_hears_a_bookie_that_answers_a_little_later_than_the_others() -> None:
    cluster, writer, over = await begun()
    while not over or not lacking(cluster, writer, writer.last_add_confirmed - 2):
        over = lacking(cluster, writer, await writer.append(b"x"))
    writer.abandon(OutcomeUnknown("the process ended"))
    (late,) = over
    fence = late.fence

    async def fence_later(ledger_id: int, key: bytes) -> LacReply:
        reply = await fence(ledger_id, key)
        await turns(20)
        return reply

    late.fence = fence_later  # type: ignore[method-assign]
    reader = await cluster.client().open_ledger(writer.ledger_id)
    last = reader.last_add_confirmed
    assert [lacking(cluster, writer, last - ago) for ago in range(3)] == [[]] * 3
