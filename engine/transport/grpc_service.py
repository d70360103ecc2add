"""The calls of `proto/bookie.proto`, answered by the bookies of this process.

Invariants:
- A call fails, as gRPC sees it, only for what is wrong with the call; what a bookie decides is a
  status in the reply.
- Every call ends in time, whether its client named a deadline or not.
- What reads have on their way is bounded in bytes, for each connection and in all; some of it is
  kept free for those of recoveries. All read tokens of one user together count as one connection.
- Long polls never take all calls that may run at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from engine.access.door import CALLER
from engine.access.shares import Share, Shares
from engine.errors import BookieUnavailable, EngineError, FormatTooNew, FrameInvalid
from engine.limits import ENTRY_BYTES_MAX
from engine.run import NO_ENTRY
from engine.transport.allowance import Allowance
from engine.transport.contract import Bookie, LacReply, ReadReply, ReadRequest, Status
from engine.transport.grpc_messages import read_reply_to_wire, read_request_of_wire
from engine.transport.grpc_settings import (
    LONG_POLL_MS_MAX,
    MESSAGE_BYTES_MAX,
    GrpcSettings,
)
from engine.transport.grpc_stream import OrderedStream
from engine.transport.messages import RUNS_MAX
from engine.transport.readable import seen_by
from engine.transport.soundness import check_key, check_ledger_id
from engine.transport.splitting import ROW_BYTES

M = TypeVar("M")

SERVICE: Final = "herdbook.v1.Bookie"
_BYTES_UNLIMITED: Final = 2**62


class BookieCalls:
    """All calls of one server. `bookies` may change while it serves."""

    def __init__(self, bookies: Mapping[str, Bookie], settings: GrpcSettings) -> None:
        from engine.transport.grpc_generated import bookie_pb2

        self._wire = bookie_pb2
        self._bookies = bookies
        self._settings = settings
        self._appends = Allowance(settings.append_bytes_max)
        self._reads = Allowance(settings.read_bytes_max, settings.urgent_bytes)
        usual_bytes = settings.read_bytes_max - settings.urgent_bytes
        self._reads_of_readers = Shares(usual_bytes, ENTRY_BYTES_MAX)
        self._connections: dict[str, tuple[Allowance, int]] = {}
        """By where they come from; those of readers count by whose read token is shown."""
        self._streams: dict[OrderedStream, None] = {}
        self._finishing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The rest is for those who write, fence and read.
        self._polls = Shares(max(1, settings.calls_max // 2))

    def handlers(self) -> Any:
        """The service, as gRPC wants it; messages come and go as bytes."""
        import grpc

        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Append": grpc.stream_stream_rpc_method_handler(self.append),
                "Read": grpc.unary_stream_rpc_method_handler(self.read),
                "WaitLac": grpc.unary_unary_rpc_method_handler(self.wait_lac),
                "Fence": grpc.unary_unary_rpc_method_handler(self.fence),
                "Info": grpc.unary_unary_rpc_method_handler(self.info),
            },
        )

    def finish(self) -> None:
        """Streams and long polls end, as soon as they have answered what they owe."""
        if not self._finishing.done():
            self._finishing.set_result(None)
        for stream in self._streams:
            stream.finish()

    @property
    def held_bytes(self) -> int:
        """Bytes of appends that are not answered, and of reads on their way."""
        return self._appends.taken_bytes + self._reads.taken_bytes

    def _seen(self) -> Mapping[str, Bookie]:
        return seen_by(CALLER.get(), self._bookies)

    @property
    def long_polls(self) -> int:
        """How many there are."""
        return self._polls.held

    # Calls

    async def append(self, _requests: Any, context: Any) -> None:
        """The ordered stream."""
        stream = OrderedStream(context, self._seen(), self._appends, self._settings)
        self._streams[stream] = None
        try:
            if not self._finishing.done():
                await self._guarded(context, stream.run())
        finally:
            self._streams.pop(stream)

    async def read(self, data: bytes, context: Any) -> None:
        """Entries, in as many messages as it takes."""
        await self._timed(context, 0, self._read(data, context))

    async def wait_lac(self, data: bytes, context: Any) -> bytes:
        """A long poll."""
        said = await self._parse(self._wire.WaitLacRequest, data, context)
        timeout_ms = min(said.timeout_ms, LONG_POLL_MS_MAX)

        async def wait() -> LacReply:
            check_ledger_id(said.ledger_id)
            bookie = self._seen().get(said.bookie_id)
            if bookie is None or self._finishing.done():
                return LacReply(Status.UNAVAILABLE, NO_ENTRY, said.bookie_id, 0)
            user = _user()
            if timeout_ms and not self._polls.has_room(user):
                return LacReply(Status.OVERLOADED, NO_ENTRY, said.bookie_id, 0)
            self._polls.count(user, 1)
            polling = asyncio.ensure_future(
                bookie.wait_lac(said.ledger_id, max(said.above, NO_ENTRY - 1), timeout_ms)
            )
            try:
                await asyncio.wait((polling, self._finishing), return_when=asyncio.FIRST_COMPLETED)
                if polling.done():
                    return polling.result()
                return LacReply(Status.UNAVAILABLE, NO_ENTRY, said.bookie_id, 0)
            finally:
                self._polls.give_back(user)
                polling.cancel()

        return self._lac(await self._timed(context, timeout_ms, wait()), said.bookie_id)

    async def fence(self, data: bytes, context: Any) -> bytes:
        """A fence outside the ordered stream."""
        said = await self._parse(self._wire.FenceRequest, data, context)

        async def fence() -> LacReply:
            check_ledger_id(said.ledger_id)
            check_key(said.key)
            bookie = self._seen().get(said.bookie_id)
            if bookie is None:
                return LacReply(Status.UNAVAILABLE, NO_ENTRY, said.bookie_id, 0)
            return await bookie.fence(said.ledger_id, said.key)

        return self._lac(await self._timed(context, 0, fence()), said.bookie_id)

    async def info(self, data: bytes, context: Any) -> bytes:
        """Who a bookie is, and which there are."""
        asked = await self._parse(self._wire.InfoRequest, data, context)
        reply = self._wire.InfoReply(bookie_ids=sorted(self._bookies))
        bookie = self._seen().get(asked.bookie_id)
        if bookie is not None:
            try:
                said = await self._timed(context, 0, bookie.info())
                reply.boot = said.boot
                reply.cluster_id = said.cluster_id
                reply.writable = said.writable
                reply.total_bytes = said.total_bytes
                reply.free_bytes = said.free_bytes
                reply.taken_entries = said.taken_entries
                reply.taken_bytes = said.taken_bytes
            except BookieUnavailable:
                bookie = None
        if bookie is None and asked.bookie_id:
            reply.status = int(Status.UNAVAILABLE)  # type: ignore[assignment]
        return reply.SerializeToString()

    # Reading

    async def _read(self, data: bytes, context: Any) -> None:
        said = await self._parse(self._wire.ReadRequest, data, context)
        asked = read_request_of_wire(said)
        left_bytes = asked.max_bytes or _BYTES_UNLIMITED
        first = asked.first
        with self._holder(context.peer()) as holder:
            while first <= asked.last and left_bytes > 0:
                chunk_bytes = min(left_bytes, self._settings.read_chunk_bytes)
                part = ReadRequest(asked.ledger_id, first, asked.last, chunk_bytes, asked.fence_key)
                following = await self._send_part(context, holder, said.bookie_id, part)
                if following is None:
                    return
                first, size_bytes = following
                left_bytes -= size_bytes

    @contextmanager
    def _holder(self, peer: str) -> Iterator[Allowance | Share]:
        """What the reads of who calls hold together."""
        user = _user()
        if user:
            yield Share(self._reads_of_readers, user)
            return
        made = Allowance(self._settings.connection_read_bytes_max)
        connection, calls = self._connections.get(peer, (made, 0))
        self._connections[peer] = (connection, calls + 1)
        try:
            yield connection
        finally:
            connection, calls = self._connections[peer]
            if calls == 1:
                del self._connections[peer]
            else:
                self._connections[peer] = (connection, calls - 1)

    async def _send_part(
        self, context: Any, holder: Allowance | Share, bookie_id: str, part: ReadRequest
    ) -> tuple[int, int] | None:
        """Read and send one message's worth.

        Returns the first id that follows it, and its size in bytes; None if nothing may follow.
        """
        # The answer to a read of one byte is a whole entry.
        held_bytes = max(part.max_bytes, ENTRY_BYTES_MAX)
        await holder.acquire(held_bytes)
        try:
            await self._reads.acquire(held_bytes, urgent=part.fence_key is not None)
            try:
                data, following = await self._part(bookie_id, part)
                room_bytes, held_bytes = held_bytes, len(data)
                for reads in (holder, self._reads):
                    reads.take(held_bytes)
                    reads.give_back(room_bytes)
                await context.write(data)
            finally:
                self._reads.give_back(held_bytes)
        finally:
            holder.give_back(held_bytes)
        return following

    async def _part(
        self, bookie_id: str, part: ReadRequest
    ) -> tuple[bytes, tuple[int, int] | None]:
        """A message of a bookie's answer, and what `_send_part` returns; nothing else is held."""
        bookie = self._seen().get(bookie_id)
        reply = ReadReply(Status.UNAVAILABLE, (), None, None, NO_ENTRY, bookie_id, 0)
        if bookie is not None:
            answer = await bookie.read(part)
            reply = answer if answer.bookie_id == bookie_id else reply
        reply = _fitting(reply)
        message = self._wire.ReadReply()
        read_reply_to_wire(message, part.ledger_id, reply)
        data = message.SerializeToString()
        ended = reply.status is not Status.OK or not reply.runs
        if ended or reply.missing or reply.unknown:
            return data, None
        return data, (reply.runs[-1].last + 1, sum(run.size_bytes for run in reply.runs))

    # What all have in common

    def _lac(self, reply: LacReply, bookie_id: str) -> bytes:
        if reply.bookie_id != bookie_id and reply.status is not Status.UNAVAILABLE:
            reply = LacReply(Status.UNAVAILABLE, NO_ENTRY, bookie_id, 0)
        return self._wire.LacReply(
            status=int(reply.status),  # type: ignore[arg-type]
            boot=reply.boot,
            lac=reply.lac,
        ).SerializeToString()

    async def _parse(self, kind: Callable[[], M], data: bytes, context: Any) -> M:
        from google.protobuf.message import DecodeError
        from grpc import StatusCode

        message = kind()
        try:
            message.ParseFromString(data)  # type: ignore[attr-defined]
        except DecodeError as error:
            await context.abort(StatusCode.INVALID_ARGUMENT, f"the request cannot be read: {error}")
        return message

    async def _timed(self, context: Any, patience_ms: int, work: Awaitable[M]) -> M:
        """Do it before the client's deadline, or before ours if it named none."""
        limit_s = (self._settings.request_timeout_ms + patience_ms) / 1000
        left_s = context.time_remaining()

        async def timed() -> M:
            async with asyncio.timeout(limit_s if left_s is None else min(left_s, limit_s)):
                return await work

        return await self._guarded(context, timed())

    async def _guarded(self, context: Any, work: Awaitable[M]) -> M:
        """Errors of the engine as gRPC's, in one place."""
        from grpc import StatusCode

        try:
            return await work
        except FrameInvalid as error:
            code, text = StatusCode.INVALID_ARGUMENT, str(error)
        except FormatTooNew as error:
            code, text = StatusCode.FAILED_PRECONDITION, str(error)
        except TimeoutError:
            code, text = StatusCode.DEADLINE_EXCEEDED, "the bookie did not answer in time"
        except BookieUnavailable:
            raise
        except (EngineError, OSError) as error:
            code, text = StatusCode.UNAVAILABLE, str(error)
        await context.abort(code, text)
        raise AssertionError("an aborted call goes on")


def _fitting(reply: ReadReply) -> ReadReply:
    """As many runs as one message carries; the read goes on from there."""
    room_bytes = MESSAGE_BYTES_MAX - ENTRY_BYTES_MAX // 4
    for count, run in enumerate(reply.runs):
        room_bytes -= run.size_bytes + ROW_BYTES
        if count and (room_bytes < 0 or count >= RUNS_MAX):
            runs = reply.runs[:count]
            return ReadReply(reply.status, runs, None, None, reply.lac, reply.bookie_id, reply.boot)
    return reply


def _user() -> str:
    """Whose read token is shown, "" by parts of the cluster and administrators."""
    caller = CALLER.get().principal
    return "" if caller.admin else caller.name
