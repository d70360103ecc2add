"""A folder's broker for other processes of the same user, over a Unix socket.

Invariants:
- Only who knows the folder's nonce is heard.
- Calls of one connection begin in the order in which they came, what a worker says over one link is
  heard in its order.
- What a peer may make this side hold is bounded: calls under way, calls that wait, answers that it
  does not take.
- A link ends with its connection, and says so to the other side when it ends before.
"""

import asyncio
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
from engine.errors import FormatTooNew, FrameInvalid, InvalidRequest
from engine.transport.frames import Frame
from engine.transport.serving import ConnectionServer, ServedCalls

_GREETING_MS: Final = 5_000
_CALLS_MAX: Final = 1_024
_WAITS_MAX: Final = 10_000
"""Calls that may wait long do not hold up the others of their connection, among them workers."""
_CALLS_BYTES_MAX: Final = 128 * 1024 * 1024


class FolderServer(ConnectionServer["BrokerConnection"]):
    """Serves a broker of this process."""

    def __init__(self, broker: Broker, nonce: str) -> None:
        super().__init__(partial(BrokerConnection, self), greeting_ms=_GREETING_MS)
        self.broker = broker
        self.nonce = nonce


class BrokerConnection(ServedCalls):
    """What the server knows of one connection."""

    _server: FolderServer

    def __init__(self, server: FolderServer) -> None:
        super().__init__(server)
        self._broker = server.broker
        self._short = 0
        self._bytes = 0
        self._held = False
        self._links: dict[int, LocalLink] = {}
        self._heard: dict[int, asyncio.Queue[bytes]] = {}

    # The connection

    def _receive(self, frame: Frame) -> None:
        if frame.kind == CALL:
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

    def _welcome(self, options: dict[str, Any]) -> dict[str, Any]:
        said = options.get(OPTION)
        if not isinstance(said, list) or not said or not isinstance(said[0], int):
            raise FrameInvalid("a folder's tasks are served here, and nothing else")
        if said[0] > FORMAT_MAJOR:
            raise FormatTooNew(f"the other side speaks format {said[0]}, this one {FORMAT_MAJOR}")
        if options.get(NONCE) != self._server.nonce:
            raise InvalidRequest("the tasks of another folder are served here")
        self.wire.take_frames_up_to(FRAME_BYTES_MAX)
        return {OPTION: [FORMAT_MAJOR, FORMAT_MINOR]}

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
            await self.wire.taken()
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
