"""A folder's broker for other processes of the same user, over a Unix socket.

Invariants:
- Only a process of the same user that knows the folder's nonce is heard.
- Calls of one connection begin in the order in which they came, what a worker says over one link is
  heard in its order.
- What a peer may make this side hold is bounded: calls under way, calls that wait, answers that it
  does not take.
- A link ends with its connection, and says so to the other side when it ends before.
"""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from broker.errors import BrokerError, InvalidTask, Overloaded, TooLarge
from broker.leading.link import LocalLink
from broker.service import Broker
from broker.wire.asking import METHODS
from broker.wire.framing import (
    ANSWER,
    CALL,
    CANCEL,
    FETCH_CODE,
    FORMAT_MAJOR,
    FORMAT_MINOR,
    FRAME_BYTES_MAX,
    LINK,
    MESSAGE_BYTES_MAX,
    NONCE,
    OPTION,
    QUEUED_BYTES_MAX,
    SAID,
    UNLINK,
    Answered,
    Asked,
    failed,
    pack,
    unpack_asked,
    unpack_from_worker,
    unpack_hello,
)
from broker.wire.worker_messages import parts_of_message
from engine.errors import EngineError, FormatTooNew, FrameInvalid, InvalidRequest
from engine.transport.address import may_trust, peer_user
from engine.transport.connection import FramedConnection
from engine.transport.frames import (
    GREETING_BYTES_MAX,
    ErrorCode,
    Frame,
    Kind,
    decode_greeting,
    encode_error,
    encode_greeting,
)

_GREETING_S: Final = 5.0
_LINGER_S: Final = 1.0
_CALLS_MAX: Final = 1_024
_WAITS_MAX: Final = 10_000
"""Calls that may wait long do not hold up the others of their connection, among them workers."""
_CALLS_BYTES_MAX: Final = 128 * 1024 * 1024


class FolderServer:
    """Serves a broker of this process. `accept` makes the protocol of a new connection."""

    def __init__(self, broker: Broker, nonce: str) -> None:
        self.broker = broker
        self.nonce = nonce
        self.connections: dict[ServedConnection, None] = {}
        self.closing = False

    def accept(self) -> FramedConnection:
        """The protocol of one more connection, for `loop.create_unix_server`."""
        return ServedConnection(self).wire

    async def close(self) -> None:
        """End all connections, after what is answered by now has left."""
        self.closing = True
        connections = list(self.connections)
        for each in connections:
            each.wire.close()
        if connections:
            await asyncio.wait([each.ended for each in connections], timeout=_LINGER_S)
        for each in connections:
            each.wire.abort()
        if connections:
            await asyncio.wait([each.ended for each in connections])


class ServedConnection:
    """What the server knows of one connection."""

    def __init__(self, server: FolderServer) -> None:
        self._server = server
        self._broker = server.broker
        self._loop = asyncio.get_running_loop()
        self.wire = FramedConnection(
            self._receive,
            self._on_lost,
            self._on_made,
            garbled=self._refuse,
            frame_bytes_max=GREETING_BYTES_MAX,
        )
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._greeted = False
        self._late: asyncio.TimerHandle | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._short = 0
        self._bytes = 0
        self._held = False
        self._links: dict[int, LocalLink] = {}
        self._heard: dict[int, asyncio.Queue[bytes]] = {}

    # The connection

    def _on_made(self, wire: FramedConnection) -> None:
        self._server.connections[self] = None
        if not may_trust(peer_user(wire.transport)) or self._server.closing:
            wire.abort()
            return
        self._late = self._loop.call_later(_GREETING_S, wire.abort)

    def _on_lost(self, failure: EngineError | None) -> None:
        if self._late is not None:
            self._late.cancel()
        for task in self._tasks.values():
            task.cancel()
        self._loop.create_task(self._end())

    async def _end(self) -> None:
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._server.connections.pop(self, None)
        if not self.ended.done():
            self.ended.set_result(None)

    def _refuse(self, error: EngineError) -> None:
        codes = {FormatTooNew: ErrorCode.FORMAT_TOO_NEW, FrameInvalid: ErrorCode.FRAME_INVALID}
        code = codes.get(type(error), ErrorCode.INVALID_REQUEST)
        kind = Kind.ERROR if self._greeted else Kind.REFUSED
        self.wire.send(kind, encode_error(code, str(error)))
        self.wire.close(error)
        self._loop.call_later(_LINGER_S, self.wire.abort)

    def _receive(self, frame: Frame) -> None:
        if not self._greeted:
            try:
                self._greet(frame)
            except EngineError as error:
                self._refuse(error)
        elif frame.kind == CALL:
            self._call(frame.request, frame.head)
        elif frame.kind == CANCEL:
            task = self._tasks.get(frame.request)
            if task is not None:
                task.cancel()
        elif frame.kind == LINK:
            self._heard[frame.request] = asyncio.Queue()
            self._begin(frame.request, self._work(frame.request, frame.head))
        elif frame.kind == SAID:
            heard = self._heard.get(frame.request)
            if heard is not None:
                heard.put_nowait(frame.head)
        elif frame.kind == UNLINK:
            link = self._links.get(frame.request)
            if link is not None:
                link.end("the worker let go of its link")

    def _greet(self, frame: Frame) -> None:
        if frame.kind != Kind.HELLO:
            raise FrameInvalid("a connection begins with a greeting")
        options = decode_greeting(frame.head).options
        said = options.get(OPTION)
        if not isinstance(said, list) or not said or not isinstance(said[0], int):
            raise FrameInvalid("a folder's tasks are served here, and nothing else")
        if said[0] > FORMAT_MAJOR:
            raise FormatTooNew(f"the other side speaks format {said[0]}, this one {FORMAT_MAJOR}")
        if options.get(NONCE) != self._server.nonce:
            raise InvalidRequest("the tasks of another folder are served here")
        self._greeted = True
        assert self._late is not None
        self._late.cancel()
        self.wire.take_frames_up_to(FRAME_BYTES_MAX)
        self.wire.send(Kind.WELCOME, encode_greeting({OPTION: [FORMAT_MAJOR, FORMAT_MINOR]}))

    # Calls

    def _call(self, request: int, head: bytes) -> None:
        try:
            asked = unpack_asked(head)
            if asked.name == "wait" and len(self._tasks) - self._short >= _WAITS_MAX:
                raise Overloaded(f"{_WAITS_MAX} calls of this connection wait already")
        except BrokerError as error:
            self.wire.send(ANSWER, failed(error), request=request)
            return
        task = self._begin(request, self._answer(request, asked))
        if asked.name == "wait":
            return
        self._short += 1
        self._bytes += len(head)
        task.add_done_callback(partial(self._answered, len(head)))
        if self._full and not self._held:
            self._held = True
            self.wire.hold()

    @property
    def _full(self) -> bool:
        return self._short >= _CALLS_MAX or self._bytes > _CALLS_BYTES_MAX

    def _answered(self, size_bytes: int, _: "asyncio.Task[None]") -> None:
        self._short -= 1
        self._bytes -= size_bytes
        if self._held and not self._full:
            self._held = False
            if not self.wire.over:
                self.wire.release()

    def _begin(self, request: int, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        if request in self._tasks:
            work.close()
            raise FrameInvalid(f"request {request} is under way already")
        task = self._tasks[request] = self._loop.create_task(work)
        task.add_done_callback(partial(self._over, request))
        return task

    def _over(self, request: int, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(request, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            told = {"message": "a call could not be answered", "exception": error}
            self._loop.call_exception_handler(told)
            self.wire.abort()

    async def _answer(self, request: int, asked: Asked) -> None:
        try:
            said = pack(Answered(await self._result(asked)))
            if len(said) > MESSAGE_BYTES_MAX:
                raise TooLarge(f"the answer has {len(said)} bytes: ask for less at once")
        except BrokerError as error:
            said = failed(error)
        await self._send(ANSWER, said, request)

    async def _result(self, asked: Asked) -> bytes:
        if asked.name == FETCH_CODE:
            return self._broker.code(asked.arguments.decode("utf-8", "replace"))
        method = METHODS.get(asked.name)
        if method is None:
            raise InvalidTask(f"a broker cannot be asked {asked.name!r}")
        return await method.answer(self._broker, asked.arguments)

    async def _send(self, kind: int, head: bytes, request: int) -> None:
        while self.wire.queued_bytes > QUEUED_BYTES_MAX and not self.wire.over:
            taken: asyncio.Future[None] = self._loop.create_future()
            self.wire.when_empty(partial(_tell, taken))
            await taken
        self.wire.send(kind, head, request=request)

    # Workers

    async def _work(self, request: int, head: bytes) -> None:
        """A worker's link, as long as it lasts."""
        hearing: asyncio.Task[None] | None = None
        try:
            link = self._links[request] = await self._broker.connect(unpack_hello(head))
            hearing = asyncio.create_task(self._hear(link, self._heard[request]))
            while True:
                for message in await link.receive():
                    for part in parts_of_message(message):
                        await self._send(SAID, pack([part]), request)
        except BrokerError as error:
            await self._send(UNLINK, failed(error), request)
        finally:
            self._heard.pop(request, None)
            left = self._links.pop(request, None)
            if left is not None:
                left.end("the worker's connection ended")
            if hearing is not None:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)

    async def _hear(self, link: LocalLink, heard: "asyncio.Queue[bytes]") -> None:
        try:
            while True:
                await link.send(unpack_from_worker(await heard.get()))
        except BrokerError as error:
            link.end(error.message)


def _tell(taken: "asyncio.Future[None]") -> None:
    if not taken.done():
        taken.set_result(None)
