"""What the leader asks of the process that builds a checkpoint's pages."""

from typing import Final

import msgspec

PAGE_ROWS: Final = 65_536
PAGE_BYTES: Final = 16 * 1024 * 1024
CHANGED_SHARE: Final = 8
"""The deltas of a page have at most one in so many of its rows; else it is written whole."""
CHAIN_MAX: Final = 4
"""A page has at most so many deltas: each is one more thing to fetch."""
NEW: Final = 0
"""The ledger of pages that lie in the output file yet."""


class Order(msgspec.Struct, frozen=True):
    """What to build. `before`: a file with the manifest before, "" for none.

    `rewrite` names ledgers whose pages are to be written again, because most of them is unused.
    """

    copy: str
    output: str
    tablespace: str
    number: int
    epoch: int
    taken_ms: int
    before: str = ""
    rewrite: tuple[int, ...] = ()
    page_rows: int = PAGE_ROWS
    page_bytes: int = PAGE_BYTES
