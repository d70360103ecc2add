"""Sizes of rows: which ones a state takes, and how many make a page.

Invariants:
- A page has a row if there is one left, and no more bytes than asked for unless that row has.
"""

from collections.abc import Iterator
from typing import Final

from engine.errors import InvalidRequest
from engine.limits import MIB
from engine.state.contract import Row

KEY_BYTES_MAX: Final = 4_096
VALUE_BYTES_MAX: Final = 17 * MIB
LOWEST: Final = b"\0"
"""No key is below this one."""
FIRST_ROW: Final = b"\1"
"""Keys below this one begin with a zero byte and belong to who keeps the state, not to who is shown
its rows. Those rows differ from replica to replica for a while: nothing may be decided by them."""


def misfit(key: bytes, value: bytes) -> InvalidRequest:
    """What to say of a row that no state takes."""
    return InvalidRequest(
        f"a key of {len(key):,} and a value of {len(value):,} bytes: keys have 1 to "
        f"{KEY_BYTES_MAX:,}, values at most {VALUE_BYTES_MAX:,}"
    )


def after(above: bytes | None) -> bytes:
    """The lowest key that is over `above`; None: the lowest of all."""
    return LOWEST if above is None else above + b"\0"


def cut_page(rows: Iterator[Row], bytes_max: int) -> list[Row]:
    """Rows as long as they fit, one at least.

    It counts row by row: values may be large, and a thread that does it lets others have turns.
    """
    page: list[Row] = []
    for row in rows:
        bytes_max -= len(row[0]) + len(row[1])
        if bytes_max < 0 and page:
            break
        page.append(row)
    return page
