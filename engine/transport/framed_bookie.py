"""A bookie at the other end of a framed connection, and the transport that finds it.

Invariants:
- A lost connection answers UNAVAILABLE to all that is pending and to all that follows; a new
  `connect` makes a new connection.
- An append is answered once even if it had to be sent in several frames, and with OK only if every
  frame was.
- After a failed dial an address is left alone for a while, longer each time, with jitter.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from engine.errors import BookieUnavailable, EngineError, FrameInvalid, Overloaded
from engine.limits import FRAME_BYTES_MAX
from engine.ports.clock import Clock
from engine.run import NO_ENTRY, Run
from engine.transport import messages
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
from engine.transport.framed_client import ClientConnection, PendingAppend, refuse
from engine.transport.framed_settings import FramedSettings
from engine.transport.frames import Kind
from engine.transport.splitting import JoinedReply, split

_CLOSE_S: Final = 1.0
_RUNS_BYTES_MAX: Final = FRAME_BYTES_MAX // 2


class FramedBookie:
    """A `Bookie` behind a connection."""

    def __init__(self, connection: ClientConnection, bookie_id: str, target: int) -> None:
        self.bookie_id = bookie_id
        self.connection = connection
        self._target = target

    @classmethod
    async def reach(cls, connection: ClientConnection, bookie_id: str) -> "FramedBookie":
        """Reach a bookie through a connection. Raises `BookieUnavailable`."""
        head = messages.encode(messages.Connect(bookie_id))
        frame = await connection.call(Kind.CONNECT, head)
        try:
            target = messages.decode(frame.head, messages.Connected).target
        except FrameInvalid as error:
            connection.abort(error)
            raise BookieUnavailable(str(error)) from error
        return cls(connection, bookie_id, target)

    @property
    def gone(self) -> bool:
        """Whether nothing can be had through this object any more: connect again."""
        return self.connection.over or self._target in self.connection.gone_targets

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
        connection, wire = self.connection, self.connection.wire
        requests = (runs,) if len(runs) == 1 else split(runs, _RUNS_BYTES_MAX)
        if len(requests) > 1:
            reply = JoinedReply(reply, len(requests), runs[0].first, runs[-1].last).add
        for request in requests:
            newest = request[-1]
            last, ledger_id = newest.first + newest.count - 1, newest.ledger_id
            first = request[0].first
            pending = PendingAppend(reply, self.bookie_id, ledger_id, first, last, 0.0)
            if wire.over:
                refuse(pending, Status.UNAVAILABLE)
            elif wire.queued_bytes > connection.settings.send_bytes_max:
                refuse(pending, Status.OVERLOADED)
            else:
                head, body = messages.encode_append(request, key, facts, recovery)
                connection.append(head, body, self._target, pending, urgent=recovery)
            facts = None

    def confirm(self, ledger_id: int, lac: int) -> None:
        """Tell the LAC; see `Bookie.confirm`."""
        head = messages.encode_confirm(ledger_id, lac)
        self.connection.post(Kind.CONFIRM, head, target=self._target)

    def record(self, facts: LedgerFacts, key: bytes) -> None:
        """Store new facts; see `Bookie.record`."""
        head = messages.encode(messages.Record(facts, key))
        self.connection.post(Kind.RECORD, head, target=self._target)

    async def read(self, request: ReadRequest) -> ReadReply:
        """Read entries; see `Bookie.read`."""
        head = messages.encode(
            messages.Read(
                request.ledger_id,
                request.first,
                request.last,
                request.max_bytes,
                request.fence_key,
            )
        )
        try:
            frame = await self.connection.call(Kind.READ, head, target=self._target)
            return messages.decode_read_reply(frame, self.bookie_id)
        except EngineError as error:
            status = self._status_of(error)
            return ReadReply(status, (), None, None, NO_ENTRY, self.bookie_id, 0)

    async def fence(self, ledger_id: int, key: bytes) -> LacReply:
        """Fence a ledger; see `Bookie.fence`."""
        return await self._lac(Kind.FENCE, messages.encode(messages.Fence(ledger_id, key)), 0)

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacReply:
        """Wait for the LAC; see `Bookie.wait_lac`."""
        head = messages.encode(messages.WaitLac(ledger_id, above, timeout_ms))
        return await self._lac(Kind.WAIT_LAC, head, timeout_ms)

    async def info(self) -> BookieInfo:
        """Identity and space. Raises `BookieUnavailable`."""
        frame = await self.connection.call(Kind.INFO, b"", target=self._target)
        try:
            said = messages.decode(frame.head, messages.Info)
        except FrameInvalid as error:
            self.connection.abort(error)
            raise BookieUnavailable(str(error)) from error
        return BookieInfo(
            self.bookie_id,
            said.boot,
            said.cluster_id,
            said.writable,
            said.total_bytes,
            said.free_bytes,
            said.taken_entries,
            said.taken_bytes,
        )

    async def close(self) -> None:
        """End the connection; pending replies become UNAVAILABLE."""
        connection = self.connection
        if not connection.over:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            connection.when_lost(partial(_settle, ended))
            connection.close()
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await ended
            except TimeoutError:
                connection.abort(BookieUnavailable("the connection did not end in time"))

    async def _lac(self, kind: Kind, head: bytes, patience_ms: int) -> LacReply:
        try:
            frame = await self.connection.call(
                kind, head, target=self._target, patience_ms=patience_ms
            )
            return messages.decode_lac_reply(frame.head, self.bookie_id)
        except EngineError as error:
            return LacReply(self._status_of(error), NO_ENTRY, self.bookie_id, 0)

    def _status_of(self, error: EngineError) -> Status:
        if isinstance(error, FrameInvalid):
            self.connection.abort(error)
        return Status.OVERLOADED if isinstance(error, Overloaded) else Status.UNAVAILABLE


class FramedTransport:
    """Finds bookies through framed connections, one an address.

    `find(bookie_id)` tells a bookie's address, or raises `BookieUnavailable`.
    """

    def __init__(
        self,
        find: Callable[[str], Awaitable[str]],
        *,
        clock: Clock,
        rng: random.Random,
        options: dict[str, Any] | None = None,
        settings: FramedSettings | None = None,
    ) -> None:
        self._find = find
        self._clock = clock
        self._rng = rng
        self._options = options or {}
        self._settings = settings or FramedSettings()
        self._dials: dict[str, asyncio.Task[ClientConnection]] = {}
        self._connections: dict[str, ClientConnection] = {}
        self._bookies: dict[str, FramedBookie] = {}
        self._rests: dict[str, tuple[float, int]] = {}
        self._closed = False

    async def connect(self, bookie_id: str) -> Bookie:
        """A connection to a bookie. Raises `BookieUnavailable`, `FormatTooNew`."""
        address = await self._find(bookie_id)
        known = self._bookies.get(bookie_id)
        if known is not None and not known.gone and known.connection.address == address:
            return known
        connection = await self._reach(address)
        bookie = await FramedBookie.reach(connection, bookie_id)
        self._bookies[bookie_id] = bookie
        return bookie

    async def close(self) -> None:
        """Close every connection; pending replies become UNAVAILABLE."""
        self._closed = True
        for dial in self._dials.values():
            dial.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._bookies.clear()
        await asyncio.sleep(0)

    def descriptors(self) -> list[int]:
        """The descriptors of the open connections."""
        return [connection.wire.descriptor() for connection in self._connections.values()]

    async def _reach(self, address: str) -> ClientConnection:
        if self._closed:
            raise BookieUnavailable("the transport is closed")
        connection = self._connections.get(address)
        if connection is not None and not connection.over:
            return connection
        dial = self._dials.get(address)
        if dial is None:
            self._check_rest(address)
            dial = asyncio.ensure_future(self._dial(address))
            self._dials[address] = dial
            dial.add_done_callback(lambda done: _forget(self._dials, address, done))
        try:
            return await asyncio.shield(dial)
        except asyncio.CancelledError:
            if dial.cancelled():
                raise BookieUnavailable("the transport is closed") from None
            raise

    async def _dial(self, address: str) -> ClientConnection:
        try:
            connection = await ClientConnection.dial(
                address, self._options, self._clock, self._settings
            )
        except BookieUnavailable:
            self._rest(address)
            raise
        self._rests.pop(address, None)
        self._connections[address] = connection
        return connection

    def _rest(self, address: str) -> None:
        _, pause_ms = self._rests.get(address, (0.0, self._settings.redial_first_ms))
        until = self._clock.monotonic() + pause_ms * self._rng.uniform(0.5, 1.0) / 1000
        self._rests[address] = (until, min(2 * pause_ms, self._settings.redial_max_ms))

    def _check_rest(self, address: str) -> None:
        until, _ = self._rests.get(address, (0.0, 0))
        if self._clock.monotonic() < until:
            raise BookieUnavailable(f"{address} could not be reached a moment ago")


def _settle(ended: "asyncio.Future[None]") -> None:
    if not ended.done():
        ended.set_result(None)


def _forget(dials: dict[str, Any], address: str, done: "asyncio.Task[Any]") -> None:
    dials.pop(address, None)
    if not done.cancelled():
        done.exception()
