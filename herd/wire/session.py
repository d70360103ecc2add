"""A session in a tablespace that runs elsewhere, with the interface of `herd.sql.session.Session`.

Invariants:
- Outside a transaction a session moves by itself to who serves its tablespace; inside one it says
  that the transaction is gone, until COMMIT or ROLLBACK shows that its user knows.
- A commit whose answer got lost is asked about. It raises `CommitUnknown` only if nobody could
  tell in time, and `TransactionEnded` if it was not done and never will be.
- A statement outside a transaction that may have changed something is never run twice.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from engine.log import Position
from herd.errors import (
    CommitUnknown,
    Error,
    LeaderUnavailable,
    ProgrammingError,
    SessionLost,
    TransactionEnded,
)
from herd.permits import Whose
from herd.sql.result import Result
from herd.transaction import Isolation
from herd.wire import messages
from herd.wire.calling import Calling, commits, decoded, expect, repeatable, unknown
from herd.wire.contract import Channel
from herd.wire.failures import error_of
from herd.wire.local import LocalChannel
from herd.wire.messages import Answer, Failed, encode
from herd.wire.results import result_of_rows, result_of_table
from herd.wire.values import packed_parameters, packed_sequence

Parameters = Sequence[Any] | Mapping[str, Any]
_ROWS_ON_LOOP_MAX: Final = 500
_CLIENT_BITS: Final = 128
_LOST: Final = "its server, or the way to it, was lost, and it was rolled back"


class _Attached(NamedTuple):
    """Where the session lives at the moment, and its number there."""

    channel: Channel
    number: int


class RemoteTransaction:
    """The open transaction of a remote session."""

    def __init__(self, session: "RemoteSession", isolation: Isolation) -> None:
        self.session = session
        self.isolation = isolation
        self.ended = False
        """Whether it is known that it ended by itself."""


class RemoteSession:
    """Executes SQL elsewhere. On the event loop. Made by `RemoteHerd.session`."""

    def __init__(
        self,
        calling: Calling,
        tablespace: str,
        *,
        autocommit: bool = True,
        follower: bool = False,
        whose: Whose = None,
    ) -> None:
        """`follower`: it reads at any node that has a replica, and changes nothing."""
        self._whose = messages.granted(whose)
        self.tablespace = tablespace
        self.position: Position | None = None
        """What a follower's last answer is of; None where the leader answers."""
        self._follower = follower
        self.autocommit = autocommit
        self.isolation = Isolation.READ_COMMITTED
        self.transaction: RemoteTransaction | None = None
        self._calling = calling
        self._client = calling.rng.getrandbits(_CLIENT_BITS).to_bytes(_CLIENT_BITS // 8)
        self._sequence = 0
        self._attached: _Attached | None = None
        self._attaching = asyncio.Lock()

    @property
    def elsewhere(self) -> bool:
        """Whether it lives with another opener, or a node, that is still there."""
        attached = self._attached
        if attached is None or attached.channel.over:
            return False
        return not isinstance(attached.channel, LocalChannel)

    async def attach(self) -> None:
        """Find the tablespace. Raises `ProgrammingError` where there is none of its name."""
        await self._attach(None)

    async def execute(self, text: str, parameters: Parameters = ()) -> Result:
        """Run one statement. Raises what is in `herd.errors`."""
        if self.transaction is not None and commits(text):
            await self.commit()
            return Result(kind="COMMIT")
        given, again = packed_parameters(parameters), repeatable(text)

        def make(number: int) -> bytes:
            return encode(messages.Execute(number, self._mode, text, given))

        patience = None
        while True:
            answer, channel = await self._ask(make, again=again)
            if type(answer) is messages.Rows:
                return result_of_rows(answer, self._calling.columns)
            told = expect(answer, messages.Table)
            try:
                return await self._fetch(told, channel)
            except SessionLost as error:
                if self.transaction is not None or not again:
                    raise
                patience = patience or self._calling.patience()
                await patience.wait(error)

    async def execute_many(self, text: str, rows: Iterable[Sequence[Any]]) -> Result:
        """Run one statement for each tuple of parameters: all or nothing."""
        many = rows if isinstance(rows, list | tuple) else list(rows)

        def pack() -> list[list[Any]]:
            return [packed_sequence(row) for row in many]

        large = len(many) > _ROWS_ON_LOOP_MAX
        given = await self._calling.workers.run(pack) if large else pack()

        def make(number: int) -> bytes:
            return encode(messages.ExecuteMany(number, self._mode, text, given))

        answer, _ = await self._ask(make, again=False, large=large)
        return result_of_rows(expect(answer, messages.Rows), self._calling.columns)

    def read_now(self, text: str, parameters: Parameters = ()) -> Result | None:
        """None: everything is read elsewhere."""
        return None

    async def begin(self, isolation: Isolation | None = None) -> RemoteTransaction:
        """Begin a transaction. Raises `ProgrammingError` inside one."""
        if self.transaction is not None:
            raise ProgrammingError("a transaction is open", hint="COMMIT or ROLLBACK it first")
        mode = _mode_of(self.autocommit, isolation or self.isolation)
        await self._ask(lambda number: encode(messages.Begin(number, mode)), again=True)
        self.transaction = RemoteTransaction(self, isolation or self.isolation)
        return self.transaction

    async def commit(self) -> None:
        """Commit the open transaction; without one nothing happens.

        Raises `TransactionEnded`, `LeaderUnavailable` (nothing happened), `CommitUnknown`.
        """
        transaction, attached = self.transaction, self._attached
        if transaction is None:
            return
        self.transaction = None
        if attached is None or attached.channel.over:
            raise TransactionEnded(f"the transaction is over: {_LOST}", hint="begin another")
        self._sequence += 1
        call = messages.Commit(attached.number, self._sequence)
        try:
            answer = decoded(await attached.channel.ask(encode(call)))
        except SessionLost as error:
            self._detach(attached)
            await self._find_outcome(error)
            return
        if type(answer) is Failed:
            told = error_of(answer)
            if isinstance(told, CommitUnknown):
                await self._find_outcome(told)
                return
            if answer.lost:
                self._detach(attached)
                raise TransactionEnded(told.message, hint="begin another") from told
            raise told

    async def rollback(self) -> None:
        """Roll the open transaction back; without one nothing happens."""
        transaction, attached = self.transaction, self._attached
        self.transaction = None
        if transaction is None or attached is None or attached.channel.over:
            return
        try:
            await attached.channel.ask(encode(messages.Rollback(attached.number)))
        except SessionLost:
            # What took the session away took the transaction, too.
            self._detach(attached)

    async def close(self) -> None:
        """Roll back what is open. May be called twice."""
        attached, self._attached, self.transaction = self._attached, None, None
        if attached is not None and not attached.channel.over:
            try:
                await attached.channel.ask(encode(messages.Close(attached.number)))
            except SessionLost:
                return

    async def ask_within(
        self, transaction: RemoteTransaction, make: Callable[[int], messages.Call]
    ) -> Answer:
        """The answer to a call in this session's transaction. Raises `TransactionEnded`."""
        if self.transaction is not transaction:
            raise TransactionEnded("the transaction is over", hint="begin another")
        answer, _ = await self._ask(lambda number: encode(make(number)), again=False)
        return answer

    # Inside

    @property
    def _mode(self) -> int:
        return _mode_of(self.autocommit, self.isolation)

    async def _ask(
        self, make: Callable[[int], bytes], *, again: bool, large: bool = False
    ) -> tuple[Answer, Channel]:
        patience = None
        while True:
            within, attached = self.transaction, self._attached
            if attached is None or attached.channel.over:
                attached = await self._attach(within)
            message = (
                await self._calling.workers.run(partial(make, attached.number))
                if large
                else make(attached.number)
            )
            try:
                answer = decoded(await attached.channel.ask(message))
            except SessionLost as error:
                self._detach(attached)
                if within is not None:
                    raise self._lose(within, error) from error
                if self.autocommit and not again:
                    raise unknown(error) from error
                patience = patience or self._calling.patience()
                await patience.wait(error)
                continue
            if type(answer) is not Failed:
                self._note(answer)
                return answer, attached.channel
            told = error_of(answer)
            if answer.lost:
                self._detach(attached)
                if within is not None:
                    raise self._lose(within, told) from told
            elif within is None and not self._follower and self._may_move(told, answer, again):
                self._detach(attached)
            else:
                self._set_state(answer.state)
                raise told
            patience = patience or self._calling.patience()
            await patience.wait(told)

    def _may_move(self, told: Error, answer: Failed, again: bool) -> bool:
        """Whether a statement that no transaction came before is run where the leader is now.

        If the statement itself has begun one, that ended with its leader, without any change.
        """
        return (
            isinstance(told, LeaderUnavailable)
            and (again or answer.state == messages.NO_TRANSACTION)
            and self._calling.route.moved(self.tablespace, answer.leader)
        )

    async def _attach(self, within: RemoteTransaction | None) -> _Attached:
        """Where the session lives; it is opened there first, if need be."""
        attached = self._attached
        if attached is not None and not attached.channel.over:
            return attached
        if within is not None:
            raise self._lose(within, None)
        async with self._attaching:
            if self._attached is None or self._attached.channel.over:
                self._attached = await self._open()
            return self._attached

    async def _open(self) -> _Attached:
        patience, route = self._calling.patience(), self._calling.route
        mode = self._mode | (messages.FOLLOWER if self._follower else 0)
        call = encode(messages.Open(self.tablespace, mode, self._client, self._whose))
        while True:
            channel = await route.channel(self.tablespace)
            try:
                answer = decoded(await channel.ask(call))
            except SessionLost as error:
                await patience.wait(error)
                continue
            if type(answer) is not Failed:
                return _Attached(channel, expect(answer, messages.Opened).session)
            told = error_of(answer)
            if not (answer.lost or self._may_move(told, answer, True)):
                raise told
            await patience.wait(told)

    def _detach(self, attached: _Attached) -> None:
        if self._attached is attached:
            self._attached = None

    def _lose(self, transaction: RemoteTransaction, error: Error | None) -> Error:
        """The transaction is gone: its first statement that hears of it says how."""
        first = not transaction.ended
        transaction.ended = True
        if first:
            why = "" if error is None else f": {error.message}"
            return SessionLost(f"the transaction is over: {_LOST}{why}", hint="begin it again")
        return TransactionEnded(f"the transaction is over: {_LOST}", hint="begin another")

    def _note(self, answer: Answer) -> None:
        state = getattr(answer, "state", None)
        if state is not None:
            self._set_state(state)
        if isinstance(answer, messages.Rows | messages.Table):
            if answer.position is not None:
                self.position = Position(*answer.position)
            mode = answer.mode
            self.autocommit = bool(mode & messages.AUTOCOMMIT)
            snapshot = mode & messages.SNAPSHOT
            self.isolation = Isolation.SNAPSHOT if snapshot else Isolation.READ_COMMITTED

    def _set_state(self, state: int) -> None:
        if state == messages.NO_TRANSACTION:
            self.transaction = None
        elif self.transaction is None:
            self.transaction = RemoteTransaction(self, self.isolation)
        if self.transaction is not None and state == messages.ENDED_TRANSACTION:
            self.transaction.ended = True

    async def _fetch(self, told: messages.Table, channel: Channel) -> Result:
        pieces, result, more = [told.data], told.result, bool(told.result)
        try:
            while more:
                answer = decoded(await channel.ask(encode(messages.Fetch(result))))
                if type(answer) is Failed:
                    raise error_of(answer)
                piece = expect(answer, messages.Piece)
                pieces.append(piece.data)
                more = piece.more
        except asyncio.CancelledError:
            if not channel.over:
                drop = channel.ask(encode(messages.Fetch(result, drop=True)))
                asyncio.ensure_future(drop).add_done_callback(_heard)
            raise
        return result_of_table(told, self._calling.columns, pieces)

    async def _find_outcome(self, error: Error) -> None:
        """Return if the last commit was done. Raises `TransactionEnded`, `CommitUnknown`."""
        call = messages.Outcome(self.tablespace, self._client, self._sequence)
        try:
            answer = await self._calling.ask(self.tablespace, call, again=True)
            committed = expect(answer, messages.Told).value
        except Error as failure:
            raise CommitUnknown(
                f"no answer came to the COMMIT: {error.message}",
                hint="read what it changed to know",
            ) from failure
        if committed is not True:
            raise TransactionEnded(f"the transaction is over: {_LOST}", hint="begin another")


def _mode_of(autocommit: bool, isolation: Isolation) -> int:
    mode = messages.AUTOCOMMIT if autocommit else 0
    return mode | (messages.SNAPSHOT if isolation is Isolation.SNAPSHOT else 0)


def _heard(asked: "asyncio.Future[bytes]") -> None:
    if not asked.cancelled():
        asked.exception()
