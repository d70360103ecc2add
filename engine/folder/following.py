"""The store and the bookies of a folder, whoever owns it at the moment.

Invariants:
- A call that has not been sent waits for the next owner; how long is its caller's business.
- A read that lost its owner is asked again of the next one, once; a write is not: its outcome is
  unknown, and the error says so.
- Watches outlive owners: each fires once after a change of owner.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from engine.errors import BookieUnavailable, EngineError, InvalidRequest, MetadataUnavailable
from engine.folder.member import FolderMember, Link, unavailable
from engine.metadata.contract import MetadataStore, Page, Versioned
from engine.metadata.losses import Losses
from engine.run import Run
from engine.transport.contract import (
    AppendReply,
    Bookie,
    BookieInfo,
    LacReply,
    LedgerFacts,
    ReadReply,
    ReadRequest,
    Status,
)
from engine.transport.framed_bookie import FramedBookie

T = TypeVar("T")


class FolderStore:
    """A `MetadataStore` that goes from owner to owner."""

    def __init__(self, member: FolderMember) -> None:
        self._member = member
        self._cluster_id = ""
        self._watches: dict[object, _Watch] = {}
        self._losses = Losses()
        self._last: Link | None = None
        member.when_changed(self._on_changed)
        self._on_changed()

    @property
    def cluster_id(self) -> str:
        """The random id of the folder's cluster."""
        return self._cluster_id

    async def get(self, key: str) -> Versioned | None:
        """The value, or None if the key is positively absent."""
        return await self._read(lambda store: store.get(key))

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """Make a key; an ephemeral one goes with the owner of the moment."""
        return await (await self._store()).create(key, value, ephemeral=ephemeral)

    async def set(self, key: str, value: bytes, version: int) -> int:
        """Compare-and-set; returns the new version."""
        return await (await self._store()).set(key, value, version)

    async def delete(self, key: str, version: int | None = None) -> None:
        """Remove a key; an absent one is a success."""
        await (await self._store()).delete(key, version)

    async def children(self, prefix: str) -> list[str]:
        """The names directly under `prefix`, sorted."""
        return await self._read(lambda store: store.children(prefix))

    async def page(self, prefix: str, above: int = -1) -> Page:
        """The next numbers directly under `prefix` that are greater than `above`."""
        return await self._read(lambda store: store.page(prefix, above))

    async def next_id(self, counter: str) -> int:
        """A number never given before: one lost on the way is a gap."""
        return await self._read(lambda store: store.next_id(counter))

    async def sync(self) -> None:
        """After it returns, reads see every write that had returned anywhere before."""
        await self._read(lambda store: store.sync())

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when the key or the names under it may have changed."""
        self._member.check()
        identity = object()
        watch = self._watches[identity] = _Watch(key, changed)
        link = self._member.now()
        if link is not None:
            watch.end = link.store.watch(key, changed)

        def end() -> None:
            if self._watches.pop(identity, None) is not None:
                watch.end()

        return end

    def watch_session(self, lost: Callable[[], None]) -> Callable[[], None]:
        """Call `lost` when another owner has come: what was ephemeral went with the one before."""
        return self._losses.watch(lost)

    async def close(self) -> None:
        """End the watches. The session is the folder's, and ends with it."""
        for watch in self._watches.values():
            watch.end()
        self._watches.clear()

    async def _store(self) -> MetadataStore:
        return (await self._link()).store

    async def _link(self) -> Link:
        try:
            return await self._member.link()
        except (InvalidRequest, MetadataUnavailable):
            raise
        except EngineError as error:
            raise unavailable(error) from error

    async def _read(self, ask: Callable[[MetadataStore], Awaitable[T]]) -> T:
        link = await self._link()
        try:
            return await ask(link.store)
        except MetadataUnavailable:
            if self._member.now() is link:
                raise
        return await ask(await self._store())

    def _on_changed(self) -> None:
        link = self._member.now()
        if link is not None:
            self._cluster_id = link.store.cluster_id
            if self._last not in (None, link):
                self._losses.tell(asyncio.get_running_loop())
            self._last = link
            for watch in list(self._watches.values()):
                watch.end = link.store.watch(watch.key, watch.changed)
                watch.changed()


class _Watch:
    """A key, whom to tell, and the way to end the watch at the store of the moment."""

    def __init__(self, key: str, changed: Callable[[], None]) -> None:
        self.key = key
        self.changed = changed
        self.end: Callable[[], None] = _nothing


def _nothing() -> None:
    """There is no store at the moment: nothing to end."""


class FolderTransport:
    """A `Transport` to the folder's bookies, wherever they run."""

    def __init__(self, member: FolderMember) -> None:
        self._member = member

    async def connect(self, bookie_id: str) -> Bookie:
        """A connection to a bookie, once the folder has an owner. Raises `BookieUnavailable`."""
        try:
            link = await self._member.link()
        except InvalidRequest:
            raise
        except EngineError as error:
            raise BookieUnavailable(f"the folder has no owner at the moment: {error}") from error
        bookie = await link.transport.connect(bookie_id)
        return FollowedBookie(self, bookie) if isinstance(bookie, FramedBookie) else bookie

    async def close(self) -> None:
        """Nothing to close: the connections are the folder's."""


class FollowedBookie:
    """A bookie in the owner's process. Reads are asked again of the next owner's."""

    def __init__(self, transport: FolderTransport, bookie: FramedBookie) -> None:
        self.bookie_id = bookie.bookie_id
        self._transport = transport
        self._bookie = bookie

    def append(
        self,
        runs: Sequence[Run],
        reply: Callable[[AppendReply], None],
        *,
        key: bytes,
        facts: LedgerFacts | None = None,
        recovery: bool = False,
    ) -> None:
        """Store runs of one ledger; see `Bookie.append`."""
        self._bookie.append(runs, reply, key=key, facts=facts, recovery=recovery)

    def confirm(self, ledger_id: int, lac: int) -> None:
        """Tell the LAC; see `Bookie.confirm`."""
        self._bookie.confirm(ledger_id, lac)

    def record(self, facts: LedgerFacts, key: bytes) -> None:
        """Store new facts; see `Bookie.record`."""
        self._bookie.record(facts, key)

    async def read(self, request: ReadRequest) -> ReadReply:
        """Read entries; see `Bookie.read`."""
        reply = await self._bookie.read(request)
        if reply.status is Status.UNAVAILABLE and (other := await self._next()) is not None:
            return await other.read(request)
        return reply

    async def fence(self, ledger_id: int, key: bytes) -> LacReply:
        """Fence a ledger; see `Bookie.fence`."""
        reply = await self._bookie.fence(ledger_id, key)
        if reply.status is Status.UNAVAILABLE and (other := await self._next()) is not None:
            return await other.fence(ledger_id, key)
        return reply

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacReply:
        """Wait for the LAC; see `Bookie.wait_lac`."""
        return await self._bookie.wait_lac(ledger_id, above, timeout_ms)

    async def info(self) -> BookieInfo:
        """Identity and space. Raises `BookieUnavailable`."""
        return await self._bookie.info()

    async def _next(self) -> Bookie | None:
        """The same bookie at the next owner; None if it was not the owner that was lost."""
        if not self._bookie.connection.over:
            return None
        try:
            return await self._transport.connect(self.bookie_id)
        except BookieUnavailable:
            return None
