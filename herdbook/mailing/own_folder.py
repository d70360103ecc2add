"""A folder of a demonstration's own: all that it and its processes put down for a while.

Invariants:
- Whoever has such a folder holds the lock of a file in it. The system lets go of it when that
  process ends, however.
- Only a folder of this user is swept, and only if it has that file and nobody holds it.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Final

PREFIX: Final = "herdbook-demo-"
LOCK_NAME: Final = "in-use"
_VARIABLE: Final = "TMPDIR"


@contextmanager
def own_folder() -> Iterator[Path]:
    """A new folder as long as the block lasts; what killed demonstrations have left is removed.

    Meanwhile it is where this process and its children put temporary files. Raises `OSError`.
    """
    sweep(Path(tempfile.gettempdir()))
    folder, lock = _make()
    before, named = tempfile.tempdir, os.environ.get(_VARIABLE)
    tempfile.tempdir = os.environ[_VARIABLE] = str(folder)
    try:
        with lock:
            yield folder
    finally:
        tempfile.tempdir = before
        os.environ.pop(_VARIABLE)
        if named is not None:
            os.environ[_VARIABLE] = named
        remove(folder)


def sweep(parent: Path) -> None:
    """Remove the folders of demonstrations that ended without doing so."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            state = folder.lstat()
            if stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid():
                with FileIO(folder / LOCK_NAME) as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder, also one into which a process that is being ended still writes."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def _make() -> tuple[Path, FileIO]:
    """A folder, and the file in it whose lock is held."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        file = FileIO(folder / LOCK_NAME, "w")
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (folder / LOCK_NAME).exists():
                return folder, file
        # Somebody swept it between these two lines.
        file.close()
