"""Opening a folder: ledgers, blobs, tables and tasks in this process, durable in the folder.

    with herdbook.open("./data") as book:
        object_id = book.blobs.put(b"moo")
        book.blobs.get(object_id)
        photos = book.blobs.create_bucket("photos")
        photos.put("2024/elsa.jpg", data)
        with book.sql() as connection:
            connection.execute("CREATE TABLE cows (id BIGINT PRIMARY KEY, name TEXT)")
        book.table("cows").put({"id": 1, "name": "Elsa"})
        for transaction in book.changes(follow=False):
            print(transaction.position, transaction.changes)
        with book.ledgers.create_ledger() as writer:
            writer.append(b"moo")
        with book.tasks.workers(2):
            book.tasks.submit(resize, {"path": "2024/elsa.jpg"}).wait()

Invariants:
- What a call acknowledged is on the disk; closing adds nothing to that and only lets go.
- `open` and `open_async` open the same folder in the same way, and may do so at the same time.
- Tablespaces run with the first opener who wants one; the others reach them there, and when that
  one ends the next who asks runs them. So do tasks, with the first opener who wants some.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

from blobit import AsyncBlobs, BlobSettings
from broker.folder import FolderBroker
from broker.ports import UserMapping, mapping_of
from broker.settings import BrokerSettings, Target
from engine import cluster
from engine.bookie.settings import BookieSettings
from engine.folder.naming import refuse_url
from engine.ports.metrics import NO_METRICS, Metrics
from engine.ports.system_workers import ThreadWorkers
from herd.store import AsyncHerd, open_herd
from herdbook.opened import AsyncOpened, Opened
from herdbook.payload_store import BucketPayloads

if TYPE_CHECKING:
    from broker.rollouts.alarming import Alarms
    from broker.rollouts.discovery import Discovery
    from broker.tasks import AsyncTasks

_CLUSTERS: Final = "a cluster is reached by herdbook.connect(url), or connect_async"


class AsyncBook(AsyncOpened):
    """An open folder, for code with an event loop. Made by `open_async`."""

    ledgers: cluster.Engine
    herd: AsyncHerd

    def __init__(
        self,
        ledgers: cluster.Engine,
        blobs: AsyncBlobs,
        herd: AsyncHerd,
        broker: FolderBroker,
    ) -> None:
        super().__init__(ledgers, blobs, herd)
        self.broker = broker
        """What runs the folder's tasks, once somebody wants some."""

    @property
    def url(self) -> str:
        """The folder's absolute path, by which another process opens it, too."""
        return str(self.ledgers.path)

    async def tasks(self) -> "AsyncTasks":
        """Tasks: submit, wait, schedule, run. Raises `broker.errors.BrokerUnavailable`."""
        return await self.broker.tasks()


@asynccontextmanager
async def open_async(
    path: str | PathLike[str],
    *,
    bookies: int = 1,
    settings: BlobSettings | None = None,
    broker: BrokerSettings | None = None,
    mapping: "UserMapping | Mapping[str, Target] | None" = None,
    discoveries: "Mapping[str, Discovery] | None" = None,
    alarms: "Alarms | None" = None,
    metrics: Metrics = NO_METRICS,
    reserve_bytes: int = 0,
) -> AsyncIterator[AsyncBook]:
    """Open a folder, making it if it is not there, as long as the block lasts.

    `bookies` is how many copies a new folder keeps. `broker` has the settings for running tasks.
    `mapping` says where a tenant's tasks run: a function of tenant and type, or a table by tenant.
    `discoveries` are ways to find the nodes of roll-outs, by the names that documents use, and
    `alarms` is called for roll-outs that go wrong. All of these apply only while the tasks run with
    this opener. `metrics` receives what is measured in this process. If less than `reserve_bytes`
    is free on the folder's disk, no new data is accepted; 0: 1 GiB, or 5 % of a smaller disk.
    Raises `engine.errors.FolderError`, `DiskFull`, and `InvalidRequest` for the url of a cluster.
    """
    refuse_url(path, _CLUSTERS)
    kept = BookieSettings().keeping(reserve_bytes)
    async with cluster.open(
        Path(path), bookies=bookies, bookie_settings=kept, metrics=metrics
    ) as ledgers:
        workers = ThreadWorkers(asyncio.get_running_loop())
        try:
            # Blobs are closed first: ledgers that end have rows that say so.
            async with (
                open_herd(ledgers, path, workers) as herd,
                AsyncBlobs(ledgers, settings, workers, herd) as blobs,
                FolderBroker(
                    ledgers,
                    Path(path),
                    workers,
                    broker,
                    mapping=mapping_of(mapping),
                    payloads=BucketPayloads(blobs, ledgers.rng),
                    discoveries=discoveries,
                    alarms=alarms,
                    metrics=metrics,
                ) as tasks,
            ):
                yield AsyncBook(ledgers, blobs, herd, tasks)
        finally:
            await workers.close()


class Book(Opened):
    """An open folder. Made by `open`; a context manager."""


def open(
    path: str | PathLike[str],
    *,
    bookies: int = 1,
    settings: BlobSettings | None = None,
    broker: BrokerSettings | None = None,
    mapping: "UserMapping | Mapping[str, Target] | None" = None,
) -> Book:
    """Open a folder, making it if it is not there. Close the book, or use it in a `with` block.

    For what is said see `open_async`, which raises the same.
    """
    return Book(
        open_async(path, bookies=bookies, settings=settings, broker=broker, mapping=mapping)
    )
