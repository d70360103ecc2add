"""The reserve of a full disk is for fences, whatever they share a batch with."""

import asyncio

import pytest

from engine.bookie.settings import BookieSettings
from engine.transport.contract import Status
from tests.engine.bookie.stable import KEY, Stable, append, ask, read_all, run_of
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
