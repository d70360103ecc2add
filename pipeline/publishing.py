"""Folders of output that are seen whole or not at all, wherever Spark can write.

    with output(spark, "/data/cows") as (folder, name):
        frame.write.parquet(name)                 # beside it, hidden
        folder.publish(name, "/data/cows")        # one rename

A name that begins with a dot or an underscore is seen by no reader of Parquet.

Invariants:
- What is not finished lies in a hidden folder, and goes when its writer fails.
- Publishing is one rename of the file system: atomic on a disk and in HDFS; an object store that
  copies instead shows files one by one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.errors import FolderTaken

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTE: Final = "_herdbook.json"
"""The file beside the data that says what it is."""


class Draft(NamedTuple):
    """A hidden folder to write into, and the folder that it is to be."""

    folders: "Folders"
    hidden: str
    target: str

    def publish(self, note: bytes, *, replace: bool = False) -> None:
        """Show it, with a note. Raises `FolderTaken` if something is there, unless `replace`.

        Replaced, the old folder is out of sight for a moment before the new one is seen.
        """
        folders = self.folders
        folders.write(f"{self.hidden}/{NOTE}", note)
        if not folders.exists(self.target):
            folders.rename(self.hidden, self.target)
            return
        if not replace:
            raise FolderTaken(f"{self.target} is there: name another folder, or let it be replaced")
        old = _hidden_beside(self.target)
        folders.rename(self.target, old)
        try:
            folders.rename(self.hidden, self.target)
        except BaseException:
            folders.rename(old, self.target)
            raise
        folders.remove(old)


class File(NamedTuple):
    """A file by its full name; when it was last changed, in milliseconds."""

    name: str
    length: int
    changed_ms: int


class Folders:
    """The file systems that a session of Spark reaches, by paths or urls."""

    def __init__(self, spark: "SparkSession") -> None:
        self._java: Any = spark._jvm
        self._settings: Any = spark._jsc.hadoopConfiguration()

    @contextmanager
    def draft(self, target: str) -> Iterator[Draft]:
        """A draft of a folder; what is not published goes at the end of the block."""
        draft = Draft(self, _hidden_beside(target), target)
        try:
            yield draft
        finally:
            self.remove(draft.hidden)

    def absolute(self, name: str) -> str:
        """The full name of a folder or file, as Spark shows it in the paths of files."""
        system, path = self._at(name)
        return str(system.makeQualified(path).toString())

    def exists(self, name: str) -> bool:
        """Whether something is there."""
        system, path = self._at(name)
        return bool(system.exists(path))

    def is_folder(self, name: str) -> bool:
        """Whether it is a folder."""
        system, path = self._at(name)
        return bool(system.exists(path)) and bool(system.getFileStatus(path).isDirectory())

    def names(self, name: str) -> list[str]:
        """What lies in a folder, by name; nothing in one that is not there."""
        system, path = self._at(name)
        if not system.exists(path):
            return []
        return sorted(str(found.getPath().getName()) for found in system.listStatus(path))

    def count_files(self, name: str) -> int:
        """How many files there are in a folder and those in it; 1 of a file."""
        system, path = self._at(name)
        return int(system.getContentSummary(path).getFileCount())

    def files(self, name: str) -> Iterator[File]:
        """Those files, one by one: a call into Java each."""
        system, path = self._at(name)
        found = system.listFiles(path, True)
        while found.hasNext():
            each = found.next()
            yield File(
                str(each.getPath().toString()), int(each.getLen()), int(each.getModificationTime())
            )

    def rename(self, name: str, target: str) -> None:
        """Move a folder to a name that is free. Raises `FolderTaken`."""
        system, path = self._at(name)
        if not system.rename(path, self._at(target)[1]):
            raise FolderTaken(
                f"{name} cannot be moved to {target}: see whether that can be written"
            )

    def remove(self, name: str) -> None:
        """Remove a folder with all that is in it, if it is there."""
        system, path = self._at(name)
        system.delete(path, True)

    def read(self, name: str) -> bytes | None:
        """A small file; None if it is not there."""
        system, path = self._at(name)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, content: bytes) -> None:
        """A small file, with its folder."""
        system, path = self._at(name)
        stream = system.create(path, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def _at(self, name: str) -> tuple[Any, Any]:
        path = self._java.org.apache.hadoop.fs.Path(name)
        return path.getFileSystem(self._settings), path


def _hidden_beside(target: str) -> str:
    folder, _, name = target.rstrip("/").rpartition("/")
    hidden = f".{name}.{Random().getrandbits(64):016x}"
    return f"{folder}/{hidden}" if folder or target.startswith("/") else hidden
