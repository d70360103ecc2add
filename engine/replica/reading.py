"""What a replica answers reads with.

Invariants:
- A leader answers a read if its lease holds after the value was computed. Without a lease it
  answers after its log has taken an entry that was sent after the value was computed. Both prove
  that nobody else had led until then.
- Nothing of a state that is being replaced, or that cannot be trusted, is read.
"""

from collections.abc import Callable
from typing import TypeVar

from engine.errors import EngineError, NotLeader
from engine.log.position import Position
from engine.replica.applier import Applier
from engine.replica.confirmed_reads import ConfirmedReads, will_be_confirmed
from engine.replica.contract import ReadRows, Role
from engine.replica.following import Following
from engine.replica.leading import Leading
from engine.replica.settings import ReplicaSettings
from engine.replica.waiting import Waiting
from engine.state.contract import Snapshot, State

T = TypeVar("T")


class ShownRows:
    """A state for those who only look: the state's own methods, without any that changes it."""

    __slots__ = ("get", "scan")

    def __init__(self, state: State) -> None:
        self.get = state.get_row
        self.scan = state.scan_rows


class Reading:
    """The reads of a `Replica`, which is one."""

    name: str
    role: Role
    trouble: str = ""
    """What ended the last term, as far as is known."""
    settings: ReplicaSettings
    _applier: Applier
    _following: Following
    _leading: Leading | None
    _state: State
    _rows: ReadRows
    _waiting: Waiting

    @property
    def leader(self) -> str:
        """The address of who leads as far as is known, "" if nobody does."""
        raise NotImplementedError

    def _not_leader(self) -> EngineError:
        """Why this replica does not lead."""
        raise NotImplementedError

    async def read(self, look: Callable[[ReadRows], T]) -> T:
        """What `look` finds in the state, with every command in it that was answered before.

        `look` is called on the event loop, perhaps twice, and must not keep the rows. While the
        lease has expired, the log is asked: see `ConfirmedReads`.
        Raises `NotLeader`, and what `ConfirmedReads` raises.
        """
        try:
            return self.read_now(look)
        except NotLeader:
            if not self.term:
                raise
        async with ConfirmedReads():
            return self.read_now(look)

    def read_now(self, look: Callable[[ReadRows], T]) -> T:
        """What `read` answers, at once, if the lease holds at this moment. Else `NotLeader`.

        No lease is needed inside `ConfirmedReads`.
        Over a state on disk any thread may call it while the event loop goes on, if its `look` only
        calls `get`: that sees a row as some answered command left it, or one about to be answered.
        """
        leading = self._leading
        if leading is not None and self.role is Role.LEADER and not self._applier.failed:
            found = look(self._rows)
            # Check the lease only now, after the answer: this proves that nobody led meanwhile.
            same = self._leading is leading and not self._applier.failed
            if same and (leading.holding.holds() or will_be_confirmed(leading)):
                return found
        raise self._not_leader()

    def may_answer(self) -> bool:
        """Whether this replica may answer or grant something at this moment without the log.

        True: it leads, and no other replica can have led since its term began. So its state has
        everything that was ever acknowledged, and nobody else grants the same. Call it last, when
        the answer is ready, just before sending it. False: it does not lead, or its lease has
        expired: then `read` asks the log. Any thread may call it.
        """
        leading = self._leading
        return (
            leading is not None
            and self.role is Role.LEADER
            and not self._applier.failed
            and leading.holding.holds()
        )

    def view(self) -> Snapshot:
        """All rows as this replica has them now; close it. Raises as `stale_read` does."""
        self._check_readable()
        return self._state.snapshot()

    @property
    def term(self) -> int:
        """The epoch in which this replica leads, 0 while it does not."""
        leading = self._leading
        return leading.writer.epoch if leading is not None and self.role is Role.LEADER else 0

    async def until_other_term(self, term: int) -> int:
        """Wait until the replica is in another term than this one; which, 0 if it leads no more.

        Raises `NotLeader` when the replica is closed, and what stopped it.
        """
        while self.term == term:
            await self._waiting.for_change()
        return self.term

    @property
    def replaced(self) -> int:
        """How often the state was replaced by a snapshot: no command told of its rows."""
        return self._following.replaced

    def stale_read(self, look: Callable[[ReadRows], T]) -> tuple[T, Position]:
        """What `look` finds in this replica's state, and the position that it is of.

        Raises `NotLeader` while a snapshot is being restored, and what stopped the replica.
        """
        self._check_readable()
        return look(self._rows), self._applier.cursor

    def _check_readable(self) -> None:
        if self.role in (Role.FAILED, Role.CLOSED) or self._applier.failed:
            raise self._not_leader()
        if self._following.restoring:
            raise NotLeader(f"this replica of log {self.name} restores a snapshot", self.leader)
