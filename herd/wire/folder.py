"""Who runs the tablespaces of a folder, and how the others reach them.

The file `herd/.owner/lock` in the folder is locked by the one opener that runs its tablespaces; it
names the Unix socket where that one serves the others. It is not the lock of the folder itself:
whoever runs the bookies need not know of tablespaces.

Invariants:
- At most one opener runs the tablespaces; the system lets go of the lock when its process ends,
  however. The next caller takes it, and all others find that one.
- The address is published only once the server listens; it is taken back before it ends, and the
  lock is let go of after the last tablespace has closed.
- In a forked child everything raises, and nothing of the parent's is kept open.
"""

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from engine.errors import EngineError, InvalidRequest
from engine.folder import sockets
from engine.folder.forks import guard
from engine.folder.lock import FolderLock, Ownership
from engine.ports.clock import Clock
from herd.errors import InterfaceError, LeaderUnavailable, OperationalError
from herd.translating import translated
from herd.wire.contract import Channel
from herd.wire.framed_client import FramedChannel, dial_sessions
from herd.wire.framed_server import SessionServer
from herd.wire.guest import Guest
from herd.wire.local import LocalChannel
from herd.wire.service import HerdService
from herd.wire.settings import WireSettings

OWNER: Final = ".owner"
_NONCE_BITS: Final = 128


class _Served:
    """The tablespaces run here, and others are served."""

    def __init__(self, service: HerdService) -> None:
        self.service = service
        self.channel = LocalChannel(Guest(service))
        self.server: SessionServer | None = None
        self.listening: asyncio.AbstractServer | None = None
        self.end: socket.socket | None = None
        self.address = ""

    def descriptors(self) -> list[int]:
        """What a forked child must not keep."""
        found = [] if self.end is None else [self.end.fileno()]
        if self.server is not None:
            found += [connection.wire.descriptor() for connection in self.server.connections]
        return found


class FolderRoute:
    """One opener of a folder's tablespaces: runs them, or reaches who does. A `Route`.

    `serve()` makes the service of this opener's own tablespaces, `stop()` closes them.
    """

    def __init__(
        self,
        root: Path,
        serve: Callable[[], HerdService],
        stop: Callable[[], Awaitable[None]],
        *,
        clock: Clock,
        rng: random.Random,
        settings: WireSettings | None = None,
    ) -> None:
        self.root = root
        self._serve = serve
        self._stop = stop
        self._clock = clock
        self._rng = rng
        self._settings = settings or WireSettings()
        self._process = os.getpid()
        self._lock: FolderLock | None = None
        self._served: _Served | None = None
        self._remote: FramedChannel | None = None
        self._finding = asyncio.Lock()
        self._closed = False
        self._forked = False
        guard(self)

    @property
    def owns(self) -> bool:
        """Whether the tablespaces run here."""
        return self._served is not None

    async def own_or_reach(self) -> bool:
        """Run the tablespaces, or reach who does. Tells whether they run here.

        Raises `OperationalError` if they do elsewhere and nobody answers in time, `InterfaceError`
        after `close` and in a forked child.
        """
        self.check()
        if not self._found:
            async with self._finding:
                self.check()
                if not self._found:
                    await self._find()
        return self._served is not None

    @property
    def _found(self) -> bool:
        return self._served is not None or (self._remote is not None and not self._remote.over)

    async def channel(self, tablespace: str) -> Channel:
        """A channel to who runs the tablespaces, this opener perhaps. Raises as `own_or_reach`."""
        if await self.own_or_reach():
            assert self._served is not None
            return self._served.channel
        assert self._remote is not None
        return self._remote

    def moved(self, tablespace: str, leader: str) -> bool:
        """A folder's tablespaces have one place: who does not lead there will, or nobody."""
        return False

    def check(self) -> None:
        """Raise `InterfaceError` after `close` and in a forked child."""
        if self._forked or self._process != os.getpid():
            raise InterfaceError("opened before a fork", hint="open the folder again in here")
        if self._closed:
            raise InterfaceError("the folder was closed", hint="open it again")

    def who(self) -> str:
        """Who runs the tablespaces elsewhere, for people."""
        try:
            ownership = None if self._lock is None else self._lock.read()
        except (EngineError, OSError, ValueError):
            ownership = None
        return "another opener" if ownership is None else f"process {ownership.process}"

    async def close(self) -> None:
        """Serve nobody any more, close what runs here, let go. May be called twice."""
        if self._closed or self._forked:
            return
        self._closed = True
        async with self._finding:
            served, self._served = self._served, None
            remote, self._remote = self._remote, None
            if remote is not None:
                remote.close()
            try:
                if served is not None:
                    await self._end(served)
            finally:
                if self._lock is not None:
                    self._lock.close()

    def after_fork(self) -> list[int]:
        """In a forked child: everything raises from now on. Returns what must not stay open."""
        self._forked = True
        found = [] if self._served is None else self._served.descriptors()
        if self._remote is not None:
            found.append(self._remote.wire.descriptor())
        if self._lock is not None and not self._closed:
            found.append(self._lock.descriptor())
        return [end for end in found if end >= 0]

    # Finding who runs them

    async def _find(self) -> None:
        deadline_s = self._clock.monotonic() + self._settings.patience_ms / 1000
        pause_s = self._settings.retry_first_ms / 1000
        failure: OperationalError | None = None
        while True:
            try:
                if await self._take():
                    return
                failure = None
                await self._reach()
                return
            except LeaderUnavailable as error:
                # It is about to serve, or about to end.
                failure = error
            if self._clock.monotonic() > deadline_s:
                raise OperationalError(
                    f"the tablespaces in {self.root} are run by {self.who()}, which does not "
                    "answer",
                    hint="wait, or end that process",
                ) from failure
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, self._settings.retry_max_ms / 1000)

    async def _take(self) -> bool:
        """Become who runs them, if nobody is. Raises `OperationalError`."""
        try:
            if self._lock is None:
                self._lock = FolderLock.of(self.root / OWNER)
            if not self._lock.try_take():
                return False
        except EngineError as error:
            raise translated(error) from error
        served = _Served(self._serve())
        try:
            previous = self._lock.read()
            if previous is not None:
                sockets.remove(previous.address)
            await self._listen(served)
        except BaseException as error:
            await self._end(served)
            if isinstance(error, EngineError):
                raise translated(error) from error
            raise
        self._served = served
        return True

    async def _listen(self, served: _Served) -> None:
        nonce = f"{self._rng.getrandbits(_NONCE_BITS):032x}"

        def admit(options: dict[str, Any]) -> None:
            if options.get("nonce") != nonce:
                raise InvalidRequest("the tablespaces of another folder are served here")

        served.server = SessionServer(served.service, admit=admit)
        served.end, served.address = sockets.listen(nonce)
        loop = asyncio.get_running_loop()
        served.listening = await loop.create_unix_server(served.server.accept, sock=served.end)
        assert self._lock is not None
        self._lock.publish(Ownership(sockets.own_process(), nonce, served.address))

    async def _reach(self) -> None:
        """Raises `LeaderUnavailable` if nobody answers there at the moment."""
        assert self._lock is not None
        try:
            ownership = self._lock.read()
        except EngineError as error:
            raise translated(error) from error
        if ownership is None:
            raise LeaderUnavailable("nobody has said yet where the tablespaces are served")
        try:
            self._remote = await dial_sessions(
                ownership.address,
                self._clock,
                options={"nonce": ownership.nonce},
                settings=self._settings,
            )
        except InterfaceError as error:
            # The address is another folder's by now: the lock's content was old.
            raise LeaderUnavailable(error.message) from error

    async def _end(self, served: _Served) -> None:
        assert self._lock is not None
        if self._lock.held and served.address:
            self._lock.publish(None)
            sockets.remove(served.address)
        if served.listening is not None:
            served.listening.close()
        elif served.end is not None:
            served.end.close()
        try:
            if served.server is not None:
                await served.server.close()
            await served.channel.close()
        finally:
            try:
                await self._stop()
            finally:
                self._lock.release()
