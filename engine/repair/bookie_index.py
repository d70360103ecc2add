"""Which ledgers name which bookie: what the auditor remembers of its newest survey.

When a bookie is lost, its ledgers are known without reading the metadata of all others.

Invariants:
- It takes about 12 bytes for a ledger, and each distinct set of bookies once.
- It may be old: whoever acts on it reads the ledgers, and surveys all of them afterwards.
"""

from array import array
from collections.abc import Collection

from engine.metadata.ledgers import LedgerMetadata

_OPEN = 0


class BookieIndex:
    """Filled in the order of ids.

    >>> from engine.metadata.ledgers import Fragment, State
    >>> index = BookieIndex()
    >>> for ledger_id, name in (3, "a"), (7, "b"):
    ...     fragments = (Fragment(0, (name,)),)
    ...     index.add(
    ...         LedgerMetadata(
    ...             ledger_id, 1, 1, 1, fragments, b"", 0, 0, State.CLOSED, last_entry=9, length=1
    ...         )
    ...     )
    >>> index.naming({"b"}), index.last
    ([7], 7)
    """

    def __init__(self) -> None:
        self.last = -1
        """The highest id."""
        self._ids = array("q")
        self._sets = array("I")
        self._numbers: dict[frozenset[str], int] = {frozenset(): _OPEN}

    @property
    def size(self) -> int:
        """How many ledgers there are."""
        return len(self._ids)

    def add(self, metadata: LedgerMetadata) -> None:
        """Note a ledger. The bookies of one that is not closed may change at any time."""
        names = frozenset(metadata.bookies()) if metadata.closed else frozenset[str]()
        self._ids.append(metadata.ledger_id)
        self._sets.append(self._numbers.setdefault(names, len(self._numbers)))
        self.last = metadata.ledger_id

    def naming(self, bookie_ids: Collection[str]) -> list[int]:
        """The ledgers that named one of these bookies, or were not closed, ascending."""
        wanted = {
            number
            for names, number in self._numbers.items()
            if number == _OPEN or not names.isdisjoint(bookie_ids)
        }
        pairs = zip(self._ids, self._sets, strict=True)
        return [ledger_id for ledger_id, number in pairs if number in wanted]
