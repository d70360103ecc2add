"""The client's end of a gRPC connection: one channel, one ordered stream, calls beside it.

Invariants:
- Every order that wants an answer gets one: its reply, or UNAVAILABLE when the connection is lost
  or the reply is late.
- An order leaves after all that were given before it; all that wait leave in one message.
- A connection that answers nothing for a whole request time is given up; a check that itself comes
  late proves a busy loop, not a dead peer, and blames nobody.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from engine.errors import BookieUnavailable, EngineError
from engine.ports.clock import Clock
from engine.run import NO_ENTRY, Run
from engine.transport.contract import LacReply, LedgerFacts, Status
from engine.transport.framed_client import PendingAppend
from engine.transport.grpc_errors import error_of
from engine.transport.grpc_messages import (
    append_to_wire,
    facts_to_wire,
    lac_reply_of_wire,
    status_of_wire,
)
from engine.transport.grpc_security import call_metadata, channel_credentials
from engine.transport.grpc_settings import (
    FORMAT_MAJOR,
    FORMAT_MINOR,
    GrpcSettings,
    client_options,
)
from engine.transport.security import Security

if TYPE_CHECKING:
    from grpc import aio

    from engine.transport.grpc_generated import bookie_pb2 as wire

_ORDER_BYTES: Final = 256
_LEDGERS_REMEMBERED_MAX: Final = 10_000


class PendingFence:
    """A fence that waits for its reply."""

    __slots__ = ("bookie_id", "deadline", "reply")

    def __init__(self, bookie_id: str, reply: "asyncio.Future[LacReply]", deadline: float) -> None:
        self.bookie_id = bookie_id
        self.reply = reply
        self.deadline = deadline

    def give_up(self, error: EngineError) -> None:
        """There will be no answer."""
        self.answer(LacReply(Status.UNAVAILABLE, NO_ENTRY, self.bookie_id, 0))

    def answer(self, reply: LacReply) -> None:
        """Tell the caller, who may have gone."""
        if not self.reply.done():
            self.reply.set_result(reply)


class GrpcConnection:
    """A connection that was greeted. Made by `GrpcConnection.dial`."""

    def __init__(self, address: str, channel: Any, security: Security, clock: Clock) -> None:
        from engine.transport.grpc_generated import bookie_pb2

        self.address = address
        self.over = False
        self._security = security
        self._wire = bookie_pb2
        self._channel = channel
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._settings = GrpcSettings()
        self._stream: Any = None
        self._calls: dict[str, Any] = {}
        self._gathering = bookie_pb2.AppendRequest()
        self._gathered_bytes = 0
        self._ready: deque[tuple[wire.AppendRequest, int]] = deque()
        self._queued_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._pending: dict[int, PendingAppend | PendingFence] = {}
        self._newest = 0
        self._reached = 0
        self._sent_of: dict[int, int] = {}
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._ticker: asyncio.TimerHandle | None = None
        self._tick_due = 0.0
        self._heard = 0
        self._heard_before = 0

    @property
    def metadata(self) -> list[tuple[str, str | bytes]]:
        """What each call carries: a token may be another one by now."""
        return call_metadata(self._security.at_bookies())

    @classmethod
    async def dial(
        cls, address: str, security: Security, clock: Clock, settings: GrpcSettings
    ) -> "GrpcConnection":
        """Connect and greet.

        Raises `BookieUnavailable`, `AccessRefused`, `FormatTooNew`, `InvalidRequest`.
        """
        from grpc import aio

        credentials = channel_credentials(security.at_bookies(), address)
        options = client_options(settings)
        if credentials is None:
            channel = aio.insecure_channel(address, options)
        else:
            channel = aio.secure_channel(address, credentials, options)
        made = cls(address, channel, security, clock)
        made._settings = settings
        try:
            async with asyncio.timeout(settings.connect_timeout_ms / 1000):
                await made._greet()
        except TimeoutError as error:
            await made.close()
            raise BookieUnavailable(f"{address} did not greet in time") from error
        except BaseException:
            await made.close()
            raise
        return made

    @property
    def full(self) -> bool:
        """Whether more waits to be sent than is allowed."""
        return self._queued_bytes > self._settings.send_bytes_max

    async def close(self) -> None:
        """End the connection; what is pending is answered as unavailable. May be called twice."""
        self._lose(None)
        tasks = [task for task in (self._reading, self._writing) if task is not None]
        for task in tasks:
            task.cancel()
        if self._stream is not None:
            self._stream.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._channel.close(None)

    def give_up(self, bookie_id: str) -> None:
        """Answer what is pending of one bookie as unavailable; late replies are dropped."""
        error = BookieUnavailable(f"bookie {bookie_id} was left")
        for number, pending in list(self._pending.items()):
            if pending.bookie_id == bookie_id:
                del self._pending[number]
                pending.give_up(error)

    # Orders

    def append(
        self,
        pending: PendingAppend,
        runs: Sequence[Run],
        key: bytes,
        facts: LedgerFacts | None,
        recovery: bool,
    ) -> None:
        """Send an append; `pending` is answered once."""
        assert not self.over
        size_bytes = sum([run.size_bytes for run in runs]) + _ORDER_BYTES
        order = self._order(pending.bookie_id, pending.ledger_id, size_bytes)
        append_to_wire(order.append, runs, key, facts, recovery)
        pending.deadline = self._deadline(0)
        self._expect(order, pending)

    def confirm(self, bookie_id: str, ledger_id: int, lac: int) -> None:
        """Send a LAC. It may be lost, so nothing waits for it."""
        if not self.over and not self.full:
            order = self._order(bookie_id, None, _ORDER_BYTES)
            order.confirm.ledger_id = ledger_id
            order.confirm.lac = lac

    def record(self, bookie_id: str, facts: LedgerFacts, key: bytes) -> None:
        """Send facts."""
        if not self.over and not self.full:
            order = self._order(bookie_id, facts.ledger_id, _ORDER_BYTES)
            facts_to_wire(facts, order.record.facts)
            order.record.key = key

    async def fence(self, bookie_id: str, ledger_id: int, key: bytes) -> LacReply:
        """Send a fence and wait for its reply."""
        reply: asyncio.Future[LacReply] = self._loop.create_future()
        if self.over or self.full:
            status = Status.UNAVAILABLE if self.over else Status.OVERLOADED
            return LacReply(status, NO_ENTRY, bookie_id, 0)
        order = self._fence_order(bookie_id, ledger_id, key)
        self._expect(order, PendingFence(bookie_id, reply, self._deadline(0)))
        return await reply

    def post_fence(self, bookie_id: str, ledger_id: int, key: bytes) -> None:
        """Send a fence whose reply is not wanted, ahead of a read that fences."""
        if not self.over and not self.full:
            self._fence_order(bookie_id, ledger_id, key)

    async def reached(self, ledger_id: int) -> None:
        """Wait until what was sent of a ledger has reached its bookies."""
        newest = self._sent_of.get(ledger_id, 0)
        if newest <= self._reached or self.over:
            return
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((self._newest, waiting))
        self._gathering.echo = self._newest
        self._write_soon()
        await waiting

    def call(self, method: str, kind: str) -> Any:
        """A call beside the stream: `kind` is `unary_unary` or `unary_stream`."""
        made = self._calls.get(method)
        if made is None:
            path = f"/herdbook.v1.Bookie/{method}"
            made = self._calls[method] = getattr(self._channel, kind)(path, None, None)
        return made

    def _order(self, bookie_id: str, ledger_id: int | None, size_bytes: int) -> "wire.Order":
        if self._gathered_bytes > self._settings.gather_bytes:
            self._ready.append((self._gathering, self._gathered_bytes))
            self._gathering, self._gathered_bytes = self._wire.AppendRequest(), 0
        self._gathered_bytes += size_bytes
        self._queued_bytes += size_bytes
        self._newest += 1
        if ledger_id is not None:
            self._sent_of[ledger_id] = self._newest
        self._write_soon()
        return self._gathering.orders.add(bookie_id=bookie_id)

    def _fence_order(self, bookie_id: str, ledger_id: int, key: bytes) -> "wire.Order":
        order = self._order(bookie_id, ledger_id, _ORDER_BYTES)
        order.fence.ledger_id = ledger_id
        order.fence.key = key
        return order

    def _expect(self, order: "wire.Order", pending: PendingAppend | PendingFence) -> None:
        order.request = self._newest
        self._pending[self._newest] = pending
        if self._ticker is None:
            self._arm()

    # The stream

    async def _greet(self) -> None:
        from grpc import aio

        call = self._channel.stream_stream("/herdbook.v1.Bookie/Append", None, None)
        self._stream = call(metadata=self.metadata)
        hello = self._wire.AppendRequest()
        hello.hello.format_major = FORMAT_MAJOR
        hello.hello.format_minor = FORMAT_MINOR
        try:
            await self._stream.write(hello.SerializeToString())
            data = await self._stream.read()
            if not isinstance(data, bytes):
                raise BookieUnavailable(f"{self.address} is ending")
        except asyncio.InvalidStateError as error:
            code, details = await self._stream.code(), await self._stream.details()
            raise error_of(self.address, code, details) from error
        except aio.AioRpcError as error:
            raise await self._why(error) from error
        self._hear(data)
        self._reading = self._loop.create_task(self._read())

    async def _why(self, error: "aio.AioRpcError") -> EngineError:
        """Why a stream was not taken: one that is refused at once may end before it hears that."""
        from grpc import StatusCode, aio

        if error.code() is StatusCode.INTERNAL:
            ask = self._channel.unary_unary("/herdbook.v1.Bookie/Info", None, None)
            try:
                await ask(self._wire.InfoRequest().SerializeToString(), metadata=self.metadata)
            except aio.AioRpcError as plain:
                if plain.code() is StatusCode.UNAUTHENTICATED:
                    error = plain
        return error_of(self.address, error.code(), error.details())

    def _write_soon(self) -> None:
        """Send when all of this turn of the loop has joined the message."""
        if self._writing is None and not self.over:
            self._writing = self._loop.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._gathered_bytes or self._gathering.echo:
                if self._ready:
                    message, size_bytes = self._ready.popleft()
                else:
                    message, size_bytes = self._gathering, self._gathered_bytes
                    self._gathering, self._gathered_bytes = self._wire.AppendRequest(), 0
                data = message.SerializeToString()
                await self._stream.write(data)
                self._queued_bytes -= size_bytes
        except Exception:
            # The call is over; reading from it tells why.
            return
        finally:
            self._writing = None

    async def _read(self) -> None:
        from grpc import aio

        failure: EngineError | None = None
        try:
            while isinstance(data := await self._stream.read(), bytes):
                self._hear(data)
        except aio.AioRpcError as error:
            failure = error_of(self.address, error.code(), error.details())
        except EngineError as error:
            failure = error
        self._lose(failure)

    def _hear(self, data: bytes) -> None:
        from google.protobuf.message import DecodeError

        try:
            message = self._wire.AppendReply.FromString(data)
        except DecodeError as error:
            raise BookieUnavailable(f"{self.address} sends what cannot be read") from error
        self._heard += 1
        reached = max(self._reached, message.echo)
        for row in message.replies:
            request = row.request
            reached = max(reached, request)
            pending = self._pending.pop(request, None)
            if isinstance(pending, PendingAppend):
                pending.answer(status_of_wire(row.status), row.boot)
            elif pending is not None:
                pending.answer(lac_reply_of_wire(row, pending.bookie_id))
        self._reach(reached)

    def _reach(self, reached: int) -> None:
        self._reached = reached
        while self._waiting and self._waiting[0][0] <= reached:
            _, waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
        if len(self._sent_of) > _LEDGERS_REMEMBERED_MAX:
            self._sent_of = {name: at for name, at in self._sent_of.items() if at > reached}

    def _lose(self, failure: EngineError | None) -> None:
        if self.over:
            return
        self.over = True
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        why = f": {failure}" if failure is not None else ""
        error = BookieUnavailable(f"the connection to {self.address} was lost{why}")
        pending, self._pending = list(self._pending.values()), {}
        for one in pending:
            one.give_up(error)
        self._ready.clear()
        self._reach(self._newest)
        if self._stream is not None:
            self._stream.cancel()

    # Time

    def _deadline(self, patience_ms: int) -> float:
        return self._clock.monotonic() + (self._settings.request_timeout_ms + patience_ms) / 1000

    def _arm(self) -> None:
        interval_s = self._settings.request_timeout_ms / 4000
        self._tick_due = self._clock.monotonic() + interval_s
        self._ticker = self._loop.call_later(interval_s, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        now = self._clock.monotonic()
        if now - self._tick_due < self._settings.request_timeout_ms / 4000:
            late = [number for number, waits in self._pending.items() if waits.deadline < now]
            if late and self._heard == self._heard_before:
                self._lose(BookieUnavailable("no answer in time"))
                return
            for number in late:
                waits = self._pending.pop(number)
                waits.give_up(BookieUnavailable(f"{self.address} did not answer in time"))
        self._heard_before = self._heard
        if self._pending:
            self._arm()
