"""One batch of a table's rows as a compressed Arrow stream, and back.

The stream's buffers are compressed by zstd. Columns are named by their numbers, for names may
change: `0`, `1`, …, then `_key` (without the table's prefix) and `_position`.

Invariants:
- Only the columns that are asked for are unpacked.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from herd.arrow import KEY
from herd.schema import Table

if TYPE_CHECKING:
    import pyarrow

KeyValue = tuple[bytes, bytes]
_COMPRESSION_LEVEL: Final = 1


def pack(table: Table, batch: "pyarrow.RecordBatch") -> bytes:
    """A batch of a table's rows, whose columns have their names of now."""
    import pyarrow as pa

    numbers = {column.name: str(column.number) for column in table.columns}
    batch = batch.rename_columns([numbers.get(name, name) for name in batch.schema.names])
    sink = pa.BufferOutputStream()
    codec = pa.Codec("zstd", compression_level=_COMPRESSION_LEVEL)
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    blob: bytes = sink.getvalue().to_pybytes()
    return blob


def unpack(blob: bytes, wanted: Sequence[str] | None = None) -> "pyarrow.RecordBatch":
    """The batch of a blob: all columns, or those of the wanted ones that it has.

    Without any of them the keys tell how many rows there are. Raises Arrow's errors.
    """
    import pyarrow as pa

    if wanted is None:
        with pa.ipc.open_stream(blob) as stream:
            return stream.read_next_batch()
    with pa.ipc.open_stream(blob) as stream:
        places = {name: place for place, name in enumerate(stream.schema.names)}
    there = [places[name] for name in wanted if name in places]
    options = pa.ipc.IpcReadOptions(included_fields=there or [places[KEY]])
    with pa.ipc.open_stream(blob, options=options) as stream:
        return stream.read_next_batch()
