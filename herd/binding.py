"""A table as keys and values see it: everything that a call needs, worked out once.

Invariants:
- It is of one catalog: who holds it looks whether that is still the tablespace's.
- `get` may be called in any thread: it looks at nothing that changes but the row itself.
- Only tables with defaults or checks load what SQL needs.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from herd.catalog import Catalog
from herd.changing import Verify
from herd.errors import DataError, NotNullViolation, ProgrammingError
from herd.keys import encoder, key_encoder, successor
from herd.rows import Row, row_reader
from herd.schema import Column
from herd.types import Kind, Stored, accepting, returning

if TYPE_CHECKING:
    from herd.tablespace import Tablespace

Key = Any
"""The value of a primary key, or a tuple of them where it has several columns."""
RowDict = dict[str, Any]
Default = Callable[[Row, Sequence[Any]], Stored]


class BoundTable:
    """One table of one catalog."""

    def __init__(self, space: "Tablespace", name: str, catalog: Catalog | None = None) -> None:
        """Raises `NoSuchTable`, `NotSupportedError` for a view."""
        self.catalog = space.catalog if catalog is None else catalog
        self.table = self.catalog.table(name)
        table = self.table
        self.plan = self.catalog.plan(table)
        self.verify: Verify | None = _verify(self)
        self._clock = space.clock
        self._names = [column.name for column in table.visible]
        self._read = row_reader(table.visible)
        self._decode = self.plan.decode
        self._accept = [
            (column.number, accepting(column.type), f"{table.name}.{column.name}")
            for column in (table.by_number[number] for number in table.primary)
        ]
        self._defaults = _defaults(self)
        self.key: Callable[[Key], bytes] = self._one_key() if len(self._accept) == 1 else self._keys
        rows_get, key_of, decode = space.rows_get, self.key, self._decode
        names, read = self._names, self._read

        def get_row(key: Key) -> tuple[Any, ...] | None:
            value = rows_get(key_of(key))
            return None if value is None else read(decode(value))

        def get(key: Key) -> RowDict | None:
            value = rows_get(key_of(key))
            return None if value is None else dict(zip(names, read(decode(value)), strict=True))

        def get_plain(key: Key) -> RowDict | None:
            value = rows_get(key_of(key))
            # Each row is as long as there are names: the decoder fills it.
            return None if value is None else dict(zip(names, decode(value)))  # noqa: B905

        plain = [column.number for column in table.visible] == list(range(table.width))
        plain = plain and all(returning(column.type) is None for column in table.visible)
        self.get_row = get_row
        self.get = get_plain if plain else get

    def _one_key(self) -> Callable[[Key], bytes]:
        number, accept, name = self._accept[0]
        encode, prefix = encoder(self.table.by_number[number].type), self.plan.prefix
        if self.table.by_number[number].type.kind in (Kind.VARCHAR, Kind.BLOB):
            # These check that the key has room for them.
            several = self.plan.encode_primary

            def encode(value: Any) -> bytes:
                return several((value,))

        def key_of(key: Key) -> bytes:
            try:
                return prefix + encode(accept(key))
            except DataError as error:
                if type(key) is tuple and len(key) == 1:
                    return prefix + encode(_accepted(accept, key[0], name))
                raise _about(name, error) from None

        return key_of

    def _keys(self, key: Key) -> bytes:
        if not isinstance(key, tuple | list) or len(key) != len(self._accept):
            raise ProgrammingError(
                f"a key of {self.table.name} has {len(self._accept)} values", hint="give a tuple"
            )
        values = [
            _accepted(accept, value, name)
            for value, (_, accept, name) in zip(key, self._accept, strict=True)
        ]
        return self.plan.prefix + self.plan.encode_primary(values)

    def key_of(self, row: Row) -> bytes:
        """The whole key of a row of stored values. Raises `NotNullViolation`."""
        for number, _, name in self._accept:
            if row[number] is None:
                raise NotNullViolation(f"{name} may not be NULL")
        return self.plan.key_of(row)

    def as_dict(self, value: bytes) -> RowDict:
        """A row with its position in front, as values by column."""
        return self.row_dict(self._decode(value))

    def row_dict(self, row: Row) -> RowDict:
        """A row of stored values, as values by column."""
        return dict(zip(self._names, self._read(row), strict=True))

    def row(self, given: Mapping[str, Any]) -> Row:
        """The stored values of a row that is given by column; what is not takes its default.

        An AUTO_INCREMENT column that is not given is None. Raises `NoSuchColumn`, `DataError`.
        """
        row: Row = [None] * self.plan.width
        self._assign(row, given)
        if self._defaults:
            moment = (datetime.datetime.fromtimestamp(self._clock.wall_ms() / 1000, datetime.UTC),)
            named = {name.lower() for name in given}
            for number, name, default in self._defaults:
                if name not in named:
                    row[number] = default(row, moment)
        return row

    def assigning(self, changes: Mapping[str, Any]) -> Callable[[Row], Row]:
        """What makes a changed copy of a row. Raises `NoSuchColumn`, `DataError`."""
        pairs: dict[int, Stored] = {}
        self._assign(pairs, changes)

        def assign(before: Row) -> Row:
            after = before.copy()
            for number, value in pairs.items():
                after[number] = value
            return after

        return assign

    def range(
        self, first: Key | None, last: Key | None, prefix: Sequence[Any] | str | bytes | None
    ) -> tuple[bytes, bytes]:
        """From which whole key on, and under which one."""
        start = self.plan.prefix if prefix is None else self._beginning(prefix)
        begin, end = start, successor(start)
        if first is not None:
            begin = max(begin, self._partial(first))
        if last is not None:
            end = min(end, successor(self._partial(last)))
        return begin, end

    def _assign(self, row: Row | dict[int, Stored], given: Mapping[str, Any]) -> None:
        by_name, accept_of = self.table.by_name, self.plan.accept
        for name, value in given.items():
            column = by_name.get(name) or self.table.column(name)
            number = column.number
            if value is None:
                row[number] = None
                continue
            try:
                row[number] = accept_of[number](value)
            except DataError as error:
                raise _about(f"{self.table.name}.{column.name}", error) from None

    def _partial(self, key: Key) -> bytes:
        """The key of values of the first columns, or of all."""
        values = list(key) if isinstance(key, tuple | list) else [key]
        if len(values) > len(self._accept):
            raise ProgrammingError(f"a key of {self.table.name} has {len(self._accept)} values")
        columns = [self.table.by_number[number] for number in self.table.primary[: len(values)]]
        stored = [
            _accepted(accept, value, name)
            for value, (_, accept, name) in zip(values, self._accept, strict=False)
        ]
        types = tuple(column.type for column in columns)
        return self.plan.prefix + key_encoder(types, (False,) * len(types))(stored)

    def _beginning(self, prefix: Sequence[Any] | str | bytes) -> bytes:
        """What the keys begin with; of the text that comes last, only its beginning is given."""
        if isinstance(prefix, str | bytes):
            prefix = (prefix,)
        whole, last = tuple(prefix[:-1]), prefix[-1]
        number = self.table.primary[min(len(whole), len(self._accept) - 1)]
        if self.table.by_number[number].type.kind not in (Kind.VARCHAR, Kind.BLOB):
            return self._partial(tuple(prefix))
        before = self._partial(whole) if whole else self.plan.prefix
        data = last.encode() if isinstance(last, str) else bytes(last)
        return before + data.replace(b"\x00", b"\x00\xff")


def _accepted(accept: Callable[[Any], Any], value: Any, name: str) -> Any:
    try:
        return accept(value)
    except DataError as error:
        raise _about(name, error) from None


def _about(name: str, error: DataError) -> DataError:
    return type(error)(f"{name}: {error.message}", hint=error.hint)


def _verify(bound: BoundTable) -> Verify | None:
    if not bound.table.checks:
        return None
    from herd.sql.statement import verifier

    return verifier(bound.table)


def _defaults(bound: BoundTable) -> list[tuple[int, str, Default]]:
    table = bound.table
    columns: list[Column] = [column for column in table.columns if column.default]
    if not columns:
        return []
    from herd.sql.defaults import default_store

    found = [(column, default_store(table, column)) for column in columns]
    return [
        (column.number, column.name.lower(), default)
        for column, default in found
        if default is not None
    ]
