"""What all connections of a server share: whom they reach, and how much they may hold together.

Invariants:
- There are at most `sessions_max` sessions. To make room the one goes that was used longest ago and
  has neither a transaction nor a statement under way; its client opens another when it needs one.
- Results that wait to be fetched have at most `results_bytes_max` bytes together.
"""

from typing import TYPE_CHECKING

from engine.access.audit import NO_AUDIT, Audit
from engine.ports.workers import Workers
from herd.errors import TooLarge, TooManySessions
from herd.wire.contract import FolderHost, Host
from herd.wire.results import ColumnsPacked
from herd.wire.settings import WireSettings

if TYPE_CHECKING:
    from engine.access.signing import ReadSigner
    from herd.sql.session import Session
    from herd.table import AsyncTable
    from herd.wire.guest import Guest

_TABLES_MAX = 10_000


class HostedSession:
    """A session of a guest."""

    __slots__ = ("client", "guest", "number", "running", "session", "tablespace")

    def __init__(
        self, guest: "Guest", number: int, session: "Session", tablespace: str, client: bytes
    ) -> None:
        self.guest = guest
        self.number = number
        self.session = session
        self.tablespace = tablespace
        self.client = client
        self.running = 0

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost with it."""
        return not self.running and self.session.transaction is None


class HerdService:
    """The tablespaces of a host, for guests of any wire. On the event loop.

    `folder` is the host itself where tablespaces are made, backed up and restored by its guests.
    `signer` makes tokens for bookies, where there are some that ask for one; `audit` hears of what
    is refused, and of what is done to users.
    """

    def __init__(
        self,
        host: Host,
        workers: Workers,
        settings: WireSettings | None = None,
        folder: FolderHost | None = None,
        signer: "ReadSigner | None" = None,
        audit: Audit = NO_AUDIT,
    ) -> None:
        self.host = host
        self.folder = folder
        self.signer = signer
        self.audit = audit
        self.workers = workers
        self.settings = settings or WireSettings()
        self.columns = ColumnsPacked()
        self.results_bytes = 0
        self._sessions: dict[HostedSession, None] = {}
        """In the order of their last use."""
        self._tables: dict[tuple[str, str], AsyncTable] = {}

    @property
    def session_count(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    def add(self, hosted: HostedSession) -> HostedSession | None:
        """Count a session; returns the one that has to go for it. Raises `TooManySessions`."""
        goes: HostedSession | None = None
        if len(self._sessions) >= self.settings.sessions_max:
            goes = next((one for one in self._sessions if one.idle), None)
            if goes is None:
                raise TooManySessions(
                    f"{len(self._sessions)} sessions are open, all of them in transactions",
                    hint="commit or roll back, or try again later",
                )
            del self._sessions[goes]
        self._sessions[hosted] = None
        return goes

    def used(self, hosted: HostedSession) -> None:
        """It goes last now, if one has to go."""
        if hosted in self._sessions:
            del self._sessions[hosted]
            self._sessions[hosted] = None

    def remove(self, hosted: HostedSession) -> None:
        """It has ended."""
        self._sessions.pop(hosted, None)

    def keep_result(self, size_bytes: int) -> None:
        """Count a result that waits to be fetched. Raises `TooLarge`."""
        limit = self.settings.results_bytes_max
        if self.results_bytes + size_bytes > limit:
            raise TooLarge(
                f"the server keeps at most {limit} bytes of results that wait to be fetched",
                hint="ask for fewer rows, or try again",
            )
        self.results_bytes += size_bytes

    def known_table(self, name: str, tablespace: str) -> "AsyncTable | None":
        """A table that was asked for before."""
        return self._tables.get((tablespace, name))

    async def table(self, name: str, tablespace: str) -> "AsyncTable":
        """A table of a tablespace. Raises `NoSuchTable` and what its host raises."""
        found = self._tables.get((tablespace, name))
        if found is not None and found.space is not await self.host.tablespace(tablespace):
            # It was dropped and made again: those of its tables that are known are the old one's.
            self.forget_tables(tablespace)
            found = None
        if found is None:
            made = await self.host.table(name, tablespace)
            if len(self._tables) >= _TABLES_MAX:
                self._tables.clear()
            found = self._tables[tablespace, name] = made
        return found

    def forget_tables(self, tablespace: str) -> None:
        """A tablespace may run in another way from now on."""
        for key in [key for key in self._tables if key[0] == tablespace]:
            del self._tables[key]
