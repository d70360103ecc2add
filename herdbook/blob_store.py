"""The blobs of a store: found by the one rule, opened for an event loop or for threads.

Invariants:
- A look makes nothing: a folder that is no store is an error, unless the caller wants it made.
- Threads of one process share what is open; a forked child opens its own.
- A url names the same store in another process of the same machine: a folder's is absolute.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from engine.ports.system_loop import BackgroundLoop, background_loop
from engine.ports.system_workers import ThreadWorkers
from herdbook.finding import (
    FILE_VARIABLE,
    Configuration,
    check_store,
    configuration_file,
    find,
    is_cluster,
    read_configuration,
)

if TYPE_CHECKING:
    from blobit import AsyncBlobs, AsyncBucket, ObjectInfo

R = TypeVar("R")
SCHEME: Final = "blobit://"


class Address(NamedTuple):
    """A bucket, and a name in it; "" for the bucket itself."""

    bucket: str
    name: str

    def __str__(self) -> str:
        return f"{self.bucket}/{self.name}" if self.name else self.bucket


def parse_address(text: str) -> Address:
    """What `bucket/name` or `blobit://bucket/name` names. Nothing is checked.

    >>> parse_address("blobit://cows/2024/elsa.jpg")
    Address(bucket='cows', name='2024/elsa.jpg')
    >>> parse_address("cows")
    Address(bucket='cows', name='')
    """
    bucket, _, name = text.removeprefix(SCHEME).partition("/")
    return Address(bucket, name)


def found_url(argument: str | None = None) -> str:
    """The store that the rule finds, in a form that means the same in another process.

    Raises `StoreNotFound`, `InvalidRequest`.
    """
    return _found(argument)[0]


def _found(argument: str | None, *, create: bool = False) -> tuple[str, Configuration]:
    needed = bool(os.environ.get(FILE_VARIABLE))
    configuration = read_configuration(configuration_file(os.environ), needed=needed)
    url = find(argument, os.environ, configuration, create=create)
    return (url if is_cluster(url) else str(Path(url).absolute())), configuration


@asynccontextmanager
async def open_blobs(
    argument: str | None = None, *, create: bool = False
) -> "AsyncIterator[AsyncBlobs]":
    """The blobs of the store that the rule finds, as long as the block lasts.

    With `create` a folder that is named and is not there, or holds no store, becomes one. Raises
    `StoreNotFound`, and what `herdbook.open` and `engine.connect` raise.
    """
    url, configuration = _found(argument, create=create)
    if is_cluster(url):
        async with _connected(url, configuration) as blobs:
            yield blobs
        return
    if not create:
        check_store(Path(url))
    async with _opened(Path(url)) as blobs:
        yield blobs


@asynccontextmanager
async def _opened(folder: Path) -> "AsyncIterator[AsyncBlobs]":
    """The blobs of a folder, over tablespaces that nobody else of this process ends."""
    # A client of a cluster needs neither RocksDB nor a folder's lock.
    from blobit import AsyncBlobs
    from engine import cluster
    from herd.store import AsyncHerd

    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        async with cluster.open(folder) as ledgers:
            herd = AsyncHerd(ledgers, folder, workers)
            try:
                async with AsyncBlobs(ledgers, None, workers, herd) as blobs:
                    yield blobs
            finally:
                await herd.close()
    finally:
        await workers.close()


@asynccontextmanager
async def _connected(url: str, configuration: Configuration) -> "AsyncIterator[AsyncBlobs]":
    # What a cluster needs loads when one is reached.
    from blobit import AsyncBlobs
    from engine.connecting import connect
    from herd.wire.cluster import open_cluster

    security, zookeeper = configuration.make_security(), configuration.make_zookeeper()
    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        async with (
            connect(
                url,
                settings=configuration.make_settings(),
                security=security,
                wire=configuration.wire,
                zookeeper=zookeeper,
            ) as client,
            open_cluster(url, security=security, zookeeper=zookeeper) as herd,
        ):
            blobs = AsyncBlobs(client, None, workers, herd)
            try:
                yield blobs
            finally:
                await blobs.close()
    finally:
        await workers.close()


class HeldStore:
    """A store that stays open on the background loop until its process ends."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.loop: BackgroundLoop = background_loop()
        self._opening = self._hold()
        self.blobs: AsyncBlobs = self.loop.run(self._begin)
        atexit.register(self.close)

    @property
    def usable(self) -> bool:
        """Whether this is the process that opened it."""
        return self.loop.usable

    def run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine on the loop and wait for its result, or raise what it raised."""
        return self.loop.run(call)

    def close(self) -> None:
        """Let go of the store. In a forked child it does nothing."""
        atexit.unregister(self.close)
        if self.usable:
            self.loop.run(self._end)

    async def _hold(self) -> "AsyncIterator[AsyncBlobs]":
        async with open_blobs(self.url) as blobs:
            yield blobs

    async def _begin(self) -> "AsyncBlobs":
        return await anext(self._opening)

    async def _end(self) -> None:
        await anext(self._opening, None)


_held: dict[str, HeldStore] = {}
_holding = threading.Lock()


def hold_store(url: str) -> HeldStore:
    """The store of a url, opened if it is not. Raises as `open_blobs` does."""
    found = _held.get(url)
    if found is not None and found.usable:
        return found
    with _holding:
        found = _held.get(url)
        if found is None or not found.usable:
            found = _held[url] = HeldStore(url)
        return found


def let_go(url: str) -> None:
    """Close the store of a url, if it is held. Who needs it next opens it again."""
    with _holding:
        found = _held.pop(url, None)
    if found is not None:
        found.close()


async def remove_source(bucket: "AsyncBucket", info: "ObjectInfo") -> None:
    """Finish a move to another bucket by removing the version that was copied.

    Raises `ConditionFailed`, `CommitOutcomeUnknown`. If the outcome is unknown, it is enough that
    the source is gone.
    """
    from blobit import BlobError, CommitOutcomeUnknown, NoSuchBucket

    try:
        await bucket.delete(info.name, if_match=info.etag)
    except CommitOutcomeUnknown:
        try:
            gone = not await bucket.exists(info.name)
        except NoSuchBucket:
            gone = True
        except BlobError:
            gone = False
        if not gone:
            raise


def _after_fork() -> None:
    """The parent may have forked while another thread held the lock."""
    global _holding
    _holding = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
