"""When a schedule is due next: cron expressions in a named time zone, and plain intervals.

Invariants:
- A moment is always later than the one that was asked about.
- An hour that is skipped when clocks go forward fires once, right after; one that comes twice
  fires once, the first time. Expressions with a star for minutes or hours follow the clock's hands.
- Moments that passed unnoticed are made up for by one.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from broker.errors import InvalidTask

MISSED_MAX: Final = 50
"""So many missed moments are counted, which takes a few milliseconds of the leader's loop."""


def check_cron(expression: str, zone: str) -> None:
    """Raise `InvalidTask` unless both can be understood and some moment is to come."""
    if next_cron_ms(expression, zone, 0) is None:
        raise InvalidTask(f"the schedule {expression!r} is never due")


def check_zone(zone: str) -> None:
    """Raise `InvalidTask` for a time zone that there is not."""
    _zone(zone)


def next_cron_ms(expression: str, zone: str, after_ms: int) -> int | None:
    """The first moment after one, in milliseconds; None if there is none. Raises `InvalidTask`."""
    return next(_moments(expression, zone, after_ms), None)


def _moments(expression: str, zone: str, after_ms: int) -> Iterator[int]:
    """The moments after one, in milliseconds. Raises `InvalidTask`."""
    after = datetime.fromtimestamp(after_ms / 1000, UTC)
    try:
        # In the hour that comes twice the first one found may be one that has passed.
        for moment in CronSim(expression, after.astimezone(_zone(zone))):
            at_ms = int(moment.timestamp() * 1000)
            if at_ms > after_ms:
                yield at_ms
    except (CronSimError, ValueError, OverflowError) as error:
        raise InvalidTask(f"{expression!r} is no cron expression: {error}") from error


def next_interval_ms(interval_ms: int, start_ms: int, after_ms: int) -> int:
    """The first multiple of an interval, counted from its start, after a moment."""
    assert interval_ms > 0
    if after_ms < start_ms:
        return start_ms
    return start_ms + ((after_ms - start_ms) // interval_ms + 1) * interval_ms


def missed(expression: str, zone: str, interval_ms: int, due_ms: int, now_ms: int) -> int:
    """How many moments after `due_ms` are over by now; of an expression, 50 stands for more."""
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
