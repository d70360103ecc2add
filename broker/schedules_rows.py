"""Schedules: tasks that are submitted again and again.

When a schedule is due next is reckoned by who leads, and told with the command.

Invariants:
- A due time fires once, whoever sends it and how often: only the next one that is stored does.
- A fired task that is refused, because the one before still holds its slot, moves the schedule on.
- The times in a schedule's task count from when it fires: it is not yet known when that is.
"""

import msgspec

from broker.applying import ScheduleChanged, Step
from broker.commands import (
    CorrectDue,
    Fire,
    Refusal,
    Schedule,
    ScheduleDelete,
    SchedulePause,
    ScheduleSet,
    Spec,
    decode_schedule,
)
from broker.keys import ID_MAX, SCHEDULE, named
from broker.submitting import take
from broker.task import encode


def define(step: Step, wanted: ScheduleSet) -> bytes:
    """Answers 1, or why not."""
    schedule = wanted.schedule
    if schedule.spec.parents:
        return encode(Refusal("invalid_setting", "a schedule's task has no parents"))
    if bool(schedule.cron) is bool(schedule.interval_ms):
        return encode(
            Refusal("invalid_setting", "a schedule has either a cron text or an interval")
        )
    before = _schedule(step, schedule.name)
    if before is not None:
        schedule.fired, schedule.skipped = before.fired, before.skipped
        schedule.refused, schedule.last_task = before.refused, before.last_task
        schedule.last_due_ms = before.last_due_ms
        schedule.paused = before.paused
        if before.next_due_ms and _rhythm(before) == _rhythm(schedule):
            # Whoever declares it at each start must not put it off each time.
            schedule.next_due_ms = before.next_due_ms
        elif wanted.count_due and not before.paused and 0 < before.next_due_ms <= step.now_ms:
            schedule.skipped = min(schedule.skipped + 1, ID_MAX)
    schedule.by, schedule.changed_ms = wanted.by, step.now_ms
    _store(step, schedule)
    return encode(1)


def remove(step: Step, wanted: ScheduleDelete) -> bytes:
    """Answers 1, or why not."""
    if _schedule(step, wanted.name) is None:
        return encode(_unknown(wanted.name))
    step.delete(named(SCHEDULE, wanted.name))
    step.changed(ScheduleChanged(wanted.name, None))
    return encode(1)


def pause(step: Step, wanted: SchedulePause) -> bytes:
    """Answers 1, or why not."""
    schedule = _schedule(step, wanted.name)
    if schedule is None:
        return encode(_unknown(wanted.name))
    if wanted.keep_due:
        if schedule.paused is wanted.paused:
            return encode(1)
        schedule.paused = wanted.paused
    else:
        schedule.paused, schedule.next_due_ms = wanted.paused, wanted.next_due_ms
    schedule.by, schedule.changed_ms = wanted.by, step.now_ms
    _store(step, schedule)
    return encode(1)


def fire(step: Step, wanted: Fire) -> bytes:
    """Answers the id of the task, 0 if the time has been fired, or why not."""
    schedule = _schedule(step, wanted.name)
    if schedule is None:
        return encode(_unknown(wanted.name))
    if schedule.paused or schedule.next_due_ms != wanted.due_ms:
        return encode(0)
    schedule.last_due_ms, schedule.next_due_ms = wanted.due_ms, wanted.next_due_ms
    schedule.skipped = min(schedule.skipped + wanted.skipped, ID_MAX)
    if wanted.skip:
        _store(step, schedule)
        return encode(0)
    answer = take(step, [_spec(step, schedule)], expired_code=wanted.keep_code)[0]
    if isinstance(answer, Refusal):
        schedule.refused += 1
    else:
        schedule.fired += 1
        schedule.last_task = answer
    _store(step, schedule)
    return encode(answer)


def correct_due(step: Step, wanted: CorrectDue) -> bytes:
    """Answers 1, or 0 if the next due time has changed meanwhile, or a refusal."""
    schedule = _schedule(step, wanted.name)
    if schedule is None:
        return encode(_unknown(wanted.name))
    if schedule.next_due_ms != wanted.due_ms:
        return encode(0)
    schedule.next_due_ms = wanted.next_due_ms
    _store(step, schedule)
    return encode(1)


def _rhythm(schedule: Schedule) -> tuple[str, str, int]:
    return schedule.cron, schedule.zone, schedule.interval_ms


def _spec(step: Step, schedule: Schedule) -> Spec:
    spec = schedule.spec
    return msgspec.structs.replace(
        spec,
        due_ms=step.now_ms + spec.due_ms if spec.due_ms else 0,
        deadline_ms=step.now_ms + spec.deadline_ms if spec.deadline_ms else 0,
        submitter=spec.submitter or f"schedule {schedule.name}",
    )


def _schedule(step: Step, name: str) -> Schedule | None:
    row = step.get(named(SCHEDULE, name))
    return None if row is None else decode_schedule(row)


def _store(step: Step, schedule: Schedule) -> None:
    step.put(named(SCHEDULE, schedule.name), encode(schedule))
    step.changed(ScheduleChanged(schedule.name, schedule))


def _unknown(name: str) -> Refusal:
    return Refusal("unknown_schedule", f"there is no schedule {name}")
