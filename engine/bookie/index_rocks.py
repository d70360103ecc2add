"""The index in RocksDB.

    P ledger last     first, segment, offset, size, record's first       a place
    F key             value                                              a small fact
    @                 segment, offset                                    the position

Numbers are big-endian, so keys sort as numbers do; a seek to (ledger, first) finds the place that
holds `first`, since a place is filed under its last id.

Invariants:
- One column family and no write-ahead log: a crash loses a suffix of batches, each whole with its
  position, because every batch is one RocksDB write.
- Memory is bounded: two small memtables, one small block cache, few open files.
"""

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.bookie.index import Changes, Place, Position
from engine.errors import FolderMismatch, FormatTooNew
from engine.limits import MIB

if TYPE_CHECKING:
    from rocksdict import Rdict, RdictIter

_FORMAT: Final = b"1"
_FORMAT_KEY: Final = b"!"
_POSITION_KEY: Final = b"@"
_FACT: Final = b"F"
_KEY: Final = struct.Struct(">cQQ")
_LEDGER: Final = struct.Struct(">cQ")
_VALUE: Final = struct.Struct(">QqQQQ")
_POSITION: Final = struct.Struct(">QQ")
_PLACES_PER_CALL_MAX: Final = 1_024
_ID_MAX: Final = 2**64 - 1
_MEMTABLE_BYTES: Final = 16 * MIB
_CACHE_BYTES: Final = 16 * MIB
_FILES_MAX: Final = 128


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
            raise FormatTooNew(f"the index has format {found.decode()}, this program {_FORMAT!r}")
        self._closed = False

    def apply(self, changes: Changes) -> None:
        """Apply one batch in order."""
        assert not self._read_only
        batch = self._batch(raw_mode=True)
        pack_key, pack_value, put = _KEY.pack, _VALUE.pack, batch.put
        for place in changes.remove:
            batch.delete(pack_key(b"P", place.ledger_id, place.last))
        for ledger_id, first, last, segment, offset, size_bytes, record_first in changes.add:
            put(
                pack_key(b"P", ledger_id, last),
                pack_value(first, segment, offset, size_bytes, record_first),
            )
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

    def find(self, ledger_id: int, first: int, last: int) -> list[Place]:
        """The places that overlap `first` to `last`, in order; at most 1,024 of them."""
        places: list[Place] = []
        cursor = self._db.iter()
        cursor.seek(_KEY.pack(b"P", ledger_id, first))
        prefix = _LEDGER.pack(b"P", ledger_id)
        unpack_key, unpack_value, following = _KEY.unpack, _VALUE.unpack, cursor.next
        while cursor.valid():
            key: bytes = cursor.key()
            if not key.startswith(prefix):
                return places
            reached = unpack_key(key)[2]
            held_first, segment, offset, size_bytes, record_first = unpack_value(cursor.value())
            if held_first > last:
                return places
            places.append(
                Place(ledger_id, held_first, reached, segment, offset, size_bytes, record_first)
            )
            if reached >= last or len(places) == _PLACES_PER_CALL_MAX:
                return places
            following()
        cursor.status()
        return places

    def last(self, ledger_id: int) -> Place | None:
        """The place with the ledger's highest id."""
        cursor = self._db.iter()
        cursor.seek_for_prev(_KEY.pack(b"P", ledger_id, _ID_MAX))
        place = _place_at(cursor)
        return place if place is not None and place.ledger_id == ledger_id else None

    def ledgers(self, above: int, limit: int) -> list[int]:
        """Ids of ledgers with at least one place, over `above`, in order."""
        found: list[int] = []
        cursor = self._db.iter()
        while len(found) < limit and above < _ID_MAX:
            cursor.seek(_LEDGER.pack(b"P", above + 1))
            place = _place_at(cursor)
            if place is None:
                break
            above = place.ledger_id
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

    def close(self) -> None:
        """Flush and close. May be called twice."""
        if not self._closed:
            self._closed = True
            if not self._read_only:
                self._db.flush()
            self._db.close()


def _place_at(cursor: "RdictIter") -> Place | None:
    """The place under a cursor; None behind the last one. An error is raised, never None."""
    if not cursor.valid():
        cursor.status()
        return None
    key: bytes = cursor.key()
    if key[:1] != b"P":
        return None
    _, ledger_id, last = _KEY.unpack(key)
    first, segment, offset, size_bytes, record_first = _VALUE.unpack(cursor.value())
    return Place(ledger_id, first, last, segment, offset, size_bytes, record_first)


def _open(path: Path, read_only: bool) -> "Rdict":
    from rocksdict import AccessType, BlockBasedOptions, Cache, DBCompressionType, Options, Rdict

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
    table.set_block_cache(Cache(_CACHE_BYTES))
    table.set_cache_index_and_filter_blocks(True)
    options.set_block_based_table_factory(table)
    if not read_only:
        path.mkdir(parents=True, exist_ok=True)
        return Rdict(str(path), options)
    if not (path / "CURRENT").exists():
        raise FolderMismatch(f"there is no index in {path}")
    access = AccessType.read_only(error_if_log_file_exist=False)
    return Rdict(str(path), options, access_type=access)
