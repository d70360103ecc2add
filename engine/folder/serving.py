"""Serving what a folder's lock stands for: who runs it, where that one listens, and its end.

Invariants:
- At most one opener serves; the system lets go of the lock when its process ends, however. The
  next opener takes it, and all others find that one.
- The address is published only once its socket listens; it is taken back before what is served
  ends, and the lock is let go of after that.
- A start that fails leaves nothing running and nothing locked.
- In a forked child nothing of the parent's is kept open.
"""

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from engine.folder import sockets
from engine.folder.forks import guard
from engine.folder.lock import FolderLock, Ownership
from engine.transport.framed_client import ClientConnection
from engine.transport.serving import ConnectionServer

_NONCE_BITS: Final = 128


class Here(Protocol):
    """What runs in this process, and the server of the others."""

    @property
    def server(self) -> ConnectionServer[Any]:
        """Serves the others."""
        ...

    async def close(self) -> None:
        """End all of it, the server's connections too."""
        ...


HereT = TypeVar("HereT", bound=Here)
ThereT = TypeVar("ThereT", bound=ClientConnection)


class ServedSocket:
    """Where the holder of a folder's lock listens."""

    def __init__(self, lock: FolderLock, rng: random.Random) -> None:
        self.nonce = f"{rng.getrandbits(_NONCE_BITS):032x}"
        self._lock = lock
        self._server: ConnectionServer[Any] | None = None
        self._end: socket.socket | None = None
        self._listening: asyncio.AbstractServer | None = None
        self._address = ""

    def remove_left(self) -> None:
        """Remove the socket of a holder that was killed. Raises `FormatTooNew` if it was newer."""
        previous = self._lock.read()
        if previous is not None:
            sockets.remove(previous.address)

    async def listen(self, server: ConnectionServer[Any]) -> None:
        """Listen, and say so in the lock. Raises `FolderError`."""
        self._server = server
        self._end, self._address = sockets.listen(self.nonce)
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_unix_server(server.accept, sock=self._end)
        self._lock.publish(Ownership(sockets.own_process(), self.nonce, self._address))

    def close(self) -> None:
        """Take the address back, accept nobody any more. May be called twice."""
        if self._lock.held and self._address:
            self._lock.publish(None)
            sockets.remove(self._address)
        if self._listening is not None:
            self._listening.close()
        elif self._end is not None:
            self._end.close()

    def descriptors(self) -> list[int]:
        """What a forked child must not keep."""
        ends = [] if self._end is None else [self._end.fileno()]
        if self._server is not None:
            ends += [each.wire.descriptor() for each in self._server.connections]
        return [end for end in ends if end >= 0]


class FolderServing(Generic[HereT, ThereT]):
    """One opener of what the lock in `root` stands for: it runs `here`, or is reached `there`."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.here: HereT | None = None
        self.there: ThereT | None = None
        self.closed = False
        self._root = root
        self._rng = rng
        self._process = os.getpid()
        self._lock: FolderLock | None = None
        self._socket: ServedSocket | None = None
        self._finding = asyncio.Lock()
        self._forked = False
        guard(self)

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that opened it."""
        return self._forked or self._process != os.getpid()

    @property
    def found(self) -> bool:
        """Whether it runs here, or there is a connection to who runs it."""
        return self.here is not None or (self.there is not None and not self.there.over)

    def owner(self) -> Ownership | None:
        """What the one who serves wrote, None if it has not yet. Raises `FormatTooNew`."""
        return None if self._lock is None else self._lock.read()

    def who(self, unknown: str) -> str:
        """Who serves, for people; `unknown` if that cannot be told."""
        told = None if self._lock is None else self._lock.told()
        return unknown if told is None else f"process {told.process}"

    async def find(self, look: Callable[[], Awaitable[None]]) -> None:
        """Have one of all who ask at once look who serves, unless that is found."""
        if not self.found:
            async with self._finding:
                if not self.found:
                    await look()

    async def take(self, run: Callable[[str], Awaitable[HereT]]) -> bool:
        """Serve, if nobody does: `run(nonce)` begins. Tells whether it runs here now.

        Raises `FolderError` and its kinds, and what `run` does.
        """
        if self._lock is None:
            self._lock = FolderLock.of(self._root)
        if not self._lock.try_take():
            return False
        self._socket = ServedSocket(self._lock, self._rng)
        here = None
        try:
            self._socket.remove_left()
            here = await run(self._socket.nonce)
            await self._socket.listen(here.server)
        except BaseException:
            await self._end(here)
            raise
        self.here = here
        return True

    async def close(self) -> None:
        """End what runs here, or the connection, and let go. May be called twice."""
        if self.closed or self._forked:
            return
        self.closed = True
        async with self._finding:
            here, self.here = self.here, None
            there, self.there = self.there, None
            if there is not None:
                there.close()
            try:
                if here is not None:
                    await self._end(here)
            finally:
                if self._lock is not None:
                    self._lock.close()

    def after_fork(self) -> list[int]:
        """In a forked child: be over. Returns what must not stay open."""
        self._forked = True
        found = [] if self._socket is None else self._socket.descriptors()
        if self.there is not None:
            found.append(self.there.wire.descriptor())
        if self._lock is not None and not self.closed:
            found.append(self._lock.descriptor())
        return [end for end in found if end >= 0]

    async def _end(self, here: HereT | None) -> None:
        assert self._lock is not None and self._socket is not None
        self._socket.close()
        try:
            if here is not None:
                await here.close()
        finally:
            self._lock.release()
