"""What a tablespace writes into its log, one command a transaction.

    Write      rows and plain keys to set (a value) or to remove (nil)
    Erase      remove up to so many keys of a store that nobody owns any more
    Check      change nothing: each replica tells what rows it has at this position

All are arrays of MessagePack, the first element says which.

Invariants:
- A Write holds everything that its transaction changes: rows, entries of indexes, definitions,
  counters. Applying it needs to know nothing and can be refused by nothing.
- The leader has checked every constraint under locks that it keeps until the Write is applied.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

Change = tuple[bytes, bytes | None]
"""A key and its new value; None removes it."""


class Write(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """One transaction. `rows` are stored with the position in front, `plain` as they are."""

    rows: Sequence[Change]
    plain: Sequence[Change] = ()
    before: Sequence[Change] = ()
    """Rows as they were, of tables that log that."""


class Erase(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Remove at most `limit` keys of a store, at the end its mark; see `erased` for the answer.

    `index` is for those of one index alone, 0 for all. There are no keys up to `above`: who looks
    there passes over all that was removed before, again with each command.
    """

    store: int
    limit: int
    index: int = 0
    above: bytes = b""


class Check(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Compare the replicas' rows at this position; `number` names the check."""

    number: int


Command = Write | Erase | Check


def erased(count: int, last: bytes) -> bytes:
    """The answer to an `Erase`: how many keys, as text, and the last of them."""
    return b"%d %s" % (count, last)


def erased_last(answer: bytes) -> bytes:
    """The last key that was removed; none if there was none, or if another version answered."""
    return answer.partition(b" ")[2]


encode_command: Final = msgspec.msgpack.Encoder().encode
decode_command: Final = msgspec.msgpack.Decoder(Write | Erase | Check).decode
