"""Which jobs a table has taken: a mark of the last one of each series.

    01 'j' name(16) milliseconds(8)      its number in the series(8)

The name is a digest of the table's id and the series', so what a job is called says nothing about
other tables, and a table that is renamed keeps what it has taken. The milliseconds are those of the
leader's wall clock when it wrote the command.

Invariants:
- A mark is in the command that makes its job's rows visible.
- A mark stays for `KEPT_MS` at least, however many others come. Then the command of some job, of
  those whose marks are its neighbours, takes it away: names are digests, so all are met.
- Only the very key that was seen is taken away: a job that is marked anew meanwhile has another.
- What a program of an earlier version has marked, among the outcomes of clients, counts too.
"""

import hashlib
from typing import TYPE_CHECKING, Final

from engine.expiry import is_over
from engine.replica.contract import ReadRows
from herd.errors import ProgrammingError
from herd.keys import JOB, successor
from herd.outcomes import split_identity

if TYPE_CHECKING:
    from herd.tablespace import Tablespace
    from herd.transaction import Transaction

KEPT_MS: Final = 30 * 24 * 3_600_000
_LOOKED_AT: Final = 16
_NAME_BYTES: Final = 16


class JobMark:
    """A job in one table. Who writes it holds the lock of `name` from its question to its end."""

    def __init__(self, space: "Tablespace", table_id: int, identity: bytes) -> None:
        self._space = space
        self._identity = identity
        series, self._sequence = split_identity(identity)
        named = table_id.to_bytes(4) + series
        digest = hashlib.blake2b(named, digest_size=_NAME_BYTES).digest()
        self._prefix = JOB + digest
        self.name = f"ingest {digest.hex()}"

    async def is_written(self, former: bytes = b"") -> bool:
        """Whether the job was written; False: not yet. `former`: what it was called once.

        Raises `ProgrammingError` if later ones of its series were, and what `was_committed` raises.
        """
        marks, _ = self._space.stale_read(self._own)
        newest = max((int.from_bytes(value) for _, value in marks), default=-1)
        if newest > self._sequence:
            raise ProgrammingError(
                f"number {newest} of a series is written, and number {self._sequence} comes now",
                hint="a stream begins again with a new checkpoint, and upserts what it repeats",
            )
        if newest == self._sequence:
            return True
        for identity in filter(None, (self._identity, former)):
            if await self._space.was_committed(identity):
                return True
        return False

    def write(self, transaction: "Transaction") -> None:
        """Mark the job by this transaction, and take old marks away."""
        now_ms = self._space.clock.wall_ms()
        found, _ = self._space.stale_read(self._beside)
        for key, _ in found:
            if key.startswith(self._prefix) or is_over(_made_ms(key) + KEPT_MS, now_ms):
                transaction.set_plain(key, None)
        transaction.set_plain(self._prefix + now_ms.to_bytes(8), self._sequence.to_bytes(8))

    def _own(self, rows: ReadRows) -> list[tuple[bytes, bytes]]:
        return rows.scan(self._prefix, successor(self._prefix), _LOOKED_AT)

    def _beside(self, rows: ReadRows) -> list[tuple[bytes, bytes]]:
        found = rows.scan(self._prefix, successor(JOB), _LOOKED_AT)
        # Behind the last name comes the first one.
        return found + rows.scan(JOB, self._prefix, _LOOKED_AT - len(found))


def _made_ms(key: bytes) -> int:
    return int.from_bytes(key[-8:])
