"""The least that a Python source of Spark can do: it maps Arrow files and hands out batches."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType


class MappedSource(DataSource):
    """`format("mapped")`, whose option `folder` has Arrow files, one a partition."""

    @classmethod
    def name(cls) -> str:
        """What `format` is told."""
        return "mapped"

    def schema(self) -> StructType:
        """The schema of the first file."""
        first = _files(self.options["folder"])[0]
        with pa.memory_map(str(first)) as mapped:
            found: StructType = from_arrow_schema(pa.ipc.open_file(mapped).schema)
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads the files."""
        return MappedReader(self.options["folder"])


class MappedReader(DataSourceReader):
    """Reads Arrow files without a copy."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        """A partition a file."""
        return [InputPartition(str(file)) for file in _files(self._folder)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a file."""
        file = pa.ipc.open_file(pa.memory_map(partition.value))
        for place in range(file.num_record_batches):
            yield file.get_batch(place)


def _files(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("*.arrow"))
