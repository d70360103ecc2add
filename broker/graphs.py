"""Tasks that wait for the ends of others.

A child is BLOCKED until all its parents have ended. A parent whose end breaks a rule cancels the
child, which is an end for the child's own children in turn.

Invariants:
- An edge is there from the child's submit until its parent's end has been told, and no longer.
- A command tells at most `SETTLED_MAX` children; parents that are left have a row until they too
  have been settled.
- A parent is always older than its children, so there are no circles.
"""

from broker.applying import Step
from broker.commands import SETTLED_MAX, Refusal, Settle, Spec
from broker.ending import end
from broker.keys import (
    EDGE,
    ENDING,
    ID_MAX,
    PARENTS,
    UNSETTLED,
    end_of,
    number_of,
    numbered,
    pack_ids,
    pair_of,
    paired,
    unpack_ids,
)
from broker.task import (
    Edge,
    EventKind,
    Rule,
    Status,
    Task,
    decode_edge,
    decode_unsettled,
    encode,
    note,
)


def parent_ids(spec: Spec, answers: list[int | Refusal]) -> dict[int, Rule] | Refusal:
    """The parents of a task by id, given what became of those before it in its batch."""
    found: dict[int, Rule] = {}
    for parent in spec.parents:
        task_id = parent.task_id
        if not task_id:
            if not 0 <= parent.index < len(answers):
                return Refusal(
                    "unknown_parent",
                    f"a parent is an earlier task of the batch, not {parent.index}",
                )
            answer = answers[parent.index]
            if isinstance(answer, Refusal):
                return Refusal("unknown_parent", f"parent {parent.index} of the batch was refused")
            task_id = answer
        if found.setdefault(task_id, parent.rule) is not parent.rule:
            return Refusal("invalid_task", f"two rules for the same parent {task_id}", task_id)
    return found


def link(step: Step, task: Task, spec: Spec, answers: list[int | Refusal]) -> None:
    """Store a new task that has parents, and its edges."""
    parents = parent_ids(spec, answers)
    assert not isinstance(parents, Refusal)
    broken = ""
    held: list[int] = []
    for parent_id, rule in parents.items():
        parent = step.active(parent_id)
        if parent is None:
            parent = step.final(parent_id)
            assert parent is not None, "parents were looked at before"
            broken = broken or _broken(parent_id, parent.status, rule)
            continue
        if not parent.children:
            parent.children = 1
            step.store(parent.status, parent)
        held.append(parent_id)
        step.put(paired(EDGE, parent_id, task.id), encode(Edge(rule)))
        task.parents_left += 1
    waits = task.parents_left or broken
    if waits and task.status is not Status.PREPARED:
        task.status = Status.BLOCKED
    if task.status is Status.PREPARED:
        task.error = broken
        if held:
            step.put(numbered(PARENTS, task.id), pack_ids(held))
    step.store(None, task)
    if broken and task.status is Status.BLOCKED:
        _cancel(step, task, broken)


def settle(step: Step) -> None:
    """Tell children of the ends of this command, as many as one may."""
    queue = step.settling
    left = SETTLED_MAX
    while queue and left > 0:
        parent_id, status = queue[0]
        first = paired(EDGE, parent_id, 0)
        edges = step.scan(first, paired(EDGE, parent_id, ID_MAX) + b"\0", left)
        for key, value in edges:
            step.delete(key)
            _tell(step, pair_of(key)[1], parent_id, status, decode_edge(value).rule)
        if len(edges) < left:
            queue.popleft()
        left -= max(len(edges), 1)


def go_on(step: Step, wanted: Settle) -> bytes:
    """Take up what earlier commands have left; `settle` follows, then `left` answers."""
    for key, value in step.scan(UNSETTLED, end_of(UNSETTLED), SETTLED_MAX):
        step.delete(key)
        step.settling.append((number_of(key), decode_unsettled(value).status))
    return b""


def left(step: Step) -> bytes:
    """Answers 1 if there is more to settle or to end, else 0."""
    more = any(step.scan(kind, end_of(kind), 1) for kind in (UNSETTLED, ENDING))
    return encode(int(more))


def unlink(step: Step, task: Task) -> None:
    """Remove the edges of a task that is undone: from its parents, and to its children."""
    parents = step.get(numbered(PARENTS, task.id))
    if parents is not None:
        step.delete(numbered(PARENTS, task.id))
        for parent_id in unpack_ids(parents):
            step.delete(paired(EDGE, parent_id, task.id))
    if not task.children:
        return
    first, last = paired(EDGE, task.id, 0), paired(EDGE, task.id, ID_MAX) + b"\0"
    while edges := step.scan(first, last, SETTLED_MAX):
        for key, _ in edges:
            step.delete(key)


def release(step: Step, task: Task, before: Status, kind: EventKind) -> None:
    """Let a task go that waited for parents or for its transaction."""
    note(task, step.now_ms, kind)
    task.status = Status.DELAYED if task.due_ms > step.now_ms else Status.WAITING
    step.store(before, task)


def _tell(step: Step, child_id: int, parent_id: int, status: Status, rule: Rule) -> None:
    child = step.active(child_id)
    if child is None or child.status not in (Status.BLOCKED, Status.PREPARED):
        # Cancelled, overdue or rolled back meanwhile.
        return
    before = child.status
    child.parents_left -= 1
    broken = _broken(parent_id, status, rule)
    if before is Status.PREPARED:
        child.error = child.error or broken
        if not child.parents_left:
            step.delete(numbered(PARENTS, child_id))
        step.store(before, child)
    elif broken:
        _cancel(step, child, broken)
    elif child.parents_left == 0:
        release(step, child, before, EventKind.RELEASED)
    else:
        step.store(before, child)


def _broken(parent_id: int, status: Status, rule: Rule) -> str:
    """Why a rule cannot hold any more; nothing if it does."""
    if rule is Rule.ALWAYS or (status is Status.FINISHED) is (rule is Rule.ON_SUCCESS):
        return ""
    return f"parent {parent_id} ended as {status.name}, the rule is {rule.name}"


def _cancel(step: Step, child: Task, broken: str) -> None:
    child.error = broken
    end(step, child, Status.CANCELLED, EventKind.CANCELLED, "", broken)
