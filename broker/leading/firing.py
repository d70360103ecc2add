"""Schedules: when each is due next, and the command that fires it.

Invariants:
- A due time is fired by its name and that time; the state machine takes it once, whoever sends it.
- What was due while nobody led is made up for by one task, or by none if the schedule says so.
- In one turn of the loop only so many are fired: what each has missed is reckoned there.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from broker.commands import Fire, Schedule
from broker.errors import BrokerError, InvalidTask
from broker.leading.cron import missed, next_cron_ms, next_interval_ms
from broker.leading.proposing import Proposing
from broker.leading.timers import Kind, Timers

MISSED_AFTER_MS: Final = 60_000
"""Later than that a due time was missed, and not just heard of late."""
NEVER_MS: Final = 2**59
FIRED_A_TURN: Final = 4


def next_due_ms(schedule: Schedule, after_ms: int) -> int:
    """When a schedule is due after a moment. Raises `InvalidTask`."""
    if schedule.interval_ms:
        start_ms = schedule.next_due_ms or after_ms + schedule.interval_ms
        return next_interval_ms(schedule.interval_ms, start_ms, after_ms)
    found_ms = next_cron_ms(schedule.cron, schedule.zone, after_ms)
    return NEVER_MS if found_ms is None else found_ms


class Firing:
    """The schedules of one term."""

    def __init__(self, proposing: Proposing, timers: Timers) -> None:
        self.schedules: dict[str, Schedule] = {}
        self._proposing = proposing
        self._timers = timers
        self._loop = asyncio.get_running_loop()

    def changed(self, name: str, schedule: Schedule | None) -> None:
        """A schedule is as the log has it now; None: it has gone."""
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
        """The time of these has come."""
        for name in names[:FIRED_A_TURN]:
            self.fire(name)
        if len(names) > FIRED_A_TURN:
            self._loop.call_soon(self.fire_all, names[FIRED_A_TURN:])

    def fire(self, name: str) -> None:
        """A schedule's time has come."""
        schedule = self.schedules.get(name)
        if schedule is None or schedule.paused:
            return
        now_ms, due_ms = self._proposing.time.now_ms(), schedule.next_due_ms
        try:
            following_ms = next_due_ms(schedule, now_ms)
            skipped = missed(schedule.cron, schedule.zone, schedule.interval_ms, due_ms, now_ms)
        except InvalidTask:
            # Its time zone is not known on this machine any more: it must not stop the others.
            following_ms, skipped = NEVER_MS, 0
        if not schedule.catch_up and now_ms - due_ms > MISSED_AFTER_MS:
            fire = Fire(name, due_ms, following_ms, now_ms, skipped + 1, skip=True)
        else:
            fire = Fire(name, due_ms, following_ms, now_ms, skipped)
        self._proposing.send(fire, _unheard)


def _unheard(told: bytes | BrokerError) -> None:
    """What came of it is told by changes."""
