"""A bookie at the other end of a gRPC connection, and the way to dial one.

Invariants:
- Bookies behind one address share one connection, which ends with the last of them.
- A lost connection answers UNAVAILABLE to all that is pending and to all that follows; dialling
  again makes a new one.
- A request about a ledger reaches the bookie after every request about it that was made before,
  save for `confirm`, which may be lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from engine.errors import BookieUnavailable, EngineError, FrameInvalid, Overloaded
from engine.metadata.bookies import Registration
from engine.ports.clock import Clock
from engine.run import NO_ENTRY, Run
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
from engine.transport.framed_client import PendingAppend, refuse
from engine.transport.grpc_connection import GrpcConnection
from engine.transport.grpc_errors import error_of
from engine.transport.grpc_messages import info_of_wire, lac_reply_of_wire, read_reply_of_wire
from engine.transport.grpc_settings import ORDER_BYTES_MAX, GrpcSettings
from engine.transport.security import Security
from engine.transport.splitting import JoinedReply, split


class GrpcBookie:
    """A `Bookie` behind a gRPC connection."""

    def __init__(
        self,
        connection: GrpcConnection,
        bookie_id: str,
        settings: GrpcSettings,
        leave: Callable[[], Awaitable[None]],
    ) -> None:
        from engine.transport.grpc_generated import bookie_pb2

        self.bookie_id = bookie_id
        self.connection = connection
        self._wire = bookie_pb2
        self._timeout_s = settings.request_timeout_ms / 1000
        self._leave = leave
        self._stopped = False
        self._left = False

    @property
    def gone(self) -> bool:
        """Whether nothing can be had through this object any more: dial again."""
        return self._stopped or self.connection.over

    async def close(self) -> None:
        """Leave the connection, which ends with its last bookie; what is pending is unavailable.

        May be called twice.
        """
        if not self._left:
            self._stopped = self._left = True
            self.connection.give_up(self.bookie_id)
            await self._leave()

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
        connection = self.connection
        parts = list(split(runs, ORDER_BYTES_MAX))
        if len(parts) > 1:
            reply = JoinedReply(reply, len(parts), runs[0].first, runs[-1].last).add
        for part in parts:
            ledger_id, first, last = part[0].ledger_id, part[0].first, part[-1].last
            pending = PendingAppend(reply, self.bookie_id, ledger_id, first, last, 0.0)
            if self.gone:
                refuse(pending, Status.UNAVAILABLE)
            elif connection.full:
                refuse(pending, Status.OVERLOADED)
            else:
                connection.append(pending, part, key, facts, recovery)
            facts = None

    def confirm(self, ledger_id: int, lac: int) -> None:
        """Tell the LAC; see `Bookie.confirm`."""
        self.connection.confirm(self.bookie_id, ledger_id, lac)

    def record(self, facts: LedgerFacts, key: bytes) -> None:
        """Store new facts; see `Bookie.record`."""
        self.connection.record(self.bookie_id, facts, key)

    async def read(self, request: ReadRequest) -> ReadReply:
        """Read entries; see `Bookie.read`."""
        ledger_id, fence_key = request.ledger_id, request.fence_key
        if fence_key is not None:
            # In the stream it is ordered with the appends around it.
            self.connection.post_fence(self.bookie_id, ledger_id, fence_key)
        await self.connection.reached(ledger_id)
        asked = self._wire.ReadRequest(
            bookie_id=self.bookie_id,
            ledger_id=ledger_id,
            first=request.first,
            last=request.last,
            bytes_max=max(request.max_bytes, 1),
            fence_key=fence_key,
        )
        try:
            said = await self._stream_of("Read", asked, self._wire.ReadReply)
            reply = read_reply_of_wire(said, self.bookie_id)
        except EngineError as error:
            return ReadReply(_status_of(error), (), None, None, NO_ENTRY, self.bookie_id, 0)
        self._note(reply.status, reply.boot)
        return reply

    async def fence(self, ledger_id: int, key: bytes) -> LacReply:
        """Fence a ledger; see `Bookie.fence`."""
        return await self.connection.fence(self.bookie_id, ledger_id, key)

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacReply:
        """Wait for the LAC; see `Bookie.wait_lac`."""
        await self.connection.reached(ledger_id)
        asked = self._wire.WaitLacRequest(
            bookie_id=self.bookie_id,
            ledger_id=ledger_id,
            above=above,
            timeout_ms=max(timeout_ms, 0),
        )
        try:
            said = await self._call("WaitLac", asked, self._wire.LacReply, timeout_ms)
        except EngineError as error:
            return LacReply(_status_of(error), NO_ENTRY, self.bookie_id, 0)
        reply = lac_reply_of_wire(said, self.bookie_id)
        self._note(reply.status, reply.boot)
        return reply

    async def info(self) -> BookieInfo:
        """Identity and space. Raises `BookieUnavailable`, `Overloaded`."""
        asked = self._wire.InfoRequest(bookie_id=self.bookie_id)
        said = await self._call("Info", asked, self._wire.InfoReply, 0)
        if said.status != Status.OK:
            self._stopped = True
            raise BookieUnavailable(
                f"bookie {self.bookie_id} does not run at {self.connection.address}"
            )
        return info_of_wire(said, self.bookie_id)

    def _note(self, status: Status, boot: int) -> None:
        """A server that does not know the bookie answers for it, without a boot count."""
        if status is Status.UNAVAILABLE and boot == 0:
            self._stopped = True

    async def _call(self, method: str, asked: Any, reply: Any, patience_ms: int) -> Any:
        from google.protobuf.message import DecodeError
        from grpc import aio

        connection = self.connection
        if connection.over:
            raise BookieUnavailable(f"the connection to {connection.address} is lost")
        try:
            data = await connection.call(method, "unary_unary")(
                asked.SerializeToString(),
                timeout=self._timeout_s + patience_ms / 1000,
                metadata=connection.metadata,
            )
            return reply.FromString(data)
        except aio.AioRpcError as error:
            raise error_of(connection.address, error.code(), error.details()) from error
        except DecodeError as error:
            raise FrameInvalid(f"{connection.address} sends what cannot be read") from error
        except (asyncio.InvalidStateError, aio.UsageError) as error:
            raise BookieUnavailable(f"{connection.address}: the connection is closed") from error

    async def _stream_of(self, method: str, asked: Any, reply: Any) -> list[Any]:
        from google.protobuf.message import DecodeError
        from grpc import aio

        connection = self.connection
        if connection.over:
            raise BookieUnavailable(f"the connection to {connection.address} is lost")
        found: list[Any] = []
        try:
            call = connection.call(method, "unary_stream")(
                asked.SerializeToString(), timeout=self._timeout_s, metadata=connection.metadata
            )
            while isinstance(data := await call.read(), bytes):
                found.append(reply.FromString(data))
        except aio.AioRpcError as error:
            raise error_of(connection.address, error.code(), error.details()) from error
        except DecodeError as error:
            raise FrameInvalid(f"{connection.address} sends what cannot be read") from error
        except (asyncio.InvalidStateError, aio.UsageError) as error:
            raise BookieUnavailable(f"{connection.address}: the connection is closed") from error
        return found


class _Shared:
    """One connection, or the dial that makes it, and how many bookies need it."""

    def __init__(self, dial: "asyncio.Task[GrpcConnection]") -> None:
        self.dial = dial
        self.users = 0

    @property
    def over(self) -> bool:
        """Whether there is nothing to share."""
        if not self.dial.done():
            return False
        return self.dial.cancelled() or bool(self.dial.exception()) or self.dial.result().over


class GrpcDialer:
    """Dials bookies by their registrations; those at one address share a connection."""

    def __init__(self, security: Security, clock: Clock, settings: GrpcSettings) -> None:
        self._security = security
        self._clock = clock
        self._settings = settings
        self._shared: dict[str, _Shared] = {}

    async def dial(self, registration: Registration) -> Bookie:
        """Connect to a bookie.

        Raises `BookieUnavailable`, `AccessRefused`, `FormatTooNew`, `InvalidRequest`,
        `Overloaded`.
        """
        address = registration.grpc
        if not address:
            raise BookieUnavailable(f"bookie {registration.bookie_id} does not serve gRPC")
        shared = self._shared.get(address)
        if shared is None or shared.over:
            connecting = GrpcConnection.dial(address, self._security, self._clock, self._settings)
            shared = self._shared[address] = _Shared(asyncio.ensure_future(connecting))
        leave = partial(self._leave, address, shared)
        shared.users += 1
        try:
            connection = await asyncio.shield(shared.dial)
        except BaseException:
            await leave()
            raise
        bookie = GrpcBookie(connection, registration.bookie_id, self._settings, leave)
        try:
            await bookie.info()
        except BaseException:
            await bookie.close()
            raise
        return bookie

    async def _leave(self, address: str, shared: _Shared) -> None:
        shared.users -= 1
        assert shared.users >= 0
        if shared.users:
            return
        if self._shared.get(address) is shared:
            del self._shared[address]
        if not shared.dial.done():
            shared.dial.cancel()
        elif not shared.dial.cancelled() and shared.dial.exception() is None:
            await shared.dial.result().close()


def grpc_dial(
    security: Security, clock: Clock, settings: GrpcSettings | None = None
) -> Callable[[Registration], Awaitable[Bookie]]:
    """A way to dial bookies over gRPC, for `DialingTransport`."""
    return GrpcDialer(security, clock, settings or GrpcSettings()).dial


def _status_of(error: EngineError) -> Status:
    return Status.OVERLOADED if isinstance(error, Overloaded) else Status.UNAVAILABLE
