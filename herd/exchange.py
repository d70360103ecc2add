"""Results in files of columns that other programs read, and back: Parquet and Arrow.

    .parquet            Parquet, zstd
    .arrow, .feather    Arrow IPC files, zstd

Invariants:
- A file that is there is not overwritten, and one that could not be finished is not left there.
- Of a file that is read only some rows are in memory as Python values.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from herd.errors import DataError, NotSupportedError

if TYPE_CHECKING:
    import pyarrow

BATCH_ROWS: Final = 5_000
SUFFIXES: Final = (".parquet", ".arrow", ".feather")


def write_file(table: "pyarrow.Table", path: Path) -> int:
    """Write a result into a new file; returns how many rows. Blocks.

    Raises `NotSupportedError` for a suffix that names no format, `OSError`.
    """
    form = _form(path)
    import pyarrow

    with path.open("xb") as file:
        try:
            if form == ".parquet":
                from pyarrow import parquet

                parquet.write_table(table, file, compression="zstd")
            else:
                options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
                with pyarrow.ipc.new_file(file, table.schema, options=options) as writer:
                    writer.write_table(table)
        except BaseException:
            path.unlink()
            raise
    return int(table.num_rows)


def read_file(path: Path) -> tuple[list[str], Iterator[list[tuple[Any, ...]]]]:
    """The names of a file's columns, and its rows some at a time. Blocks.

    Raises `NotSupportedError` for a suffix that names no format, `DataError` for a file that is
    none of its kind, `OSError`.
    """
    form = _form(path)
    import pyarrow

    try:
        if form == ".parquet":
            from pyarrow import parquet

            file = parquet.ParquetFile(path)
            return file.schema_arrow.names, _rows(file.iter_batches(BATCH_ROWS), path)
        reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        return reader.schema.names, _rows(batches, path)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _rows(batches: Iterator[Any], path: Path) -> Iterator[list[tuple[Any, ...]]]:
    import pyarrow

    from herd.arrow import python_rows

    try:
        for batch in batches:
            table = pyarrow.Table.from_batches([batch])
            for start in range(0, table.num_rows, BATCH_ROWS):
                yield python_rows(table.slice(start, BATCH_ROWS))
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _form(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise NotSupportedError(
            f"{path.name} names no format", hint=f"end it with .csv, .jsonl, {', '.join(SUFFIXES)}"
        )
    return suffix
