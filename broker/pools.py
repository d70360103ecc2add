"""Code pools: code that workers load, kept in parts.

Invariants:
- A pool is known when its last part is there; parts come in order, and all are of one digest.
- A pool that a task names is kept until the task has ended. A pool that a schedule names is kept as
  long as the schedule names it, even after it expires.
"""

from broker.applying import PoolChanged, Step
from broker.commands import PoolDelete, PoolPut, Refusal, decode_schedule
from broker.keys import POOL, POOL_PART, SCHEDULE, end_of, named, part_key, part_prefix
from broker.task import CodePool, decode_pool, encode

UNFINISHED_MS: int = 3_600_000
"""A pool whose parts do not come goes after this."""


def put(step: Step, wanted: PoolPut) -> bytes:
    """Answers 1, or why not."""
    pool = step.pool(wanted.name)
    if pool is not None and pool.parts_stored == pool.parts:
        return encode(_put_again(step, pool, wanted))
    if wanted.part == 0:
        if pool is not None:
            _erase(step, pool)
        pool = CodePool(
            wanted.name,
            0,
            wanted.parts,
            wanted.digest,
            step.now_ms,
            wanted.expires_ms,
            by=wanted.by,
        )
    if pool is None or (pool.parts_stored, pool.parts, pool.digest) != (
        wanted.part,
        wanted.parts,
        wanted.digest,
    ):
        return encode(
            Refusal("not_in_state", f"part {wanted.part} of code pool {wanted.name} is not next")
        )
    step.put(part_key(wanted.name, wanted.part), wanted.content)
    pool.parts_stored += 1
    pool.size_bytes += len(wanted.content)
    step.put(named(POOL, pool.name), encode(pool))
    if pool.parts_stored == pool.parts:
        step.changed(PoolChanged(pool.name, pool))
    return encode(1)


def delete(step: Step, wanted: PoolDelete) -> bytes:
    """Answers 1, or why not."""
    pool = step.pool(wanted.name)
    if pool is None:
        return encode(Refusal("unknown_code_pool", f"there is no code pool {wanted.name}"))
    schedule = _scheduled(step).get(wanted.name) if wanted.keep_code else None
    if schedule is not None:
        text = f"schedule {schedule} needs code pool {wanted.name}"
        return encode(Refusal("not_in_state", text))
    if pool.tasks:
        return encode(Refusal("not_in_state", f"{pool.tasks:,} tasks need code pool {wanted.name}"))
    _erase(step, pool)
    return encode(1)


def purge(step: Step, *, keep_scheduled: bool) -> None:
    """Remove expired pools that no task needs, and pools that were never completed.

    `keep_scheduled`: also keep pools that a schedule names.
    """
    scheduled: dict[str, str] | None = None
    for _, row in step.scan(POOL, end_of(POOL)):
        pool = decode_pool(row)
        whole = pool.parts_stored == pool.parts
        expires_ms = pool.expires_ms if whole else pool.created_ms + UNFINISHED_MS
        if pool.tasks or not 0 < expires_ms <= step.now_ms:
            continue
        if keep_scheduled and whole:
            if _is_named(step, pool):
                continue
            scheduled = _scheduled(step) if scheduled is None else scheduled
            if pool.name in scheduled:
                # The next purge only looks whether this schedule still names it.
                pool.schedule = scheduled[pool.name]
                step.put(named(POOL, pool.name), encode(pool))
                continue
        _erase(step, pool)


def _is_named(step: Step, pool: CodePool) -> bool:
    """Whether the schedule that named a pool before still does."""
    row = step.get(named(SCHEDULE, pool.schedule)) if pool.schedule else None
    return row is not None and decode_schedule(row).spec.codepool == pool.name


def _scheduled(step: Step) -> dict[str, str]:
    """Code pools that schedules name, each with one of those schedules."""
    schedules = [decode_schedule(row) for _, row in step.scan(SCHEDULE, end_of(SCHEDULE))]
    return {each.spec.codepool: each.name for each in schedules if each.spec.codepool}


def _put_again(step: Step, pool: CodePool, wanted: PoolPut) -> int | Refusal:
    if pool.digest != wanted.digest or pool.parts != wanted.parts:
        return Refusal("invalid_setting", f"code pool {pool.name} is there, with other code")
    if pool.expires_ms != wanted.expires_ms:
        pool.expires_ms = wanted.expires_ms
        step.put(named(POOL, pool.name), encode(pool))
        step.changed(PoolChanged(pool.name, pool))
    return 1


def _erase(step: Step, pool: CodePool) -> None:
    prefix = part_prefix(pool.name)
    assert prefix.startswith(POOL_PART)
    for key, _ in step.scan(prefix, end_of(prefix)):
        step.delete(key)
    step.delete(named(POOL, pool.name))
    step.changed(PoolChanged(pool.name, None))
