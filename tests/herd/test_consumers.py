"""What is kept for who follows changes under a name, whatever happens meanwhile."""

import asyncio
from pathlib import Path

import pytest

from engine.errors import EngineError, MetadataUnavailable, NotFound, PositionTruncated
from engine.log import START
from herd import consumers
from herd.checkpoint.record import CheckpointList
from herd.consumers import Consumer
from tests.herd.checkpoint.test_building import opened, taken


@pytest.mark.parametrize("kind", [NotFound, PositionTruncated, MetadataUnavailable])
async def test_what_is_kept_is_renewed_again_after_any_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[EngineError]
) -> None:
    monkeypatch.setattr(consumers, "_RENEWALS", 10**9)
    async with opened(tmp_path) as setup:
        await taken(setup)
        consumer = Consumer(setup.client, "farm", "etl", 60_000)
        pin, renewed, asked = CheckpointList.pin, asyncio.Event(), 0

        async def fails_once(
            pins: CheckpointList, name: str, number: int | None, expires_in_ms: int
        ) -> object:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise kind("not now")
            found = await pin(pins, name, number, expires_in_ms)
            renewed.set()
            return found

        monkeypatch.setattr(CheckpointList, "pin", fails_once)
        position = setup.space.replica.position
        keeping = asyncio.create_task(consumer.keep_on(lambda: position))
        waiting = asyncio.create_task(renewed.wait())
        try:
            await asyncio.wait((keeping, waiting), return_when=asyncio.FIRST_COMPLETED)
            assert renewed.is_set() and not keeping.done()
        finally:
            keeping.cancel()
            waiting.cancel()
            await asyncio.gather(keeping, waiting, return_exceptions=True)


async def test_what_cannot_be_renewed_now_is_tried_again_when_it_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_answer(pins: CheckpointList) -> None:
        raise MetadataUnavailable("no answer")

    async with opened(tmp_path) as setup:
        consumer = Consumer(setup.client, "farm", "etl", 3_600_000)
        now_s = setup.client.clock.monotonic()
        monkeypatch.setattr(setup.client.clock, "monotonic", lambda: now_s + 3_600)
        monkeypatch.setattr(CheckpointList, "get", no_answer)
        assert consumer.is_due
        await consumer.move(START)
        assert not consumer.is_due
