"""What a broker needs of the replica that it runs on: the engine's `Replica`, or one in memory.

Invariants:
- As `engine.replica.Replica` has them; who is another one keeps to the same.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from engine.errors import EngineError
from engine.log.position import Position
from engine.replica import ReadRows
from engine.replica.leading import Waiter

T = TypeVar("T")


class Replicated(Protocol):
    """See `engine.replica.Replica`."""

    name: str
    address: str
    failure: EngineError | None

    @property
    def term(self) -> int:
        """The epoch in which this replica leads, 0 while it does not."""
        ...

    def may_answer(self) -> bool:
        """Whether no other replica can have led since this one's term began.

        If not, ask the log first. Call it last, just before sending the answer.
        """
        ...

    @property
    def leader(self) -> str:
        """The address of who leads as far as is known, "" if nobody does."""
        ...

    @property
    def position(self) -> Position:
        """The last entry applied here."""
        ...

    @property
    def command_level(self) -> int:
        """The newest level of commands that every replica supports."""
        ...

    def propose_for(self, command: bytes, waiter: Waiter, level: int = 1) -> None:
        """Put a command into the log; `waiter` hears what the state machine answers."""
        ...

    def read_now(self, look: Callable[[ReadRows], T]) -> T:
        """What `look` finds in the state, if the lease holds, or inside `ConfirmedReads`."""
        ...

    def stale_read(self, look: Callable[[ReadRows], T]) -> tuple[T, Position]:
        """What `look` finds in this replica's state, leader or not."""
        ...

    async def until_other_term(self, term: int) -> int:
        """Wait until the replica is in another term than this one."""
        ...

    async def snapshot(self) -> Position:
        """Write a snapshot of now."""
        ...

    async def give_way(self, timeout_ms: int) -> None:
        """Lead no more, once all that was proposed is answered or the time is over."""
        ...

    async def close(self) -> None:
        """End."""
        ...
