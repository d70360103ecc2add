"""Only the servers' own user may read what they write: folders have mode 0700, files 0600.

Invariants:
- A folder of another user, or one that all users share (sticky, like /tmp), keeps its mode.
"""

import os
import stat
from pathlib import Path
from typing import Final

from engine.ports.system_disk import naming

_OTHERS: Final = 0o077


def set_private_umask() -> None:
    """Set the umask so that no other user can read new files of this process and its children."""
    os.umask(os.umask(_OTHERS) | _OTHERS)


def ensure_private(folder: Path) -> None:
    """Create a folder for this user alone, or restrict an existing one to this user.

    Raises `OSError`.
    """
    create_private(folder)
    make_private(folder)


def create_private(folder: Path) -> None:
    """Create a folder and its missing parents, for this user alone. The folder may exist.

    Raises `OSError`.
    """
    missing = [each for each in folder.parents if not each.exists()]
    for each in (*reversed(missing), folder):
        with naming(each):
            each.mkdir(mode=0o700, exist_ok=True)


def make_private(folder: Path) -> None:
    """Remove all other users' rights to a folder of this user. Raises `OSError`."""
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid() and mode & _OTHERS and not mode & stat.S_ISVTX:
        folder.chmod(mode & ~_OTHERS)
