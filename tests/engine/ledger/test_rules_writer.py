"""Rules of the writer and of followers that no other test would miss if they were gone."""

import asyncio

from engine.run import NO_ENTRY
from engine.transport.contract import AppendReply, LacReply, Status
from tests.engine.ledger.scripted import Cluster, ScriptedBookie, turns


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
