"""Whose folder this is: the bookie's id, its cluster, and its age.

    offset  bytes  field
    0       8      magic "HERDBKIE"
    8       2      format major
    10      2      format minor
    12      4      CRC32C of what follows
    16      n      msgpack map: bookie_id, cluster_id, boot, salt, mark, journal

The file `journal/bookie` contains the bookie's id as text, which distinguishes the journal from an
empty folder.

Invariants:
- The id is random, made with the folder and never changed: a wiped folder is a new bookie.
- Each start raises the folder's age here, durably, then in the metadata store, and only then
  serves. So the store never remembers more than the folder held, whatever the moment of a crash.
- A bookie does not start if its journal is missing, new or another bookie's, and no new journal is
  created.
- A folder that the store remembers as older was rolled back: it does not start, nor change.
"""

import random
import struct
from typing import Final

import google_crc32c
import msgspec

from engine.bookie.scan import check_format
from engine.errors import (
    DiskFull,
    FolderDamaged,
    FolderMismatch,
    FolderRolledBack,
    FormatTooNew,
)
from engine.metadata.bookies import Bookies, FolderAge
from engine.ports.disk import Disk

FILE_NAME: Final = "identity"
FORMAT_MAJOR: Final = 1
FORMAT_MINOR: Final = 2
_HEADER: Final = struct.Struct(">8sHHI")
_MAGIC: Final = b"HERDBKIE"
JOURNAL: Final = "journal"
SEGMENT_SUFFIX: Final = ".segment"
JOURNAL_FILE: Final = f"{JOURNAL}/bookie"
_FILE_BYTES_MAX: Final = 4096


class FolderIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the identity file holds. `salt` seeds the journal's CRCs.

    `boot` counts starts, `mark` the marks since the last one (`engine.bookie.marking`). `journal`
    is true if the journal has its own file, which earlier versions do not write.
    """

    bookie_id: str
    cluster_id: str
    boot: int
    salt: int
    mark: int = 0
    journal: bool = False

    @property
    def age(self) -> FolderAge:
        """What the metadata store remembers of the folder."""
        return FolderAge(self.boot, self.mark)


def read_identity(disk: Disk) -> FolderIdentity | None:
    """The folder's identity, None for a new folder.

    Raises `FolderDamaged` for a file that cannot be read, `FormatTooNew` for a newer one, and
    `FolderMismatch` for a folder with other things in it and no identity.
    """
    try:
        data = disk.read(FILE_NAME, 0, _FILE_BYTES_MAX)
    except FileNotFoundError:
        if disk.names(JOURNAL):
            raise FolderDamaged("the folder holds a journal but no identity file") from None
        return None
    if len(data) < _HEADER.size:
        raise FolderDamaged("the identity file is cut short")
    magic, major, _, crc = _HEADER.unpack_from(data)
    content = data[_HEADER.size :]
    if magic != _MAGIC:
        raise FolderMismatch("the identity file is not one of a bookie")
    if major > FORMAT_MAJOR:
        raise FormatTooNew.of("the identity of the bookie", major, FORMAT_MAJOR)
    if google_crc32c.value(content) != crc:
        raise FolderDamaged("the identity file's checksum does not match")
    return msgspec.msgpack.decode(content, type=FolderIdentity)


def write_identity(disk: Disk, identity: FolderIdentity) -> None:
    """Write the identity file, atomically and durably."""
    content = msgspec.msgpack.encode(identity)
    header = _HEADER.pack(_MAGIC, FORMAT_MAJOR, FORMAT_MINOR, google_crc32c.value(content))
    disk.replace(FILE_NAME, header + content)


def check_folder(disk: Disk) -> FolderIdentity | None:
    """The folder's identity; None for a new folder.

    Raises `FolderDamaged` if the folder does not have its own journal, `FormatTooNew` for a journal
    of a newer version, and as `read_identity`.
    """
    identity = read_identity(disk)
    if identity is not None and identity.boot and not _has_journal(disk, identity):
        raise FolderDamaged(
            f"bookie {identity.bookie_id}: its journal is missing, or belongs to another bookie: "
            "mount its disk and start again; if the journal is lost, the bookie is lost, too: run "
            f"`herdbook bookie decommission {identity.bookie_id} --no-wait` and remove its folder, "
            "then a new bookie starts"
        )
    check_format(disk)
    return identity


def make_journal(disk: Disk) -> FolderIdentity | None:
    """Create a new bookie's folder for its journal. Returns and raises as `check_folder`."""
    identity = check_folder(disk)
    disk.make_folder(JOURNAL)
    return identity


def mark_journal(disk: Disk, identity: FolderIdentity) -> FolderIdentity:
    """Write the bookie's id into its journal; returns the identity with `journal` set."""
    if identity.journal:
        return identity
    disk.replace(JOURNAL_FILE, identity.bookie_id.encode())
    marked = msgspec.structs.replace(identity, journal=True)
    write_identity(disk, marked)
    return marked


def _has_journal(disk: Disk, identity: FolderIdentity) -> bool:
    if not identity.journal:
        return JOURNAL in disk.names("")
    try:
        found = disk.read(JOURNAL_FILE, 0, _FILE_BYTES_MAX)
    except FileNotFoundError:
        # Segments contain the bookie's id, too; the replay checks it.
        return any(name.endswith(SEGMENT_SUFFIX) for name in disk.names(JOURNAL))
    return found == identity.bookie_id.encode()


async def start_folder(disk: Disk, bookies: Bookies, rng: random.Random) -> FolderIdentity:
    """Make or read the folder's identity and count one more start of it.

    Raises `FolderMismatch` for another cluster's folder, `FolderRolledBack`, `FolderDamaged`,
    `FormatTooNew`, `CannotRead`; the folder is unchanged then. After `MetadataUnavailable` it may
    count a start more, which is harmless.
    """
    cluster_id = bookies.store.cluster_id
    identity = read_identity(disk)
    if identity is None:
        bookie_id = f"{rng.getrandbits(64):016x}"
        identity = FolderIdentity(bookie_id, cluster_id, 0, rng.getrandbits(63))
        write_identity(disk, identity)
    elif identity.cluster_id != cluster_id:
        raise FolderMismatch(
            f"the folder belongs to cluster {identity.cluster_id}, not to {cluster_id}"
        )
    await bookies.check_age(identity.bookie_id, identity.age)
    started = msgspec.structs.replace(identity, boot=identity.boot + 1, mark=0)
    write_identity(disk, started)
    try:
        await bookies.raise_age(started.bookie_id, started.age)
    except FolderRolledBack:
        # Another copy was started meanwhile: this one must stay behind what the store remembers.
        write_identity(disk, identity)
        raise
    return started


def start_failure(identity: FolderIdentity, error: BaseException) -> BaseException:
    """What a start raises: RocksDB's errors are of no class of their own, all others speak."""
    if type(error) is not Exception:
        return error
    if "No space left on device" in str(error):
        full = DiskFull(f"bookie {identity.bookie_id}: its index cannot be written: {error}")
        full.__cause__ = error
        return full
    damaged = FolderDamaged(
        f"bookie {identity.bookie_id}: its index cannot be read ({error}): remove the folder "
        "`index` beside its journal, and the next start makes it anew"
    )
    damaged.__cause__ = error
    return damaged
