"""The tablespaces of a folder: opened on first use, shared by all who open the folder.

    async with open_folder("./data") as herd:
        space = await herd.tablespace()

In the metadata store `/herd/tablespaces/<name>` says that a tablespace exists; its rows lie in
`herd/<name>` below the folder, its log in the folder's ledgers.

Sessions and tables come from whichever opener of the folder runs its tablespaces: the first that
wants one, in this process or in another; the others reach it through a socket, and when it ends the
next caller takes its place.

Invariants:
- A tablespace runs once: in one process, on one loop. Openers on the same loop share it. Only the
  one opener that owns all of them opens any.
- What a folder holds is known by the metadata store alone. A state without its fact is garbage, a
  fact without its state is made anew from the log.
- Who opened a folder last closes it; a herd on somebody else's client ends with that client.
"""

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from engine import cluster
from engine.errors import (
    CannotRead,
    EngineError,
    FolderLocked,
    FormatTooNew,
    KeyExists,
    MetadataUnavailable,
)
from engine.folder.naming import refuse_url
from engine.ledger.client import LedgerClient
from engine.log import START, Position
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers
from engine.ports.workers import Workers
from engine.state.rocks import open_rocks
from herd.errors import InterfaceError, OperationalError, ProgrammingError
from herd.locks import SCHEMA
from herd.nodes.directory import Directory
from herd.nodes.facts import SpaceFact, decode_space
from herd.nodes.folder_spaces import FolderSpaces, mark_dropped, remove_marked
from herd.permits import Whose
from herd.settings import FOLDER_LOG, HerdSettings
from herd.sharing import Sharing
from herd.table import AsyncTable, create_table, open_table
from herd.tablespace import Tablespace
from herd.translating import translating
from herd.types import ColumnType
from herd.wire.calling import Calling
from herd.wire.folder import FolderRoute
from herd.wire.herd import RemoteHerd, no_followers
from herd.wire.service import HerdService
from herd.wire.settings import WireSettings

if TYPE_CHECKING:
    from herd.aio import AsyncConnection
    from herd.changes import CommittedTransaction
    from herd.checking import Verdict
    from herd.sql.query import QueryEngine
    from herd.sql.query_pool import QueryPool
    from herd.sql.session import Session
    from herd.wire.session import RemoteSession

DEFAULT: Final = "default"
TABLESPACES: Final = "/herd/tablespaces"
FOLDER: Final = "herd"
_FACTS_A_TURN: Final = 64
_NAME_FORM: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_logger = logging.getLogger(__name__)


class TablespaceFact(msgspec.Struct, frozen=True):
    """What the metadata store knows of a tablespace. Times in milliseconds of the wall clock."""

    uuid: str
    created_ms: int


class AsyncHerd:
    """The tablespaces of one folder. Made by `open_folder` or `open_herd`; on one event loop."""

    def __init__(
        self,
        client: LedgerClient,
        path: Path,
        workers: Workers,
        settings: HerdSettings | None = None,
        wire: WireSettings | None = None,
    ) -> None:
        self.client = client
        self._folder = path / FOLDER
        self.workers = workers
        self._settings = settings
        self._wire = wire
        self._route = FolderRoute(
            self._folder,
            self._serve,
            self._close_spaces,
            clock=client.clock,
            rng=client.rng,
            settings=wire,
        )
        calling = Calling(self._route, client.clock, client.rng, workers, wire)
        self._remote = RemoteHerd(calling)
        self._spaces: dict[str, Tablespace] = {}
        self._queries: dict[str, QueryEngine] = {}
        self.query_pool: QueryPool | None = None
        """Runs the queries of all tablespaces; None: each has its own threads. Servers set it
        before the first query."""
        self._opening = asyncio.Lock()
        self.dropped: set[str] = set()
        """The tablespaces that were dropped and are not removed yet, as far as is known here."""
        self._drops: set[asyncio.Task[None]] = set()
        self._removing: asyncio.Task[None] | None = None
        self._closed = False

    async def names(self) -> list[str]:
        """The tablespaces that there are, in order; `default` among them once it was used."""
        self._check_open()
        with translating():
            names = await self.client.store.children(TABLESPACES)
        return [name for name in names if name not in self.dropped]

    async def tablespace(self, name: str = DEFAULT, *, create: bool = False) -> Tablespace:
        """A tablespace, opened on first use; `default`, or any with `create`, is made if missing.

        Raises `ProgrammingError` for one that is not there, `OperationalError` if another process
        or another loop runs the folder's tablespaces, `StorageFailed`, `LeaderUnavailable`.
        """
        if not await self._route.own_or_reach():
            raise OperationalError(
                f"the tablespaces in {self._folder} are run by {self._route.who()}",
                hint="use a session or a table: they reach it there",
            )
        return await self._space(name, create=create)

    async def make(self, name: str) -> None:
        """Make a tablespace, if it is not there. Raises `ProgrammingError` for a bad name."""
        if await self._route.own_or_reach():
            await self._space(name, create=True)
        else:
            await self._remote.make(name)

    async def _space(self, name: str, *, create: bool = False) -> Tablespace:
        """A tablespace that runs here, or will now."""
        name = name.lower()
        found = self._spaces.get(name)
        if found is not None:
            return found
        async with self._opening:
            self._check_open()
            assert self._route.owns, "only its owner runs a folder's tablespaces"
            if self._removing is None:
                self._removing = asyncio.create_task(self._remove_left())
            found = self._spaces.get(name)
            if found is None:
                await self._make_sure(name, create=create or name == DEFAULT)
                found = self._spaces[name] = await self._open(name)
        return found

    async def session(
        self,
        name: str = DEFAULT,
        *,
        autocommit: bool = True,
        follower: bool = False,
        whose: Whose = None,
    ) -> "Session | RemoteSession":
        """A session for SQL in a tablespace, wherever that runs, with `whose` rights. Close it.

        Raises `ProgrammingError` for a tablespace that is not there, `OperationalError`, and for a
        `follower` `NotSupportedError`: only clusters have some.
        """
        if follower:
            raise no_followers()
        if await self._route.own_or_reach():
            return await self._session(name, autocommit, whose)
        return await self._remote.session(name, autocommit=autocommit, whose=whose)

    async def _session(self, name: str, autocommit: bool, whose: Whose = None) -> "Session":
        from herd.sql.session import Session

        return Session(space := await self._space(name), self.queries(space), autocommit, whose)

    def queries(self, space: Tablespace) -> "QueryEngine":
        """What runs queries over a tablespace."""
        from herd.sql.query import QueryEngine

        found = self._queries.get(space.name)
        if found is None:
            found = self._queries[space.name] = QueryEngine(
                space, self.workers, pool=self.query_pool
            )
            if space.checkpointer is not None:
                from herd.checkpoint.catching_up import CatchingUp
                from herd.checkpoint.reading import CheckpointReader

                reader = CheckpointReader(self.client, space.checkpointer, self.workers)
                found.checkpoints = reader.open
                found.columns.checkpointed = CatchingUp(
                    self.client, space.name, space.checkpointer, reader, self.workers
                ).rows
        return found

    async def connect(self, name: str = DEFAULT, *, autocommit: bool = False) -> "AsyncConnection":
        """A connection for SQL in a tablespace. Close it. Raises as `session` does."""
        from herd.aio import AsyncConnection

        return AsyncConnection(await self.session(name, autocommit=autocommit), self.workers)

    async def table(self, table: str, name: str = DEFAULT) -> AsyncTable:
        """A table of a tablespace, as keys and values. Raises `NoSuchTable`."""
        if await self._route.own_or_reach():
            return await open_table(await self._space(name), table)
        return await self._remote.table(table, name)

    async def create_table(
        self,
        table: str,
        columns: Mapping[str, ColumnType],
        primary: Sequence[str],
        name: str = DEFAULT,
    ) -> AsyncTable:
        """Make a table without SQL; see `herd.table.create_table`."""
        if await self._route.own_or_reach():
            return await create_table(await self._space(name), table, columns, primary)
        return await self._remote.create_table(table, columns, primary, name)

    def changes(
        self,
        name: str = DEFAULT,
        after: Position = START,
        *,
        last: Position | None = None,
        tables: Sequence[str] = (),
        consumer: str = "",
    ) -> "AsyncGenerator[CommittedTransaction, None]":
        """A tablespace's committed transactions, in order; see `herd.changes.changes`."""
        from herd.changes import changes

        self._check_open()
        return changes(
            self.client, name.lower(), after, last=last, tables=tables, consumer=consumer
        )

    async def forget_consumer(self, consumer: str, name: str = DEFAULT) -> None:
        """Keep nothing any more for who followed the changes of a tablespace under a name."""
        from herd.consumers import Consumer

        with translating():
            await Consumer(self.client, name.lower(), consumer, 0).forget()

    async def back_up(self, path: str | PathLike[str], name: str = DEFAULT) -> None:
        """Write a tablespace, as it is now, into a new file; it works on meanwhile.

        Raises as `tablespace` does, `FileExistsError`, `OSError`.
        """
        from herd.backup import back_up

        if not await self._route.own_or_reach():
            await self._remote.back_up(path, name)
            return
        file = Path.cwd() / path
        disk = SystemDisk(file.parent)
        await back_up(await self._space(name), self.client, self.workers, disk, file.name)

    async def restore(self, path: str | PathLike[str], name: str) -> None:
        """Make a tablespace, which must not be there yet, of a backup.

        Raises `ProgrammingError`, `StorageFailed` for a file that is damaged or cut short.
        """
        from herd.backup import restore

        if not await self._route.own_or_reach():
            await self._remote.restore(path, name)
            return
        async with self._restored(name) as space:
            await restore(space, self.workers, Path.cwd() / path)

    async def restore_until(self, source: str, until: Position, name: str) -> None:
        """Make a tablespace, which must not be there yet, of another one as it was at a position.

        `until` is a transaction's, as `changes` tells it. Raises as `restore` and `tablespace`.
        """
        from herd.restoring import restore_until

        if not await self._route.own_or_reach():
            await self._remote.restore_until(source, until, name)
            return
        await self._space(source)
        async with self._restored(name) as space:
            await restore_until(space, self.client, self.workers, source.lower(), until)

    async def check_replicas(self, name: str = DEFAULT) -> "Verdict":
        """Compare the rows of a tablespace's replicas at one position. Raises as `session`."""
        from herd.checking import checked_through

        return await checked_through(await self.session(name))

    @asynccontextmanager
    async def _restored(self, name: str) -> AsyncIterator[Tablespace]:
        """A new tablespace; there is none if filling it fails, unless others use it by then."""
        async with self._opening:
            self._check_open()
            made = await self._make_sure(name.lower(), create=True)
        if not made:
            raise ProgrammingError(f"there is a tablespace {name} already", hint="take a new name")
        space = await self._space(name)
        try:
            yield space
        except BaseException:
            transaction = space.begin()
            try:
                # Nobody defines a table between the look and the end.
                await transaction.lock_name(SCHEMA)
                if not space.catalog.names:
                    await self.drop(name)
            finally:
                transaction.rollback()
            raise

    async def drop(self, name: str) -> None:
        """End a tablespace and remove all that it holds, where the folder's tablespaces run.

        A drop that failed can be repeated. Cancelling the caller does not cancel it. Raises
        `ProgrammingError` if it does not exist, `OperationalError` as `tablespace`.
        """
        if not await self._route.own_or_reach():
            raise OperationalError(
                f"the tablespaces in {self._folder} are run by {self._route.who()}",
                hint="DROP TABLESPACE in a session reaches it there",
            )
        # An unfinished drop would leave a tablespace running while the next use of its name removes
        # its files.
        dropping = asyncio.create_task(self._drop(name.lower()))
        self._drops.add(dropping)
        dropping.add_done_callback(self._drops.discard)
        try:
            await asyncio.shield(dropping)
        except asyncio.CancelledError:
            dropping.add_done_callback(_log_failure)
            raise

    async def _drop(self, name: str) -> None:
        async with self._opening:
            self._check_open()
            with translating():
                try:
                    fact = await mark_dropped(self.client, name)
                except MetadataUnavailable:
                    # It may be marked, and what is written from now on would be removed with it.
                    await self._end(name)
                    raise
                self.dropped.add(name)
                await self._end(name, dropped=True)
                await self._remove(name, fact)

    async def _end(self, name: str, *, dropped: bool = False) -> None:
        query, space = self._queries.pop(name, None), self._spaces.pop(name, None)
        if space is not None:
            space.dropped = dropped
        if query is not None:
            await query.close()
        if space is not None:
            await space.close()

    async def _remove(self, name: str, fact: SpaceFact) -> None:
        """Remove what a dropped tablespace left. The caller holds the lock."""
        await remove_marked(self.client, self.workers, self._folder, name, fact)
        self.dropped.discard(name)

    async def _remove_left(self) -> None:
        """Finish earlier drops that were interrupted. This runs in the background."""
        directory = Directory(self.client.store, self.client.rng)
        try:
            for number, name in enumerate(await directory.names()):
                if number % _FACTS_A_TURN == 0:
                    # There may be thousands of facts, and reading them never waits in a folder.
                    await asyncio.sleep(0)
                with suppress(CannotRead, FormatTooNew):
                    fact = await directory.get(name)
                    if fact is not None and fact.dropped:
                        self.dropped.add(name)
        except EngineError as error:
            _logger.warning("interrupted drops could not be looked for: %s", error)
        for name in sorted(self.dropped):
            async with self._opening:
                try:
                    fact = await directory.get(name)
                    if fact is not None and fact.dropped:
                        await self._remove(name, fact)
                except EngineError as error:
                    _logger.warning("tablespace %s is not removed yet: %s", name, error)

    async def close(self) -> None:
        """End all tablespaces that run here. May be called twice. Raises `StorageFailed`."""
        self._closed = True
        await self._route.close()

    def _serve(self) -> HerdService:
        """What the other openers reach when the tablespaces run here."""
        here = _Here(self)
        return HerdService(here, self.workers, self._wire, here)

    async def _close_spaces(self) -> None:
        removing, self._removing = self._removing, None
        if removing is not None:
            removing.cancel()
            await asyncio.gather(removing, return_exceptions=True)
        async with self._opening:
            queries, self._queries = self._queries, {}
            for query in queries.values():
                await query.close()
            spaces, self._spaces = self._spaces, {}
            for space in spaces.values():
                await space.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the folder was closed", hint="open it again")

    async def _make_sure(self, name: str, *, create: bool) -> bool:
        """See that a tablespace is there; whether this call has made it."""
        if not _NAME_FORM.fullmatch(name):
            raise ProgrammingError(
                f"{name!r} cannot be a tablespace's name",
                hint="a letter, then up to 62 letters, digits, _ and -",
            )
        with translating():
            store, key = self.client.store, f"{TABLESPACES}/{name}"
            if (found := await store.get(key)) is not None:
                there = decode_space(found.value)
                if not there.dropped:
                    self.dropped.discard(name)
                    return False
                # An earlier drop was interrupted.
                await self._remove(name, there)
            # Its removal may have succeeded although the reply was lost.
            self.dropped.discard(name)
            if not create:
                known = ", ".join(await self.names()) or "none yet"
                raise ProgrammingError(f"there is no tablespace {name}", hint=f"there are {known}")
            identity = uuid.UUID(int=self.client.rng.getrandbits(128), version=4)
            fact = TablespaceFact(str(identity), self.client.clock.wall_ms())
            try:
                await store.create(key, msgspec.msgpack.encode(fact))
            except KeyExists:
                # Somebody made it meanwhile: that is what was wanted.
                return False
        return True

    async def _open(self, name: str) -> Tablespace:
        # Parents are not created: if the disk was unmounted, nothing is written below its mount
        # point.
        self._folder.mkdir(mode=0o700, exist_ok=True)
        try:
            with translating():
                state = await open_rocks(self._folder / name, self.workers)
        except OperationalError as error:
            if isinstance(error.__cause__, FolderLocked):
                raise OperationalError(
                    f"tablespace {name} in {self._folder} is run by another process or event loop",
                    hint="use it there, or close it there first",
                ) from error
            raise
        try:
            space = await Tablespace.open(
                self.client,
                name,
                state,
                settings=self._settings,
                workers=self.workers,
                folder=self._folder / f"{name}.checkpoint",
                log_settings=FOLDER_LOG,
            )
        except BaseException:
            await state.close()
            raise
        space.commands = FolderSpaces(self)
        return space


def _log_failure(dropping: "asyncio.Task[None]") -> None:
    if not dropping.cancelled() and (error := dropping.exception()) is not None:
        _logger.warning("a tablespace is not removed yet: %s", error)


class _Here:
    """The tablespaces of a folder that run in this process, for its other openers."""

    def __init__(self, herd: AsyncHerd) -> None:
        self._herd = herd
        self.names = herd.names
        self.make = herd.make
        self.back_up = herd.back_up
        self.restore = herd.restore
        self.restore_until = herd.restore_until

    async def session(self, name: str, *, autocommit: bool = True) -> "Session":
        """A session of this process."""
        return await self._herd._session(name, autocommit)

    async def table(self, table: str, name: str) -> AsyncTable:
        """A table of this process."""
        return await open_table(await self._herd._space(name), table)

    async def tablespace(self, name: str) -> Tablespace:
        """A tablespace of this process."""
        return await self._herd._space(name)

    def leader_of(self, name: str) -> str | None:
        """A folder's tablespaces are led where they run."""
        return None


_folders: Final[Sharing[AsyncHerd]] = Sharing()


@asynccontextmanager
async def open_folder(
    path: str | PathLike[str], *, bookies: int = 1, settings: HerdSettings | None = None
) -> AsyncIterator[AsyncHerd]:
    """The tablespaces of a folder, which is made if it is not there, as long as the block lasts.

    `bookies` is how many copies a new folder keeps. Opened again on the same loop it is the same
    one. Raises what `engine.open` raises, as errors of the database.
    """
    with translating():
        refuse_url(path, "a cluster's tablespaces are reached by herd.connect(url)")
    root = Path.cwd() / path

    @asynccontextmanager
    async def opening() -> AsyncIterator[AsyncHerd]:
        workers = ThreadWorkers(asyncio.get_running_loop())
        try:
            with translating():
                async with cluster.open(root, bookies=bookies) as client:
                    herd = AsyncHerd(client, root, workers, settings)
                    try:
                        yield herd
                    finally:
                        await herd.close()
        finally:
            await workers.close()

    async with _folders.use(_name(root), opening) as herd:
        yield herd


@asynccontextmanager
async def open_herd(
    client: LedgerClient,
    path: str | PathLike[str],
    workers: Workers,
    settings: HerdSettings | None = None,
) -> AsyncIterator[AsyncHerd]:
    """The tablespaces of a folder that is open already, as `client`, as long as the block lasts.

    If the folder's tablespaces are open on this loop, it is those.
    """
    root = Path.cwd() / path

    @asynccontextmanager
    async def opening() -> AsyncIterator[AsyncHerd]:
        yield AsyncHerd(client, root, workers, settings)

    async with _folders.use(_name(root), opening) as herd:
        try:
            yield herd
        finally:
            if herd.client is client:
                _folders.forget(_name(root))
                await herd.close()


def _name(root: Path) -> str:
    return str(root.resolve())
