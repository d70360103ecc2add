"""Whose folder this is: the bookie's id, its cluster, and how often it was started.

    offset  bytes  field
    0       8      magic "HERDBKIE"
    8       2      format major
    10      2      format minor
    12      4      CRC32C of what follows
    16      n      msgpack map: bookie_id, cluster_id, boot, salt

Invariants:
- The id is random, made with the folder and never changed: a wiped folder is a new bookie.
- The boot count is raised in the metadata store, then here, before the bookie serves anything.
- A folder that the store remembers with more starts was rolled back, and does not start.
"""

import random
import struct
from typing import Final

import google_crc32c
import msgspec

from engine.errors import FolderDamaged, FolderMismatch, FormatTooNew
from engine.metadata.bookies import Bookies
from engine.ports.disk import Disk

FILE_NAME: Final = "identity"
FORMAT_MAJOR: Final = 1
FORMAT_MINOR: Final = 0
_HEADER: Final = struct.Struct(">8sHHI")
_MAGIC: Final = b"HERDBKIE"
_FILE_BYTES_MAX: Final = 4096


class FolderIdentity(msgspec.Struct, frozen=True):
    """What the identity file holds. `salt` seeds the journal's CRCs."""

    bookie_id: str
    cluster_id: str
    boot: int
    salt: int


def read_identity(disk: Disk) -> FolderIdentity | None:
    """The folder's identity, None for a new folder.

    Raises `FolderDamaged` for a file that cannot be read, `FormatTooNew` for a newer one, and
    `FolderMismatch` for a folder with other things in it and no identity.
    """
    try:
        data = disk.read(FILE_NAME, 0, _FILE_BYTES_MAX)
    except FileNotFoundError:
        if disk.names("journal"):
            raise FolderDamaged("the folder holds a journal but no identity file") from None
        return None
    if len(data) < _HEADER.size:
        raise FolderDamaged("the identity file is cut short")
    magic, major, _, crc = _HEADER.unpack_from(data)
    content = data[_HEADER.size :]
    if magic != _MAGIC:
        raise FolderMismatch("the identity file is not one of a bookie")
    if major > FORMAT_MAJOR:
        raise FormatTooNew(f"the folder has format {major}; this program reads {FORMAT_MAJOR}")
    if google_crc32c.value(content) != crc:
        raise FolderDamaged("the identity file's checksum does not match")
    return msgspec.msgpack.decode(content, type=FolderIdentity)


def write_identity(disk: Disk, identity: FolderIdentity) -> None:
    """Write the identity file, atomically and durably."""
    content = msgspec.msgpack.encode(identity)
    header = _HEADER.pack(_MAGIC, FORMAT_MAJOR, FORMAT_MINOR, google_crc32c.value(content))
    disk.replace(FILE_NAME, header + content)


async def start_folder(disk: Disk, bookies: Bookies, rng: random.Random) -> FolderIdentity:
    """Make or read the folder's identity and count one more start of it.

    Raises `FolderMismatch` for another cluster's folder, `FolderRolledBack`, `FolderDamaged`,
    `FormatTooNew`, `MetadataUnavailable`; the folder is unchanged then.
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
    boot = await bookies.raise_boot(identity.bookie_id, identity.boot)
    identity = msgspec.structs.replace(identity, boot=boot)
    write_identity(disk, identity)
    return identity
