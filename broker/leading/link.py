"""One worker's link, on the leader's side: messages are kept here until the worker reads them.

Invariants:
- Messages arrive in the order in which they were sent.
- The messages that wait for a worker are bounded: it gets only tasks that it has places for, and
  more than `SAID_MAX` unread messages end the link.
- After the end of a link, nothing is sent over it or received from it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from broker.connection import FromBroker, FromWorker
from broker.errors import SessionLost, UnknownCodePool

Hear = Callable[["LocalLink", Sequence[FromWorker]], None]
SAID_MAX: Final = 10_000


class LocalLink:
    """A `WorkerLink` within one process. Made by the leader."""

    def __init__(self, worker_id: str, hear: Hear, ended: Callable[["LocalLink"], None]) -> None:
        self.worker_id = worker_id
        self.session = 0
        self.open = True
        self.code: Callable[[str], bytes] = _no_code
        """Finds a code pool's archive. Raises `UnknownCodePool`."""
        self._hear = hear
        self._ended = ended
        self._reason = "the link was closed"
        self._said: list[FromBroker] = []
        self._waiting: asyncio.Future[None] | None = None

    async def receive(self) -> list[FromBroker]:
        """See `WorkerLink`."""
        while not self._said:
            if not self.open:
                raise SessionLost(self._reason)
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return self.take()

    def take(self) -> list[FromBroker]:
        """The messages that wait, if any."""
        said, self._said = self._said, []
        return said

    async def send(self, messages: list[FromWorker]) -> None:
        """See `WorkerLink`."""
        if not self.open:
            raise SessionLost(self._reason)
        self._hear(self, messages)

    async def fetch_code(self, name: str) -> bytes:
        """See `WorkerLink`."""
        if not self.open:
            raise SessionLost(self._reason)
        return self.code(name)

    async def close(self) -> None:
        """See `WorkerLink`."""
        self.end("the link was closed")

    def say(self, message: FromBroker) -> None:
        """Send a message to the worker, if the link is open."""
        if self.open:
            self._said.append(message)
            if len(self._said) > SAID_MAX:
                self.end("the worker does not read its messages")
            self._wake()

    def end(self, reason: str) -> None:
        """Close the link. Messages that were sent can still be read."""
        if self.open:
            self.open = False
            self._reason = reason
            self._wake()
            self._ended(self)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _no_code(name: str) -> bytes:
    raise UnknownCodePool(f"there is no code pool {name}")
