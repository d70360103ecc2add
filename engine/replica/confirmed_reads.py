"""Reads without a lease, which the log confirms.

    async with ConfirmedReads():
        value = replica.read_now(look)
    return value

Leases cannot be renewed while the metadata store is away. A leader then proves in another way that
nobody else led when it read: its log takes an entry that is sent after the read. Whoever takes the
log over makes the bookies refuse such entries first. Raft confirms reads in the same way where it
has no leases (Ongaro, Consensus: Bridging Theory and Practice, 6.4).

Invariants:
- No value that was read without a lease leaves the block, nor an error that follows from one, until
  the log has taken an entry that was sent after the last such read.
- While leases hold, a block costs nothing but two changes of a context variable.
"""

import asyncio
from contextvars import ContextVar, Token
from typing import Final, Protocol

from engine.errors import Deposed, EngineError, NotLeader, Unavailable


class Term(Protocol):
    """A leader's term: see `engine.replica.leading.Leading`."""

    lease_ms: int

    @property
    def next_batch(self) -> int:
        """The number of the batch that the next proposal goes with."""
        ...

    @property
    def taken_batch(self) -> int:
        """The number of the last batch that the log took."""
        ...

    async def confirm(self) -> None:
        """Return when the log has taken an entry that was sent after this call."""
        ...


class ConfirmedReads:
    """A block whose reads need no lease; its end waits until the log has confirmed them.

    A call answers after the block. The reads of tasks that are started inside count, too, until
    the block ends; those of other threads do not. All blocks that end at the same time share an
    append, and a write of the block confirms what was read before it.

    The end raises `NotLeader`, or an `Unavailable` if the log takes no entry within a lease. If
    something was proposed inside, it raises a `Deposed` instead: that may be done.
    """

    __slots__ = ("_ended", "_read", "_token", "wrote")

    def __init__(self) -> None:
        self._read: dict[Term, int] = {}
        """The terms that were read without a lease, and the batch that would confirm that."""
        self._ended = False
        self._token: Token[ConfirmedReads | None] | None = None
        self.wrote = False

    async def __aenter__(self) -> None:
        self._token = _block.set(self)

    async def __aexit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self._ended = True
        assert self._token is not None
        _block.reset(self._token)
        if kind is not None and not issubclass(kind, Exception):
            # A cancelled call answers nothing, and its caller must not wait for the log.
            return
        for term, batch in self._read.items():
            if term.taken_batch < batch:
                await self._confirm(term)

    def takes(self, term: Term) -> bool:
        """Whether a read of this term will be confirmed."""
        if not self._ended:
            self._read[term] = term.next_batch
        return not self._ended

    async def _confirm(self, term: Term) -> None:
        why = "the lease has run out, and the log does not confirm the read"
        cause: EngineError | None = None
        try:
            async with asyncio.timeout(term.lease_ms / 1000):
                await term.confirm()
                return
        except TimeoutError:
            pass
        except EngineError as error:
            if isinstance(error, Unavailable) and not self.wrote:
                raise
            cause = error
        raise (Deposed if self.wrote else NotLeader)(why) from cause


_block: Final[ContextVar[ConfirmedReads | None]] = ContextVar("confirmed reads", default=None)


def will_be_confirmed(term: Term) -> bool:
    """Whether a read of this term, made now and without a lease, counts."""
    block = _block.get()
    return block is not None and block.takes(term)


def note_write() -> None:
    """Something is proposed."""
    block = _block.get()
    if block is not None:
        block.wrote = True
