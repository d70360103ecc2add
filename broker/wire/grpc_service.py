"""The calls of `proto/broker.proto`, answered by a broker or, if it does not lead, by its leader.

Invariants:
- A call fails, as gRPC sees it, only for what is wrong with the call; what the broker decides is a
  `Failure` in the reply.
- A call is passed on once at most: the leader of a moment ago says so itself.
- Calls that wait are few enough, and short enough, to leave room for workers.
- A worker's stream ends with its link, and the link with the stream.
- Each call does what its caller may, as they may now: also one of a stream that began long ago.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from broker.access import Asking
from broker.calls import Calls
from broker.commands import ITEMS_MAX, POOL_PART_BYTES_MAX, Refusal
from broker.connection import Refused
from broker.errors import (
    AccessDenied,
    BrokerError,
    BrokerUnavailable,
    InvalidTask,
    NotLeader,
    PayloadMissing,
    TooLarge,
    UnknownTask,
    WaitTimedOut,
)
from broker.task import FINAL_STATES, Task
from broker.tenant_calls import as_seen_by, check_works
from broker.translating import translating
from broker.waits import Waits
from broker.wire.ask_server import AskStreams
from broker.wire.asking import METHODS, READS, WAIT_MS_MAX
from broker.wire.forwarding import Forwarder, was_forwarded
from broker.wire.task_messages import acted_to, failure_to, info_to, spec_of
from broker.wire.worker_messages import WorkerMessages
from engine.access.audit import NO_AUDIT, Audit
from engine.access.door import CALLER, CHECK_S
from engine.errors import AccessRefused, EngineError
from engine.replica import ConfirmedReads

SERVICE: Final = "herdbook.broker.v1.Broker"
WORK_METHOD: Final = f"/{SERVICE}/Work"
_WAITS_MAX: Final = 1_000
_WAITED_FOR_MAX: Final = 16_000
"""Tasks that all calls together wait for: one call may wait for a thousand."""
_REPLY_BYTES: Final = 4 * 1024 * 1024
_READ_AT_ONCE: Final = 16
"""The payloads and results of this many tasks are read at the same time."""
_ANSWER_BYTES: Final = 7 * 1024 * 1024
Act = Callable[[Asking, Any, Any], Awaitable[None]]


class ServedCalls(Calls, Protocol):
    """The broker that the server calls: one in this process, or a client of another one."""

    async def fetch_code(self, name: str) -> bytes:
        """A code pool's archive. Raises `UnknownCodePool`."""
        ...


class BrokerCalls:
    """All calls of one server."""

    def __init__(self, broker: ServedCalls, forwarder: Forwarder, audit: Audit = NO_AUDIT) -> None:
        from broker.wire.grpc_generated import broker_pb2

        self._wire: Any = broker_pb2
        self._broker = broker
        self._forwarder = forwarder
        self._audit = audit
        self._messages = WorkerMessages()
        self._waiting = Waits(_WAITS_MAX)
        self._waited_for = Waits(_WAITED_FOR_MAX)
        self.streams = AskStreams(self._asked, was_forwarded)

    def handlers(self) -> Any:
        """The service, as gRPC wants it."""
        import grpc

        wire = self._wire
        calls: dict[str, tuple[Any, Act, Any]] = {
            "Submit": (wire.SubmitRequest, self._submit, wire.SubmitReply),
            "Tasks": (wire.TasksRequest, self._tasks, wire.TasksReply),
            "Cancel": (wire.IdsRequest, self._cancel, wire.ActedReply),
            "Retry": (wire.IdsRequest, self._retry, wire.ActedReply),
            "BeginTransaction": (wire.BeginTransactionRequest, self._begin, wire.TransactionReply),
            "CommitTransaction": (wire.TransactionRequest, self._commit, wire.TransactionReply),
            "RollbackTransaction": (wire.TransactionRequest, self._rollback, wire.TransactionReply),
            "Ask": (wire.AskRequest, self._ask, wire.AskReply),
        }
        made = {
            name: grpc.unary_unary_rpc_method_handler(self._one(name, *call))
            for name, call in calls.items()
        }
        made["Asks"] = grpc.stream_stream_rpc_method_handler(self.streams.serve)
        made["Work"] = grpc.stream_stream_rpc_method_handler(self.work)
        made["FetchCode"] = grpc.unary_stream_rpc_method_handler(self.fetch_code)
        return grpc.method_handlers_generic_handler(SERVICE, made)

    def _one(
        self, name: str, kind: Any, act: Act, reply_kind: Any
    ) -> Callable[[bytes, Any], Awaitable[bytes]]:
        """A call with one request and one reply."""

        async def call(data: bytes, context: Any) -> bytes:
            said = await self._parsed(kind, data, context)
            reply = reply_kind()
            passed = await self._carry_out(name, act, said, reply, was_forwarded(context))
            packed: bytes = reply.SerializeToString() if passed is None else passed
            return packed

        return call

    async def _asked(self, said: Any, forwarded: bool) -> Any:
        """The reply to a question of a stream."""
        reply = self._wire.AskReply()
        passed = await self._carry_out("Ask", self._ask, said, reply, forwarded)
        return reply if passed is None else self._wire.AskReply.FromString(passed)

    async def _carry_out(
        self, name: str, act: Act, said: Any, reply: Any, forwarded: bool
    ) -> bytes | None:
        """Fill in the reply, or return that of the leader."""
        try:
            who = await self._asking()
            with self._waits_of(who, said):
                try:
                    with translating():
                        async with ConfirmedReads():
                            await act(who, said, reply)
                except NotLeader as error:
                    if error.leader and not forwarded:
                        passed = await self._passed_on(error.leader, name, said)
                        if passed is not None:
                            return passed
                    raise
        except BrokerError as error:
            if isinstance(error, AccessDenied):
                asked = said.name if name == "Ask" else name
                user = CALLER.get().principal.name
                self._audit.note(user, asked[:100], "broker", allowed=False, why=error.message)
            reply.Clear()
            failure_to(reply.failure, error)
        return None

    @contextmanager
    def _waits_of(self, who: Asking, said: Any) -> Iterator[None]:
        """Count a call that may wait long for its answer. Raises `Overloaded`."""
        if not (getattr(said, "wait_ms", 0) or getattr(said, "name", "") == "wait"):
            yield
            return
        task_count = min(len(getattr(said, "ids", ())), ITEMS_MAX)
        with self._waiting.some(who), self._waited_for.some(who, task_count):
            yield

    async def _passed_on(self, leader: str, name: str, said: Any) -> bytes | None:
        reads = name == "Tasks" or (name == "Ask" and said.name in READS)
        data = said.SerializeToString()
        return await self._forwarder.ask(leader, f"/{SERVICE}/{name}", data, reads=reads)

    async def _asking(self) -> Asking:
        """Who asks, as they are now. Raises `AccessDenied`, `BrokerUnavailable`."""
        try:
            return Asking.of(await CALLER.get().now())
        except AccessRefused as error:
            raise AccessDenied(str(error)) from error
        except EngineError as error:
            raise BrokerUnavailable(str(error)) from error

    # Submitting

    async def _submit(self, who: Asking, said: Any, reply: Any) -> None:
        specs = [spec_of(each) for each in said.tasks]
        calls = as_seen_by(self._broker, who)
        answers = await calls.submit(specs, transaction=said.transaction, atomic=said.atomic)
        for answer in answers:
            if isinstance(answer, Refusal):
                failure_to(reply.tasks.add().refusal, answer.error)
            else:
                reply.tasks.add(task_id=answer)

    async def _begin(self, who: Asking, said: Any, reply: Any) -> None:
        calls = as_seen_by(self._broker, who)
        reply.transaction = await calls.begin(said.owner, said.ttl_ms or None)

    async def _commit(self, who: Asking, said: Any, reply: Any) -> None:
        reply.tasks = await as_seen_by(self._broker, who).commit(said.transaction)
        reply.transaction = said.transaction

    async def _rollback(self, who: Asking, said: Any, reply: Any) -> None:
        reply.tasks = await as_seen_by(self._broker, who).rollback(said.transaction)
        reply.transaction = said.transaction

    # Looking and acting

    async def _tasks(self, who: Asking, said: Any, reply: Any) -> None:
        ids = _bounded(said.ids)
        if said.wait_ms:
            ids = list(dict.fromkeys(ids))
            shown = ids if who.everywhere else [task.id for task in await self._shown(who, ids)]
            await self._until_one_ended(shown, min(said.wait_ms, WAIT_MS_MAX))
        tasks = await self._shown(who, ids)
        size_bytes = 0
        for at in range(0, len(tasks), _READ_AT_ONCE):
            part = tasks[at : at + _READ_AT_ONCE]
            found = await asyncio.gather(*(self._contents(said, task) for task in part))
            for task, contents in zip(part, found, strict=True):
                if contents is None:
                    continue
                if size_bytes > _REPLY_BYTES:
                    reply.more = True
                    return
                to = reply.tasks.add()
                info_to(to, task)
                to.payload, to.result = contents
                size_bytes += len(to.payload) + len(to.result) + len(to.error)

    async def _shown(self, who: Asking, ids: list[int]) -> list[Task]:
        """The tasks that the caller may see. All are requested at once: they may be remote."""
        found = await asyncio.gather(*map(self._known, ids))
        return [task for task in found if task and (who.everywhere or who.sees(task.tenant))]

    async def _known(self, task_id: int) -> Task | None:
        try:
            return await self._broker.task(task_id)
        except UnknownTask:
            return None

    async def _contents(self, said: Any, task: Task) -> tuple[bytes, bytes] | None:
        """The payload and the result, if they were asked for; None if they were just purged."""
        payload, result = b"", b""
        try:
            if said.with_payload:
                payload = await self._broker.payload(task) if task.payload_bytes else task.payload
            if said.with_result and task.status in FINAL_STATES:
                result = await self._broker.result(task) if task.result_bytes else task.result
        except PayloadMissing:
            return None
        return payload, result

    async def _until_one_ended(self, ids: list[int], wait_ms: int) -> None:
        waits = [asyncio.create_task(self._broker.wait(each, wait_ms)) for each in ids]
        try:
            if waits:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            ended = await asyncio.gather(*waits, return_exceptions=True)
        for end in ended:
            if isinstance(end, BrokerError) and not isinstance(end, WaitTimedOut | UnknownTask):
                raise end

    async def _cancel(self, who: Asking, said: Any, reply: Any) -> None:
        calls = as_seen_by(self._broker, who)
        acted_to(reply, list(await calls.cancel(_bounded(said.ids), said.by)))

    async def _retry(self, who: Asking, said: Any, reply: Any) -> None:
        calls = as_seen_by(self._broker, who)
        acted_to(reply, await calls.retry(_bounded(said.ids), said.by))

    async def _ask(self, who: Asking, said: Any, reply: Any) -> None:
        method = METHODS.get(said.name)
        if method is None:
            raise InvalidTask(f"a broker cannot be asked {said.name!r}")
        result = await method.answer(as_seen_by(self._broker, who), said.arguments)
        if len(result) > _ANSWER_BYTES:
            raise TooLarge(f"the answer has {len(result)} bytes: ask for less at once")
        reply.result = result

    # Workers

    async def work(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """A worker's link, as long as the stream lasts."""
        try:
            hello = self._messages.unpack_hello(await anext(requests))
        except StopAsyncIteration:
            return
        except InvalidTask as error:
            await self._abort(context, error)
            return
        try:
            check_works(await self._asking())
        except BrokerError as error:
            final = isinstance(error, AccessDenied)
            for data in self._messages.pack_from_broker([Refused(str(error), final=final)]):
                yield data
            return
        link = await self._broker.connect(hello)
        watching = asyncio.create_task(self._watch(link))
        reading_it = asyncio.create_task(self._pass_on(requests, link, context))
        try:
            while True:
                for data in self._messages.pack_from_broker(await link.receive()):
                    yield data
        except BrokerError:
            return
        finally:
            for task in (reading_it, watching):
                task.cancel()
            await asyncio.gather(reading_it, watching, return_exceptions=True)
            await link.close()

    async def _watch(self, link: Any) -> None:
        """End a link when its worker's user may not take tasks any more."""
        while CALLER.get().passing:
            await asyncio.sleep(CHECK_S)
            try:
                check_works(await self._asking())
            except BrokerError:
                await link.close()
                return

    async def _pass_on(self, requests: AsyncIterator[bytes], link: Any, context: Any) -> None:
        try:
            async for data in requests:
                await link.send(self._messages.unpack_from_worker(data))
        except InvalidTask as error:
            await self._abort(context, error)
        except BrokerError:
            return
        finally:
            await link.close()

    async def fetch_code(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        """A code pool's archive."""
        said = await self._parsed(self._wire.FetchCodeRequest, data, context)
        reply = self._wire.FetchCodeReply
        try:
            check_works(await self._asking())
            with translating():
                async with ConfirmedReads():
                    archive = await self._broker.fetch_code(said.name)
            for at in range(0, len(archive), POOL_PART_BYTES_MAX):
                yield reply(data=archive[at : at + POOL_PART_BYTES_MAX]).SerializeToString()
        except BrokerError as error:
            failed = reply()
            failure_to(failed.failure, error)
            yield failed.SerializeToString()

    # Inside

    async def _parsed(self, kind: Any, data: bytes, context: Any) -> Any:
        from google.protobuf.message import DecodeError

        try:
            return kind.FromString(data)
        except DecodeError:
            await self._abort(context, InvalidTask(f"{kind.DESCRIPTOR.name} cannot be read"))

    async def _abort(self, context: Any, error: BrokerError) -> None:
        import grpc

        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


def _bounded(ids: Any) -> list[int]:
    if len(ids) > ITEMS_MAX:
        raise TooLarge(f"{len(ids)} tasks at once; {ITEMS_MAX} fit")
    return list(ids)
