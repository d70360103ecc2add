"""What a bookie tells the metadata store: that it is there, and whether it takes writes.

Invariants:
- If the folder vanishes, alone or with its disk, it calls `on_vanished`: no more writes are taken.
- A full disk makes it read-only; it comes back by itself when enough is free, not before.
- If it finds a newer start of its folder registered, it calls `on_superseded`, and neither replaces
  nor removes that registration.
- A registration that got lost is made again. One whose session was lost is too, even while its
  key is still seen: it goes when the store notices.
"""

import asyncio
import logging
from collections.abc import Callable

from engine.bookie.appending import Gate
from engine.bookie.folder import FolderIdentity
from engine.bookie.marking import not_told
from engine.bookie.settings import BookieSettings
from engine.errors import EngineError, FolderRolledBack
from engine.metadata.bookies import AVAILABLE, Bookies, Registration
from engine.metadata.majors import LAYOUT_MAJOR
from engine.ports.disk import Disk, RootGone, Space
from engine.ports.workers import Workers

_RETRY_S = 0.5
_LOG = logging.getLogger("engine.bookie")


class Publisher:
    """Keeps the registration true while the bookie runs."""

    def __init__(
        self,
        bookies: Bookies,
        identity: FolderIdentity,
        settings: BookieSettings,
        disk: Disk,
        workers: Workers,
    ) -> None:
        self.gate = Gate()
        self.space = Space(0, 0)
        self.reached = False
        self.on_superseded: Callable[[EngineError], None] = not_told
        self.on_vanished: Callable[[RootGone], None] = not_told
        self._bookies = bookies
        self._identity = identity
        self._settings = settings
        self._disk = disk
        self._workers = workers
        self._exhausted = False
        self._published: tuple[bool, bool] | None = None
        self._task: asyncio.Task[None] | None = None
        self._checker: asyncio.Task[None] | None = None
        self._unwatches: list[Callable[[], None]] = []
        self._session_lost = False
        self._closed = False

    @property
    def _name(self) -> str:
        return self._identity.bookie_id

    async def start(self) -> None:
        """Register. Raises `MetadataUnavailable`."""
        self.note(await self._workers.run(self._disk.space))
        self._unwatches.append(self._bookies.store.watch_session(self._on_session_lost))
        await self._register()
        key = f"{AVAILABLE}/{self._identity.bookie_id}"
        self._unwatches.append(self._bookies.store.watch(key, self._publish))
        if self._session_lost:
            self._publish()
        self._checker = asyncio.ensure_future(self._check_space())

    def note(self, space: Space) -> None:
        """Take a new reading of the disk."""
        self.space = space
        full = is_full(space, self._settings, self.gate.full)
        kept_bytes = self._settings.reserve_bytes * (2 if self._exhausted else 1)
        self._set_full(full, full and space.free_bytes < kept_bytes)

    def refused(self) -> None:
        """A write found no room, whatever the last reading said."""
        self._set_full(True, True)

    async def stop(self, *, unregister: bool) -> None:
        """End; with `unregister` take the registration away, which is tried once.

        `reached` tells afterwards whether the store took it.
        """
        unregister = unregister and not self._closed
        self._closed = True
        for unwatch in self._unwatches:
            unwatch()
        tasks = [task for task in (self._task, self._checker) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if unregister:
            try:
                await self._bookies.unregister(self._name, self._identity.boot)
                self.reached = True
            except EngineError:
                # The store takes it away with the session.
                return

    def _set_full(self, full: bool, exhausted: bool) -> None:
        if full != self.gate.full:
            self.gate.full = full
            if full:
                told = "bookie %s: its disk is full (%d bytes are free), so it accepts no new data"
                _LOG.warning(told, self._name, self.space.free_bytes)
            else:
                _LOG.info("bookie %s: its disk has room again", self._name)
        self._exhausted = exhausted
        if self._published is not None and self._published != (full, exhausted):
            self._publish()

    def _on_session_lost(self) -> None:
        self._session_lost = True
        _LOG.warning("bookie %s: its registration went with the session", self._name)
        if self._published is not None:
            self._publish()

    def _publish(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.ensure_future(self._keep_registered())

    async def _keep_registered(self) -> None:
        boot = self._identity.boot
        try:
            while True:
                try:
                    found = await self._bookies.check_newest(self._name, boot)
                    missing = self._session_lost or found is None or found.boot != boot
                    if not missing and self._published == (self.gate.full, self._exhausted):
                        return
                    await self._register()
                    _LOG.info("bookie %s is registered again", self._name)
                except FolderRolledBack as error:
                    self.on_superseded(error)
                    return
                except EngineError:
                    # What is there now may still be an earlier session's.
                    self._session_lost = True
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._task = None

    async def _register(self) -> None:
        """Publish the current mode."""
        full, exhausted = self.gate.full, self._exhausted
        self._session_lost = False
        identity, settings = self._identity, self._settings
        await self._bookies.register(
            Registration(
                identity.bookie_id,
                identity.boot,
                address=settings.address,
                writable=not full,
                rack=settings.rack,
                grpc=settings.grpc,
                host=settings.host,
                disk=self.space.name,
                exhausted=exhausted,
                zone=settings.zone,
                layout=LAYOUT_MAJOR,
            )
        )
        self._published = full, exhausted

    async def _check_space(self) -> None:
        while True:
            await asyncio.sleep(self._settings.space_check_ms / 1000)
            try:
                self.note(await self._workers.run(self._disk.space))
            except RootGone as error:
                self.on_vanished(error)
                return
            except OSError:
                # No reading is no reason to change; the journal notices a real lack itself.
                continue


def is_full(space: Space, settings: BookieSettings, full: bool) -> bool:
    """Whether a disk is over the high-water mark, or, if it was, not under the low one yet."""
    return space.free_bytes < settings.kept_bytes(space.total_bytes, full=full)
