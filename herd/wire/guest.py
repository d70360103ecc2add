"""One client as its server sees it: its sessions, its results, and an answer to each call.

Invariants:
- A call is answered once; what goes wrong in it is an answer, too.
- What a guest began ends with it: its statements are cancelled, its transactions rolled back, its
  results forgotten. Only a commit that is under way goes on.
- A row that is named by its whole key is read at once, without a task.
- Every call is judged by what its caller may at that moment, before anything else of it is done.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from engine.access.door import BY_ANYBODY, Caller
from engine.access.principal import SYSTEM
from engine.errors import AccessRefused, EngineError
from engine.log import Position
from engine.replica import ConfirmedReads
from engine.uncollected import uncollected
from herd.errors import (
    AccessDenied,
    Error,
    InterfaceError,
    InternalError,
    LeaderUnavailable,
    NotSupportedError,
    ProgrammingError,
    SessionLost,
)
from herd.permits import Permits, check_right
from herd.table import create_table
from herd.transaction import Isolation
from herd.translating import translated
from herd.wire import messages, table_calls
from herd.wire.failures import failed
from herd.wire.messages import MALFORMED, Answer, Done, Failed, Rows, Told, decode_call, encode
from herd.wire.results import Pieces, rows_packed, table_of
from herd.wire.rights import OF_A_TABLESPACE, check_call
from herd.wire.service import HerdService, HostedSession
from herd.wire.weighing import check_values

if TYPE_CHECKING:
    from herd.sql.result import Result
    from herd.sql.session import Session

_LARGE_BYTES: Final = 256 * 1024
_RESULTS_MAX: Final = 1_000
_FORGOTTEN_S: Final = 300.0
_CLIENT_BYTES: Final = 16
_TOLD: Final = ("grantee", "owner", "id", "kind", "name", "level")
"""Columns of users, grants and tokens that an audit may show."""
Reply = bytes | Coroutine[Any, Any, bytes]


class Guest:
    """All that one connection may ask. On the event loop."""

    def __init__(self, service: HerdService, caller: Caller = BY_ANYBODY) -> None:
        self.service = service
        self.caller = caller
        self._sessions: dict[int, HostedSession] = {}
        self._results: dict[int, Pieces] = {}
        self._next = 0
        self._commits: set[asyncio.Future[None]] = set()
        self._closed = False
        self._folder_calls: dict[type, Callable[[Any], Awaitable[Answer]]] = {
            messages.Make: self._make,
            messages.MakeTable: self._make_table,
            messages.BackUp: self._back_up,
            messages.Restore: self._restore,
            messages.RestoreUntil: self._restore_until,
        }
        self._calls: dict[type, Callable[[Any], Awaitable[Answer]]] = self._folder_calls | {
            messages.Open: self._open,
            messages.Execute: self._execute,
            messages.ExecuteMany: self._execute_many,
            messages.Begin: self._begin,
            messages.Commit: self._commit,
            messages.Rollback: self._rollback,
            messages.Close: self._close,
            messages.Fetch: self._fetch,
            messages.Outcome: self._outcome,
            messages.Names: self._names,
            messages.ReadToken: self._read_token,
        }

    def handle(self, data: bytes) -> Reply:
        """The answer to a call, or what makes it; what is no call is answered, too."""
        if len(data) > _LARGE_BYTES:
            return self._handle_large(data)
        try:
            return self._begun(self._decoded(data))
        except Error as error:
            if isinstance(error, AccessDenied):
                self._note(None, "", error)
            return encode(failed(error))

    def ask(self, call: messages.Call) -> Awaitable[Answer]:
        """The answer to a call that is decoded already, for wires with messages of their own."""
        return self._answered(call)

    async def close(self) -> None:
        """End everything but commits under way."""
        self._closed = True
        for result in list(self._results):
            self._drop(result)
        hosted, self._sessions = list(self._sessions.values()), {}
        for one in hosted:
            self.service.remove(one)
        if self._commits:
            await asyncio.wait(self._commits)
        for one in hosted:
            await one.session.close()

    def evict(self, number: int) -> None:
        """A session of this guest, without a transaction, made room for another."""
        self._sessions.pop(number, None)

    @property
    def _user(self) -> str:
        """Whose share counts here; "": nobody's, as of administrators and who has the secret."""
        caller = self.caller
        return caller.principal.name if caller.passing and not caller.principal.admin else ""

    # Answers

    def _begun(self, call: messages.Call) -> Reply:
        check_call(self.caller.principal, call)
        if type(call) is messages.Execute:
            hosted = self._sessions.get(call.session)
            if hosted is not None:
                answer = self._read_now(hosted, call)
                if answer is not None:
                    return encode(answer)
        elif type(call) is messages.Get and not call.session:
            told = table_calls.get_now(self.service, call)
            if told is not None:
                return encode(told)
        elif type(call) is messages.Renew:
            return encode(Done())
        return self._encoded(call)

    def _decoded(self, data: bytes) -> messages.Call:
        check_values(data, self.service.settings.call_values_max)
        try:
            with uncollected(len(data)):
                call: messages.Call = decode_call(data)
            return call
        except MALFORMED as error:
            raise InterfaceError(f"a call cannot be read: {error}") from error

    async def _handle_large(self, data: bytes) -> bytes:
        try:
            call = await self.service.workers.run(partial(self._decoded, data))
        except Error as error:
            return encode(failed(error))
        # The message is not needed once it is decoded.
        del data
        return await self._encoded(call)

    async def _encoded(self, call: messages.Call) -> bytes:
        answer = await self._answered(call)
        try:
            return encode(answer)
        except Error as error:
            return encode(failed(InternalError(f"an answer cannot be sent: {error.message}")))

    async def _answered(self, call: messages.Call) -> Answer:
        hosted = self._sessions.get(getattr(call, "session", 0))
        if hosted is not None:
            hosted.running += 1
            self.service.used(hosted)
        try:
            check_call(self.caller.principal, call)
            if self._closed:
                raise SessionLost("the connection is ending", hint="connect again")
            if _touches_users(call, hosted):
                self._note(call, SYSTEM, None)
            async with ConfirmedReads():
                return await self._run(call)
        except Exception as error:
            return self._failed(error, call, hosted)
        finally:
            if hosted is not None:
                hosted.running -= 1

    async def _run(self, call: messages.Call) -> Answer:
        handler = self._calls.get(type(call))
        if handler is not None:
            return await handler(call)
        if type(call) is messages.Renew:
            return Done()
        transaction, principal = self._transaction_of(call), self.caller.principal
        return await table_calls.answer(self.service, call, transaction, principal)

    def _failed(
        self, error: Exception, call: messages.Call, hosted: HostedSession | None
    ) -> Failed:
        if isinstance(error, EngineError):
            error = translated(error)
            transaction = hosted.session.transaction if hosted is not None else None
            if transaction is not None:
                # What the call changed in it must not be committed: the caller may call again.
                transaction.end(f"a call in it failed: {error.message}")
        tablespace = hosted.tablespace if hosted is not None else getattr(call, "tablespace", "")
        if isinstance(error, AccessDenied):
            self._note(call, tablespace, error)
        leader = ""
        if isinstance(error, LeaderUnavailable) and tablespace:
            leader = self.service.host.leader_of(tablespace) or ""
            self.service.forget_tables(tablespace)
        state = messages.NO_TRANSACTION if hosted is None else _state_of(hosted.session)
        return failed(error, leader=leader, lost=isinstance(error, SessionLost), state=state)

    def _note(self, call: messages.Call | None, tablespace: str, refused: Error | None) -> None:
        """Tell the audit what was asked, and why it was not done if it was not."""
        self.service.audit.note(
            self.caller.principal.name,
            "call" if call is None else _told_of(call, tablespace),
            f"tablespace {tablespace}" if tablespace else "tablespaces",
            allowed=refused is None,
            why="" if refused is None else refused.message,
        )

    # Sessions

    async def _open(self, call: messages.Open) -> Answer:
        if call.client and len(call.client) != _CLIENT_BYTES:
            raise InterfaceError(f"a client's name has {_CLIENT_BYTES} bytes")
        name = call.tablespace.lower()
        permits = self._permits(call, name)
        autocommit = bool(call.mode & messages.AUTOCOMMIT)
        session = await self._session_of(name, autocommit, bool(call.mode & messages.FOLLOWER))
        if self._closed:
            raise SessionLost("the connection is ending", hint="connect again")
        session.client = call.client.hex()
        session.permits = permits
        self._next += 1
        user = self._user if call.whose is None else call.whose.user
        hosted = HostedSession(self, self._next, session, name, call.client, user)
        goes = self.service.add(hosted)
        if goes is not None:
            goes.guest.evict(goes.number)
        self._sessions[hosted.number] = hosted
        _set_mode(session, call.mode)
        return messages.Opened(hosted.number, self.service.settings.lease_ms)

    def _permits(self, call: messages.Open, name: str) -> Permits | None:
        if call.whose is None:
            return Permits(lambda: self.caller.principal, name) if self.caller.passing else None
        try:
            self.caller.principal.check_admin()
        except AccessRefused as error:
            raise AccessDenied(str(error), hint="open it in your own name") from None
        whose = call.whose.principal()
        check_right(whose, name, "read")
        return Permits(lambda: whose, name)

    async def _session_of(self, name: str, autocommit: bool, follower: bool) -> "Session":
        if not follower:
            return await self.service.host.session(name, autocommit=autocommit)
        follow = getattr(self.service.host, "follower_session", None)
        if follow is None:
            raise NotSupportedError("there are no followers here", hint="read where it runs")
        session: Session = await follow(name, autocommit=autocommit)
        return session

    def _read_now(self, hosted: HostedSession, call: messages.Execute) -> Answer | None:
        session = hosted.session
        if session.transaction is not None:
            return None
        _set_mode(session, call.mode)
        if not session.autocommit:
            return None
        try:
            result = session.read_now(call.text, call.parameters)
        except LeaderUnavailable:
            return None
        except Error as error:
            return failed(error)
        if result is None:
            return None
        self.service.used(hosted)
        return self._rows(session, result)

    async def _execute(self, call: messages.Execute) -> Answer:
        session, user = self._session(call.session, call.mode), self._hosted(call.session).user
        _check_leads(session)
        result = await session.execute(call.text, call.parameters)
        table = result.table
        if table is None and call.mode & messages.ONLY_ARROW and result.columns:
            table = table_of(result)
        if table is None or call.mode & messages.WITHOUT_ARROW:
            return self._rows(session, result)
        pieces = Pieces(table, self.service.settings.piece_bytes)
        if pieces.size_bytes > _LARGE_BYTES:
            data = await self.service.workers.run(pieces.next)
        else:
            data = pieces.next()
        return messages.Table(
            _state_of(session),
            _mode_of(session),
            result.kind,
            result.count,
            self.service.columns(result.columns),
            data,
            self._keep(pieces, user) if pieces.more else 0,
            getattr(session, "position", None),
        )

    async def _execute_many(self, call: messages.ExecuteMany) -> Answer:
        session = self._session(call.session, call.mode)
        _check_leads(session)
        return self._rows(session, await session.execute_many(call.text, call.rows))

    async def _begin(self, call: messages.Begin) -> Answer:
        session = self._hosted(call.session).session
        await session.begin(_isolation_of(call.mode))
        return Done(_state_of(session))

    async def _commit(self, call: messages.Commit) -> Answer:
        hosted = self._hosted(call.session)
        session, transaction = hosted.session, hosted.session.transaction
        if transaction is None:
            return Done()
        if hosted.client and call.sequence and transaction.changed:
            transaction.identity = identity_of(hosted.client, call.sequence)
        commit = asyncio.ensure_future(session.commit())
        self._commits.add(commit)
        commit.add_done_callback(self._commits.discard)
        # A caller that is cancelled here only stops waiting. A failure of the commit is dropped.
        commit.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(commit)
        return Done(_state_of(session))

    async def _rollback(self, call: messages.Rollback) -> Answer:
        await self._hosted(call.session).session.rollback()
        return Done()

    async def _close(self, call: messages.Close) -> Answer:
        hosted = self._sessions.pop(call.session, None)
        if hosted is not None:
            self.service.remove(hosted)
            await hosted.session.close()
        return Done()

    async def _outcome(self, call: messages.Outcome) -> Answer:
        if len(call.client) != _CLIENT_BYTES:
            raise InterfaceError(f"a client's name has {_CLIENT_BYTES} bytes")
        space = await self.service.host.tablespace(call.tablespace.lower())
        return Told(await space.outcome(identity_of(call.client, call.sequence)))

    def _hosted(self, number: int) -> HostedSession:
        hosted = self._sessions.get(number)
        if hosted is None:
            raise SessionLost(f"session {number} is not known here any more", hint="open another")
        return hosted

    def _session(self, number: int, mode: int) -> "Session":
        session = self._hosted(number).session
        if session.transaction is None:
            _set_mode(session, mode)
        return session

    def _transaction_of(self, call: messages.Call) -> Any:
        number = getattr(call, "session", 0)
        if not number:
            return None
        hosted = self._hosted(number)
        if hosted.tablespace != getattr(call, "tablespace", "").lower():
            raise ProgrammingError("the session is in another tablespace than the table")
        transaction = hosted.session.transaction
        if transaction is None:
            raise ProgrammingError("the session is in no transaction", hint="begin one")
        return transaction

    # Results

    def _rows(self, session: "Session", result: "Result") -> Rows:
        return Rows(
            _state_of(session),
            _mode_of(session),
            result.kind,
            result.count,
            result.last_id,
            self.service.columns(result.columns) if result.columns else b"",
            rows_packed(result.rows),
            getattr(session, "position", None),
        )

    def _keep(self, pieces: Pieces, user: str) -> int:
        pieces.asked_s = now_s = asyncio.get_running_loop().time()
        for result, other in list(self._results.items()):
            # Whoever asked for it was cancelled before he heard that there is more.
            if now_s - other.asked_s > _FORGOTTEN_S:
                self._drop(result)
        if len(self._results) >= _RESULTS_MAX:
            raise InterfaceError("too many results wait to be fetched", hint="fetch or drop some")
        self.service.keep_result(pieces.size_bytes, user)
        pieces.user = user
        self._next += 1
        self._results[self._next] = pieces
        return self._next

    def _drop(self, result: int) -> None:
        pieces = self._results.pop(result, None)
        if pieces is not None:
            self.service.drop_result(pieces.size_bytes, pieces.user)

    async def _fetch(self, call: messages.Fetch) -> Answer:
        pieces = self._results.get(call.result)
        if pieces is None:
            raise SessionLost(f"result {call.result} is not known here any more")
        if call.drop:
            self._drop(call.result)
            return messages.Piece(b"")
        if pieces.cutting:
            raise InterfaceError("a piece of this result is being made", hint="wait for it")
        pieces.asked_s = asyncio.get_running_loop().time()
        pieces.cutting = True
        # The piece of a fetch that is cancelled is made all the same, and goes nowhere: whoever
        # cancels one has no use for the rest.
        data = await self.service.workers.run(pieces.next)
        pieces.cutting = False
        if not pieces.more:
            self._drop(call.result)
        return messages.Piece(data, pieces.more)

    # Tablespaces

    async def _names(self, _call: messages.Names) -> Answer:
        principal = self.caller.principal
        names = await self.service.host.names()
        return Told([name for name in names if principal.allows("tablespace", name, "read")])

    async def _read_token(self, call: messages.ReadToken) -> Answer:
        if self.service.signer is None:
            raise NotSupportedError(
                "no tokens are signed here: bookies ask for none, or there is no shared secret",
                hint="give the cluster a shared secret",
            )
        return Told(self.service.signer.sign(self.caller.principal, call.lifetime_ms))

    async def _make(self, call: messages.Make) -> Answer:
        await self._folder().make(call.tablespace)
        return Done()

    async def _make_table(self, call: messages.MakeTable) -> Answer:
        space = await self.service.host.tablespace(call.tablespace.lower())
        await create_table(space, call.table, dict(call.columns), call.primary)
        return Done()

    async def _back_up(self, call: messages.BackUp) -> Answer:
        await self._folder().back_up(call.path, call.tablespace)
        return Done()

    async def _restore(self, call: messages.Restore) -> Answer:
        await self._folder().restore(call.path, call.tablespace)
        return Done()

    async def _restore_until(self, call: messages.RestoreUntil) -> Answer:
        until = Position(call.ledger, call.entry)
        await self._folder().restore_until(call.source, until, call.tablespace)
        return Done()

    def _folder(self) -> Any:
        if self.service.folder is None:
            raise NotSupportedError(
                "a node does not do that for its clients", hint="use SQL, or the node's command"
            )
        return self.service.folder


def identity_of(client: bytes, sequence: int) -> bytes:
    """What a client's transaction is called in questions about its outcome."""
    return client + sequence.to_bytes(8)


def _touches_users(call: messages.Call, hosted: HostedSession | None) -> bool:
    """Whether users and grants may be changed by it."""
    tablespace = hosted.tablespace if hosted is not None else getattr(call, "tablespace", "")
    return tablespace.lower() == SYSTEM and OF_A_TABLESPACE.get(type(call)) != "read"


def _told_of(call: messages.Call, tablespace: str) -> str:
    """What an audit says of a call: of users and grants whose they are, and never what proves."""
    said = type(call).__name__
    if tablespace.lower() != SYSTEM:
        return said
    if isinstance(call, messages.Put):
        rows = ([str(row[name]) for name in _TOLD if name in row] for row in call.rows)
        return f"{said} {call.table} {'; '.join(map(' '.join, rows))}"
    if isinstance(call, messages.Update | messages.Delete):
        key = call.key if isinstance(call.key, list | tuple) else [call.key]
        return f"{said} {call.table} {' '.join(map(str, key))}"
    return said


def _check_leads(session: "Session") -> None:
    """Raise `LeaderUnavailable` where another replica leads: definitions here may be old.

    Whoever is in a transaction hears that it has ended.
    """
    if hasattr(session, "position"):
        # That of a follower, which says how old its answers are.
        return
    space = session.space
    try:
        space.replica.read_now(lambda rows: None)
    except EngineError as error:
        if session.transaction is None and not space.dropped:
            raise translated(error) from error


def _state_of(session: "Session") -> int:
    transaction = session.transaction
    if transaction is None:
        return messages.NO_TRANSACTION
    return messages.ENDED_TRANSACTION if transaction.ended else messages.IN_TRANSACTION


def _mode_of(session: "Session") -> int:
    mode = messages.AUTOCOMMIT if session.autocommit else 0
    return mode | (messages.SNAPSHOT if session.isolation is Isolation.SNAPSHOT else 0)


def _set_mode(session: "Session", mode: int) -> None:
    if mode & messages.KEEP_MODE:
        return
    session.autocommit = bool(mode & messages.AUTOCOMMIT)
    session.isolation = _isolation_of(mode)


def _isolation_of(mode: int) -> Isolation:
    return Isolation.SNAPSHOT if mode & messages.SNAPSHOT else Isolation.READ_COMMITTED
