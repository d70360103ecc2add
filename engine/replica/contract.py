"""What a state machine is, to the replica that runs it.

Invariants:
- `apply` is pure and total: the same commands on the same state give the same rows and the same
  results on every replica and in every replay. No clock, no chance, no input, no failure.
- What cannot be done is a result that says so; times and drawn numbers are in the command.
"""

import enum
from typing import Protocol

from engine.log.position import Position


class Role(enum.Enum):
    """What a replica is doing."""

    FOLLOWER = "follower"
    LEADER = "leader"
    FAILED = "failed"
    CLOSED = "closed"


class Rows(Protocol):
    """What `apply` may do with the state."""

    def get(self, key: bytes) -> bytes | None:
        """A value, or None if there is none."""
        ...

    def scan(
        self, first: bytes, end: bytes | None = None, limit: int = 1_000
    ) -> list[tuple[bytes, bytes]]:
        """At most `limit` rows with keys from `first` on and under `end`, in order."""
        ...

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value."""
        ...

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        ...


class StateMachine(Protocol):
    """Commands in, rows and results out."""

    @property
    def level(self) -> int:
        """The newest level of commands that `apply` understands, from 1 on."""
        ...

    def apply(self, rows: Rows, command: bytes, position: Position) -> bytes:
        """Do a command; the result goes to who proposed it.

        Keys that begin with a zero byte belong to the replica.
        """
        ...


class ReadRows(Protocol):
    """What a read may do with the state: look, and keep nothing of it."""

    def get(self, key: bytes) -> bytes | None:
        """A value, or None if there is none."""
        ...

    def scan(
        self, first: bytes, end: bytes | None = None, limit: int = 1_000
    ) -> list[tuple[bytes, bytes]]:
        """At most `limit` rows with keys from `first` on and under `end`, in order."""
        ...
