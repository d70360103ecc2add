"""A metadata session that a server keeps for one connection: calls and watches in frames.

Invariants:
- The session ends with its connection, and its watches with it.
- If a call raises, the client gets an ERROR. A watch on an invalid key ends the connection.
- The watches of all sessions of a server are bounded in number, and each user has a share of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from engine.access.shares import Shares
from engine.errors import EngineError, FrameInvalid
from engine.metadata.contract import MetadataStore
from engine.metadata.remote_messages import Watch
from engine.metadata.remote_session import serve
from engine.transport.frames import Frame, Kind
from engine.transport.messages import decode

SESSION: Final = "session"
"""The option of HELLO that asks for a metadata session."""
CLUSTER: Final = "cluster"
"""In WELCOME: the id of the cluster."""
PATH: Final = "path"
"""In WELCOME: the path of the cluster in ZooKeeper."""
NODES: Final = "nodes"
"""In WELCOME: the addresses of other servers that serve the same metadata."""
WATCHES_MAX: Final = 100_000
"""How many watches all sessions of a server may have; a part of the cluster may have them all."""


class MetadataSession:
    """A session of the store, reached through frames. `send(kind, request, head)` sends a frame.

    `watches` counts the watches of all sessions. Those of this session count in the share of
    `user`, which is "" for a part of the cluster.
    """

    def __init__(
        self,
        store: MetadataStore,
        send: Callable[[Kind, int, bytes], None],
        watches: Shares,
        user: str = "",
    ) -> None:
        self._store = store
        self._send = send
        self._held = watches
        self._user = user
        self._watches: dict[int, Callable[[], None]] = {}

    async def answer(self, frame: Frame) -> None:
        """Do the call in a METADATA frame. Raises `FrameInvalid`, and what the store raises."""
        self._send(Kind.METADATA_REPLY, frame.request, await serve(self._store, frame.head))

    def watch(self, frame: Frame) -> None:
        """Begin a watch, with the request number of its frame. Raises `FrameInvalid`."""
        self.unwatch(frame)
        key = decode(frame.head, Watch).key
        if not self._held.take(self._user):
            raise FrameInvalid("too many watches: end some, or connect to another node")
        tell = partial(self._send, Kind.CHANGED, frame.request, b"")
        try:
            self._watches[frame.request] = self._store.watch(key, tell)
        except EngineError as error:
            self._held.give_back(self._user)
            raise FrameInvalid(f"cannot watch {key[:100]!r}: {error}") from error

    def unwatch(self, frame: Frame) -> None:
        """End the watch with the request number of the frame, if there is one."""
        end = self._watches.pop(frame.request, None)
        if end is not None:
            self._held.give_back(self._user)
            end()

    def end_watches(self) -> None:
        """End all watches: the connection is lost, so changes can no longer be reported."""
        watches, self._watches = self._watches, {}
        if watches:
            self._held.give_back(self._user, len(watches))
        for end in watches.values():
            end()

    async def close(self) -> None:
        """End the session in the store."""
        self.end_watches()
        await self._store.close()
