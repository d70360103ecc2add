"""Who runs the tablespaces of a folder, and how the others reach them.

The file `herd/.owner/lock` in the folder is locked by the one opener that runs its tablespaces; it
names the Unix socket where that one serves the others. It is not the lock of the folder itself:
whoever runs the bookies need not know of tablespaces.

Invariants:
- At most one opener runs the tablespaces, see `engine.folder.serving`; the next caller takes its
  place after the last tablespace has closed.
- In a forked child everything raises.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from engine.errors import InvalidRequest
from engine.folder.serving import FolderServing
from engine.ports.clock import Clock
from herd.errors import InterfaceError, LeaderUnavailable, OperationalError
from herd.translating import translating
from herd.wire.contract import Channel
from herd.wire.framed_client import FramedChannel, dial_sessions
from herd.wire.framed_server import SessionServer
from herd.wire.guest import Guest
from herd.wire.local import LocalChannel
from herd.wire.service import HerdService
from herd.wire.settings import WireSettings

OWNER: Final = ".owner"


class _Served:
    """The tablespaces run here, and others are served."""

    def __init__(
        self, service: HerdService, nonce: str, stop: Callable[[], Awaitable[None]]
    ) -> None:
        def admit(options: dict[str, Any]) -> None:
            if options.get("nonce") != nonce:
                raise InvalidRequest("the tablespaces of another folder are served here")

        self.channel = LocalChannel(Guest(service))
        self.server = SessionServer(service, admit=admit)
        self._stop = stop

    async def close(self) -> None:
        """Serve nobody any more, then close the tablespaces."""
        try:
            await self.server.close()
            await self.channel.close()
        finally:
            await self._stop()


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
        self._serving: FolderServing[_Served, FramedChannel] = FolderServing(root / OWNER, rng)

    @property
    def owns(self) -> bool:
        """Whether the tablespaces run here."""
        return self._serving.here is not None

    async def own_or_reach(self) -> bool:
        """Run the tablespaces, or reach who does. Tells whether they run here.

        Raises `OperationalError` if they do elsewhere and nobody answers in time, `InterfaceError`
        after `close` and in a forked child.
        """
        self.check()
        await self._serving.find(self._find)
        return self.owns

    async def channel(self, tablespace: str) -> Channel:
        """A channel to who runs the tablespaces, this opener perhaps. Raises as `own_or_reach`."""
        await self.own_or_reach()
        if self._serving.here is not None:
            return self._serving.here.channel
        assert self._serving.there is not None
        return self._serving.there

    def moved(self, tablespace: str, leader: str) -> bool:
        """A folder's tablespaces have one place: who does not lead there will, or nobody."""
        return False

    def check(self) -> None:
        """Raise `InterfaceError` after `close` and in a forked child."""
        if self._serving.forked:
            raise InterfaceError("opened before a fork", hint="open the folder again in here")
        if self._serving.closed:
            raise InterfaceError("the folder was closed", hint="open it again")

    def who(self) -> str:
        """Who runs the tablespaces elsewhere, for people."""
        return self._serving.who("another opener")

    async def close(self) -> None:
        """Serve nobody any more, close what runs here, let go. May be called twice."""
        await self._serving.close()

    # Finding who runs them

    async def _find(self) -> None:
        self.check()
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
        with translating():
            return await self._serving.take(self._begin)

    async def _begin(self, nonce: str) -> _Served:
        return _Served(self._serve(), nonce, self._stop)

    async def _reach(self) -> None:
        """Raises `LeaderUnavailable` if nobody answers there at the moment."""
        with translating():
            owner = self._serving.owner()
        if owner is None:
            raise LeaderUnavailable("nobody has said yet where the tablespaces are served")
        try:
            self._serving.there = await dial_sessions(
                owner.address,
                self._clock,
                options={"nonce": owner.nonce},
                settings=self._settings,
            )
        except InterfaceError as error:
            # The address is another folder's by now: the lock's content was old.
            raise LeaderUnavailable(error.message) from error
