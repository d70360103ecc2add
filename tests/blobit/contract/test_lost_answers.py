"""Puts whose answers get lost on the way: each is known to be done, or said to be unknown."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blobit import AsyncBucket, CommitOutcomeUnknown
from engine.ports.clock import SystemClock
from herd.wire import messages
from herd.wire.calling import Calling
from herd.wire.herd import RemoteHerd
from herd.wire.settings import WireSettings
from tests.blobit.contract.objects_contract import body, refs_count
from tests.blobit.contract.stores import embedded
from tests.herd.wire.test_lost_answers import Lossy

SOON = WireSettings(patience_ms=200)


@asynccontextmanager
async def bucket_over_a_lossy_way(path: Path) -> AsyncIterator[tuple[Lossy, AsyncBucket]]:
    async with embedded(path) as store:
        await store.blobs.create_bucket("photos")
        route = Lossy(store.herd._serve())
        calling = Calling(route, SystemClock(), random.Random(3), store.herd.workers, SOON)
        async with store.another(names=RemoteHerd(calling)) as blobs:
            try:
                yield route, await blobs.bucket("photos")
            finally:
                await route.close()


async def test_a_put_whose_commit_was_done_though_no_answer_came_has_succeeded(
    tmp_path: Path,
) -> None:
    async with bucket_over_a_lossy_way(tmp_path) as (route, bucket):
        await bucket.put("cow", body(30))
        route.lost_answers.append(messages.Commit)
        info = await bucket.put("cow", body(40))
        assert (await bucket.stat("cow")).etag == info.etag
        assert await bucket.get("cow") == body(40)
        assert await refs_count(bucket) == 1


async def test_a_put_that_finds_its_own_id_has_succeeded_though_nobody_could_tell(
    tmp_path: Path,
) -> None:
    async with bucket_over_a_lossy_way(tmp_path) as (route, bucket):
        await bucket.put("calf", b"")
        route.lost_answers.append(messages.Commit)
        route.lost_calls += [messages.Outcome] * 200
        puts = [bucket.put(f"cow {n}", body(20, n), if_absent=True) for n in range(3)]
        infos = await asyncio.gather(*puts)
        route.lost_calls.clear()
        for n, info in enumerate(infos):
            assert (await bucket.stat(f"cow {n}")).etag == info.etag


async def test_a_put_that_was_not_done_and_nobody_could_tell_is_said_to_be_unknown(
    tmp_path: Path,
) -> None:
    async with bucket_over_a_lossy_way(tmp_path) as (route, bucket):
        await bucket.put("cow", body(30))
        route.lost_calls += [messages.Commit] + [messages.Outcome] * 200
        with pytest.raises(CommitOutcomeUnknown):
            await bucket.put("cow", body(40))
        route.lost_calls.clear()
        assert await bucket.get("cow") == body(30)
        await bucket.put("cow", body(40))
        assert await bucket.get("cow") == body(40)


async def test_a_rename_that_was_not_done_is_not_taken_for_done_by_what_others_do(
    tmp_path: Path,
) -> None:
    async with bucket_over_a_lossy_way(tmp_path) as (route, bucket):
        await bucket.put("old", body(30))
        await bucket.put("new", body(40))
        route.lost_calls += [messages.Commit] + [messages.Outcome] * 200
        renaming = asyncio.ensure_future(bucket.rename("old", "new"))
        while messages.Outcome not in route.asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
        # What somebody else does meanwhile.
        async with bucket.core.rows.transaction() as transaction:
            found = await transaction.lock([bucket.core.object_key("old")])
            await transaction.write(dict.fromkeys(found))
            while messages.Commit in route.lost_calls:
                route.lost_calls.remove(messages.Commit)
            await transaction.commit()
        with pytest.raises(CommitOutcomeUnknown):
            await renaming
        assert await bucket.get("new") == body(40)


async def test_a_server_lost_in_the_middle_of_a_transaction_costs_a_second_attempt(
    tmp_path: Path,
) -> None:
    async with bucket_over_a_lossy_way(tmp_path) as (route, bucket):
        await bucket.put("cow", body(300))
        for kind in (messages.Begin, messages.Get, messages.Put, messages.ExecuteMany):
            route.lost_answers.append(kind)
            route.lost_calls.append(kind)
            await bucket.put("cow", body(250))
            await bucket.append("cow", b"!")
            assert await bucket.get("cow") == body(250) + b"!"
            route.lost_answers.clear()
            route.lost_calls.clear()


async def test_the_outcome_of_a_conditional_deletion_that_was_done_may_be_unknown(
    tmp_path: Path,
) -> None:
    async with bucket_over_a_lossy_way(tmp_path) as (route, bucket):
        info = await bucket.put("cow", body(30))
        route.lost_answers.append(messages.Commit)
        route.lost_calls += [messages.Outcome] * 200
        with pytest.raises(CommitOutcomeUnknown):
            await bucket.delete("cow", if_match=info.etag)
        route.lost_calls.clear()
        assert not await bucket.exists("cow")
