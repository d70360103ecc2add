"""Who runs the tasks of a folder, and how the others reach that one.

The file `broker-owner/lock` in the folder is locked by the one opener that runs its tasks; it names
the Unix socket where that one serves the others. It is not the lock of the folder itself: whoever
runs the bookies need not know of tasks.

Invariants:
- At most one opener runs the tasks, see `engine.folder.serving`; the next caller takes its place.
- Who waits for an answer when the broker ends gets one.
- What was not taken anywhere is asked again, of the next owner perhaps; what may have been done is
  never asked again.
- In a forked child everything raises.
"""

import asyncio
import random
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
from broker.translating import translating
from broker.wire.asking import METHODS, READS
from broker.wire.calling import CallsByName
from broker.wire.framed_client import ConnectionOver, FolderChannel, dial_folder
from broker.wire.framed_server import FolderServer
from broker.wire.framing import FETCH_CODE
from engine.folder.serving import FolderServing
from engine.ports.clock import Clock

OWNER: Final = "broker-owner"
PATIENCE_MS: Final = 15_000
"""So long a call looks for somebody who runs the tasks."""
_RETRY_FIRST_S: Final = 0.005
_RETRY_MAX_S: Final = 0.2


class _Served:
    """The tasks run here, and others are served."""

    def __init__(self, broker: Broker, server: FolderServer) -> None:
        self.broker = broker
        self.server = server

    async def close(self) -> None:
        """End the broker, then the connections: who waits for an answer gets one."""
        try:
            await self.broker.close()
        finally:
            await self.server.close()


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
        self._serving: FolderServing[_Served, FolderChannel] = FolderServing(path / OWNER, rng)

    @property
    def broker(self) -> Broker | None:
        """The broker, if the tasks run here."""
        return None if self._serving.here is None else self._serving.here.broker

    async def own_or_reach(self) -> Broker | FolderChannel:
        """The broker if the tasks run here, from now on perhaps, or a way to who runs them.

        Raises `BrokerUnavailable` if nobody answers in time, after `close` and in a forked child.
        """
        self._check()
        await self._serving.find(self._find)
        if self._serving.here is not None:
            return self._serving.here.broker
        assert self._serving.there is not None
        return self._serving.there

    def who(self) -> str:
        """Who runs the tasks elsewhere, for people."""
        return self._serving.who("another process")

    async def pause(self, past: int) -> None:
        """Wait a little, longer after each of the past tries."""
        pause_s = min(_RETRY_FIRST_S * 2 ** min(past, 10), _RETRY_MAX_S)
        await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))

    async def close(self) -> None:
        """Serve nobody any more, end the broker if it runs here, let go. May be called twice."""
        await self._serving.close()

    def _check(self) -> None:
        if self._serving.forked:
            raise BrokerUnavailable("opened before a fork: open the folder again in this process")
        if self._serving.closed:
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
                if self._clock.monotonic() > deadline_s or (taking and self._serving.there is None):
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
            return await self._serving.take(self._begin)

    async def _begin(self, nonce: str) -> _Served:
        broker = await self._run()
        return _Served(broker, FolderServer(broker, nonce))

    async def _reach(self) -> None:
        """Raises `BrokerUnavailable` if nobody answers there at the moment."""
        with translating():
            owner = self._serving.owner()
        if owner is None:
            raise BrokerUnavailable("nobody has said yet where they are served")
        self._serving.there = await dial_folder(owner.address, owner.nonce, self._clock)


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

    async def fetch_code(self, name: str) -> bytes:
        """A code pool's archive. Raises `UnknownCodePool`, `BrokerUnavailable`."""
        found = await self._route.own_or_reach()
        if isinstance(found, Broker):
            return await found.fetch_code(name)
        return await found.ask(FETCH_CODE, name.encode())
