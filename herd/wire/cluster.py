"""The tablespaces of a cluster: each is asked for where its leader is.

    async with open_cluster("herdbook://zookeeper-1:2181/prod") as herd:
        session = await herd.session("sales")

Who leads stands in the metadata store; a node that is asked and does not lead tells who does.

Invariants:
- There is at most one connection to an address at a time; all sessions share it.
- An address that did not answer, or does not lead any more, is not used again before the metadata
  store, or a node, has named it anew.
- A node that owes an answer and says nothing is given up as soon as others lead all that it was
  asked for: a machine that stands still costs no more than one that is killed.
"""

import asyncio
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.log import Position
from engine.ports.clock import Clock
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers
from engine.transport.security import NO_SECURITY, Security
from herd.errors import (
    AccessDenied,
    Error,
    LeaderUnavailable,
    NameTaken,
    OperationalError,
    ProgrammingError,
)
from herd.nodes.commands import SpaceCommands
from herd.permits import Whose
from herd.translating import translating
from herd.wire.calling import Calling, Patience
from herd.wire.contract import Channel
from herd.wire.framed_client import FramedChannel, dial_sessions
from herd.wire.herd import DEFAULT, RemoteHerd
from herd.wire.session import RemoteSession
from herd.wire.settings import WireSettings

if TYPE_CHECKING:
    from engine.ledger.client import LedgerClient
    from engine.metadata.zookeeper_settings import ZooKeeperSettings

LeaderOf = Callable[[str], Awaitable[str]]
"""The address of a tablespace's leader, "" if nobody leads it at the moment."""
_DENIALS_MAX: Final = 3
_RESUME_MS: Final = 5_000
"""How long to wait for the leader of a tablespace that was suspended, before asking again."""


class LeaderRoute:
    """Finds leaders and keeps the ways to them. A `Route`; on one event loop."""

    def __init__(
        self,
        leader_of: LeaderOf,
        *,
        clock: Clock,
        rng: random.Random,
        settings: WireSettings | None = None,
        security: Security = NO_SECURITY,
    ) -> None:
        """Raises `InvalidRequest`, of the engine, for certificates that cannot be used."""
        self._leader_of = leader_of
        self._clock = clock
        self._rng = rng
        self._settings = settings or WireSettings()
        self._security = security
        security.client_context()
        self._leaders: dict[str, str] = {}
        self._channels: dict[str, FramedChannel] = {}
        self._dialling: dict[str, asyncio.Lock] = {}
        self._asked: dict[str, set[str]] = {}
        """The tablespaces that an address was asked for."""
        self._doubting: asyncio.Task[None] | None = None
        self._closed = False

    async def channel(self, tablespace: str) -> Channel:
        """A channel to a tablespace's leader, as soon as there is one that answers.

        Raises `OperationalError` if there is none for as long as the settings have patience.
        """
        patience = Patience(self._clock, self._rng, self._settings)
        denials = 0
        while True:
            address = self._known(tablespace)
            try:
                if address is None:
                    address = await self._leader_of(tablespace)
                if not address:
                    raise LeaderUnavailable(
                        f"nobody leads tablespace {tablespace} at the moment", hint="try again"
                    )
                channel = await self._dial(address)
                self._leaders[tablespace] = address
                self._asked.setdefault(address, set()).add(tablespace)
                return channel
            except LeaderUnavailable as error:
                self._leaders.pop(tablespace, None)
                await patience.wait(error)
            except AccessDenied as error:
                # A node that is killed while it greets looks like one that wants TLS.
                denials += 1
                if denials == _DENIALS_MAX:
                    raise
                self._leaders.pop(tablespace, None)
                await patience.wait(error)

    def _known(self, tablespace: str) -> str | None:
        """Who leads, if that is known and the way there is not lost: who is gone answers late."""
        address = self._leaders.get(tablespace)
        if address is not None and (way := self._channels.get(address)) and way.over:
            del self._leaders[tablespace]
            return None
        return address

    def moved(self, tablespace: str, leader: str) -> bool:
        """The one asked does not lead it: ask `leader` next, or look it up."""
        if leader:
            self._leaders[tablespace] = leader
        else:
            self._leaders.pop(tablespace, None)
        return True

    async def close(self) -> None:
        """End all connections. May be called twice."""
        self._closed = True
        if self._doubting is not None:
            self._doubting.cancel()
            await asyncio.gather(self._doubting, return_exceptions=True)
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()

    async def _dial(self, address: str) -> FramedChannel:
        found = self._channels.get(address)
        if found is not None and not found.over:
            return found
        async with self._dialling.setdefault(address, asyncio.Lock()):
            found = self._channels.get(address)
            if found is None or found.over:
                if self._closed:
                    raise OperationalError("the connection to the cluster was closed")
                if self._doubting is None:
                    self._doubting = asyncio.create_task(self._doubt())
                found = self._channels[address] = await dial_sessions(
                    address,
                    self._clock,
                    settings=self._settings,
                    security=self._security,
                )
        return found

    async def _doubt(self) -> None:
        """Give up nodes that owe answers, say nothing, and lead no more."""
        heard: dict[FramedChannel, int] = {}
        while True:
            await asyncio.sleep(self._settings.doubt_ms / 1000)
            before, heard = heard, {}
            for address, channel in list(self._channels.items()):
                if channel.over or not channel.owed:
                    continue
                heard[channel] = channel.heard
                silent = before.get(channel) == channel.heard
                if silent and await self._is_elsewhere(address) and channel.heard == heard[channel]:
                    channel.give_up("it says nothing, and another node leads")

    async def _is_elsewhere(self, address: str) -> bool:
        """Whether others lead all tablespaces that an address was asked for."""
        try:
            for tablespace in self._asked.get(address, ()):
                leader = await self._leader_of(tablespace)
                if leader in ("", address):
                    return False
        except Error:
            # What cannot be told now is asked again.
            return False
        return True


class FollowerRoute(LeaderRoute):
    """Finds replicas to read from, wherever they are."""

    async def _is_elsewhere(self, address: str) -> bool:
        """Never: any replica may be read, and one that says nothing for a lease is given up."""
        return False

    def moved(self, tablespace: str, leader: str) -> bool:
        """The one asked has no replica: ask another one."""
        self._leaders.pop(tablespace, None)
        return True


class ClusterHerd(RemoteHerd):
    """The tablespaces of a cluster. Made by `open_cluster`."""

    def __init__(
        self, calling: Calling, reading: Calling, commands: SpaceCommands, client: "LedgerClient"
    ) -> None:
        """`calling` goes to leaders, `reading` to any replica, `client` to ledgers."""
        super().__init__(calling)
        self._client = client
        self._reading = reading
        self._commands = commands

    async def session(
        self,
        name: str = DEFAULT,
        *,
        autocommit: bool = True,
        follower: bool = False,
        whose: Whose = None,
    ) -> RemoteSession:
        """A session for SQL in a tablespace. Close it. It may do what `whose` may.

        A `follower` session reads from any replica, at the `position` that it states, perhaps some
        time behind the leader, and changes nothing. Raises `ProgrammingError` for a tablespace that
        is not there, `LeaderUnavailable`.
        """
        if not follower:
            return await super().session(name, autocommit=autocommit, whose=whose)
        made = RemoteSession(
            self._reading, name.lower(), autocommit=autocommit, follower=True, whose=whose
        )
        await made.attach()
        return made

    async def replica_of(self, tablespace: str, rng: random.Random) -> str:
        """The address of a replica that can be read, a follower if there is one; "": none."""
        found: dict[bool, list[str]] = {True: [], False: []}
        for _, fact in sorted((await self._commands.nodes()).items()):
            report = fact.replicas.get(tablespace)
            if report is not None and report.ready:
                found[report.role == "leader"].append(fact.address)
        followers = found[False] or found[True]
        if not followers:
            if (await self._commands.space(tablespace)).suspended:
                await self._commands.resume(tablespace)
            return ""
        return rng.choice(followers)

    async def names(self) -> list[str]:
        """The tablespaces that there are, in order."""
        return sorted(await self._commands.spaces())

    async def make(self, name: str) -> None:
        """Create a tablespace with the cluster's default number of replicas, if it does not exist.

        Replicas for which there is no node yet are added when one joins.
        """
        if await self._is_there(name):
            return
        try:
            await self._commands.create(name)
        except NameTaken:
            # Somebody was quicker: the nodes make "default" by themselves, for one.
            if not await self._is_there(name):
                raise

    async def _is_there(self, name: str) -> bool:
        try:
            await self._commands.space(name)
        except ProgrammingError:
            return False
        return True

    async def back_up(self, path: str | PathLike[str], name: str = DEFAULT) -> None:
        """Write a tablespace, as it is now, into a new file of this machine.

        Its leader takes a checkpoint; what that consists of is read here. Raises
        `ProgrammingError`, `LeaderUnavailable`, `StorageFailed`, `OSError`.
        """
        from herd.backup import write_checkpoint

        name, file = name.lower(), Path.cwd() / path
        session = await self.session(name)
        try:
            await session.execute("CHECKPOINT")
        finally:
            await session.close()
        disk = SystemDisk(file.parent)
        await write_checkpoint(self._client, name, None, self.workers, disk, file.name)

    async def restore(self, path: str | PathLike[str], name: str) -> None:
        """Create a tablespace, which must not exist yet, from a backup's file on this machine.

        The file is read and checked here, and its rows pass through a state in a folder for
        temporary files. The tablespace exists, with the default number of replicas, once all of
        it is durable; if anything fails, it does not, and its name is free a moment later.
        Raises `ProgrammingError`, `OperationalError`, `LeaderUnavailable`, `StorageFailed` for a
        file that is damaged or cut short, `OSError` for one that cannot be read.
        """
        from engine.state.rocks import open_rocks
        from herd.backup import restore_as

        client, workers, file = self._client, self.workers, Path.cwd() / path
        await self._commands.check_nodes()
        folder = Path(await workers.run(partial(tempfile.mkdtemp, prefix="herd-restore-")))
        try:
            open_state = partial(open_rocks, folder / "state", workers)
            await restore_as(client, workers, file, name.lower(), open_state)
        finally:
            await workers.run(partial(shutil.rmtree, folder, ignore_errors=True))

    async def restore_until(self, source: str, until: Position, name: str) -> None:
        """Make a tablespace of another as it was at a position; an empty one may be there.

        It is filled by its leader. If that fails the tablespace stays, and is empty. Raises
        `ProgrammingError`, `StorageFailed`, `LeaderUnavailable`.
        """
        source, name = source.lower(), name.lower()
        await self._commands.space(source)
        await self.make(name)
        await self._commands.until_led(name, self._calling.settings.patience_ms)
        session = await self.session(name)
        try:
            await session.execute(
                f'RESTORE TABLESPACE "{source}" UNTIL {until.ledger}/{until.entry}'
            )
        finally:
            await session.close()


@asynccontextmanager
async def open_cluster(
    url: str,
    *,
    security: Security = NO_SECURITY,
    settings: WireSettings | None = None,
    zookeeper: "ZooKeeperSettings | None" = None,
) -> AsyncIterator[ClusterHerd]:
    """The tablespaces of a cluster as long as the block lasts.

    `security` is what nodes ask for; `zookeeper` has the session's time-outs and credentials.
    Raises `OperationalError` if the metadata store does not answer or knows no cluster there.
    """
    # What a cluster needs loads when one is reached.
    from engine.connecting import connect

    with translating():
        async with (
            connect(url, security=security, zookeeper=zookeeper) as client,
            tablespaces_of(client, security=security, settings=settings) as herd,
        ):
            yield herd


@asynccontextmanager
async def tablespaces_of(
    client: "LedgerClient",
    *,
    security: Security = NO_SECURITY,
    settings: WireSettings | None = None,
) -> AsyncIterator[ClusterHerd]:
    """The tablespaces of the cluster that a client is connected to, as long as the block lasts."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    clock, rng = client.clock, client.rng
    commands = SpaceCommands(client.store, clock, rng)

    async def leader_of(tablespace: str) -> str:
        leader = await commands.leader_of(tablespace)
        if not leader and (await commands.space(tablespace)).suspended:
            await commands.resume(tablespace)
            with suppress(LeaderUnavailable):
                leader = await commands.until_led(tablespace, _RESUME_MS)
        return leader

    async def replica_of(tablespace: str) -> str:
        return await herd.replica_of(tablespace, rng)

    try:
        route = LeaderRoute(leader_of, clock=clock, rng=rng, settings=settings, security=security)
        reading = FollowerRoute(
            replica_of, clock=clock, rng=rng, settings=settings, security=security
        )
        herd = ClusterHerd(
            Calling(route, clock, rng, workers, settings),
            Calling(reading, clock, rng, workers, settings),
            commands,
            client,
        )
        try:
            yield herd
        finally:
            await route.close()
            await reading.close()
    finally:
        await workers.close()
