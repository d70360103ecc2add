"""Every error of the broker: what went wrong, whether to try again, and what to do.

BrokerError
├── InvalidTask              a task, a filter or an argument is not what it may be
├── InvalidSetting           a limit, weight, mapping, rate or schedule is not what it may be
├── TooLarge                 more bytes or more items than fit
├── SubmitRefused            the task was not taken
│   ├── SlotBusy                 another task holds the slot
│   ├── DuplicateTask            another task has the unique key
│   ├── DeadlineBeforeStart      it could never run
│   ├── UnknownParent            a parent is not there, or in another transaction
│   ├── UnknownCodePool          the code it names is not there
│   ├── TransactionFull          the transaction holds all tasks that it may
│   ├── TenantFull               as many of the tenant's tasks wait as may
│   └── BatchRefused             another one of the same atomic batch was refused
├── UnknownTask              there is no such task, or no longer
├── UnknownTransaction       it was never begun, or it has ended
├── UnknownSchedule          there is no schedule of that name
├── NotInState               the task is not in a state for that
├── TaskNotFinished          a task that was waited for has another end than a result
│   ├── TaskFailed               it failed for good
│   ├── TaskCancelled            somebody cancelled it
│   └── TaskLost                 its worker was lost; nobody knows how far it came
├── WaitTimedOut             it has not ended yet
├── BrokerUnavailable        nobody answers for the broker at the moment
│   ├── NotLeader                another one leads
│   │   └── StoreClosed              this program has closed the store; to others it is `NotLeader`
│   ├── DiskFull                 only the reserve of a disk is free
│   └── Overloaded               more is under way than fits
├── OutcomeUnknown           it may or may not have been done
├── SessionLost              the worker's session has ended
├── AccessDenied             who asks may not do that
├── UnknownRollout           there is no roll-out of that name
├── RolloutChanged           somebody else changed the roll-out first
├── ClusterBusy              another roll-out holds the cluster
├── PayloadMissing           a payload or a result is not there any more
└── CommandUnknown           the broker's replicas do not know the command

`code` is the same thing as one word, on the wire and in the state machine's refusals.
"""

from typing import Any, ClassVar


class BrokerError(Exception):
    """The root. `retryable`: the same call may succeed later. `remedy`: what to do.

    >>> str(SlotBusy("slot nightly is held by task 7", task_id=7))
    'slot nightly is held by task 7 (wait until that task has ended, or use another slot)'
    """

    code: ClassVar[str] = "broker"
    retryable: ClassVar[bool] = False
    remedy: ClassVar[str] = ""

    def __init__(self, message: str, *, task_id: int = 0, leader: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.task_id = task_id
        """The task that it is about, or that is in the way; 0: none."""
        self.leader = leader
        """The address of who leads, as far as is known."""

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.message, self.task_id, self.leader)


class InvalidTask(BrokerError):
    """A task, a filter or an argument is not what it may be. Nothing was changed."""

    code = "invalid_task"
    remedy = "mend the call; trying it again changes nothing"


class InvalidSetting(BrokerError):
    """A setting or a schedule is not what it may be. Nothing was changed."""

    code = "invalid_setting"
    remedy = "mend the value; trying it again changes nothing"


class TooLarge(BrokerError):
    """More bytes or more items than fit. Nothing was changed."""

    code = "too_large"
    remedy = "send less at once; keep big payloads in a bucket and send their object id"


class SubmitRefused(BrokerError):
    """The task was not taken. Nothing of it is kept."""

    code = "submit_refused"
    remedy = "mend the task"


class SlotBusy(SubmitRefused):
    """Another task, `task_id`, holds the slot until it has ended."""

    code = "slot_busy"
    retryable = True
    remedy = "wait until that task has ended, or use another slot"


class DuplicateTask(SubmitRefused):
    """Another task, `task_id`, has the unique key until it has ended."""

    code = "duplicate"
    remedy = "use that task, or submit again when it has ended"


class DeadlineBeforeStart(SubmitRefused):
    """The deadline is not after the start, so the task could never run."""

    code = "deadline_before_start"
    remedy = "set a later deadline or an earlier start"


class UnknownParent(SubmitRefused):
    """A parent is not there, or is part of another transaction that is still open."""

    code = "unknown_parent"
    remedy = "name tasks that were submitted before and are still kept"


class UnknownCodePool(SubmitRefused):
    """The code pool that the task names is not there."""

    code = "unknown_code_pool"
    remedy = "create the code pool first"


class TransactionFull(SubmitRefused):
    """The transaction holds all tasks that one may."""

    code = "transaction_full"
    remedy = "commit it and begin another one"


class TenantFull(SubmitRefused):
    """As many tasks of the tenant wait, or as many bytes of payloads, as its quota lets."""

    code = "tenant_full"
    retryable = True
    remedy = "submit again when some of its tasks have begun, or have the tenant's quota raised"


class BatchRefused(SubmitRefused):
    """Another task of the same atomic batch was refused, so none was taken."""

    code = "batch_refused"
    remedy = "mend the task that was refused and send the batch again"


class UnknownTask(BrokerError):
    """There is no such task, or it was removed when its result had been kept long enough."""

    code = "unknown_task"
    remedy = "look at the id; ask for longer retention if it was purged"


class UnknownTransaction(BrokerError):
    """The transaction was never begun, has ended, or has passed its time. It changes nothing."""

    code = "unknown_transaction"
    remedy = "begin another transaction and submit its tasks again"


class UnknownSchedule(BrokerError):
    """There is no schedule of that name."""

    code = "unknown_schedule"
    remedy = "list the schedules to see their names"


class NotInState(BrokerError):
    """The task is not in a state for that. Nothing was changed."""

    code = "not_in_state"
    remedy = "look at the task first"


class TaskNotFinished(BrokerError):
    """The task that was waited for has ended without a result."""

    code = "task_not_finished"


class TaskFailed(TaskNotFinished):
    """The task failed and is not tried again; the message is what its last attempt said."""

    code = "task_failed"
    remedy = "mend what failed and retry the task by its id"


class TaskCancelled(TaskNotFinished):
    """The task was cancelled."""

    code = "task_cancelled"
    remedy = "retry it by its id if it should run after all"


class TaskLost(TaskNotFinished):
    """The task may run once at most and its worker was lost: how far it came is not known."""

    code = "task_lost"
    remedy = "find out what it did, then retry it by its id or leave it"


class WaitTimedOut(BrokerError):
    """The task has not ended yet; it goes on."""

    code = "wait_timed_out"
    retryable = True
    remedy = "wait again, with a longer time-out"


class BrokerUnavailable(BrokerError):
    """Nobody answers for the broker at the moment. Nothing was changed."""

    code = "unavailable"
    retryable = True
    remedy = "try again in a moment"


class NotLeader(BrokerUnavailable):
    """Another replica leads, at `leader` as far as is known. Nothing was changed."""

    code = "not_leader"
    remedy = "ask the leader"


class StoreClosed(NotLeader):
    """This program has closed the store. Nothing was changed. Who asks from afar asks another."""

    retryable = False
    remedy = "open it again"


class DiskFull(BrokerUnavailable):
    """Only the reserve of a disk is free, which is kept for running tasks and for deletions.

    Nothing was changed.
    """

    code = "disk_full"
    remedy = "cancel tasks, delete data, or free space on the disk; then try again"


class Overloaded(BrokerUnavailable):
    """More is under way than fits. Nothing was changed."""

    code = "overloaded"
    remedy = "send less at a time and try again in a moment"


class OutcomeUnknown(BrokerError):
    """It may or may not have been done: the answer was lost."""

    code = "outcome_unknown"
    remedy = "look whether it was done; use a unique key so that a second submit does no harm"


class SessionLost(BrokerError):
    """The worker's session has ended; its tasks were given away."""

    code = "session_lost"
    retryable = True
    remedy = "stop what runs and connect again"


class AccessDenied(BrokerError):
    """Who asks may not do that, or has not proved who they are. Nothing was changed."""

    code = "access_denied"
    remedy = "log in as a user who may"


class UnknownRollout(BrokerError):
    """There is no roll-out of that name."""

    code = "unknown_rollout"
    remedy = "list the roll-outs to see their names"


class RolloutChanged(BrokerError):
    """The roll-out is not as it was seen: somebody else changed it first. Nothing was changed."""

    code = "rollout_changed"
    retryable = True
    remedy = "look at the roll-out again, then decide anew"


class ClusterBusy(BrokerError):
    """Another roll-out holds the cluster until all of its nodes are proven healthy."""

    code = "cluster_busy"
    retryable = True
    remedy = "wait for the end of that roll-out, or cancel it and clear its nodes"


class PayloadMissing(BrokerError):
    """A payload or a result is not there any more: it was purged with its task, or removed."""

    code = "payload_missing"
    remedy = "ask for longer retention; if it is an object, look whether its bucket has it"


class CommandUnknown(BrokerError):
    """The broker's replicas do not know the command, or it is damaged. Nothing was changed."""

    code = "unknown_command"
    remedy = "upgrade all replicas to one version"


def _kinds(kind: type[BrokerError]) -> dict[str, type[BrokerError]]:
    found: dict[str, type[BrokerError]] = {}
    for one in kind.__subclasses__():
        found |= _kinds(one)
    # The nearest to the root: what has no code of its own is on the wire what it is a kind of.
    return {**found, kind.code: kind}


def error_of(code: str, message: str, task_id: int = 0) -> BrokerError:
    """The error that a code names; of codes that are not known, the root.

    >>> error_of("slot_busy", "slot a is held by task 3", 3)
    SlotBusy('slot a is held by task 3')
    """
    return _kinds(BrokerError).get(code, BrokerError)(message, task_id=task_id)


def _rebuilt(kind: type[BrokerError], message: str, task_id: int, leader: str) -> BrokerError:
    return kind(message, task_id=task_id, leader=leader)
