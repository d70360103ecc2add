"""A backup's folder: files of ledgers, and a manifest a backup that names them.

    000007.manifest          what backup 7 holds
    ledgers/17-41.ledger     entries 0 to 41 of ledger 17
    ledgers/17-41.doubt      a check found that file damaged: the next backup reads all of it
    store                    which store's backups these are; locked while one is written
    unfinished               a backup is being written, or was and did not come to its end

Invariants:
- A manifest is written when all that it names is durable, and has gone for ever before what it
  names goes. What none names is of no backup.
- A file of a ledger never changes: another backup that holds the same entries names it, too. One
  that is damaged is written again, the same.
- A folder belongs to one store and one writer at a time.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from engine.errors import CannotRead, EngineError, FolderLocked, FolderMismatch
from herdbook.archive.framing import END, FrameWriter, read_frames, sync_folder

MAGIC: Final = b"HERDSTR"
FORMAT_MAJOR: Final = 1
STORE: Final = "store"
UNFINISHED: Final = "unfinished"
_LEDGERS: Final = "ledgers"
_SUFFIX: Final = ".manifest"
_DOUBT: Final = ".doubt"
_HEAD, _KEPT = b"M", b"L"
_LEDGERS_A_FRAME: Final = 1_000


class KeptLedger(msgspec.Struct, frozen=True, array_like=True):
    """A ledger of a backup: what a store must know of it again. `length` in bytes."""

    ledger_id: int
    last: int
    length: int
    ensemble: int
    write_quorum: int
    ack_quorum: int
    stripe_entries: int
    key_hash: bytes
    created_ms: int
    custom: dict[str, bytes]


class StoreManifest(msgspec.Struct, frozen=True):
    """What one backup holds. Times in milliseconds of the wall clock.

    `keys` are values of the metadata store: lists and snapshots of logs, tablespaces, checkpoints.
    Ledger ids from `next_id` on had not been given out. `one_moment` says that all logs end at one
    moment; in a backup that an earlier program took they may not.
    """

    number: int
    cluster_id: str
    kind: str
    version: str
    begun_ms: int
    cut_ms: int
    finished_ms: int
    bookies: int
    next_id: int
    keys: dict[str, bytes]
    ledgers: tuple[KeptLedger, ...] = ()
    one_moment: bool = False

    @property
    def length(self) -> int:
        """The bytes of all entries."""
        return sum(kept.length for kept in self.ledgers)


class BackupFolder:
    """A folder that holds backups of one store. All methods block."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def numbers(self) -> list[int]:
        """The numbers of the backups that are whole, ascending."""
        if not self.path.is_dir():
            return []
        names = (each.name.removesuffix(_SUFFIX) for each in self.path.glob(f"*{_SUFFIX}"))
        return sorted(int(name) for name in names if name.isdecimal())

    @property
    def unfinished(self) -> bool:
        """Whether a backup was begun that did not come to its end."""
        return (self.path / UNFINISHED).exists()

    def read(self, number: int | None = None) -> StoreManifest:
        """The manifest of a backup (None: the newest).

        Raises `CannotRead` where there is none, `FormatTooNew`, `OSError`.
        """
        numbers = self.numbers()
        if number is None:
            if not numbers:
                told = "no backup in it was finished" if self.unfinished else "it holds no backup"
                raise CannotRead(f"{self.path}: {told}")
            number = numbers[-1]
        if number not in numbers:
            raise CannotRead(f"{self.path} has no backup {number}, but {_listed(numbers)}")
        return _read(self._manifest(number), number)

    def ledger(self, ledger_id: int, last: int) -> Path:
        """Where the entries of a ledger up to `last` are."""
        return self.path / _LEDGERS / f"{ledger_id}-{last}.ledger"

    def doubt(self, ledger_id: int, last: int) -> Path:
        """What is there when a check has found the file of these entries damaged."""
        return self.ledger(ledger_id, last).with_suffix(_DOUBT)

    @contextmanager
    def writing(self, cluster_id: str) -> Iterator[int]:
        """Keep others from writing here; the number of the backup to come.

        Raises `FolderLocked`, `FolderMismatch` for backups of another store, `CannotRead` for a
        folder that holds something else, `OSError`.
        """
        new = [each for each in (self.path, *self.path.parents) if not each.exists()]
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in new:
            sync_folder(each.parent)
        names = {each.name for each in self.path.iterdir()}
        if names and STORE not in names:
            raise CannotRead(f"{self.path} holds something else than backups: name another folder")
        with (self.path / STORE).open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise FolderLocked(f"another backup is being written into {self.path}") from error
            file.seek(0)
            of = file.read().decode(errors="replace").strip()
            if of and of != cluster_id:
                raise FolderMismatch(f"{self.path} holds backups of another store, {of}")
            if not of:
                # Before any file of a ledger: what is found there later is of this store.
                file.write(f"{cluster_id}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            (self.path / UNFINISHED).touch(mode=0o600)
            (self.path / _LEDGERS).mkdir(mode=0o700, exist_ok=True)
            yield max(self.numbers(), default=0) + 1

    def finish(self, manifest: StoreManifest) -> None:
        """Name what is there: now it is a backup."""
        sync_folder(self.path / _LEDGERS)
        with FrameWriter(self._manifest(manifest.number), MAGIC, FORMAT_MAJOR) as file:
            file.frame(_HEAD, msgspec.msgpack.encode(msgspec.structs.replace(manifest, ledgers=())))
            for start in range(0, len(manifest.ledgers), _LEDGERS_A_FRAME):
                some = manifest.ledgers[start : start + _LEDGERS_A_FRAME]
                file.frame(_KEPT, msgspec.msgpack.encode(some))
            file.frame(END, msgspec.msgpack.encode(len(manifest.ledgers)))
        sync_folder(self.path)
        (self.path / UNFINISHED).unlink()
        sync_folder(self.path)

    def forget(self, keep: int) -> list[str]:
        """Keep that many of the newest backups and the files that they name; remove all others.

        Nothing is removed where one that is kept cannot be read: what is wrong with such ones, in
        words. Raises `OSError`.
        """
        assert keep >= 1
        numbers = self.numbers()
        named: set[str] = set()
        unreadable: list[str] = []
        for number in numbers[-keep:]:
            try:
                ledgers = self.read(number).ledgers
            except (EngineError, OSError) as error:
                unreadable.append(str(error))
            else:
                named.update(self.ledger(kept.ledger_id, kept.last).name for kept in ledgers)
        if unreadable:
            return unreadable
        for number in numbers[:-keep]:
            self._manifest(number).unlink()
        # No manifest comes back after a power cut that names files which have gone.
        sync_folder(self.path)
        for each in (self.path / _LEDGERS).iterdir():
            if each.name not in named:
                each.unlink()
        return []

    def _manifest(self, number: int) -> Path:
        return self.path / f"{number:06}{_SUFFIX}"


def _read(path: Path, number: int) -> StoreManifest:
    head: StoreManifest | None = None
    ledgers: list[KeptLedger] = []
    try:
        for kind, blob in read_frames(path, MAGIC, FORMAT_MAJOR):
            if kind == _HEAD:
                head = msgspec.msgpack.decode(blob, type=StoreManifest)
            elif kind == _KEPT:
                ledgers += msgspec.msgpack.decode(blob, type=list[KeptLedger])
            elif kind != END or msgspec.msgpack.decode(blob) != len(ledgers):
                raise CannotRead(f"{path} is damaged: it does not name all ledgers")
    except msgspec.MsgspecError as error:
        raise CannotRead(f"{path} is damaged: {error}") from error
    if head is None or head.number != number:
        raise CannotRead(f"{path} is not the manifest of backup {number}")
    return msgspec.structs.replace(head, ledgers=tuple(ledgers))


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
