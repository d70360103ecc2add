"""What all connections of a server share: whom they reach, and how much they may hold together.

Invariants:
- There are at most `sessions_max` sessions. To make room the one goes that was used longest ago and
  has neither a transaction nor a statement under way; its client opens another when it needs one.
- Results that wait to be fetched have at most `results_bytes_max` bytes together.
- No user has more than a share of either, and all users together leave a part of both to
  administrators and to those who come by the secret: nodes look users up by such sessions. Where
  nobody logs in there are no users.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from engine.access.audit import NO_AUDIT, Audit
from engine.access.shares import Shares, left_to_users, part_of
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

_TABLES_MAX: Final = 10_000
_SESSIONS_PARTS: Final = 16
"""A user has one in so many of the sessions that other users leave."""


class HostedSession:
    """A session of a guest; `user` is whose share it is of, "" for no user's."""

    __slots__ = ("client", "guest", "number", "running", "session", "tablespace", "user")

    def __init__(
        self,
        guest: "Guest",
        number: int,
        session: "Session",
        tablespace: str,
        client: bytes,
        user: str = "",
    ) -> None:
        self.guest = guest
        self.number = number
        self.session = session
        self.tablespace = tablespace
        self.client = client
        self.user = user
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
        self._sessions: dict[HostedSession, None] = {}
        """In the order of their last use."""
        self._sessions_of: Counter[str] = Counter()
        self._results = Shares(self.settings.results_bytes_max)
        self._tables: dict[tuple[str, str], AsyncTable] = {}

    @property
    def session_count(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    @property
    def results_bytes(self) -> int:
        """The size of all results that wait to be fetched."""
        return self._results.held

    def add(self, hosted: HostedSession) -> HostedSession | None:
        """Count a session; returns the one that has to go for it. Raises `TooManySessions`."""
        goes = self._too_many(hosted.user)
        if goes is not None:
            self.remove(goes)
        self._sessions[hosted] = None
        self._sessions_of[hosted.user] += 1
        return goes

    def _too_many(self, user: str) -> HostedSession | None:
        """The session that has to go for another one of a user. Raises `TooManySessions`."""
        sessions_max, count, whose = self.settings.sessions_max, len(self._sessions), "open"
        among: Iterable[HostedSession] = self._sessions
        own = self._sessions_of[user]
        others = count - own - self._sessions_of[""]
        if user and own and own >= part_of(sessions_max, others, _SESSIONS_PARTS):
            among = [one for one in self._sessions if one.user == user]
            count, whose = len(among), f"{user}'s"
        elif user and own + others >= left_to_users(sessions_max):
            among = [one for one in self._sessions if one.user]
            count, whose = len(among), "users'"
        elif count < sessions_max:
            return None
        goes = next((one for one in among if one.idle), None)
        if goes is None:
            raise TooManySessions(
                f"{count} sessions are {whose}, all of them in transactions",
                hint="commit or roll back, or try again later",
            )
        return goes

    def used(self, hosted: HostedSession) -> None:
        """It goes last now, if one has to go."""
        if hosted in self._sessions:
            del self._sessions[hosted]
            self._sessions[hosted] = None

    def remove(self, hosted: HostedSession) -> None:
        """It has ended."""
        if hosted in self._sessions:
            del self._sessions[hosted]
            _less(self._sessions_of, hosted.user, 1)

    def keep_result(self, size_bytes: int, user: str) -> None:
        """Count a result that waits for a user to fetch it. Raises `TooLarge`."""
        if not self._results.take(user, size_bytes):
            raise TooLarge(
                f"the server keeps at most {self.settings.results_bytes_max} bytes of results that "
                f"wait, and a part of that for {user or 'one user'}",
                hint="ask for fewer rows, or try again",
            )

    def drop_result(self, size_bytes: int, user: str) -> None:
        """It was fetched, or nobody will."""
        self._results.give_back(user, size_bytes)

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


def _less(counts: Counter[str], user: str, by: int) -> None:
    counts[user] -= by
    if not counts[user]:
        del counts[user]
