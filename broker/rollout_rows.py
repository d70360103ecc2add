"""Roll-outs as rows: compare-and-set of a record, together with the tasks that it begins.

Invariants:
- A record changes only from the version that who changes it has seen, so that whoever drives a
  roll-out, and however many believe they do, it goes one way.
- A cluster is held by one roll-out, from its beginning to its end.
- Of a refused change nothing is written: no record, no task, no note.
"""

from typing import Final

from broker.applying import RolloutChanged, Step
from broker.commands import Refusal
from broker.keys import CLUSTER, ROLLOUT, end_of, named, note_key, note_prefix
from broker.rollout_commands import (
    RESERVED,
    RolloutAnswer,
    RolloutChange,
    RolloutPut,
    RolloutRemove,
    RolloutRow,
    decode_row,
    encode_row,
)
from broker.submitting import take

_NOTES_A_COMMAND: Final = 1_000
ROLLOUTS_MAX: Final = 10_000


def put(step: Step, said: RolloutPut) -> bytes:
    """Answers the ids of the tasks that begin, or why nothing was changed."""
    wanted = said.change
    before = _row(step, wanted.name)
    refusal = _refusal(step, wanted, before)
    if refusal is not None:
        return encode_row(refusal)
    specs = wanted.specs
    task_ids: list[int] = []
    for answer in take(step, specs, atomic=True, reserved=True) if specs else ():
        if isinstance(answer, Refusal):
            if answer.code != "batch_refused":
                return _refused(answer.code, answer.message)
        else:
            task_ids.append(answer)
    assert len(task_ids) == len(specs)
    holder = named(CLUSTER, wanted.cluster)
    if wanted.ended:
        if step.get(holder) == wanted.name.encode():
            step.delete(holder)
    else:
        step.put(holder, wanted.name.encode())
    row = RolloutRow(
        wanted.name,
        wanted.version + 1,
        wanted.record,
        wanted.cluster,
        wanted.ended,
        task_ids,
        said.by,
        step.now_ms if before is None else before.created_ms,
        step.now_ms,
    )
    step.counters.rollouts += before is None
    step.put(named(ROLLOUT, wanted.name), encode_row(row))
    if wanted.notes:
        step.put(note_key(wanted.name, row.version), encode_row(wanted.notes))
    step.changed(RolloutChanged(row))
    return encode_row(RolloutAnswer(task_ids))


def remove(step: Step, wanted: RolloutRemove) -> bytes:
    """Answers whether notes are left, or why nothing was changed."""
    before = _row(step, wanted.name)
    if before is None:
        return _refused("unknown_rollout", f"there is no roll-out {wanted.name}")
    if before.version != wanted.version:
        return _refused("rollout_changed", f"roll-out {wanted.name} has changed meanwhile")
    if not before.ended:
        return _refused("not_in_state", f"roll-out {wanted.name} has not ended")
    prefix = note_prefix(wanted.name)
    notes = step.scan(prefix, end_of(prefix), _NOTES_A_COMMAND)
    for key, _ in notes:
        step.delete(key)
    if len(notes) == _NOTES_A_COMMAND:
        return encode_row(RolloutAnswer(again=True))
    step.counters.rollouts -= 1
    step.delete(named(ROLLOUT, wanted.name))
    return encode_row(RolloutAnswer())


def _refusal(step: Step, wanted: RolloutChange, before: RolloutRow | None) -> RolloutAnswer | None:
    if before is not None and not wanted.version:
        return RolloutAnswer(code="duplicate", message=f"there is a roll-out {wanted.name} already")
    if wanted.version != (0 if before is None else before.version):
        text = f"roll-out {wanted.name} has changed meanwhile"
        return RolloutAnswer(code="rollout_changed", message=text)
    if before is not None and (before.ended or before.cluster != wanted.cluster):
        text = f"roll-out {wanted.name} has ended, or is another cluster's"
        return RolloutAnswer(code="not_in_state", message=text)
    holder = step.get(named(CLUSTER, wanted.cluster))
    if holder is not None and holder != wanted.name.encode():
        text = f"the cluster {wanted.cluster} is held by roll-out {holder.decode()}"
        return RolloutAnswer(code="cluster_busy", message=text)
    if before is None and step.counters.rollouts >= ROLLOUTS_MAX:
        text = f"{ROLLOUTS_MAX:,} roll-outs are kept: remove some that have ended"
        return RolloutAnswer(code="too_large", message=text)
    if not all(spec.type.startswith(RESERVED) for spec in wanted.specs):
        text = f"a step of a roll-out is of a type that begins with {RESERVED}"
        return RolloutAnswer(code="invalid_task", message=text)
    return None


def _row(step: Step, name: str) -> RolloutRow | None:
    row = step.get(named(ROLLOUT, name))
    return None if row is None else decode_row(row)


def _refused(code: str, message: str) -> bytes:
    return encode_row(RolloutAnswer(code=code, message=message))
