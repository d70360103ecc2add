"""Ledgers for code without an event loop: a thin face over `LedgerClient`.

    >>> import herdbook, tempfile
    >>> with herdbook.open(tempfile.mkdtemp()) as book:
    ...     with book.ledgers.create_ledger(metadata={"app": b"milk"}) as writer:
    ...         ids = writer.append_many([b"Alma", b"Berta", b"Cilli"])
    ...     reader = book.ledgers.open_ledger(writer.ledger_id)
    ...     ids, [entry.body for entry in reader.read(1, reader.last_add_confirmed)]
    ([0, 1, 2], [b'Berta', b'Cilli'])

Invariants:
- A call makes one hop to the process's background loop; entries that are read come many a hop.
- A call on the loop's own thread, in a forked child, or after the store was closed raises
  `InvalidRequest`; it never hangs.
- An interrupted wait abandons the wait, never the entry.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

from engine.errors import InvalidRequest
from engine.following import Following, singly
from engine.ledger.client import LedgerClient
from engine.ledger.reader import LedgerReader
from engine.ledger.writer import LedgerWriter
from engine.limits import ENTRY_ID_MAX
from engine.metadata.ledgers import LedgerMetadata, Survives
from engine.ports.system_loop import BackgroundLoop
from engine.run import Entry

R = TypeVar("R")


class Ledgers:
    """The ledgers of an open store. Any number of threads may use one at the same time."""

    def __init__(self, client: LedgerClient, loop: BackgroundLoop) -> None:
        """`client` lives on `loop`; whoever opened it closes it."""
        self._client = client
        self._calls = _Calls(client, loop)
        self._run = self._calls.run

    def create_ledger(
        self,
        ensemble: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        *,
        survives: Survives | None = None,
        password: bytes = b"",
        metadata: dict[str, bytes] | None = None,
        deferred_sync: bool = False,
        explicit_ids: bool = False,
    ) -> "Writer":
        """Create a ledger and return its writer; see `LedgerClient.create_ledger`."""
        made = self._run(
            lambda: self._client.create_ledger(
                ensemble,
                write_quorum,
                ack_quorum,
                survives=survives,
                password=password,
                metadata=metadata,
                deferred_sync=deferred_sync,
                explicit_ids=explicit_ids,
            )
        )
        return Writer(made, self._calls)

    def open_ledger(
        self, ledger_id: int, *, password: bytes = b"", recover: bool = True
    ) -> "Reader":
        """Open a ledger for reading; with `recover=False` its writer goes on.

        Raises `NoSuchLedger`, `Unauthorized`, `RecoveryIncomplete`, `MetadataUnavailable`.
        """
        opened = self._run(
            lambda: self._client.open_ledger(ledger_id, password=password, recover=recover)
        )
        return Reader(opened, self._calls)

    def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger; bookies give its bytes back later. Raises `NoSuchLedger`."""
        self._run(lambda: self._client.delete_ledger(ledger_id))

    def list_ledgers(self, *, after: int = -1, limit: int | None = None) -> list[int]:
        """The ids of all ledgers, ascending. Not a snapshot: others may create and delete."""
        return self._run(lambda: self._client.list_ledgers(after=after, limit=limit))

    def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """What the metadata store knows of a ledger. Raises `NoSuchLedger`."""
        return self._run(lambda: self._client.ledger_metadata(ledger_id))


class Writer:
    """The one writer of a ledger. Made by `Ledgers.create_ledger`; threads may share it.

    Its `with` block closes the ledger.
    """

    def __init__(self, writer: LedgerWriter, calls: "_Calls") -> None:
        self._writer = writer
        self._run = calls.run
        self.ledger_id = writer.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is durable on an ack quorum, NO_ENTRY (-1) if none."""
        return self._writer.last_add_confirmed

    @property
    def length(self) -> int:
        """The bytes of all entries up to `last_add_confirmed`."""
        return self._writer.length

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last wrote or read it."""
        return self._writer.metadata

    def append(self, body: bytes) -> int:
        """Append one entry; returns its id when it is durable.

        Raises `EntryTooLarge` and `Overloaded` with nothing stored, and an `OutcomeUnknown`
        (fenced, closed, too few bookies).
        """

        async def append() -> int:
            return await self._writer.append(body)

        return self._run(append)

    def append_many(self, bodies: Sequence[bytes]) -> list[int]:
        """Append entries with consecutive ids; returns when the last of them is durable."""

        async def append() -> list[int]:
            return await self._writer.append_many(bodies)

        return self._run(append)

    def append_at(self, entry_id: int, body: bytes) -> int:
        """Append the entry with this id, on a ledger made with `explicit_ids=True`.

        It waits for all ids below. Raises `DuplicateEntryId`, and what `append` raises.
        """

        async def append() -> int:
            return await self._writer.append_at(entry_id, body)

        return self._run(append)

    def force(self) -> None:
        """Wait until every entry appended before is durable; see `LedgerWriter.force`."""
        self._run(self._writer.force)

    def close(self) -> int:
        """Wait for pending appends, then close the ledger; returns its last entry id.

        May be called twice. Raises `MetadataUnavailable`, `RecoveryIncomplete` (call again).
        """
        return self._run(self._writer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Reader:
    """Reads one ledger. Made by `Ledgers.open_ledger`; any number may be open."""

    def __init__(self, reader: LedgerReader, calls: "_Calls") -> None:
        self._reader = reader
        self._calls = calls
        self.ledger_id = reader.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The newest metadata this reader has seen: quorums, fragments, custom metadata."""
        return self._reader.metadata

    @property
    def closed(self) -> bool:
        """Whether the ledger's end is fixed."""
        return self._reader.closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry known to be readable, NO_ENTRY (-1) if none. Never goes back."""
        return self._reader.last_add_confirmed

    @property
    def length(self) -> int | None:
        """The bytes of all entries of a closed ledger; None while it is open."""
        return self._reader.length

    def read_last_add_confirmed(self) -> int:
        """Ask the bookies how far the ledger may be read now. Raises `Unavailable`."""
        return self._calls.run(self._reader.read_last_add_confirmed)

    def read(self, first: int, last: int) -> Following[Entry]:
        """Entries `first` to `last`, both included, in order. `last` = `first` - 1 gives none.

        Raises `EntryPastEnd` at once; while iterating `CannotRead`, `DeadlineExceeded`.
        """
        return self._calls.follow(self._reader.read_batches(first, last))

    def read_unconfirmed(self, first: int, last: int = ENTRY_ID_MAX) -> Following[Entry]:
        """Entries from `first` on, also past the LAC, until one is on no bookie.

        What is past the LAC may never be confirmed and may vanish when the ledger is recovered.
        """
        found: Any = self._reader.read_unconfirmed(first, last)
        return self._calls.follow(singly(found))

    def tail(self, from_entry: int = 0) -> Following[Entry]:
        """Entries from `from_entry` on as they are confirmed; ends when the ledger is closed.

        `stop()`, from another thread too, ends it before. Raises while iterating `NoSuchLedger`
        when the ledger is deleted meanwhile, `CannotRead`.
        """
        return self._calls.follow(self._reader.tail_batches(from_entry))

    def close(self) -> None:
        """Stop following. The ledger itself is not touched. May be called twice."""
        if not self._calls.over:
            self._calls.run(self._reader.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Calls:
    """The way to the loop, as long as the store is open."""

    def __init__(self, client: LedgerClient, loop: BackgroundLoop) -> None:
        self._client = client
        self._loop = loop

    @property
    def over(self) -> bool:
        return self._client.closed.is_set()

    def run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        self._check()
        return self._loop.run(call)

    def follow(self, batches: AsyncGenerator[Sequence[Entry], None]) -> Following[Entry]:
        self._check()
        return Following(batches, self._loop, self.run)

    def _check(self) -> None:
        if self.over:
            raise InvalidRequest("the store was closed: open it again")
