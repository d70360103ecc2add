"""What a read of a bucket asks for, from the options of a source.

    bucket       its name; may be left out where ids are given
    prefix       what names begin with
    ids          ids of objects with commas between, in place of names
    mode         objects, ranges, lines, json or parquet
    content      true, or false: objects without their bytes
    range_bytes  how much of an object one row has, in mode ranges
    schema       what rows there are in objects, in modes json and parquet: "id bigint, name string"
    where        conditions on name, size, etag and created, as `herd.snapshot.where` takes them
    pushdown     "true": filters of the frame are told before names are read, too
    snapshot     "fresh" (the leader takes a checkpoint now), "newest", or a checkpoint's number
    url          the store

Invariants:
- An option that means nothing is an error: a misspelt one must not read something else.
"""

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from blobit.errors import SettingsInvalid
from blobit.naming import check_bucket_name
from blobit.object_id import ObjectId
from engine.limits import MIB

RANGE_BYTES: Final = 8 * MIB
RANGE_BYTES_MAX: Final = 1024 * MIB
FRESH: Final = "fresh"
NEWEST: Final = "newest"
_KNOWN: Final = (
    *("bucket", "prefix", "ids", "mode", "content", "range_bytes", "schema", "where"),
    *("pushdown", "snapshot", "token", "url", "path"),
)
_SWITCH: Final = {"true": True, "false": False}


class Mode(enum.Enum):
    """What a row is: an object, a range of one, a line, or a row that the object holds."""

    OBJECTS = "objects"
    RANGES = "ranges"
    LINES = "lines"
    JSON = "json"
    PARQUET = "parquet"


class Wanted(msgspec.Struct, frozen=True):
    """Objects of a bucket at a moment, or by their ids. `number` is a checkpoint's, 0: newest."""

    bucket: str = ""
    prefix: str = ""
    ids: tuple[str, ...] = ()
    mode: Mode = Mode.OBJECTS
    content: bool = True
    range_bytes: int = RANGE_BYTES
    schema: str = ""
    where: str = ""
    pushdown: bool | None = None
    fresh: bool = True
    number: int = 0

    @property
    def is_split(self) -> bool:
        """Whether several tasks may read one object."""
        return self.mode is not Mode.OBJECTS

    @property
    def has_rows(self) -> bool:
        """Whether objects hold rows with columns of their own."""
        return self.mode in (Mode.JSON, Mode.PARQUET)


def parse_wanted(options: Mapping[str, str]) -> Wanted:
    """What options ask for; names of options are in lower case.

    Raises `SettingsInvalid`, `InvalidName`, `InvalidObjectId`.

    >>> parse_wanted({"bucket": "cows", "mode": "lines"}).mode
    <Mode.LINES: 'lines'>
    """
    for option in options:
        if option not in _KNOWN:
            raise SettingsInvalid(
                f'format "blobit" has no option {option}: it has {", ".join(_KNOWN[:-1])}'
            )
    bucket, prefix = _place(options)
    ids = tuple(one.strip() for one in options.get("ids", "").split(",") if one.strip())
    if bucket:
        check_bucket_name(bucket)
    elif not ids:
        raise SettingsInvalid('no bucket is named: say .option("bucket", "cows")')
    if ids and (prefix or options.get("where")):
        raise SettingsInvalid("of ids nothing else is known: leave out prefix and where")
    for one in ids:
        ObjectId.parse(one)
    moment = options.get("snapshot", FRESH)
    wanted = Wanted(
        bucket=bucket,
        prefix=prefix,
        ids=ids,
        mode=_mode(options.get("mode", Mode.OBJECTS.value)),
        content=_switch("content", options.get("content", "true")),
        range_bytes=_range_bytes(options.get("range_bytes", str(RANGE_BYTES))),
        schema=options.get("schema", ""),
        where=options.get("where", ""),
        pushdown=_switch("pushdown", options["pushdown"]) if "pushdown" in options else None,
        fresh=moment == FRESH,
        number=_number(moment),
    )
    if not wanted.content and wanted.is_split:
        raise SettingsInvalid(f"content=false: rows of mode={wanted.mode.value} are made of bytes")
    if wanted.schema and not wanted.has_rows:
        raise SettingsInvalid(f"mode={wanted.mode.value} has a schema of its own")
    return wanted


def _place(options: Mapping[str, str]) -> tuple[str, str]:
    """Bucket and prefix: by their options, or as `load("cows/2024/")` says them."""
    path = options.get("path", "").removeprefix("blobit://")
    bucket, _, prefix = path.partition("/")
    if path and ("bucket" in options or "prefix" in options):
        raise SettingsInvalid(f"{path!r} names a bucket, and so do options: take one of them")
    return options.get("bucket", bucket), options.get("prefix", prefix)


def _mode(text: str) -> Mode:
    try:
        return Mode(text.lower())
    except ValueError:
        known = ", ".join(mode.value for mode in Mode)
        raise SettingsInvalid(f"mode={text!r} is none: there are {known}") from None


def _switch(option: str, text: str) -> bool:
    found = _SWITCH.get(text.lower())
    if found is None:
        raise SettingsInvalid(f"{option}={text!r}: say true or false")
    return found


def _range_bytes(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= RANGE_BYTES_MAX:
        return int(text)
    raise SettingsInvalid(f"range_bytes={text!r}: 1 to {RANGE_BYTES_MAX} bytes are possible")


def _number(moment: str) -> int:
    if moment in (FRESH, NEWEST):
        return 0
    if moment.isascii() and moment.isdigit() and int(moment):
        return int(moment)
    raise SettingsInvalid(f"snapshot={moment!r}: say fresh, newest, or a checkpoint's number")
