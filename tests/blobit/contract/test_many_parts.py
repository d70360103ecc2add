"""Objects of many parts: what changes is written, what stays is left alone."""

from pathlib import Path

from blobit.bucket_core import Asked, Known
from blobit.tables import LedgerKind
from herd.commands import Write
from tests.blobit.contract.objects_contract import body, refs_count
from tests.blobit.contract.stores import embedded

PARTS = 1_200


async def test_a_small_step_of_a_long_object_changes_a_few_rows(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        core, known = bucket.core, Known()
        part = (await bucket.put("part", body(40))).object_id
        # So large that nothing of it is written together.
        pool = core.pool(LedgerKind.NAMED)
        whole = await core.list_of([part] * PARTS, pool, known)
        asked = Asked("cow")
        await core.commit(core.put_change(asked, core.version(asked, whole, 1), known), known)
        assert await refs_count(bucket) == PARTS + 2

        changed: list[int] = []
        space = await store.herd.tablespace("blobs")

        def count(_position: object, command: object) -> None:
            assert isinstance(command, Write)
            changed.append(len(command.rows))

        forget = space.watch(count)
        other = await bucket.put("cow", body(40))
        assert other.length == 40 and max(changed) > PARTS
        forget()
        assert await bucket.get("cow") == body(40)


async def test_parts_that_stay_where_they_are_are_not_written_again(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        bucket = await store.blobs.create_bucket("photos")
        for number in range(20):
            await bucket.append("cow", body(30, number))
        changed: list[int] = []
        space = await store.herd.tablespace("blobs")

        def count(_position: object, command: object) -> None:
            assert isinstance(command, Write)
            changed.append(len(command.rows))

        space.watch(count)
        for number in range(20, 30):
            await bucket.append("cow", body(30, number))
        # The new part, the list in place of the old one, the object and a count; or a ledger's row.
        assert max(changed) <= 5, changed
        assert await bucket.get("cow") == b"".join(body(30, number) for number in range(30))
        assert await refs_count(bucket) == 31
