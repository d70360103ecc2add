"""One connection of frames: what client and server have in common.

Invariants:
- Frames sent within one turn of the loop leave in one write; where the latest turns had one frame
  each, one leaves at once, and what follows it before anything has come leaves behind it.
- Frames are handed on in the order in which they came, one after the other, and none while the
  connection is held: bytes then wait in the kernel and, in the end, with the sender.
- After `lost` was called nothing is handed on and nothing is sent.
- What is not a frame ends the connection: nothing that came behind it is looked at.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from engine.errors import AccessRefused, EngineError, FrameInvalid
from engine.limits import FRAME_BYTES_MAX, MIB
from engine.transport.address import tls_reason
from engine.transport.frames import URGENT, Frame, FrameReader, frame_header

_BUFFER_BYTES_HIGH: Final = 1 * MIB
_LONE_TO_LEAVE: Final = 8
"""So many turns in a row must have had one frame before one leaves at once."""


class FramedConnection(asyncio.Protocol):
    """Frames over a byte stream. `receive` gets each frame; it may raise `FrameInvalid`.

    `lost` is called once, with what was wrong (None: the other side ended it, or `close` did).
    `garbled` decides what to do about bytes that are no frames; without it the connection is
    aborted. `arriving(bytes, urgent)` hears of each frame of which only a part has come, and, with
    0 bytes, that it has come.
    """

    def __init__(
        self,
        receive: Callable[[Frame], None],
        lost: Callable[[EngineError | None], None],
        made: Callable[["FramedConnection"], None] | None = None,
        *,
        garbled: Callable[[FrameInvalid], None] | None = None,
        arriving: Callable[[int, bool], None] | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self._receive = receive
        self._lost = lost
        self._made = made
        self._garbled = garbled or self.abort
        self._arriving = arriving
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(frame_bytes_max)
        self._inbox: deque[Frame] = deque()
        self._holds = 0
        self._draining = False
        self._corked: list[bytes] = []
        self._corked_bytes = 0
        self._flush_due = False
        self._sent_frames = 0
        self._lone_turns = 0
        # Whether anything has come since a frame last left at once.
        self._answered = True
        self._arrives = False
        self._writable = True
        self._emptied: list[Callable[[], None]] = []
        self._failure: EngineError | None = None
        self.over = False
        self.received_frames = 0

    @property
    def queued_bytes(self) -> int:
        """Bytes accepted by `send` that the kernel has not taken yet."""
        if self._transport is None:
            return self._corked_bytes
        return self._corked_bytes + self._transport.get_write_buffer_size()

    @property
    def transport(self) -> asyncio.Transport:
        """The byte stream below; only once it is made."""
        assert self._transport is not None
        return self._transport

    def send(
        self,
        kind: int,
        head: bytes,
        *,
        target: int = 0,
        request: int = 0,
        body: list[bytes] | None = None,
        urgent: bool = False,
        posted: bool = False,
    ) -> None:
        """Queue a frame; it leaves in this turn. On a lost connection: nothing.

        One that is `posted`, to which nobody answers, never leaves before the turn is over.
        """
        if self.over:
            return
        self._sent_frames += not posted
        if body is None:
            self._corked += (frame_header(kind, target, request, head), head)
            self._corked_bytes += len(head)
        else:
            body_bytes = sum(map(len, body))
            flags = URGENT if urgent else 0
            self._corked += (frame_header(kind, target, request, head, body_bytes, flags), head)
            self._corked += body
            self._corked_bytes += len(head) + body_bytes
        if self._flush_due or not self._writable:
            return
        if self._answered and self._lone_turns >= _LONE_TO_LEAVE and not posted:
            # Requests and answers in turn: the loop needs no turn to see that it was the only one.
            self._answered = False
            self._sent_frames = 0
            self._flush()
        else:
            self._flush_due = True
            self._loop.call_soon(self._end_turn)

    @property
    def encrypted(self) -> bool:
        """Whether the bytes go through TLS."""
        ends = self._transport is not None and self._transport.get_extra_info("ssl_object")
        return bool(ends)

    @property
    def held(self) -> bool:
        """Whether nothing is handed on at the moment."""
        return self._holds > 0

    def hand_to(self, receive: Callable[[Frame], None]) -> None:
        """From the next frame on another one gets them."""
        self._receive = receive

    def take_frames_up_to(self, size_bytes: int) -> None:
        """From now on refuse bigger frames only than these."""
        self._reader.frame_bytes_max = size_bytes

    def descriptor(self) -> int:
        """The socket's descriptor, -1 if there is none any more."""
        end = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if end is None or self.over else int(end.fileno())

    def hold(self) -> None:
        """Hand on no frame until each `hold` was met by a `release`."""
        self._holds += 1
        if self._holds == 1 and not self.transport.is_closing():
            self.transport.pause_reading()

    def release(self) -> None:
        """Go on, soon."""
        assert self._holds > 0
        self._holds -= 1
        if self._holds == 0 and not self.transport.is_closing():
            self.transport.resume_reading()
            self.pass_turn()

    def pass_turn(self) -> None:
        """Hand on the next frame only after what the loop has ready by now."""
        if not self._draining:
            self._draining = True
            self._loop.call_soon(self._drain_later)

    def when_empty(self, call: Callable[[], None]) -> None:
        """Call once when the other side has taken what was queued, or the connection is lost."""
        self._emptied.append(call)
        if self._writable and not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._end_turn)

    async def taken(self) -> None:
        """Wait for what `when_empty` tells."""
        taken: asyncio.Future[None] = self._loop.create_future()

        def tell() -> None:
            if not taken.done():
                taken.set_result(None)

        self.when_empty(tell)
        await taken

    def close(self, failure: EngineError | None = None) -> None:
        """Send what is queued, then end the connection."""
        if self.over or self._transport is None or self._transport.is_closing():
            return
        self._failure = self._failure or failure
        self._writable = True
        self._flush()
        self._transport.close()

    def abort(self, failure: EngineError | None = None) -> None:
        """End the connection at once."""
        if not self.over and self._transport is not None:
            self._failure = self._failure or failure
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of a class of their own, with the same methods.
        self._transport = cast(asyncio.Transport, transport)
        # What is not for TLS goes to the kernel at once; what it does not take waits here.
        high_bytes = _BUFFER_BYTES_HIGH if self.encrypted else 0
        self._transport.set_write_buffer_limits(high=high_bytes)
        if self._made is not None:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        self._answered = True
        if self._failure is not None:
            return
        try:
            frames = self._reader.feed(data)
        except FrameInvalid as error:
            self._garbled(error)
            return
        self._inbox += frames
        if self._arrives and frames:
            self._tell_arriving(0, False)
        if not self._draining:
            self._drain()
        if self._reader.partial and (awaited_bytes := self._reader.awaited_bytes):
            self._tell_arriving(awaited_bytes, self._reader.awaits_urgent)

    def pause_writing(self) -> None:
        self._writable = False
        self._lone_turns = 0

    def resume_writing(self) -> None:
        self._writable = True
        self._flush()
        self._tell_empty()

    def connection_lost(self, error: Exception | None) -> None:
        self.over = True
        self._inbox.clear()
        self._corked.clear()
        self._corked_bytes = 0
        if isinstance(error, ssl.SSLError) and self._failure is None:
            self._failure = AccessRefused(f"the other side ended it: {tls_reason(error)}")
        self._lost(self._failure)
        self._tell_empty()

    # Inside

    def _drain_later(self) -> None:
        self._draining = False
        self._drain()

    def _drain(self) -> None:
        inbox = self._inbox
        try:
            while inbox and not (self._holds or self._draining or self.over or self._failure):
                self.received_frames += 1
                self._receive(inbox.popleft())
        except FrameInvalid as error:
            self._garbled(error)

    def _tell_arriving(self, size_bytes: int, urgent: bool) -> None:
        if self._arriving is not None:
            self._arrives = size_bytes > 0
            self._arriving(size_bytes, urgent)

    def _end_turn(self) -> None:
        self._flush_due = False
        if self._sent_frames > 1:
            self._lone_turns = 0
        elif self._sent_frames:
            # One behind one that left at once may have been of the same turn.
            self._lone_turns = self._lone_turns + 1 if self._answered else _LONE_TO_LEAVE // 2
        self._sent_frames = 0
        self._flush()

    def _flush(self) -> None:
        if self._corked and self._writable and not self.over:
            parts, self._corked, self._corked_bytes = self._corked, [], 0
            assert self._transport is not None
            self._transport.writelines(parts)
        if self._emptied:
            self._tell_empty()

    def _tell_empty(self) -> None:
        if self._emptied and (self.over or self._writable):
            calls, self._emptied = self._emptied, []
            for call in calls:
                call()
