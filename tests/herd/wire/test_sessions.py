"""Sessions mean the same in this process and through a socket."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.herd.wire.sessions_contract import Opened, SessionsContract
from tests.herd.wire.wiring import embedded, through_socket


class TestEmbedded(SessionsContract):
    """In this process."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Opened]:
        return embedded(path)


class TestThroughSocket(SessionsContract):
    """Run by another opener."""

    @staticmethod
    def open(path: Path) -> AbstractAsyncContextManager[Opened]:
        return through_socket(path)
