"""Who a bookie is: a small file in its folder.

    identity    magic "HERDBOOK", u16 version, CRC32C of the rest (u32), msgpack of `Identity`

Invariants:
- The id, the cluster and the salt never change; the boot count only grows.
- A folder with a journal and without an identity is damaged, not new.
"""

import random
import struct
from typing import Final

import google_crc32c
import msgspec

from engine.bookie.segment import FOLDER, number_of
from engine.errors import FolderDamaged, FolderMismatch, FormatTooNew
from engine.ports.disk import Disk

IDENTITY_FILE: Final = "identity"
_MAGIC: Final = b"HERDBOOK"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">8sHI")
_FILE_BYTES_MAX: Final = 4_096


class Identity(msgspec.Struct, frozen=True):
    """What the folder says of itself. `salt` goes into every record's CRC and stays secret."""

    bookie_id: str
    cluster_id: str
    boot: int
    salt: int


def read_identity(disk: Disk) -> Identity | None:
    """The folder's identity; None if the folder is new.

    Raises `FolderDamaged`, `FormatTooNew`, `FolderMismatch` if the file is something else.
    """
    try:
        data = disk.read(IDENTITY_FILE, 0, _FILE_BYTES_MAX)
    except FileNotFoundError:
        if any(number_of(name) is not None for name in disk.names(FOLDER)):
            raise FolderDamaged("the bookie's folder has a journal but no identity file") from None
        return None
    if len(data) < _HEADER.size:
        raise FolderDamaged("the bookie's identity file is cut short")
    magic, version, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise FolderMismatch("the file `identity` is not a bookie's")
    if version > _VERSION:
        raise FormatTooNew(f"the bookie's folder has format {version}; this program {_VERSION}")
    payload = data[_HEADER.size :]
    if google_crc32c.value(payload) != crc:
        raise FolderDamaged("the bookie's identity file is corrupt")
    return msgspec.msgpack.decode(payload, type=Identity)


def write_identity(disk: Disk, identity: Identity) -> None:
    """Set the folder's identity durably."""
    payload = msgspec.msgpack.encode(identity)
    header = _HEADER.pack(_MAGIC, _VERSION, google_crc32c.value(payload))
    disk.replace(IDENTITY_FILE, header + payload)


def open_folder(disk: Disk, cluster_id: str, rng: random.Random) -> Identity:
    """The identity of a folder, made if the folder is new.

    Raises `FolderMismatch` for a folder of another cluster, `FolderDamaged`, `FormatTooNew`.
    """
    disk.make_folder(FOLDER)
    identity = read_identity(disk)
    if identity is None:
        bookie_id = f"{rng.getrandbits(128):032x}"
        identity = Identity(bookie_id, cluster_id, 0, rng.getrandbits(64))
        write_identity(disk, identity)
    if identity.cluster_id != cluster_id:
        raise FolderMismatch(
            f"the bookie's folder belongs to cluster {identity.cluster_id}, not to {cluster_id}"
        )
    return identity
