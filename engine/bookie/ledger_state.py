"""What a bookie keeps in memory of the ledgers in use.

Invariants:
- There is one `LedgerState` per ledger at a time: one that is in use, or ahead of the index, is
  never evicted. Two would let an append pass beside a fence.
- A state's LAC only grows.
- No ledger is said to have been written earlier than it was; of one whose state has left the memory
  the moment stays known, so that ledgers in steady use make no other one look new.
"""

import asyncio
import hmac
from collections import deque
from collections.abc import Callable
from typing import Any

from engine.bookie.index import Index
from engine.bookie.index_writer import IndexWriter
from engine.bookie.indexing import FACTS, FENCE, LAC, TOMBSTONE, fact_key, unpack_number
from engine.bookie.segment import facts_of
from engine.run import NO_ENTRY
from engine.transport.contract import LedgerFacts, uses_reserve
from engine.transport.repair_key import is_repair_key, key_hash_of

_EVICTIONS_TRIED = 8
_MOMENTS_PER_STATE = 10
"""A moment takes a tenth of a state's memory."""


class LedgerState:
    """One ledger. `known`: something of it is durable here, or on its way."""

    __slots__ = (
        "backlog",
        "deleted",
        "facts",
        "fence_durable",
        "fenced",
        "fencing",
        "from_reserve",
        "good_key",
        "highest",
        "highest_epoch",
        "in_flight",
        "key_hash",
        "known",
        "lac",
        "ledger_id",
        "pins",
        "sequence",
        "stored",
        "waiters",
        "withheld",
        "written_s",
    )

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.known = False
        self.key_hash: bytes | None = None
        self.good_key: bytes | None = None
        self.facts: LedgerFacts | None = None
        self.from_reserve = False
        """Whether its entries are accepted even if the disk is full."""
        self.fenced = False
        self.fence_durable = False
        self.fencing: asyncio.Future[bool] | None = None
        self.deleted = False
        self.lac = NO_ENTRY
        # The highest id that is queued or held, and the highest that is durable.
        self.highest = NO_ENTRY
        # The journal's epoch for the newest queued append.
        self.highest_epoch = 0
        self.stored = NO_ENTRY
        self.in_flight = 0
        self.pins = 0
        self.sequence = 0
        self.written_s = 0.0
        self.backlog: deque[Any] | None = None
        self.waiters: dict[Callable[[], None], None] = {}
        self.withheld = False
        """Whether entries are being given back. Until that is done, reads find the bookie away."""

    @property
    def closed_last(self) -> int | None:
        """The last entry if the ledger is known to be closed."""
        if self.facts is None or self.facts.closed_last < NO_ENTRY:
            return None
        return self.facts.closed_last

    def accepts(self, key: bytes) -> bool:
        """Whether a key is the ledger's; any key is, while none is known."""
        if self.good_key is not None and hmac.compare_digest(key, self.good_key):
            return True
        if self.key_hash is None:
            return True
        if not hmac.compare_digest(key_hash_of(key), self.key_hash):
            return False
        if not is_repair_key(key):
            self.good_key = key
        return True

    def adopt(self, facts: LedgerFacts) -> None:
        """Take facts, and the end they may tell."""
        self.facts = facts
        self.from_reserve = uses_reserve(facts.custom)
        self.known = True
        self.key_hash = facts.key_hash
        if facts.closed_last >= NO_ENTRY:
            self.learn_lac(facts.closed_last)

    def outdated_by(self, facts: LedgerFacts) -> bool:
        """Whether facts say more than what is known."""
        known = self.facts
        if known is None:
            return True
        if known.closed_last >= NO_ENTRY and facts.closed_last < NO_ENTRY:
            return False
        return facts != known and facts.fragment_first >= known.fragment_first

    def older(self, facts: LedgerFacts) -> bool:
        """Whether the facts are of an earlier fragment of the same ledger than the known facts."""
        known = self.facts
        if known is None or facts.fragment_first >= known.fragment_first:
            return False
        return (facts.created_ms, facts.key_hash) == (known.created_ms, known.key_hash)

    def learn_lac(self, lac: int) -> None:
        """Raise the LAC, never lower it; wake those who wait for it."""
        if lac > self.lac:
            self.lac = lac
            if self.waiters:
                self.wake()

    def wake(self) -> None:
        """Let those who wait for the LAC look again."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            waiter()


class LedgerStates:
    """The states in memory, by ledger; the index holds the rest."""

    def __init__(self, index: Index, writer: IndexWriter, states_max: int, start_s: float) -> None:
        self._index = index
        self._writer = writer
        self._states_max = states_max
        self._states: dict[int, LedgerState] = {}
        # Of states that left the memory, in the order in which they did; what left this one, too,
        # was written at `_forgotten_written_s` at the latest.
        self._written_s: dict[int, float] = {}
        self._forgotten_written_s = start_s

    def get(self, ledger_id: int) -> LedgerState:
        """A ledger's state, loaded from the index if need be; also of a ledger never seen."""
        state = self._states.get(ledger_id)
        if state is None:
            state = self._load(ledger_id)
            # Before it is in the table: the state about to be used must not be found idle.
            if len(self._states) >= self._states_max:
                self._evict()
            self._states[ledger_id] = state
        return state

    def written_s(self, ledger_id: int) -> float:
        """The monotonic second of the newest write, or a later one if it is not remembered."""
        state = self._states.get(ledger_id)
        if state is None or not state.written_s:
            return self._written_s.get(ledger_id, self._forgotten_written_s)
        return state.written_s

    def loaded(self) -> list[LedgerState]:
        """The states in memory."""
        return list(self._states.values())

    def _load(self, ledger_id: int) -> LedgerState:
        state = LedgerState(ledger_id)
        index = self._index
        if index.fact(fact_key(TOMBSTONE, ledger_id)) is not None:
            state.deleted = state.known = True
            return state
        fence = index.fact(fact_key(FENCE, ledger_id))
        if fence is not None:
            state.known = state.fenced = state.fence_durable = True
            state.key_hash = fence
        facts = index.fact(fact_key(FACTS, ledger_id))
        if facts is not None:
            state.adopt(facts_of(facts))
        lac = index.fact(fact_key(LAC, ledger_id))
        if lac is not None:
            state.learn_lac(unpack_number(lac))
        last = index.last(ledger_id)
        state.stored = self._writer.window.last(ledger_id)
        if last is not None and last.last > state.stored:
            state.stored = last.last
        state.highest = state.stored
        state.known |= state.stored > NO_ENTRY
        return state

    def _evict(self) -> None:
        """Drop some of the states longest in memory, if they are idle and the index has them."""
        for _ in range(_EVICTIONS_TRIED):
            ledger_id = next(iter(self._states))
            state = self._states.pop(ledger_id)
            if self._is_idle(state):
                self._remember(state)
                if len(self._states) < self._states_max:
                    return
            else:
                self._states[ledger_id] = state

    def _remember(self, state: LedgerState) -> None:
        if not state.written_s:
            return
        moments = self._written_s
        moments.pop(state.ledger_id, None)
        moments[state.ledger_id] = state.written_s
        if len(moments) > _MOMENTS_PER_STATE * self._states_max:
            forgotten_s = moments.pop(next(iter(moments)))
            self._forgotten_written_s = max(self._forgotten_written_s, forgotten_s)

    def _is_idle(self, state: LedgerState) -> bool:
        busy = state.in_flight or state.pins or state.waiters or state.fencing is not None
        fresh = state.sequence > self._writer.applied
        return not busy and not fresh and state.backlog is None
