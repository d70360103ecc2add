"""Checks that clients, operators and workers explain the final tasks of a broker's run.

Invariants:
- A task that was acknowledged is there once, unless it was kept for a moment only or an operator
  removed it; its end is one that its attempts explain.
- Only tasks that a client may have submitted ran; a due time of a schedule gave one task at most.
"""

from collections import Counter
from typing import Final

from broker.connection import Ended
from broker.ending import EXPIRED
from broker.task import Mode, Rule, Status, Task
from tests.simulation.broker_oracle import BrokerOracle
from tests.simulation.broker_workload import BrokerWorkload, judge_bundles
from tests.simulation.oracles import Violation

SCHEDULED_BY: Final = "schedule "


class BrokerVerdict:
    """The final tasks of one replica."""

    def __init__(self, oracle: BrokerOracle, clients: BrokerWorkload, found: list[Task]) -> None:
        self._oracle = oracle
        self._clients = clients
        self._scheduled = [task for task in found if task.submitter.startswith(SCHEDULED_BY)]
        self._found = [task for task in found if not task.submitter.startswith(SCHEDULED_BY)]
        self._by_id = {task.id: task for task in found}

    def judge(self) -> None:
        """Raises `Violation`."""
        self._judge_tags()
        judge_bundles(self._clients, {task.payload.decode() for task in self._found})
        self._judge_told()
        broken = self._judge_children()
        for task in self._by_id.values():
            self._judge_task(task, broken)
        self._judge_schedules()

    def _judge_tags(self) -> None:
        oracle = self._oracle
        for tag, count in Counter(task.payload.decode() for task in self._found).items():
            if count > 1:
                raise Violation(f"{tag} was taken {count} times")
            if tag not in oracle.tried:
                raise Violation(f"{tag} was refused and is there")
        for tag, task_id in oracle.accepted.items():
            task = self._by_id.get(task_id)
            if task is None:
                self._judge_absent(tag, task_id)
            elif task.payload.decode() != tag:
                raise Violation(f"{in_words(task)} was acknowledged as {tag}")

    def _judge_absent(self, tag: str, task_id: int) -> None:
        oracle = self._oracle
        if task_id in oracle.deleted:
            return
        explained = oracle.begun[task_id] or task_id in oracle.cancelled or tag in oracle.frail
        if tag not in oracle.fleeting or not explained:
            raise Violation(f"task {task_id}, {tag}, was acknowledged and is lost")

    def _judge_told(self) -> None:
        for task_id, status in self._oracle.seen.items():
            task = self._by_id.get(task_id)
            if task is None or self._oracle.anew[task_id]:
                continue
            if task.status is not status:
                raise Violation(f"{in_words(task)} was told to be {status.name}")

    def _judge_children(self) -> set[str]:
        """Children whose parents ended against their rule. All of them must be cancelled."""
        anew = self._oracle.anew
        ends = {
            task.payload.decode(): Status(task.status) for task in self._found if not anew[task.id]
        }
        late = {task.payload.decode() for task in self._found if task.error == EXPIRED}
        broken = set()
        for child, (parent, rule) in self._clients.children.items():
            if parent not in ends:
                # It was restarted or removed, so its earlier end is no longer known.
                broken.add(child)
            elif not _holds(rule, ends[parent]):
                broken.add(child)
                if child in ends and child not in late and ends[child] is not Status.CANCELLED:
                    raise Violation(f"{child} is {ends[child].name}, whatever its parent came to")
        return broken

    def _judge_task(self, task: Task, broken: set[str]) -> None:
        """Whether what happened to its attempts explains how a task has ended."""
        oracle, words = self._oracle, in_words(task)
        ended = oracle.ended.get((task.id, task.attempt))
        if task.status is Status.FINISHED:
            if ended is not Ended.FINISHED or task.result != b"%d" % task.attempt:
                raise Violation(f"{words}; its last attempt ended as {ended}")
        elif task.status is Status.LOST:
            if task.mode is not Mode.AT_MOST_ONCE:
                raise Violation(f"{words}, and may be tried again")
        elif task.status is Status.ERROR and task.error == EXPIRED:
            if not 0 < task.deadline_ms <= task.finished_ms:
                raise Violation(f"{words}, and had time until {task.deadline_ms}")
        elif task.status is Status.ERROR:
            patient = not task.attempts_max and not task.deadline_ms
            if patient and task.mode is not Mode.AT_MOST_ONCE:
                raise Violation(f"{words}, and may be tried without limit")
            if not task.dead:
                raise Violation(f"{words}, and is no dead letter")
        elif task.id not in oracle.cancelled and task.payload.decode() not in broken:
            raise Violation(f"{words}, and nobody cancelled it")

    def _judge_schedules(self) -> None:
        """The moments of a schedule lie an interval apart, and each was fired once at most."""
        operator = self._clients.operator
        assert operator is not None
        for name, rhythm in operator.rhythms.items():
            tasks = [task for task in self._scheduled if task.payload.decode() == name]
            fired = Counter(
                (task.created_ms - rhythm.first_ms) // rhythm.interval_ms for task in tasks
            )
            if any(moment < 0 or count > 1 for moment, count in fired.items()):
                raise Violation(f"{name} was fired twice for one moment: {fired}")


def _holds(rule: Rule, parent: Status) -> bool:
    good = parent is Status.FINISHED
    return rule is Rule.ALWAYS or good is (rule is Rule.ON_SUCCESS)


def in_words(task: Task) -> str:
    """Describe a task in the message of a violation."""
    return (
        f"task {task.id} ({task.payload.decode()}) of {task.tenant} is "
        f"{Status(task.status).name} after attempt {task.attempt}, {task.attempts_spent} of "
        f"{task.attempts_max} spent, last with {task.worker_id}: {task.events[-4:]}"
    )
