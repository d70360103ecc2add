"""What a tablespace knows of its tables and views, read from its rows.

Invariants:
- A catalog is a value: a change makes another one and the rows to write for it.
- Names are found in any case of letters; no two tables or views have the same one.
- `Plan`s are derived of the whole catalog, because a table's writes concern those that refer to it.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Final

import msgspec

from engine.replica.contract import ReadRows
from herd.commands import Change
from herd.errors import NameTaken, NoSuchTable, NotSupportedError
from herd.keys import COUNTERS, ERASE, TABLE, VIEW, catalog_key, index_mark, successor
from herd.keys import prefix as store_prefix
from herd.plan import Plan
from herd.schema import Building, Counters, Table, View

_PAGE_ROWS: Final = 1_000
_encode: Final = msgspec.msgpack.Encoder().encode
decode_table: Final = msgspec.msgpack.Decoder(Table).decode
_decode_view: Final = msgspec.msgpack.Decoder(View).decode
_decode_counters: Final = msgspec.msgpack.Decoder(Counters).decode


class Catalog:
    """All definitions at one moment. Read by `load`, changed by `with_...`."""

    def __init__(
        self, tables: dict[int, Table], views: dict[str, View], counters: Counters
    ) -> None:
        self.tables = tables
        self.views = views
        self.counters = counters
        self._plans: dict[int, Plan] = {}
        self._by_name: dict[str, Table] = {table.name.lower(): table for table in tables.values()}

    @property
    def version(self) -> int:
        """Another one after every change of a definition."""
        return self.counters.version

    def find(self, name: str) -> Table | View | None:
        """A table or view, in any case of letters."""
        return self._by_name.get(name.lower()) or self.views.get(name.lower())

    def table(self, name: str) -> Table:
        """A table by name. Raises `NoSuchTable`, `NotSupportedError` for a view."""
        found = self._by_name.get(name.lower())
        if found is not None:
            return found
        if name.lower() in self.views:
            raise NotSupportedError(f"{name} is a view: its rows are those of its tables")
        raise NoSuchTable(f"there is no table {name}")

    def plan(self, table: Table) -> Plan:
        """How rows of a table of this catalog are written."""
        found = self._plans.get(table.id)
        if found is None:
            own = self.tables[table.id]
            found = self._plans[table.id] = Plan(own, self.children_of(own))
        assert found.table is table or _alike(found.table, table), "another definition of the table"
        return found

    def shows_as(self, then: "Catalog") -> bool:
        """Whether a snapshot of the time of another catalog is read rightly by this one.

        Tables that were emptied or made anew have other rows than the snapshot's, and an index that
        has become READY has entries that the snapshot has not.
        """
        return then.counters.version == self.counters.version or all(
            _readable(self.tables.get(number)) == _readable(table)
            for number, table in then.tables.items()
        )

    def children_of(self, table: Table) -> list[Table]:
        """The tables with foreign keys to this one."""
        return [
            other
            for other in self.tables.values()
            if any(key.parent == table.id for key in other.foreign_keys)
        ]

    @cached_property
    def names(self) -> list[str]:
        """All tables and views, in order."""
        return sorted(
            [t.name for t in self.tables.values()] + [v.name for v in self.views.values()]
        )

    def definitions(self) -> list[Change]:
        """All rows that this catalog is read from."""
        tables: list[Change] = [
            (catalog_key(TABLE, table.id), _encode(table)) for table in self.tables.values()
        ]
        views = [(VIEW + name.encode(), _encode(view)) for name, view in self.views.items()]
        return [*tables, *views, (COUNTERS, _encode(self.counters))]

    # Changes: each returns the new catalog and what has to be written for it

    def new_ids(self, count: int) -> tuple["Catalog", list[int]]:
        """Ids that nothing had before; the counters are written by the change that uses them."""
        first = self.counters.next_id
        counters = msgspec.structs.replace(self.counters, next_id=first + count)
        changed = Catalog(self.tables, self.views, counters)
        return changed, list(range(first, first + count))

    def with_store(self) -> tuple["Catalog", int, list[Change]]:
        """A store that nothing had before, marked to be erased until a table has it."""
        catalog, [store] = self.new_ids(1)
        changed, changes = catalog._changed(catalog.tables, catalog.views, [erasing(store)])
        return changed, store, changes

    def with_table(self, table: Table) -> tuple["Catalog", list[Change]]:
        """Add a table, or change the one with its id. Raises `NameTaken`."""
        found = self.find(table.name)
        if found is not None and not (isinstance(found, Table) and found.id == table.id):
            raise NameTaken(f"there is {table.name} already")
        key = catalog_key(TABLE, table.id)
        return self._changed({**self.tables, table.id: table}, self.views, [(key, _encode(table))])

    def without_table(self, table: Table) -> tuple["Catalog", list[Change]]:
        """Drop a table; its store is marked to be erased."""
        tables = {number: other for number, other in self.tables.items() if number != table.id}
        gone = (catalog_key(TABLE, table.id), None)
        return self._changed(tables, self.views, [gone, erasing(table.store)])

    def with_view(self, view: View, *, replace: bool) -> tuple["Catalog", list[Change]]:
        """Add a view, or `replace` one. Raises `NameTaken`."""
        found = self.find(view.name)
        if found is not None and not (replace and isinstance(found, View)):
            raise NameTaken(f"there is {view.name} already")
        name = view.name.lower()
        change = (VIEW + name.encode(), _encode(view))
        return self._changed(self.tables, {**self.views, name: view}, [change])

    def without_view(self, view: View) -> tuple["Catalog", list[Change]]:
        """Drop a view."""
        gone = view.name.lower()
        views = {name: other for name, other in self.views.items() if name != gone}
        return self._changed(self.tables, views, [(VIEW + gone.encode(), None)])

    def _changed(
        self, tables: dict[int, Table], views: dict[str, View], changes: list[Change]
    ) -> tuple["Catalog", list[Change]]:
        counters = msgspec.structs.replace(self.counters, version=self.counters.version + 1)
        return Catalog(tables, views, counters), [*changes, (COUNTERS, _encode(counters))]


def _readable(table: Table | None) -> Table | None:
    """A table as queries see it: without the indexes that are being built."""
    if table is None:
        return None
    ready = tuple(index for index in table.indexes if index.state is Building.READY)
    return msgspec.structs.replace(table, indexes=ready, next_index=0)


def _alike(one: Table, other: Table) -> bool:
    """Whether rows of both are changed in the same way: an index that is READY was built before."""
    built = [
        msgspec.structs.replace(
            table,
            indexes=tuple(
                msgspec.structs.replace(index, state=Building.READY) for index in table.indexes
            ),
        )
        for table in (one, other)
    ]
    return built[0] == built[1]


def erasing(store: int, index: int = 0) -> Change:
    """The mark of a store whose rows nobody owns any more, or of one of its indexes."""
    return index_mark(store, index) if index else catalog_key(ERASE, store), b""


def load(rows: ReadRows) -> Catalog:
    """The catalog that stands in a tablespace's rows."""
    tables = [decode_table(value) for value in _values(rows, TABLE)]
    views = [_decode_view(value) for value in _values(rows, VIEW)]
    counted = rows.get(COUNTERS)
    return Catalog(
        {table.id: table for table in tables},
        {view.name.lower(): view for view in views},
        Counters() if counted is None else _decode_counters(counted),
    )


def version_of(rows: ReadRows) -> int:
    """The version of the catalog that stands in a tablespace's rows."""
    counted = rows.get(COUNTERS)
    return Counters().version if counted is None else _decode_counters(counted).version


def stores_to_erase(rows: ReadRows) -> list[tuple[int, int]]:
    """Stores that are marked, each with an index, or with 0 for all of it."""
    found = rows.scan(ERASE, successor(ERASE), _PAGE_ROWS)
    start = len(ERASE)
    return [
        (int.from_bytes(key[start : start + 4]), int.from_bytes(key[start + 4 :]))
        for key, _ in found
    ]


def all_rows(rows: ReadRows, beginning: bytes) -> Iterable[tuple[bytes, bytes]]:
    """All rows whose keys begin so, in order."""
    first, end = beginning, successor(beginning)
    while page := rows.scan(first, end, _PAGE_ROWS):
        yield from page
        first = page[-1][0] + b"\x00"


def _values(rows: ReadRows, beginning: bytes) -> Iterable[bytes]:
    return (value for _, value in all_rows(rows, beginning))


def rows_of(table: Table) -> tuple[bytes, bytes]:
    """From which key on and under which one the rows of a table lie."""
    first = store_prefix(table.store)
    return first, successor(first)
