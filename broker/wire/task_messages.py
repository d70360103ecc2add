"""Tasks as messages of `proto/broker.proto`, and back.

Invariants:
- What a message leaves out is what `Spec` has by default; what it says is checked where all ways
  in are, before it reaches the log.
"""

from typing import TYPE_CHECKING, Any, Final

from broker.commands import ITEMS_MAX, Answer, Parent, Refusal, Spec
from broker.errors import BrokerError, InvalidTask
from broker.keys import ID_MAX
from broker.task import BACKOFF, Backoff, Mode, Rule, Status, Task

if TYPE_CHECKING:
    from broker.wire.grpc_generated import broker_pb2 as wire

ACTED_REFUSED: Final = 7


def spec_of(said: "wire.TaskSpec") -> Spec:
    """A task to be submitted. Raises `InvalidTask`."""
    spec = Spec(
        said.type,
        said.tenant or "default",
        said.payload,
        said.priority,
        said.due_ms,
        said.deadline_ms,
        said.time_limit_ms,
        mode=Mode.AT_MOST_ONCE if said.at_most_once else Mode.AT_LEAST_ONCE,
        slot=said.slot,
        unique_key=said.unique_key,
        codepool=said.code_pool,
        execution=said.execution or "factory",
        submitter=said.submitter,
    )
    if said.HasField("attempts_max"):
        spec.attempts_max = said.attempts_max
    if said.HasField("retention_ms"):
        spec.retention_ms = said.retention_ms
    if said.HasField("placement"):
        spec.fixed, spec.group = True, said.placement.group
        spec.resources = tuple(said.placement.resources)
    if said.HasField("backoff"):
        spec.backoff = _backoff_of(said.backoff)
    if said.parents:
        spec.parents = tuple(_parent_of(each) for each in said.parents)
    return spec


def _backoff_of(said: "wire.Backoff") -> Backoff:
    return Backoff(
        said.first_ms or BACKOFF.first_ms,
        said.factor_percent or BACKOFF.factor_percent,
        said.most_ms or BACKOFF.most_ms,
        said.jitter_percent,
    )


def _parent_of(said: "wire.ParentTask") -> Parent:
    try:
        rule = Rule(said.rule)
    except ValueError as error:
        raise InvalidTask(f"there is no rule {said.rule} for a parent") from error
    if said.WhichOneof("parent") == "index":
        if said.index >= ITEMS_MAX:
            raise InvalidTask(f"a request has at most {ITEMS_MAX} tasks with parents")
        return Parent(index=said.index, rule=rule)
    return Parent(said.task_id, rule=rule)


def info_to(to: "wire.TaskInfo", task: Task) -> None:
    """Tell of a task, without payload and result."""
    to.id, to.tenant, to.type = task.id, task.tenant, task.type
    to.status = int(task.status)  # type: ignore[assignment, unused-ignore]
    to.attempt, to.attempts_max = task.attempt, task.attempts_max
    to.created_ms, to.started_ms, to.finished_ms = (
        task.created_ms,
        task.started_ms,
        task.finished_ms,
    )
    to.due_ms, to.deadline_ms, to.priority = task.due_ms, task.deadline_ms, task.priority
    to.worker_id, to.slot, to.error, to.dead = task.worker_id, task.slot, task.error, task.dead


def failure_to(to: "wire.Failure", error: BrokerError) -> None:
    """Tell what is wrong."""
    to.code, to.message, to.retryable = error.code, str(error), error.retryable
    to.leader = error.leader
    if 0 < error.task_id <= ID_MAX:
        # A caller may have asked for any number.
        to.task_id = error.task_id


def acted_to(to: "wire.ActedReply", answers: list[Answer | Refusal]) -> None:
    """Tell what became of each."""
    for number, answer in enumerate(answers):
        if isinstance(answer, Refusal):
            to.answers.append(ACTED_REFUSED)  # type: ignore[arg-type, unused-ignore]
            failure_to(to.refusals[number], answer.error)
        else:
            to.answers.append(int(answer))  # type: ignore[arg-type, unused-ignore]


def same_numbers(wire_module: Any) -> bool:
    """Whether the file's numbers are those of the state machine."""
    statuses = {int(each) for each in Status}
    answers = {int(each) for each in Answer} | {0, ACTED_REFUSED}
    rules = {int(each) for each in Rule}
    return bool(
        statuses == set(wire_module.TaskStatus.values())
        and answers == set(wire_module.Acted.values())
        and rules == set(wire_module.ParentRule.values())
    )
