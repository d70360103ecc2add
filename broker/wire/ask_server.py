"""The server's end of one stream of questions; see `Asks` in `proto/broker.proto`.

Invariants:
- Questions are taken once each, in the order in which they came. They are answered as soon as their
  answers are known, together with all other answers that wait to be sent.
- The questions and bytes of a client that this side holds are bounded: beyond the limit, nothing
  more is read from its stream, or taken from a message that has arrived. An answer that may be long
  counts before it is known. All streams of one user together have a share of the bytes.
- A server that is ending answers all that it has taken, and says how much that was.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from broker.errors import InvalidTask
from broker.task import PAYLOAD_BYTES_MAX
from broker.wire.asking import ASKS_MAX, READS
from broker.wire.task_messages import failure_to
from engine.access.door import CALLER
from engine.access.shares import Shares

_UNDER_WAY_MAX: Final = 1_024
_BYTES_MAX: Final = 32 * 1024 * 1024
_ALL_BYTES_MAX: Final = 16 * _BYTES_MAX
_LIST_BYTES: Final = 4 * 1024 * 1024
"""A list counts as so many bytes until it is known."""
_SHORT: Final = frozenset(("task", "now_ms", "counts"))
_EXPECTED_BYTES: Final = dict.fromkeys(READS - _SHORT, _LIST_BYTES) | {
    "payload": PAYLOAD_BYTES_MAX,
    "result": PAYLOAD_BYTES_MAX,
}
_REPLIES_BYTES: Final = 1024 * 1024
"""Replies of about so many bytes leave in one message."""

Answer = Callable[[Any, bool], Awaitable[Any]]
"""The `AskReply` to an `AskRequest`, which somebody else may have passed on."""


class _Held:
    """The bytes that this side holds for the streams of users."""

    def __init__(self) -> None:
        self._shares = Shares(_ALL_BYTES_MAX)
        self.rooms: set[asyncio.Event] = set()
        """One of each stream that waits: set when there may be room again."""

    def full(self, user: str) -> bool:
        """Whether a user may not have more. Parts of the cluster count by stream alone."""
        return bool(user) and not self._shares.has_room(user)

    def change(self, user: str, size_bytes: int) -> None:
        """Hold more for a user, or less."""
        if user and size_bytes > 0:
            self._shares.count(user, size_bytes)
        elif user and size_bytes < 0:
            self._shares.give_back(user, -size_bytes)
            for room in self.rooms:
                room.set()


class AskStreams:
    """The streams that a server serves."""

    def __init__(self, answer: Answer, passed_on: Callable[[Any], bool]) -> None:
        self._answer = answer
        self._passed_on = passed_on
        self._open: set[_AskStream] = set()
        self._held = _Held()
        self._finished = False

    async def serve(self, _: Any, context: Any) -> None:
        """One stream, as gRPC wants it, until the client ends its side or `finish`."""
        passed_on = self._passed_on(context)
        caller = CALLER.get().principal
        user = "" if caller.admin else caller.name
        stream = _AskStream(context, lambda asked: self._answer(asked, passed_on), self._held, user)
        self._open.add(stream)
        if self._finished:
            stream.finish()
        try:
            await stream.run()
        except InvalidTask as error:
            import grpc

            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._open.discard(stream)

    def finish(self) -> None:
        """Take nothing new; the streams end when all that they took is answered."""
        self._finished = True
        for stream in list(self._open):
            stream.finish()


class _AskStream:
    def __init__(
        self, context: Any, answer: Callable[[Any], Awaitable[Any]], held: _Held, user: str
    ) -> None:
        from broker.wire.grpc_generated import broker_pb2

        self._wire: Any = broker_pb2
        self._context = context
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[None]] = set()
        self._held = held
        self._user = user
        self._held_bytes = 0
        self._taken = 0
        self._replies: list[Any] = []
        self._last = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._broken: asyncio.Future[None] = self._loop.create_future()

    def finish(self) -> None:
        """Take nothing new."""
        if not self._finished.done():
            self._finished.set_result(None)

    async def run(self) -> None:
        """Until all is answered that was asked. Raises `InvalidTask` for what is no question."""
        # Who asks waits for this: what is never heard here was then never sent.
        await self._context.send_initial_metadata(())
        reading = self._loop.create_task(self._read())
        writing = self._loop.create_task(self._write())
        try:
            await self._until_one(reading, self._finished, writing)
            if reading.done():
                reading.result()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            while self._under_way and not writing.done():
                await self._until_one(*self._under_way, writing)
            self._last = True
            self._news.set()
            await writing
            await self._context.write(self._wire.AskReplies(taken=self._taken).SerializeToString())
        finally:
            self._broken.cancel()
            tasks = [reading, writing, *self._under_way]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._hold(-self._held_bytes)

    def _hold(self, size_bytes: int) -> None:
        """Hold more, or less."""
        self._held_bytes += size_bytes
        self._held.change(self._user, size_bytes)

    async def _until_one(self, *ends: "asyncio.Future[None]") -> None:
        """Wait for one of them. Raises what an answer failed with that is no failure to tell."""
        await asyncio.wait((*ends, self._broken), return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            self._broken.result()

    async def _read(self) -> None:
        from google.protobuf.message import DecodeError

        while isinstance(data := await self._context.read(), bytes):
            try:
                asks = self._wire.AskRequests.FromString(data).asks
            except DecodeError as error:
                raise InvalidTask("AskRequests cannot be read") from error
            if len(asks) > ASKS_MAX:
                raise InvalidTask(f"a message may have at most {ASKS_MAX:,} questions")
            for asked in asks:
                # Another stream of the same user may have filled it.
                await self._until_room()
                self._take(asked)
            await self._until_room()

    async def _until_room(self) -> None:
        while self._full:
            self._room.clear()
            self._held.rooms.add(self._room)
            try:
                await self._room.wait()
            finally:
                self._held.rooms.discard(self._room)

    @property
    def _full(self) -> bool:
        return (
            len(self._under_way) >= _UNDER_WAY_MAX
            or self._held_bytes > _BYTES_MAX
            or self._held.full(self._user)
        )

    def _take(self, asked: Any) -> None:
        if asked.number <= self._taken:
            raise InvalidTask(f"question {asked.number} follows {self._taken}")
        self._taken = asked.number
        size_bytes = len(asked.arguments) + _EXPECTED_BYTES.get(asked.name, 0)
        self._hold(size_bytes)
        task = self._loop.create_task(self._carry_out(asked, size_bytes))
        self._under_way.add(task)

    async def _carry_out(self, asked: Any, size_bytes: int) -> None:
        try:
            if asked.name == "wait":
                # It would take a place from those that are answered soon.
                reply = self._wire.AskReply()
                failure_to(reply.failure, InvalidTask("wait is asked by itself, not in a stream"))
            else:
                reply = await self._answer(asked)
            reply.number = asked.number
            self._replies.append(reply)
            self._hold(len(reply.result))
            self._news.set()
        except Exception as error:
            if not self._broken.done():
                self._broken.set_exception(error)
        finally:
            self._hold(-size_bytes)
            task = asyncio.current_task()
            assert task is not None
            self._under_way.discard(task)
            self._room.set()

    async def _write(self) -> None:
        while self._replies or not self._last:
            await self._news.wait()
            self._news.clear()
            while self._replies:
                await self._context.write(self._packed())

    def _packed(self) -> bytes:
        """The next message of replies."""
        message = self._wire.AskReplies()
        size_bytes = count = 0
        for reply in self._replies:
            if count and size_bytes + len(reply.result) > _REPLIES_BYTES:
                break
            size_bytes += len(reply.result)
            count += 1
        message.replies.extend(self._replies[:count])
        del self._replies[:count]
        self._hold(-size_bytes)
        self._room.set()
        packed: bytes = message.SerializeToString()
        return packed
