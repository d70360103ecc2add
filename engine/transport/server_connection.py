"""One connection as its server sees it: requests in, answers out.

Invariants:
- Requests of one connection begin in the order in which they came.
- No task, timer or object is made per entry, and none per append either.
- What one connection may leave unanswered is bounded in bytes; beyond it nothing is read from it.
- A bookie's reply goes out under its own target only, in the turn in which the bookie gave it.
- A metadata session ends with its connection.
- Who holds a read token is heard where they read, and refused by name in all else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from engine.errors import (
    AccessRefused,
    EngineError,
    FrameInvalid,
    InvalidRequest,
    Overloaded,
)
from engine.limits import ENTRY_BYTES_MAX, FRAME_BYTES_MAX, MIB
from engine.run import NO_ENTRY
from engine.transport import messages
from engine.transport.contract import AppendReply, Bookie, LacReply, ReadReply, Status
from engine.transport.frames import TARGET_MAX, ErrorCode, Frame, Kind, encode_error
from engine.transport.metadata_session import SESSION, MetadataSession
from engine.transport.readable import seen_by
from engine.transport.server_bounds import ConnectionBounds
from engine.transport.serving import ServedConnection, code_of

if TYPE_CHECKING:
    from engine.transport.framed_server import FramedServer

_READ_BYTES_MAX: Final = FRAME_BYTES_MAX - 2 * ENTRY_BYTES_MAX
_APPEND_OVERHEAD_BYTES: Final = 512
_REPLIES_MAX: Final = 10_000
_FENCES_MAX: Final = 1_024
_QUEUED_BYTES: Final = 1 * MIB
READING: Final = frozenset({Kind.CONNECT, Kind.READ, Kind.WAIT_LAC, Kind.INFO})
"""What the holder of a read token may say."""
_OF_METADATA: Final = frozenset({Kind.METADATA, Kind.WATCH, Kind.UNWATCH})
"""What the holder of a read token may also say in a metadata session."""

assert _READ_BYTES_MAX > 0


class ServerConnection(ServedConnection):
    """What the server knows of one connection."""

    _server: "FramedServer"

    def __init__(self, server: "FramedServer") -> None:
        super().__init__(server, arriving=self._on_arriving)
        self._settings = server.settings
        self._bounds = ConnectionBounds(
            self.wire, server.settings, server.frames, server.appends, server.reads
        )
        self._bookies: Mapping[str, Bookie] = server.bookies
        self._targets: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._fences = 0
        self._reader: str | None = None
        """Whose read token was shown; None: it is a part of the cluster."""
        self._session: MetadataSession | None = None
        self._replies: list[tuple[int, AppendReply]] = []
        self._handlers: dict[int, Callable[[Frame], None]] = {
            Kind.CONNECT: self._connect,
            Kind.APPEND: self._append,
            Kind.CONFIRM: self._confirm,
            Kind.RECORD: self._record,
            Kind.READ: self._read,
            Kind.FENCE: self._fence,
            Kind.WAIT_LAC: self._wait_lac,
            Kind.INFO: self._info,
            Kind.METADATA: self._metadata,
            Kind.WATCH: self._watch,
            Kind.UNWATCH: self._unwatch,
            Kind.CONTROL: self._control,
        }

    def drop(self, bookie_id: str) -> None:
        """A bookie has stopped: its target is gone."""
        for target, name in list(self._targets.items()):
            if name == bookie_id:
                self._targets[target] = ""
                self.wire.send(Kind.GONE, b"", target=target)

    def finish(self) -> None:
        """Send what is owed, then end the connection."""
        self._send_replies()
        super().finish()

    # The connection

    def _on_arriving(self, size_bytes: int, urgent: bool) -> None:
        self._bounds.arriving(size_bytes, urgent)

    def _on_lost(self, failure: EngineError | None) -> None:
        self._bounds.over()
        for task in self._tasks:
            task.cancel()
        if self._session is not None:
            self._session.end_watches()
        super()._on_lost(failure)

    async def _let_go(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _receive(self, frame: Frame) -> None:
        if self._bounds.reserved:
            self._bounds.begun(frame)
        handler = self._handlers.get(frame.kind)
        if self._reader is not None and (why := self._refusal(self._reader, frame.kind)):
            if frame.request:
                self._refuse(frame.request, why)
        elif handler is not None:
            handler(frame)
        elif frame.request:
            self._refuse(frame.request, InvalidRequest(f"frames of kind {frame.kind} are unknown"))

    def _refusal(self, reader: str, kind: int) -> EngineError | None:
        """Why a reader is not heard, if they are not."""
        if kind not in READING and not (kind in _OF_METADATA and self._session is not None):
            return AccessRefused("a read token is for reading")
        # WATCH and UNWATCH are not refused: they have their own numbers, so a client would take the
        # refusal for the answer to a call.
        calls = kind not in (Kind.WATCH, Kind.UNWATCH)
        if calls and not self._server.readers.has_room(reader):
            return Overloaded("too many calls by read tokens of this user run at once")
        return None

    def _welcome(self, options: dict[str, Any]) -> dict[str, Any]:
        if self._server.admit is not None:
            self._server.admit(options)
        self._bookies = seen_by(self.caller, self._server.bookies)
        if not self.caller.principal.admin:
            self._reader = self.caller.principal.name
            self._bounds.share_reads(self._server.reads_of(self._reader))
        if options.get(SESSION):
            if self._server.open_session is None:
                raise InvalidRequest("no metadata is served here")
            store, user = self._server.open_session(self.caller), self._reader or ""
            self._session = MetadataSession(store, self._reply, self._server.watches, user)
        self.wire.take_frames_up_to(FRAME_BYTES_MAX)
        return self._server.options

    # Bookies

    def _connect(self, frame: Frame) -> None:
        bookie_id = messages.decode(frame.head, messages.Connect).bookie_id
        if bookie_id not in self._server.bookies:
            text = f"bookie {bookie_id} does not run here"
            head = encode_error(ErrorCode.UNAVAILABLE, text)
            self.wire.send(Kind.ERROR, head, request=frame.request)
            return
        target = next((n for n, name in self._targets.items() if name == bookie_id), 0)
        if not target:
            target = len(self._targets) + 1
            if target > TARGET_MAX:
                raise FrameInvalid("a connection has too many targets: make a new one")
            self._targets[target] = bookie_id
        head = messages.encode(messages.Connected(target))
        self.wire.send(Kind.CONNECTED, head, request=frame.request)

    def _bookie(self, frame: Frame) -> Bookie | None:
        name = self._targets.get(frame.target)
        if name is None:
            raise _no_target(frame.target)
        return self._bookies.get(name)

    def _append(self, frame: Frame) -> None:
        name = self._targets.get(frame.target)
        if name is None:
            raise _no_target(frame.target)
        bookie = self._bookies.get(name)
        append = messages.decode_append(frame)
        size_bytes = len(frame.head) + len(frame.body) + _APPEND_OVERHEAD_BYTES
        reply = partial(self._on_append, frame.request, name, size_bytes)
        self._bounds.append_begins(size_bytes, urgent=append.recovery)
        if bookie is None:
            first, last = append.runs[0].first, append.runs[-1].last
            ledger_id = append.runs[0].ledger_id
            reply(AppendReply(Status.UNAVAILABLE, ledger_id, first, last, "", 0))
            return
        bookie.append(
            append.runs, reply, key=append.key, facts=append.facts, recovery=append.recovery
        )

    def _on_append(self, request: int, bookie_id: str, size_bytes: int, reply: AppendReply) -> None:
        if self.wire.over:
            self._bounds.append_ends(size_bytes)
            return
        if reply.bookie_id != bookie_id and reply.status is not Status.UNAVAILABLE:
            first, last = reply.first, reply.last
            reply = AppendReply(Status.UNAVAILABLE, reply.ledger_id, first, last, bookie_id, 0)
        self._replies.append((request, reply))
        try:
            if self._bounds.append_bytes == size_bytes or len(self._replies) >= _REPLIES_MAX:
                # There is nothing left that they could wait for.
                self._send_replies()
            elif len(self._replies) == 1:
                self._loop.call_soon(self._send_replies)
        finally:
            self._bounds.append_ends(size_bytes)

    def _send_replies(self) -> None:
        if self._replies:
            replies, self._replies = self._replies, []
            self.wire.send(Kind.APPEND_REPLIES, messages.encode_append_replies(replies))
            self._bounds.answered()

    def _confirm(self, frame: Frame) -> None:
        bookie = self._bookie(frame)
        ledger_id, lac = messages.decode_confirm(frame.head)
        if bookie is not None:
            bookie.confirm(ledger_id, lac)

    def _record(self, frame: Frame) -> None:
        bookie = self._bookie(frame)
        said = messages.decode_record(frame.head)
        if bookie is not None:
            bookie.record(said.facts, said.key)

    def _read(self, frame: Frame) -> None:
        bookie = self._bookie(frame)
        request = messages.read_request(frame.head, _READ_BYTES_MAX)
        self._bounds.read_begins()

        async def read() -> None:
            held_bytes = 0
            try:
                # The answer to a read of one byte is a whole entry.
                room_bytes = max(request.max_bytes, ENTRY_BYTES_MAX)
                await self._bounds.read_room(room_bytes, urgent=request.fence_key is not None)
                held_bytes = room_bytes
                if bookie is None:
                    reply = ReadReply(Status.UNAVAILABLE, (), None, None, -1, "", 0)
                else:
                    reply = await bookie.read(request)
                head, body = messages.encode_read_reply(request.ledger_id, _fitting(reply))
                held_bytes = sum(map(len, body))
                self._bounds.read_brought(room_bytes, held_bytes)
                self._reply(Kind.READ_REPLY, frame.request, head, body)
                if self.wire.queued_bytes > _QUEUED_BYTES:
                    # What waits to be taken is still held.
                    del reply, body
                    await self._bounds.taken()
            finally:
                if held_bytes:
                    self._bounds.read_leaves(held_bytes)
                self._bounds.read_ends()

        self._begin(frame.request, read())

    def _fence(self, frame: Frame) -> None:
        """Long polls never keep a fence out: fences are counted by themselves."""
        asked = messages.decode_fence(frame.head)
        if self._fences >= _FENCES_MAX:
            head = messages.encode(messages.Lac(int(Status.OVERLOADED), NO_ENTRY, 0))
            self._reply(Kind.LAC_REPLY, frame.request, head)
            return
        fencing = self._lac_told(frame, lambda bookie: bookie.fence(asked.ledger_id, asked.key))
        self._fences += 1
        self._begin(frame.request, fencing).add_done_callback(self._fence_ended)

    def _fence_ended(self, _task: asyncio.Task[None]) -> None:
        self._fences -= 1

    def _wait_lac(self, frame: Frame) -> None:
        asked = messages.decode_wait_lac(frame.head)
        polling = self._lac_told(
            frame, lambda bookie: bookie.wait_lac(asked.ledger_id, asked.above, asked.timeout_ms)
        )
        self._start(frame.request, polling)

    def _lac_told(
        self, frame: Frame, ask: Callable[[Bookie], Awaitable[LacReply]]
    ) -> Coroutine[Any, Any, None]:
        bookie = self._bookie(frame)

        async def answer() -> None:
            reply = LacReply(Status.UNAVAILABLE, -1, "", 0) if bookie is None else await ask(bookie)
            head = messages.encode(messages.Lac(int(reply.status), reply.lac, reply.boot))
            self._reply(Kind.LAC_REPLY, frame.request, head)

        return answer()

    def _info(self, frame: Frame) -> None:
        bookie = self._bookie(frame)

        async def info() -> None:
            if bookie is None:
                raise EngineError("the bookie has stopped")
            said = await bookie.info()
            head = messages.encode(
                messages.Info(
                    said.boot,
                    said.cluster_id,
                    said.writable,
                    said.total_bytes,
                    said.free_bytes,
                    said.taken_entries,
                    said.taken_bytes,
                )
            )
            self._reply(Kind.INFO_REPLY, frame.request, head)

        self._start(frame.request, info())

    # Metadata and control

    def _metadata(self, frame: Frame) -> None:
        if self._session is None:
            self._refuse(frame.request, InvalidRequest("the connection has no metadata session"))
        else:
            self._start(frame.request, self._session.answer(frame))

    def _watch(self, frame: Frame) -> None:
        if self._session is None:
            raise FrameInvalid("a watch without a session")
        self._session.watch(frame)

    def _unwatch(self, frame: Frame) -> None:
        if self._session is not None:
            self._session.unwatch(frame)

    def _control(self, frame: Frame) -> None:
        control = self._server.control
        if control is None:
            self._refuse(frame.request, InvalidRequest("nothing can be controlled here"))
            return

        async def answer() -> None:
            self._reply(Kind.CONTROL_REPLY, frame.request, await control(frame.head))

        self._start(frame.request, answer())

    # Answers

    def _start(self, request: int, work: Coroutine[Any, Any, None]) -> None:
        """`_begin`, if not too much was begun."""
        if len(self._tasks) >= self._settings.calls_max:
            work.close()
            self._refuse(request, Overloaded("too many calls of this connection run at once"))
        else:
            self._begin(request, work)

    def _begin(self, request: int, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do what takes time beside the connection; the next frame is looked at after it began."""
        task = self._loop.create_task(self._guarded(request, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._reader is not None:
            self._server.readers.take(self._reader)
            task.add_done_callback(self._leave_readers)
        self.wire.pass_turn()
        return task

    def _leave_readers(self, _task: asyncio.Task[None]) -> None:
        assert self._reader is not None
        self._server.readers.give_back(self._reader)

    async def _guarded(self, request: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except FrameInvalid as error:
            self._end_with(error)
        except (EngineError, OSError) as error:
            self._refuse(request, error)

    def _refuse(self, request: int, error: Exception) -> None:
        self._reply(Kind.ERROR, request, encode_error(code_of(error), str(error)))

    def _reply(
        self, kind: Kind, request: int, head: bytes, body: list[bytes] | None = None
    ) -> None:
        self.wire.send(kind, head, request=request, body=body)
        self._bounds.answered()


def _no_target(target: int) -> FrameInvalid:
    return FrameInvalid(f"target {target} was never given")


def _fitting(reply: ReadReply) -> ReadReply:
    """As many runs as one frame carries; the client asks on from there."""
    room_bytes = FRAME_BYTES_MAX - ENTRY_BYTES_MAX // 4
    for count, run in enumerate(reply.runs):
        room_bytes -= run.size_bytes + 64
        if room_bytes < 0 or count > messages.RUNS_MAX - 1:
            runs = reply.runs[:count]
            return ReadReply(reply.status, runs, None, None, reply.lac, reply.bookie_id, reply.boot)
    return reply
