"""The reserve of a full disk is for fences, whatever they share a batch with."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from engine.bookie.settings import BookieSettings
from engine.metadata.bookies import Bookies
from engine.run import Run
from engine.transport.contract import PURPOSE, LedgerFacts, Status
from tests.engine.bookie.stable import (
    KEY,
    Asked,
    Stable,
    append,
    ask,
    body_of,
    facts_of,
    read,
    read_all,
    run_of,
    writable,
)
from tests.engine.bookie.test_service_damage import FullDisk


async def test_a_fence_in_one_batch_with_recovery_writes_takes_the_reserve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A second try might meet the next recovery write.
    monkeypatch.setattr("engine.bookie.service._FENCES_TRIED", 1)
    yard = Stable(settings=BookieSettings(reserve_bytes=10_000, synced_mark_ms=60_000))
    full = FullDisk(yard, 1_000_000)
    service = await yard.start()
    await append(service, run_of(7, 0, 3))
    await append(service, run_of(8, 0, 3))
    full.free_bytes = 10_010
    yard.hold()
    refused = ask(service, run_of(7, 4, 7), recovery=True)
    behind = ask(service, run_of(7, 8, 9), recovery=True)
    fencing = [asyncio.ensure_future(service.fence(ledger, KEY)) for ledger in (7, 8)]
    await asyncio.sleep(0)
    yard.release()
    assert [reply.status for reply in await asyncio.gather(*fencing)] == [Status.OK] * 2
    assert (await refused.reply()).status is Status.READ_ONLY
    assert (await behind.reply()).status is Status.READ_ONLY
    full.free_bytes = 900_000
    service = await yard.crash()
    assert await read_all(service, 7, 0, 9) == [0, 1, 2, 3]
    assert (await append(service, run_of(7, 4, 7))).status is Status.FENCED


def facts_for(ledger_id: int, purpose: bytes) -> LedgerFacts:
    """Facts of a ledger that says what it is for."""
    return replace(facts_of(ledger_id), custom={PURPOSE: purpose})


async def test_a_full_disk_takes_entries_of_logs_and_none_of_other_ledgers() -> None:
    yard = Stable(settings=BookieSettings(reserve_bytes=10_000, synced_mark_ms=60_000))
    full = FullDisk(yard, 1_000_000_000)
    service = await yard.start()
    log = facts_for(7, b"log")
    assert (await append(service, run_of(7, 0, 3), facts=log)).status is Status.OK
    assert (await append(service, run_of(8, 0, 3))).status is Status.OK
    full.free_bytes = 40_000_000
    assert (await append(service, run_of(7, 4, 5), facts=None)).status is Status.OK
    assert not service.writable
    # By now it knows; a ledger that it has never heard of says by itself what it is for.
    assert (await append(service, run_of(8, 4, 5))).status is Status.READ_ONLY
    assert (await append(service, run_of(7, 6, 7), facts=None)).status is Status.OK
    for ledger, purpose in ((9, b"snapshot"), (10, b"checkpoint"), (11, b"compaction")):
        facts = facts_for(ledger, purpose)
        assert (await append(service, run_of(ledger, 0, 0), facts=facts)).status is Status.OK
    mine = facts_for(12, b"mine")
    assert (await append(service, run_of(12, 0, 0), facts=mine)).status is Status.READ_ONLY
    # What a ledger is for is durable: after a restart its entries need not say it again.
    service = await yard.crash()
    assert not service.writable
    assert (await append(service, run_of(7, 8, 9), facts=None)).status is Status.OK
    assert (await append(service, run_of(8, 4, 5), facts=None)).status is Status.READ_ONLY
    assert await read_all(service, 7, 0, 9) == list(range(10))


async def test_below_the_last_reserve_entries_of_logs_are_refused_and_all_hear_of_it() -> None:
    yard = Stable(settings=BookieSettings(reserve_bytes=10_000, synced_mark_ms=60_000))
    full = FullDisk(yard, 1_000_000)
    service = await yard.start()
    log = facts_for(7, b"log")
    assert (await append(service, run_of(7, 0, 3), facts=log)).status is Status.OK
    full.free_bytes = 10_010
    assert (await append(service, run_of(7, 4, 7), facts=None)).status is Status.READ_ONLY
    await writable(yard)
    [registered] = (await Bookies(yard.tree.session()).available()).values()
    assert (registered.writable, registered.exhausted) == (False, True)
    full.free_bytes = 30_000
    assert (await append(service, run_of(7, 4, 7), facts=None)).status is Status.OK
    await writable(yard)
    [registered] = (await Bookies(yard.tree.session()).available()).values()
    assert (registered.writable, registered.exhausted) == (False, False)
    assert await read_all(service, 7, 0, 7) == list(range(8))


def while_it_writes(yard: Stable, meanwhile: Any) -> None:
    """Have something done once while the journal's thread is in its next batch, then hold it."""
    thread = yard.workers.threads["journal"]
    work = thread._work

    def once(jobs: list[Any]) -> Any:
        thread._work = work
        outcome = work(jobs)
        meanwhile()
        thread.held = True
        return outcome

    thread._work = once


async def test_an_append_that_is_refused_late_does_not_replace_a_newer_one() -> None:
    yard = Stable(settings=BookieSettings(reserve_bytes=10_000, synced_mark_ms=60_000))
    full = FullDisk(yard, 1_000_000)
    service = await yard.start()
    await append(service, run_of(7, 0, 0))
    late: list[Asked] = []
    while_it_writes(yard, lambda: late.append(ask(service, run_of(7, 2, 2), recovery=True)))
    full.free_bytes = 10_010
    refused = ask(service, run_of(7, 1, 1), recovery=True)
    assert (await refused.reply()).status is Status.READ_ONLY
    full.free_bytes = 900_000
    newer = ask(service, run_of(7, 1, 1), recovery=True)
    yard.release()
    assert (await newer.reply()).status is Status.OK
    assert (await late[0].reply()).status is Status.READ_ONLY
    other = Run.pack(7, 1, [b"other bytes"], lac=0, length_before=40)
    assert (await ask(service, other, recovery=True).reply()).status is Status.CONFLICT
    [held] = (await read(service, 7, 1, 1)).runs
    assert held.body == body_of(7, 1)


async def test_appends_caused_by_an_answer_during_a_refusal_are_refused_too() -> None:
    settings = BookieSettings(
        reserve_bytes=10_000, synced_mark_ms=60_000, journal_batch_bytes_max=1_000
    )
    yard = Stable(settings=settings)
    full = FullDisk(yard, 1_000_000)
    service = await yard.start()
    await append(service, run_of(7, 0, 0))
    await append(service, run_of(8, 0, 0))
    brought: list[Asked] = []
    yard.hold()
    service.append(
        (run_of(8, 1, 1),),
        lambda reply: brought.append(ask(service, run_of(7, 2, 2), recovery=True)),
        key=KEY,
    )
    refused = ask(service, run_of(7, 1, 1, size=4_000), recovery=True)
    full.free_bytes = 11_000
    yard.release()
    assert (await refused.reply()).status is Status.READ_ONLY
    full.free_bytes = 900_000
    assert (await brought[0].reply()).status is Status.READ_ONLY
    assert (await ask(service, run_of(7, 1, 2), recovery=True).reply()).status is Status.OK
    assert await read_all(service, 7, 0, 2) == [0, 1, 2]
