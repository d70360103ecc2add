"""Tablespaces that run elsewhere, with the interface of `herd.store.AsyncHerd`.

Invariants:
- Nothing runs here but calls: whoever closes it ends its connections, nothing else.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from engine.log import Position
from engine.ports.workers import Workers
from herd.errors import NotSupportedError
from herd.permits import Whose
from herd.types import ColumnType
from herd.wire import messages
from herd.wire.calling import Calling, expect
from herd.wire.session import RemoteSession
from herd.wire.table import RemoteTable

if TYPE_CHECKING:
    from herd.aio import AsyncConnection
    from herd.checking import Verdict

DEFAULT = "default"


def no_followers() -> NotSupportedError:
    """Why nobody follows."""
    return NotSupportedError("the tablespaces of a folder have no followers", hint="read there")


class RemoteHerd:
    """Tablespaces reached by calls. On one event loop."""

    def __init__(
        self, calling: Calling, close: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`close` ends what the calls go over."""
        self._calling = calling
        self._close = close

    @property
    def workers(self) -> Workers:
        """Threads for what would keep the loop."""
        return self._calling.workers

    async def names(self) -> list[str]:
        """The tablespaces that there are, in order."""
        answer = await self._calling.ask("", messages.Names(), again=True)
        names: list[str] = expect(answer, messages.Told).value
        return names

    async def make(self, name: str) -> None:
        """Make a tablespace, if it is not there. Raises `ProgrammingError` for a bad name."""
        await self._calling.ask(name, messages.Make(name), again=True)

    async def session(
        self,
        name: str = DEFAULT,
        *,
        autocommit: bool = True,
        follower: bool = False,
        whose: Whose = None,
    ) -> RemoteSession:
        """A session for SQL in a tablespace. Close it. It may do what `whose` may.

        Raises `ProgrammingError` for one that is not there, `LeaderUnavailable`, and for a
        `follower` `NotSupportedError`: only clusters have some.
        """
        if follower:
            raise no_followers()
        made = RemoteSession(self._calling, name.lower(), autocommit=autocommit, whose=whose)
        await made.attach()
        return made

    async def connect(
        self, name: str = DEFAULT, *, autocommit: bool = False, follower: bool = False
    ) -> "AsyncConnection":
        """A connection for SQL in a tablespace. Close it. Raises as `session` does."""
        from herd.aio import AsyncConnection

        session = await self.session(name, autocommit=autocommit, follower=follower)
        return AsyncConnection(session, self.workers)

    async def table(self, table: str, name: str = DEFAULT) -> RemoteTable:
        """A table of a tablespace, as keys and values. Raises `NoSuchTable`."""
        name = name.lower()
        answer = await self._calling.ask(name, messages.Describe(name, table), again=True)
        described = expect(answer, messages.Described)
        return RemoteTable(self._calling, name, table, described)

    async def create_table(
        self,
        table: str,
        columns: Mapping[str, ColumnType],
        primary: Sequence[str],
        name: str = DEFAULT,
    ) -> RemoteTable:
        """Make a table without SQL; see `herd.table.create_table`."""
        name = name.lower()
        call = messages.MakeTable(name, table, list(columns.items()), list(primary))
        await self._calling.ask(name, call, again=False)
        return await self.table(table, name)

    async def read_token(self, lifetime_ms: int = 0) -> str:
        """A token to read from bookies what this client may, for so long; "": nobody signs one.

        Raises `NotSupportedError` where bookies ask for none, `LeaderUnavailable`.
        """
        names = await self.names()
        if not names:
            return ""
        # Whoever leads anything knows what its caller may.
        answer = await self._calling.ask(names[0], messages.ReadToken(lifetime_ms), again=True)
        return str(expect(answer, messages.Told).value)

    async def back_up(self, path: str | PathLike[str], name: str = DEFAULT) -> None:
        """Write a tablespace into a new file, on the server's machine."""
        call = messages.BackUp(name.lower(), str(Path.cwd() / path))
        await self._calling.ask(name.lower(), call, again=False)

    async def restore(self, path: str | PathLike[str], name: str) -> None:
        """Make a tablespace, which must not be there yet, of a backup on the server's machine."""
        call = messages.Restore(name.lower(), str(Path.cwd() / path))
        await self._calling.ask(name.lower(), call, again=False)

    async def restore_until(self, source: str, until: Position, name: str) -> None:
        """Make a tablespace, which must not be there yet, of another as it was at a position."""
        call = messages.RestoreUntil(name.lower(), source.lower(), *until)
        await self._calling.ask(name.lower(), call, again=False)

    async def check_replicas(self, name: str = DEFAULT) -> "Verdict":
        """Compare the rows of a tablespace's replicas at one position. Raises as `session`."""
        from herd.checking import checked_through

        return await checked_through(await self.session(name))

    async def close(self) -> None:
        """End the connections. May be called twice."""
        close, self._close = self._close, None
        if close is not None:
            await close()
