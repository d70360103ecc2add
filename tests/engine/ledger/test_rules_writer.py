"""Rules of the writer and of followers that no other test would miss if they were gone."""

import asyncio
from dataclasses import replace as with_settings

from engine.run import NO_ENTRY
from engine.transport.contract import AppendReply, LacReply, Status
from tests.engine.ledger.scripted import QUICK, Cluster, ScriptedBookie, turns


async def test_a_run_claims_only_what_was_confirmed() -> None:
    """A LAC over an unconfirmed entry would let followers read what recovery may drop."""
    cluster = await Cluster.of(3)
    for bookie in cluster.bookies:
        bookie.holding = True
    writer = await cluster.client().create_ledger(3, 3, 2)
    waiting = [asyncio.ensure_future(writer.append(b"first"))]
    await turns()
    waiting.append(asyncio.ensure_future(writer.append(b"second")))
    await turns()
    for bookie in cluster.bookies:
        assert bookie.entries[writer.ledger_id][1].lac == NO_ENTRY
        assert bookie.lacs[writer.ledger_id] == NO_ENTRY
    for bookie in cluster.bookies:
        bookie.release()
    assert [await one for one in waiting] == [0, 1]


async def test_a_later_acknowledgement_does_not_stand_for_a_lost_earlier_one() -> None:
    cluster = await Cluster.of(3)
    for bookie in cluster.bookies:
        bookie.holding = True
    writer = await cluster.client().create_ledger(3, 3, 2)
    waiting = [asyncio.ensure_future(writer.append(b"first"))]
    await turns()
    waiting.append(asyncio.ensure_future(writer.append(b"second")))
    await turns()
    for bookie in cluster.bookies:
        bookie.held[1]()
    await turns()
    assert writer.last_add_confirmed == NO_ENTRY
    assert not any(one.done() for one in waiting)
    for bookie in cluster.bookies:
        bookie.release()
    assert [await one for one in waiting] == [0, 1]


async def test_what_a_slow_bookie_has_stored_by_now_is_held_no_longer() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client(with_settings(QUICK, spare_ms_max=0)).create_ledger(3, 3, 2)
    slow = cluster.at(writer.metadata.fragments[0].ensemble, 2)
    slow.holding = True
    for number in range(4):
        assert await writer.append(b"moo") == number
    replication = writer._replication
    held = replication._stragglers
    assert len(held.runs) == 4
    later = slow.held.pop(1)
    slow.held.pop(0)()
    assert len(held.runs) == 3
    slow.held[0]()
    assert len(held.runs) == 3, "the one before it is not acknowledged"
    later()
    assert len(held.runs) == 1
    slow.held[1]()
    assert replication.complete and held.size_bytes == 0
    assert await writer.close() == 3


async def test_another_bookies_reply_counts_for_nothing() -> None:
    """Two bookies at one address: what the wrong one stored is not where the metadata says."""
    cluster = await Cluster.of(3)
    impostor = cluster.bookies[0]
    writer = await cluster.client().create_ledger(3, 3, 3)
    _answer_as(impostor, "somebody else")
    waiting = asyncio.ensure_future(writer.append(b"moo"))
    await turns()
    assert not waiting.done() and writer.last_add_confirmed == NO_ENTRY
    waiting.cancel()


def _answer_as(bookie: ScriptedBookie, name: str) -> None:
    def append(runs, reply, **_) -> None:  # type: ignore[no-untyped-def]
        first, last = runs[0].first, runs[-1].last
        reply(AppendReply(Status.OK, runs[0].ledger_id, first, last, name, 1))

    bookie.append = append  # type: ignore[method-assign]


async def test_a_readers_lac_never_goes_back() -> None:
    cluster = await Cluster.of(1)
    writer = await cluster.client().create_ledger(1, 1, 1)
    for _ in range(3):
        await writer.append(b"moo")
    await turns()
    reader = await cluster.client().open_ledger(writer.ledger_id, recover=False)
    assert await reader.read_last_add_confirmed() == 2
    bookie = cluster.bookies[0]

    async def wait_lac(ledger_id: int, above: int, timeout_ms: int) -> LacReply:
        return LacReply(Status.OK, 0, bookie.bookie_id, bookie.boot)

    bookie.wait_lac = wait_lac  # type: ignore[method-assign]
    assert await reader.read_last_add_confirmed() == 2
    assert reader.last_add_confirmed == 2
    await reader.close()


async def test_no_run_crosses_a_stripe_wherever_it_starts() -> None:
    cluster = await Cluster.of(3)
    writer = await cluster.client().create_ledger(3, 3, 2)
    await writer.append(b"one ahead")
    await writer.append_many([b"x"] * 600)
    stripe_entries = writer.metadata.stripe_entries
    runs = cluster.bookies[0].runs_taken
    assert runs
    for run in runs:
        assert run.first // stripe_entries == run.last // stripe_entries, run
    await writer.close()


async def test_a_pending_entry_moves_to_the_new_bookie_from_the_lac_on() -> None:
    cluster = await Cluster.of(4)
    writer = await cluster.client().create_ledger(3, 3, 3)
    await writer.append(b"zero")
    old = writer.metadata.fragments[-1].ensemble
    cluster.at(old, 1).append_status = Status.UNAVAILABLE
    waiting = asyncio.ensure_future(writer.append(b"one"))
    await turns(60)
    assert waiting.done() and await waiting == 1
    fragments = writer.metadata.fragments
    assert [fragment.first for fragment in fragments] == [0, 1]
    assert 1 in cluster.at(fragments[-1].ensemble, 1).entries[writer.ledger_id]


async def test_a_bookie_that_answers_nothing_is_given_up_within_two_timeouts() -> None:
    cluster = await Cluster.of(4)
    settings = with_settings(QUICK, append_timeout_ms=100)
    writer = await cluster.client(settings).create_ledger(3, 3, 3)
    mute = cluster.at(writer.metadata.fragments[-1].ensemble, 1)
    mute.mute = True
    async with asyncio.timeout(5):
        assert await writer.append(b"x") == 0
    assert mute.bookie_id not in writer.metadata.fragments[-1].ensemble
