"""Who uses a tablespace: its sessions, and the statement that each of them runs.

Invariants:
- A session that nobody has any more is not listed, whether it was closed or forgotten.
- A statement is listed from its call to its end; reads by a whole key and writes of one row, which
  take neither plan nor lock, are not.
"""

import weakref
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from herd.sql.session import Session
    from herd.tablespace import Tablespace


class Clients:
    """The sessions of one tablespace here."""

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[Session, int] = weakref.WeakKeyDictionary()
        self._next = 1

    def enter(self, session: "Session") -> None:
        """A session begins."""
        self._numbers[session] = self._next
        self._next += 1

    def leave(self, session: "Session") -> None:
        """A session has ended. May be told twice."""
        self._numbers.pop(session, None)

    @property
    def busy(self) -> bool:
        """Whether one of them runs a statement."""
        return any(session.running is not None for session in self._numbers)

    def sessions(self) -> "list[tuple[int, Session]]":
        """All of them with their numbers, oldest first."""
        return sorted(((number, one) for one, number in self._numbers.items()), key=_number)


class Running(NamedTuple):
    """The statement that a session runs, and when it began by the tablespace's clock."""

    text: str
    began_s: float


def _number(entry: "tuple[int, Session]") -> int:
    return entry[0]


def clients_of(space: "Tablespace") -> Clients:
    """Those of a tablespace, the same for all who ask."""
    return space.attached(Clients, Clients)
