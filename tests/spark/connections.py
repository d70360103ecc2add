"""Who is connected to whom on this machine, as Linux tells it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ESTABLISHED: Final = "01"
_OF_TASKS: Final = ("pyspark.daemon", "pyspark.worker")
"""What a process of tasks was started with; those that plan are started with other modules."""


def task_processes() -> list[int]:
    """The processes below this one in which Spark's tasks run, and the one that forks them."""
    parents = {
        int(one.name): _parent_of(one) for one in Path("/proc").iterdir() if one.name.isdigit()
    }
    return [pid for pid in parents if _is_below(pid, parents) and _runs_tasks(pid)]


def ports_of(pid: int) -> set[int]:
    """The ports that a process is connected to by TCP."""
    sockets = set(_sockets_of(pid))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, _, remote, state, *_, inode = line.split()[:10]
            if state == _ESTABLISHED and inode in sockets:
                found.add(int(remote.rpartition(":")[2], 16))
    return found


def _parent_of(process: Path) -> int:
    try:
        # The command's name is in brackets, and may have any of them in it.
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid and pid != os.getpid():
        pid = parents.get(pid, 0)
    return bool(pid)


def _runs_tasks(pid: int) -> bool:
    try:
        said = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return all(one in said for one in _OF_TASKS)


def _sockets_of(pid: int) -> Iterator[str]:
    for end in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = end.readlink()
        except FileNotFoundError:
            continue
        kind, _, inode = str(target).partition(":")
        if kind == "socket":
            yield inode.strip("[]")
