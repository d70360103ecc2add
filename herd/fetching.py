"""What cursors share: a result, and how far it was fetched.

Invariants:
- Rows come in the order of the result, each once.
- Before a statement, and after one that answers no rows, fetching raises `ProgrammingError`.
- A closed cursor raises `InterfaceError`, whatever is asked of it.
- Of a result in columns only the page that is fetched is made into Python values.
"""

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from herd.errors import InterfaceError, NotSupportedError, ProgrammingError
from herd.translating import translating_all
from herd.types import Kind

if TYPE_CHECKING:
    import pyarrow

    from herd.sql.result import Result, ResultColumn

Row = tuple[Any, ...]
Described = tuple[str, str | None, None, None, int | None, int | None, None]
"""Name, kind of type, and for a DECIMAL its digits and those after the point."""

PAGE_ROWS: Final = 2_000
BATCH_ROWS: Final = 65_536
_COUNTED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
_INTEGERS: Final = {Kind.TINYINT: 3, Kind.SMALLINT: 5, Kind.INTEGER: 10, Kind.BIGINT: 19}


class Fetching:
    """The state of a cursor. `arraysize` is how many rows `fetchmany` takes, unless it is told."""

    def __init__(self) -> None:
        self.arraysize = 1
        self._result: Result | None = None
        self._next = 0
        self._closed = False
        self._page: list[Row] = []
        self._page_start = 0

    @property
    def description(self) -> list[Described] | None:
        """The columns of the result, None where there is none."""
        result = self._result
        if result is None or not result.columns:
            return None
        return [_described(column) for column in result.columns]

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed or returned; -1 where that is not known."""
        return -1 if self._result is None else self._result.count

    @property
    def lastrowid(self) -> int | None:
        """The last AUTO_INCREMENT value that the last statement used."""
        return None if self._result is None else self._result.last_id

    @property
    def statusmessage(self) -> str | None:
        """What the last statement did, as in `UPDATE 3` or `CREATE TABLE`."""
        result = self._result
        if result is None or not result.kind:
            return None
        counted = result.kind in _COUNTED and result.count >= 0
        return f"{result.kind} {result.count}" if counted else result.kind

    @property
    def rownumber(self) -> int | None:
        """The place of the next row in the result, from 0 on; None where there is none."""
        return None if self.description is None else self._next

    def setinputsizes(self, sizes: object) -> None:
        """Required by PEP 249; parameters need no sizes."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Required by PEP 249; values come whole."""

    def _take(self, result: "Result") -> None:
        self._result = result
        self._next = 0
        self._page = []

    def _check(self) -> None:
        if self._closed:
            raise InterfaceError("the cursor is closed")

    def _forget_rows(self) -> None:
        self._closed = True
        self._page = []
        result = self._result
        if result is not None:
            self._result = replace(result, columns=(), rows=(), table=None)

    def _answered(self) -> "Result":
        self._check()
        result = self._result
        if result is None or not result.columns:
            raise ProgrammingError("there are no rows to fetch", hint="execute a query first")
        return result

    def _one(self) -> Row | None:
        result = self._answered()
        if self._next >= len(result.rows):
            return None
        if result.table is None:
            row = result.rows[self._next]
        else:
            place = self._next - self._page_start
            if not 0 <= place < len(self._page):
                self._page = self._of_columns(result.table, self._next, PAGE_ROWS)
                self._page_start, place = self._next, 0
            row = self._page[place]
        self._next += 1
        return row

    def _many(self, size: int | None) -> list[Row]:
        result = self._answered()
        count = self.arraysize if size is None else size
        if count < 0:
            raise ProgrammingError(f"{count} rows cannot be fetched")
        if result.table is None:
            rows = list(result.rows[self._next : self._next + count])
        else:
            rows = self._page[self._next - self._page_start :][:count] if self._page else []
            start, missing = self._next + len(rows), count - len(rows)
            if missing and start < len(result.rows):
                self._page = self._of_columns(result.table, start, max(missing, PAGE_ROWS))
                self._page_start = start
                rows += self._page[:missing]
        self._next += len(rows)
        return rows

    def _all(self) -> list[Row]:
        result = self._answered()
        if result.table is not None:
            return self._many(len(result.rows) - self._next)
        rows = list(result.rows[self._next :] if self._next else result.rows)
        self._next += len(rows)
        return rows

    def _of_columns(self, table: "pyarrow.Table", start: int, count: int) -> list[Row]:
        from herd.arrow import python_rows

        return python_rows(table.slice(start, count))

    def _arrow(self) -> "pyarrow.Table":
        """The rows that are left, in columns."""
        result = self._answered()
        with translating_all():
            table = result.table if result.table is not None else _in_columns(result)
        table, self._next = table.slice(self._next), table.num_rows
        return table

    def _batches(self, batch_rows: int) -> "pyarrow.RecordBatchReader":
        if batch_rows < 1:
            raise ProgrammingError(f"a batch has no {batch_rows} rows")
        import pyarrow

        table = self._arrow()
        return pyarrow.RecordBatchReader.from_batches(
            table.schema, table.to_batches(max_chunksize=batch_rows)
        )


def _in_columns(result: "Result") -> "pyarrow.Table":
    """Rows as the query engine would have answered them: UUIDs and JSON are text, and say so."""
    import pyarrow

    from herd.arrow import KIND, arrow_type

    columns = zip(*result.rows, strict=True) if result.rows else [()] * len(result.columns)
    fields, arrays = [], []
    for column, values in zip(result.columns, columns, strict=True):
        kind, told = column.type, None
        if kind is not None and kind.kind in (Kind.UUID, Kind.JSON):
            told = {KIND: kind.kind.value.encode()}
            values = tuple([None if value is None else str(value) for value in values])
        wanted = pyarrow.string() if told else None if kind is None else arrow_type(kind)
        arrays.append(pyarrow.array(list(values), wanted))
        fields.append(pyarrow.field(column.name, arrays[-1].type, metadata=told))
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))


def data_frame(table: "pyarrow.Table") -> Any:
    """Columns as a data frame of pandas. Raises `NotSupportedError` where that is missing."""
    _installed("pandas")
    with translating_all():
        return _storable(table).to_pandas()


def polars_frame(table: "pyarrow.Table") -> Any:
    """Columns as a data frame of polars. Raises `NotSupportedError` where that is missing."""
    polars = _installed("polars")
    with translating_all():
        return polars.from_arrow(_storable(table))


def _installed(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise NotSupportedError(f"{name} is not installed", hint=f"pip install {name}") from None


def _storable(table: "pyarrow.Table") -> "pyarrow.Table":
    """Columns without Arrow's extension types, of which data frames know little."""
    import pyarrow

    arrays = []
    for column in table.columns:
        if isinstance(column.type, pyarrow.BaseExtensionType):
            storage = [chunk.storage for chunk in column.chunks]
            column = pyarrow.chunked_array(storage, column.type.storage_type)
        arrays.append(column)
    return pyarrow.Table.from_arrays(arrays, names=table.column_names)


def _described(column: "ResultColumn") -> Described:
    kind = column.type
    if kind is None:
        return (column.name, None, None, None, None, None, None)
    precision = kind.size if kind.kind is Kind.DECIMAL else _INTEGERS.get(kind.kind)
    scale = kind.scale if kind.kind is Kind.DECIMAL else None
    return (column.name, kind.kind.value, None, None, precision, scale, None)
