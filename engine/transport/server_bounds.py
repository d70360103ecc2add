"""What one connection may make its server hold, alone and together with all others.

Invariants:
- Beyond its own bounds, or when nothing is left for all, nothing more is read from a connection;
  it goes on when half of its own is answered, or when it is its turn again.
- Of a big frame nothing but its first piece is taken in before there is room for the whole; a frame
  of one usual run is not big, and never waits for those that are.
- Urgent frames need not wait for others.
- A read has room for a whole entry before a bookie hears of it, however few bytes it asks for;
  what its reply does not take is free again when the reply is known.
- A peer that is slow to send a big frame, or takes no answers, is cut off in time: also where only
  a reply to a read waits for it, whose bytes others could use.
- What a connection was granted is given back once, also when it is lost.
"""

import asyncio
from collections import deque
from typing import Final

from engine.access.shares import Share
from engine.errors import BookieUnavailable, FrameInvalid
from engine.limits import KIB, RUN_BYTES_MAX
from engine.transport.allowance import Allowance
from engine.transport.connection import FramedConnection
from engine.transport.framed_settings import FramedSettings
from engine.transport.frames import HEADER_BYTES, Frame

BIG_FRAME_BYTES: Final = RUN_BYTES_MAX + 32 * KIB
_FRAME_PATIENCE_S: Final = 2.0
_READ_BYTES: Final = 8 * KIB
"""What a read costs that waits for its turn: its task and its request."""


class ConnectionBounds:
    """The bounds of one connection of a server."""

    def __init__(
        self,
        wire: FramedConnection,
        settings: FramedSettings,
        frames: Allowance,
        appends: Allowance,
        reads: Allowance,
    ) -> None:
        self._wire = wire
        self._settings = settings
        self._frames = frames
        self._appends = appends
        self._reads = reads
        self._loop = asyncio.get_running_loop()
        self.reserved: deque[int] = deque()
        """The sizes of the big frames that have room and were not looked at yet."""
        self._asked_bytes = 0
        self._awaiting = False
        self._urgent = False
        self._deadline: asyncio.TimerHandle | None = None
        self._waits_for_room = False
        self.append_bytes = 0
        """What appends take that wait for their answers."""
        self._appends_held = False
        self._own_reads: Allowance | Share = Allowance(settings.read_bytes_max)
        self._read_bytes = 0
        self._reads_held = False
        self._stalled: asyncio.TimerHandle | None = None

    def over(self) -> None:
        """The connection is lost: let go of all that it alone was granted."""
        for timer in (self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()
        self._deadline = self._stalled = None
        if self._asked_bytes:
            self._frames.withdraw(self._frame_granted)
            self._asked_bytes = 0
        if self._waits_for_room:
            self._appends.withdraw(self._has_room)
            self._waits_for_room = False
        while self.reserved:
            self._frames.give_back(self.reserved.popleft())

    # Frames

    def arriving(self, size_bytes: int, urgent: bool) -> None:
        """A part of a frame has come; 0 bytes: nothing is awaited any more."""
        if not size_bytes:
            self._awaiting = False
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            return
        if self._awaiting or size_bytes <= BIG_FRAME_BYTES:
            return
        self._awaiting = True
        self._urgent = urgent
        self._await_frame(size_bytes)
        if self._frames.ask(size_bytes, self._frame_granted, urgent=urgent):
            self.reserved.append(size_bytes)
        else:
            self._asked_bytes = size_bytes
            self._wire.hold()
        if not urgent:
            self._wait_for_room()

    def begun(self, frame: Frame) -> None:
        """A frame for which there was room is looked at: now it counts as what it asks for."""
        size_bytes = HEADER_BYTES + len(frame.head) + len(frame.body)
        if self.reserved[0] == size_bytes:
            self._frames.give_back(self.reserved.popleft())

    def _frame_granted(self) -> None:
        self.reserved.append(self._asked_bytes)
        self._asked_bytes = 0
        if not self._urgent:
            self._wait_for_room()
        self._wire.release()

    def _await_frame(self, size_bytes: int) -> None:
        slow_s = _FRAME_PATIENCE_S + size_bytes / self._settings.frame_bytes_a_second
        patience_s = min(slow_s, self._patience_s)
        self._deadline = self._loop.call_later(patience_s, self._frame_late, size_bytes)

    def _frame_late(self, size_bytes: int) -> None:
        self._deadline = None
        if self._wire.held:
            # It is this side that did not read on.
            self._await_frame(size_bytes)
        else:
            self._wire.abort(FrameInvalid("the rest of a frame did not come in time"))

    # Appends

    def append_begins(self, size_bytes: int, *, urgent: bool) -> None:
        """An append is handed to a bookie. Call it, then look at the next frame."""
        self.append_bytes += size_bytes
        exhausted = self._appends.take(size_bytes)
        if self.append_bytes > self._settings.append_bytes_max and not self._appends_held:
            self._appends_held = True
            self._wire.hold()
        if exhausted and not urgent:
            self._wait_for_room()

    def append_ends(self, size_bytes: int) -> None:
        """An append was answered."""
        self.append_bytes -= size_bytes
        if self._appends_held and self.append_bytes <= self._settings.append_bytes_max // 2:
            self._appends_held = False
            self._wire.release()
        self._appends.give_back(size_bytes)

    def _wait_for_room(self) -> None:
        """Read on only when something is left for normal appends."""
        if self._appends.exhausted and not self._waits_for_room:
            self._waits_for_room = True
            self._wire.hold()
            asked = self._appends.ask(0, self._has_room)
            assert not asked, "nothing is granted while all is taken"

    def _has_room(self) -> None:
        self._waits_for_room = False
        self._wire.release()

    # Reads and answers

    def share_reads(self, own_reads: Share) -> None:
        """Count the reads of this connection together with others of the same user."""
        self._own_reads = own_reads

    def read_begins(self) -> None:
        """A read is to be begun."""
        self._read_bytes += _READ_BYTES
        if self._read_bytes > self._settings.read_bytes_max and not self._reads_held:
            self._reads_held = True
            self._wire.hold()

    async def read_room(self, size_bytes: int, *, urgent: bool) -> None:
        """Wait until there is room for what the read may bring; `read_leaves` gives it back."""
        await self._own_reads.acquire(size_bytes)
        try:
            await self._reads.acquire(size_bytes, urgent=urgent)
        except BaseException:
            self._own_reads.give_back(size_bytes)
            raise

    def read_brought(self, room_bytes: int, size_bytes: int) -> None:
        """A reply is known: what it takes is held from now on, in place of the room for it."""
        for reads in (self._own_reads, self._reads):
            reads.take(size_bytes)
            reads.give_back(room_bytes)

    def read_leaves(self, size_bytes: int) -> None:
        """A reply has left, or there is none: give back what is held for it."""
        self._own_reads.give_back(size_bytes)
        self._reads.give_back(size_bytes)

    def read_ends(self) -> None:
        """A read was answered, or given up."""
        self._read_bytes -= _READ_BYTES
        if self._reads_held and self._read_bytes <= self._settings.read_bytes_max // 2:
            self._reads_held = False
            self._wire.release()

    def answered(self) -> None:
        """An answer was queued: if the peer takes none, do nothing more for it."""
        if self._stalled is None and self._wire.queued_bytes > self._settings.reply_bytes_max:
            self._stalled = self._loop.call_later(self._patience_s, self._stuck)
            self._wire.hold()
            self._wire.when_empty(self._unstall)

    def _unstall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
            self._wire.release()

    def _stuck(self) -> None:
        self._wire.abort(BookieUnavailable("the peer takes no answers"))

    async def taken(self) -> None:
        """Wait until the peer has taken what is queued, and cut it off if it does not."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self._wire.taken()
        except TimeoutError:
            self._stuck()

    @property
    def _patience_s(self) -> float:
        return self._settings.request_timeout_ms / 1000
