"""The server of framed connections: several bookies, and metadata sessions, behind one address.

Invariants:
- All connections together hold a bounded number of bytes, some of it kept free for recoveries.
- The holders of one user's read tokens have a quarter of what reads may hold, and of the calls that
  all readers may make at once, however many connections they have.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from engine.access.door import Caller, Door
from engine.access.shares import PARTS, Share, Shares
from engine.errors import EngineError, Overloaded
from engine.limits import ENTRY_BYTES_MAX
from engine.metadata.contract import MetadataStore
from engine.transport.allowance import Allowance
from engine.transport.contract import Bookie
from engine.transport.framed_settings import FramedSettings
from engine.transport.metadata_session import WATCHES_MAX
from engine.transport.security import NO_SECURITY, Security
from engine.transport.server_connection import ServerConnection
from engine.transport.serving import ConnectionServer


class FramedServer(ConnectionServer[ServerConnection]):
    """Serves bookies and metadata sessions. `accept` makes the protocol of a new connection.

    `admit(options)` looks at a greeting's options and raises to refuse; `open_session(caller)`
    gives a metadata session; `control(head)` answers CONTROL frames. A `door` lets readers in.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        admit: Callable[[dict[str, Any]], None] | None = None,
        open_session: Callable[[Caller], MetadataStore] | None = None,
        control: Callable[[bytes], Awaitable[bytes]] | None = None,
        options: dict[str, Any] | None = None,
        settings: FramedSettings | None = None,
        security: Security = NO_SECURITY,
        door: Door | None = None,
    ) -> None:
        self.settings = settings or FramedSettings()
        super().__init__(
            partial(ServerConnection, self),
            connections_max=self.settings.connections_max,
            greeting_ms=self.settings.connect_timeout_ms,
            security=security,
            door=door,
        )
        self.admit = admit
        self.open_session = open_session
        self.control = control
        self.options = dict(options or {}) | {"cluster": cluster_id}
        self.bookies: dict[str, Bookie] = {}
        self.watches = Shares(WATCHES_MAX)
        """The watches of all metadata sessions."""
        self.frames = Allowance(self.settings.frames_bytes_max, self.settings.urgent_bytes)
        self.appends = Allowance(self.settings.appends_bytes_max, self.settings.urgent_bytes)
        self.reads = Allowance(self.settings.reads_bytes_max, self.settings.urgent_bytes)
        self.readers = Shares(PARTS * self.settings.calls_max)
        """What holders of read tokens ask that was not answered yet."""
        usual_bytes = self.settings.reads_bytes_max - self.settings.urgent_bytes
        self._reads_of_readers = Shares(usual_bytes, ENTRY_BYTES_MAX)

    def add(self, bookie: Bookie) -> None:
        """Serve a bookie."""
        assert bookie.bookie_id not in self.bookies, bookie.bookie_id
        self.bookies[bookie.bookie_id] = bookie

    def reads_of(self, user: str) -> Share:
        """What a user's reads hold, over all connections."""
        return Share(self._reads_of_readers, user)

    def remove(self, bookie_id: str) -> None:
        """Serve a bookie no more; clients are told. It may be unknown."""
        if self.bookies.pop(bookie_id, None) is not None:
            for connection in list(self.connections):
                connection.drop(bookie_id)

    def refusal(self) -> EngineError | None:
        """Why one more connection is not served, if it is not."""
        if super().refusal() is None:
            return None
        return Overloaded("too many connections: close some, or try another bookie")
