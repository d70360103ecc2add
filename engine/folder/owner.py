"""The owner of a folder: runs its metadata store and its bookies, and serves later openers.

Layout of the folder:

    lock             who owns it (`engine.folder.lock`)
    metadata/        the metadata store
    bookie-1/ ...    a bookie each: identity, journal/, index/

Invariants:
- Everything here runs only while the folder's lock is held.
- The address is published only when the bookies serve; it is taken back before they stop.
- A start that fails leaves nothing running and nothing locked.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from engine.bookie.folder import FILE_NAME, check_folder
from engine.bookie.index import Index
from engine.bookie.service import BookieService
from engine.bookie.settings import BookieSettings
from engine.bookie.upkeep import Upkeep, UpkeepSettings, start_upkeep
from engine.errors import FolderDamaged, FolderMismatch, FormatTooNew, InvalidRequest
from engine.folder.lock import BOOKIE_PREFIX, METADATA_NAME, FolderLock, bookie_count, number_of
from engine.folder.serving import ServedSocket
from engine.ledger.capacity import require_room
from engine.metadata.bookies import Bookies, FolderPlace
from engine.metadata.facts_log import check_format
from engine.metadata.local import LocalStore
from engine.ports.clock import Clock
from engine.ports.disk import Disk
from engine.ports.metrics import NO_METRICS, Metrics
from engine.ports.workers import Workers
from engine.transport.contract import Transport
from engine.transport.framed_server import FramedServer
from engine.transport.framed_settings import FramedSettings
from engine.transport.inprocess import InProcessTransport

_LOG: Final = logging.getLogger("engine.folder")


class ClosingWorkers(Workers, Protocol):
    """Workers that end."""

    async def close(self) -> None:
        """End the threads once their calls are done."""
        ...


@dataclass(frozen=True, slots=True)
class FolderPorts:
    """The outside world of a folder."""

    clock: Clock
    rng: random.Random
    workers: ClosingWorkers
    make_disk: Callable[[Path], Disk]
    make_index: Callable[[Path], Index]
    metrics: Metrics = NO_METRICS


@dataclass(frozen=True, slots=True)
class FolderSettings:
    """How a folder is opened. `bookies` is how many it has at least."""

    bookies: int = 1
    bookie: BookieSettings = field(default_factory=BookieSettings)
    wire: FramedSettings = field(default_factory=FramedSettings)
    upkeep: UpkeepSettings = field(default_factory=UpkeepSettings)
    open_timeout_ms: int = 10_000


class Control(msgspec.Struct, frozen=True, array_like=True):
    """A CONTROL frame: `verb` is "stop" or "start", of the bookie at an index."""

    verb: str
    index: int


def check_store(root: Path) -> None:
    """Raise `FolderMismatch` for a folder that is not a whole store. Nothing is changed."""
    if (root / FILE_NAME).exists():
        raise FolderMismatch(f"{root} is one bookie's folder, not a whole store")
    if bookie_count(root) and not (root / METADATA_NAME).is_dir():
        raise FolderMismatch(f"{root} has bookies but no metadata: rebuild the metadata first")


def check_formats(root: Path, make_disk: Callable[[Path], Disk]) -> None:
    """Raise `FormatTooNew` for a store that a newer version wrote. Nothing is changed."""
    check_format(make_disk(root / METADATA_NAME))
    for number in range(bookie_count(root)):
        # A bookie whose folder is of no use is left out where others are.
        with suppress(FolderDamaged, FolderMismatch, OSError):
            check_folder(make_disk(root / f"{BOOKIE_PREFIX}{number + 1}"))


class FolderOwner:
    """A folder's store, bookies and server. Made by `FolderOwner.start`."""

    def __init__(self, lock: FolderLock, ports: FolderPorts, settings: FolderSettings) -> None:
        self.transport: Transport
        self.bookie_ids: list[str] = []
        self._lock = lock
        self._ports = ports
        self._settings = settings
        self._reached = InProcessTransport()
        self.transport = self._reached
        self._running: dict[int, BookieService] = {}
        self._upkeep: dict[int, Upkeep] = {}
        self._changing = asyncio.Lock()
        self._store: LocalStore | None = None
        self._server: FramedServer | None = None
        self._socket = ServedSocket(lock, ports.rng)

    @classmethod
    async def start(
        cls, lock: FolderLock, ports: FolderPorts, settings: FolderSettings
    ) -> "FolderOwner":
        """Start everything. The caller holds the lock, and releases it if this fails.

        Raises `FolderError` and its kinds, `MetadataUnavailable`, `DiskFull`, `OSError`.
        """
        assert lock.held
        owner = cls(lock, ports, settings)
        try:
            await owner._start()
        except BaseException:
            await owner.close()
            raise
        return owner

    @property
    def store(self) -> LocalStore:
        """The metadata store, as the owner's own session."""
        assert self._store is not None
        return self._store

    async def stop_bookie(self, index: int) -> None:
        """Stop one bookie, if it runs. Raises `InvalidRequest` for an index that is none."""
        self._check_index(index)
        async with self._changing:
            bookie = self._running.pop(index, None)
            if bookie is not None:
                self._reached.remove(bookie.bookie_id)
                if self._server is not None:
                    self._server.remove(bookie.bookie_id)
                await self._close_bookie(index, bookie)

    async def start_bookie(self, index: int) -> None:
        """Start one bookie, if it does not run. Raises as `start`, and `InvalidRequest`."""
        self._check_index(index)
        async with self._changing:
            if index not in self._running:
                bookie = await self._start_bookie(index)
                self._serve(index, bookie)

    async def close(self) -> None:
        """Stop serving, then everything else. May be called twice."""
        self._socket.close()
        for index, bookie in list(self._running.items()):
            self._reached.remove(bookie.bookie_id)
            await self._close_bookie(index, bookie)
        self._running.clear()
        if self._server is not None:
            await self._server.close()
        if self._store is not None:
            await self._store.close()

    def descriptors(self) -> list[int]:
        """Descriptors that a forked child must not keep."""
        return self._socket.descriptors()

    async def _start(self) -> None:
        # Whether who was killed was newer is the store's to find.
        with suppress(FormatTooNew):
            self._socket.remove_left()
        root, keeping = self._lock.root, self._settings.bookie
        check_store(root)
        check_formats(root, self._ports.make_disk)
        disk = self._ports.make_disk(root)
        await self._ports.workers.run(partial(require_room, root, disk, keeping))
        disk = await self._disk(METADATA_NAME)
        self._store = await LocalStore.open(disk, self._ports.workers, self._ports.rng)
        # Every missing folder is noticed, even the last one.
        places = await Bookies(self._store).places()
        kept = max(filter(None, map(number_of, (at.folder for at in places.values()))), default=0)
        count = max(self._settings.bookies, bookie_count(self._lock.root), kept)
        self.bookie_ids = [""] * count
        await self._start_bookies(count)
        await self._listen()

    async def _start_bookies(self, count: int) -> None:
        """Start all; one whose folder is damaged is left out, as one that failed would be."""
        damaged: FolderDamaged | None = None
        for index in range(count):
            try:
                self._serve(index, await self._start_bookie(index))
            except FolderDamaged as error:
                name = f"{BOOKIE_PREFIX}{index + 1}"
                damaged = FolderDamaged(f"{self._lock.root / name}: {error}")
                _LOG.warning("%s in %s does not start: %s", name, self._lock.root, error)
        if damaged is not None and not self._running:
            raise damaged

    async def _start_bookie(self, index: int) -> BookieService:
        name = f"{BOOKIE_PREFIX}{index + 1}"
        bookies, place = Bookies(self.store), FolderPlace("", name)
        if not (self._lock.root / name / FILE_NAME).exists():
            await bookies.refuse_empty(place)
        disk = await self._disk(name)
        bookie = await BookieService.start(
            disk=disk,
            open_index=partial(self._ports.make_index, self._lock.root / name / "index"),
            workers=self._ports.workers,
            clock=self._ports.clock,
            rng=self._ports.rng,
            store=self.store,
            settings=self._settings.bookie,
            metrics=self._ports.metrics,
        )
        try:
            await bookies.keep_place(bookie.bookie_id, place)
        except BaseException:
            await bookie.close()
            raise
        self._upkeep[index] = start_upkeep(
            bookie,
            disk=disk,
            workers=self._ports.workers,
            clock=self._ports.clock,
            store=self.store,
            settings=self._settings.upkeep,
        )
        return bookie

    async def _close_bookie(self, index: int, bookie: BookieService) -> None:
        upkeep = self._upkeep.pop(index, None)
        if upkeep is not None:
            await upkeep.close()
        await bookie.close()

    async def _disk(self, name: str) -> Disk:
        root = self._ports.make_disk(self._lock.root)
        await self._ports.workers.run(partial(root.make_folder, name))
        return self._ports.make_disk(self._lock.root / name)

    def _serve(self, index: int, bookie: BookieService) -> None:
        self._running[index] = bookie
        if bookie.bookie_id in self.bookie_ids[:index] + self.bookie_ids[index + 1 :]:
            raise FolderMismatch(f"two folders hold bookie {bookie.bookie_id}: remove the copy")
        self.bookie_ids[index] = bookie.bookie_id
        self._reached.add(bookie)
        if self._server is not None:
            self._server.add(bookie)

    async def _listen(self) -> None:
        def admit(options: dict[str, Any]) -> None:
            if options.get("nonce") != self._socket.nonce:
                raise InvalidRequest("another folder is served here")

        self._server = FramedServer(
            cluster_id=self.store.cluster_id,
            admit=admit,
            open_session=lambda _caller: self.store.session(),
            control=self._control,
            options={"bookies": self.bookie_ids},
            settings=self._settings.wire,
        )
        for bookie in self._running.values():
            self._server.add(bookie)
        await self._socket.listen(self._server)

    async def _control(self, head: bytes) -> bytes:
        try:
            asked = msgspec.msgpack.decode(head, type=Control)
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"not a control message: {error}") from error
        if asked.verb == "stop":
            await self.stop_bookie(asked.index)
        elif asked.verb == "start":
            await self.start_bookie(asked.index)
        else:
            raise InvalidRequest(f"bookies are not told to {asked.verb!r}")
        return b""

    def _check_index(self, index: int) -> None:
        if not 0 <= index < len(self.bookie_ids):
            raise InvalidRequest(
                f"there is no bookie {index}, only 0 to {len(self.bookie_ids) - 1}"
            )
