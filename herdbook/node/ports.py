"""Ports of a cluster for development: the well-known ones, or free ones, each for one cluster.

Invariants:
- Between the check and the moment at which a server listens, no other cluster of this machine takes
  the same port: a cluster holds the port's name for as long as it runs.
- A cluster that is started again has the ports that it had, as long as they are free: its url
  stays, and nodes at their old addresses need not wait until their old sessions end.
"""

import contextlib
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from herdbook.zookeeper_server import ZooKeeperFailed, free_port

_TRIES: Final = 100
_LOOK_S: Final = 0.05


def _read(file: Path | None) -> dict[str, int]:
    """The ports in the file; none if it cannot be read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, int]) if file else {}
    except (OSError, msgspec.MsgspecError):
        return {}


class Ports:
    """Takes ports of one address; a context manager, whose end gives them back."""

    def __init__(self, host: str, patience_s: float = 0.0, file: Path | None = None) -> None:
        """`file` remembers the ports. `patience_s` is how long it waits, for all ports together,
        for those that it had before and for well-known ones."""
        self._host = host
        self._file = file
        self._had = _read(file)
        self._taken: dict[str, int] = {}
        self._until_s = time.monotonic() + patience_s
        self._stack = ExitStack()
        self.moved: dict[str, tuple[int, int]] = {}
        """Whose port somebody else has, which that is, and the one that was taken instead."""

    def take(self, whose: str, wanted: int) -> int:
        """The port that it had before, else the well-known one, else a free one.

        Raises `ZooKeeperFailed` if none is free.
        """
        had = self._had.get(whose, wanted)
        if self._awaited(had):
            port = had
        else:
            port = wanted if had != wanted and self._hold(wanted) else self._free()
        if port != wanted:
            self.moved[whose] = wanted, port
        self._taken[whose] = port
        return port

    def remember(self) -> None:
        """Write the chosen ports to the file. Raises `OSError`."""
        if self._file is not None:
            new = self._file.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(self._taken))
            new.replace(self._file)

    def _awaited(self, port: int) -> bool:
        while not self._hold(port):
            if time.monotonic() >= self._until_s:
                return False
            time.sleep(_LOOK_S)
        return True

    def _free(self) -> int:
        for _ in range(_TRIES):
            port = free_port(self._host)
            if self._hold(port):
                return port
        raise ZooKeeperFailed(f"no port of {self._host} is free")

    def __enter__(self) -> "Ports":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _hold(self, port: int) -> bool:
        """Hold a port's name, and then look whether somebody listens there."""
        with ExitStack() as stack:
            if sys.platform == "linux":
                # The system forgets such a name with its process, and keeps no file. The port
                # itself cannot be kept: its server has to listen there.
                name = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                try:
                    name.bind(f"\0herdbook port {self._host}:{port}")
                except OSError:
                    return False
            with contextlib.suppress(ZooKeeperFailed):
                free_port(self._host, port)
                self._stack.push(stack.pop_all())
                return True
        return False
