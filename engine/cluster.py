"""Opening a folder: the cluster in one process, shared with whoever opens the folder later.

    async with engine.open("./data") as client:
        writer = await client.create_ledger()
        await writer.append(b"moo")

The first opener owns the folder and runs its bookies; later ones, in this process or in others,
connect to it and have the same API. When the owner ends, the next one becomes owner and the others
go on with it: nothing acknowledged is lost, and a writer whose append was under way sends it again.

While a folder is open, the interpreter switches threads every 50 µs instead of every 5 ms: beside a
thread that only computes, an append would otherwise wait for several such turns. It costs a busy
program a few per cent. `switch_interval_s=None` leaves the interpreter alone; `process=True` runs
the engine in a child, which no busy thread of this program slows.

Invariants:
- The interpreter's switch interval is set back when the last open folder is closed.
- After `open` ends, nothing of the folder runs in this process and its lock is free.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Final

from engine.bookie.index_rocks import RocksIndex
from engine.bookie.settings import BookieSettings
from engine.errors import InvalidRequest
from engine.folder.following import FolderStore, FolderTransport
from engine.folder.forks import guard
from engine.folder.member import FolderMember
from engine.folder.naming import refuse_url
from engine.folder.owner import FolderPorts, FolderSettings
from engine.folder.process import spawn
from engine.ledger.capacity import watched
from engine.ledger.client import LedgerClient
from engine.ledger.settings import ClientSettings
from engine.limits import ENSEMBLE_SIZE_MAX
from engine.ports.clock import SystemClock
from engine.ports.metrics import NO_METRICS, Metrics
from engine.ports.switching import SWITCH_INTERVAL_S, switching_every
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers

_QUARANTINE_MS: Final = 500


class Engine(LedgerClient):
    """An open folder: a `LedgerClient`, and a hand on its bookies. Made by `open`."""

    def __init__(
        self,
        member: FolderMember,
        ports: FolderPorts,
        settings: ClientSettings | None,
    ) -> None:
        super().__init__(
            store=FolderStore(member),
            transport=FolderTransport(member),
            clock=ports.clock,
            rng=ports.rng,
            settings=settings or _defaults(len(member.bookie_ids)),
            metrics=ports.metrics,
        )
        self._member = member
        guard(self)

    @property
    def path(self) -> Path:
        """The folder."""
        return self._member.root

    @property
    def owner(self) -> bool:
        """Whether the bookies run in this process, at the moment."""
        return self._member.owns

    @property
    def bookies(self) -> list[str]:
        """The ids of the folder's bookies, running or not, in the order of their folders."""
        return self._member.bookie_ids

    async def stop_bookie(self, index: int) -> None:
        """Stop the bookie at an index, as if it had failed. It may be stopped already.

        Raises `InvalidRequest` for an index that is none, `BookieUnavailable`.
        """
        await self._member.control("stop", index)

    async def start_bookie(self, index: int) -> None:
        """Start the bookie at an index again. It may be running.

        Raises `InvalidRequest` for an index that is none, `BookieUnavailable`, `FolderError`.
        """
        await self._member.control("start", index)

    async def close(self) -> None:
        """End this opener's writers; their ledgers stay open, to be recovered by who reads them."""
        self.abandon_writers("the folder was closed")
        await super().close()

    def after_fork(self) -> list[int]:
        """In a forked child: every writer and the folder are over there."""
        found = self._member.after_fork()
        self.abandon_writers("opened before a fork: open the folder again here")
        return found


@asynccontextmanager
async def open(
    path: str | PathLike[str],
    *,
    bookies: int = 1,
    settings: ClientSettings | None = None,
    bookie_settings: BookieSettings | None = None,
    folder_settings: FolderSettings | None = None,
    process: bool = False,
    switch_interval_s: float | None = SWITCH_INTERVAL_S,
    metrics: Metrics = NO_METRICS,
) -> AsyncIterator[Engine]:
    """Open a folder as long as the block lasts, making it if it is not there.

    `bookies` is how many bookies the folder shall have at least, which its owner sees to. Unless
    `settings` say otherwise, entries go to as many of them as there are, at most three, and are
    acknowledged when two have them (with one bookie: that one). `process=True` runs the bookies in
    a child process if nobody owns the folder yet. `metrics` hears what the client does, and the
    bookies where they run in this process.
    Raises `FolderError` and its kinds, `InvalidRequest`, `MetadataUnavailable`, `DiskFull`.
    """
    refuse_url(path, "a cluster is reached by engine.connect(url)")
    if not 1 <= bookies <= ENSEMBLE_SIZE_MAX:
        raise InvalidRequest(f"a folder has 1 to {ENSEMBLE_SIZE_MAX} bookies, not {bookies}")
    if folder_settings is None:
        folder_settings = FolderSettings(bookies=bookies)
    if bookie_settings is not None:
        folder_settings = replace(folder_settings, bookie=bookie_settings)
    root = Path.cwd() / path
    workers = ThreadWorkers(asyncio.get_running_loop())
    ports = FolderPorts(
        SystemClock(), random.SystemRandom(), workers, SystemDisk, RocksIndex, metrics
    )
    with switching_every(switch_interval_s):
        try:
            child = partial(spawn, root, folder_settings) if process else None
            member = await FolderMember.open(root, ports, folder_settings, child)
            engine = Engine(member, ports, settings)
            disk = watched(root, ports.make_disk(root), folder_settings.bookie)
            try:
                async with engine.capacity.watching([disk], workers):
                    yield engine
            finally:
                await engine.close()
                await member.close()
        finally:
            await workers.close()


def _defaults(bookies: int) -> ClientSettings:
    copies = max(1, min(3, bookies))
    return ClientSettings(
        ensemble=copies,
        write_quorum=copies,
        ack_quorum=min(2, copies),
        quarantine_ms=_QUARANTINE_MS,
    )
