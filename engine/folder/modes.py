"""What servers write is their user's alone: folders of mode 0700, files of mode 0600.

Invariants:
- A folder of another user, and one that all share (sticky, as /tmp), keeps its mode.
"""

import os
import stat
from pathlib import Path
from typing import Final

from engine.ports.system_disk import naming

_OTHERS: Final = 0o077


def write_for_ourselves() -> None:
    """Let nobody else read what this process, and those that it starts, make from now on."""
    os.umask(os.umask(_OTHERS) | _OTHERS)


def make_own(folder: Path) -> None:
    """Make a folder for this user alone, or take one that is there from all others.

    Raises `OSError`.
    """
    make_closed(folder)
    close_to_others(folder)


def make_closed(folder: Path) -> None:
    """Make a folder and those above it that are missing, for this user alone. It may exist.

    Raises `OSError`.
    """
    missing = [each for each in folder.parents if not each.exists()]
    for each in (*reversed(missing), folder):
        with naming(each):
            each.mkdir(mode=0o700, exist_ok=True)


def close_to_others(folder: Path) -> None:
    """Take a folder of this user from all others. Raises `OSError`."""
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid() and mode & _OTHERS and not mode & stat.S_ISVTX:
        folder.chmod(mode & ~_OTHERS)
