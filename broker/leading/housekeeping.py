"""What a leader does regularly: leases, purging, settling child tasks, hints for operators.

Invariants:
- Each step is short. Longer work continues in a later turn of the event loop.
- Nothing is proposed if there is nothing to do: an idle broker does not write to its log.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from broker import reading
from broker.commands import (
    ITEMS_MAX,
    LEVEL,
    Forget,
    Lost,
    Purge,
    RestartWaits,
    SetTime,
    Settle,
    decode_one,
)
from broker.errors import BrokerError
from broker.leading.checking import Checking
from broker.leading.measures import TermMeasures
from broker.leading.timers import Handle, Later
from broker.replicating import Replicated
from broker.scheduling import Hints
from broker.settings import BrokerSettings
from broker.task import ClockFacts, SessionState, WorkerSession
from engine.errors import EngineError
from engine.replica import ReadRows

if TYPE_CHECKING:
    from broker.leading.term import Term

PURGE_LOOK_S: Final = 1.0
HINT_LOOK_S: Final = 1.0
CORRECT_S: Final = 60.0
CHECK_LOOK_S: Final = 5.0
SWEEP_MS: Final = 60_000
"""Purges also remove expired code pools: if there are any, one is proposed this often."""
FORGET_WORKERS_MS: Final = 3_600_000
"""For how long a disconnected worker is still listed."""
_HELD_PART: Final = 1_000
_logger = logging.getLogger(__name__)


class Housekeeping:
    """The duties of one term."""

    def __init__(
        self,
        term: "Term",
        replica: Replicated,
        settings: BrokerSettings,
        measures: TermMeasures,
        later: Later,
    ) -> None:
        self._term = term
        self._replica = replica
        self._measures = measures
        self._loop = asyncio.get_running_loop()
        self._later = later
        self._orphans: dict[tuple[str, int], list[int]] = {}
        self._ended: dict[str, int] = {}
        """Workers whose session has ended, and when it ended."""
        self._settling = True
        self._hints = Hints(term.scheduler, settings.hint_after_ms)
        self._checking = Checking(term)
        self._told = ""
        self._swept_ms = 0
        self._handles: dict[str, Handle] = {}
        self._stopped = True

    def restore(self, orphans: dict[tuple[str, int], list[int]]) -> None:
        """Tasks of sessions that have ended, which the previous leader did not take back."""
        self._orphans = orphans

    def start(self) -> None:
        """Begin."""
        self._stopped = False
        now_ms = self._term.time.now_ms()
        for (worker_id, session), held in self._orphans.items():
            for at in range(0, len(held), _HELD_PART):
                part = held[at : at + _HELD_PART]
                lost = Lost(worker_id, session, now_ms, part, drawn=self._term.drawn())
                self._term.proposing.send(lost, _unheard)
        self._orphans = {}
        self._correct()
        self._look()
        self._hint()
        self._purge()
        self._settle()
        self._after(CHECK_LOOK_S, "check", self._check)

    def stop(self) -> None:
        """Stop all duties."""
        self._stopped = True
        for handle in self._handles.values():
            handle.cancel()

    def session(self, worker: WorkerSession, *, gone: bool) -> None:
        """A worker's session began or ended."""
        if gone or worker.state is SessionState.CONNECTED:
            self._ended.pop(worker.worker_id, None)
        else:
            self._ended[worker.worker_id] = worker.since_ms
            if worker.state is SessionState.LOST and not self._stopped:
                self._measures.lost.add()

    def settle(self) -> None:
        """Some child tasks must be updated because their parents have ended."""
        if not self._settling and not self._stopped:
            self._settling = True
            self._soon("settle", self._settle)

    def _settle(self) -> None:
        def heard(told: bytes | BrokerError) -> None:
            self._settling = False
            if _number(told):
                self.settle()

        self._settling = True
        if self._look_at(reading.unsettled):
            self._term.proposing.send(Settle(self._term.time.now_ms()), heard)
        else:
            self._settling = False

    def _look(self) -> None:
        term = self._term
        term.crew.look()
        term.events.flush()
        ended, term.ended_lately = term.ended_lately, {}
        self._measures.ran(ended.values())
        jump_ms = term.time.jump_ms()
        if jump_ms:
            self._measures.jumps.add()
            _logger.warning(
                "the wall clock has jumped by %d s; the broker's time ignores this for ten "
                "minutes, then follows the clock if it stays there: check this machine's clock",
                jump_ms // 1000,
            )
        self._watch_clock()
        self._after(term.leases.look_s, "look", self._look)

    def _watch_clock(self) -> None:
        """Follow a wall clock that has settled, and confirm an earlier jump if it agrees."""
        term = self._term
        if term.time.settled_away():
            term.retime()
        elif term.clock_facts.jumped_from_ms and term.time.settled_here():
            term.clock_facts = ClockFacts(0, term.clock_facts.ahead_ms)
            if term.proposing.level >= LEVEL:
                term.proposing.send(SetTime(term.time.now_ms()), _unheard)

    def _correct(self) -> None:
        """Correct due times that an earlier leader computed before the time was set back.

        Each leader repeats this as long as there is something to correct.
        """
        term = self._term
        term.firing.correct_due_times(term.clock_facts.ahead_ms)
        ids, term.waits_to_restart = term.waits_to_restart, ([], [])
        if term.proposing.level >= LEVEL:
            now_ms = term.time.now_ms()
            for at in range(0, max(map(len, ids)), ITEMS_MAX):
                tasks, transactions = (some[at : at + ITEMS_MAX] for some in ids)
                term.proposing.send(RestartWaits(now_ms, tasks, transactions), _unheard)
        self._after(CORRECT_S, "correct", self._correct)

    def _hint(self) -> None:
        """Warn about tasks that wait although no limit explains it."""
        for hint in self._hints.look(self._term.time.now_ms()):
            _logger.warning("%s", hint.text)
        failure = self._term.scheduler.index.mapping.failure
        if failure and failure != self._told:
            _logger.warning("the mapping of tasks to groups failed: %s", failure)
        self._told = failure
        self._after(HINT_LOOK_S, "hint", self._hint)

    def _check(self) -> None:
        """Compare a part of the memory with the rows."""
        found = self._checking.look()
        if found:
            self._term.wrong(found[0])
        self._after(CHECK_LOOK_S, "check", self._check)

    def _purge(self) -> None:
        """Remove tasks whose retention has passed, if there are any."""
        now_ms = self._term.time.now_ms()
        if self._term.time.doubtful:
            self._after(PURGE_LOOK_S, "purge", self._purge)
            return

        def heard(told: bytes | BrokerError) -> None:
            again = _number(told) >= ITEMS_MAX
            self._after(0.0 if again else PURGE_LOOK_S, "purge", self._purge)

        pools = now_ms - self._swept_ms >= SWEEP_MS and self._look_at(_has_pools)
        if pools or self._look_at(lambda rows: reading.purgeable(rows, now_ms)):
            self._swept_ms = now_ms
            keep_code = self._term.proposing.level >= LEVEL
            self._term.proposing.send(Purge(now_ms, keep_code=keep_code), heard)
        else:
            self._after(PURGE_LOOK_S, "purge", self._purge)
        old = [id for id, since_ms in self._ended.items() if since_ms + FORGET_WORKERS_MS < now_ms]
        if old:
            self._term.proposing.send(Forget(old[:ITEMS_MAX], now_ms), _unheard)

    def _look_at(self, look: Callable[[ReadRows], bool]) -> bool:
        try:
            return self._replica.stale_read(look)[0]
        except EngineError:
            # The term is over; others report that.
            return False

    def _soon(self, name: str, call: Callable[[], None]) -> None:
        if not self._stopped:
            self._handles[name] = self._loop.call_soon(call)

    def _after(self, seconds: float, name: str, call: Callable[[], None]) -> None:
        if not self._stopped:
            self._handles[name] = self._later(seconds, call)


def _has_pools(rows: ReadRows) -> bool:
    return bool(reading.list_pools(rows, limit=1))


def _number(told: bytes | BrokerError) -> int:
    if isinstance(told, BrokerError):
        return 0
    try:
        found = decode_one(told)
    except msgspec.MsgspecError:
        return 0
    return found if isinstance(found, int) else 0


def _unheard(told: bytes | BrokerError) -> None:
    """Ignore the answer: the listener hears of the changes."""
