"""Builds a checkpoint's pages in a process of its own: `python -m herd.checkpoint.building`.

It reads a copy of the state, made of links, and the manifest before; what is new goes into one
file, which the leader puts into a ledger. Standard input: an `Order`, then answers. Standard
output: questions for the blobs of a page, and at the end a manifest, whose new pages and deltas
have ledger 0 and, for an entry, their place in the file; `herd.checkpoint.child` has both sides.

Invariants:
- Nothing here touches the leader's loop, its interpreter or its files.
- A page of the manifest before is named again if the rows in its range have the same checksum now.
  What changed since need not be known: a restart or another leader costs reading, not trust.
- Little that changed in a page's range becomes a delta behind it. The page itself is asked for only
  where keys came or went; a page that cannot be read is written whole.
- Pages lie one after the other, and together hold every row of the table once.
"""

import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import google_crc32c

from engine.errors import CannotRead
from engine.log import START
from engine.state import RocksCopy
from herd.catalog import all_rows, load, rows_of
from herd.checkpoint.child import serve
from herd.checkpoint.deltas import Difference, changed_places, difference, encode_delta, widened
from herd.checkpoint.manifest import (
    Delta,
    Locator,
    Manifest,
    Page,
    TablePages,
    decode_manifest,
)
from herd.checkpoint.order import CHAIN_MAX, CHANGED_SHARE, NEW, Order
from herd.checkpoint.packing import KeyValue
from herd.checkpoint.pages import (
    changed_last,
    checksum_of,
    checksum_of_keys,
    encode_page,
    keys_of,
    ranges_of,
    short_key,
)
from herd.keys import AUTO
from herd.schema import Table

_NICENESS: Final = 10


def build(order: Order) -> Generator[Page, Sequence[bytes] | None, Manifest]:
    """Write the new pages; returns the manifest. Raises what reading and writing raise."""
    before = decode_manifest(Path(order.before).read_bytes()) if order.before else None
    copy = RocksCopy(Path(order.copy))
    try:
        catalog = load(copy)
        with Path(order.output).open("wb") as output:
            builder = _Builder(order, copy, output, before)
            pages = []
            for table in catalog.tables.values():
                pages.append((yield from builder.table(table)))
        return Manifest(
            tablespace=order.tablespace,
            number=order.number,
            position=copy.position,
            epoch=order.epoch,
            taken_ms=order.taken_ms,
            tables=tuple(catalog.tables.values()),
            views=tuple(catalog.views.values()),
            counters=catalog.counters,
            pages=tuple(pages),
            plain=tuple(all_rows(copy, AUTO)),
            written={} if before is None else before.written,
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
        self._since = START
        self._stores: dict[int, int] = {}
        self._pages: dict[int, tuple[Page, ...]] = {}
        if before is not None:
            self._since = before.position
            self._stores = {table.id: table.store for table in before.tables}
            self._pages = {pages.table_id: pages.pages for pages in before.pages}

    def table(self, table: Table) -> Generator[Page, Sequence[bytes] | None, TablePages]:
        """All pages of a table: the old ones where nothing changed, with deltas, or new ones."""
        same_store = self._stores.get(table.id) == table.store
        older = self._pages.get(table.id, ()) if same_store else ()
        known = {page.first_key: page for page in older}
        pages = []
        for old, rows in self._pieces(table, older):
            checksum = checksum_of(rows)
            page = self._kept(known.get(rows[0][0]), rows, checksum)
            if page is None and old is not None:
                page = yield from self._with_delta(table, old, rows, checksum)
            pages.append(page or self._whole(table, rows, checksum))
        return TablePages(table.id, sum(page.rows for page in pages), tuple(pages))

    def _pieces(
        self, table: Table, older: Sequence[Page]
    ) -> Iterator[tuple[Page | None, list[KeyValue]]]:
        """The table's rows, cut where the old pages began as far as that gives useful pages.

        With each piece comes the old page whose keys are all in it, if they are still there, and
        no other page's.
        """
        page_rows, page_bytes = self._order.page_rows, self._order.page_bytes
        later = iter(older)
        page, ahead = next(later, None), next(later, None)
        rows: list[KeyValue] = []
        size_bytes = 0
        for key, value in self._copy.rows(*rows_of(table)):
            key = short_key(key)
            # Up to a border a page may grow by half: else one row more would move all that follow.
            limit = page_rows if ahead is None else page_rows + page_rows // 2
            if ahead is not None and key >= ahead.first_key:
                begun = ahead
                while ahead is not None and key >= ahead.first_key:
                    begun, ahead = ahead, next(later, None)
                # A page that has shrunk is joined with the next one.
                if len(rows) >= page_rows // 4:
                    yield page, rows
                    rows, size_bytes = [], 0
                page = None if rows else begun
            elif len(rows) >= limit or size_bytes >= page_bytes:
                cut, rows = rows[:page_rows], rows[page_rows:]
                yield page if page is not None and cut[-1][0] >= page.last_key else None, cut
                page = None
                size_bytes = sum(len(key) + len(value) for key, value in rows)
            rows.append((key, value))
            size_bytes += len(key) + len(value)
        if rows:
            yield page, rows

    def _kept(self, old: Page | None, rows: list[KeyValue], checksum: int) -> Page | None:
        """The old page, if it has these rows."""
        if old is None or self._is_left(old):
            return None
        same = (old.rows, old.last_key, old.checksum) == (len(rows), rows[-1][0], checksum)
        return old if same else None

    def _with_delta(
        self, table: Table, old: Page, rows: list[KeyValue], checksum: int
    ) -> Generator[Page, Sequence[bytes] | None, Page | None]:
        """The old page with one delta more, unless too much has changed."""
        earlier = sum(delta.changes for delta in old.deltas)
        room = min(old.rows, len(rows)) // CHANGED_SHARE - earlier
        if self._is_left(old) or len(old.deltas) >= CHAIN_MAX:
            return None
        changed = changed_places(rows, self._since)
        if len(changed) > room:
            return None
        keys, checksum_keys = None, checksum_of_keys(rows)
        if (old.rows, old.keys) != (len(rows), checksum_keys):
            blobs = yield old
            if blobs is None:
                return None
            try:
                keys = keys_of(blobs)
            except (CannotRead, LookupError, ValueError):
                # Ours, and those of Arrow: it does not fit together, and is written whole.
                return None
        found = difference(rows, changed, keys)
        if found is None or not 0 < found.changes <= room:
            return None
        delta = Delta(found.changes, self._put(encode_delta(table, found)))
        return self._changed(table, old, rows, found, delta, checksum, checksum_keys)

    def _changed(
        self,
        table: Table,
        old: Page,
        rows: list[KeyValue],
        found: Difference,
        delta: Delta,
        checksum: int,
        keys: int,
    ) -> Page:
        newest = [changed_last(found.rows)] if found.rows else []
        ranges = ranges_of(table, found.rows)
        return Page(
            first_key=rows[0][0],
            last_key=rows[-1][0],
            rows=len(rows),
            checksum=checksum,
            changed=max([old.changed, *newest]),
            ranges=widened(old.ranges, old.rows, ranges, len(found.rows), len(rows)),
            locator=old.locator,
            deltas=(*old.deltas, delta),
            keys=keys,
        )

    def _whole(self, table: Table, rows: list[KeyValue], checksum: int) -> Page:
        return Page(
            first_key=rows[0][0],
            last_key=rows[-1][0],
            rows=len(rows),
            checksum=checksum,
            changed=changed_last(rows),
            ranges=ranges_of(table, rows),
            locator=self._put(encode_page(table, rows)),
            keys=checksum_of_keys(rows),
        )

    def _is_left(self, page: Page) -> bool:
        """Whether a ledger that it lies in is to be given up."""
        return any(at.ledger_id in self._order.rewrite for at in page.locators)

    def _put(self, blob: bytes) -> Locator:
        self._output.write(blob)
        locator = Locator(NEW, self._offset, len(blob), google_crc32c.value(blob))
        self._offset += len(blob)
        return locator


def main() -> None:
    """Run as the leader's child."""
    # Whoever waits for an answer of the leader goes first.
    os.nice(_NICENESS)
    serve(build)


if __name__ == "__main__":
    main()
