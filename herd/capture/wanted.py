"""What a stream or a batch of changes asks for, from the options of a source.

    table        one table, told in its own columns
    tables       several, with commas between, told as JSON; without either: all of the tablespace
    tablespace   "default" unless said
    start        earliest (unless said), latest, or ledger/entry: all changes after that position
    end          of a batch: latest (unless said) or ledger/entry: up to and with that position
    before       true: rows as they were, too; only of tables with changes = 'full'
    maxRows      of a stream: rows of all tables that a batch may have; a transaction is never split
    maxBytes     the same in bytes of the log
    consumer     of a stream: a name of its own, under which what it has not dealt with is kept
    keepHours    how long that is kept after the query was last there, 168 unless said

Invariants:
- An option that means nothing is an error: a misspelt one must not read something else.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from herd.capture.survey import NO_LIMIT, Limit, parsed
from herd.errors import ProgrammingError

DEFAULT: Final = "default"
"""As in `herd.store`, which would load all that runs tablespaces into each worker."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_HOUR_MS: Final = 3_600_000
_KEEP_HOURS: Final = 7 * 24
_BOTH: Final = ("table", "tables", "tablespace", "start", "before", "token", "url")
_OF_A_BATCH: Final = ("end",)
_OF_A_STREAM: Final = ("maxrows", "maxbytes", "consumer", "keephours")
_SHOWN: Final = {"maxrows": "maxRows", "maxbytes": "maxBytes", "keephours": "keepHours"}
_PATH: Final = "path"
"""What `load("cows")` says."""


class Wanted(msgspec.Struct, frozen=True):
    """Changes of tables between two moments. `table` is "" for several, told as JSON."""

    table: str = ""
    names: frozenset[str] = frozenset()
    """Of several tables, in lower case; empty: all."""
    tablespace: str = DEFAULT
    start: str = EARLIEST
    end: str = LATEST
    before: bool = False
    limit: Limit = NO_LIMIT
    consumer: str = ""
    keep_ms: int = _KEEP_HOURS * _HOUR_MS


def parse_wanted(options: Mapping[str, str]) -> Wanted:
    """What options ask for; names of options are in lower case.

    Raises `ProgrammingError`, `InterfaceError` for what is no position.

    >>> parse_wanted({"table": "cows", "start": "7/12", "maxrows": "500"}).limit
    Limit(rows=500, size_bytes=None)
    """
    for option in options:
        if option not in (*_BOTH, *_OF_A_BATCH, *_OF_A_STREAM, _PATH):
            known = [_SHOWN.get(name, name) for name in (*_BOTH, *_OF_A_BATCH, *_OF_A_STREAM)]
            raise ProgrammingError(
                f'format "herd-changes" has no option {option}', hint=f"it has {', '.join(known)}"
            )
    table = options.get("table") or options.get(_PATH, "")
    names = frozenset(filter(None, map(str.strip, options.get("tables", "").lower().split(","))))
    if table and names:
        raise ProgrammingError("give table or tables, not both")
    return Wanted(
        table=table,
        names=names,
        tablespace=options.get("tablespace", DEFAULT).lower(),
        start=_moment(options.get("start", EARLIEST)),
        end=_moment(options.get("end", LATEST)),
        before=_truth(options.get("before", "false")),
        limit=Limit(_number(options, "maxrows"), _number(options, "maxbytes")),
        consumer=options.get("consumer", ""),
        keep_ms=(_number(options, "keephours") or _KEEP_HOURS) * _HOUR_MS,
    )


def check_batch(options: Mapping[str, str]) -> None:
    """Raise `ProgrammingError` for an option that only a stream has."""
    for option in _OF_A_STREAM:
        if option in options:
            raise ProgrammingError(f"{_SHOWN.get(option, option)} is an option of a stream")


def check_stream(options: Mapping[str, str]) -> None:
    """Raise `ProgrammingError` for an option that only a batch has."""
    for option in _OF_A_BATCH:
        if option in options:
            raise ProgrammingError(f"a stream has no {option}: it goes on until it is stopped")


def _moment(text: str) -> str:
    if text not in (EARLIEST, LATEST):
        parsed(text)
    return text


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ProgrammingError(f"before={text!r}: say true or false")
    return text.lower() == "true"


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ProgrammingError(f"{_SHOWN[name]}={text!r}: give a number of 1 or more")
    return int(text)
