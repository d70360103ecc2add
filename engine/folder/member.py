"""One opener of a folder: its owner, or connected to the owner, and the next owner when that ends.

Invariants:
- There is at most one link at a time; a lost one is dropped before another is looked for.
- A link to this process's own bookies exists only while this process holds the lock.
- Nobody who waits for a link waits for one that cannot come: a failed take-over is told to all
  who wait, and tried again.
- In a forked child everything raises, and nothing of the parent's is kept open.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from engine.errors import (
    BookieUnavailable,
    DiskFull,
    EngineError,
    FolderError,
    FolderLocked,
    InvalidRequest,
    MetadataUnavailable,
)
from engine.folder.lock import FolderLock, Ownership
from engine.folder.owner import Control, FolderOwner, FolderPorts, FolderSettings
from engine.folder.process import let_go
from engine.metadata.contract import MetadataStore
from engine.metadata.remote import RemoteStore
from engine.ports.system_disk import FULL, disk_full_error, is_disk_full
from engine.transport.contract import Transport
from engine.transport.framed_bookie import FramedTransport
from engine.transport.framed_client import ClientConnection
from engine.transport.frames import Kind
from engine.transport.messages import encode

_RETRY_FIRST_S: Final = 0.005
_RETRY_MAX_S: Final = 0.1


class Link:
    """What an opener works with: a store, bookies, and whether they are this process's own."""

    def __init__(
        self,
        store: MetadataStore,
        transport: Transport,
        bookie_ids: list[str],
        owner: FolderOwner | None,
    ) -> None:
        self.store = store
        self.transport = transport
        self.bookie_ids = bookie_ids
        self.owner = owner

    async def close(self) -> None:
        """Let go. The owner's end stops its bookies."""
        if self.owner is not None:
            await self.owner.close()
        else:
            await self.transport.close()
            await self.store.close()


class FolderMember:
    """An open folder. Made by `FolderMember.open`.

    `spawn`, if given, starts another process that is to own the folder; this one then never does.
    """

    def __init__(
        self,
        root: Path,
        ports: FolderPorts,
        settings: FolderSettings,
        spawn: "Callable[[], subprocess.Popen[bytes]] | None" = None,
    ) -> None:
        self.root = root
        self._ports = ports
        self._settings = settings
        self._spawn = spawn
        self._child: subprocess.Popen[bytes] | None = None
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._lock = FolderLock.of(root)
        self._link: Link | None = None
        self._finding: asyncio.Task[None] | None = None
        self._linked = asyncio.Event()
        self._failure: EngineError | None = None
        self._changed: list[Callable[[], None]] = []
        self._closed = False
        self._forked = False

    @classmethod
    async def open(
        cls,
        root: Path,
        ports: FolderPorts,
        settings: FolderSettings,
        spawn: "Callable[[], subprocess.Popen[bytes]] | None" = None,
    ) -> "FolderMember":
        """Own the folder, or connect to its owner.

        Raises `FolderLocked` when there is an owner that does not answer in time, `FolderError`
        and its kinds, `MetadataUnavailable`.
        """
        member = cls(root, ports, settings, spawn)
        try:
            patience_s = settings.open_timeout_ms / 1000
            member._adopt(await member._find(ports.clock.monotonic() + patience_s))
        except BaseException:
            await member.close()
            raise
        return member

    @property
    def owns(self) -> bool:
        """Whether the folder's bookies run in this process."""
        return self._link is not None and self._link.owner is not None

    @property
    def bookie_ids(self) -> list[str]:
        """The folder's bookies, running or not, as far as this process knows."""
        return list(self._link.bookie_ids) if self._link is not None else []

    async def link(self) -> Link:
        """The link, once there is one.

        Raises `InvalidRequest` in a forked child, `FolderError` when closed, and what made taking
        over fail.
        """
        while True:
            self.check()
            if self._link is not None:
                return self._link
            if self._failure is not None:
                raise self._failure
            await self._linked.wait()

    def now(self) -> Link | None:
        """The link, if there is one."""
        return self._link

    def check(self) -> None:
        """Raises `InvalidRequest` in a forked child, `FolderError` when closed."""
        if self._forked or self._process != os.getpid():
            raise InvalidRequest("opened before a fork: open the folder again in this process")
        if self._closed:
            raise FolderError(f"{self.root} is closed: open it again")

    def when_changed(self, call: Callable[[], None]) -> None:
        """Call whenever there is a new link."""
        self._changed.append(call)

    async def control(self, verb: str, index: int) -> None:
        """Stop or start a bookie, wherever it runs.

        Raises `InvalidRequest`, `BookieUnavailable`, `FolderError`.
        """
        link = await self.link()
        if link.owner is not None:
            await (link.owner.stop_bookie if verb == "stop" else link.owner.start_bookie)(index)
            return
        connection = _session(link)
        if connection is None:
            raise BookieUnavailable("the folder's owner has just ended: try again")
        await connection.call(Kind.CONTROL, encode(Control(verb, index)))

    async def close(self) -> None:
        """Let go of the folder; its bookies stop if this process ran them. May be called twice."""
        if self._closed or self._forked:
            return
        self._closed = True
        self._linked.set()
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.wait([self._finding])
        link, self._link = self._link, None
        if link is not None:
            await link.close()
        self._lock.close()
        if self._child is not None:
            await self._ports.workers.run(partial(let_go, self._child))

    def after_fork(self) -> list[int]:
        """In a forked child: everything raises from now on. Returns what must not stay open."""
        self._forked = True
        owner = self._link.owner if self._link is not None else None
        found = owner.descriptors() if owner is not None else []
        connection = _session(self._link) if self._link is not None else None
        if connection is not None:
            found.append(connection.wire.descriptor())
        if self._link is not None and isinstance(self._link.transport, FramedTransport):
            found += self._link.transport.descriptors()
        if not self._closed:
            found.append(self._lock.descriptor())
        if self._child is not None and self._child.stdin is not None:
            found.append(self._child.stdin.fileno())
        return [end for end in found if end >= 0]

    # Finding the owner, or becoming it

    async def _find(self, deadline: float | None = None) -> Link:
        """A link, as soon as there is an owner. Owning takes its time; others have a deadline."""
        pause_s = _RETRY_FIRST_S
        while True:
            if self._lock.try_take():
                if self._spawn is None:
                    return await self._own()
                self._lock.release()
                self._see_to_child()
            else:
                ownership = self._lock.read()
                if ownership is not None:
                    try:
                        return await self._join(ownership)
                    except (BookieUnavailable, InvalidRequest):
                        # The owner is about to serve, or about to end; or it is not the one named.
                        pass
            if deadline is not None and self._ports.clock.monotonic() > deadline:
                raise FolderLocked(self._who())
            await asyncio.sleep(pause_s * self._ports.rng.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _RETRY_MAX_S)

    def _see_to_child(self) -> None:
        """Nobody owns the folder: a child shall, unless one is on its way. Raises what it told."""
        assert self._spawn is not None
        if self._child is not None and self._child.poll() is not None:
            child, self._child = self._child, None
            failure = let_go(child)
            if failure is not None:
                raise failure
        if self._child is None:
            self._child = self._spawn()

    async def _own(self) -> Link:
        try:
            owner = await FolderOwner.start(self._lock, self._ports, self._settings)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, DiskFull):
                raise
            full = isinstance(error, OSError) and error.errno in FULL
            if full or (type(error) is Exception and is_disk_full(error)):
                raise disk_full_error(self.root) from error
            # RocksDB's errors are of no class of their own.
            if isinstance(error, OSError) or type(error) is Exception:
                raise FolderError(f"{self.root} cannot be used: {error}") from error
            raise
        return Link(owner.store, owner.transport, owner.bookie_ids, owner)

    async def _join(self, ownership: Ownership) -> Link:
        async def find(bookie_id: str = "") -> str:
            return ownership.address

        clock, rng = self._ports.clock, self._ports.rng
        options = {"nonce": ownership.nonce}
        wire = self._settings.wire
        store = await RemoteStore.open(
            find, clock=clock, rng=rng, options=options, settings=wire, redial=False
        )
        connection = store.connection
        if connection is None:
            raise BookieUnavailable("the folder's owner has just ended")
        transport = FramedTransport(find, clock=clock, rng=rng, options=options, settings=wire)
        names = [str(name) for name in connection.welcome.options.get("bookies", [])]
        link = Link(store, transport, names, None)
        connection.when_lost(lambda: self._on_lost(link))
        return link

    def _adopt(self, link: Link) -> None:
        assert self._link is None
        connection = _session(link)
        if link.owner is None and (connection is None or connection.over):
            self._lose(link)
            return
        self._link = link
        self._failure = None
        self._linked.set()
        for call in self._changed:
            call()

    def _on_lost(self, link: Link) -> None:
        """The owner has ended, or at least the connection to it."""
        if self._link is link and not self._closed and not self._forked:
            self._link = None
            self._linked.clear()
            self._lose(link)

    def _lose(self, link: Link) -> None:
        self._finding = self._loop.create_task(self._find_again(link))

    async def _find_again(self, lost: Link) -> None:
        await lost.close()
        while True:
            try:
                link = await self._find()
                break
            except Exception as error:
                told = error if isinstance(error, EngineError) else FolderError(str(error))
                self._failure = told
                self._linked.set()
                await asyncio.sleep(_RETRY_MAX_S)
        self._adopt(link)

    def _who(self) -> str:
        ownership = None if self._lock.held else self._lock.told()
        if ownership is None:
            return f"{self.root}: its owner is starting or ending, and was not ready in time"
        return (
            f"{self.root} is owned by process {ownership.process}, which does not answer at "
            f"{ownership.address}: stop that process, or wait"
        )


def _session(link: Link) -> ClientConnection | None:
    return link.store.connection if isinstance(link.store, RemoteStore) else None


def unavailable(error: EngineError) -> MetadataUnavailable:
    """What a caller of the store is told when there is no link."""
    return MetadataUnavailable(f"the folder has no owner at the moment: {error}")
