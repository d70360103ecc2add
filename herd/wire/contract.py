"""What the two sides of the wire take: whom a server serves, and how a client reaches it."""

from os import PathLike
from typing import TYPE_CHECKING, Protocol

from engine.log import Position

if TYPE_CHECKING:
    from herd.sql.session import Session
    from herd.table import AsyncTable
    from herd.tablespace import Tablespace


class Host(Protocol):
    """Tablespaces that run in this process: those of a folder, or of a node."""

    async def names(self) -> list[str]:
        """The tablespaces that there are."""
        ...

    async def session(self, name: str, *, autocommit: bool = True) -> "Session":
        """A session for SQL in a tablespace. Raises `ProgrammingError`, `LeaderUnavailable`."""
        ...

    async def table(self, table: str, name: str) -> "AsyncTable":
        """A table of a tablespace. Raises `NoSuchTable` and as `session`."""
        ...

    async def tablespace(self, name: str) -> "Tablespace":
        """A tablespace. Raises as `session`."""
        ...

    def leader_of(self, name: str) -> str | None:
        """Where another process leads a tablespace, if that is known."""
        ...


class FolderHost(Host, Protocol):
    """The tablespaces of a folder: they are made, backed up and restored here, too."""

    async def make(self, name: str) -> None:
        """Make a tablespace, if it is not there. Raises `ProgrammingError` for a bad name."""
        ...

    async def back_up(self, path: str | PathLike[str], name: str) -> None:
        """Write a tablespace into a new file."""
        ...

    async def restore(self, path: str | PathLike[str], name: str) -> object:
        """Make a tablespace of a backup."""
        ...

    async def restore_until(self, source: str, until: Position, name: str) -> None:
        """Make a tablespace of another one as it was at a position."""
        ...


class Channel(Protocol):
    """A way to one server. What was begun over it ends with it."""

    @property
    def over(self) -> bool:
        """Whether it leads nowhere any more."""
        ...

    async def ask(self, message: bytes) -> bytes:
        """The answer to a call. Who is cancelled meanwhile cancels the call.

        Raises `SessionLost` if it got lost on the way: the call may or may not have been done.
        """
        ...


class Route(Protocol):
    """Where tablespaces are served, at the moment."""

    async def channel(self, tablespace: str) -> Channel:
        """A channel to who serves a tablespace. Raises `OperationalError` if nobody is found."""
        ...

    def moved(self, tablespace: str, leader: str) -> bool:
        """The one asked does not lead it; `leader` may. Tells whether to look again."""
        ...
