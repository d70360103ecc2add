"""Files and sockets that this process may have open, and how many of them are left.

Who is there already needs more of them at any time: a journal its next segment, RocksDB the files
of a table, a query the memory that it shares. So newcomers, which are connections and states of
tablespaces, are refused while the last ones are left. States are refused first, for they stay:
whoever wants to drop some must still be able to connect.

Invariants:
- What is looked at is the lowest free number: all below it are open, so it is never too low a
  guess of how many are.
"""

import os
import resource
from contextlib import suppress
from typing import Final

WANTED: Final = 65_536
FEW: Final = 4_096
"""With fewer a node has less room for connections and tablespaces than it is made for."""
_RESERVE_MAX: Final = 256
_RESERVE_PART: Final = 8


def files_max() -> int:
    """How many this process may have open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if files == resource.RLIM_INFINITY else files


def raise_files_max() -> int:
    """Allow this process, and those that it starts, as many as the system lets it; how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return files_max()


def reserve_of(files: int) -> int:
    """How many of so many are kept for who is there already."""
    return min(_RESERVE_MAX, files // _RESERVE_PART)


def are_short(descriptor: int | None = None, *, reserves: float = 1) -> bool:
    """Whether no more than the reserve is left, or so many times the reserve.

    `descriptor` is one that was just opened; without it, one is opened to see.
    """
    files = files_max()
    return _lowest_free(descriptor, files) >= files - reserves * reserve_of(files)


def told_short() -> str:
    """What to do when they are."""
    return (
        f"this process has nearly all of the {files_max()} files open that it may have: "
        "close connections, or raise LimitNOFILE= of its unit (ulimit -n) and start it again"
    )


def _lowest_free(descriptor: int | None, files: int) -> int:
    if descriptor is not None:
        return descriptor
    try:
        seen = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return files
    os.close(seen)
    return seen
