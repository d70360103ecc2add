"""A bookie as holders of read tokens see it: ledgers of owners that the token names, to be read.

Invariants:
- Nothing is stored, fenced or learnt for such a caller.
- Every request is judged by itself, by what the token allows at that moment: it may have expired.
- Entries of a ledger of which the bookie does not know whose it is are not handed out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from engine.access.door import Caller
from engine.access.owners import may_read
from engine.errors import AccessRefused
from engine.run import NO_ENTRY, Run
from engine.transport.contract import (
    AppendReply,
    Bookie,
    BookieInfo,
    LacReply,
    LedgerFacts,
    ReadReply,
    ReadRequest,
    Status,
)

_TELLS_NOTHING: Final = frozenset(
    {Status.NO_SUCH_LEDGER, Status.UNKNOWN, Status.UNAVAILABLE, Status.DELETED, Status.INVALID}
)


class ReadableBookie:
    """Implements `Bookie` for a caller who may only read."""

    def __init__(self, bookie: Bookie, caller: Caller) -> None:
        self._bookie = bookie
        self._caller = caller

    @property
    def bookie_id(self) -> str:
        """See `Bookie`."""
        return self._bookie.bookie_id

    def append(
        self,
        runs: Sequence[Run],
        reply: Callable[[AppendReply], None],
        *,
        key: bytes,
        facts: LedgerFacts | None = None,
        recovery: bool = False,
    ) -> None:
        """Refused."""
        first, last, ledger_id = runs[0].first, runs[-1].last, runs[0].ledger_id
        reply(AppendReply(Status.UNAUTHORIZED, ledger_id, first, last, self.bookie_id, 0))

    def confirm(self, ledger_id: int, lac: int) -> None:
        """Passed over."""

    def record(self, facts: LedgerFacts, key: bytes) -> None:
        """Passed over."""

    async def fence(self, ledger_id: int, key: bytes) -> LacReply:
        """Refused."""
        return LacReply(Status.UNAUTHORIZED, NO_ENTRY, self.bookie_id, 0)

    async def read(self, request: ReadRequest) -> ReadReply:
        """See `Bookie`; without a fence."""
        if request.fence_key is not None:
            return self._refused()
        allowed = await self._may_read(request.ledger_id)
        if allowed is False:
            return self._refused()
        reply = await self._bookie.read(request)
        return self._refused() if allowed is None and reply.runs else reply

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacReply:
        """See `Bookie`."""
        allowed = await self._may_read(ledger_id)
        if allowed:
            return await self._bookie.wait_lac(ledger_id, above, timeout_ms)
        if allowed is None:
            reply = await self._bookie.wait_lac(ledger_id, above, 0)
            if reply.status in _TELLS_NOTHING:
                return reply
        return LacReply(Status.UNAUTHORIZED, NO_ENTRY, self.bookie_id, 0)

    async def info(self) -> BookieInfo:
        """See `Bookie`."""
        return await self._bookie.info()

    async def _may_read(self, ledger_id: int) -> bool | None:
        """Whether the caller may read a ledger; None: it is not known here whose it is."""
        try:
            principal = await self._caller.now()
        except AccessRefused:
            return False
        look: Callable[[int], Mapping[str, bytes] | None] | None
        look = getattr(self._bookie, "custom_of", None)
        custom = None if look is None else look(ledger_id)
        return None if custom is None else may_read(principal, custom)

    def _refused(self) -> ReadReply:
        return ReadReply(Status.UNAUTHORIZED, (), None, None, NO_ENTRY, self.bookie_id, 0)


class ReadableBookies(Mapping[str, Bookie]):
    """Bookies as one caller sees them."""

    def __init__(self, bookies: Mapping[str, Bookie], caller: Caller) -> None:
        self._bookies = bookies
        self._caller = caller

    def __getitem__(self, bookie_id: str) -> Bookie:
        return ReadableBookie(self._bookies[bookie_id], self._caller)

    def __iter__(self) -> Iterator[str]:
        return iter(self._bookies)

    def __len__(self) -> int:
        return len(self._bookies)


def seen_by(caller: Caller, bookies: Mapping[str, Bookie]) -> Mapping[str, Bookie]:
    """The bookies that a caller may talk to, as they may."""
    return bookies if caller.principal.admin else ReadableBookies(bookies, caller)
