"""A way to the process that runs a folder's tasks.

Invariants:
- Every call is answered, or raises: `NeverSent` if the other side cannot have heard of it,
  `ConnectionOver` if it may have.
- A link of a worker ends when the connection does.
"""

import asyncio
from typing import Any, Final

from broker.connection import FromBroker, FromWorker, Hello
from broker.errors import BrokerError, BrokerUnavailable, SessionLost, TooLarge
from broker.wire.calling import WAIT_STEP_MS
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
    Asked,
    pack,
    unpack_answered,
    unpack_from_broker,
)
from engine.errors import EngineError
from engine.ports.clock import Clock
from engine.transport.framed_client import ClientConnection, PendingCall
from engine.transport.framed_settings import FramedSettings
from engine.transport.frames import Frame

_CONNECT_MS: Final = 5_000
_ANSWER_MS: Final = 60_000


class NeverSent(BrokerUnavailable):
    """There was no connection any more: the other side has not heard of the call."""


class ConnectionOver(BrokerUnavailable):
    """The connection was lost with the call under way."""


class FolderChannel(ClientConnection):
    """A connection to a `FolderServer`. Made by `dial_folder`."""

    def __init__(self, address: str, clock: Clock, settings: FramedSettings, *_: Any) -> None:
        super().__init__(address, clock, settings)
        self._links: dict[int, FolderLink] = {}
        self.wire.take_frames_up_to(FRAME_BYTES_MAX)
        self.when_lost(self._end_links)

    async def ask(self, name: str, arguments: bytes) -> bytes:
        """The result of a call.

        Raises `TooLarge`, `NeverSent`, `ConnectionOver`, and what the other side told.
        """
        data = pack(Asked(name, arguments))
        if len(data) > MESSAGE_BYTES_MAX:
            raise TooLarge(f"a call of {len(data)} bytes; {MESSAGE_BYTES_MAX} fit")
        await self._room()
        if self.over:
            raise NeverSent(f"the connection to {self.address} is lost")
        reply: asyncio.Future[Frame] = self._loop.create_future()
        patience_ms = WAIT_STEP_MS if name == "wait" else 0
        request = self._register(PendingCall(reply, self._deadline(patience_ms)))
        self.wire.send(CALL, data, request=request)
        try:
            frame = await reply
        except asyncio.CancelledError:
            self.wire.send(CANCEL, b"", request=request)
            raise
        except EngineError as error:
            raise ConnectionOver(str(error)) from error
        finally:
            self._pending.pop(request, None)
        if frame.kind != ANSWER:
            raise BrokerUnavailable(str(self.error_of(frame)))
        return unpack_answered(frame.head).unwrap()

    def link(self, hello: Hello) -> "FolderLink":
        """A worker's link. Raises `NeverSent`."""
        if self.over:
            raise NeverSent(f"the connection to {self.address} is lost")
        number = self._next_request
        self._next_request += 1
        link = self._links[number] = FolderLink(self, number)
        self.wire.send(LINK, pack(hello), request=number)
        return link

    async def said(self, number: int, messages: list[FromWorker]) -> None:
        """Say something over a link; returns when there is room for more."""
        await self._room()
        self.wire.send(SAID, pack(messages), request=number)

    def unlink(self, number: int) -> None:
        """Let go of a link."""
        if self._links.pop(number, None) is not None and not self.over:
            self.wire.send(UNLINK, b"", request=number)

    def _end_links(self) -> None:
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.end(SessionLost(f"the connection to {self.address} is lost"))

    async def _room(self) -> None:
        while self.wire.queued_bytes > QUEUED_BYTES_MAX and not self.over:
            await self.wire.taken()

    def _receive(self, frame: Frame) -> None:
        if frame.kind == SAID:
            link = self._links.get(frame.request)
            if link is not None:
                link.hear(frame.head)
        elif frame.kind == UNLINK:
            link = self._links.pop(frame.request, None)
            if link is not None:
                link.end(_reason(frame.head))
        else:
            super()._receive(frame)


class FolderLink:
    """A `WorkerLink` to the process that runs the tasks."""

    def __init__(self, channel: FolderChannel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._said: list[FromBroker] = []
        self._error: BrokerError | None = None
        self._news = asyncio.Event()

    def hear(self, head: bytes) -> None:
        """Take what the broker says."""
        try:
            self._said += unpack_from_broker(head)
        except BrokerError as error:
            self.end(error)
        self._news.set()

    def end(self, error: BrokerError) -> None:
        """Hear nothing more; what was said before is still taken."""
        if self._error is None:
            self._error = error
            self._news.set()

    async def receive(self) -> list[FromBroker]:
        """See `WorkerLink`."""
        while not self._said:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        said, self._said = self._said, []
        return said

    async def send(self, messages: list[FromWorker]) -> None:
        """See `WorkerLink`."""
        if self._error is not None:
            raise self._error
        await self._channel.said(self._number, messages)

    async def fetch_code(self, name: str) -> bytes:
        """See `WorkerLink`."""
        return await self._channel.ask(FETCH_CODE, name.encode())

    async def close(self) -> None:
        """See `WorkerLink`."""
        self.end(SessionLost("the link was closed"))
        self._channel.unlink(self._number)


async def dial_folder(address: str, nonce: str, clock: Clock) -> FolderChannel:
    """Connect to the process that runs a folder's tasks. Raises `BrokerUnavailable`."""
    settings = FramedSettings(request_timeout_ms=_ANSWER_MS, connect_timeout_ms=_CONNECT_MS)
    options = {OPTION: [FORMAT_MAJOR, FORMAT_MINOR], NONCE: nonce}
    try:
        channel = await FolderChannel.dial(address, options, clock, settings)
    except EngineError as error:
        raise BrokerUnavailable(f"{address}: {error}") from error
    assert isinstance(channel, FolderChannel)
    return channel


def _reason(head: bytes) -> BrokerError:
    try:
        unpack_answered(head).unwrap()
    except BrokerError as error:
        return error
    return SessionLost("the broker ended the link")
