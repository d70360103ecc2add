"""When a schedule is due next: cron expressions in a named time zone, and plain intervals.

Invariants:
- The next time is always later than the given one.
- An hour that is skipped when clocks go forward fires once, right after; one that comes twice
  fires once, the first time. Expressions with a star for minutes or hours fire in every such hour.
- One firing makes up for all times that were missed.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from broker.errors import InvalidTask

MISSED_MAX: Final = 50
"""At most this many missed times are counted, which takes the leader a few milliseconds."""


def check_cron(expression: str, zone: str) -> None:
    """Raise `InvalidTask` unless both are valid and the schedule is due at some time."""
    if next_cron_ms(expression, zone, 0) is None:
        raise InvalidTask(f"the schedule {expression!r} is never due")


def check_zone(zone: str) -> None:
    """Raise `InvalidTask` for an unknown time zone."""
    _zone(zone)


def next_cron_ms(expression: str, zone: str, after_ms: int) -> int | None:
    """The first due time after another time, in ms; None if there is none. Raises `InvalidTask`."""
    return next(_moments(expression, zone, after_ms), None)


def _moments(expression: str, zone: str, after_ms: int) -> Iterator[int]:
    """The due times after another time, in milliseconds. Raises `InvalidTask`."""
    after = datetime.fromtimestamp(after_ms / 1000, UTC)
    try:
        # In the hour that comes twice, the first time found may be in the past.
        for moment in CronSim(expression, after.astimezone(_zone(zone))):
            at_ms = int(moment.timestamp() * 1000)
            if at_ms > after_ms:
                yield at_ms
    except (CronSimError, ValueError, OverflowError) as error:
        raise InvalidTask(f"invalid cron expression {expression!r}: {error}") from error


def next_interval_ms(interval_ms: int, start_ms: int, after_ms: int) -> int:
    """The first time after `after_ms` that is a whole number of intervals after the start."""
    assert interval_ms > 0
    if after_ms < start_ms:
        return start_ms
    return start_ms + ((after_ms - start_ms) // interval_ms + 1) * interval_ms


def missed(expression: str, zone: str, interval_ms: int, due_ms: int, now_ms: int) -> int:
    """How many due times after `due_ms` have passed; for a cron expression, at most 50."""
    if interval_ms:
        return max(0, (now_ms - due_ms) // interval_ms)
    count = 0
    for at_ms in _moments(expression, zone, due_ms):
        if at_ms > now_ms or count == MISSED_MAX:
            break
        count += 1
    return count


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidTask(f"there is no time zone {name!r}, such as Europe/Rome") from error
