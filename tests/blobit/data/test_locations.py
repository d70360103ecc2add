"""Where objects lie: by their own entries' bookies, over stripes and changed ensembles."""

import pytest

from blobit import BlobNotFound
from blobit.locations import Location, locations_of
from blobit.object_id import EMPTY
from blobit.reading import Readers
from blobit.upload import put_list, put_shared
from blobit.writers import LedgerPools
from engine.metadata.bookies import Registration
from engine.transport.contract import Status
from tests.blobit.data.stores import SMALL, client_of
from tests.engine.ledger.scripted import Cluster


async def test_an_object_lies_on_its_ensemble_by_address_or_by_id() -> None:
    cluster = await Cluster.of(2)
    await cluster.registry.register(Registration("b1", 1, address="tcp:farm:4000"))
    client = client_of(cluster)
    readers, pools = Readers(client, 4), LedgerPools(client, SMALL)
    name = await put_shared(pools.pool(), bytes(35))
    (found,) = await locations_of(client, readers, name)
    assert (found.offset, found.length) == (0, 35)
    assert sorted(found.bookies) == ["b0", "tcp:farm:4000"]
    assert await locations_of(client, readers, EMPTY) == []
    await pools.close()


async def test_stripes_lie_on_different_bookies_and_ranges_cover_the_object() -> None:
    cluster = await Cluster.of(3)
    client = client_of(cluster, write_quorum=2)
    readers, pools = Readers(client, 4), LedgerPools(client, SMALL)
    pool = pools.pool()
    # Stripes of four entries of ten bytes; the second object begins in the middle of one.
    await put_shared(pool, bytes(15))
    name = await put_shared(pool, bytes(50))
    found = await locations_of(client, readers, name)
    assert [(one.offset, one.length) for one in found] == [(0, 20), (20, 30)]
    metadata = await client.ledger_metadata(name.ledger_id)
    for one in found:
        entry_id = name.first_entry + one.offset // 10
        ensemble = metadata.fragment_of(entry_id).ensemble
        assert one.bookies == tuple(ensemble[index] for index in metadata.write_set(entry_id))
    await pools.close()


async def test_an_object_behind_a_changed_ensemble_lies_on_the_new_one() -> None:
    cluster = await Cluster.of(2)
    client = client_of(cluster)
    await cluster.add("b2")
    readers, pools = Readers(client, 4), LedgerPools(client, SMALL)
    pool = pools.pool()
    first = await put_shared(pool, b"moo")
    metadata = await client.ledger_metadata(first.ledger_id)
    gone = metadata.fragments[0].ensemble[0]
    cluster.transport.bookies[gone].append_status = Status.UNAVAILABLE
    cluster.transport.bookies[gone].down = True
    second = await put_shared(pool, b"baa")
    assert second.ledger_id == first.ledger_id
    (here,) = await locations_of(client, readers, second)
    assert gone not in here.bookies and "b2" in here.bookies
    joined = await put_list(pool, [second, second])
    assert await locations_of(client, readers, joined) == [Location(0, 6, here.bookies)]
    await pools.close()


async def test_an_object_of_a_deleted_ledger_lies_nowhere() -> None:
    cluster = await Cluster.of(1)
    client = client_of(cluster)
    readers, pools = Readers(client, 4), LedgerPools(client, SMALL)
    name = await put_shared(pools.pool(), b"moo")
    await pools.close()
    await client.delete_ledger(name.ledger_id)
    with pytest.raises(BlobNotFound):
        await locations_of(client, readers, name)
