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
        """A value, or None if there is none. No key that begins with a zero byte is there."""
        ...

    def scan(
        self, first: bytes, end: bytes | None = None, limit: int = 1_000
    ) -> list[tuple[bytes, bytes]]:
        """At most `limit` rows with keys from `first` on and under `end`, in order.

        Rows that were removed shortly before are stepped over: scan on from the last key.
        """
        ...

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value. Keys have 1 to 4,096 bytes and do not begin with a zero byte, values at
        most 17 MiB.

        Raises `InvalidRequest` for others, the same on every replica and with nothing changed. A
        machine checks before, or catches that and answers with a refusal; what leaves `apply`
        stops every replica at this command.
        """
        ...

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there. Raises `InvalidRequest` for one with a zero byte first."""
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
