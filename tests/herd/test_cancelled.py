"""A commit cancelled at any await happens completely or not at all, and loses no other commit."""

from engine.state.memory import MemoryState
from tests.engine.ledger.scripted import Cluster
from tests.engine.metadata.late_store import LateStore, cancelled_at
from tests.herd.spaces import insert, made, opened, rows_of


async def test_a_commit_cancelled_at_any_await_happens_completely_or_not_at_all() -> None:
    cluster = await Cluster.of(3)
    acknowledged: list[int] = []
    doubtful: list[int] = []
    async with opened(cluster=cluster) as space:
        deadlines = space.client.store
        store = deadlines._store = LateStore(deadlines._store)  # type: ignore[attr-defined]
        table = await made(space, "cow")
        place, cut = 0, True
        while cut:
            place += 1
            transaction = space.begin()
            await insert(transaction, table, [place, 0, "one"], [1_000 + place, 0, "two"])
            cut = await cancelled_at(place, transaction.commit())
            (doubtful if cut else acknowledged).append(place)
            if place % 3 == 0:
                # The log goes on in another ledger, which is listed while callers come and go.
                leading = space.replica._leading
                assert leading is not None
                await cancelled_at(place, leading.writer._turn())
                await store.land()
            following = space.begin()
            await insert(following, table, [2_000 + place, 0, "next"])
            await following.commit()
            acknowledged.append(2_000 + place)
        await space.replica.snapshot()
    await store.land()
    assert doubtful
    async with opened(state=MemoryState(), cluster=cluster) as again:
        found = {row[0] for row in rows_of(again, again.catalog.table("cow"))}
    assert found.issuperset(acknowledged)
    for number in (*doubtful, *(one for one in acknowledged if one < 1_000)):
        assert (number in found) == (1_000 + number in found), number
