"""What buckets promise of objects made of parts, however their names are reached."""

import asyncio
from pathlib import Path

import google_crc32c
import pytest

from blobit import (
    BlobUnreadable,
    ConditionFailed,
    Kind,
    NoSuchObject,
    NoSuchUpload,
    ObjectChanged,
    ObjectId,
    PartMissing,
    RangeInvalid,
)
from blobit.committing import Change, Effect
from tests.blobit.contract.objects_contract import (
    Suite,
    body,
    owners_of,
    pieces_of,
    refs_count,
)
from tests.blobit.contract.stores import Store


def list_lost(store: Store, object_id: ObjectId) -> None:
    """From now on no bookie can read the list of an object's parts."""
    assert object_id.kind is Kind.LIST
    entries = range(object_id.first_entry, object_id.last_entry + 1)
    for bookie in store.cluster.bookies:
        bookie.damaged.update((object_id.ledger_id, entry) for entry in entries)


class PartsContract(Suite):
    """Append, concat and uploads in parts."""

    async def test_appending_adds_to_the_end_whatever_is_there(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            whole, etags = b"", set()
            for number, length in enumerate((0, 5, 0, 60, 1, 300, 20)):
                data = body(length, number)
                info = await bucket.append("cow", pieces_of(data, 17) if number % 2 else data)
                whole += data
                etags.add(info.etag)
                assert info.length == len(whole)
                assert await bucket.get("cow") == whole
            assert len(etags) == 7
            assert (await bucket.stat("cow")).object_id.checksum == google_crc32c.value(whole)

    async def test_appending_to_a_new_name_then_putting_replaces_it(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            await bucket.append("cow", b"first")
            await bucket.put("cow", b"second")
            assert await bucket.get("cow") == b"second"
            await bucket.append("cow", b" third")
            assert await bucket.get("cow") == b"second third"
            assert await bucket.delete("cow")
            assert await refs_count(bucket) == 0

    async def test_no_append_of_many_at_once_is_lost(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            one = await store.blobs.create_bucket("photos")
            async with store.another() as others:
                two = await others.bucket("photos")
                buckets = [one, two]
                appends = [buckets[n % 2].append("cow", b"<%d>" % n) for n in range(12)]
                await asyncio.gather(*appends)
                found = (await two.get("cow")).decode()
                assert sorted(found[1:-1].split("><"), key=int) == [str(n) for n in range(12)]

    async def test_what_grows_in_many_small_steps_has_a_short_list(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            whole, counts = b"", []
            for number in range(75):
                whole += b"<%d>" % number
                info = await bucket.append("cow", b"<%d>" % number)
                counts.append(len(await bucket.core.blobs.parts_of(info.object_id)))
            assert max(counts) < 70
            assert await bucket.get("cow") == whole
            assert info.object_id.checksum == google_crc32c.value(whole)
            assert await owners_of(bucket) == ["n:cow"]
            assert await refs_count(bucket) == counts[-1] + (counts[-1] > 1)

    async def test_an_append_keeps_properties_and_obeys_its_condition(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            info = await bucket.put("cow", b"1", content_type="x/y", metadata={"a": "b"})
            made = await bucket.append("cow", b"2", if_match=info.etag)
            assert (made.content_type, made.metadata) == ("x/y", {"a": "b"})
            with pytest.raises(ConditionFailed):
                await bucket.append("cow", b"3", if_match=info.etag)
            with pytest.raises(ConditionFailed):
                await bucket.append("none", b"3", if_match=info.etag)
            assert await bucket.get("cow") == b"12"

    async def test_parts_of_unequal_size_are_read_from_any_offset(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            whole = b""
            for number, length in enumerate((37, 3, 211, 50, 1, 99)):
                await bucket.append("cow", body(length, number))
                whole += body(length, number)
            for offset in (0, 1, 36, 37, 39, 40, 41, 250, 251, 300, 301, 302, 400, len(whole)):
                pieces = [piece async for piece in bucket.stream("cow", offset)]
                assert b"".join(pieces) == whole[offset:]
                length = min(45, len(whole) - offset)
                assert await bucket.get_range("cow", offset, length) == whole[offset:][:length]

    async def test_concat_makes_one_of_many_and_takes_them_away(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            for name, length in (("a", 300), ("b", 0), ("c", 20), ("t", 77)):
                await bucket.put(name, body(length))
            info = await bucket.concat("t", ["a", "b", "c", "a"])
            assert await bucket.get("t") == body(300) + body(20) + body(300)
            assert info.length == 620
            assert await owners_of(bucket) == ["n:t"]
            await bucket.put("d", b"dd")
            await bucket.concat("t", ["d", "t"], keep=True)
            assert await bucket.get("t") == b"dd" + body(300) + body(20) + body(300)
            assert await bucket.get("d") == b"dd"
            with pytest.raises(NoSuchObject):
                await bucket.concat("t", ["d", "none"])
            assert (await bucket.concat("empty", [])).length == 0
            for name in ("t", "d", "empty"):
                assert await bucket.delete(name)
            assert await refs_count(bucket) == 0

    async def test_what_is_put_together_lasts_as_long_as_the_last_of_its_sources(
        self, tmp_path: Path
    ) -> None:
        async with self.bucket(tmp_path) as bucket:
            hour = bucket.core.now_ms + 3_600_000
            await bucket.put("all", b"gone", expires_ms=hour)
            await bucket.put("lasting", b"lasting")
            assert (await bucket.concat("all", ["lasting"])).expires_ms is None
            await bucket.put("soon", b"1", expires_ms=hour)
            await bucket.put("later", b"2", expires_ms=2 * hour)
            both = await bucket.concat("both", ["soon", "later"], keep=True)
            assert both.expires_ms == 2 * hour
            assert (await bucket.concat("mixed", ["soon", "all"])).expires_ms is None
            assert await bucket.get("mixed") == b"1lasting"

    async def test_an_upload_in_parts_is_made_in_the_order_of_its_numbers(
        self, tmp_path: Path
    ) -> None:
        async with self.bucket(tmp_path) as bucket:
            await bucket.put("cow", body(90))
            upload = await bucket.create_upload("cow", content_type="x", metadata={"a": "b"})
            lengths = {7: 20, 1: 300, 3: 0, 10_000: 61}
            await asyncio.gather(
                *(bucket.put_part(upload, n, body(length, n)) for n, length in lengths.items())
            )
            await bucket.put_part(upload, 7, body(33, 7))
            assert [u.name for u in await bucket.uploads()] == ["cow"]
            assert await bucket.get("cow") == body(90)
            info = await bucket.complete_upload(upload)
            assert (info.content_type, info.metadata) == ("x", {"a": "b"})
            assert await bucket.get("cow") == body(300, 1) + body(33, 7) + body(61, 10_000)
            assert await bucket.uploads() == []
            assert await owners_of(bucket) == ["n:cow"]
            for call in (
                bucket.put_part(upload, 1, b"late"),
                bucket.complete_upload(upload),
                bucket.abort_upload(upload),
            ):
                with pytest.raises(NoSuchUpload):
                    await call

    async def test_only_named_parts_are_taken_and_the_others_let_go(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            upload = await bucket.create_upload("cow")
            for number in (1, 2, 3):
                await bucket.put_part(upload, number, body(60, number))
            for wrong in ([1, 4], [1, 1]):
                with pytest.raises(PartMissing):
                    await bucket.complete_upload(upload, wrong)
            for number in (0, 10_001):
                with pytest.raises(RangeInvalid):
                    await bucket.put_part(upload, number, b"x")
            one, _, three = await bucket.parts(upload)
            again = await bucket.put_part(upload, 3, body(60, 3))
            with pytest.raises(ConditionFailed):
                await bucket.complete_upload(upload, parts=[three, one])
            await bucket.complete_upload(upload, parts=[again, one])
            assert await bucket.get("cow") == body(60, 3) + body(60, 1)
            await bucket.delete("cow")
            assert await refs_count(bucket) == 0

    async def test_who_goes_on_with_an_upload_learns_what_it_has(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            upload = await bucket.create_upload("cow", content_type="x", metadata={"a": "b"})
            assert await bucket.parts(upload) == []
            put = [await bucket.put_part(upload, n, body(300 * n, n)) for n in (2, 1)]
            assert await bucket.parts(upload) == sorted(put, key=lambda part: part.number)
            assert [part.checksum for part in put] == [
                google_crc32c.value(body(600, 2)),
                google_crc32c.value(body(300, 1)),
            ]
            (begun,) = await bucket.uploads()
            assert (begun.content_type, begun.metadata) == ("x", {"a": "b"})
            await bucket.complete_upload(upload)
            with pytest.raises(NoSuchUpload):
                await bucket.parts(upload)

    async def test_an_aborted_upload_leaves_nothing(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            upload = await bucket.create_upload("cow")
            await bucket.put_part(upload, 1, body(700))
            assert await refs_count(bucket) > 1
            await bucket.abort_upload(upload)
            assert await refs_count(bucket) == 0
            assert not await bucket.exists("cow")

    async def test_what_an_object_holds_is_known_when_its_list_is_lost_for_good(
        self, tmp_path: Path
    ) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("photos")
            names = ("deleted", "replaced", "renamed", "grown", "copied")
            for name in names:
                await bucket.put(name, body(120))
                info = await bucket.append(name, body(60, 1))
                list_lost(store, info.object_id)
            assert await bucket.delete("deleted")
            await bucket.put("replaced", b"new")
            await bucket.rename("renamed", "moved")
            with pytest.raises(BlobUnreadable):
                await bucket.get("moved")
            await bucket.append("grown", body(30, 2))
            assert await bucket.get("grown") == body(120) + body(60, 1) + body(30, 2)
            assert (await bucket.copy("copied", "twin")).length == 180
            assert await bucket.get("replaced") == b"new"
            left = ["copied", "grown", "moved", "replaced", "twin"]
            assert await owners_of(bucket) == [f"n:{name}" for name in left]
            await bucket.delete_many(left)
            assert await refs_count(bucket) == 0

    async def test_an_upload_whose_lists_are_lost_ends_as_any_other(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("photos")
            for complete in (True, False):
                upload = await bucket.create_upload("cow")
                for number in (1, 2, 2):
                    await bucket.put_part(upload, number, body(300, number))
                    (*_, row) = [row async for row in bucket.core.rows.scan("upload_parts")]
                    list_lost(store, ObjectId.from_bytes(row["object_id"]))
                if complete:
                    await bucket.complete_upload(upload)
                    assert await bucket.get("cow") == body(300, 1) + body(300, 2)
                    await bucket.delete("cow")
                else:
                    await bucket.abort_upload(upload)
                assert await refs_count(bucket) == 0

    async def test_an_unnamed_object_whose_list_is_lost_is_let_go(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("photos")
            object_id = await bucket.put_unnamed(body(300))
            list_lost(store, object_id)
            assert await bucket.delete_unnamed(object_id)
            assert not await bucket.delete_unnamed(object_id)
            assert await refs_count(bucket) == 0

    async def test_parts_that_do_not_add_up_are_never_put_together(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("photos")
            await bucket.put("cow", body(120))
            info = await bucket.append("cow", body(60, 1))
            list_lost(store, info.object_id)
            (*_, row) = [row async for row in bucket.core.rows.scan("refs") if row["part"]]
            part = ObjectId.from_bytes(row["object_id"])
            gone = {bucket.core.ref_key("n:cow", row["part"], part): None}
            await bucket.core.committer.change(
                Change((), lambda _: Effect(dict(gone), True), lambda _: None)
            )
            with pytest.raises(BlobUnreadable, match="add up"):
                await bucket.append("cow", b"more")
            assert await bucket.delete("cow")
            assert await refs_count(bucket) == 0

    async def test_parts_put_while_an_upload_is_completed_are_in_it_or_refused(
        self, tmp_path: Path
    ) -> None:
        async with self.bucket(tmp_path) as bucket:
            upload = await bucket.create_upload("cow")
            await bucket.put_part(upload, 1, b"<1>")
            puts = [bucket.put_part(upload, n, b"<%d>" % n) for n in range(2, 9)]
            info, *answers = await asyncio.gather(
                bucket.complete_upload(upload), *puts, return_exceptions=True
            )
            wanted = [1] + [n for n, put in enumerate(answers, 2) if not isinstance(put, Exception)]
            assert all(isinstance(p, NoSuchUpload) for p in answers if isinstance(p, Exception))
            assert not isinstance(info, BaseException)
            assert (await bucket.get("cow")).decode() == "".join(f"<{n}>" for n in wanted)

    async def test_an_object_replaced_while_it_is_read_is_never_mixed(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("photos")
            first = await bucket.put("cow", body(900, 1))
            assert first.object_id.kind is Kind.LIST
            pieces = bucket.stream("cow")
            got = [await anext(pieces)]
            await bucket.put("cow", body(900, 2))
            for part in await store.blobs.parts_of(first.object_id):
                await store.blobs.client.delete_ledger(part.ledger_id)
            with pytest.raises(ObjectChanged):
                async for piece in pieces:
                    got.append(piece)
            assert body(900, 1).startswith(b"".join(got))
            assert await bucket.get("cow") == body(900, 2)
