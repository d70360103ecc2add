"""Commits whose answer was lost, and what others do before the outcome is looked up."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobit import CommitOutcomeUnknown, GarbageSettings, NoSuchUpload
from blobit.committing import Committer
from blobit.tables import BucketState
from herd.errors import CommitUnknown
from tests.blobit.contract.objects_contract import body
from tests.blobit.contract.stores import SMALL, clustered

EAGER = replace(SMALL, garbage=GarbageSettings(grace_ms=0, settle_ms=0, orphan_ms=0, batch_rows=5))
SECOND, THIRD = "blobs__pool_2", "blobs__pool_3"


@contextmanager
def commit_lost(meanwhile: Callable[[], Awaitable[object]], table: str = "") -> Iterator[None]:
    """The next commit is not made, and its answer is lost.

    `meanwhile` runs before the outcome is looked up. With `table`, it is the next commit that locks
    rows of that table.
    """
    attempt, lost = Committer._attempt, list[bool]()

    async def lose(self: Committer, batch: Any) -> None:
        tables = {key[0] for pending in batch for key in pending.change.keys}
        if lost or table not in {"", *tables}:
            await attempt(self, batch)
            return
        lost.append(True)
        await meanwhile()
        raise CommitUnknown("its answer was lost")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Committer, "_attempt", lose)
        yield
    assert lost, "no commit was lost"


async def test_rows_removed_by_a_move_do_not_confirm_a_deletion(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        bucket = await store.blobs.create_bucket("cows")
        await bucket.put("large", body(700))
        far = await other.bucket("cows")
        with (
            commit_lost(lambda: store.blobs.move_bucket("cows")),
            pytest.raises(CommitOutcomeUnknown),
        ):
            await far.delete("large")
        assert await far.get("large") == await bucket.get("large") == body(700)


async def test_rows_removed_by_a_move_do_not_confirm_a_deletion_of_an_unnamed_object(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        bucket = await store.blobs.create_bucket("cows")
        kept = await bucket.put_unnamed(body(9))
        far = await other.bucket("cows")
        with (
            commit_lost(lambda: store.blobs.move_bucket("cows")),
            pytest.raises(CommitOutcomeUnknown),
        ):
            await far.delete_unnamed(kept)
        assert await store.blobs.get(kept) == body(9)
        assert await far.delete_unnamed(kept)


async def test_the_deletion_of_another_process_does_not_confirm_one_with_a_condition(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        bucket = await store.blobs.create_bucket("cows")
        info = await bucket.put("elsa", b"moo")
        far = await other.bucket("cows")
        with (
            commit_lost(lambda: bucket.delete("elsa", if_match=info.etag)),
            pytest.raises(CommitOutcomeUnknown),
        ):
            await far.delete("elsa", if_match=info.etag)


async def test_an_upload_that_was_completed_is_not_reported_as_aborted(tmp_path: Path) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        bucket = await store.blobs.create_bucket("cows")
        upload = await bucket.create_upload("elsa")
        await bucket.put_part(upload, 1, b"moo")
        far = await other.bucket("cows")
        with (
            commit_lost(lambda: bucket.complete_upload(upload, [1])),
            pytest.raises(CommitOutcomeUnknown),
        ):
            await far.abort_upload(upload)
        with pytest.raises(NoSuchUpload):
            await far.abort_upload(upload)
        assert await far.get("elsa") == b"moo"


async def test_two_processes_do_not_both_succeed_in_the_same_rename(tmp_path: Path) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        bucket = await store.blobs.create_bucket("cows")
        await bucket.put("free", b"moo")
        far = await other.bucket("cows")
        with (
            commit_lost(lambda: bucket.rename("free", "claimed", if_absent=True)),
            pytest.raises(CommitOutcomeUnknown),
        ):
            await far.rename("free", "claimed", if_absent=True)


async def test_two_processes_do_not_both_delete_a_bucket(tmp_path: Path) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        await store.blobs.create_bucket("cows")

        async def delete() -> None:
            # Their deletions are told apart by the time.
            began_ms = store.blobs.client.clock.wall_ms()
            while store.blobs.client.clock.wall_ms() == began_ms:
                pass
            await store.blobs.delete_bucket("cows", force=True)

        with commit_lost(delete, "deleted_buckets"), pytest.raises(CommitOutcomeUnknown):
            await other.delete_bucket("cows", force=True)


async def test_a_new_bucket_of_the_same_name_does_not_confirm_the_state_of_the_deleted_one(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        await store.blobs.create_bucket("cows")
        info = await other._registry.find("cows")

        async def make_anew() -> None:
            await store.blobs.delete_bucket("cows")
            await store.blobs.create_bucket("cows")

        with commit_lost(make_anew), pytest.raises(CommitOutcomeUnknown):
            await other._registry._set_state(info, BucketState.ACTIVE)


async def test_the_move_of_another_process_does_not_confirm_one_whose_start_was_lost(
    tmp_path: Path,
) -> None:
    async with clustered(tmp_path, EAGER) as store, store.another(EAGER) as other:
        await store.blobs.create_bucket("cows")
        await store.blobs.set_pool_limits(buckets=1)
        for name in ("calves", "goats"):
            await store.blobs.create_bucket(name)
        await store.blobs.set_pool_limits(buckets=9)
        info = await store.blobs._registry.find("cows")
        with (
            commit_lost(lambda: other.moves._begin(info, THIRD), "moves"),
            pytest.raises(CommitOutcomeUnknown),
        ):
            await store.blobs.move_bucket("cows", SECOND)
        assert (await store.blobs.move_bucket("cows", SECOND)).tablespace == SECOND
