"""What buckets promise of listings, however their names are reached."""

import string
from pathlib import Path

import pytest

from blobit import AsyncBucket, InvalidName, InvalidToken, RangeInvalid
from tests.blobit.contract.objects_contract import Suite

NAMES = [
    "a",
    "a/1",
    "a/2/x",
    "a/2/y",
    "a0",
    "b/",
    "b//c",
    "dir/ä",
    "dir/\uffff",
    "dir/\U0001f404",
    "z%_",
    "z*",
]


async def paged(bucket: AsyncBucket, prefix: str, delimiter: str, limit: int) -> list[str]:
    """All of a listing, page by page; prefixes and names as they come."""
    found: list[str] = []
    token = ""
    while True:
        page = await bucket.list(prefix, delimiter=delimiter, token=token, limit=limit)
        some = [info.name for info in page.objects] + page.prefixes
        assert len(some) <= limit
        found += sorted(some, key=str.encode)
        token = page.token
        if not token:
            return found
        assert some


def expected(prefix: str, delimiter: str) -> list[str]:
    shown: set[str] = set()
    for name in NAMES:
        if not name.startswith(prefix):
            continue
        at = name.find(delimiter, len(prefix)) if delimiter else -1
        shown.add(name if at < 0 else name[: at + len(delimiter)])
    return sorted(shown, key=str.encode)


class ListingContract(Suite):
    """List and scan."""

    async def test_every_page_size_shows_the_same_names_in_order(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            await bucket.put_many([(name, name.encode()) for name in NAMES])
            for prefix in ("", "a", "a/", "b/", "dir/", "z%", "none", "\U0010ffff", "a" * 30_000):
                assert [i.name async for i in bucket.scan(prefix)] == expected(prefix, "")
                for delimiter in ("", "/", "//", "2/"):
                    for limit in (1, 2, 3, 1_000):
                        found = await paged(bucket, prefix, delimiter, limit)
                        assert found == expected(prefix, delimiter), (prefix, delimiter, limit)

    async def test_listings_of_buckets_do_not_meet(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            one = await store.blobs.create_bucket("one")
            two = await store.blobs.create_bucket("two")
            await one.put("a", b"1")
            await two.put("b", b"2")
            await two.put("a", b"3")
            assert [(i.name, await one.get(i.name)) async for i in one.scan()] == [("a", b"1")]
            assert [i.name async for i in two.scan()] == ["a", "b"]
            await two.delete_many(["a", "b"])
            assert await one.get("a") == b"1"

    async def test_a_listing_goes_on_while_names_come_and_go(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            await bucket.put_many([(f"{n:03}", b"") for n in range(0, 100, 2)])
            page = await bucket.list(limit=10)
            await bucket.delete_many([info.name for info in page.objects])
            await bucket.put("001", b"")
            await bucket.put("099", b"")
            rest = await bucket.list(token=page.token)
            names = [info.name for info in rest.objects]
            assert names == [f"{n:03}" for n in range(20, 100, 2)] + ["099"]
            assert rest.token == ""

    async def test_a_token_that_is_not_of_this_listing_is_refused(self, tmp_path: Path) -> None:
        async with self.open(tmp_path) as store:
            bucket = await store.blobs.create_bucket("photos")
            other = await store.blobs.create_bucket("other")
            await bucket.put_many([(f"p/{n}", b"") for n in range(3)])
            token = (await bucket.list("p/", limit=1)).token
            assert token
            for bad in ("x", "ä", token[:-1], token + "A", "B" + token[1:], "A" * 9_000, "=", "-"):
                with pytest.raises(InvalidToken):
                    await bucket.list("p/", token=bad)
            for place, letter in enumerate(token):
                changed = token[:place] + ("A" if letter != "A" else "B") + token[place + 1 :]
                with pytest.raises(InvalidToken):
                    await bucket.list("p/", token=changed)
            for letter in {*string.ascii_letters, *string.digits, "-", "_"} - {token[-1]}:
                with pytest.raises(InvalidToken):
                    await bucket.list("p/", token=token[:-1] + letter)
            with pytest.raises(InvalidToken):
                await bucket.list("p", token=token)
            with pytest.raises(InvalidToken):
                await bucket.list("p/", delimiter="/", token=token)
            with pytest.raises(InvalidToken):
                await other.list("p/", token=token)
            with pytest.raises(RangeInvalid):
                await bucket.list(limit=0)
            with pytest.raises(InvalidName):
                await bucket.list("\ud800")
            assert len((await bucket.list("p/", token=token)).objects) == 2

    async def test_names_that_are_over_are_in_no_listing(self, tmp_path: Path) -> None:
        async with self.bucket(tmp_path) as bucket:
            for name in ("a/1", "a/2", "b/1", "b/2", "c"):
                await bucket.put(name, b"", expires_ms=1 if name != "b/2" else None)
            page = await bucket.list(delimiter="/")
            assert (page.objects, page.prefixes) == ([], ["b/"])
            assert await paged(bucket, "", "/", 1) == ["b/"]
            assert [info.name async for info in bucket.scan()] == ["b/2"]
