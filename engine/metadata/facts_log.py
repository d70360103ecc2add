"""The log of a local metadata store on its disk: opened, appended to, rewritten.

Invariants:
- A file is opened for appending only after this process put it in place: a log that was found is
  rewritten first. A crash, or a sync that failed, may have left bytes in it that are readable
  today and gone after a power loss, and a batch behind such a hole would make it damage.
- A log that was found without a mark at its end is rewritten before anything of it is served.
- A sync that failed is the end of the log: it is never retried, and nothing is written after it.
- A write or a rewrite that failed leaves the old state or one nobody was told of, and the need
  for a rewrite. That replaces the whole file, so that it relies on nothing that failed before.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from engine.errors import FolderDamaged, FolderMismatch, MetadataUnavailable
from engine.limits import MIB
from engine.metadata.facts_format import (
    FILE_HEADER_BYTES,
    check_file_header,
    decode_file,
    encode_batch,
    encode_file,
)
from engine.metadata.tree import Change, Tree
from engine.ports.disk import AppendFile, Disk, RootGone

FILE: Final = "metadata.log"
REWRITE_BYTES_MIN: Final = 4 * MIB


class FactsLog:
    """The file of a local metadata store. Every method blocks; one thread at a time calls them."""

    def __init__(self, disk: Disk, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.has_mark = True
        self._disk = disk
        self._file: AppendFile | None = None
        self._size_bytes = 0
        self._long_bytes = REWRITE_BYTES_MIN
        self._sequence = 0
        self._failed = False

    @property
    def needs_rewrite(self) -> bool:
        """Whether `append` will refuse, or the file is twice as long as what it says."""
        return self._file is None or self._size_bytes > self._long_bytes

    def append(self, changes: Sequence[Change]) -> bool:
        """Write and sync a batch; no changes make a mark. False: not done, a rewrite is needed.

        Raises `OSError` if the sync failed, or if the folder vanished; the log is over then.
        """
        self._check()
        self._check_folder()
        if self._file is None:
            return False
        parts = encode_batch(self._sequence, self._size_bytes, changes)
        try:
            written = self._file.write(parts)
        except OSError:
            self._let_go()
            return False
        self._failed = True
        self._file.sync()
        self._failed = False
        self._size_bytes += written
        self._sequence += 1
        self.has_mark = not changes
        return True

    def rewrite(self, changes: Iterable[Change]) -> None:
        """Put a new file in place that says just this. Raises `OSError`: not done, try again."""
        self._check()
        self._let_go()
        data, sequence = encode_file(self.cluster_id, changes)
        self._disk.replace(FILE, data)
        self._file = self._disk.open_append(FILE, create=False)
        self._size_bytes, self._sequence, self.has_mark = len(data), sequence, True
        self._long_bytes = max(REWRITE_BYTES_MIN, 2 * len(data))

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._let_go()

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _check_folder(self) -> None:
        """Raise `OSError` if the folder vanished: the next start would not find the file there."""
        try:
            self._disk.space()
        except RootGone:
            self._failed = True
            raise
        except OSError:
            # The write itself will raise the error.
            return

    def _check(self) -> None:
        if self._failed:
            raise MetadataUnavailable("an earlier sync of the metadata log failed")


def check_format(disk: Disk) -> None:
    """Raise `FormatTooNew` for a log of a newer version. Nothing is changed."""
    # What is damaged, or is not there, is for `open_log` to tell.
    with suppress(FolderDamaged, FolderMismatch, OSError):
        check_file_header(disk.read(FILE, 0, FILE_HEADER_BYTES))


def open_log(disk: Disk, fresh_cluster_id: str) -> tuple[FactsLog, Tree]:
    """The log in a disk's root and what it says; a new one, of a new cluster, if there is none.

    Raises `FolderDamaged`, `FolderMismatch`, `FormatTooNew`, with nothing changed, and `OSError`.
    """
    disk.make_folder("")
    if FILE not in disk.names(""):
        data, _ = encode_file(fresh_cluster_id, [])
        disk.replace(FILE, data)
        return FactsLog(disk, fresh_cluster_id), Tree()
    contents = decode_file(disk.read(FILE, 0, disk.size(FILE)))
    log = FactsLog(disk, contents.cluster_id)
    if not contents.ends_with_mark:
        log.rewrite(contents.tree.lasting())
    return log, contents.tree
