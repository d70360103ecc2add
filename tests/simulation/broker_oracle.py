"""What tasks may never do, checked in the instant in which an attempt begins or ends anywhere.

An attempt of a paused process does not run. It runs again a moment after its process has resumed:
by then a worker whose lease has expired must have ended it.

Invariants checked (a breach raises `Violation` where it happens):
- An attempt begins once; a task that may run at most once begins once, in all its attempts, and
  once more for each time that an operator begins it anew.
- Two attempts of a task never run at the same time.
- The running tasks that hold a resource never exceed its limit. The limit that counts is the one in
  the log when the last of these tasks was assigned.
- A reported end of a task never changes, unless an operator restarts the task.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.connection import Attempt, Ended, Run
from broker.task import Mode, Status
from tests.simulation.loop import Process, SimLoop
from tests.simulation.oracles import Violation

LIMITS: Final = {"database": 2, "cluster:herd": 1, "mail": 1, "press": 2}
_NOTICES_S: Final = 0.1
"""So soon after a pause a worker has noticed that its lease has expired."""
PRESS_MOST: Final = 4
"""The limit of `press` is changed while the run lasts, up to that."""
RESOURCES: Final[dict[str, tuple[str, ...]]] = {
    "ann": ("database",),
    "bob": ("database", "mail"),
    "cyd": ("cluster:herd",),
    "dan": (),
    "eve": ("press",),
}
"""What tenants' tasks hold. Of `eve` that is changed while the run lasts."""
_SURE: Final = {**RESOURCES, "eve": ()}
"""What they hold for certain, while no replica runs that could tell."""


class Given(NamedTuple):
    """What the log has of an attempt: what it holds, and when it was assigned (broker's time)."""

    resources: tuple[str, ...]
    started_ms: int


@dataclass(slots=True)
class Running:
    """An attempt that has begun. `stopped`: its process is paused, or has just resumed."""

    run: Run
    process: Process
    resources: tuple[str, ...]
    started_ms: int
    stopped: bool = False


class BrokerOracle:
    """Everything known from outside about the tasks of one run."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.given: Callable[[Run], Given | None] = lambda run: None
        """Looks into the rows of a replica that has an attempt; None: none of them has."""
        self.press: tuple[int, int] | None = None
        """The limit of `press`, and since when it counts (broker's time); None: it may change."""
        self.running: dict[Attempt, Running] = {}
        self.ended: dict[Attempt, Ended] = {}
        self.begun: Counter[int] = Counter()
        self.accepted: dict[str, int] = {}
        """The id of each task whose submit was acknowledged, by its tag."""
        self.tried: set[str] = set()
        """Tags of all tasks that may have been taken."""
        self.seen: dict[int, Status] = {}
        self.cancelled: set[int] = set()
        """Tasks that somebody may have cancelled."""
        self.anew: Counter[int] = Counter()
        """How often an operator may have begun a task anew."""
        self.deleted: set[int] = set()
        """Tasks that an operator may have removed."""
        self.fleeting: set[str] = set()
        """Tags of tasks that are kept for a moment only."""
        self.fixed: set[str] = set()
        """Tags of tasks that hold `press` and nothing else, whoever's they are."""
        self.frail: set[str] = set()
        """Tags of those of them that may end before they begin: late, or with their worker."""
        self.waked: dict[Process, float] = {}
        self._attempts: set[Attempt] = set()

    def accepted_tag(self, task_id: int) -> str:
        """The tag of a task that was acknowledged."""
        return next((tag for tag, known in self.accepted.items() if known == task_id), "")

    def begin(self, process: Process, run: Run) -> None:
        """A function begins."""
        attempt = (run.id, run.attempt)
        if attempt in self._attempts:
            raise Violation(f"{process.name}: attempt {attempt} begins again")
        self._attempts.add(attempt)
        self.begun[run.id] += 1
        if run.mode == Mode.AT_MOST_ONCE and self.begun[run.id] > 1 + self.anew[run.id]:
            raise Violation(f"{process.name}: task {run.id} begins again, at most once it may")
        stopped = self.waked.get(process) == self._loop.now
        fixed = run.payload.decode() in self.fixed
        given = self.given(run) or Given(("press",) if fixed else _SURE[run.tenant], 0)
        self.running[attempt] = Running(run, process, *given, stopped)
        if not stopped:
            self._check_alone(run)
            self._check_limits(given)

    def end(self, run: Run, ended: Ended) -> None:
        """A function has ended; nothing of it runs any more."""
        del self.running[run.id, run.attempt]
        self.ended[run.id, run.attempt] = ended

    def die(self, process: Process) -> None:
        """A process and all its children are gone."""
        for attempt in [key for key, one in self.running.items() if one.process is process]:
            del self.running[attempt]

    def stop(self, process: Process) -> None:
        """A process is stopped, with what runs in it."""
        for one in self.running.values():
            if one.process is process:
                one.stopped = True

    def wake(self, process: Process) -> None:
        """A paused process resumes: what it has not ended in a moment runs again."""
        self.waked[process] = now_s = self._loop.now
        self._loop.deliver_at(
            now_s + _NOTICES_S, self._loop.world, lambda: self._run_again(process, now_s)
        )

    def _run_again(self, process: Process, waked_s: float) -> None:
        if process.paused or self.waked[process] != waked_s:
            return
        for one in [one for one in self.running.values() if one.process is process]:
            if one.stopped:
                one.stopped = False
                self._check_alone(one.run)
                self._check_limits(Given(one.resources, one.started_ms))

    def see(self, task_id: int, status: Status) -> None:
        """Somebody was told how a task has ended."""
        if self.anew[task_id]:
            self.seen.pop(task_id, None)
            return
        known = self.seen.setdefault(task_id, status)
        if known is not status:
            raise Violation(f"task {task_id} has ended as {known.name} and as {status.name}")

    def _check_alone(self, run: Run) -> None:
        others = [
            one
            for (task_id, attempt), one in self.running.items()
            if task_id == run.id and attempt != run.attempt and not one.stopped
        ]
        if others:
            raise Violation(
                f"attempt {run.attempt} of task {run.id} begins while attempt "
                f"{others[0].run.attempt} runs in {others[0].process.name}"
            )

    def _check_limits(self, given: Given) -> None:
        for name in given.resources:
            limit = self._press_limit(given) if name == "press" else LIMITS[name]
            users = [
                (one.run.id, one.run.attempt, one.process.name)
                for one in self.running.values()
                if not one.stopped and name in one.resources
            ]
            if len(users) > limit:
                raise Violation(f"{len(users)} tasks hold {name} of {limit}: {users}")

    def _press_limit(self, given: Given) -> int:
        if self.press is None or given.started_ms <= self.press[1]:
            return PRESS_MOST
        return self.press[0]
