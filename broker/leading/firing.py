"""Schedules: when each is due next, and the command that fires it.

Invariants:
- A firing names the schedule and its due time. The state machine accepts it once.
- If times were due while there was no leader, one task makes up for all of them, or none if the
  schedule says so.
- A schedule that this process does not understand (a time zone that the machine does not have, an
  expression of a newer version) stays due. A leader that understands it fires it.
- A schedule adds no task while new data finds no room. It stays due, and fires as after any other
  missed times once there is room.
- In one turn of the event loop only a few fire: the missed times of each are counted there.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from broker.commands import LEVEL, CorrectDue, Fire, Schedule
from broker.errors import BrokerError, InvalidTask
from broker.leading.cron import missed, next_cron_ms, next_interval_ms
from broker.leading.events import Events
from broker.leading.proposing import Proposing
from broker.leading.timers import Kind, Timers

MISSED_AFTER_MS: Final = 60_000
"""A firing that is later than this was missed, and not just delayed."""
NEVER_MS: Final = 2**59
"""Next due time of a schedule that is never due again."""
FIRED_A_TURN: Final = 4
TROUBLE_MS: Final = 60_000
"""How often a schedule is tried again that failed: its time zone may be installed by now."""
ROOM_MS: Final = 1_000
"""How often one that waits for room on a disk is tried again."""
_logger = logging.getLogger(__name__)


def next_due_ms(schedule: Schedule, after_ms: int) -> int:
    """When a schedule is due after a moment. Raises `InvalidTask`."""
    if schedule.interval_ms:
        start_ms = schedule.next_due_ms or after_ms + schedule.interval_ms
        return next_interval_ms(schedule.interval_ms, start_ms, after_ms)
    found_ms = next_cron_ms(schedule.cron, schedule.zone, after_ms)
    return NEVER_MS if found_ms is None else found_ms


class Firing:
    """The schedules of one term."""

    def __init__(
        self, proposing: Proposing, timers: Timers, events: Events, lack: Callable[[], str]
    ) -> None:
        """`lack` says why new data finds no room; "" if it does."""
        self.schedules: dict[str, Schedule] = {}
        self.troubles: dict[str, str] = {}
        """Schedules that are due and that cannot fire here now, and why."""
        self._proposing = proposing
        self._events = events
        self._timers = timers
        self._lack = lack
        self._loop = asyncio.get_running_loop()

    def changed(self, name: str, schedule: Schedule | None) -> None:
        """A schedule was changed or fired; None: it was removed."""
        self.troubles.pop(name, None)
        if schedule is None:
            self.schedules.pop(name, None)
            self._timers.remove(Kind.SCHEDULE, name)
            return
        self.schedules[name] = schedule
        if schedule.paused:
            self._timers.remove(Kind.SCHEDULE, name)
        else:
            self._timers.set(Kind.SCHEDULE, name, schedule.next_due_ms)

    def fire_all(self, names: Sequence[str]) -> None:
        """Fire the schedules that are due."""
        for name in names[:FIRED_A_TURN]:
            self.fire(name)
        if len(names) > FIRED_A_TURN:
            self._loop.call_soon(self.fire_all, names[FIRED_A_TURN:])

    def fire(self, name: str) -> None:
        """Fire one schedule that is due."""
        schedule = self.schedules.get(name)
        if schedule is None or schedule.paused:
            return
        if lack := self._lack():
            self._wait_for_room(name, lack)
            return
        now_ms, due_ms = self._proposing.time.now_ms(), schedule.next_due_ms
        try:
            following_ms = next_due_ms(schedule, now_ms)
            skipped = missed(schedule.cron, schedule.zone, schedule.interval_ms, due_ms, now_ms)
        except InvalidTask as error:
            self._set_aside(name, error.message)
            return
        self.troubles.pop(name, None)
        keep_code = self._proposing.level >= LEVEL
        if not schedule.catch_up and now_ms - due_ms > MISSED_AFTER_MS:
            fire = Fire(name, due_ms, following_ms, now_ms, skipped + 1, skip=True)
        else:
            fire = Fire(name, due_ms, following_ms, now_ms, skipped, keep_code=keep_code)
        self._proposing.send(fire, _unheard)

    def _set_aside(self, name: str, why: str) -> None:
        """Leave a schedule due, log a warning once, and try it again later."""
        if self.troubles.get(name) != why:
            self.troubles[name] = why
            self._events.tell("schedule_not_understood", name=name, why=why)
            _logger.warning(
                "schedule %s is due and cannot fire here: %s; it stays due: install the missing "
                "time zones (tzdata), or let another replica lead",
                name,
                why,
            )
        self._timers.set(Kind.SCHEDULE, name, self._proposing.time.now_ms() + TROUBLE_MS)

    def _wait_for_room(self, name: str, lack: str) -> None:
        """Leave a schedule due, and try it again soon."""
        if name not in self.troubles:
            self._events.tell("schedule_without_room", name=name, why=lack)
        self.troubles[name] = lack
        self._timers.set(Kind.SCHEDULE, name, self._proposing.time.now_ms() + ROOM_MS)

    def correct_due_times(self, ahead_ms: int = 0) -> None:
        """Correct due times that are too late, if all replicas support the command for it.

        An older version ended a schedule that it could not evaluate. A leader whose clock was ahead
        computed due times from its clock: `ahead_ms` is the newest time that was logged before the
        time was set back, 0 if the broker's time has passed it.
        """
        if self._proposing.level < LEVEL:
            return
        now_ms = self._proposing.time.now_ms()
        for name, schedule in self.schedules.items():
            due_ms = schedule.next_due_ms
            # A schedule that has never fired may have been configured to begin late.
            late = due_ms >= NEVER_MS or (now_ms < ahead_ms and schedule.last_due_ms)
            if not late or schedule.paused or not (schedule.cron or schedule.interval_ms):
                continue
            try:
                expected_ms = _expected_ms(schedule, now_ms)
            except InvalidTask:
                continue
            if expected_ms < due_ms:
                self._proposing.send(CorrectDue(name, due_ms, expected_ms, now_ms), _unheard)


def _expected_ms(schedule: Schedule, now_ms: int) -> int:
    """When a schedule should be due next, by the last time that it was. Raises `InvalidTask`.

    A time that has fired does not fire again, even if it fired too early.
    """
    due_ms, last_ms = schedule.next_due_ms, schedule.last_due_ms
    if due_ms >= NEVER_MS:
        return next_due_ms(schedule, last_ms or schedule.changed_ms)
    after_ms = max(now_ms, last_ms)
    if schedule.interval_ms:
        early = max(0, (due_ms - after_ms - 1) // schedule.interval_ms)
        return due_ms - early * schedule.interval_ms
    return next_due_ms(schedule, after_ms)


def _unheard(told: bytes | BrokerError) -> None:
    """Ignore the answer: the listener hears of the changes."""
