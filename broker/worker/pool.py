"""The places of a worker: child processes, what runs in them, and how it ends.

Invariants:
- An attempt is completed once. If its process is ended, that is after the process is gone, and
  after everything that its tasks started is gone, too, however long that takes.
- When a process ends, the attempt that caused it fails or is interrupted. The others in it are
  handed back and do not count as attempts.
- An attempt that never began is handed back, however its process ended: the process marks each
  attempt that begins in memory that outlives the process.
- No attempt waits for a process that does not start, or for a seat whose last process left behind a
  process that does not end: it is handed back.
- Each seat has at most one process, so there are never more of them than settings allow.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from broker.connection import Attempt, Completion, Ended, Run
from broker.errors import BrokerUnavailable, InvalidTask
from broker.task import PAYLOAD_BYTES_MAX
from broker.worker.child_process import Child, ending_of
from broker.worker.frames import Report, Start
from broker.worker.watching import Watch

_log = logging.getLogger(__name__)
_TICK_S: Final = 0.25
_MARKS_A_PLACE: Final = 4
"""How many attempts per place may wait in a process and still be known not to have begun."""
_RESPAWN_MIN_S: Final = 0.05
_RESPAWN_MAX_S: Final = 10.0
_SLOW_END_S: Final = 2.0
_CLOSE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What child processes run, how many there are, and what ends one.

    `places` is how many tasks run at the same time in all of them; `ahead` how many more wait
    there for their turn. `memory_limit_bytes` is one process's, 0: none. `cancel_grace_ms` is how
    long a coroutine that was cancelled may take to end before its process is ended. `ends_all`:
    when a process ends, everything that its tasks started ends too, even in other sessions.
    """

    modules: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    main: str = ""
    archives: tuple[str, ...] = ()
    any_function: bool = False
    result_bytes_max: int = PAYLOAD_BYTES_MAX
    processes: int = os.cpu_count() or 1
    places: int = 20
    ahead: int = 0
    memory_limit_bytes: int = 0
    cancel_grace_ms: int = 500
    ends_all: bool = True


class _Seat:
    """Room for one process.

    `sent` is in its process, each with its mark; `waiting` is to go there when it is ready.
    """

    def __init__(self) -> None:
        self.child: Child | None = None
        self.sent: dict[Attempt, tuple[Run, int]] = {}
        self.waiting: dict[Attempt, Run] = {}
        self.reasons: dict[Attempt, tuple[Ended, str]] = {}
        """Why an attempt is being ended."""
        self.unbegun: set[Attempt] = set()
        """Attempts with a time limit that are not known to have begun."""
        self.limits: dict[Attempt, asyncio.TimerHandle] = {}
        """For attempts that have begun: what ends them."""
        self.down = False
        """Its last process did not start, or left something that does not end."""

    def __len__(self) -> int:
        return len(self.sent) + len(self.waiting)


class Pool:
    """Runs attempts in child processes. `done` is told of their ends, many at a time."""

    def __init__(
        self,
        settings: PoolSettings,
        done: Callable[[list[Completion]], None],
        watch: Watch | None = None,
    ) -> None:
        """`watch` belongs to another pool of the same worker; by default the pool has its own."""
        assert settings.processes >= 1 and settings.places >= 1
        self.watch = watch or Watch(marks=settings.ends_all)
        self._shares_watch = watch is not None
        self._settings = settings
        self._done = done
        processes = min(settings.processes, settings.places)
        self._start = Start(
            settings.modules,
            settings.path,
            -(-settings.places // processes),
            settings.main,
            settings.archives,
            settings.any_function,
            settings.result_bytes_max,
        )
        self._marks = _MARKS_A_PLACE * (settings.places + settings.ahead)
        self._seats = [_Seat() for _ in range(processes)]
        self._keeping: list[asyncio.Task[None]] = []
        self._ticker: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._closing = False
        self._news = asyncio.Event()

    async def start(self) -> tuple[str, ...]:
        """Start the processes; returns the types that they run.

        Raises `InvalidTask` for code that cannot be imported, `BrokerUnavailable` if there can be
        no processes.
        """
        if not self._shares_watch:
            self.watch.start()
        first = await self._spawn()
        self._seats[0].child = first
        for seat in self._seats:
            self._keeping.append(asyncio.create_task(self._keep(seat)))
        self._ticker = asyncio.create_task(self._tick())
        return first.types

    @property
    def running(self) -> list[Attempt]:
        """What has not ended."""
        return [attempt for seat in self._seats for attempt in (*seat.sent, *seat.waiting)]

    def __len__(self) -> int:
        return sum(map(len, self._seats))

    @property
    def processes(self) -> int:
        """How many processes there are to be."""
        return len(self._seats)

    @property
    def process_ids(self) -> list[int]:
        """The processes that are ready."""
        return [seat.child.process_id for seat in self._seats if seat.child is not None]

    def run(self, runs: list[Run]) -> None:
        """Run these; each is answered by a completion."""
        assert not self._closing
        self._empty.clear()
        seats = sorted((seat for seat in self._seats if not seat.down), key=len)
        if not seats:
            self._tell([_handed_back(run) for run in runs])
            return
        # Each seat is filled up to what all will have on average.
        level = -(-(sum(map(len, seats)) + len(runs)) // len(seats))
        offset = 0
        for number, seat in enumerate(seats):
            rest = len(runs) - offset
            share = rest if number == len(seats) - 1 else min(rest, max(0, level - len(seat)))
            if share:
                self._send(seat, runs[offset : offset + share] if share < len(runs) else runs)
                offset += share

    def interrupt(self, attempts: Iterable[Attempt], reason: str) -> None:
        """End these attempts. Each is answered by a completion, unless it is not known here."""
        for attempt in attempts:
            for seat in self._seats:
                if attempt in seat.waiting or attempt in seat.sent:
                    self._end(seat, attempt, Ended.INTERRUPTED, reason)

    def give_back(self) -> None:
        """Begin no more attempts. Those that have not begun are completed as handed back."""
        for seat in self._seats:
            waiting, seat.waiting = list(seat.waiting.values()), {}
            self._tell([_handed_back(run) for run in waiting])
            if seat.sent and seat.child is not None:
                seat.child.give_back()

    async def end_all(self) -> None:
        """End everything that runs, without counting it as a failure; return when nothing runs."""
        for seat in self._seats:
            waiting = [_handed_back(run) for run in seat.waiting.values()]
            seat.waiting.clear()
            self._tell(waiting)
            if seat.sent and seat.child is not None:
                seat.child.kill()
        await self._empty.wait()

    async def idle(self) -> None:
        """Wait until nothing runs."""
        await self._empty.wait()

    async def close(self) -> None:
        """End everything, and the processes. May be called twice.

        Gives up after ten seconds if something does not end: then its attempts are not completed.
        """
        self._closing = True
        if self._ticker is not None:
            self._ticker.cancel()
        children = []
        for seat in self._seats:
            if seat.child is not None:
                children.append(seat.child)
                seat.child.idle = not seat.sent
                seat.child.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                for child in children:
                    await child.over.wait()
        for keeping in self._keeping:
            keeping.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        for seat in self._seats:
            if seat.child is not None and not seat.child.over.is_set():
                _log.error("processes that tasks started still run, and are left alone")
                seat.child.abandon()
            else:
                self._settle(seat)
        if not self._shares_watch:
            await self.watch.close()

    # Sending and hearing

    def _send(self, seat: _Seat, runs: list[Run]) -> None:
        child = seat.child
        if child is None or child.killed or child.exited.is_set():
            for run in runs:
                seat.waiting[run.id, run.attempt] = run
            return
        sent = seat.sent
        for item in zip(runs, child.send(runs), strict=True):
            run = item[0]
            sent[run.id, run.attempt] = item
            if run.time_limit_ms:
                seat.unbegun.add((run.id, run.attempt))

    def _hear(self, child: Child, report: Report) -> None:
        seat = next((seat for seat in self._seats if seat.child is child), None)
        if seat is None:
            return
        for attempt in report.begun:
            if attempt in seat.sent:
                self._begin(seat, attempt)
        ended = []
        for completion in report.completions:
            attempt = (completion.id, completion.attempt)
            item = seat.sent.pop(attempt, None)
            if item is None:
                continue
            if item[1] >= 0:
                child.free_marks.append(item[1])
            if seat.unbegun:
                seat.unbegun.discard(attempt)
            if seat.limits and (limit := seat.limits.pop(attempt, None)) is not None:
                limit.cancel()
            if seat.reasons and (why := seat.reasons.pop(attempt, None)) is not None:
                if completion.ended is Ended.INTERRUPTED:
                    completion = _completion(attempt, *why)
            ended.append(completion)
        self._tell(ended)

    def _tell(self, ended: list[Completion]) -> None:
        if not any(self._seats):
            self._empty.set()
        if ended:
            self._done(ended)

    # Ending

    def _begin(self, seat: _Seat, attempt: Attempt) -> None:
        if attempt in seat.unbegun:
            seat.unbegun.discard(attempt)
            limit_s = seat.sent[attempt][0].time_limit_ms / 1000
            seat.limits[attempt] = asyncio.get_running_loop().call_later(
                limit_s, self._over_time, seat, attempt
            )

    def _over_time(self, seat: _Seat, attempt: Attempt) -> None:
        seat.limits.pop(attempt, None)
        item = seat.sent.get(attempt)
        if item is not None:
            text = f"it ran longer than its time limit of {item[0].time_limit_ms} ms"
            self._end(seat, attempt, Ended.FAILED, text)

    def _end(self, seat: _Seat, attempt: Attempt, ended: Ended, reason: str) -> None:
        if seat.waiting.pop(attempt, None) is not None:
            self._tell([_completion(attempt, ended, reason)])
            return
        if attempt in seat.reasons:
            return
        seat.reasons[attempt] = (ended, reason)
        child = seat.child
        assert child is not None
        run, mark = seat.sent[attempt]
        if run.type in child.coroutines or not child.has_begun(mark):
            child.cancel([attempt])
            grace_s = self._settings.cancel_grace_ms / 1000
            asyncio.get_running_loop().call_later(grace_s, self._insist, seat, child, attempt)
        else:
            child.kill()

    def _insist(self, seat: _Seat, child: Child, attempt: Attempt) -> None:
        if seat.child is child and attempt in seat.sent:
            child.kill()

    # Processes

    async def _keep(self, seat: _Seat) -> None:
        """Keep a process in a seat until the pool closes."""
        wait_s = 0.0
        while not self._closing:
            child = seat.child
            if child is None:
                await asyncio.sleep(wait_s)
                wait_s = min(max(2 * wait_s, _RESPAWN_MIN_S), _RESPAWN_MAX_S)
                try:
                    child = await self._spawn()
                except (BrokerUnavailable, InvalidTask) as error:
                    _log.error("a child process of the worker does not start: %s", error)
                    self._stand(seat, down=True)
                    continue
                seat.child = child
                self._stand(seat, down=False)
            started_s = asyncio.get_running_loop().time()
            waiting, seat.waiting = list(seat.waiting.values()), {}
            if waiting:
                self._send(seat, waiting)
            await self._until_over(seat, child)
            if not child.killed:
                _log.warning("a child process of the worker ended: %s", ending_of(child.status))
            self._settle(seat)
            if asyncio.get_running_loop().time() - started_s > _RESPAWN_MAX_S or child.killed:
                wait_s = 0.0

    async def _until_over(self, seat: _Seat, child: Child) -> None:
        """Wait until a process and what its tasks started are gone."""
        await child.exited.wait()
        try:
            async with asyncio.timeout(_SLOW_END_S):
                await child.over.wait()
        except TimeoutError:
            self._end_unbegun(seat, child)
            _log.warning(
                "processes that tasks of child process %d started do not end: until they do, its "
                "%d tasks count as running, and no other process takes its place",
                *(child.process_id, len(seat.sent)),
            )
            self._stand(seat, down=True)
            await child.over.wait()
            self._stand(seat, down=False)

    def _end_unbegun(self, seat: _Seat, child: Child) -> None:
        """Complete what had not begun when its process exited: it waits for nothing."""
        ended = []
        for attempt, (run, mark) in list(seat.sent.items()):
            if not child.has_begun(mark):
                del seat.sent[attempt]
                seat.unbegun.discard(attempt)
                why = seat.reasons.pop(attempt, None)
                ended.append(_completion(attempt, *why) if why else _handed_back(run))
        self._tell(ended)

    def _stand(self, seat: _Seat, *, down: bool) -> None:
        """Record whether a seat can have a process. If not, hand back what waits for it."""
        if seat.down != down:
            seat.down = down
            self._news.set()
        if down:
            waiting, seat.waiting = list(seat.waiting.values()), {}
            self._tell([_handed_back(run) for run in waiting])

    async def until_other_standing(self) -> float:
        """Wait until more or fewer processes can start; the share of those that can."""
        await self._news.wait()
        self._news.clear()
        return sum(not seat.down for seat in self._seats) / len(self._seats)

    @property
    def has_leftovers(self) -> bool:
        """Whether something runs whose process is gone."""
        children = [seat.child for seat in self._seats]
        return any(child and child.exited.is_set() for child in children)

    async def _spawn(self) -> Child:
        return await Child.spawn(self._start, self._hear, self._marks, self.watch)

    def _settle(self, seat: _Seat) -> None:
        """Complete what was in a process that is gone; when closing, hand back what waits."""
        child, seat.child = seat.child, None
        ended = []
        sent, seat.sent = seat.sent, {}
        for attempt, (run, mark) in sent.items():
            why = seat.reasons.get(attempt)
            if why is None and child is not None:
                if not child.has_begun(mark):
                    ended.append(_handed_back(run))
                    continue
                if not child.killed:
                    why = (Ended.FAILED, f"its process has gone: {ending_of(child.status)}")
            ended.append(_completion(attempt, *(why or (Ended.ENDED_FOR_ANOTHER, _FOR_ANOTHER))))
        seat.reasons.clear()
        seat.unbegun.clear()
        for limit in seat.limits.values():
            limit.cancel()
        seat.limits.clear()
        if self._closing:
            ended += [_handed_back(run) for run in seat.waiting.values()]
            seat.waiting.clear()
        self._tell(ended)

    async def _tick(self) -> None:
        """Check memory use, and processes that do not report which attempts they began."""
        while True:
            await asyncio.sleep(_TICK_S)
            for seat in self._seats:
                child = seat.child
                if child is None or child.killed or not seat.sent:
                    continue
                self._check_memory(seat, child)
                # An attempt that keeps its process from reporting is found by its mark.
                for attempt in [each for each in seat.unbegun if each in seat.sent]:
                    mark = seat.sent[attempt][1]
                    if mark >= 0 and child.has_begun(mark):
                        self._begin(seat, attempt)

    def _check_memory(self, seat: _Seat, child: Child) -> None:
        limit = self._settings.memory_limit_bytes
        if not limit or (used := child.memory_bytes()) <= limit:
            return
        text = f"its process has {used} bytes in memory, its limit is {limit}"
        for attempt, (_, mark) in seat.sent.items():
            if child.has_begun(mark):
                seat.reasons.setdefault(attempt, (Ended.FAILED, text))
        child.kill()


_FOR_ANOTHER: Final = "its process was ended for no fault of its own"


def _completion(attempt: Attempt, ended: Ended, text: str) -> Completion:
    return Completion(attempt[0], attempt[1], ended, error=text)


def _handed_back(run: Run) -> Completion:
    return Completion(run.id, run.attempt, Ended.HANDED_BACK)
