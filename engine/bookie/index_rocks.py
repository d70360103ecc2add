"""The index in RocksDB.

    P ledger last     places, as the fields of `Place`, one behind the other   a row of places
    F key             value                                                    a small fact
    @                 segment, offset                                          the position

Numbers are big-endian, so keys sort as numbers do. A row holds places of consecutive ids that were
added together and is filed under its last id; so a seek to (ledger, first) finds the row that
holds `first`. Small runs of one ledger cost one row a batch, not one each.

Invariants:
- No id between a row's first and last one is in another row.
- One column family and no write-ahead log: a crash loses a suffix of batches, each whole with its
  position, because every batch is one RocksDB write.
- Memory is bounded: two small memtables, one small block cache, few open files.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.bookie.index import BYTES_MAX, PLACES_MAX, Changes, Place, Position
from engine.errors import (
    FolderDamaged,
    FolderError,
    FolderLocked,
    FolderMismatch,
    FormatTooNew,
)
from engine.limits import MIB
from engine.ports.system_disk import disk_full_error, is_disk_full

if TYPE_CHECKING:
    from rocksdict import Rdict, RdictIter

_FORMAT: Final = b"2"
_FORMAT_KEY: Final = b"!"
_POSITION_KEY: Final = b"@"
_FACT: Final = b"F"
_KEY: Final = struct.Struct(">cQQ")
_LEDGER: Final = struct.Struct(">cQ")
_PLACE: Final = struct.Struct(">QQQqQQQ")
_ROW_PLACES_MAX: Final = 64
_POSITION: Final = struct.Struct(">QQ")
_ID_MAX: Final = 2**64 - 1
_MEMTABLE_BYTES: Final = 16 * MIB
_CACHE_BYTES: Final = 16 * MIB
_FILES_MAX: Final = 128
_METADATA_BLOCK_BYTES: Final = 4_096


class RocksIndex:
    """An `Index` in a folder, made if it is missing.

    `read_only=True` opens an existing one without changing a byte of it, for tools; where there is
    none it raises `FolderMismatch`.
    Raises `FormatTooNew` for one of a newer version; RocksDB's errors are plain `Exception`s.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        # Loaded on first use: a client that only connects needs no RocksDB.
        from rocksdict import WriteBatch, WriteOptions

        self._read_only = read_only
        self._path = path
        self._db = _open(path, read_only)
        self._batch = WriteBatch
        self._write = WriteOptions()
        self._write.disable_wal = True  # type: ignore[method-assign, assignment]
        found = self._db.get(_FORMAT_KEY)
        if found is None:
            if not read_only:
                self._db.put(_FORMAT_KEY, _FORMAT, self._write)
        elif int(found) > int(_FORMAT):
            self._db.close()
            raise FormatTooNew.of(f"the index in {path}", found.decode(), _FORMAT.decode())
        elif int(found) < int(_FORMAT):
            self._db.close()
            raise FolderMismatch(
                f"the index in {path} has format {found.decode()}, before {_FORMAT.decode()}: "
                "remove that folder, and it is made anew from the journal"
            )
        self._closed = False

    def apply(self, changes: Changes) -> None:
        """Apply one batch in order."""
        assert not self._read_only
        batch = self._batch(raw_mode=True)
        put = batch.put
        for key, left in self._rows_without(changes.remove).items():
            batch.delete(key)
            for row_key, row in _rows(left):
                put(row_key, row)
        for row_key, row in _rows(changes.add):
            put(row_key, row)
        for key, value in changes.facts:
            if value is None:
                batch.delete(_FACT + key)
            else:
                put(_FACT + key, value)
        put(_POSITION_KEY, _POSITION.pack(*changes.position))
        self._db.write(batch, self._write)

    def position(self) -> Position:
        """The position of the newest batch applied; (0, 0) when new."""
        found = self._db.get(_POSITION_KEY)
        return Position(0, 0) if found is None else Position(*_POSITION.unpack(found))

    def find(
        self, ledger_id: int, first: int, last: int, bytes_enough: int = BYTES_MAX
    ) -> list[Place]:
        """The places that overlap `first` to `last`, in order; see `Index.find`."""
        cursor = self._db.iter()
        cursor.seek(_KEY.pack(b"P", ledger_id, first))
        end, top = _KEY.pack(b"P", ledger_id, last), _KEY.pack(b"P", ledger_id, _ID_MAX)
        found: list[Place] = []
        while (key := cursor.key()) is not None and key <= top:
            row = _places(cursor.value())
            start = 0 if found else bisect_left(row, first, key=_last_of)
            for place in row[start:]:
                if place.first > last or bytes_enough <= 0 or len(found) == PLACES_MAX:
                    return found
                found.append(place)
                bytes_enough -= place.size_bytes
            if key >= end:
                return found
            cursor.next()
        if key is None:
            cursor.status()
        return found

    def last(self, ledger_id: int) -> Place | None:
        """The place with the ledger's highest id."""
        cursor = self._db.iter()
        cursor.seek_for_prev(_KEY.pack(b"P", ledger_id, _ID_MAX))
        if _ledger_at(cursor) != ledger_id:
            return None
        row: bytes = cursor.value()
        return _places(row[-_PLACE.size :])[0]

    def ledgers(self, above: int, limit: int) -> list[int]:
        """Ids of ledgers with at least one place, over `above`, in order."""
        found: list[int] = []
        cursor = self._db.iter()
        while len(found) < limit and above < _ID_MAX:
            cursor.seek(_LEDGER.pack(b"P", above + 1))
            ledger_id = _ledger_at(cursor)
            if ledger_id is None:
                break
            above = ledger_id
            found.append(above)
        return found

    def fact(self, key: bytes) -> bytes | None:
        """A small fact."""
        found: bytes | None = self._db.get(_FACT + key)
        return found

    def facts(self, prefix: bytes, above: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Small facts whose key starts with `prefix` and is over `above`, in order."""
        found: list[tuple[bytes, bytes]] = []
        cursor = self._db.iter()
        cursor.seek(_FACT + max(prefix, above))
        while cursor.valid() and len(found) < limit:
            key: bytes = cursor.key()[1:]
            if cursor.key()[:1] != _FACT or not key.startswith(prefix):
                break
            if key > above:
                found.append((key, cursor.value()))
            cursor.next()
        cursor.status()
        return found

    def flush(self) -> None:
        """Make everything applied so far durable. Runs in a thread."""
        assert not self._read_only
        self._db.flush()

    def unflushed_bytes(self) -> int:
        """About how many bytes of the disk a flush would take now."""
        return self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0

    def _rows_without(self, removed: Sequence[Place]) -> dict[bytes, list[Place]]:
        """The rows that hold places to be removed, by key, and what is left of each."""
        left: dict[bytes, list[Place]] = {}
        cursor = self._db.iter() if removed else None
        for place in removed:
            assert cursor is not None
            cursor.seek(_KEY.pack(b"P", place.ledger_id, place.last))
            if _ledger_at(cursor) != place.ledger_id:
                continue
            key: bytes = cursor.key()
            if key not in left:
                left[key] = _places(cursor.value())
            left[key] = [other for other in left[key] if other.last != place.last]
        return left

    def close(self) -> None:
        """Flush and close. May be called twice."""
        if not self._closed:
            self._closed = True
            try:
                if not self._read_only:
                    self._db.flush()
            finally:
                # A handle that stays open keeps this process from ever opening the folder again.
                self._db.close()


def _ledger_at(cursor: "RdictIter") -> int | None:
    """The ledger of the row under a cursor; None where none is. An error is raised, never None."""
    key: bytes | None = cursor.key()
    if key is None:
        cursor.status()
        return None
    ledger_id: int | None = _KEY.unpack(key)[1] if key[:1] == b"P" else None
    return ledger_id


def _places(rows: bytes) -> list[Place]:
    # Without a step of the interpreter for each place: a read of many small runs is all places.
    return list(map(tuple.__new__, repeat(Place), _PLACE.iter_unpack(rows)))


def _rows(places: Sequence[Place]) -> Iterator[tuple[bytes, bytes]]:
    """Places as rows; those of one ledger with consecutive ids share rows, wherever they stand."""
    by_ledger: dict[int, list[Place]] = {}
    for place in places:
        by_ledger.setdefault(place[0], []).append(place)
    for ledger_id, held in by_ledger.items():
        start = 0
        for end in range(1, len(held) + 1):
            following = end < len(held) and held[end].first == held[end - 1].last + 1
            if not following or end - start == _ROW_PLACES_MAX:
                row = b"".join([_PLACE.pack(*place) for place in held[start:end]])
                yield _KEY.pack(b"P", ledger_id, held[end - 1].last), row
                start = end


def _last_of(place: Place) -> int:
    return place.last


def _open(path: Path, read_only: bool) -> "Rdict":
    from rocksdict import (
        AccessType,
        BlockBasedIndexType,
        BlockBasedOptions,
        Cache,
        DBCompressionType,
        Options,
        Rdict,
    )

    options = Options(raw_mode=True)
    options.create_if_missing(not read_only)
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_max_write_buffer_number(3)
    options.set_max_open_files(_FILES_MAX)
    options.set_max_background_jobs(2)
    options.set_paranoid_checks(True)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(MIB)
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    # A large file's index and filter do not fit the small cache whole; in parts they do.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(_METADATA_BLOCK_BYTES)
    table.set_pin_top_level_index_and_filter(True)
    table.set_block_cache(Cache(_CACHE_BYTES))
    table.set_cache_index_and_filter_blocks(True)
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    if not read_only:
        path.mkdir(mode=0o700, exist_ok=True)
    elif not (path / "CURRENT").exists():
        raise FolderMismatch(f"there is no index in {path}")
    read = AccessType.read_only(error_if_log_file_exist=False)
    try:
        if read_only:
            return Rdict(str(path), options, access_type=read)
        return Rdict(str(path), options)
    except Exception as error:
        if is_disk_full(error):
            raise disk_full_error(path) from error
        if "lock hold" in str(error) or "LOCK" in str(error):
            raise FolderLocked(f"the index in {path} is in use: {error}") from error
        if "Read-only file system" in str(error):
            raise FolderError(f"{path} cannot be written, not even a log of reading it") from error
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> FolderDamaged:
    """What to say of an index that RocksDB cannot read."""
    return FolderDamaged(
        f"the index in {path} cannot be read ({error}): "
        "remove that folder, and the next start makes it anew from the journal"
    )
