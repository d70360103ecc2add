"""The server of framed connections: several bookies, and metadata sessions, behind one address.

Invariants:
- No more connections are served at once than the settings say; one more is told so, if it is not
  one of many.
- All connections together hold a bounded number of bytes, some of it kept free for recoveries.
- With security on, nobody is served who has not proved what is asked for.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

from engine.metadata.contract import MetadataStore
from engine.transport.allowance import Allowance
from engine.transport.connection import FramedConnection
from engine.transport.contract import Bookie
from engine.transport.framed_settings import FramedSettings
from engine.transport.greeting import ServerGreeting
from engine.transport.security import NO_SECURITY, Security
from engine.transport.server_connection import ServerConnection

_TOLD_MAX: Final = 16


class FramedServer:
    """Serves bookies and metadata sessions. `accept` makes the protocol of a new connection.

    `admit(options)` looks at a greeting's options and raises to refuse; `open_session()` gives a
    metadata session; `control(head)` answers CONTROL frames. Who listens gives `context` to the
    listener. Raises `InvalidRequest` for security that cannot be used.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        admit: Callable[[dict[str, Any]], None] | None = None,
        open_session: Callable[[], MetadataStore] | None = None,
        control: Callable[[bytes], Awaitable[bytes]] | None = None,
        options: dict[str, Any] | None = None,
        settings: FramedSettings | None = None,
        security: Security = NO_SECURITY,
    ) -> None:
        self.settings = settings or FramedSettings()
        self.admit = admit
        self.open_session = open_session
        self.control = control
        self.options = dict(options or {}) | {"cluster": cluster_id}
        self.bookies: dict[str, Bookie] = {}
        self.connections: dict[ServerConnection, None] = {}
        self.frames = Allowance(self.settings.frames_bytes_max, self.settings.urgent_bytes)
        self.appends = Allowance(self.settings.appends_bytes_max, self.settings.urgent_bytes)
        self.reads = Allowance(self.settings.reads_bytes_max, self.settings.urgent_bytes)
        self.context: ssl.SSLContext | None = security.server_context()
        self._security = security
        self._binding = security.binding()
        self._closed = False

    def add(self, bookie: Bookie) -> None:
        """Serve a bookie."""
        assert bookie.bookie_id not in self.bookies, bookie.bookie_id
        self.bookies[bookie.bookie_id] = bookie

    def remove(self, bookie_id: str) -> None:
        """Serve a bookie no more; clients are told. It may be unknown."""
        if self.bookies.pop(bookie_id, None) is not None:
            for connection in list(self.connections):
                connection.drop(bookie_id)

    def accept(self) -> FramedConnection:
        """The protocol of one more connection, for `loop.create_server` and its like."""
        return ServerConnection(self).wire

    def accept_counted(self) -> tuple[FramedConnection, "asyncio.Future[None]"]:
        """The same for a `Listener`, with what is done when the connection has ended."""
        connection = ServerConnection(self)
        return connection.wire, connection.ended

    @property
    def sockets_max(self) -> int:
        """How many may be open at once, with those that are only told that they are too many."""
        return self.settings.connections_max + _TOLD_MAX

    def may_accept(self) -> bool:
        """Whether one more connection is within bounds."""
        return not self._closed and len(self.connections) < self.settings.connections_max

    def greeting(self) -> ServerGreeting:
        """What one more connection has to prove."""
        return ServerGreeting(self._security, self._binding)

    async def close(self) -> None:
        """End all connections, after what they owe has been sent, and their sessions."""
        self._closed = True
        connections = list(self.connections)
        for connection in connections:
            connection.finish()
        if connections:
            await asyncio.wait([connection.ended for connection in connections], timeout=1)
        for connection in connections:
            connection.wire.abort()
        if connections:
            await asyncio.wait([connection.ended for connection in connections])
