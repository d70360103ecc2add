"""Sessions over framed connections: the server's side, over a Unix socket or TCP.

Frames are those of `herd.wire.framing`. A client that greets with the option `session` gets a
metadata session instead. It uses the engine's frames, and shows only what the user may see.

Invariants:
- Calls of one connection begin in the order in which they came.
- A connection of which nothing was heard for a lease ends, and with it what its guest began. A
  metadata session has no lease: its connection ends when TCP notices that the client is gone.
- What a peer may make the server hold is bounded: running calls, arriving calls, answers that were
  not fetched. Each user has a share of them, over all connections.
- A call that cannot be read is answered like any other that is wrong.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from engine.access.door import Caller, Door
from engine.access.shares import PARTS, Shares
from engine.errors import (
    AccessRefused,
    EngineError,
    FormatTooNew,
    FrameInvalid,
    InvalidRequest,
    Overloaded,
)
from engine.limits import FRAME_BYTES_MAX
from engine.metadata.contract import MetadataStore
from engine.transport.frames import Frame, Kind, encode_error
from engine.transport.metadata_session import SESSION, WATCHES_MAX, MetadataSession
from engine.transport.security import NO_SECURITY, Security
from engine.transport.serving import ConnectionServer, ServedCalls, code_of
from herd.errors import TooLarge
from herd.wire.failures import failed
from herd.wire.framing import ANSWER, CALL, CANCEL, HERD, LEASE, MORE, PART, send_parts
from herd.wire.guest import Guest
from herd.wire.messages import FORMAT_MAJOR, FORMAT_MINOR, encode
from herd.wire.service import HerdService

_FRAME_OVERHEAD_BYTES: Final = 4_096
_USERS_FRAME_BYTES: Final = 64 * 1_024
_PART_BYTES_MIN: Final = 1_024
"""A part of a call counts as at least this many bytes."""
_SMALL_BYTES: Final = 1_024
"""Calls up to this size are always accepted, because commits, cancels and closes are small."""
_CONNECTIONS_FULL: Final = 8
"""One user may have about as many calls running as so many connections may."""


class SessionServer(ConnectionServer["SessionConnection"]):
    """Serves sessions.

    `admit(options)` looks at a greeting's options and raises to refuse; a `door` lets users in.
    `open_metadata(caller)` begins a metadata session with the rights of a caller, and `told()`
    returns the options of WELCOME for such a client.
    """

    def __init__(
        self,
        service: HerdService,
        *,
        admit: Callable[[dict[str, Any]], None] | None = None,
        security: Security = NO_SECURITY,
        door: Door | None = None,
        open_metadata: Callable[[Caller], MetadataStore] | None = None,
        told: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.service = service
        self.settings = service.settings
        self.admit = admit
        self.open_metadata = open_metadata
        self.told = told
        self.watches = Shares(WATCHES_MAX)
        """The watches of all metadata sessions."""
        # One user has half of what others leave: so much may be on its way to become one call.
        self.calls = Shares(self.settings.calls_bytes_max, self.settings.calls_bytes_max)
        """The bytes of calls that arrive or are in progress."""
        self.running = Shares(PARTS * _CONNECTIONS_FULL * self.settings.calls_max)
        """Calls of users that are under way."""
        self.answers = Shares(self.settings.results_bytes_max)
        """The bytes of answers that users have not taken yet."""
        super().__init__(
            partial(SessionConnection, self),
            connections_max=self.settings.connections_max,
            greeting_ms=self.settings.connect_timeout_ms,
            security=security,
            door=door,
        )

    def take_answer(self, user: str, size_bytes: int) -> bool:
        """Count an answer until it is taken; False where the user takes too little of them."""
        return not user or size_bytes <= _SMALL_BYTES or self.answers.take(user, size_bytes)

    def answer_taken(self, user: str, size_bytes: int) -> None:
        """It was taken, or nobody will."""
        if user and size_bytes > _SMALL_BYTES:
            self.answers.give_back(user, size_bytes)


class SessionConnection(ServedCalls):
    """What the server knows of one connection."""

    _server: SessionServer

    def __init__(self, server: SessionServer) -> None:
        super().__init__(server)
        self._settings = server.settings
        self._guest = Guest(server.service)
        self._metadata: MetadataSession | None = None
        self._lease: asyncio.TimerHandle | None = None
        self._heard_frames = 0
        self._parts: dict[int, _Arriving] = {}
        self._refused: set[int] = set()
        self._held_for_calls = False
        self._held_for_answers = False
        self._user = ""
        """Whose share counts here; "": nobody's, as of who proved the secret."""
        self._untaken: list[int] = []
        """The sizes of the answers that were sent and count until they are taken."""

    # The connection

    def _on_lost(self, failure: EngineError | None) -> None:
        if self._lease is not None:
            self._lease.cancel()
        for request in list(self._parts):
            self._forget_parts(request)
        if self._metadata is not None:
            self._metadata.end_watches()
        super()._on_lost(failure)

    async def _let_go(self) -> None:
        await super()._let_go()
        await self._guest.close()
        if self._metadata is not None:
            await self._metadata.close()

    def _receive(self, frame: Frame) -> None:
        if self._metadata is not None:
            self._receive_metadata(self._metadata, frame)
        elif frame.kind == CALL:
            self._call(frame)
        elif frame.kind == CANCEL:
            self._cancel(frame.request)
        elif frame.request:
            self._refuse_kind(frame)

    def _refuse_kind(self, frame: Frame) -> None:
        error = InvalidRequest(f"frames of kind {frame.kind} are unknown here")
        self._send_error(frame.request, error)

    def _send_error(self, request: int, error: Exception) -> None:
        self.wire.send(Kind.ERROR, encode_error(code_of(error), str(error)), request=request)

    def _welcome(self, options: dict[str, Any]) -> dict[str, Any]:
        if self._server.admit is not None:
            self._server.admit(options)
        if self.caller.passing and not self.caller.principal.admin:
            self._user = self.caller.principal.name
        if options.get(SESSION):
            return self._welcome_to_metadata()
        if self.caller.only_reads:
            raise AccessRefused("a read token cannot open a session for tables: log in")
        major = _major_of(options)
        if major > FORMAT_MAJOR:
            raise FormatTooNew(f"the client's calls are of format {major}, here of {FORMAT_MAJOR}")
        self._guest.caller = self.caller
        self.wire.take_frames_up_to(self._settings.part_bytes + _FRAME_OVERHEAD_BYTES)
        self._watch()
        return {
            HERD: [FORMAT_MAJOR, FORMAT_MINOR],
            LEASE: self._settings.lease_ms,
            PART: self._settings.part_bytes,
        }

    def _welcome_to_metadata(self) -> dict[str, Any]:
        if self._server.open_metadata is None:
            raise InvalidRequest("no metadata is served here")
        store = self._server.open_metadata(self.caller)
        self._metadata = MetadataSession(
            store, self._send_metadata, self._server.watches, self._user
        )
        # A value may be as long as a frame, but users write only short values.
        self.wire.take_frames_up_to(_USERS_FRAME_BYTES if self._user else FRAME_BYTES_MAX)
        return self._server.told()

    def _watch(self) -> None:
        """Look after a lease whether anything was heard; what this side held back counts."""
        self._heard_frames = self.wire.received_frames
        self._lease = self._loop.call_later(self._settings.lease_ms / 1000, self._look)

    def _look(self) -> None:
        if self.wire.received_frames == self._heard_frames and not self.wire.held:
            self.wire.abort(FrameInvalid("nothing was heard for a whole lease"))
        else:
            self._watch()

    # Metadata

    def _receive_metadata(self, session: MetadataSession, frame: Frame) -> None:
        if frame.kind == Kind.METADATA:
            answer = self._answer_metadata(session, frame)
            if not self._begin_in_share(frame.request, answer, len(frame.head)):
                error = Overloaded("too many calls of this user run at once: wait for answers")
                self._send_error(frame.request, error)
        elif frame.kind == Kind.WATCH:
            session.watch(frame)
        elif frame.kind == Kind.UNWATCH:
            session.unwatch(frame)
        elif frame.request:
            self._refuse_kind(frame)

    async def _answer_metadata(self, session: MetadataSession, frame: Frame) -> None:
        try:
            await self._until_taken()
            await session.answer(frame)
        except FrameInvalid as error:
            self._end_with(error)
        except EngineError as error:
            self._send_error(frame.request, error)

    def _send_metadata(self, kind: Kind, request: int, head: bytes) -> None:
        if kind == Kind.CHANGED and self.wire.queued_bytes > self._settings.queued_bytes_max:
            self.wire.abort(FrameInvalid("the client does not read the events of its watches"))
        elif self._server.take_answer(self._user, len(head)):
            self.wire.send(kind, head, request=request)
            self._count_until_taken(len(head))
        else:
            error = Overloaded("too many answers wait for this user to read them")
            self._send_error(request, error)

    # Calls

    def _call(self, frame: Frame) -> None:
        request = frame.request
        if frame.target == MORE or request in self._parts or request in self._refused:
            data = self._joined(frame)
            if data is None:
                return
        else:
            data = frame.head
            if len(data) > _SMALL_BYTES and not self._server.calls.has_room(self._user, len(data)):
                self._refuse_call(request, full=True)
                return
        reply = self._guest.handle(data)
        if isinstance(reply, bytes):
            self._send_counted(request, self._counted(reply))
            if self.wire.queued_bytes > self._settings.queued_bytes_max:
                self._hold_for_answers()
        else:
            self._answer_later(request, reply, len(data))

    def _joined(self, frame: Frame) -> bytes | None:
        """A call of several parts, once it is whole."""
        request = frame.request
        if request in self._refused:
            if frame.target != MORE:
                self._refused.discard(request)
            return None
        arriving = self._parts.setdefault(request, _Arriving())
        if len(self._parts) + len(self._refused) > self._settings.calls_max:
            raise FrameInvalid("too many calls were begun and not finished")
        size_bytes = max(len(frame.head), min(_PART_BYTES_MIN, self._settings.part_bytes))
        arriving.parts.append(frame.head)
        arriving.size_bytes += size_bytes
        full = not self._server.calls.has_room(self._user, size_bytes)
        self._server.calls.count(self._user, size_bytes)
        limit = self._settings.call_bytes_max
        if arriving.size_bytes > limit or full:
            self._forget_parts(request)
            if frame.target == MORE:
                self._refused.add(request)
            self._refuse_call(request, full=full)
            return None
        if frame.target == MORE:
            return None
        return b"".join(self._forget_parts(request))

    def _refuse_call(self, request: int, *, full: bool) -> None:
        error = TooLarge(
            f"a call may have at most {self._settings.call_bytes_max} bytes", hint="do it in parts"
        )
        if full:
            error = TooLarge(
                "too many bytes of calls arrive or are in progress at once",
                hint="wait for answers, or send less at a time",
            )
        self._send(request, encode(failed(error)))

    def _forget_parts(self, request: int) -> list[bytes]:
        arriving = self._parts.pop(request)
        self._server.calls.give_back(self._user, arriving.size_bytes)
        return arriving.parts

    def _answer_later(
        self, request: int, work: Coroutine[Any, Any, bytes], size_bytes: int
    ) -> None:
        # A task that is cancelled before it begins would never close the coroutine that it awaits.
        if not self._begin_in_share(request, self._answer(request, work), size_bytes, work.close):
            error = TooLarge("too many calls of this user run at once", hint="wait for answers")
            self._send(request, encode(failed(error)))

    def _begin_in_share(
        self,
        request: int,
        work: Coroutine[Any, Any, None],
        size_bytes: int,
        ended: Callable[[], None] = lambda: None,
    ) -> bool:
        """Run `work` in a task, then call `ended`. False if the user has too many calls already."""
        user, calls = self._user, self._server.calls
        if user and not self._server.running.has_room(user):
            work.close()
            ended()
            return False
        try:
            task = self._begin(request, work)
        except FrameInvalid:
            ended()
            raise
        if user:
            self._server.running.take(user)
        calls.count(user, size_bytes)

        def end(_: "asyncio.Task[None]") -> None:
            ended()
            calls.give_back(user, size_bytes)
            if user:
                self._server.running.give_back(user)
            self._go_on_with_calls()

        task.add_done_callback(end)
        if len(self._tasks) >= self._settings.calls_max and not self._held_for_calls:
            self._held_for_calls = True
            self.wire.hold()
        return True

    async def _answer(self, request: int, work: Coroutine[Any, Any, bytes]) -> None:
        data = self._counted(await work)
        try:
            await self._until_taken()
        except asyncio.CancelledError:
            self._server.answer_taken(self._user, len(data))
            raise
        self._send_counted(request, data)

    async def _until_taken(self) -> None:
        """Wait while the client has too much left to read of what was sent."""
        while self.wire.queued_bytes > self._settings.queued_bytes_max and not self.wire.over:
            await self.wire.taken()

    def _counted(self, data: bytes) -> bytes:
        """An answer that counts from now on, or a refusal in its place."""
        if self._server.take_answer(self._user, len(data)):
            return data
        error = TooLarge(
            "too many answers wait to be taken by this user at once", hint="take them first"
        )
        return encode(failed(error))

    def _send_counted(self, request: int, data: bytes) -> None:
        self._send(request, data)
        self._count_until_taken(len(data))

    def _count_until_taken(self, size_bytes: int) -> None:
        self._untaken.append(size_bytes)
        if self.wire.over or not self.wire.queued_bytes:
            # The socket usually takes an answer at once, and waiting for that costs a loop turn.
            self._all_taken()
        elif len(self._untaken) == 1:
            self.wire.when_empty(self._all_taken)

    def _all_taken(self) -> None:
        untaken, self._untaken = self._untaken, []
        for size_bytes in untaken:
            self._server.answer_taken(self._user, size_bytes)

    def _go_on_with_calls(self) -> None:
        if self._held_for_calls and len(self._tasks) <= self._settings.calls_max // 2:
            self._held_for_calls = False
            if not self.wire.over:
                self.wire.release()

    def _cancel(self, request: int) -> None:
        task = self._tasks.get(request)
        if task is not None:
            task.cancel()
        elif request in self._parts:
            self._forget_parts(request)
            # The rest of it may be on its way.
            self._refused.add(request)

    def _hold_for_answers(self) -> None:
        if self._held_for_answers:
            return
        self._held_for_answers = True
        self.wire.hold()

        def go_on() -> None:
            self._held_for_answers = False
            if not self.wire.over:
                self.wire.release()

        self.wire.when_empty(go_on)

    def _send(self, request: int, data: bytes) -> None:
        send_parts(self.wire, ANSWER, request, data, self._settings.part_bytes)


class _Arriving:
    """A call of which only a part has arrived."""

    __slots__ = ("parts", "size_bytes")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size_bytes = 0


def _major_of(options: dict[str, Any]) -> int:
    said = options.get(HERD)
    if not isinstance(said, list) or not said or not isinstance(said[0], int):
        raise FrameInvalid("sessions in tablespaces are served here, and nothing else")
    return said[0]
