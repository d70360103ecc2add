"""Builds a checkpoint's pages in a process of its own: `python -m herd.checkpoint.building`.

It reads a copy of the state, made of links, and the manifest before; what is new goes into one
file, which the leader puts into a ledger. Standard input: an `Order`. Standard output: a manifest,
whose new pages have ledger 0 and, for an entry, their place in the file.

Invariants:
- Nothing here touches the leader's loop, its interpreter or its files.
- A page of the manifest before is named again if the rows in its range have the same checksum now.
  What changed since need not be known: a restart or another leader costs reading, not trust.
- Pages lie one after the other, and together hold every row of the table once.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import google_crc32c
import msgspec

from engine.state import RocksCopy
from herd.catalog import all_rows, load, rows_of
from herd.checkpoint.manifest import (
    Locator,
    Manifest,
    Page,
    TablePages,
    decode_manifest,
    encode_manifest,
)
from herd.checkpoint.order import NEW, Order
from herd.checkpoint.pages import (
    KeyValue,
    changed_last,
    checksum_of,
    encode_page,
    ranges_of,
    short_key,
)
from herd.keys import AUTO
from herd.schema import Table

_NICENESS: Final = 10


def build(order: Order) -> Manifest:
    """Write the new pages; returns the manifest. Raises what reading and writing raise."""
    before = decode_manifest(Path(order.before).read_bytes()) if order.before else None
    copy = RocksCopy(Path(order.copy))
    try:
        catalog = load(copy)
        with Path(order.output).open("wb") as output:
            builder = _Builder(order, copy, output, before)
            pages = tuple(builder.table(table) for table in catalog.tables.values())
        return Manifest(
            tablespace=order.tablespace,
            number=order.number,
            position=copy.position,
            epoch=order.epoch,
            taken_ms=order.taken_ms,
            tables=tuple(catalog.tables.values()),
            views=tuple(catalog.views.values()),
            counters=catalog.counters,
            pages=pages,
            plain=tuple(all_rows(copy, AUTO)),
        )
    finally:
        copy.close()


class _Builder:
    def __init__(
        self, order: Order, copy: RocksCopy, output: BinaryIO, before: Manifest | None
    ) -> None:
        self._order = order
        self._copy = copy
        self._output = output
        self._offset = 0
        self._stores: dict[int, int] = {}
        self._pages: dict[int, tuple[Page, ...]] = {}
        if before is not None:
            self._stores = {table.id: table.store for table in before.tables}
            self._pages = {pages.table_id: pages.pages for pages in before.pages}

    def table(self, table: Table) -> TablePages:
        """All pages of a table: the old ones where nothing changed, else new ones."""
        same_store = self._stores.get(table.id) == table.store
        older = self._pages.get(table.id, ()) if same_store else ()
        known = {page.first_key: page for page in older}
        borders = [page.first_key for page in older[1:]]
        pages = [self._page(table, rows, known) for rows in self._pieces(table, borders)]
        return TablePages(table.id, sum(page.rows for page in pages), tuple(pages))

    def _pieces(self, table: Table, borders: list[bytes]) -> Iterator[list[KeyValue]]:
        """The table's rows, cut where the old pages began as far as that gives useful pages."""
        page_rows, page_bytes = self._order.page_rows, self._order.page_bytes
        ahead = iter(borders)
        border = next(ahead, None)
        rows: list[KeyValue] = []
        size_bytes = 0
        for key, value in self._copy.rows(*rows_of(table)):
            key = short_key(key)
            if border is not None and key >= border:
                while border is not None and key >= border:
                    border = next(ahead, None)
                # A page that has shrunk is joined with the next one.
                if len(rows) >= page_rows // 4:
                    yield rows
                    rows, size_bytes = [], 0
            rows.append((key, value))
            size_bytes += len(key) + len(value)
            # Up to a border a page may grow by half: else one row more would move all that follow.
            limit = page_rows if border is None else page_rows + page_rows // 2
            if len(rows) >= limit or size_bytes >= page_bytes:
                yield rows[:page_rows]
                rows = rows[page_rows:]
                size_bytes = sum(len(key) + len(value) for key, value in rows)
        if rows:
            yield rows

    def _page(self, table: Table, rows: list[KeyValue], known: dict[bytes, Page]) -> Page:
        checksum = checksum_of(rows)
        old = known.get(rows[0][0])
        if (
            old is not None
            and (old.rows, old.last_key, old.checksum) == (len(rows), rows[-1][0], checksum)
            and old.locator.ledger_id not in self._order.rewrite
        ):
            return old
        blob = encode_page(table, rows)
        self._output.write(blob)
        locator = Locator(NEW, self._offset, len(blob), google_crc32c.value(blob))
        self._offset += len(blob)
        return Page(
            first_key=rows[0][0],
            last_key=rows[-1][0],
            rows=len(rows),
            checksum=checksum,
            changed=changed_last(rows),
            ranges=ranges_of(table, rows),
            locator=locator,
        )


def main() -> None:
    """Run as the leader's child."""
    # Whoever waits for an answer of the leader goes first.
    os.nice(_NICENESS)
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order)
    sys.stdout.buffer.write(encode_manifest(build(order)))


if __name__ == "__main__":
    main()
