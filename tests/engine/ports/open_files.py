"""Which files a process has open, as Linux tells it."""

import os
from contextlib import suppress
from pathlib import Path


def is_open(path: Path, process: int | None = None) -> bool:
    """Whether this process, or another one, has a file open."""
    for file in Path(f"/proc/{process or os.getpid()}/fd").iterdir():
        # Others it may close meanwhile.
        with suppress(FileNotFoundError):
            if file.readlink() == path:
                return True
    return False
