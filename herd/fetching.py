"""What cursors share: a result, and how far it was fetched.

Invariants:
- Rows come in the order of the result, each once.
- Before a statement, and after one that answers no rows, fetching raises `ProgrammingError`.
- A closed cursor raises `InterfaceError`, whatever is asked of it.
"""

from typing import TYPE_CHECKING, Any, Final

from herd.errors import InterfaceError, ProgrammingError
from herd.types import Kind

if TYPE_CHECKING:
    import pyarrow

    from herd.sql.result import Result, ResultColumn

Row = tuple[Any, ...]
Described = tuple[str, str | None, None, None, int | None, int | None, None]
"""Name, kind of type, and for a DECIMAL its digits and those after the point."""

_INTEGERS: Final = {Kind.TINYINT: 3, Kind.SMALLINT: 5, Kind.INTEGER: 10, Kind.BIGINT: 19}


class Fetching:
    """The state of a cursor. `arraysize` is how many rows `fetchmany` takes, unless it is told."""

    def __init__(self) -> None:
        self.arraysize = 1
        self._result: Result | None = None
        self._next = 0
        self._closed = False

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

    def _check(self) -> None:
        if self._closed:
            raise InterfaceError("the cursor is closed")

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
        row = result.rows[self._next]
        self._next += 1
        return row

    def _many(self, size: int | None) -> list[Row]:
        result = self._answered()
        end = self._next + (self.arraysize if size is None else size)
        rows = list(result.rows[self._next : end])
        self._next += len(rows)
        return rows

    def _all(self) -> list[Row]:
        result = self._answered()
        rows = list(result.rows[self._next :] if self._next else result.rows)
        self._next += len(rows)
        return rows

    def _arrow(self) -> "pyarrow.Table":
        result = self._answered()
        if result.table is not None:
            return result.table
        import pyarrow

        from herd.arrow import arrow_type

        names = [column.name for column in result.columns]
        types = [
            None if column.type is None else arrow_type(column.type) for column in result.columns
        ]
        columns = zip(*result.rows, strict=True) if result.rows else [()] * len(names)
        arrays = [
            pyarrow.array(list(values), kind) for values, kind in zip(columns, types, strict=True)
        ]
        return pyarrow.Table.from_arrays(arrays, names=names)


def _described(column: "ResultColumn") -> Described:
    kind = column.type
    if kind is None:
        return (column.name, None, None, None, None, None, None)
    precision = kind.size if kind.kind is Kind.DECIMAL else _INTEGERS.get(kind.kind)
    scale = kind.scale if kind.kind is Kind.DECIMAL else None
    return (column.name, kind.kind.value, None, None, precision, scale, None)
