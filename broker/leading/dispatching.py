"""Assigns tasks to free places: pick, log, send; once per turn of the event loop for all workers.

Invariants:
- A task is sent to its worker only after its assignment is durable.
- A picked task takes a place of its worker until its attempt ends or the assignment is refused.
- One turn of the event loop makes one command for all workers. While it is under way, the next
  command is gathered: it could not become durable any sooner.
- Workers take turns: the first one in a round is the last one in the next round.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from broker.commands import (
    ITEMS_MAX,
    Assign,
    Assigned,
    Assignment,
    Completion,
    Ended,
    Finish,
    Outcome,
    decode_lists,
)
from broker.connection import Assigned as Sent
from broker.connection import Run
from broker.errors import BrokerError
from broker.leading.crew import Crew, Member
from broker.leading.measures import TermMeasures
from broker.leading.proposing import Proposing
from broker.leading.timers import Handle, Later
from broker.scheduling import Pick, Scheduler
from broker.task import Status, Task
from engine.slow import SLOW, waited_longest

TAKEN_A_ROUND: Final = ITEMS_MAX
"""At most this many tasks are picked in one turn, to keep the event loop free."""
_logger = logging.getLogger(__name__)
CANCELLED: Final = "cancelled"
OVERDUE: Final = "deadline_expired"
_Taken = list[tuple[Member, int, list[Pick]]]
"""Worker, session, and the tasks that were picked for it."""
Answered = Callable[[list[int], list[Task], bool], int]
"""Called with tasks that are no longer under way; returns how many wait again: see `Term`."""


class Dispatching:
    """Hands out tasks to the workers of one term."""

    def __init__(
        self,
        scheduler: Scheduler,
        proposing: Proposing,
        measures: TermMeasures,
        payload: Callable[[Task], bytes],
        later: Later,
    ) -> None:
        """`payload` reads a payload outside a task's row."""
        self._scheduler = scheduler
        self._proposing = proposing
        self._measures = measures
        self._payload = payload
        self._loop = asyncio.get_running_loop()
        self._crew: Crew
        self._gather: Callable[[], None]
        self._answered: Answered
        self._scheduled = False
        self._logging = 0
        """How many commands of assignments are not answered yet."""
        self._stopped = True
        self._call_later = later
        self._later: Handle | None = None
        self.under_way_tasks: dict[int, Task | None] = {}
        """Tasks that were picked and not sent yet, each as it is in the log by now.

        None: its row has not changed since it was picked.
        """
        self.handing_back: set[int] = set()
        """Tasks whose attempt was assigned but never sent, until this is logged."""
        self._turn = 0
        self._began_s = 0.0
        """When the newest round began, by the loop."""

    def start(self, crew: Crew, gather: Callable[[], None], answered: Answered) -> None:
        """Begin to assign tasks. `gather` is called before each round, to fill the queues."""
        self._crew = crew
        self._gather = gather
        self._answered = answered
        self._stopped = False
        self.wake()

    def stop(self) -> None:
        """Assign no more tasks. Assignments under way are still sent."""
        self._stopped = True
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def wake(self) -> None:
        """Begin a round: a task has come, a place is free, or a limit was changed."""
        if not (self._scheduled or self._logging or self._stopped):
            self._scheduled = True
            self._loop.call_soon(self._begin)

    # Calls of the crew

    def came(self, member: Member) -> None:
        """See `Places`."""
        self._scheduler.connect(member.worker_id, member.known.types, member.known.limits)
        self.wake()

    def went(self, member: Member) -> None:
        """See `Places`."""
        self._scheduler.disconnect(member.worker_id)

    def freed(self, task_ids: Iterable[int]) -> None:
        """See `Places`."""
        if self._scheduler.release_many(task_ids):
            self.wake()

    def rests(self, member: Member, rest_ms: int) -> None:
        """See `Places`."""

        def go_on() -> None:
            member.resting = False
            self.wake()

        member.resting = True
        self._call_later(rest_ms / 1000, go_on)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and no round is scheduled."""
        return not (self._scheduled or self.under_way_tasks or self.handing_back)

    def worker_of(self, task_id: int) -> str:
        """The worker whose place a task takes; "" if none."""
        pick = self._scheduler.running_pick(task_id)
        return "" if pick is None else pick.worker_id

    # Rounds

    def _begin(self) -> None:
        self._scheduled = False
        try:
            if not self._stopped:
                self._round()
        except Exception:
            _logger.exception("a round of assignments failed")
            self._crew.wrong("a round of assignments failed")

    def _round(self) -> None:
        """Pick tasks for all workers with free places, and log the assignments."""
        self._began_s = self._loop.time()
        self._gather()
        now_ms = self._proposing.time.now_ms()
        if not self._scheduler.waiting:
            return
        members = [member for member in self._crew if member.assignable]
        if members:
            self._turn = (self._turn + 1) % len(members)
            members = members[self._turn :] + members[: self._turn]
        taken: _Taken = []
        left = TAKEN_A_ROUND
        for member, picks in self._shared(members, left, now_ms):
            left -= len(picks)
            taken.append((member, member.session, picks))
            for pick in picks:
                self.under_way_tasks[pick.id] = None
        if taken:
            self._log(taken, now_ms)
        if not left:
            self.wake()
        else:
            self._wake_later(now_ms)

    def _shared(
        self, members: list[Member], left: int, now_ms: int
    ) -> Iterator[tuple[Member, list[Pick]]]:
        """Pick for each worker, at first at most its share: so a burst is spread over all."""
        scheduler = self._scheduler
        while members and left:
            share = max(1, -(-min(left, scheduler.waiting) // len(members)))
            again = []
            for member in members:
                picks = scheduler.take(member.worker_id, min(share, left), now_ms) if left else []
                if picks:
                    left -= len(picks)
                    yield member, picks
                    if len(picks) == share and scheduler.free(member.worker_id):
                        again.append(member)
            members = again

    def _wake_later(self, now_ms: int) -> None:
        """Begin the next round when a rate limit allows the next task."""
        next_ms = self._scheduler.wake_ms()
        self._wake_in(None if next_ms is None else max(1, next_ms - now_ms) / 1000)

    def _wake_in(self, seconds: float | None) -> None:
        """Begin the next round after this time at the latest; None: only when woken."""
        if self._later is not None:
            self._later.cancel()
        self._later = None if seconds is None else self._call_later(seconds, self.wake)

    def _log(self, taken: _Taken, now_ms: int) -> None:
        assignments = [
            Assignment(
                member.worker_id,
                session,
                [Assigned(pick.id, pick.group, pick.resources) for pick in picks],
            )
            for member, session, picks in taken
        ]
        self._logging += 1
        began_s, taken_s = self._began_s, self._loop.time()

        def logged(told: bytes | BrokerError) -> None:
            took_s = self._loop.time() - began_s
            if took_s > SLOW.round_s:
                parts = waited_longest(taking=taken_s - began_s, log=began_s + took_s - taken_s)
                tasks = sum(len(picks) for _, _, picks in taken)
                SLOW.note("round", took_s, **parts, tasks=tasks, workers=len(taken))
            self._logged(taken, told)

        self._proposing.send(Assign(assignments, now_ms), logged)

    def _logged(self, taken: _Taken, told: bytes | BrokerError) -> None:
        """The assignments are durable, or the term is over."""
        self._logging -= 1
        answers: list[list[int]] | None = None
        try:
            if not isinstance(told, BrokerError):
                answers = decode_lists(told)
        except (msgspec.MsgspecError, BrokerError) as error:
            _logger.error("assignments cannot be logged: %s", error)
        known = isinstance(answers, list)
        if answers is None:
            _logger.info("assignments were not logged: %s", told)
            answers = [[0] * len(picks) for _, _, picks in taken]
        for (member, session, picks), attempts in zip(taken, answers, strict=True):
            runs, tasks, back = self._arrived(picks, attempts, known)
            if runs:
                self._send(member, session, runs, tasks)
            elif back == len(picks) and member.link is not None and member.session == session:
                # The log has another session of this worker, so it has to reconnect.
                member.link.end("the session is over")
        self.wake()

    def _arrived(
        self, picks: list[Pick], attempts: list[int], known: bool
    ) -> tuple[list[Run], list[Task], int]:
        """What to send of the picked tasks, and how many of them wait again, unchanged.

        `known`: the state machine has answered.
        """
        under_way = self.under_way_tasks
        runs: list[Run] = []
        tasks: list[Task] = []
        untold: list[int] = []
        others: list[Task] = []
        for pick, attempt in zip(picks, attempts, strict=True):
            task = under_way.pop(pick.id)
            if task is None:
                untold.append(pick.id)
            elif attempt and task.status is Status.RUNNING:
                tasks.append(task)
                runs.append(self._run(task))
            else:
                # It was cancelled, for example, in the meantime.
                others.append(task)
        back = self._answered(untold, others, known) if untold or others else 0
        return runs, tasks, back

    def _send(self, member: Member, session: int, runs: list[Run], tasks: list[Task]) -> None:
        link = member.link
        gone = self._crew.get(member.worker_id) is not member
        unreached = gone or link is None or member.leaving or member.session != session
        if link is None or unreached:
            self._hand_back(member.worker_id, session, runs)
            return
        for run in runs:
            member.attempts[run.id] = run.attempt
        member.sent_total += len(runs)
        self._measures.dispatched.add(len(runs))
        self._measures.sent(tasks)
        link.say(Sent(session, runs))
        self._interrupt_late(tasks)

    def _interrupt_late(self, tasks: list[Task]) -> None:
        """Interrupt tasks that were cancelled, or passed their deadline, before they were sent."""
        time = self._proposing.time
        now_ms = time.now_ms()
        for task in tasks:
            if task.cancel_asked:
                self._crew.interrupt(task.id, task.worker_id, CANCELLED)
            elif task.deadline_ms and time.ring_ms(task.deadline_ms) <= now_ms:
                self._crew.interrupt(task.id, task.worker_id, OVERDUE)

    def _hand_back(self, worker_id: str, session: int, runs: list[Run]) -> None:
        """Log that assigned tasks are not sent, so their attempts never began."""
        ended = [Ended(run.id, run.attempt, Outcome.HANDED_BACK) for run in runs]
        self.handing_back.update(run.id for run in runs)

        def heard(told: bytes | BrokerError) -> None:
            self.handing_back.difference_update(run.id for run in runs)

        def propose() -> None:
            now_ms = self._proposing.time.now_ms()
            finish = Finish([Completion(worker_id, session, ended)], now_ms)
            self._proposing.send(finish, heard)

        self._loop.call_soon(propose)

    def _run(self, task: Task) -> Run:
        return Run(
            task.id,
            task.attempt,
            task.tenant,
            task.type,
            self._payload(task) if task.payload_bytes else task.payload,
            task.time_limit_ms,
            task.deadline_ms,
            task.mode,
            task.codepool,
            task.execution,
            task.payload_object,
        )
