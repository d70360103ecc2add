"""The metadata store of a cluster, in ZooKeeper.

Invariants:
- A call waits for a connection, then is sent once if it writes, again after a loss if it only
  reads; all within its deadline. A write whose connection was lost raises `MetadataUnavailable`.
- A new connection serves nobody before it has caught up with the leader and shown the same
  cluster id: a store never goes back in time, and never reaches two clusters.
- A session that expired is followed by another one. Its ephemeral keys are not made again, and an
  ephemeral key that may be of the old one is never reported as made.
- A watch outlives connections and sessions, and fires after each new one.
- In a cluster of an earlier version, a key is made only while the layout is still the one that
  this store has read. So no key appears in a place where others have ceased to look.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from engine.errors import (
    EngineError,
    FolderMismatch,
    FormatTooNew,
    InvalidRequest,
    KeyExists,
    MetadataUnavailable,
    NoSuchCluster,
    NotFound,
    NoZooKeeper,
    VersionConflict,
)
from engine.metadata.contract import Page, Versioned
from engine.metadata.losses import Losses
from engine.metadata.majors import LAYOUT_MAJOR
from engine.metadata.tree import check_key, check_value, numbers_of
from engine.metadata.zookeeper_client import (
    Check,
    ConnectionLost,
    Create,
    Delete,
    Link,
    Set,
    Step,
    ZooKeeperClient,
)
from engine.metadata.zookeeper_numbers import Numbers
from engine.metadata.zookeeper_paths import (
    FOLDER_NUMBERS,
    NUMBERED,
    Layout,
    Spread,
    ancestors,
    is_numbered,
)
from engine.metadata.zookeeper_settings import WAITING_LOG, ZooKeeperSettings
from engine.metadata.zookeeper_watches import Watches

FORMAT_MAJOR: Final = LAYOUT_MAJOR
"""Of the layout. Version 1 has no folders of numbered keys, and is still read and written."""
_AT_ONCE: Final = 16
_STRAYS_MAX: Final = 1_000
_VERSION_MAX: Final = 5_000
_MOVED_A_CHECK: Final = 256
_ATTEMPTS_MAX: Final = 8
_GREET_AGAIN_S: Final = 0.5
_WAITING_LOG: Final = logging.getLogger(WAITING_LOG)

T = TypeVar("T")


class ClusterNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the node `cluster!` says, as JSON. `numbered` says where numbered keys are."""

    cluster_id: str
    format_major: int
    numbered: Spread = Spread.FOLDERS

    @property
    def spread(self) -> Spread:
        """Where numbered keys are. Version 1 knew one place only."""
        return self.numbered if self.format_major >= FORMAT_MAJOR else Spread.FLAT


class ZooKeeperStore:
    """A `MetadataStore` under a chroot of a ZooKeeper ensemble. Made by `connect`."""

    def __init__(
        self,
        hosts: str,
        layout: Layout,
        settings: ZooKeeperSettings,
        rng: random.Random,
        make: bool,
        cluster_id: str,
    ) -> None:
        self._make = make
        self._settings = settings
        self._layout = layout
        self._loop = asyncio.get_running_loop()
        self._fresh_cluster_id = cluster_id or f"{rng.getrandbits(128):032x}"
        self._cluster_id = ""
        self._cluster_version = 0
        self._format_major = FORMAT_MAJOR
        self._made = False
        self._losses = Losses()
        self._watches = Watches(layout)
        self._client = ZooKeeperClient(hosts, settings, self._on_link, self._watches.on_event)
        self._numbers = Numbers(layout, self._client)
        self._sessions_lost = 0
        self._ready = False
        self._waiting: list[asyncio.Future[None]] = []
        self._greeting: asyncio.Task[None] | None = None
        self._failure: EngineError | None = None
        self._closed = False

    @staticmethod
    async def connect(
        hosts: str,
        *,
        chroot: str = "/",
        settings: ZooKeeperSettings | None = None,
        rng: random.Random | None = None,
        make: bool = True,
        cluster_id: str = "",
    ) -> "ZooKeeperStore":
        """Begin a session with one of `hosts` ("zk1:2181,zk2:2181"), below `chroot`.

        What is missing of the chroot is made, and the cluster's id with it: `cluster_id`, or one
        drawn from `rng`; unless `make` is false: then a chroot without a cluster raises
        `NoSuchCluster`. An id that a cluster there has already stands.
        Raises `NoZooKeeper` after `connect_timeout_ms`, `InvalidRequest`, `Unauthorized`,
        `FormatTooNew`.
        """
        if not hosts or "/" in hosts:
            raise InvalidRequest(f"not a list of ZooKeeper hosts: {hosts!r}")
        settings = settings or ZooKeeperSettings()
        rng = rng or random.Random()
        store = ZooKeeperStore(hosts, Layout(chroot), settings, rng, make, cluster_id)
        waiting = store._loop.call_later(
            settings.patience_ms / 1000, _WAITING_LOG.warning, "waiting for ZooKeeper at %s", hosts
        )
        try:
            store._client.start()
            async with asyncio.timeout(settings.connect_timeout_ms / 1000):
                await store._linked()
        except BaseException as error:
            words = store._client.last_words
            await store.close()
            if store._failure is not None:
                raise store._failure from error
            if isinstance(error, TimeoutError):
                raise NoZooKeeper(
                    f"no ZooKeeper answered in time at {hosts}{f': {words}' if words else ''}; "
                    "check host and port, and whether it runs"
                ) from error
            raise
        finally:
            waiting.cancel()
        return store

    @property
    def cluster_id(self) -> str:
        """The random id given to the cluster when its chroot was first used."""
        return self._cluster_id

    @property
    def made(self) -> bool:
        """Whether this store made the cluster: there was none under the chroot."""
        return self._made

    @property
    def session(self) -> tuple[int, bytes] | None:
        """The ZooKeeper session's id and password; None while there is no connection."""
        return self._client.session

    async def get(self, key: str) -> Versioned | None:
        """The value, or None if the key is positively absent."""
        for path in self._layout.places(key):
            with contextlib.suppress(NotFound):
                return await self._read(partial(self._client.get, path))
        return None

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """Make a key; returns its version."""
        check_value(value)
        lost_before = self._sessions_lost
        await self._create(key, value, ephemeral)
        if ephemeral and lost_before != self._sessions_lost:
            raise MetadataUnavailable(f"{key} was made by a session that may be over")
        return 0

    async def set(self, key: str, value: bytes, version: int) -> int:
        """Compare-and-set; returns the new version."""
        places = self._layout.places(key)
        check_value(value)
        if version < 0:
            raise VersionConflict(f"{key} never has version {version}")
        for number, path in enumerate(places):
            if await self._may_be_at(path, number):
                with contextlib.suppress(NotFound):
                    return await self._write(partial(self._client.set, path, value, version))
        raise VersionConflict(f"{key} is gone, version {version} was expected")

    async def delete(self, key: str, version: int | None = None) -> None:
        """Remove a key; an absent one is a success."""
        for number, path in enumerate(self._layout.places(key)):
            if await self._may_be_at(path, number):
                with contextlib.suppress(NotFound):
                    await self._write(partial(self._client.delete, path, version))
                    return

    async def children(self, prefix: str) -> list[str]:
        """The names directly under `prefix`, sorted."""
        names, folders = await self._listed(prefix)
        if folders:
            found = set(names)
            for start in range(0, len(folders), _AT_ONCE):
                few = folders[start : start + _AT_ONCE]
                lists = await asyncio.gather(
                    *(self._nodes_in(prefix, each, folders[-1]) for each in few)
                )
                found.update(*map(self._layout.names, lists))
            names = sorted(found)
        return names

    async def page(self, prefix: str, above: int = -1) -> Page:
        """The next numbers directly under `prefix` that are greater than `above`: one folder's."""
        names, folders = await self._listed(prefix)
        flat = numbers_of(names)
        if prefix not in NUMBERED or len(flat) > _STRAYS_MAX:
            # In a cluster of an earlier version, one list has all of them anyway.
            names = await self.children(prefix) if folders else names
            return Page(_above(numbers_of(names), above), more=False)
        newest = folders[-1] if folders else -1
        every = sorted({*folders, *(number // FOLDER_NUMBERS for number in flat)})
        for folder in every:
            if folder >= above // FOLDER_NUMBERS:
                nodes = await self._nodes_in(prefix, folder, newest) if folder in folders else []
                strays = [number for number in flat if number // FOLDER_NUMBERS == folder]
                numbers = _above([*numbers_of(nodes), *strays], above)
                if numbers:
                    return Page(numbers, folder < every[-1])
        return Page([], more=False)

    async def next_id(self, counter: str) -> int:
        """A number never given before: one lost on the way is a gap."""
        return await self._read(lambda: self._numbers.next(counter))

    async def sync(self) -> None:
        """Let the server that answers this store catch up with all writes that have returned."""
        await self._read(lambda: self._client.sync(self._layout.cluster))

    async def server_ms(self) -> int:
        """The wall clock of the ensemble's leader, in milliseconds, from a node written now."""
        path = self._layout.clock

        async def ask() -> int:
            try:
                return await self._client.touch(path)
            except NotFound:
                with contextlib.suppress(KeyExists):
                    await self._client.create(path, b"")
                return await self._client.touch(path)

        return await self._read(ask)

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when the key or the names under it may have changed, and once at first."""
        return self._watches.add(key, changed)

    def watch_session(self, lost: Callable[[], None]) -> Callable[[], None]:
        """Call `lost` each time ZooKeeper has ended the session."""
        return self._losses.watch(lost)

    async def close(self) -> None:
        """End the session, or leave it to its time if the server is silent. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._ready = False
        self._wake()
        self._watches.close()
        self._numbers.close()
        if self._greeting is not None:
            self._greeting.cancel()
        await self._client.close()

    async def upgrade(
        self, ready: Callable[[], Awaitable[None]], moved: Callable[[int], None]
    ) -> int:
        """Move the numbered keys of a cluster of an earlier version into folders.

        From the first step on, programs of earlier versions cannot connect any more. Then `ready`
        is awaited before each few keys are moved; it raises if such a program is still running.
        `moved` is told how many have been moved so far. Returns how many were. If it ends early,
        the cluster works on, somewhat slower, until it is called again. It can be called again
        afterwards, too, to move what a program of an earlier version has made meanwhile.
        Raises what `ready` raises, `KeyExists` for a key that is in both places, and
        `MetadataUnavailable`.
        """
        await self._read_layout()
        left = [numbers_of((await self._listed(prefix))[0]) for prefix in NUMBERED]
        if self._layout.spread is Spread.FOLDERS and not any(left):
            return 0
        if self._format_major < FORMAT_MAJOR:
            await self._write_layout(Spread.FLAT)
        await ready()
        if self._layout.spread is Spread.FLAT:
            await self._write_layout(Spread.MOVING)
        total = 0

        def add(count: int) -> None:
            nonlocal total
            total += count
            moved(total)

        while True:
            left = [numbers_of((await self._listed(prefix))[0]) for prefix in NUMBERED]
            if not any(left):
                break
            for prefix, numbers in zip(NUMBERED, map(sorted, left), strict=True):
                for start in range(0, len(numbers), _MOVED_A_CHECK):
                    await ready()
                    await self._move_all(prefix, numbers[start : start + _MOVED_A_CHECK], add)
        if self._layout.spread is Spread.MOVING:
            await self._write_layout(Spread.FOLDERS)
        return total

    # The layout

    async def _create(self, key: str, value: bytes, ephemeral: bool) -> None:
        check_key(key)
        flat, numbered = self._layout.flat(key), is_numbered(key)
        for _ in range(_ATTEMPTS_MAX):
            version, spread = self._cluster_version, self._layout.spread
            path = flat if not numbered or spread is Spread.FLAT else self._layout.inside(key)
            steps: list[Step] = []
            if numbered and spread is not Spread.FOLDERS:
                steps = [Check(self._layout.cluster, version)]
                if spread is Spread.MOVING:
                    steps += [Create(flat), Delete(flat)]
            try:
                if steps:
                    await self._commit([*steps, Create(path, value, ephemeral)])
                else:
                    create = partial(self._client.create, path, value, ephemeral=ephemeral)
                    await self._write(create)
                return
            except VersionConflict:
                await self._read_layout()
            except NotFound:
                # A folder that was empty may have been removed.
                above = dict.fromkeys([*ancestors(flat), *ancestors(path)])
                await self._write(partial(self._client.make_folders, list(above)))
        raise MetadataUnavailable(f"{key} could not be made in {_ATTEMPTS_MAX} attempts")

    async def _may_be_at(self, path: str, number: int) -> bool:
        """Whether a write is worth trying there; a read costs the ensemble less."""
        return number == 0 or await self._read(partial(self._client.exists, path))

    async def _move_all(
        self, prefix: str, numbers: list[int], moved: Callable[[int], None]
    ) -> None:
        """Move keys, and tell how many each few of them were, also if one of these fails."""
        for start in range(0, len(numbers), _AT_ONCE):
            moves = [
                asyncio.ensure_future(self._move(f"{prefix}/{number}"))
                for number in numbers[start : start + _AT_ONCE]
            ]
            try:
                done = await asyncio.gather(*moves, return_exceptions=True)
            finally:
                for move in moves:
                    move.cancel()
            moved(sum(one is True for one in done))
            for one in done:
                if isinstance(one, BaseException):
                    raise one

    async def _move(self, key: str) -> bool:
        """Move a key to its place in this layout. Its version stays. False if it was not there."""
        flat, inside = self._layout.flat(key), self._layout.inside(key)
        while True:
            try:
                found = await self._read(partial(self._client.get, flat))
            except NotFound:
                return False
            # A version that began anew could let a late compare-and-set pass.
            version = min(found.version, _VERSION_MAX)
            counted: list[Step] = [Create(inside, b"" if version else found.value)]
            counted += [Set(inside)] * (version - 1)
            counted += [Set(inside, found.value)] * bool(version)
            try:
                await self._write(partial(self._client.make_folders, ancestors(inside)))
                await self._commit([Delete(flat, found.version), *counted])
                return True
            except KeyExists as error:
                raise KeyExists(
                    f"{key} is there twice, at {flat} and at {inside}: a program of an earlier "
                    "version made the first one again; remove the one that is wrong in ZooKeeper"
                ) from error
            except (NotFound, VersionConflict):
                continue

    async def _listed(self, prefix: str) -> tuple[list[str], list[int]]:
        """The names directly under a prefix, and its folders of numbered keys."""
        path = self._layout.folder(prefix)
        try:
            nodes = await self._read(partial(self._client.children, path))
        except NotFound:
            return [], []
        folders = self._layout.numbered_folders(nodes) if prefix in NUMBERED else []
        return self._layout.names(nodes), folders

    async def _nodes_in(self, prefix: str, folder: int, newest: int) -> list[str]:
        """The nodes in one folder of numbered keys. An empty one is removed, but for the newest."""
        path = self._layout.numbered_folder(prefix, folder)
        try:
            nodes = await self._read(partial(self._client.children, path))
            if not nodes and folder != newest:
                # If there is something in it again, or no connection, it stays.
                with contextlib.suppress(EngineError):
                    await self._write(partial(self._client.delete, path, None))
            return nodes
        except NotFound:
            return []

    async def _read_layout(self) -> None:
        self._take_cluster(*await self._read(self._read_cluster))

    async def _write_layout(self, spread: Spread) -> None:
        node = ClusterNode(self._cluster_id, FORMAT_MAJOR, spread)
        value, version = msgspec.json.encode(node), self._cluster_version
        with contextlib.suppress(VersionConflict):
            await self._write(lambda: self._client.set(self._layout.cluster, value, version))
        await self._read_layout()

    # Calls

    async def _commit(self, steps: Sequence[Step]) -> None:
        await self._write(partial(self._client.commit, steps))

    async def _read(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask, and ask again on the next connection if this one is lost."""
        async with _Deadline(self._settings.request_timeout_ms):
            while True:
                await self._linked()
                try:
                    return await ask()
                except ConnectionLost:
                    self._check_open()

    async def _write(self, ask: Callable[[], Awaitable[T]]) -> T:
        async with _Deadline(self._settings.request_timeout_ms):
            await self._linked()
            return await ask()

    async def _linked(self) -> None:
        """Return when there is a connection that may serve."""
        while not self._ready:
            self._check_open()
            turn: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(turn)
            await turn

    def _check_open(self) -> None:
        if self._failure is not None:
            # What is wrong stays what it is: a cluster of another id, a refused password.
            raise MetadataUnavailable(f"this store is of no more use: {self._failure}")
        if self._closed:
            raise MetadataUnavailable("the session with the metadata store has ended")

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    # Connections

    def _on_link(self, link: Link) -> None:
        self._ready = False
        self._watches.disconnected()
        if self._greeting is not None:
            self._greeting.cancel()
            self._greeting = None
        if link is Link.CONNECTED:
            self._greeting = self._loop.create_task(self._greet())
        elif link is Link.LOST:
            self._sessions_lost += 1
            self._losses.tell(self._loop)

    async def _greet(self) -> None:
        """Look at what was reached, before it serves anybody."""
        while not self._ready and self._failure is None:
            try:
                self._take_cluster(*await self._read_cluster())
                self._ready = True
                self._watches.connected(self._client)
            except ConnectionLost:
                return
            except MetadataUnavailable:
                await asyncio.sleep(_GREET_AGAIN_S)
            except EngineError as error:
                self._failure = error
        self._wake()

    def _take_cluster(self, node: ClusterNode, version: int) -> None:
        if self._cluster_id not in ("", node.cluster_id):
            raise FolderMismatch(
                f"ZooKeeper now holds cluster {node.cluster_id}, not {self._cluster_id}"
            )
        self._cluster_id = node.cluster_id
        self._cluster_version = version
        self._format_major = node.format_major
        self._layout.spread = node.spread

    async def _read_cluster(self) -> tuple[ClusterNode, int]:
        """The cluster's node; made by the first who comes, by nobody once one was known."""
        client, path = self._client, self._layout.cluster
        await client.sync(path)
        while True:
            try:
                value, version = await client.get(path)
                return _cluster_of(value), version
            except NotFound as error:
                if self._cluster_id:
                    raise FolderMismatch(
                        f"cluster {self._cluster_id} is gone from ZooKeeper"
                    ) from error
                if not self._make:
                    raise NoSuchCluster("there is no cluster under this path") from error
            node = ClusterNode(self._fresh_cluster_id, FORMAT_MAJOR)
            try:
                await client.make_folders(ancestors(path))
                await client.create(path, msgspec.json.encode(node))
                self._made = True
            except KeyExists:
                continue


class _Deadline:
    """Bounds a call: what takes longer is `MetadataUnavailable`."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout = asyncio.timeout(timeout_ms / 1000)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)  # type: ignore[arg-type]
        except TimeoutError as late:
            raise MetadataUnavailable("ZooKeeper did not answer in time") from late


def _above(numbers: list[int], above: int) -> list[int]:
    return sorted({number for number in numbers if number > above})


def _cluster_of(value: bytes) -> ClusterNode:
    try:
        node = msgspec.json.decode(value, type=ClusterNode)
    except msgspec.DecodeError as error:
        raise FolderMismatch("the chroot holds something that is no cluster of ours") from error
    if node.format_major > FORMAT_MAJOR:
        raise FormatTooNew.of("the cluster's layout", node.format_major, FORMAT_MAJOR)
    return node
