"""A checkpoint whose caller is cancelled: what the list names is there, and all else is swept."""

import asyncio
import gc
from pathlib import Path
from typing import cast

import pytest

from engine.errors import AppendFailed
from engine.ledger.writer import LedgerWriter
from herd.checkpoint.blobs import APPENDS_MAX, BlobWriter
from tests.engine.metadata.late_store import LateStore, cancelled_at
from tests.herd.checkpoint.test_building import change, opened, read


@pytest.mark.parametrize("lands_before_the_next", [True, False])
async def test_a_checkpoint_cancelled_at_any_await_leaves_a_list_of_whole_ones(
    tmp_path: Path, lands_before_the_next: bool
) -> None:
    async with opened(tmp_path) as setup:
        deadlines, checkpointer, term = setup.client.store, setup.checkpointer, setup.space.term
        store = deadlines._store = LateStore(deadlines._store)  # type: ignore[attr-defined]
        rows: dict[int, str] = {}
        place, cut = 0, True
        while cut:
            place += 1
            rows[place] = "cow"
            await change(setup, {place: "cow"})
            cut = await cancelled_at(place, checkpointer.take(term))
            if lands_before_the_next:
                await store.land()
                checkpointer._manifests.clear()
                for record in (await checkpointer.list.get()).kept:
                    await checkpointer.manifest(record)
            newest = await checkpointer.take(term)
            await store.land()
            checkpointer._manifests.clear()
            kept = (await checkpointer.list.get()).kept
            assert kept[-1] == newest
            for record in kept:
                found = await read(setup, await checkpointer.manifest(record))
                assert found == {number: "cow" for number in rows if number <= max(found)}
            assert found == rows
        assert place > 20, "nothing was cancelled"
        await checkpointer.sweep(term + 1)
        own = [
            ledger_id
            for ledger_id in await setup.client.list_ledgers()
            if (await setup.client.ledger_metadata(ledger_id)).custom.get("purpose")
            == b"checkpoint"
        ]
        assert set(own) == await checkpointer._named(await checkpointer.list.get())


class FailingWriter:
    """A writer of a ledger whose appends all fail."""

    ledger_id = 1

    def append(self, body: bytes) -> "asyncio.Future[int]":
        future = asyncio.get_running_loop().create_future()
        future.set_exception(AppendFailed("too few bookies are left"))
        return future


async def test_appends_of_a_checkpoint_that_fail_after_the_first_one_trouble_nobody() -> None:
    unheard: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: unheard.append(told))
    blobs = BlobWriter(cast(LedgerWriter, FailingWriter()))
    for _ in range(APPENDS_MAX):
        await blobs.write(b"page")
    with pytest.raises(AppendFailed):
        await blobs.settle()
    del blobs
    gc.collect()
    await asyncio.sleep(0)
    assert not unheard
