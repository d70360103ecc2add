"""Ports of a cluster for development: those that people know, or free ones, each for one cluster.

Invariants:
- Between the look and the moment at which a server listens, no other cluster of this machine takes
  the same port: whoever wants it holds the port's name for as long as the cluster is there.
"""

import contextlib
import socket
import sys
import time
from contextlib import ExitStack
from typing import Final

from herdbook.zookeeper_server import ZooKeeperFailed, free_port

_TRIES: Final = 100
_LOOK_S: Final = 0.05


class Ports:
    """Takes ports of one address; a context manager, whose end gives them back."""

    def __init__(self, host: str, patience_s: float = 0.0) -> None:
        """`patience_s` is how long it waits for well-known ports, all of them together."""
        self._host = host
        self._until_s = time.monotonic() + patience_s
        self._stack = ExitStack()
        self.moved: dict[str, tuple[int, int]] = {}
        """Whose port somebody else has, which that is, and the one that was taken instead."""

    def take(self, whose: str, wanted: int) -> int:
        """The port that people know, or a free one where somebody has it.

        Raises `ZooKeeperFailed` where none is free.
        """
        while not self._hold(wanted):
            if time.monotonic() >= self._until_s:
                break
            time.sleep(_LOOK_S)
        else:
            return wanted
        for _ in range(_TRIES):
            port = free_port(self._host)
            if self._hold(port):
                self.moved[whose] = wanted, port
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
