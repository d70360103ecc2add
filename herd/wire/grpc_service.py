"""The calls of `proto/herd.proto`, answered by the handler that answers the framed ones.

Invariants:
- A call fails, as gRPC sees it, only for what is wrong with the call; what the database decides is
  a `Failure` in the reply.
- Messages come and go as bytes: one that is malformed is an error in words, and nobody else's.
- A reply of a stream is made when the one before has gone.
- Who is not welcome any more hears no more of a stream: the caller is asked for again while it goes
  on.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from engine.access.door import CALLER, CHECK_S
from engine.errors import AccessRefused, EngineError
from engine.uncollected import uncollected
from herd.errors import Error, InterfaceError, ParametersMismatch, SessionLost, TooLarge
from herd.wire import messages
from herd.wire.failures import failed
from herd.wire.grpc_leases import Lease, Leases
from herd.wire.messages import Answer, Failed, encode
from herd.wire.values import unpack_extension
from herd.wire.weighing import check_values

M = TypeVar("M")

SERVICE: Final = "herdbook.v1.Tablespaces"
_SCAN_COUNT: Final = 500
_KEYS_MAX: Final = 10_000
_VALUES_MAX: Final = 1_000_000
"""The limit for one message, which is at most an eighth of the largest call over frames."""
_values = msgspec.msgpack.Decoder(ext_hook=unpack_extension)


class TablespaceCalls:
    """All calls of one server."""

    def __init__(self, leases: Leases) -> None:
        from herd.wire.grpc_generated import herd_pb2

        self._wire: Any = herd_pb2
        self._leases = leases
        self._bytes_max = leases.service.settings.call_bytes_max
        self._values_max = leases.service.settings.call_values_max

    def handlers(self) -> Any:
        """The service, as gRPC wants it."""
        import grpc

        one, wire = grpc.unary_unary_rpc_method_handler, self._wire
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Open": one(self._one(wire.OpenRequest, self._open, wire.OpenReply)),
                "Begin": one(self._one(wire.BeginRequest, self._begin, wire.SessionReply)),
                "Commit": one(self._one(wire.CommitRequest, self._commit, wire.SessionReply)),
                "Rollback": one(self._one(wire.SessionRequest, self._rollback, wire.SessionReply)),
                "Renew": one(self._one(wire.SessionRequest, self._renew, wire.SessionReply)),
                "Close": one(self._one(wire.SessionRequest, self._close, wire.SessionReply)),
                "Outcome": one(self._one(wire.OutcomeRequest, self._outcome, wire.OutcomeReply)),
                "Names": one(self._one(wire.NamesRequest, self._names, wire.NamesReply)),
                "Describe": one(
                    self._one(wire.DescribeRequest, self._describe, wire.DescribeReply)
                ),
                "Get": one(self._one(wire.GetRequest, self._get, wire.GetReply)),
                "Put": one(self._one(wire.PutRequest, self._put, wire.CountReply)),
                "Delete": one(self._one(wire.DeleteRequest, self._delete, wire.CountReply)),
                "Execute": grpc.unary_stream_rpc_method_handler(self.execute),
                "ExecuteMany": grpc.stream_unary_rpc_method_handler(self.execute_many),
                "Scan": grpc.unary_stream_rpc_method_handler(self.scan),
            },
        )

    # Statements

    async def execute(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        """A statement, and its rows in as many messages as it takes."""
        said = await self._parsed(self._wire.ExecuteRequest, data, context)
        reply, welcome = self._wire.ExecuteReply, _Welcome(context)
        result = 0
        lease: Lease | None = None
        try:
            lease = self._leases.find(said.session)
            given = _decoded(said.parameters) if said.parameters else []
            if not isinstance(given, list | dict):
                raise ParametersMismatch("parameters are an array or a map of MessagePack")
            answer = await self._leases.ask(
                lease, messages.Execute(lease.number, _KEEP_MODE, said.text, given)
            )
            result = getattr(answer, "result", 0)
            yield self._executed(answer).SerializeToString()
            while result:
                await welcome.check()
                piece = await self._leases.ask(lease, messages.Fetch(result))
                if isinstance(piece, Failed):
                    result = 0
                    yield reply(failure=self._failure(piece)).SerializeToString()
                    return
                assert isinstance(piece, messages.Piece)
                if not piece.more:
                    result = 0
                yield reply(count=-1, arrow=piece.data).SerializeToString()
        except Error as error:
            yield reply(failure=self._failure(failed(error))).SerializeToString()
        finally:
            if result and lease is not None:
                await lease.guest.ask(messages.Fetch(result, drop=True))

    async def execute_many(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """A statement for many rows of parameters."""
        token, text, size_bytes = b"", "", 0
        rows: list[list[Any]] = []
        value_count = 0
        welcome = _Welcome(context)
        try:
            async for data in requests:
                await welcome.check()
                said = await self._parsed(self._wire.ExecuteManyRequest, data, context)
                token, text = token or said.session, text or said.text
                size_bytes += len(said.rows)
                if size_bytes > self._bytes_max:
                    raise TooLarge(f"one call has at most {self._bytes_max} bytes of rows")
                part = _decoded(said.rows) if said.rows else []
                if not isinstance(part, list) or not all(isinstance(row, list) for row in part):
                    raise ParametersMismatch("rows are an array of arrays of MessagePack")
                rows += part
                value_count += len(part) + sum(map(len, part))
                if value_count > self._values_max:
                    raise TooLarge(f"a call may have at most {self._values_max:,} values")
            lease = self._leases.find(token)
            call = messages.ExecuteMany(lease.number, _KEEP_MODE, text, rows)
            reply = self._executed(await self._leases.ask(lease, call))
        except Error as error:
            reply = self._wire.ExecuteReply(failure=self._failure(failed(error)))
        data = reply.SerializeToString()
        return bytes(data)

    def _executed(self, answer: Answer) -> Any:
        if isinstance(answer, Failed):
            return self._wire.ExecuteReply(
                failure=self._failure(answer), transaction=answer.state, count=-1
            )
        assert isinstance(answer, messages.Rows | messages.Table)
        reply = self._wire.ExecuteReply(
            transaction=answer.state, kind=answer.kind, count=answer.count
        )
        if isinstance(answer, messages.Table):
            reply.arrow = answer.data
        elif answer.last_id is not None:
            reply.last_id = answer.last_id
        return reply

    # Sessions

    async def _open(self, said: Any) -> Any:
        mode = 0 if said.without_autocommit else messages.AUTOCOMMIT
        mode |= messages.SNAPSHOT if said.isolation else 0
        call = messages.Open(said.tablespace, mode, said.client)
        opened = await self._leases.open(call, said.lease_ms)
        if isinstance(opened, Failed):
            return self._wire.OpenReply(failure=self._failure(opened))
        token, lease_ms = opened
        return self._wire.OpenReply(session=token, lease_ms=lease_ms)

    async def _begin(self, said: Any) -> Any:
        mode = messages.SNAPSHOT if said.isolation else 0
        return await self._of_session(said, lambda number: messages.Begin(number, mode))

    async def _commit(self, said: Any) -> Any:
        return await self._of_session(said, lambda number: messages.Commit(number, said.sequence))

    async def _rollback(self, said: Any) -> Any:
        return await self._of_session(said, messages.Rollback)

    async def _renew(self, said: Any) -> Any:
        self._leases.find(said.session)
        return self._wire.SessionReply()

    async def _close(self, said: Any) -> Any:
        await self._leases.end(said.session)
        return self._wire.SessionReply()

    async def _of_session(self, said: Any, make: Callable[[int], messages.Call]) -> Any:
        lease = self._leases.find(said.session)
        answer = await self._leases.ask(lease, make(lease.number))
        if isinstance(answer, Failed):
            return self._wire.SessionReply(failure=self._failure(answer), transaction=answer.state)
        return self._wire.SessionReply(transaction=getattr(answer, "state", 0))

    async def _outcome(self, said: Any) -> Any:
        answer = await self._other(messages.Outcome(said.tablespace, said.client, said.sequence))
        return self._wire.OutcomeReply(committed=answer.value is True)

    # Tables

    async def _names(self, said: Any) -> Any:
        return self._wire.NamesReply(names=(await self._other(messages.Names())).value)

    async def _describe(self, said: Any) -> Any:
        told = await self._other(messages.Describe(said.tablespace, said.table))
        column = self._wire.Column
        return self._wire.DescribeReply(
            name=told.name,
            columns=[
                column(name=n, type=kind.sql, nullable=null) for n, kind, null in told.columns
            ],
            primary_key=told.primary,
        )

    async def _get(self, said: Any) -> Any:
        keys = _list(said.keys, "keys")
        told = await self._of_table(
            said, lambda number: messages.Get(said.tablespace, said.table, keys, False, number)
        )
        return self._wire.GetReply(rows=encode(told.value))

    async def _put(self, said: Any) -> Any:
        rows = _list(said.rows, "rows")
        if not all(isinstance(row, dict) for row in rows):
            raise InterfaceError("a row is a map of MessagePack, values by column")
        told = await self._of_table(
            said,
            lambda number: messages.Put(
                said.tablespace, said.table, rows, not said.only_new, number
            ),
        )
        return self._wire.CountReply(count=told.value)

    async def _delete(self, said: Any) -> Any:
        count = 0
        for key in _list(said.keys, "keys"):
            told = await self._of_table(said, self._deleting(said, key))
            count += told.value is True
        return self._wire.CountReply(count=count)

    @staticmethod
    def _deleting(said: Any, key: Any) -> Callable[[int], messages.Call]:
        return lambda number: messages.Delete(said.tablespace, said.table, key, number)

    async def scan(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        """Rows in the order of their keys."""
        said = await self._parsed(self._wire.ScanRequest, data, context)
        welcome = _Welcome(context)
        try:
            first, last, prefix = (
                _list(given, "bounds") for given in (said.first, said.last, said.prefix)
            )
            left, after = said.limit or None, b""
            while left is None or left > 0:
                count = _SCAN_COUNT if left is None else min(left, _SCAN_COUNT)
                call = messages.Scan(said.tablespace, said.table, first, last, prefix, after, count)
                page = await self._other(call)
                yield self._wire.GetReply(rows=encode(page.rows)).SerializeToString()
                after, left = page.after, None if left is None else left - len(page.rows)
                if not after:
                    return
                await welcome.check()
        except Error as error:
            told = self._failure(failed(error))
            yield self._wire.GetReply(failure=told).SerializeToString()
        except _Told as told_of:
            told = self._failure(told_of.failed)
            yield self._wire.GetReply(failure=told).SerializeToString()

    # Inside

    def _one(
        self, kind: Any, do: Callable[[Any], Awaitable[Any]], reply: Any
    ) -> Callable[[bytes, Any], Awaitable[bytes]]:
        """A call with one request and one reply."""

        async def call(data: bytes, context: Any) -> bytes:
            said = await self._parsed(kind, data, context)
            try:
                answer = await do(said)
            except Error as error:
                answer = reply(failure=self._failure(failed(error, lost=_lost(error))))
            except _Told as told:
                answer = reply(failure=self._failure(told.failed))
            packed: bytes = answer.SerializeToString()
            return packed

        return call

    async def _other(self, call: messages.Call) -> Any:
        answer = await self._leases.other(call)
        if isinstance(answer, Failed):
            raise _Told(answer)
        return answer

    async def _of_table(self, said: Any, make: Callable[[int], messages.Call]) -> Any:
        if not said.session:
            return await self._other(make(0))
        lease = self._leases.find(said.session)
        answer = await self._leases.ask(lease, make(lease.number))
        if isinstance(answer, Failed):
            raise _Told(answer)
        return answer

    def _failure(self, told: Failed) -> Any:
        return self._wire.Failure(
            name=told.name,
            code=told.code,
            message=told.message,
            hint=told.hint,
            place=told.place,
            retryable=told.retryable,
            leader=told.leader,
            session_lost=told.lost or told.name == SessionLost.__name__,
        )

    async def _parsed(self, kind: Any, data: bytes, context: Any) -> Any:
        import grpc
        from google.protobuf.message import DecodeError

        try:
            return kind.FromString(data)
        except DecodeError:
            text = f"{kind.DESCRIPTOR.name} cannot be read"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)


class _Welcome:
    """Whether who makes a call that streams is still let in; `CALLER` knows what they may."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._looked_s = self._loop.time()

    async def check(self) -> None:
        """End the call of who is not, as soon as that was not looked at for `CHECK_S`."""
        import grpc

        now_s = self._loop.time()
        if now_s - self._looked_s < CHECK_S:
            return
        try:
            await CALLER.get().now()
        except AccessRefused as error:
            await self._context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        except EngineError as error:
            await self._context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        self._looked_s = now_s


class _Told(Exception):
    """The handler told what is wrong."""

    def __init__(self, told: Failed) -> None:
        super().__init__(told.message)
        self.failed = told


_KEEP_MODE: Final = messages.KEEP_MODE | messages.ONLY_ARROW


def _lost(error: Error) -> bool:
    return isinstance(error, SessionLost)


def _decoded(data: bytes) -> Any:
    check_values(data, _VALUES_MAX)
    try:
        with uncollected(len(data)):
            return _values.decode(data)
    except messages.MALFORMED as error:
        raise InterfaceError(f"values cannot be read: {error}") from error


def _list(data: bytes, what: str) -> list[Any]:
    found = _decoded(data) if data else []
    if not isinstance(found, list) or len(found) > _KEYS_MAX:
        raise InterfaceError(f"{what} are an array of MessagePack, of at most {_KEYS_MAX}")
    return found
