"""The state in RocksDB: a folder of its own.

    (empty)        format, flags, position      the mark
    any other key  its value                    a row, as its machine wrote it

No row has the empty key, so rows need no prefix.

Invariants:
- One column family and no write-ahead log: the replicated log is one. A crash loses a suffix of
  writes, each whole with its mark, because every one is one RocksDB write.
- A write keeps the interpreter for itself, so it is short and does not stall. Where RocksDB would
  make it wait, the thread waits before, in calls that let others run.
- A cursor that ends has told why: RocksDB's iterators stop in silence where they cannot read on.
- A view is a cursor made at its moment: RocksDB's cursors stay at theirs. (The snapshots that the
  library offers read past theirs, so they are not used.)
- The folder's lock is RocksDB's own; a handle is closed in any case, or nobody could open it again.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.errors import (
    EngineError,
    FolderDamaged,
    FolderError,
    FolderLocked,
    FolderMismatch,
    FormatTooNew,
)
from engine.limits import KIB, MIB
from engine.log.position import Position
from engine.ports.system_disk import FULL, disk_full_error, is_disk_full
from engine.ports.system_files import are_short, told_short
from engine.ports.workers import Workers
from engine.state.contract import Row
from engine.state.cutting import KEY_BYTES_MAX, LOWEST
from engine.state.storage import EMPTY, Change, Mark
from engine.state.stored import StateSettings, StoredState

if TYPE_CHECKING:
    from rocksdict import Rdict, RdictIter

FORMAT_MAJOR: Final = 1
_MARK_KEY: Final = b""
_MARK: Final = struct.Struct(">HHQq")
MARK_BYTES: Final = _MARK.size
_RESTORING: Final = 1
_ABOVE_ALL: Final = b"\xff" * (KEY_BYTES_MAX + 1)
_MEMTABLE_BYTES: Final = 32 * MIB
_BLOCK_BYTES: Final = 4 * KIB
_FILES_MAX: Final = 256
_MEMTABLES_MAX: Final = 4
_TOP_FILES_MAX: Final = 24
_WAITING: Final = "rocksdb.num-immutable-mem-table"
_TOP_FILES: Final = "rocksdb.num-files-at-level0"


async def open_rocks(
    path: Path | str, workers: Workers, settings: StateSettings | None = None
) -> StoredState:
    """Open the state in a folder, which is made if it is missing. Close it.

    Raises `FolderLocked`, `FolderDamaged`, `FolderMismatch`, `FormatTooNew`, `FolderError`.
    """
    chosen = settings or StateSettings()
    folder = Path(path)
    if are_short(reserves=2):
        raise FolderError(f"the state in {folder} cannot be opened: {told_short()}")
    storage = await workers.run(lambda: RocksStorage(folder, chosen.cache_bytes))
    return StoredState(storage, workers, chosen)


class RocksStorage:
    """A `Storage` in a folder. Opening takes some 20 ms: do it in a thread.

    Raises as `open_rocks` does; later errors are RocksDB's own, plain `Exception`s.
    """

    def __init__(self, path: Path, cache_bytes: int = StateSettings.cache_bytes) -> None:
        # Loaded on first use: who only connects needs no RocksDB.
        from rocksdict import WriteBatch, WriteOptions

        self._path = path
        self._db = _open(path, cache_bytes)
        self._batch = WriteBatch
        self._write = WriteOptions()
        self._write.disable_wal = True  # type: ignore[method-assign, assignment]
        self._closed = False
        # RocksDB itself answers: no call of ours stands between.
        self.get = self._db.get
        try:
            self._mark = self._first_mark()
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The folder."""
        return str(self._path)

    def mark(self) -> Mark:
        """The mark of the newest write; `EMPTY` when new."""
        return self._mark

    def rows(self, first: bytes, end: bytes | None) -> Iterator[Row]:
        """Rows from `first` on and under `end`, in order."""
        if end is None:
            return _rows(self._db.iter(), first, None)
        from rocksdict import ReadOptions

        # RocksDB stops there by itself, also among rows that were removed and are still there.
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        return _rows(self._db.iter(options), first, None)

    def view(self) -> "RocksView":
        """All rows as they are now."""
        return RocksView(self._db.iter())

    def write(self, changes: Iterable[Change], mark: Mark) -> None:
        """Change rows and the mark, all or nothing."""
        batch = self._batch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in changes:
            if value is None:
                delete(key)
            else:
                put(key, value)
        put(_MARK_KEY, _packed(mark))
        self._wait_for_room()
        self._db.write(batch, self._write)
        self._mark = mark

    def _wait_for_room(self) -> None:
        """Let RocksDB catch up before it has to make a write wait."""
        number = self._db.property_int_value
        if (number(_WAITING) or 0) >= _MEMTABLES_MAX - 2:
            self._db.flush()
            if int(self._db.property_value(_TOP_FILES) or 0) >= _TOP_FILES_MAX:
                self._db.compact_range(None, None)

    def wipe(self) -> None:
        """Remove every row, durably; the mark is `EMPTY`."""
        batch = self._batch(raw_mode=True)
        batch.delete_range(LOWEST, _ABOVE_ALL)
        batch.put(_MARK_KEY, _packed(EMPTY))
        self._db.write(batch, self._write)
        self._db.flush()
        self._mark = EMPTY
        # Else every scan of what comes next would step over what is gone.
        self._db.compact_range(None, None)

    def flush(self) -> None:
        """Make everything written so far durable."""
        self._db.flush()

    def copy_to(self, path: Path) -> None:
        """Make a folder with everything written so far, of links to this one's files."""
        from rocksdict import Checkpoint

        Checkpoint(self._db).create_checkpoint(str(path))

    def close(self) -> None:
        """Let go of it. May be called twice."""
        if not self._closed:
            self._closed = True
            self._db.close()

    def _first_mark(self) -> Mark:
        key, value = _first_row(self._db.iter(), self._path)
        if key is None:
            self._db.put(_MARK_KEY, _packed(EMPTY), self._write)
            return EMPTY
        mark = _unpacked(value if key == _MARK_KEY else b"", self._path)
        if mark.restoring:
            # Of a snapshot that was never whole nothing may be seen.
            self.wipe()
            return EMPTY
        return mark


class RocksCopy:
    """What `StoredState.copy_to` made: read in any process, changed by nobody. Close it.

    Raises `FolderDamaged`, `FolderMismatch`, `FormatTooNew`; later errors are RocksDB's own.
    """

    def __init__(self, path: Path) -> None:
        from rocksdict import AccessType, Options, Rdict

        try:
            options = Options(raw_mode=True)
            self._db = Rdict(str(path), options, access_type=AccessType.read_only())
        except Exception as error:
            raise _unusable(path, error) from error
        self._path = path
        key, value = _first_row(self._db.iter(), path)
        if key != _MARK_KEY:
            raise FolderMismatch(f"{path} holds a database that is no state")
        self.position = _unpacked(value, path).position

    def get(self, key: bytes) -> bytes | None:
        """A value, or None if there is none."""
        found: bytes | None = self._db.get(key)
        return found

    def scan(self, first: bytes, end: bytes | None = None, limit: int = 1_000) -> list[Row]:
        """At most `limit` rows with keys from `first` on and under `end`, in order."""
        return list(islice(self.rows(first, end), limit))

    def rows(self, first: bytes, end: bytes | None) -> Iterator[Row]:
        """Rows from `first` on and under `end`, in order."""
        return _rows(self._db.iter(), first, end)

    def close(self) -> None:
        """Let go of it."""
        self._db.close()


class RocksView:
    """All rows at the moment at which a cursor was made."""

    def __init__(self, cursor: "RdictIter") -> None:
        self._cursor: RdictIter | None = cursor

    def rows(self, first: bytes, end: bytes | None) -> Iterator[Row]:
        """Rows from `first` on and under `end`, in order; one reader at a time."""
        assert self._cursor is not None, "the view is closed"
        return _rows(self._cursor, first, end)

    def close(self) -> None:
        """Let go of it. May be called twice."""
        self._cursor = None


def _rows(cursor: "RdictIter", first: bytes, end: bytes | None) -> Iterator[Row]:
    key_at, value_at, step = cursor.key, cursor.value, cursor.next
    try:
        # The mark's key is empty, so no row's key is below this one.
        cursor.seek(first or LOWEST)
        while (key := key_at()) is not None:
            if end is not None and key >= end:
                return
            yield key, value_at()
            step()
        cursor.status()
    finally:
        # An error that somebody keeps must not keep the cursor, and so the folder, with it.
        del cursor, key_at, value_at, step


def _first_row(cursor: "RdictIter", path: Path) -> tuple[bytes | None, bytes]:
    try:
        cursor.seek_to_first()
        key: bytes | None = cursor.key()
        cursor.status()
        return key, b"" if key is None else cursor.value()
    except Exception as error:
        raise _unusable(path, error) from error
    finally:
        del cursor


def _unpacked(value: bytes, path: Path) -> Mark:
    if len(value) < _MARK.size:
        raise FolderMismatch(f"{path} holds a database that is no state")
    major, flags, ledger, entry = _MARK.unpack_from(value)
    if major > FORMAT_MAJOR:
        raise FormatTooNew.of(f"the state in {path}", major, FORMAT_MAJOR)
    return Mark(Position(ledger, entry), bool(flags & _RESTORING))


def _packed(mark: Mark) -> bytes:
    return _MARK.pack(FORMAT_MAJOR, _RESTORING if mark.restoring else 0, *mark.position)


def _open(path: Path, cache_bytes: int) -> "Rdict":
    from rocksdict import (
        BlockBasedIndexType,
        BlockBasedOptions,
        Cache,
        DBCompressionType,
        Options,
        Rdict,
    )

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_max_write_buffer_number(_MEMTABLES_MAX)
    options.set_level_zero_slowdown_writes_trigger(2 * _TOP_FILES_MAX)
    options.set_level_zero_stop_writes_trigger(4 * _TOP_FILES_MAX)
    options.set_max_open_files(_FILES_MAX)
    options.set_max_background_jobs(2)
    options.set_paranoid_checks(True)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(MIB)
    options.set_compression_type(DBCompressionType.lz4())
    # Files that a closed cursor held are removed by RocksDB's threads, not by the caller.
    options.set_avoid_unnecessary_blocking_io(True)
    table = BlockBasedOptions()
    # Index and filter of a large file are some megabytes. In parts of a block's size a read loads
    # what it needs of them, and the cache, which is divided itself, has room for each part.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(_BLOCK_BYTES)
    table.set_block_cache(Cache(cache_bytes))
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_top_level_index_and_filter(True)
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        return Rdict(str(path), options)
    except OSError as error:
        if error.errno in FULL:
            raise disk_full_error(path) from error
        raise FolderError(f"{path} cannot be made: {error}") from error
    except Exception as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> EngineError:
    """What RocksDB says, by its words: a state is called damaged only when RocksDB does so."""
    text = str(error)
    if is_disk_full(error):
        return disk_full_error(path)
    if "lock hold by current process" in text or "While lock file" in text:
        return FolderLocked(f"the state in {path} is in use: {text}")
    if text.startswith("Corruption") and "Too many open files" not in text:
        return FolderDamaged(
            f"the state in {path} cannot be read ({text}): "
            "remove that folder, and its replica fills a new one from the log"
        )
    return FolderError(f"the state in {path} cannot be opened: {text}")
