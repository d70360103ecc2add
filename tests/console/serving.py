"""A real store behind the node's HTTP, on the background loop of the test's process.

Invariants:
- Nothing is made up for a page: bookies, tables, objects, tasks and roll-outs are the store's own.
- The same store is served twice: to everybody, and to those who are known.
"""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from starlette.types import ASGIApp

from broker.service import Broker
from broker.settings import BrokerSettings
from engine.access.port import Authenticator
from engine.ports.system_loop import background_loop
from herdbook.book import AsyncBook, open_async
from herdbook.http.app import create_app
from herdbook.http.house import House, house_of
from herdbook.http.rates import Sampler
from herdbook.http_listening import answer_at, listening_at, url_of

A = TypeVar("A")
BOOKIES: Final = 3
_ANY_PORT: Final = "127.0.0.1:0"
# A worker of a test sends no heartbeats.
_BROKER: Final = BrokerSettings(lease_ms=600_000)


@dataclass(frozen=True, slots=True)
class Served:
    """A store and where it is served: to everybody, and to those who are known."""

    book: AsyncBook
    broker: Broker
    house: House
    url: str
    guarded_url: str

    async def look(self) -> None:
        """Have the charts know what has happened so far."""
        await Sampler(self.house).look()

    def run(self, work: Callable[[], Coroutine[Any, Any, A]]) -> A:
        """Do something where the store runs."""
        return background_loop().run(work)


@contextmanager
def served(folder: Path, authenticator: Authenticator) -> Iterator[Served]:
    """A store as long as the block lasts."""
    stack = AsyncExitStack()

    async def begin() -> Served:
        book = await stack.enter_async_context(open_async(folder, bookies=BOOKIES, broker=_BROKER))
        house = await house_of(book, name="north barn")
        assert isinstance(house.desk.calls, Broker)
        return Served(
            book,
            house.desk.calls,
            house,
            await _listening(stack, create_app(house)),
            await _listening(stack, create_app(house, authenticator)),
        )

    loop = background_loop()
    try:
        yield loop.run(begin)
    finally:
        loop.run(stack.aclose)


async def _listening(stack: AsyncExitStack, app: ASGIApp) -> str:
    """Serve an application at a free port until the stack ends; its address."""
    listening = stack.enter_context(listening_at(_ANY_PORT))
    await answer_at(stack, app, listening)
    return url_of(_ANY_PORT, listening, secure=False)
