"""What must hold at every step, checked in constant time, whatever the world does.

Invariants checked (bookkeeper's and ours; a breach raises `Violation` where it happens):
- Appends are acknowledged in order, each once, with the id that its place in the ledger gives it.
- No entry is acknowledged past the end of a closed ledger, and no end is set below what was
  acknowledged, or told to anybody as confirmed.
- A close leaves all fragments but the last as they are.
- A closed ledger's end and length never change; its length is that of its entries.
- The LAC of one handle never goes back, and never passes what was sent.
- A reader gets consecutive entries, with the bytes that were appended, none past its LAC.
- Fragments record as bookies of one host those that are on one host.
- No call reports that a confirmed entry, or a ledger that was never deleted, does not exist.
"""

import struct
from collections.abc import Callable, Collection, Sequence
from typing import Final

from engine.errors import EngineError, InvalidRequest, NotFound, Unauthorized
from engine.ledger.quorum import UNKNOWN, Quorums
from engine.metadata.ledgers import Fragment, LedgerMetadata, State, decode_metadata
from engine.metadata.memory import MemoryTree
from engine.run import NO_ENTRY, Entry
from tests.simulation.trace import Trace

_HEAD: Final = struct.Struct(">QQI")
_PADDING: Final = bytes(range(256))


class Violation(AssertionError):
    """A promise was broken."""


def may_lose(metadata: LedgerMetadata, lost: Collection[str]) -> bool:
    """Whether a ledger has to survive the loss of these bookies, with all that they stored.

    It does if no bookies among them can have acknowledged an entry without the others.
    """
    sizes = Quorums(
        metadata.ensemble_size,
        metadata.write_quorum,
        metadata.ack_quorum,
        metadata.stripe_entries,
    )
    return not any(
        sizes._replace(domains=fragment.domains).may_ack(
            {index for index, name in enumerate(fragment.ensemble) if name in lost}
        )
        for fragment in metadata.fragments
    )


class LedgerOracle:
    """All that is known from outside about one ledger."""

    def __init__(self, ledger_id: int, password: bytes, deferred_sync: bool) -> None:
        self.ledger_id = ledger_id
        self.password = password
        self.deferred_sync = deferred_sync
        self.attempts: list[int] = []
        self.lengths: list[int] = [0]
        self.acknowledged = NO_ENTRY
        self.unheard: set[int] = set()
        """Entries whose appends were cancelled: what follows them acknowledges them, too."""
        self.confirmed = NO_ENTRY
        self.closed_last: int | None = None
        self.closed_length: int | None = None
        self.state = State.OPEN
        self.deleted = False
        self.metadata: LedgerMetadata | None = None
        self.reserved = False
        """Whether clients leave it alone for now: it is being restored."""

    def bodies(self, count: int, attempt: int) -> list[bytes]:
        """The next entries to append. Entry and attempt decide every byte."""
        first = len(self.attempts)
        bodies = [_body(self.ledger_id, first + step, attempt) for step in range(count)]
        for body in bodies:
            self.attempts.append(attempt)
            self.lengths.append(self.lengths[-1] + len(body))
        return bodies

    def unsend(self, count: int) -> None:
        """The last entries were refused at once: they were never sent."""
        del self.attempts[len(self.attempts) - count :]
        del self.lengths[len(self.lengths) - count :]

    def on_acknowledged(self, entry_ids: Sequence[int]) -> None:
        """The writer's caller was told that these are durable."""
        for entry_id in entry_ids:
            self._require(entry_id < len(self.attempts), f"entry {entry_id} was never sent")
            while self.acknowledged + 1 < entry_id and self.acknowledged + 1 in self.unheard:
                self.acknowledged += 1
            self._require(
                entry_id == self.acknowledged + 1,
                f"entry {entry_id} acknowledged after {self.acknowledged}",
            )
            self.acknowledged = entry_id
        self.on_confirmed(self.acknowledged)

    def on_confirmed(self, lac: int) -> None:
        """Somebody was told that entries up to here are confirmed."""
        self._require(lac < len(self.attempts), f"LAC {lac} is past the last entry sent")
        if lac > self.confirmed:
            self.confirmed = lac
            self._require(
                self.closed_last is None or lac <= self.closed_last,
                f"entry {lac} confirmed, yet the ledger was closed at {self.closed_last}",
            )

    def on_metadata(self, metadata: LedgerMetadata) -> None:
        """The metadata store has a new value."""
        self._check_close(metadata)
        self.metadata = metadata
        # A ledger that is being restored has states of its own.
        forth = self.reserved or metadata.state >= self.state
        self._require(forth, f"{metadata.state} after {self.state}")
        self.state = metadata.state
        last, length = metadata.last_entry, metadata.length
        if self.closed_last is not None:
            self._require(
                (last, length) == (self.closed_last, self.closed_length),
                f"closed at {self.closed_last}, then at {last}",
            )
        elif last is not None:
            self.closed_last, self.closed_length = last, length
            self._require(
                last >= self.confirmed, f"closed at {last}, below confirmed {self.confirmed}"
            )
            self._require(last < len(self.attempts), f"closed at {last}, which was never sent")
            self._require(
                length == self.lengths[last + 1],
                f"closed with {length} bytes, its entries have {self.lengths[last + 1]}",
            )

    def _check_close(self, metadata: LedgerMetadata) -> None:
        """A close changes the last fragment alone: the others are where repair put them."""
        before = self.metadata
        if before is None or before.closed or not metadata.closed or self.reserved:
            return
        for fragment, now in zip(before.fragments[:-1], metadata.fragments, strict=False):
            self._require(fragment == now, f"a close made {now} of {fragment}")

    def on_entry(self, entry: Entry, expected_id: int) -> None:
        """A reader was handed an entry."""
        self._require(
            (entry.ledger_id, entry.entry_id) == (self.ledger_id, expected_id),
            f"read entry {entry.ledger_id}/{entry.entry_id} in place of {expected_id}",
        )
        self._require(expected_id < len(self.attempts), f"entry {expected_id} was never sent")
        body = _body(self.ledger_id, expected_id, self.attempts[expected_id])
        self._require(entry.body == body, f"entry {expected_id} has other bytes than were sent")

    def on_error(self, error: EngineError, reading_to: int = NO_ENTRY) -> None:
        """A call failed. `reading_to`: the last entry it asked for."""
        if isinstance(error, NotFound):
            self._require(self.deleted, f"a ledger or entry up to {reading_to} is gone: {error}")
        self._require(not isinstance(error, InvalidRequest), f"refused a right call: {error}")
        self._require(not isinstance(error, Unauthorized), f"refused the password: {error}")

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            raise Violation(f"ledger {self.ledger_id}: {message}")


class HandleOracle:
    """One writer's or reader's view of a ledger."""

    def __init__(self, ledger: LedgerOracle) -> None:
        self.ledger = ledger
        self.lac = NO_ENTRY

    def on_lac(self, lac: int) -> None:
        """The handle tells its LAC."""
        if lac < self.lac:
            raise Violation(f"ledger {self.ledger.ledger_id}: LAC {lac} after {self.lac}")
        self.lac = lac
        self.ledger.on_confirmed(lac)


class Oracle:
    """All ledgers of a run."""

    def __init__(self, tree: MemoryTree, trace: Trace) -> None:
        self.ledgers: dict[int, LedgerOracle] = {}
        self.host_of: Callable[[str], str] = lambda bookie_id: ""
        """The host of a bookie, "" if it does not tell."""
        self._tree = tree
        self._trace = trace

    def created(self, ledger_id: int, password: bytes, deferred_sync: bool) -> LedgerOracle:
        """A client has made a ledger: watch its metadata from now on."""
        if ledger_id in self.ledgers:
            raise Violation(f"ledger id {ledger_id} was given twice")
        ledger = LedgerOracle(ledger_id, password, deferred_sync)
        self.ledgers[ledger_id] = ledger
        self._tree.tree.watch(f"/ledgers/{ledger_id}", lambda: self._changed(ledger))
        self._changed(ledger)
        return ledger

    def expected(self, ledger_id: int, password: bytes) -> LedgerOracle:
        """A ledger that is about to be restored: nobody reads it before that is done."""
        ledger = LedgerOracle(ledger_id, password, deferred_sync=False)
        ledger.reserved = True
        self.ledgers[ledger_id] = ledger
        self._tree.tree.watch(f"/ledgers/{ledger_id}", lambda: self._changed(ledger))
        return ledger

    def _changed(self, ledger: LedgerOracle) -> None:
        found = self._tree.tree.get(f"/ledgers/{ledger.ledger_id}")
        if found is None:
            if not ledger.deleted:
                raise Violation(f"ledger {ledger.ledger_id} was deleted by nobody")
            return
        metadata = decode_metadata(found.value)
        self._trace.event(
            "metadata",
            ledger.ledger_id,
            metadata.state.name,
            metadata.last_entry,
            [(fragment.first, *fragment.ensemble) for fragment in metadata.fragments],
        )
        for fragment in metadata.fragments:
            self._check_domains(metadata, fragment)
        ledger.on_metadata(metadata)

    def _check_domains(self, metadata: LedgerMetadata, fragment: Fragment) -> None:
        """Bookies are counted as of one host exactly if they are on one, as far as they tell."""
        is_written = metadata.state is State.OPEN and fragment is metadata.fragments[-1]
        if metadata.strict and is_written and not fragment.domains:
            raise Violation(f"ledger {metadata.ledger_id}: {fragment} knows no hosts")
        placed = zip(map(self.host_of, fragment.ensemble), fragment.domains, strict=False)
        known = [(host, domain) for host, domain in placed if host and domain != UNKNOWN]
        if len({host for host, _ in known}) != len(set(known)) or len(set(known)) != len(
            {domain for _, domain in known}
        ):
            raise Violation(f"ledger {metadata.ledger_id}: {fragment} tells wrong hosts: {known}")


def _body(ledger_id: int, entry_id: int, attempt: int) -> bytes:
    padding_bytes = (ledger_id * 31 + entry_id * 7 + attempt) % 40
    return _HEAD.pack(ledger_id, entry_id, attempt) + _PADDING[:padding_bytes]
