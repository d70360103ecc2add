"""`herd.connect`, and the tablespaces of an open folder for threads.

Invariants:
- Everything runs on the one background loop of the process; connections to one folder share it.
- A folder that its program forgets is closed when the process ends.
"""

import atexit
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from engine.log import START, Position
from engine.ports.system_loop import background_loop
from herd.connection import Connection
from herd.errors import InterfaceError, NotSupportedError
from herd.hopping import Hopper
from herd.reaching import open_any
from herd.store import DEFAULT, AsyncHerd
from herd.table import Table
from herd.types import ColumnType
from herd.wire.herd import RemoteHerd
from herd.wire.table import threaded

if TYPE_CHECKING:
    from engine.metadata.zookeeper_settings import ZooKeeperSettings
    from engine.transport.security import Security
    from herd.changes import CommittedTransaction
    from herd.checking import Verdict


class Herd:
    """The tablespaces of a folder or a cluster, for threads.

    Made by `open_herd` and by `herdbook.open`.
    """

    def __init__(
        self,
        herd: AsyncHerd | RemoteHerd,
        hopper: Hopper,
        let_go: Callable[[], None] | None = None,
    ) -> None:
        """`herd` lives on the hopper's loop; `let_go` is called once, at the end."""
        self._herd = herd
        self._hopper = hopper
        self._let_go = let_go
        self._closed = False

    def names(self) -> list[str]:
        """The tablespaces that there are, in order."""
        return self._hopper.call(self._herd.names)

    def create_tablespace(self, name: str) -> None:
        """Make a tablespace, if it is not there. Raises `ProgrammingError` for a bad name."""

        self._hopper.call(self._herd.make, name)

    def connect(
        self,
        tablespace: str = DEFAULT,
        *,
        autocommit: bool = False,
        follower: bool = False,
        let_go: Callable[[], None] | None = None,
    ) -> Connection:
        """A connection of PEP 249. Close it. `let_go` is called when it is closed.

        A `follower`, of a cluster, reads at any replica and changes nothing.
        """

        async def begin() -> Connection:
            session = await self._herd.session(tablespace, autocommit=autocommit, follower=follower)
            return Connection(session, self._hopper, let_go)

        return self._hopper.call(begin)

    def table(self, name: str, tablespace: str = DEFAULT) -> Table:
        """A table as keys and values. Raises `NoSuchTable`."""

        async def bind() -> Table:
            return threaded(await self._herd.table(name, tablespace), self._hopper)

        return self._hopper.call(bind)

    def create_table(
        self,
        name: str,
        columns: Mapping[str, ColumnType],
        primary: Sequence[str],
        tablespace: str = DEFAULT,
    ) -> Table:
        """Make a table without SQL; see `herd.table.create_table`."""

        async def create() -> Table:
            made = await self._herd.create_table(name, columns, primary, tablespace)
            return threaded(made, self._hopper)

        return self._hopper.call(create)

    def changes(
        self,
        tablespace: str = DEFAULT,
        after: Position = START,
        *,
        last: Position | None = None,
        tables: Sequence[str] = (),
        consumer: str = "",
    ) -> "Iterator[CommittedTransaction]":
        """A tablespace's committed transactions, in order: up to `last`, or as they come, for ever.

        See `herd.changes.changes`. Raises `NotSupportedError` for tablespaces elsewhere.
        """
        herd = self._herd
        if isinstance(herd, RemoteHerd):
            raise NotSupportedError(
                "changes of tablespaces elsewhere are read from their log",
                hint="herd.changes.changes(await engine.connect(url), name)",
            )
        following = herd.changes(tablespace, after, last=last, tables=tables, consumer=consumer)

        async def more() -> "CommittedTransaction | None":
            return await anext(following, None)

        async def end() -> None:
            await following.aclose()

        try:
            while (transaction := self._hopper.call(more)) is not None:
                yield transaction
        finally:
            if self._hopper.usable:
                self._hopper.call(end)

    def back_up(self, path: str | PathLike[str], tablespace: str = DEFAULT) -> None:
        """Write a tablespace, as it is now, into a new file; it works on meanwhile.

        A cluster's, too: what it consists of is read here. Raises `OSError` (there is such a file,
        the disk is full), and as `connect` does.
        """

        async def back_up() -> None:
            await self._herd.back_up(path, tablespace)

        self._hopper.call(back_up)

    def restore(self, path: str | PathLike[str], name: str) -> None:
        """Make a tablespace, which must not be there yet, of a backup.

        A cluster's, too: the file is read here, and the tablespace is there once all of it is
        durable. Raises `ProgrammingError`, `StorageFailed` for a file that is damaged or cut short,
        and as `connect` does.
        """

        async def restore() -> None:
            await self._herd.restore(path, name)

        self._hopper.call(restore)

    def restore_until(self, source: str, until: Position, name: str) -> None:
        """Make a tablespace of another one as it was after the transaction at a position.

        `until` is one that `changes` tells. In a folder `name` must not be there yet; in a cluster
        it may be an empty one. Raises `ProgrammingError`, `StorageFailed` where the log is not kept
        any more between a checkpoint and the position, and as `connect`.
        """

        async def restore() -> None:
            await self._herd.restore_until(source, until, name)

        self._hopper.call(restore)

    def check_replicas(self, tablespace: str = DEFAULT) -> "Verdict":
        """Compare the rows of a tablespace's replicas at one position. Raises as `connect`."""

        async def check() -> "Verdict":
            return await self._herd.check_replicas(tablespace)

        return self._hopper.call(check)

    def close(self) -> None:
        """Let go of the folder, if this opened it. May be called twice; not in a forked child."""
        if not self._closed:
            self._closed = True
            if self._let_go is not None:
                self._let_go()

    def __enter__(self) -> "Herd":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_herd(
    where: str | PathLike[str],
    *,
    bookies: int = 1,
    security: "Security | None" = None,
    zookeeper: "ZooKeeperSettings | None" = None,
) -> Herd:
    """Open the tablespaces of a folder, or of the cluster that a url names. Close the answer.

    A folder is made if it is not there; `bookies` is how many copies a new one keeps. `security` is
    what a cluster's nodes ask for. Raises `OperationalError`, `StorageFailed`.
    """
    background = background_loop()
    hopper = Hopper(background)

    async def hold() -> AsyncIterator[AsyncHerd | RemoteHerd]:
        async with open_any(where, bookies=bookies, security=security, zookeeper=zookeeper) as herd:
            yield herd

    opening = hold()

    async def begin() -> AsyncHerd | RemoteHerd:
        return await anext(opening)

    async def end() -> None:
        await anext(opening, None)

    def let_go() -> None:
        atexit.unregister(let_go)
        if hopper.usable:
            hopper.call(end)

    herd = hopper.call(begin)
    atexit.register(let_go)
    return Herd(herd, hopper, let_go)


def connect(
    where: str | PathLike[str] | Herd,
    tablespace: str = DEFAULT,
    *,
    autocommit: bool = False,
    bookies: int = 1,
    security: "Security | None" = None,
    zookeeper: "ZooKeeperSettings | None" = None,
    follower: bool = False,
) -> Connection:
    """Connect to a tablespace of a folder, of a cluster's url, or of an open one. Close it.

    A folder is made if it is not there. Connections of one process to the same place share it;
    other processes use a folder at the same time. `security` is what a cluster's nodes ask for,
    `zookeeper` its metadata store; a `follower` reads at any replica, at the `position` of its
    session, and changes nothing.
    Without `autocommit` a transaction begins with the first statement and lasts until `commit` or
    `rollback`. Raises `OperationalError`, `ProgrammingError` for a tablespace that is not there.
    """
    if isinstance(where, Herd):
        return where.connect(tablespace, autocommit=autocommit, follower=follower)
    if not isinstance(where, str | PathLike):
        raise InterfaceError(f"{type(where).__name__} is no folder, no url and no open one")
    herd = open_herd(where, bookies=bookies, security=security, zookeeper=zookeeper)
    try:
        return herd.connect(tablespace, autocommit=autocommit, follower=follower, let_go=herd.close)
    except BaseException:
        herd.close()
        raise
