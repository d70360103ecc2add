"""Reading entries from whichever replica answers first with intact bytes.

Invariants:
- An entry is handed out only after its digest was checked.
- "No such entry" needs an explicit answer of every replica of the write set; anything less is
  `CannotRead` or `DeadlineExceeded`.
- A slow replica costs `speculative_read_ms`, not the deadline: then the next one is asked too.
"""

import asyncio
from collections.abc import Sequence

from engine.errors import BookieUnavailable, CannotRead, DeadlineExceeded, NoSuchEntry
from engine.ledger.context import LedgerContext
from engine.metadata.ledgers import LedgerMetadata
from engine.run import Entry, Run
from engine.transport.contract import ReadReply, ReadRequest, Status


class ReplicaReader:
    """Fetches ranges of one ledger. Sticks to a replica as long as it serves well."""

    def __init__(self, context: LedgerContext, ledger_id: int) -> None:
        self._context = context
        self._ledger_id = ledger_id
        self._preferred = ledger_id

    async def fetch(self, metadata: LedgerMetadata, first: int, last: int) -> list[Entry]:
        """Entries from `first` on, at least one, at most to `last` and about one read's bytes.

        Raises `NoSuchEntry`, `CannotRead`, `DeadlineExceeded` about entry `first`.
        """
        replicas, last = self._replicas(metadata, first, last)
        settings = self._context.settings
        request = ReadRequest(self._ledger_id, first, last, settings.read_bytes_max)
        pending: dict[asyncio.Task[ReadReply], str] = {}
        absent = 0
        unreadable: list[str] = []
        try:
            async with asyncio.timeout(settings.read_timeout_ms / 1000):
                while replicas or pending:
                    if replicas:
                        name = replicas.pop(0)
                        pending[asyncio.ensure_future(self._ask(name, request))] = name
                    wait_s = settings.speculative_read_ms / 1000 if replicas else None
                    done, _ = await asyncio.wait(
                        pending, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in [task for task in pending if task in done]:
                        name = pending.pop(task)
                        reply = task.result()
                        entries = intact(reply.runs, first)
                        if entries:
                            return entries
                        if lacks(reply, first):
                            absent += 1
                        else:
                            unreadable.append(name)
                        self._preferred += 1
        except TimeoutError as error:
            raise DeadlineExceeded(f"ledger {self._ledger_id}: no answer for {first}") from error
        finally:
            for task in pending:
                task.cancel()
        if absent == metadata.write_quorum:
            raise NoSuchEntry(f"ledger {self._ledger_id}: no replica holds entry {first}")
        raise CannotRead(
            f"ledger {self._ledger_id}: entry {first} was not readable on {', '.join(unreadable)}"
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

    async def _ask(self, bookie_id: str, request: ReadRequest) -> ReadReply:
        return await ask(self._context, bookie_id, request)


async def ask(context: LedgerContext, bookie_id: str, request: ReadRequest) -> ReadReply:
    """One request to one bookie; not reaching it is an answer that says nothing."""
    try:
        bookie = await context.transport.connect(bookie_id)
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
