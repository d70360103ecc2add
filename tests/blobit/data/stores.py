"""Stores of objects over bookies that do as told, with sizes that make everything happen early."""

import asyncio
from dataclasses import replace

from blobit import BlobSettings
from blobit.reading import Readers
from blobit.writers import LedgerPlan, LedgerPool, LedgerPools
from engine.ledger.client import LedgerClient
from tests.engine.ledger.scripted import QUICK, Cluster
from tests.simulation.loop import SimLoop
from tests.simulation.nodes import SimClock

SMALL = BlobSettings(
    entry_bytes=10,
    stream_entry_bytes=20,
    ledger_bytes_max=200,
    shared_object_bytes_max=50,
    shared_pending_bytes_max=100,
    stream_pending_bytes_max=60,
    batch_bytes=40,
    read_ahead_bytes=25,
    readers_max=4,
    streams_max=2,
)


def client_of(cluster: Cluster, *, write_quorum: int | None = None) -> LedgerClient:
    """A client whose ledgers have all bookies, and that asks for few bytes at once."""
    ensemble = len(cluster.bookies)
    client = cluster.client(
        replace(
            QUICK,
            ensemble=ensemble,
            write_quorum=write_quorum or ensemble,
            ack_quorum=min(2, write_quorum or ensemble),
            read_bytes_max=60,
            stripe_entries=4,
        )
    )
    loop = asyncio.get_running_loop()
    if isinstance(loop, SimLoop):
        client.clock = client.time.clock = SimClock(loop, 0.0)
    return client


async def pool_and_readers(
    plan: LedgerPlan | None = None, settings: BlobSettings = SMALL
) -> tuple[Cluster, LedgerPool, Readers]:
    """One bookie, a pool of its ledgers, and readers of them."""
    cluster = await Cluster.of(1)
    client = client_of(cluster)
    pool = LedgerPools(client, settings).pool(plan)
    return cluster, pool, Readers(client, settings.readers_max)
