"""One worker's link, seen from the leader: what is said gathers here until the worker takes it.

Invariants:
- Messages arrive in the order in which they were said.
- What waits for a worker is bounded: nothing is assigned that it has no place for, and who lets
  more than `SAID_MAX` messages lie has a broken link.
- After the end of a link nothing is said over it and nothing is heard from it.
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
        """What has been said by now, if anything."""
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
        """Say something to the worker, if it still listens."""
        if self.open:
            self._said.append(message)
            if len(self._said) > SAID_MAX:
                self.end("the worker does not read what it is told")
            self._wake()

    def end(self, reason: str) -> None:
        """Say nothing more; what was said is still taken."""
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
