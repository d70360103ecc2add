"""Lists of objects: by prefix, folded at a delimiter, continued by a token.

Invariants:
- Names come in the order of their UTF-8 bytes, each once; what is there from the first page to the
  last is in one of them.
- A page costs what it shows: names behind a delimiter are passed over by one look, however many.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from blobit.bucket_core import BucketCore
from blobit.errors import InvalidName, RangeInvalid
from blobit.naming import OBJECT_NAME_BYTES_MAX, after_prefix, listing_token, parse_token
from blobit.rows import PAGE_ROWS, Rows
from blobit.tables import LedgerState, ObjectInfo, Usage

_FEW_ROWS: Final = 50
_SCAN_ROWS: Final = 250


class Listing(msgspec.Struct, frozen=True):
    """One page: objects, and the common beginnings of the names behind the delimiter.

    `token` continues the listing; "" is its end.
    """

    objects: list[ObjectInfo]
    prefixes: list[str]
    token: str


async def list_objects(
    core: BucketCore, prefix: str, delimiter: str, token: str, limit: int
) -> Listing:
    """A page of a listing. Raises `InvalidToken`, `RangeInvalid`, `MetadataUnavailable`."""
    core.check()
    if limit < 1:
        raise RangeInvalid(f"a page of {limit} objects: ask for at least one")
    _check_text(prefix)
    _check_text(delimiter)
    first: str | None = prefix
    if token:
        first = parse_token(token, core.bucket_id, prefix, delimiter)
    if not _may_begin_names(prefix):
        first = None
    page = _Page(core, prefix, delimiter, limit)
    while first is not None and not page.full:
        first = await page.add_from(first)
    more = "" if first is None else listing_token(core.bucket_id, prefix, delimiter, first)
    return Listing(page.objects, page.prefixes, more)


async def scan_objects(core: BucketCore, prefix: str) -> AsyncIterator[ObjectInfo]:
    """All objects whose names begin so, page by page. Raises `MetadataUnavailable`."""
    _check_text(prefix)
    first: str | None = prefix if _may_begin_names(prefix) else None
    while first is not None:
        page = _Page(core, prefix, "", _SCAN_ROWS)
        first = await page.add_from(first)
        for info in page.objects:
            yield info
        # Where the names are here nothing above has to wait, and others have work.
        await asyncio.sleep(0)


async def count_usage(core: BucketCore) -> Usage:
    """What a bucket holds, counted row by row. Raises `MetadataUnavailable`."""
    objects = length = 0
    async for info in scan_objects(core, ""):
        objects, length = objects + 1, length + info.length

    async def look(rows: Rows) -> tuple[int, int]:
        ledgers = stored_bytes = 0
        for row in await rows.ledgers(core.bucket_id):
            ledgers += 1
            if row["state"] == LedgerState.SEALED:
                stored_bytes += row["stored_bytes"] or 0
                continue
            key = (row["ledger_id"], core.bucket_id)
            async for ref in rows.scan("refs", first=key, last=key):
                stored_bytes += ref["stored_bytes"]
        return ledgers, stored_bytes

    return Usage(objects, length, *await core.read(look))


class _Page:
    """A page that is being filled."""

    def __init__(self, core: BucketCore, prefix: str, delimiter: str, limit: int) -> None:
        self.objects: list[ObjectInfo] = []
        self.prefixes: list[str] = []
        self._core = core
        self._prefix = prefix
        self._delimiter = delimiter
        self._limit = limit

    @property
    def full(self) -> bool:
        """Whether it has as many as were asked for."""
        return len(self.objects) + len(self.prefixes) >= self._limit

    async def add_from(self, first: str) -> str | None:
        """Add names from one on, some of them at least; where to go on, None: that was all."""
        self._core.check()
        room = self._limit - len(self.objects) - len(self.prefixes)
        # With a delimiter most of what is read may be passed over.
        count = min(room if not self._delimiter else max(_FEW_ROWS, room), PAGE_ROWS)
        bucket_id, prefix = self._core.bucket_id, self._prefix
        rows = await self._core.read(lambda rows: rows.listed(bucket_id, prefix, first, count))
        for row in rows:
            if self.full:
                return str(row["name"])
            info = self._core.alive(row)
            if info is None:
                continue
            end = self._end_of_prefix(info.name)
            if end:
                self.prefixes.append(info.name[:end])
                return after_prefix(info.name[:end])
            self.objects.append(info)
        return None if len(rows) < count else str(rows[-1]["name"]) + "\x00"

    def _end_of_prefix(self, name: str) -> int:
        if not self._delimiter:
            return 0
        at = name.find(self._delimiter, len(self._prefix))
        return 0 if at < 0 else at + len(self._delimiter)


def _may_begin_names(prefix: str) -> bool:
    """Whether a name has room for it: no key of the tables has for more."""
    return len(prefix.encode()) <= OBJECT_NAME_BYTES_MAX


def _check_text(text: str) -> None:
    try:
        text.encode()
    except (UnicodeEncodeError, AttributeError) as error:
        raise InvalidName(f"{text!r:.80} is no Unicode text") from error
