"""The server's end of one ordered stream: orders in, replies out.

Invariants:
- Orders reach their bookies in the order in which they came; one that takes time has begun before
  the next one is looked at.
- No task, timer or message is made per entry, and none per append either: all replies that wait
  leave in one message.
- What the stream leaves unanswered, or answered and not yet taken by the client, is bounded in
  bytes; beyond that nothing is read from it.
- While all streams together hold too much, those that send normal appends are read no further; one
  that sends fences and recovery writes alone waits for nobody else.
- A reply goes out for the bookie that was asked only.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from engine.errors import FormatTooNew, FrameInvalid
from engine.run import NO_ENTRY
from engine.transport.allowance import Allowance
from engine.transport.contract import AppendReply, Bookie, LacReply, Status
from engine.transport.grpc_messages import facts_of_wire, runs_of_append
from engine.transport.grpc_settings import FORMAT_MAJOR, FORMAT_MINOR, GrpcSettings
from engine.transport.soundness import check_key, check_ledger_id

if TYPE_CHECKING:
    from engine.transport.grpc_generated import bookie_pb2 as wire

_ORDER_BYTES: Final = 512
"""What an order costs beside its bytes, until its reply has been taken."""
_FENCES_MAX: Final = 1_024


class OrderedStream:
    """Serves one call of `Append`. `context` is gRPC's, which reads and writes."""

    def __init__(
        self,
        context: Any,
        bookies: Mapping[str, Bookie],
        in_all: Allowance,
        settings: GrpcSettings,
    ) -> None:
        from engine.transport.grpc_generated import bookie_pb2

        self._wire = bookie_pb2
        self._context = context
        self._bookies = bookies
        self._in_all = in_all
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._held = Allowance(settings.stream_bytes_max)
        self._unanswered = 0
        self._fences: set[asyncio.Task[LacReply]] = set()
        self._replies = bookie_pb2.AppendReply()
        self._reply_count = 0
        self._something_to_say = False
        self._writing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._over = False
        self._finished: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Serve until the client ends its side, or `finish`; all that was asked is answered.

        Raises `FrameInvalid`, `FormatTooNew`, `TimeoutError` for a client that never greets.
        """
        try:
            await self._greet()
            self._reading = self._loop.create_task(self._read())
            await asyncio.wait((self._reading, self._finished), return_when=asyncio.FIRST_COMPLETED)
            if self._reading.done():
                self._reading.result()
            while self._unanswered or self._writing is not None:
                self._settled.clear()
                await self._settled.wait()
        finally:
            self._end()

    def finish(self) -> None:
        """Take no more; answer what was asked, then end.

        A read that is under way ends with the call: gRPC does not take it well if one is cancelled.
        """
        if not self._finished.done():
            self._finished.set_result(None)

    # Reading

    async def _greet(self) -> None:
        async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
            message = await self._next()
        if message is None:
            return
        if not message.HasField("hello"):
            raise FrameInvalid("an ordered stream begins with a hello")
        if message.hello.format_major > FORMAT_MAJOR:
            raise FormatTooNew(
                f"the client speaks wire format {message.hello.format_major}, this bookie up to "
                f"{FORMAT_MAJOR}: upgrade it"
            )
        self._replies.hello.format_major = FORMAT_MAJOR
        self._replies.hello.format_minor = FORMAT_MINOR
        self._say()
        await self._take(message)

    async def _read(self) -> None:
        while (message := await self._next()) is not None and not self._finished.done():
            await self._take(message)
            # Of no bytes: how many come next is not known before they are here.
            await self._held.acquire(0)
            if _has_normal_append(message):
                await self._in_all.acquire(0)

    async def _next(self) -> "wire.AppendRequest | None":
        from google.protobuf.message import DecodeError

        data = await self._context.read()
        if not isinstance(data, bytes):
            return None
        try:
            return self._wire.AppendRequest.FromString(data)
        except DecodeError as error:
            raise FrameInvalid(f"a message of an ordered stream cannot be read: {error}") from error

    async def _take(self, message: "wire.AppendRequest") -> None:
        for order in message.orders:
            kind = order.WhichOneof("kind")
            if kind == "append":
                self._append(order)
            elif kind == "confirm":
                self._confirm(order)
            elif kind == "record":
                self._record(order)
            elif kind == "fence":
                self._fence(order)
                # It has begun when the next order is looked at.
                await asyncio.sleep(0)
        if message.echo:
            self._replies.echo = message.echo
            self._say()

    # Orders

    def _append(self, order: "wire.Order") -> None:
        append = order.append
        packed = append.runs
        runs = runs_of_append(append, packed)
        facts = None
        if append.HasField("facts"):
            facts = facts_of_wire(append.facts, append.ledger_id)
        if not order.request:
            raise FrameInvalid("an append without a request number")
        size_bytes = len(packed)
        self._hold(size_bytes + _ORDER_BYTES)
        bookie_id = order.bookie_id
        reply = partial(self._on_append, order.request, bookie_id, size_bytes)
        bookie = self._bookies.get(bookie_id)
        if bookie is None:
            ledger_id, first, last = append.ledger_id, runs[0].first, runs[-1].last
            reply(AppendReply(Status.UNAVAILABLE, ledger_id, first, last, "", 0))
        else:
            bookie.append(runs, reply, key=append.key, facts=facts, recovery=append.recovery)

    def _confirm(self, order: "wire.Order") -> None:
        check_ledger_id(order.confirm.ledger_id)
        bookie = self._bookies.get(order.bookie_id)
        if bookie is not None:
            bookie.confirm(order.confirm.ledger_id, order.confirm.lac)

    def _record(self, order: "wire.Order") -> None:
        check_key(order.record.key)
        facts = facts_of_wire(order.record.facts, order.record.facts.ledger_id)
        bookie = self._bookies.get(order.bookie_id)
        if bookie is not None:
            bookie.record(facts, order.record.key)

    def _fence(self, order: "wire.Order") -> None:
        asked, bookie_id, request = order.fence, order.bookie_id, order.request
        check_ledger_id(asked.ledger_id)
        check_key(asked.key)
        self._hold(_ORDER_BYTES)
        bookie = self._bookies.get(bookie_id)
        if bookie is None or len(self._fences) >= _FENCES_MAX:
            status = Status.UNAVAILABLE if bookie is None else Status.OVERLOADED
            self._on_fence(request, asked.ledger_id, LacReply(status, NO_ENTRY, bookie_id, 0))
            return
        task = self._loop.create_task(_fenced(bookie, asked.ledger_id, asked.key))
        self._fences.add(task)
        task.add_done_callback(partial(self._fence_ended, request, bookie_id, asked.ledger_id))

    # Replies

    def _on_append(self, request: int, bookie_id: str, size_bytes: int, reply: AppendReply) -> None:
        self._let_go(size_bytes)
        self._unanswered -= 1
        status, boot = reply.status, reply.boot
        if reply.bookie_id != bookie_id:
            status, boot = Status.UNAVAILABLE, 0
        self._replies.replies.add(
            request=request,
            status=int(status),
            boot=boot,
            ledger_id=reply.ledger_id,
            first=reply.first,
            last=reply.last,
        )
        self._reply_count += 1
        self._say()

    def _fence_ended(
        self, request: int, bookie_id: str, ledger_id: int, task: "asyncio.Task[LacReply]"
    ) -> None:
        self._fences.discard(task)
        reply = LacReply(Status.UNAVAILABLE, NO_ENTRY, bookie_id, 0)
        if not task.cancelled() and task.exception() is None:
            reply = task.result()
        if reply.bookie_id != bookie_id:
            reply = LacReply(Status.UNAVAILABLE, NO_ENTRY, bookie_id, 0)
        self._on_fence(request, ledger_id, reply)

    def _on_fence(self, request: int, ledger_id: int, reply: LacReply) -> None:
        self._unanswered -= 1
        if not request:
            self._let_go(_ORDER_BYTES)
            self._settled.set()
            return
        self._replies.replies.add(
            request=request,
            status=int(reply.status),
            boot=reply.boot,
            ledger_id=ledger_id,
            lac=reply.lac,
        )
        self._reply_count += 1
        self._say()

    def _say(self) -> None:
        """Send what waits, when all of this turn of the loop has joined it."""
        self._something_to_say = True
        if self._over:
            self._forget()
        elif self._writing is None:
            self._writing = self._loop.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._something_to_say:
                message, count = self._replies, self._reply_count
                self._replies, self._reply_count = self._wire.AppendReply(), 0
                self._something_to_say = False
                try:
                    await self._context.write(message.SerializeToString())
                finally:
                    self._let_go(count * _ORDER_BYTES)
        except Exception:
            # The call is broken: nobody is left to answer.
            self._over = True
            self._forget()
            self.finish()
        finally:
            self._writing = None
            self._settled.set()

    def _forget(self) -> None:
        count, self._reply_count = self._reply_count, 0
        self._something_to_say = False
        self._replies = self._wire.AppendReply()
        if count:
            self._let_go(count * _ORDER_BYTES)

    # Bytes

    def _hold(self, size_bytes: int) -> None:
        self._unanswered += 1
        self._held.take(size_bytes)
        self._in_all.take(size_bytes)

    def _let_go(self, size_bytes: int) -> None:
        self._held.give_back(size_bytes)
        self._in_all.give_back(size_bytes)

    def _end(self) -> None:
        self._over = True
        self.finish()
        if self._reading is not None:
            self._reading.add_done_callback(_look_at)
        for task in (self._writing, *self._fences):
            if task is not None:
                task.cancel()
        self._forget()


def _has_normal_append(message: "wire.AppendRequest") -> bool:
    return any(order.HasField("append") and not order.append.recovery for order in message.orders)


def _look_at(reading: "asyncio.Task[None]") -> None:
    """Whatever ended a reading that nobody waits for any more, it has been seen."""
    if not reading.cancelled():
        reading.exception()


async def _fenced(bookie: Bookie, ledger_id: int, key: bytes) -> LacReply:
    return await bookie.fence(ledger_id, key)
