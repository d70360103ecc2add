"""What became of transactions whose clients heard no answer.

    transaction = space.begin(identity=b"...")        16 bytes that the client drew, for example
    await transaction.commit()                        CommitUnknown
    ...
    await space.outcome(identity)                     at whoever leads now: True, or False for ever

A transaction with an identity writes a mark of it in its own command:

    01 'i' number(8)      01 committed, or 00 never to be committed; then the identity

Invariants:
- A mark is in the log together with its transaction, or neither is.
- Whoever was told False is right for ever: the identity is marked first, so that a COMMIT which
  arrives late is refused.
- The newest `KEPT` marks are kept. Who asks for an older one is told False.
- What is known belongs to one term of one leader, which has applied all of the log before.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from herd.catalog import all_rows
from herd.commands import Change, Write, encode_command
from herd.errors import InterfaceError, LeaderUnavailable, TransactionEnded
from herd.keys import OUTCOME

if TYPE_CHECKING:
    from herd.tablespace import Tablespace
    from herd.transaction import Transaction

KEPT: Final = 10_000
IDENTITY_BYTES_MAX: Final = 64
_COMMITTED, _NEVER = b"\x01", b"\x00"


class Outcomes:
    """The marks of one tablespace, in one term of its leader. On the event loop."""

    def __init__(self, space: "Tablespace", kept: int = KEPT) -> None:
        self.term = space.term
        self._space = space
        self._kept = kept
        self._known: dict[bytes, bool] = {}
        self._marks: deque[tuple[int, bytes]] = deque()
        self._under_way: dict[bytes, asyncio.Future[None]] = {}
        marks, _ = space.stale_read(lambda rows: list(all_rows(rows, OUTCOME)))
        for key, value in marks:
            self._known[value[1:]] = value[:1] == _COMMITTED
            self._marks.append((int.from_bytes(key[len(OUTCOME) :]), value[1:]))
        self._next = self._marks[-1][0] + 1 if self._marks else 0

    async def begin(self, transaction: "Transaction") -> bool:
        """Before a commit: add its mark. False: it was committed before, and is not again.

        Raises `TransactionEnded` if somebody was told that it will not be. After True call `end`.
        """
        identity = transaction.identity
        while (earlier := self._under_way.get(identity)) is not None:
            await asyncio.shield(earlier)
        known = self._known.get(identity)
        if known is None:
            for key, value in self._marked(identity, _COMMITTED):
                transaction.set_plain(key, value)
            self._under_way[identity] = asyncio.get_running_loop().create_future()
            return True
        if not known:
            raise TransactionEnded(
                "somebody asked for its outcome and was told that it is not committed",
                hint="begin another one, with an identity of its own",
            )
        return False

    def end(self, transaction: "Transaction") -> None:
        """The commit has ended, or only the wait for it."""
        logged, identity = transaction.logged, transaction.identity
        if logged is None:
            self._settle(identity, None)
        else:
            logged.add_done_callback(
                lambda done: self._settle(identity, True if _well(done) else None)
            )

    async def find(self, identity: bytes) -> bool:
        """Whether the transaction was committed; False: it never will be."""
        while (earlier := self._under_way.get(identity)) is not None:
            await asyncio.shield(earlier)
        known = self._known.get(identity)
        if known is not None:
            return known
        self._under_way[identity] = asyncio.get_running_loop().create_future()
        told: bool | None = None
        try:
            command = Write((), self._marked(identity, _NEVER))
            await self._space.propose(encode_command(command), self.term)
            told = False
        finally:
            self._settle(identity, told)
        return False

    def _marked(self, identity: bytes, what: bytes) -> list[Change]:
        """The changes that mark an identity and let go of the oldest marks."""
        changes: list[Change] = [(_key(self._next), what + identity)]
        self._marks.append((self._next, identity))
        self._next += 1
        while len(self._marks) > self._kept:
            number, oldest = self._marks.popleft()
            self._known.pop(oldest, None)
            changes.append((_key(number), None))
        return changes

    def _settle(self, identity: bytes, known: bool | None) -> None:
        if known is not None:
            self._known[identity] = known
        waiting = self._under_way.pop(identity, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


def check_identity(identity: bytes) -> None:
    """Raise `InterfaceError` for what cannot name a transaction."""
    if not 0 < len(identity) <= IDENTITY_BYTES_MAX:
        raise InterfaceError(
            f"an identity of {len(identity)} bytes; 1 to {IDENTITY_BYTES_MAX} name a transaction"
        )


def outcomes_of(space: "Tablespace", held: Outcomes | None) -> Outcomes:
    """Those of this term. Raises `LeaderUnavailable` where another replica leads."""
    if not space.term:
        raise LeaderUnavailable(f"this replica of tablespace {space.name} does not lead")
    return held if held is not None and held.term == space.term else Outcomes(space)


def _key(number: int) -> bytes:
    return OUTCOME + number.to_bytes(8)


def _well(logged: "asyncio.Future[bytes]") -> bool:
    return not logged.cancelled() and logged.exception() is None
