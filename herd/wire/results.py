"""Results on their way: short ones as rows, those of queries as pieces of Arrow.

Invariants:
- A piece is a whole Arrow IPC stream: each can be read by itself, and holds a row at least unless
  it is the only one.
- What a client reads has the columns, types and values of the result as the server had it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from herd.sql.result import LazyRows, Result, ResultColumn
from herd.translating import translating_all
from herd.wire.messages import Columns, Rows, Table, decode_columns, encode
from herd.wire.values import packed

if TYPE_CHECKING:
    import pyarrow

_KNOWN_MAX: Final = 4_096
_PLAIN: Final = frozenset((type(None), bool, float, str, bytes))


class ColumnsPacked:
    """The columns of results as bytes: those of one prepared statement are packed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Sequence[ResultColumn], bytes]] = {}

    def __call__(self, columns: Sequence[ResultColumn]) -> bytes:
        """The bytes of some columns."""
        found = self._known.get(id(columns))
        # The columns are kept with their bytes, so that no others get their identity.
        if found is not None and found[0] is columns:
            return found[1]
        made = encode([(column.name, column.type) for column in columns])
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[id(columns)] = (columns, made)
        return made


class ColumnsRead:
    """The way back, each once, too."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[ResultColumn, ...]] = {}

    def __call__(self, data: bytes) -> tuple[ResultColumn, ...]:
        """The columns of some bytes. Raises what decoding raises."""
        found = self._known.get(data)
        if found is None:
            told: Columns = decode_columns(data) if data else []
            found = tuple(ResultColumn(name, kind) for name, kind in told)
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[data] = found
        return found


def rows_packed(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Rows as MessagePack takes them."""
    return [
        row if _PLAIN.issuperset(map(type, row)) else [packed(value) for value in row]
        for row in rows
    ]


class Pieces:
    """A result of a query, cut. `next` makes its pieces, in any thread, one after the other."""

    def __init__(self, table: "pyarrow.Table", piece_bytes: int) -> None:
        self.size_bytes = int(table.nbytes)
        self.asked_s = 0.0
        """When somebody asked for a piece the last time."""
        self.cutting = False
        """Whether a piece is being made."""
        self.user = ""
        """Whose share of the server's room it takes."""
        self._schema = table.schema
        rows = max(table.num_rows, 1)
        rows_max = max(1, piece_bytes * rows // max(self.size_bytes, 1))
        # Batches of a result may be small: a piece has as many rows as it has room for.
        batches = table.combine_chunks().to_batches(max_chunksize=rows_max)
        self._batches = [batch for batch in batches if batch.num_rows]
        self._next = 0

    @property
    def more(self) -> bool:
        """Whether there are rows that no piece held yet."""
        return self._next < len(self._batches)

    def next(self) -> bytes:
        """The next piece; one without rows if there are none."""
        import pyarrow

        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, self._schema) as stream:
            if self.more:
                stream.write_batch(self._batches[self._next])
                # What was sent is not kept.
                self._batches[self._next] = None
                self._next += 1
        data: bytes = sink.getvalue().to_pybytes()
        return data


def table_of(result: Result) -> "pyarrow.Table":
    """Rows that were found without the query engine, as Arrow."""
    import pyarrow

    from herd.arrow import arrow_type

    names = [column.name for column in result.columns]
    kinds = [None if column.type is None else arrow_type(column.type) for column in result.columns]
    columns = zip(*result.rows, strict=True) if result.rows else [()] * len(names)
    with translating_all():
        arrays = [
            pyarrow.array(list(values), kind) for values, kind in zip(columns, kinds, strict=True)
        ]
        return pyarrow.Table.from_arrays(arrays, names=names)


def arrow_of(pieces: Sequence[bytes]) -> "pyarrow.Table":
    """The table of all pieces of a result."""
    import pyarrow

    with translating_all():
        tables = [pyarrow.ipc.open_stream(piece).read_all() for piece in pieces]
        return tables[0] if len(tables) == 1 else pyarrow.concat_tables(tables)


def result_of_rows(told: Rows, columns: Callable[[bytes], tuple[ResultColumn, ...]]) -> Result:
    """A short result."""
    return Result(columns(told.columns), told.rows, told.count, told.last_id, told.kind)


def result_of_table(
    told: Table,
    columns: Callable[[bytes], tuple[ResultColumn, ...]],
    pieces: Sequence[bytes],
) -> Result:
    """A query's result, from all of its pieces."""
    from herd.arrow import python_rows

    table = arrow_of(pieces)
    rows = LazyRows(table.num_rows, lambda: python_rows(table))
    return Result(columns(told.columns), rows, told.count, None, told.kind, table)
