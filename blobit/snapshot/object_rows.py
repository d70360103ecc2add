"""Rows that objects hold: JSON, a value a line, or Parquet, a row group at a time.

Invariants:
- Columns are those of the schema that was asked for, in its types. What an object does not have is
  NULL; what it has besides is not read. A value that does not fit is an error that names it.
- Of a big object each share reads its own lines, or its own row groups.
"""

import io
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from blobit.errors import BlobCorrupt
from blobit.object_id import ObjectId
from blobit.snapshot.names import Objects
from blobit.snapshot.planning import Share
from blobit.snapshot.reading import ShareReader
from engine.limits import MIB

_WHOLE_BYTES_MAX: Final = 16 * MIB
_INFERRED_BYTES: Final = 4 * MIB


def json_batches(reader: ShareReader, share: Share, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The JSON values of a share. Raises `BlobCorrupt` for what is none."""
    objects = reader.objects(share)
    for block in reader.blocks(share, objects):
        what = f"object {objects.name(block.number)}, lines from byte {block.offset} on"
        try:
            table = _json(block.data, schema)
        except pa.ArrowException as error:
            raise BlobCorrupt(f"{what}: {_one_line(error)}") from error
        yield from _in_schema(table, schema, what)


def parquet_batches(
    reader: ShareReader, share: Share, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of a share's Parquet files. Raises `BlobCorrupt` for what is none."""
    import pyarrow.parquet as pq

    objects = reader.objects(share)
    for number, object_id in enumerate(objects.ids):
        # Whoever wrote the others may have left a mark without bytes beside them.
        if not object_id.length:
            continue
        what = f"object {objects.name(number)}"
        with reader.telling(objects, number), _ParquetErrors(what):
            file = pq.ParquetFile(_file(reader, objects, number))
            there = set(file.schema_arrow.names)
            names = [name for name in schema.names if name in there]
            groups = [
                *range(
                    file.num_row_groups * share.part // share.parts,
                    file.num_row_groups * (share.part + 1) // share.parts,
                )
            ]
            if not groups:
                continue
            for batch in file.iter_batches(row_groups=groups, columns=names, use_threads=False):
                yield from _in_schema(pa.Table.from_batches([batch]), schema, what)


def inferred_schema(reader: ShareReader, share: Share, *, is_json: bool) -> pa.Schema | None:
    """The columns of the first object of a share; None if it has none. Raises `BlobCorrupt`."""
    import pyarrow.parquet as pq

    objects = reader.objects(share)
    for number, object_id in enumerate(objects.ids):
        if not object_id.length:
            continue
        what = f"object {objects.name(number)}"
        with reader.telling(objects, number), _ParquetErrors(what):
            if not is_json:
                return pq.read_schema(_file(reader, objects, number)).remove_metadata()
            begin = reader.span(object_id, 0, min(object_id.length, _INFERRED_BYTES))
            lines = begin[: begin.rfind(b"\n") + 1] or begin
            return _json(lines, None).schema
    return None


class _ParquetErrors:
    """Arrow's errors, told of an object."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, pa.ArrowException):
            raise BlobCorrupt(f"{self._what}: {_one_line(error)}") from error


def _json(data: bytes, schema: pa.Schema | None) -> pa.Table:
    import pyarrow.json as pj

    # A block is one unit: no value of it is cut.
    read = pj.ReadOptions(use_threads=False, block_size=max(len(data), 1))
    parse = pj.ParseOptions(
        explicit_schema=schema,
        unexpected_field_behavior="infer" if schema is None else "ignore",
    )
    return pj.read_json(pa.BufferReader(data), read_options=read, parse_options=parse)


def _in_schema(table: pa.Table, schema: pa.Schema, what: str) -> Iterator[pa.RecordBatch]:
    arrays = []
    for field in schema:
        if field.name not in table.column_names:
            arrays.append(pa.nulls(table.num_rows, field.type))
            continue
        found = table.column(field.name)
        try:
            arrays.append(found if found.type == field.type else found.cast(field.type))
        except pa.ArrowException as error:
            raise BlobCorrupt(
                f"{what}: column {field.name} is {found.type}, not {field.type}: {_one_line(error)}"
            ) from error
    yield from pa.Table.from_arrays(arrays, schema=schema).to_batches()


def _file(reader: ShareReader, objects: Objects, number: int) -> "pa.NativeFile":
    object_id = objects.ids[number]
    if object_id.length > _WHOLE_BYTES_MAX:
        return pa.PythonFile(_ObjectFile(reader, object_id), mode="r")
    (row,) = reader.bodies(objects, [number])
    return pa.BufferReader(b"".join(row.pieces[0]))


class _ObjectFile(io.RawIOBase):
    """An object as a file that is read here and there."""

    def __init__(self, reader: ShareReader, object_id: ObjectId) -> None:
        self._reader = reader
        self._object_id = object_id
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._object_id.length}
        self._at = base[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        length = self._object_id.length
        end = length if size < 0 else min(self._at + size, length)
        data = self._reader.span(self._object_id, self._at, max(0, end - self._at))
        self._at += len(data)
        return data


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
