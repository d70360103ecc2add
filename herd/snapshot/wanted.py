"""What a read of a table asks for, from the options of a source.

    table      its name
    tablespace "default" unless said
    snapshot   "fresh" (the leader takes a checkpoint now), "newest", or a checkpoint's number
    columns    names with commas between; all unless said
    where      conditions as `herd.snapshot.where` takes them, on all rows that are read
    pushdown   "true": filters of the frame are told before pages are read, too

Invariants:
- An option that means nothing is an error: a misspelt one must not read something else.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from herd.errors import ProgrammingError
from herd.schema import Column, Table
from herd.store import DEFAULT

FRESH: Final = "fresh"
NEWEST: Final = "newest"
_KNOWN: Final = (
    *("table", "tablespace", "snapshot", "columns", "where", "pushdown", "token", "url"),
)
_PATH: Final = "path"
"""What `load("cows")` says."""


class Wanted(msgspec.Struct, frozen=True):
    """A table at a moment. `number` is a checkpoint's, 0 for the newest there is then."""

    table: str
    tablespace: str = DEFAULT
    fresh: bool = True
    number: int = 0
    columns: tuple[str, ...] = ()
    where: str = ""
    pushdown: bool | None = None
    """Whether Spark's filters are taken; None: where Spark keeps those of one query from others."""

    def chosen(self, table: Table) -> tuple[Column, ...]:
        """The columns to read, in their order. Raises `NoSuchColumn`."""
        if not self.columns:
            return table.visible
        return tuple(table.column(name) for name in self.columns)


def parse_wanted(options: Mapping[str, str]) -> Wanted:
    """What options ask for; names of options are in lower case.

    Raises `ProgrammingError`.

    >>> parse_wanted({"table": "cows", "snapshot": "7", "columns": "id, name"}).columns
    ('id', 'name')
    """
    for option in options:
        if option not in (*_KNOWN, _PATH):
            raise ProgrammingError(
                f'format "herd" has no option {option}', hint=f"it has {', '.join(_KNOWN)}"
            )
    table = options.get("table") or options.get(_PATH)
    if not table:
        raise ProgrammingError("no table is named", hint='say .option("table", "cows")')
    moment = options.get("snapshot", FRESH)
    named = options.get("columns")
    columns = () if named is None else tuple(name.strip() for name in named.split(","))
    if len({name.lower() for name in columns}) < len(columns) or "" in columns:
        raise ProgrammingError(f"columns={named!r}: name each column once, with commas between")
    return Wanted(
        table=table,
        tablespace=options.get("tablespace", DEFAULT).lower(),
        fresh=moment == FRESH,
        number=_number(moment),
        columns=columns,
        where=options.get("where", ""),
        pushdown=_pushdown(options.get("pushdown")),
    )


def _pushdown(text: str | None) -> bool | None:
    found = None if text is None else {"true": True, "false": False}.get(text.lower())
    if text is not None and found is None:
        raise ProgrammingError(f"pushdown={text!r}", hint="say true or false")
    return found


def _number(moment: str) -> int:
    if moment in (FRESH, NEWEST):
        return 0
    if moment.isascii() and moment.isdigit() and int(moment):
        return int(moment)
    raise ProgrammingError(
        f"snapshot={moment!r} is none", hint="say fresh, newest, or the number of a checkpoint"
    )
