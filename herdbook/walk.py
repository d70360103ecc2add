"""The files below a folder, and what is there and cannot be stored.

Invariants:
- Every name below the folder is either a file to store or a skipped one with its reason.
- Links are never followed, so a walk always ends and never leaves the folder.
- The order is the same in every run.
"""

import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

LEFT_OUT: Final = frozenset({"__pycache__", "site-packages", ".git"})
"""Folders that hold nothing of their own: caches, other people's packages, version control."""


class Skipped(NamedTuple):
    """A name that was not stored, and why."""

    path: str
    reason: str


def walk(folder: Path) -> tuple[list[Path], list[Skipped]]:
    """The regular files below a folder, and everything else that is there."""
    files: list[Path] = []
    skipped: list[Skipped] = []

    def unreadable(error: OSError) -> None:
        skipped.append(Skipped(str(error.filename), error.strerror or "not readable"))

    for parent, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in sorted([*names, *links]):
            path = Path(parent, name)
            reason = _reason(path)
            if reason is None:
                files.append(path)
            else:
                skipped.append(Skipped(str(path), reason))
    return files, skipped


def _reason(path: Path) -> str | None:
    """Why a name cannot be stored, or None."""
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        return error.strerror or "not readable"
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISLNK(mode):
        return "symbolic link"
    return "socket" if stat.S_ISSOCK(mode) else "no regular file"
