"""Reading all of a backup: is every byte there, and would a store made of it be whole?

Invariants:
- Nothing is changed; what is damaged is marked, for the next backup to read, and to copy again.
- Every file is read to its end; one that is damaged does not keep the others from being read.
- A file that is not there and one that cannot be read are told apart.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from engine.errors import CannotRead, EngineError
from engine.log.log_list import LOGS, decode_list
from engine.replica.snapshots import decode_snapshot
from herd.nodes.facts import SPACES, decode_space
from herdbook.archive.ledger_file import read_blocks
from herdbook.archive.manifest import BackupFolder, StoreManifest

Progress = Callable[[int, int, int], None]
"""Called with how many ledgers were read, how many there are, and how many bytes."""

_FOUND_MAX: Final = 100


class BackupCheck(msgspec.Struct, frozen=True):
    """What a check found. `missing` and `damaged` are in words, at most the first hundred."""

    manifest: StoreManifest
    missing: tuple[str, ...]
    damaged: tuple[str, ...]
    files_bytes: int
    unfinished: bool
    """A later backup was begun and has not come to its end."""

    @property
    def whole(self) -> bool:
        """Whether a store can be made of it."""
        return not self.missing and not self.damaged

    @property
    def tablespaces(self) -> list[str]:
        """The names of the tablespaces that it holds."""
        return tablespaces_of(self.manifest)


def check_backup(
    path: Path, number: int | None = None, progress: Progress | None = None
) -> BackupCheck:
    """Read a backup of a folder (None: the newest), and check every byte. Blocks.

    Raises `CannotRead` where its manifest cannot be read or there is none, `FormatTooNew` for one
    of a newer program, `OSError`.
    """
    folder = BackupFolder(path)
    manifest = folder.read(number)
    missing: list[str] = []
    damaged = list(_loose_ends(manifest))
    files_bytes = length = 0
    for done, kept in enumerate(manifest.ledgers):
        file = folder.ledger(kept.ledger_id, kept.last)
        try:
            for bodies in read_blocks(file, kept.ledger_id, kept.last, kept.length):
                length += sum(map(len, bodies))
                if progress is not None:
                    progress(done, len(manifest.ledgers), length)
            files_bytes += file.stat().st_size
        except FileNotFoundError:
            missing.append(f"{file} is not there")
        except (EngineError, OSError) as error:
            damaged.append(str(error))
            with contextlib.suppress(OSError):
                # Who may only read the folder has told it all the same.
                folder.doubt(kept.ledger_id, kept.last).touch(mode=0o600)
    return BackupCheck(
        manifest=manifest,
        missing=tuple(missing[:_FOUND_MAX]),
        damaged=tuple(damaged[:_FOUND_MAX]),
        files_bytes=files_bytes,
        unfinished=folder.unfinished,
    )


def tablespaces_of(manifest: StoreManifest) -> list[str]:
    """The names of a backup's tablespaces."""
    names = (key.removeprefix(f"{SPACES}/") for key in manifest.keys if key.startswith(SPACES))
    return sorted(name for name in names if "/" not in name)


def _loose_ends(manifest: StoreManifest) -> Iterator[str]:
    """What the keys name that the manifest does not have, in words."""
    there = {kept.ledger_id for kept in manifest.ledgers}
    for key, value in manifest.keys.items():
        try:
            for ledger_id in _named(key, value):
                if ledger_id not in there:
                    yield f"{key} names ledger {ledger_id}, which is in no file"
        except CannotRead as error:
            yield f"{key}: {error}"


def _named(key: str, value: bytes) -> tuple[int, ...]:
    """The ledgers that a key's value cannot do without."""
    if key.startswith(LOGS) and key.endswith("/list"):
        return decode_list(value).ledgers
    if key.startswith(LOGS) and key.endswith("/snapshot"):
        record = decode_snapshot(value, key)
        return (record.ledger_id,) if record.ledger_id else ()
    if key.startswith(SPACES) and "/" not in key.removeprefix(f"{SPACES}/"):
        decode_space(value)
    return ()
