"""HTTP's headers about versions and ranges (RFC 9110, 13 and 14): pure functions of their texts.

Invariants:
- A header that is no range as the standard writes it is passed over, as the standard wants.
- Several ranges at once are passed over, as the standard allows: the reply is the whole object.
"""

import re
from typing import Final, NamedTuple

from herdbook.http.errors import HttpError

_SPECIFIER: Final = re.compile(r"bytes\s*=\s*(.*)", re.IGNORECASE | re.ASCII)
_RANGE: Final = re.compile(r"(\d{0,20})\s*-\s*(\d{0,20})", re.ASCII)
_ETAG: Final = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*(?:,|$)')


class Slice(NamedTuple):
    """So many bytes from an offset on."""

    offset: int
    length: int


def parse_range(header: str, size: int) -> Slice | None:
    """What a header `Range` wants of so many bytes; None: all of it.

    Raises `HttpError` 416 for what is not there.

    >>> parse_range("bytes=2-4", 10), parse_range("bytes=-3", 10), parse_range("bytes=7-", 10)
    (Slice(offset=2, length=3), Slice(offset=7, length=3), Slice(offset=7, length=3))
    >>> parse_range("bytes=4-2", 10) is None and parse_range("lines=1-2", 10) is None
    True
    """
    found = _SPECIFIER.fullmatch(header.strip())
    if found is None:
        return None
    parts = [part.strip() for part in found.group(1).split(",") if part.strip()]
    matched = [each for each in map(_RANGE.fullmatch, parts) if each is not None]
    if len(matched) != 1 or len(parts) > 1:
        return None
    first, last = matched[0].groups()
    if not first:
        if not last:
            return None
        length = min(int(last), size)
        if length == 0:
            raise _not_there(size)
        return Slice(size - length, length)
    if last and int(last) < int(first):
        return None
    if int(first) >= size:
        raise _not_there(size)
    end = min(int(last), size - 1) if last else size - 1
    return Slice(int(first), end - int(first) + 1)


def _not_there(size: int) -> HttpError:
    return HttpError(416, "range_not_there", f"the object has {size:,} bytes")


def etags_of(header: str) -> list[str] | None:
    """The etags that a header lists, weak ones too; None: "*". Raises `HttpError` 400.

    >>> etags_of('"a", W/"b"'), etags_of("*")
    (['a', 'b'], None)
    """
    if header.strip() == "*":
        return None
    found, place = [], 0
    while place < len(header):
        each = _ETAG.match(header, place)
        if each is None:
            raise HttpError(400, "invalid_etag", f"no list of etags: {header[:100]!r}")
        found.append(each.group(2))
        place = each.end()
    if not found:
        raise HttpError(400, "invalid_etag", "an empty list of etags")
    return found
