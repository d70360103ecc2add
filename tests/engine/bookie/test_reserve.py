"""The reserve of a full disk is for fences, whatever they share a batch with."""

import asyncio
from typing import Any

import pytest

from engine.bookie.settings import BookieSettings
from engine.run import Run
from engine.transport.contract import Status
from tests.engine.bookie.stable import (
    KEY,
    Asked,
    Stable,
    append,
    ask,
    body_of,
    read,
    read_all,
    run_of,
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
