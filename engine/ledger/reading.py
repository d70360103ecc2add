"""Reading entries from whichever replica answers first with intact bytes.

Invariants:
- An entry is handed out only after its digest was checked.
- "No such entry" needs an explicit answer of every replica of the write set, or of as many as the
  caller says; anything less is `CannotRead` or `DeadlineExceeded`.
- A slow replica costs `speculative_read_ms`, not the deadline: then the next one is asked too.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from engine.errors import BookieUnavailable, CannotRead, DeadlineExceeded, NoSuchEntry
from engine.ledger.context import LedgerContext
from engine.metadata.ledgers import LedgerMetadata
from engine.run import Entry, Run
from engine.transport.contract import ReadReply, ReadRequest, Status

_AWAY_S: Final = 1.0
"""So long a read waits for the first replica that answers at all.

After the metadata store was away for longer than sessions last, no bookie is registered for a
moment.
"""


class _NobodyAnswers(Exception):
    """No replica answered, whatever it has."""

    def __init__(self, unreadable: CannotRead) -> None:
        self.unreadable = unreadable


class ReplicaReader:
    """Fetches ranges of one ledger. Sticks to a replica as long as it serves well."""

    def __init__(self, context: LedgerContext, ledger_id: int) -> None:
        self._context = context
        self._ledger_id = ledger_id
        self._preferred = ledger_id

    async def fetch(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        max_bytes: int | None = None,
        negatives: int | None = None,
    ) -> list[Entry]:
        """Entries from `first` on, at least one, at most to `last` and about one read's bytes.

        Raises `NoSuchEntry` where so many replicas lack entry `first` (None: all) and the others
        do not answer, `CannotRead`, `DeadlineExceeded` about it.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _AWAY_S
        pause_s = _AWAY_S / 32
        while True:
            try:
                return await self._fetch(metadata, first, last, max_bytes, negatives)
            except _NobodyAnswers as error:
                if loop.time() >= until_s:
                    raise error.unreadable from error.unreadable.__cause__
            await asyncio.sleep(pause_s)
            pause_s *= 2

    async def _fetch(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        max_bytes: int | None,
        negatives: int | None,
    ) -> list[Entry]:
        """Ask each replica once. Raises as `fetch`, and `_NobodyAnswers`."""
        enough = metadata.write_quorum if negatives is None else negatives
        replicas, last = self._replicas(metadata, first, last)
        settings = self._context.settings
        wanted_bytes = settings.read_bytes_max if max_bytes is None else max_bytes
        request = ReadRequest(self._ledger_id, first, last, wanted_bytes)
        answers = _Answers(self._context, request, settings.read_timeout_ms)
        absent, answered = 0, False
        unreadable: list[str] = []
        measures, clock = self._context.measures, self._context.clock
        begun_s = clock.monotonic()
        try:
            while replicas or answers.pending:
                if replicas:
                    answers.ask(replicas.pop(0))
                reply = await answers.next(settings.speculative_read_ms if replicas else None)
                if reply is None:
                    measures.speculative_reads.add()
                    continue
                entries = intact(reply.runs, first)
                if entries:
                    measures.read_latency_s.observe(clock.monotonic() - begun_s)
                    return entries
                if lacks(reply, first):
                    absent += 1
                else:
                    unreadable.append(reply.bookie_id)
                answered = answered or reply.status is not Status.UNAVAILABLE
                self._preferred += 1
        except DeadlineExceeded:
            if absent < enough:
                raise
        finally:
            answers.cancel()
        if absent >= enough:
            raise NoSuchEntry(f"ledger {self._ledger_id}: no replica holds entry {first}")
        failure = self._unreadable(first, unreadable)
        failure.__cause__ = self._context.troubles.of(unreadable)
        raise failure if answered else _NobodyAnswers(failure)

    def _unreadable(self, first: int, unreadable: Sequence[str]) -> CannotRead:
        return CannotRead(
            f"ledger {self._ledger_id}: entry {first} was not readable on {', '.join(unreadable)}"
            f"{self._context.troubles.tell(unreadable)}"
        )

    def _replicas(self, metadata: LedgerMetadata, first: int, last: int) -> tuple[list[str], int]:
        """The bookies to ask, best first, and the last id that all of them should hold."""
        fragment = metadata.fragment_of(first)
        for later in metadata.fragments:
            if later.first > first:
                last = min(last, later.first - 1)
                break
        quorums = self._context.quorums(metadata)
        if quorums.ensemble > quorums.write:
            last = min(last, quorums.stripe_end(first))
        names = [fragment.ensemble[index] for index in quorums.write_set(first)]
        start = self._preferred % len(names)
        return names[start:] + names[:start], last


class _Answers:
    """The replies to one request, asked of one replica after the other, as they come."""

    def __init__(self, context: LedgerContext, request: ReadRequest, timeout_ms: int) -> None:
        self.pending = 0
        self._context = context
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + timeout_ms / 1000
        self._tasks: list[asyncio.Task[ReadReply]] = []
        self._arrived: deque[asyncio.Task[ReadReply]] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def ask(self, bookie_id: str) -> None:
        """Send the request to one more replica."""
        self.pending += 1
        task = self._loop.create_task(ask(self._context, bookie_id, self._request), name=bookie_id)
        task.add_done_callback(self._arrive)
        self._tasks.append(task)

    async def next(self, patience_ms: int | None) -> ReadReply | None:
        """The next reply; None if there is none in `patience_ms`. Raises `DeadlineExceeded`."""
        if not self._arrived:
            wake_s = self._end_s
            if patience_ms is not None:
                wake_s = min(wake_s, self._loop.time() + patience_ms / 1000)
            self._waiting = self._loop.create_future()
            timer = self._loop.call_at(wake_s, self._wake)
            try:
                await self._waiting
            finally:
                timer.cancel()
                self._waiting = None
        if self._arrived:
            self.pending -= 1
            task = self._arrived.popleft()
            # A connection that gave its calls up has answered nothing.
            return silent(task.get_name()) if task.cancelled() else task.result()
        if self._loop.time() >= self._end_s:
            ledger_id, first = self._request.ledger_id, self._request.first
            raise DeadlineExceeded(f"ledger {ledger_id}: no answer for {first}")
        return None

    def cancel(self) -> None:
        """Wait for none of them any more."""
        for task in self._tasks:
            task.cancel()

    def _arrive(self, task: "asyncio.Task[ReadReply]") -> None:
        self._arrived.append(task)
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


async def ask(context: LedgerContext, bookie_id: str, request: ReadRequest) -> ReadReply:
    """One request to one bookie; not reaching it is an answer that says nothing."""
    try:
        bookie = await context.connect(bookie_id)
        reply = await bookie.read(request)
    except BookieUnavailable:
        return silent(bookie_id)
    return reply if reply.bookie_id == bookie_id else silent(bookie_id)


def silent(bookie_id: str) -> ReadReply:
    """A reply that claims nothing."""
    return ReadReply(Status.UNAVAILABLE, (), None, None, -1, bookie_id, 0)


def lacks(reply: ReadReply, entry_id: int) -> bool:
    """Whether a reply says by name that its bookie does not hold an entry."""
    if reply.status is Status.NO_SUCH_LEDGER:
        return True
    if reply.status is not Status.OK or reply.missing is None:
        return False
    return reply.missing[0] <= entry_id <= reply.missing[1]


def intact(runs: Sequence[Run], first: int) -> list[Entry]:
    """The entries from `first` on, without a gap, up to the first one whose digest fails."""
    entries: list[Entry] = []
    for run in runs:
        if run.first != first:
            break
        try:
            entries += run.entries()
        except CannotRead:
            corrupt = run.first_corrupt()
            assert corrupt is not None
            if corrupt > run.first:
                entries += run.cut(run.first, corrupt - 1).entries()
            break
        first = run.last + 1
    return entries


def intact_runs(reply: ReadReply, first: int) -> list[Run]:
    """The runs from `first` on whose every digest holds; the first bad entry ends them."""
    runs: list[Run] = []
    for run in reply.runs:
        if run.first != first:
            break
        corrupt = run.first_corrupt()
        if corrupt is not None:
            if corrupt > run.first:
                runs.append(run.cut(run.first, corrupt - 1))
            break
        runs.append(run)
        first = run.last + 1
    return runs
