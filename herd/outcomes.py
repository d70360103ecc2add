"""What became of transactions whose clients heard no answer.

    transaction = space.begin(identity=b"...")        16 bytes that the client drew, for example
    await transaction.commit()                        CommitUnknown
    ...
    await space.outcome(identity)                     at whoever leads now: True, or False for ever

An identity is a client's name and, in its last 8 bytes, a number that grows from one of the
client's transactions to its next; a shorter one is a name alone. A transaction with an identity
writes a mark of it in its own command:

    01 'i' number(8)      01 committed, or 00 never to be committed; then the identity

Invariants:
- A mark is in the log together with its transaction, or neither is.
- Whoever was told False is right for ever: the identity is marked first, so that a COMMIT which
  arrives late is refused.
- Each client has one mark, of its last transaction, however many others committed since; those of
  the `KEPT` clients that were heard last are kept. What the marks cannot tell is told as unknown,
  never as False.
- What is known belongs to one term of one leader, which has applied all of the log before.
"""

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from herd.catalog import all_rows
from herd.commands import Change, Write, encode_command
from herd.errors import CommitUnknown, InterfaceError, LeaderUnavailable, TransactionEnded
from herd.keys import OUTCOME

if TYPE_CHECKING:
    from herd.tablespace import Tablespace
    from herd.transaction import Transaction

KEPT: Final = 50_000
IDENTITY_BYTES_MAX: Final = 64
_SEQUENCE_BYTES: Final = 8
_COMMITTED, _NEVER = b"\x01", b"\x00"


class _Mark(NamedTuple):
    """The last that is known of a client. `committed` is None as long as that is not settled."""

    number: int
    sequence: int
    committed: bool | None


class Outcomes:
    """The marks of one tablespace, in one term of its leader. On the event loop."""

    def __init__(self, space: "Tablespace", kept: int = KEPT) -> None:
        self.term = space.term
        self._space = space
        self._kept = kept
        self._clients: dict[bytes, _Mark] = {}
        """By client, whoever was heard last at the end."""
        self._stale: list[int] = []
        self._under_way: dict[bytes, asyncio.Future[None]] = {}
        self._next = 0
        marks, _ = space.stale_read(lambda rows: list(all_rows(rows, OUTCOME)))
        for key, value in marks:
            number = int.from_bytes(key[len(OUTCOME) :])
            client, sequence = split_identity(value[1:])
            self._put(client, _Mark(number, sequence, value[:1] == _COMMITTED))
            self._next = number + 1
        self._forgot = len(self._clients) >= kept

    async def begin(self, transaction: "Transaction") -> bool:
        """Before a commit: add its mark. False: it was committed before, and is not again.

        Raises `TransactionEnded` if somebody was told that it will not be. After True call `end`.
        """
        identity = transaction.identity
        while (earlier := self._under_way.get(identity)) is not None:
            await asyncio.shield(earlier)
        mark = self._find(identity)
        if mark is None:
            for key, value in self._marked(identity, _COMMITTED):
                transaction.set_plain(key, value)
            self._under_way[identity] = asyncio.get_running_loop().create_future()
            return True
        if not mark.committed:
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

    async def known(self, identity: bytes) -> bool:
        """Whether the transaction was committed; False: not yet, and it still may be.

        One that is under way is waited for. Raises `CommitUnknown` as `find` does.
        """
        while (earlier := self._under_way.get(identity)) is not None:
            await asyncio.shield(earlier)
        mark = self._find(identity)
        return mark is not None and bool(mark.committed)

    async def find(self, identity: bytes) -> bool:
        """Whether the transaction was committed; False: it never will be.

        Raises `CommitUnknown` if that cannot be known any more.
        """
        while (earlier := self._under_way.get(identity)) is not None:
            await asyncio.shield(earlier)
        mark = self._find(identity)
        if mark is not None:
            return bool(mark.committed)
        if self._forgot and split_identity(identity)[0] not in self._clients:
            raise CommitUnknown(
                f"{self._kept} other clients have committed since", hint="read what it changed"
            )
        self._under_way[identity] = asyncio.get_running_loop().create_future()
        told: bool | None = None
        try:
            command = Write((), self._marked(identity, _NEVER))
            await self._space.propose(encode_command(command), self.term)
            told = False
        finally:
            self._settle(identity, told)
        return False

    def _find(self, identity: bytes) -> _Mark | None:
        """What is settled of a transaction; None: nothing. Raises `CommitUnknown`."""
        client, sequence = split_identity(identity)
        mark = self._clients.get(client)
        if mark is None or mark.sequence < sequence:
            return None
        if mark.sequence > sequence:
            raise CommitUnknown(
                "its client has ended later transactions since", hint="read what it changed"
            )
        return None if mark.committed is None else mark

    def _marked(self, identity: bytes, what: bytes) -> list[Change]:
        """The changes that mark an identity in place of its client's last one."""
        client, sequence = split_identity(identity)
        changes: list[Change] = [(_key(self._next), what + identity)]
        self._put(client, _Mark(self._next, sequence, None))
        self._next += 1
        while len(self._clients) > self._kept:
            oldest = next(iter(self._clients))
            self._stale.append(self._clients.pop(oldest).number)
            self._forgot = True
        changes += [(_key(number), None) for number in self._stale]
        self._stale = []
        return changes

    def _put(self, client: bytes, mark: _Mark) -> None:
        earlier = self._clients.pop(client, None)
        if earlier is not None:
            self._stale.append(earlier.number)
        self._clients[client] = mark

    def _settle(self, identity: bytes, known: bool | None) -> None:
        client, sequence = split_identity(identity)
        mark = self._clients.get(client)
        if known is not None and mark is not None and mark.sequence == sequence:
            self._clients[client] = mark._replace(committed=known)
        waiting = self._under_way.pop(identity, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


def check_identity(identity: bytes) -> None:
    """Raise `InterfaceError` for what cannot name a transaction."""
    if not 0 < len(identity) <= IDENTITY_BYTES_MAX:
        raise InterfaceError(
            f"an identity of {len(identity)} bytes; 1 to {IDENTITY_BYTES_MAX} name a transaction"
        )


def split_identity(identity: bytes) -> tuple[bytes, int]:
    """A client's name, and the number of its transaction."""
    if len(identity) <= _SEQUENCE_BYTES:
        return identity, 0
    return identity[:-_SEQUENCE_BYTES], int.from_bytes(identity[-_SEQUENCE_BYTES:])


def outcomes_of(space: "Tablespace", held: Outcomes | None) -> Outcomes:
    """Those of this term. Raises `LeaderUnavailable` where another replica leads."""
    if not space.term:
        raise LeaderUnavailable(
            f"this replica of tablespace {space.name} does not lead", hint=space.why_nobody_leads
        )
    return held if held is not None and held.term == space.term else Outcomes(space)


def _key(number: int) -> bytes:
    return OUTCOME + number.to_bytes(8)


def _well(logged: "asyncio.Future[bytes]") -> bool:
    return not logged.cancelled() and logged.exception() is None
