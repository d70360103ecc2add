"""What rows a stream has: transactions as Arrow batches.

    _position    struct of ledger and entry, which sorts as the log does; with
    _sequence    the change's place in its transaction it names a change for ever
    _table       the table's name at that moment
    _kind        put, insert, update, delete, empty, drop; of many tables define, too

of one table, then

    its columns  as they are after the change; of a row that is deleted those of its key
    _before      the row as it was, if that is asked for

of many tables, as JSON by the names of columns,

    key          the columns of the primary key
    row          the row after the change, NULL where it is gone
    before       the row as it was, if that is asked for

A table that has no primary key is told with the `_pk` that names its rows. `put` sets a row whether
or not it was there: only tables that log how rows were tell `insert` from `update`. `empty` is told
before what its transaction puts into the table then.

Invariants:
- A change of one table is read with the columns that its stream was loaded with.
- Rows that a transaction wrote into a table that it emptied or dropped then are not told.
"""

import math
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from engine.log.position import Position
from herd.arrow import batch_maker
from herd.capture.interest import Interest, OneTable, shown
from herd.capture.key_values import body_of_key, key_values
from herd.catalog import decode_table
from herd.changes import Change, ChangeKind, Following
from herd.commands import Write
from herd.errors import NotSupportedError, ProgrammingError, StorageFailed
from herd.keys import TABLE, number_of
from herd.rows import encode_row
from herd.schema import Column, Table
from herd.snapshot.arrays import plain, plain_type
from herd.transaction import FRESH
from herd.types import Kind, returning

POSITION_TYPE: Final = pa.struct([("ledger", pa.int64()), ("entry", pa.int64())])
_HEAD: Final = [
    pa.field("_position", POSITION_TYPE),
    pa.field("_sequence", pa.int32()),
    pa.field("_table", pa.string()),
    pa.field("_kind", pa.string()),
]
_BEFORE: Final = "_before"


class Shape(Protocol):
    """Gathers what transactions changed, in their order. `schema` is that of its batches."""

    schema: pa.Schema
    rows: int

    def take(self, position: Position, write: Write) -> None:
        """Add a transaction."""
        ...

    def batch(self) -> pa.RecordBatch:
        """What was gathered since the last batch."""
        ...


def shape_of(interest: Interest, tables: Sequence[Table]) -> Shape:
    """The shape of a stream that begins with some definitions."""
    if isinstance(interest, OneTable):
        return TableShape(interest, tables)
    return JsonShape(interest.names, tables, before=interest.before)


class _Head:
    """The columns that all shapes have."""

    def __init__(self) -> None:
        self._ledgers: list[int] = []
        self._entries: list[int] = []
        self._sequences: list[int] = []

    def add(self, position: Position, count: int) -> None:
        """So many changes of the transaction at a position."""
        self._ledgers.extend(repeat(position.ledger, count))
        self._entries.extend(repeat(position.entry, count))
        self._sequences.extend(range(count))

    def arrays(self) -> list[pa.Array]:
        """Positions and sequences."""
        places = [pa.array(self._ledgers, pa.int64()), pa.array(self._entries, pa.int64())]
        position = pa.StructArray.from_arrays(places, fields=list(POSITION_TYPE))
        return [position, pa.array(self._sequences, pa.int32())]


class TableShape:
    """Changes of one table, in its own columns."""

    def __init__(self, interest: OneTable, tables: Sequence[Table]) -> None:
        self._interest = interest
        self._now = next((one for one in tables if one.id == interest.table.id), None)
        self._body_of_key = body_of_key(interest.table)
        self._nothing = FRESH + encode_row([None] * interest.table.width)
        columns = interest.table.columns
        self._batch_of = batch_maker(interest.table, columns, hidden=False)
        self.schema = table_schema(interest)
        self._types = [plain_type(column.type) for column in columns]
        self._clear()

    def take(self, position: Position, write: Write) -> None:
        """Add a transaction. Raises `NotSupportedError` where it does not tell how rows were."""
        count = len(self._kinds)
        if any(key.startswith(TABLE) for key, _ in write.plain):
            self._define(write)
        table = self._now
        if table is not None:
            prefix = table.prefix
            found = [change for change in write.rows if change[0].startswith(prefix)]
            if table.full_changes:
                self._add_with_before(position, found, dict(write.before))
            else:
                self._add(position, found)
        added = len(self._kinds) - count
        self.rows += added
        self._head.add(position, added)
        self._names.extend(repeat(table.name if table is not None else self._name, added))

    def batch(self) -> pa.RecordBatch:
        """What was gathered since the last batch. Raises `StorageFailed` for rows of no sense."""
        table = self._interest.table
        try:
            arrays = [
                *self._head.arrays(),
                pa.array(self._names, pa.string()),
                pa.array(self._kinds, pa.string()),
                *self._arrays(self._after),
            ]
            if self._interest.before:
                missing = [value is None for value in self._before]
                values = [self._nothing if value is None else value for value in self._before]
                struct = self.schema.field(_BEFORE).type
                mask = pa.array(missing, pa.bool_())
                before = self._arrays(values)
                arrays.append(pa.StructArray.from_arrays(before, fields=list(struct), mask=mask))
        except (pa.ArrowException, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise StorageFailed(
                f"table {table.name}: changed rows do not fit its columns: {error}",
                hint="begin with start=latest, or at a position after the columns changed",
            ) from error
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _clear(self) -> None:
        self.rows = 0
        self._head = _Head()
        self._names: list[str] = []
        self._kinds: list[str] = []
        self._after: list[bytes] = []
        self._before: list[bytes | None] = []

    @property
    def _name(self) -> str:
        return self._interest.table.name

    def _define(self, write: Write) -> None:
        """Take the table's new definition; tell whether the rows that it had are gone."""
        then = self._now
        for key, value in write.plain:
            if key.startswith(TABLE) and number_of(key) == self._interest.table.id:
                self._now = None if value is None else decode_table(value)
        if then is None or (self._now is not None and self._now.store == then.store):
            return
        kind = ChangeKind.DROP if self._now is None else ChangeKind.EMPTY
        self._kinds.append(kind.value)
        self._after.append(self._nothing)
        self._before.append(None)

    def _add(self, position: Position, found: Sequence[tuple[bytes, bytes | None]]) -> None:
        if found and self._interest.before:
            raise not_told(self._name, position)
        for key, row in found:
            self._kinds.append("delete" if row is None else "put")
            self._after.append(FRESH + (self._body_of_key(key) if row is None else row))

    def _add_with_before(
        self,
        position: Position,
        found: Sequence[tuple[bytes, bytes | None]],
        before: dict[bytes, bytes | None],
    ) -> None:
        for key, row in found:
            if key not in before:
                self._add(position, [(key, row)])
                self._before.append(None)
                continue
            old = before[key]
            if row is None:
                self._kinds.append("delete")
            else:
                self._kinds.append("insert" if old is None else "update")
            self._after.append(FRESH + (self._body_of_key(key) if row is None else row))
            self._before.append(None if old is None else FRESH + old)

    def _arrays(self, values: Sequence[bytes]) -> list[pa.Array]:
        batch = self._batch_of([(b"", value) for value in values])
        return [plain(array, kind) for array, kind in zip(batch.columns, self._types, strict=True)]


class JsonShape:
    """Changes of many tables, rows as JSON."""

    def __init__(self, names: frozenset[str], tables: Sequence[Table], *, before: bool) -> None:
        self._following = Following(tables, set(names))
        self._with_before = before
        self._encoders: dict[int, tuple[Table, Callable[[Change], str]]] = {}
        self.schema = json_schema(before=before)
        self._clear()

    def take(self, position: Position, write: Write) -> None:
        """Add a transaction. Raises `StorageFailed`, `NotSupportedError`."""
        found = self._following.take(write)
        self.rows += len(found)
        self._head.add(position, len(found))
        for change in found:
            named, row, old = change.table.name, change.row, change.before
            self._names.append(named)
            self._kinds.append(change.kind.value)
            self._keys.append(self._key_of(change) if change.key else None)
            self._after.append(None if row is None else row_json(change.table.columns, row))
            if self._with_before:
                untold = change.kind is ChangeKind.DELETE and old is None
                if untold or change.kind is ChangeKind.PUT:
                    raise not_told(named, position)
                self._before.append(None if old is None else row_json(change.table.columns, old))

    def batch(self) -> pa.RecordBatch:
        """What was gathered since the last batch."""
        told = [self._names, self._kinds, self._keys, self._after]
        if self._with_before:
            told.append(self._before)
        arrays = [*self._head.arrays(), *[pa.array(column, pa.string()) for column in told]]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _clear(self) -> None:
        self.rows = 0
        self._head = _Head()
        self._names: list[str | None] = []
        self._kinds: list[str | None] = []
        self._keys: list[str | None] = []
        self._after: list[str | None] = []
        self._before: list[str | None] = []

    def _key_of(self, change: Change) -> str:
        table = change.table
        known = self._encoders.get(table.id)
        if known is None or known[0] is not table:
            known = self._encoders[table.id] = (table, _key_encoder(table))
        return known[1](change)


def table_schema(interest: OneTable) -> pa.Schema:
    """The schema of a stream of one table. Raises `ProgrammingError` for a name that is taken."""
    columns = interest.table.columns
    own = [pa.field(column.name, plain_type(column.type)) for column in columns]
    taken = {field.name for field in _HEAD} | {_BEFORE}
    for column in columns:
        if column.name.lower() in taken:
            raise ProgrammingError(
                f"table {interest.table.name}: a stream has a {column.name} of its own",
                hint=f"rename the column, or read it as JSON with tables={interest.table.name}",
            )
    before = [pa.field(_BEFORE, pa.struct(own))] if interest.before else []
    return pa.schema([*_HEAD, *own, *before])


def json_schema(*, before: bool) -> pa.Schema:
    """The schema of a stream of many tables."""
    names = ["key", "row", "before"] if before else ["key", "row"]
    return pa.schema([*_HEAD, *[pa.field(name, pa.string()) for name in names]])


def not_told(name: str, position: Position) -> Exception:
    """Why a stream of rows as they were cannot tell a change."""
    return NotSupportedError(
        f"table {name} did not log rows as they were before at {shown(position)}",
        hint=f"begin with a start at which it did: after {shown(position)}",
    )


def row_json(columns: Sequence[Column], row: dict[str, Any]) -> str:
    """A row as JSON: numbers exactly, bytes as base64, JSON as it is, NaN and infinity as text.

    >>> from decimal import Decimal
    >>> from herd.types import ColumnType
    >>> price = Column(0, "price", ColumnType(Kind.DECIMAL, 10, 2))
    >>> row_json([price], {"price": Decimal("1.50")})
    '{"price":1.50}'
    """
    told = {column.name: _json_value(column, row[column.name]) for column in columns}
    return _encode(told).decode()


_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


def _json_value(column: Column, value: Any) -> Any:
    kind = column.type.kind
    if kind in (Kind.REAL, Kind.DOUBLE):
        return _json_float(value)
    if kind is Kind.FLOATS and value is not None:
        return [_json_float(one) for one in value]
    if kind is Kind.JSON and value is not None:
        return msgspec.Raw(value.encode())
    return value


def _json_float(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _key_encoder(table: Table) -> Callable[[Change], str]:
    columns = [table.by_number[number] for number in table.primary]
    converts = [returning(column.type) for column in columns]
    values = key_values(table)

    def encode(change: Change) -> str:
        told = {
            column.name: value if convert is None else convert(value)
            for column, convert, value in zip(columns, converts, values(change.key), strict=True)
        }
        return row_json(columns, told)

    return encode
