"""The replicas of one fragment: read every one, and write what is lacking.

A fragment is walked in steps. Each step asks every bookie of the write set for the same entries,
takes the copy that goes furthest, and gives it to whoever lacks it: a bookie that takes another's
place, or one that is there and lost something.

Invariants:
- A replica counts as whole only if each of its entries was read from it with its digest, or was
  acknowledged by it as a write of recovery.
- Nothing is written but entries that were read from another replica and whose digests hold.
- Silence is no lack: a bookie that does not answer is asked again another time, not written to.
- An entry that nobody can give now makes every replica of its write set unfinished, and is stepped
  past: its neighbours are mended.
- A walk that stopped, or left something open, can be run again: it looks at nothing but that.
- A step holds at most about `step_bytes` of each replica.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from engine.errors import Unavailable
from engine.ledger.context import LedgerContext
from engine.ledger.quorum import Quorums
from engine.ledger.reading import ask, intact_runs, lacks, silent
from engine.metadata.ledgers import Fragment, LedgerMetadata
from engine.repair.pace import Pace
from engine.repair.settings import RepairSettings
from engine.run import Run
from engine.transport.contract import AppendReply, ReadReply, ReadRequest, Status

_UNREADABLE_MAX: Final = 1_024
"""After so many unreadable ranges the rest of a fragment is left for later."""

_SILENCES_MAX: Final = 8
"""A replica that was silent so often in a row is not asked any more in the same run."""

_OVERLOADED_TRIES: Final = 5
_OVERLOADED_PAUSE_S: Final = 0.2


class Stopped(Exception):
    """Repair was switched off, or is to end, in the middle of a ledger."""


class Extent(NamedTuple):
    """A fragment that has an end: entries `fragment.first` to `last`."""

    fragment: Fragment
    last: int


@dataclass(slots=True)
class Finding:
    """What came of one fragment. Replicas are named by their index in the ensemble.

    `whole` were read or written to the end; `lacking` had to be written to, or would have to be;
    `lacking_from` is the first such entry; `silent` did not answer; `refused` did not take a
    write; `unreadable` are ranges, ascending. `troubles` are for people. All of these are of the
    newest run; what was lacking and the counts are of all runs together.
    """

    whole: set[int] = field(default_factory=set)
    lacking: dict[int, int] = field(default_factory=dict)
    lacking_from: dict[int, int] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    entries_written: int = 0
    bytes_written: int = 0
    entries_read: int = 0


class _Answer(NamedTuple):
    """One replica's part of a step: its intact runs, their end, and what it says of the rest."""

    at: int
    runs: list[Run]
    end: int
    lacks: bool
    silent: bool
    words: str
    denied: int
    """Nothing up to this id can be had of it, if it has no runs."""


class FragmentWalk:
    """Walks one fragment. With `mend=False` it only looks."""

    def __init__(
        self,
        context: LedgerContext,
        metadata: LedgerMetadata,
        extent: Extent,
        *,
        reachable: Mapping[str, object],
        targets: Mapping[int, str],
        mend: bool,
        settings: RepairSettings,
        pace: Pace,
        may_go_on: Callable[[], bool],
    ) -> None:
        self.finding = Finding()
        self._context = context
        self._metadata = metadata
        self._fragment = extent.fragment
        # A ledger may end before its last fragment has an entry: nothing is to be read then.
        ids = (extent.fragment.first, extent.last)
        self._left = [ids] if ids[0] <= ids[1] else []
        self._open: list[tuple[int, int]] = []
        self._silences: dict[int, int] = {}
        self._quorums: Quorums = context.quorums(metadata)
        self.reachable = reachable
        self._targets = targets
        self._mend = mend
        self._settings = settings
        self._pace = pace
        self._may_go_on = may_go_on
        self._facts = context.facts(metadata, self._fragment.first, self._fragment.ensemble)

    async def run(self) -> Finding:
        """Walk to the fragment's end, or again over what is open. Raises `Stopped`."""
        finding = self.finding
        self._begin()
        while self._left and len(finding.unreadable) < _UNREADABLE_MAX:
            if not self._may_go_on():
                raise Stopped
            first, last = self._left[0]
            following = await self._step(first, last)
            self._left[:1] = [(following, last)] if following <= last else []
        for index in range(self._quorums.ensemble):
            broken = index in finding.silent or index in finding.refused
            if not self._mend:
                broken = broken or index in finding.lacking
            if not self._left and not broken and not self._hidden(index):
                finding.whole.add(index)
        self._tell()
        return finding

    def _begin(self) -> None:
        """What an earlier run left open is looked at again, before what it never came to."""
        finding = self.finding
        self._left = sorted([*finding.unreadable, *self._open, *self._left])
        self._open = []
        self._silences = {}
        for each in (finding.unreadable, finding.troubles):
            each.clear()
        for found in (finding.whole, finding.silent, finding.refused):
            found.clear()

    def _hidden(self, index: int) -> bool:
        """Whether an entry that this replica should hold could not be read from anybody."""
        return any(index in self._quorums.write_set(first) for first, _ in self.finding.unreadable)

    async def _step(self, first: int, last: int) -> int:
        """Look at, and mend, some entries from `first` on; returns the next id to look at."""
        if self._quorums.ensemble > self._quorums.write:
            last = min(last, self._quorums.stripe_end(first))
        write_set = self._quorums.write_set(first)
        request = ReadRequest(self._metadata.ledger_id, first, last, self._settings.step_bytes)
        answers = await asyncio.gather(*(self._ask(index, request) for index in write_set))
        best = max(answers, key=lambda answer: answer.end)
        await self._pace.spend(sum(run.size_bytes for each in answers for run in each.runs))
        if best.end < first:
            end = min(answer.denied for answer in answers)
            self._note_unreadable(first, end, answers)
            return end + 1
        end = min([best.end, *(each.end for each in answers if not each.lacks and not each.silent)])
        self.finding.entries_read += end - first + 1
        await self._mend_step(answers, _cut(best.runs, first, end), end)
        return end + 1

    async def _ask(self, index: int, request: ReadRequest) -> _Answer:
        bookie_id = self._fragment.ensemble[index]
        reply = silent(bookie_id)
        if bookie_id in self.reachable and self._silences.get(index, 0) < _SILENCES_MAX:
            try:
                async with asyncio.timeout(self._settings.read_timeout_ms / 1000):
                    reply = await ask(self._context, bookie_id, request)
            except (Unavailable, TimeoutError):
                pass
        answer = _answer(index, reply, request)
        self._silences[index] = self._silences.get(index, 0) + 1 if answer.silent else 0
        return answer

    def _note_unreadable(self, first: int, end: int, answers: Sequence[_Answer]) -> None:
        finding, write_set = self.finding, self._quorums.write_set
        before = finding.unreadable[-1:]
        if before and before[0][1] == first - 1 and write_set(before[0][0]) == write_set(first):
            finding.unreadable[-1] = (before[0][0], end)
        else:
            finding.unreadable.append((first, end))
        for answer in answers:
            if answer.silent:
                finding.silent.add(answer.at)
        if finding.unreadable[0][0] == first:
            said = ", ".join(
                f"{self._fragment.ensemble[answer.at]} {answer.words}" for answer in answers
            )
            finding.troubles.append(f"entry {first} cannot be read: {said}")

    # Mending

    async def _mend_step(self, answers: Sequence[_Answer], source: list[Run], end: int) -> None:
        """Give the step's entries, up to `end`, to each replica that lacks them."""
        finding = self.finding
        writes = []
        for answer in answers:
            index = answer.at
            target = self._targets.get(index)
            if target is not None:
                if index not in finding.refused:
                    writes.append(self._write(index, target, source))
            elif answer.silent:
                finding.silent.add(index)
            elif answer.end < end:
                finding.lacking_from.setdefault(index, answer.end + 1)
                finding.lacking[index] = finding.lacking.get(index, 0) + end - answer.end
                if self._mend and index not in finding.refused:
                    lacking = _cut(source, answer.end + 1, end)
                    writes.append(self._write(index, self._fragment.ensemble[index], lacking))
        await asyncio.gather(*writes)
        if any(self._unserved(answer, end) for answer in answers):
            self._leave_open(source[0].first, end)

    def _unserved(self, answer: _Answer, end: int) -> bool:
        """Whether a replica has not been seen to in a step that ended here."""
        if answer.at in self._targets:
            return answer.at in self.finding.refused
        return answer.silent or (answer.end < end and answer.at in self.finding.refused)

    def _leave_open(self, first: int, end: int) -> None:
        """A replica could not be seen to here: the next run is to look again."""
        if self._open and self._open[-1][1] == first - 1:
            self._open[-1] = (self._open[-1][0], end)
        else:
            self._open.append((first, end))

    async def _write(self, index: int, bookie_id: str, runs: Sequence[Run]) -> None:
        size_bytes = sum(run.size_bytes for run in runs)
        await self._pace.spend(size_bytes)
        status = await self._append(bookie_id, runs)
        if status is Status.OK:
            self.finding.entries_written += sum(run.count for run in runs)
            self.finding.bytes_written += size_bytes
            return
        self._context.placement.note_failure(bookie_id)
        self.finding.refused[index] = f"bookie {bookie_id} took no copy: {status.name}"

    async def _append(self, bookie_id: str, runs: Sequence[Run]) -> Status:
        """Store runs as recovery does; a full queue is waited for, a little."""
        for _ in range(_OVERLOADED_TRIES):
            status = await self._append_once(bookie_id, runs)
            if status is not Status.OVERLOADED:
                return status
            await asyncio.sleep(_OVERLOADED_PAUSE_S)
        return Status.OVERLOADED

    async def _append_once(self, bookie_id: str, runs: Sequence[Run]) -> Status:
        answered: asyncio.Future[AppendReply] = asyncio.get_running_loop().create_future()

        def settle(reply: AppendReply) -> None:
            if not answered.done():
                answered.set_result(reply)

        try:
            async with asyncio.timeout(self._settings.append_timeout_ms / 1000):
                bookie = await self._context.connect(bookie_id)
                bookie.append(runs, settle, key=self._context.key, facts=self._facts, recovery=True)
                reply = await answered
        except (Unavailable, TimeoutError):
            return Status.UNAVAILABLE
        return reply.status if reply.bookie_id == bookie_id else Status.UNAVAILABLE

    def _tell(self) -> None:
        """Put into words what keeps the fragment from being whole."""
        finding = self.finding
        finding.troubles += dict.fromkeys(finding.refused.values())
        silent_names = [
            self._fragment.ensemble[index]
            for index in sorted(finding.silent)
            if index not in self._targets and self._fragment.ensemble[index] in self.reachable
        ]
        finding.troubles += [
            f"bookie {name} does not answer{self._context.troubles.tell([name])}"
            for name in silent_names
        ]
        count = sum(last - first + 1 for first, last in finding.unreadable)
        if count > 1:
            finding.troubles.append(f"{count} entries cannot be read in all")


def _answer(index: int, reply: ReadReply, request: ReadRequest) -> _Answer:
    runs = intact_runs(reply, request.first)
    end = runs[-1].last if runs else request.first - 1
    if end >= request.last:
        return _Answer(index, runs, end, False, False, "has it", end)
    following = end + 1
    if lacks(reply, following):
        denied = request.last if reply.missing is None else min(reply.missing[1], request.last)
        return _Answer(index, runs, end, True, False, "lacks it", denied)
    unknown = reply.unknown is not None and reply.unknown[0] <= following <= reply.unknown[1]
    if unknown or reply.status is Status.UNKNOWN:
        denied = request.last if reply.unknown is None else min(reply.unknown[1], request.last)
        return _Answer(index, runs, end, True, False, "cannot tell for damage", denied)
    corrupt = any(run.first <= following <= run.last for run in reply.runs)
    if corrupt:
        words = "has other bytes than were written"
        return _Answer(index, runs, end, True, False, words, following)
    if reply.status is not Status.OK or not runs:
        words = "does not answer" if reply.status is Status.UNAVAILABLE else reply.status.name
        return _Answer(index, runs, end, False, True, words, request.last)
    return _Answer(index, runs, end, False, False, "has it", end)


def _cut(runs: Sequence[Run], first: int, last: int) -> list[Run]:
    """The part of consecutive runs from `first` to `last`."""
    return [
        run.cut(max(run.first, first), min(run.last, last))
        for run in runs
        if run.last >= first and run.first <= last
    ]
