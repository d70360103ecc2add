"""Who runs the tasks of a folder, and how the others reach that one.

The file `broker-owner/lock` in the folder is locked by the one opener that runs its tasks; it names
the Unix socket where that one serves the others. It is not the lock of the folder itself: whoever
runs the bookies need not know of tasks.

Invariants:
- At most one opener runs the tasks; the system lets go of the lock when its process ends, however.
  The next caller takes it, and all others find that one.
- The address is published only once the broker serves; it is taken back before it ends, and the
  lock is let go of after the broker has closed.
- What was not taken anywhere is asked again, of the next owner perhaps; what may have been done is
  never asked again.
- In a forked child everything raises, and nothing of the parent's is kept open.
"""

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from broker.connection import Hello, WorkerLink
from broker.errors import (
    BrokerError,
    BrokerUnavailable,
    OutcomeUnknown,
    Overloaded,
    StoreClosed,
)
from broker.service import Broker
from broker.translating import translated, translating
from broker.wire.asking import METHODS, READS
from broker.wire.calling import CallsByName
from broker.wire.framed_client import ConnectionOver, FolderChannel, dial_folder
from broker.wire.framed_server import FolderServer
from engine.errors import EngineError
from engine.folder import sockets
from engine.folder.forks import guard
from engine.folder.lock import FolderLock, Ownership
from engine.ports.clock import Clock

OWNER: Final = "broker-owner"
PATIENCE_MS: Final = 15_000
"""So long a call looks for somebody who runs the tasks."""
_NONCE_BITS: Final = 128
_RETRY_FIRST_S: Final = 0.005
_RETRY_MAX_S: Final = 0.2


class _Served:
    """The tasks run here, and others are served."""

    def __init__(self, broker: Broker, server: FolderServer) -> None:
        self.broker = broker
        self.server = server
        self.listening: asyncio.AbstractServer | None = None
        self.end: socket.socket | None = None
        self.address = ""

    def descriptors(self) -> list[int]:
        """What a forked child must not keep."""
        found = [] if self.end is None else [self.end.fileno()]
        return found + [each.wire.descriptor() for each in self.server.connections]


class FolderRoute:
    """One opener of a folder's tasks: runs them, or reaches who does. `run` opens the broker."""

    def __init__(
        self,
        path: Path,
        run: Callable[[], Awaitable[Broker]],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.path = path
        self._run = run
        self._clock = clock
        self._rng = rng
        self._process = os.getpid()
        self._lock: FolderLock | None = None
        self._served: _Served | None = None
        self._channel: FolderChannel | None = None
        self._finding = asyncio.Lock()
        self._closed = False
        self._forked = False
        guard(self)

    @property
    def broker(self) -> Broker | None:
        """The broker, if the tasks run here."""
        return None if self._served is None else self._served.broker

    async def own_or_reach(self) -> Broker | FolderChannel:
        """The broker if the tasks run here, from now on perhaps, or a way to who runs them.

        Raises `BrokerUnavailable` if nobody answers in time, after `close` and in a forked child.
        """
        self._check()
        if not self._found:
            async with self._finding:
                self._check()
                if not self._found:
                    await self._find()
        if self._served is not None:
            return self._served.broker
        assert self._channel is not None
        return self._channel

    @property
    def _found(self) -> bool:
        return self._served is not None or (self._channel is not None and not self._channel.over)

    def who(self) -> str:
        """Who runs the tasks elsewhere, for people."""
        try:
            ownership = None if self._lock is None else self._lock.read()
        except (EngineError, OSError, ValueError):
            ownership = None
        return "another process" if ownership is None else f"process {ownership.process}"

    async def pause(self, past: int) -> None:
        """Wait a little, longer after each of the past tries."""
        pause_s = min(_RETRY_FIRST_S * 2 ** min(past, 10), _RETRY_MAX_S)
        await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))

    async def close(self) -> None:
        """Serve nobody any more, end the broker if it runs here, let go. May be called twice."""
        if self._closed or self._forked:
            return
        self._closed = True
        async with self._finding:
            served, self._served = self._served, None
            if self._channel is not None:
                self._channel.close()
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
        if self._channel is not None:
            found.append(self._channel.wire.descriptor())
        if self._lock is not None and not self._closed:
            found.append(self._lock.descriptor())
        return [end for end in found if end >= 0]

    def _check(self) -> None:
        if self._forked or self._process != os.getpid():
            raise BrokerUnavailable("opened before a fork: open the folder again in this process")
        if self._closed:
            raise StoreClosed("the store is closed")

    # Finding who runs them

    async def _find(self) -> None:
        deadline_s = self._clock.monotonic() + PATIENCE_MS / 1000
        past = 0
        while True:
            # Whoever closes it waits for this to end.
            self._check()
            taking = True
            try:
                if await self._take():
                    return
                taking = False
                await self._reach()
                return
            except BrokerUnavailable as error:
                if self._clock.monotonic() > deadline_s or (taking and self._channel is None):
                    if taking:
                        raise
                    text = f"the tasks in {self.path} are run by {self.who()}, which does not"
                    raise BrokerUnavailable(f"{text} answer: {error.message}") from error
                # Somebody is about to serve, or about to end; whoever ran the ledgers, too.
            await self.pause(past)
            past += 1

    async def _take(self) -> bool:
        """Become who runs them, if nobody is. Raises `BrokerUnavailable`."""
        with translating():
            if self._lock is None:
                self._lock = FolderLock.of(self.path / OWNER)
            if not self._lock.try_take():
                return False
        served = None
        try:
            previous = self._lock.read()
            if previous is not None:
                sockets.remove(previous.address)
            nonce = f"{self._rng.getrandbits(_NONCE_BITS):032x}"
            broker = await self._run()
            served = _Served(broker, FolderServer(broker, nonce))
            await self._listen(served, nonce)
        except BaseException as error:
            if served is None:
                self._lock.release()
            else:
                await self._end(served)
            if isinstance(error, EngineError):
                raise translated(error) from error
            raise
        self._served = served
        return True

    async def _listen(self, served: _Served, nonce: str) -> None:
        served.end, served.address = sockets.listen(nonce)
        loop = asyncio.get_running_loop()
        served.listening = await loop.create_unix_server(served.server.accept, sock=served.end)
        assert self._lock is not None
        self._lock.publish(Ownership(sockets.own_process(), nonce, served.address))

    async def _reach(self) -> None:
        """Raises `BrokerUnavailable` if nobody answers there at the moment."""
        assert self._lock is not None
        with translating():
            ownership = self._lock.read()
        if ownership is None:
            raise BrokerUnavailable("nobody has said yet where they are served")
        self._channel = await dial_folder(ownership.address, ownership.nonce, self._clock)

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
            # Before the connections end: who waits for an answer gets one.
            await served.broker.close()
        finally:
            await served.server.close()
            self._lock.release()


class FolderCalls(CallsByName):
    """A folder's tasks, wherever they run: `Calls` for an opener that may not run them itself."""

    code_bytes_max = 64 * 1024 * 1024

    def __init__(self, route: FolderRoute, clock: Clock) -> None:
        super().__init__(clock)
        self._route = route

    async def _ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        method = METHODS[name]
        data = method.pack(arguments, named)
        until_s = self._clock.monotonic() + PATIENCE_MS / 1000
        past = 0
        while True:
            found = await self._route.own_or_reach()
            try:
                if isinstance(found, Broker):
                    return method.unpack(await method.answer(found, data))
                return method.unpack(await found.ask(name, data))
            except ConnectionOver as error:
                if name not in READS:
                    raise OutcomeUnknown(error.message) from error
                failure: BrokerError = error
            except Overloaded:
                raise
            except BrokerUnavailable as error:
                failure = error
            if self._clock.monotonic() >= until_s:
                raise failure
            await self._route.pause(past)
            past += 1

    async def connect(self, hello: Hello) -> WorkerLink:
        """See `WorkerPort`."""
        found = await self._route.own_or_reach()
        return await found.connect(hello) if isinstance(found, Broker) else found.link(hello)
