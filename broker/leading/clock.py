"""The broker's time: the timestamp of every command of a term.

`judge` decides at which time a term begins. From there, time advances with the monotonic clock. If
the wall clock is set while a leader leads, this has no effect at once.

Order and time are different things. Commands happen in the order of the log. Their time is for
people and for delays, deadlines, schedules and retention. It never decreases from command to
command, so `apply` can rely on it. Only a dedicated command (`SetTime`) sets it back.

Why not simply the leader's wall clock? One leader whose clock is a day ahead would end tasks by
their deadlines and remove results, and all later leaders would go on from its time. So:

- A leader that finds the log's time far away from its clock asks the server of the metadata store
  for its time, if it has a clock. If the two clocks differ, the log decides: a clock that is far
  behind the log is wrong, and if both are ahead, the nearer one counts.
- A leader that jumps far ahead by its own clock alone logs the jump. For a minute it does not act
  on times that the jump has passed: no deadline ends a task, no delayed task begins, no schedule
  fires, nothing is purged.
- A later leader whose clock is behind the log, but not behind the time before such a jump, sets the
  time back at once. So does one whose clock the server confirms.
- Otherwise, a clock that differs from the time by the same amount for ten minutes is followed.
  Until then, time advances without it, and a warning is logged.

Invariants:
- Within a term the time never goes back.
- A wall clock that runs away is reported.
"""

from typing import Final, NamedTuple

from broker.task import ClockFacts
from engine.ports.clock import Clock

JUMP_ALARM_MS: Final = 60_000
"""Clocks that are no further apart agree."""
PASSED_OVER_MS: Final = 600_000
"""A jump by more than this is suspected, unless another clock confirms it."""
DOUBT_MS: Final = 60_000
"""For this long after a suspected jump, the leader does not act on times that it has passed."""
SETTLED_S: Final = 600.0
"""A wall clock that differs from the time by the same amount for this long is followed."""
BACK_MAX_MS: Final = 400 * 86_400_000
"""A clock that is behind by more than this was reset, and is never followed."""


class Start(NamedTuple):
    """Where the time of a term begins."""

    at_ms: int
    back: bool = False
    """The time is set back: log this first."""
    doubtful: bool = False
    """It jumps far ahead without confirmation, or did so in a recent term."""
    confirmed: bool = False
    """Another clock, or the log, agrees. The leader's own clock may differ."""


def judge(
    facts: ClockFacts, logged_ms: int, wall_ms: int, server_ms: int | None, settled: bool = False
) -> Start:
    """When a term begins, by the log, the leader's clock and the server's clock, if any.

    `settled`: the wall clock has differed by the same amount for ten minutes.

    >>> judge(ClockFacts(), 1_000, 5_000, None)
    Start(at_ms=5000, back=False, doubtful=False, confirmed=False)
    """
    if not logged_ms:
        return Start(wall_ms if server_ms is None else min(wall_ms, server_ms))
    present_ms, agreed, refuted = wall_ms, settled, False
    if server_ms is not None:
        agreed = abs(wall_ms - server_ms) <= JUMP_ALARM_MS
        if not agreed:
            # A clock that is far behind the log is wrong.
            clocks = wall_ms, server_ms
            later = [each for each in clocks if each >= logged_ms - PASSED_OVER_MS]
            present_ms = min(later) if later else max(clocks)
            refuted = len(later) == 1
    confirmed = agreed or refuted
    if present_ms >= logged_ms - JUMP_ALARM_MS:
        jumped = facts.jumped_from_ms > 0 or present_ms - logged_ms > PASSED_OVER_MS
        at_ms = max(present_ms, logged_ms)
        return Start(at_ms, doubtful=jumped and not agreed, confirmed=confirmed)
    behind_ms = logged_ms - present_ms
    sure = agreed or 0 < facts.jumped_from_ms <= present_ms + JUMP_ALARM_MS
    back = behind_ms <= BACK_MAX_MS and sure
    return Start(present_ms if back else logged_ms, back=back, confirmed=confirmed)


def suspicious(facts: ClockFacts, logged_ms: int, wall_ms: int) -> bool:
    """Whether another clock should be asked."""
    away = abs(wall_ms - logged_ms) > JUMP_ALARM_MS
    return bool(logged_ms) and (away or facts.jumped_from_ms > 0)


class BrokerTime:
    """One term's time, in milliseconds since 1970-01-01 UTC."""

    def __init__(self, clock: Clock, last_logged_ms: int, start: Start | None = None) -> None:
        """`last_logged_ms`: times up to then have passed, even if the start is doubtful."""
        self._clock = clock
        self._start_s = clock.monotonic()
        wall_ms = clock.wall_ms()
        if start is None:
            start = Start(max(last_logged_ms, wall_ms))
        self._start_ms = start.at_ms
        self._sure_ms = start.at_ms
        """By every clock, this time has passed."""
        self._behind_ms = 0
        """By how much the wall clock is behind this time."""
        self._doubt_ms = 0
        """Until then, some times are in doubt; 0: none is."""
        behind_ms = start.at_ms - wall_ms
        if start.doubtful:
            self._sure_ms, self._doubt_ms = last_logged_ms, start.at_ms + DOUBT_MS
        elif JUMP_ALARM_MS < behind_ms <= BACK_MAX_MS and not start.confirmed:
            self._sure_ms, self._behind_ms = wall_ms, behind_ms
            self._doubt_ms = start.at_ms + int(SETTLED_S * 1000) + DOUBT_MS
        # If the logged time is far ahead of this clock, the first check warns.
        self._jump_told_ms = 0
        self._away: tuple[int, float] | None = None
        self.jumps = 0
        """How often the wall clock was found to have jumped."""

    def now_ms(self) -> int:
        """The time now."""
        return self._start_ms + int((self._clock.monotonic() - self._start_s) * 1000)

    @property
    def doubtful(self) -> bool:
        """Whether the time may be wrong: then nothing is removed because of its age."""
        return bool(self._doubt_ms) and self.now_ms() < self._doubt_ms

    def ring_ms(self, at_ms: int, since_ms: int = 0) -> int:
        """When to act on a time: when it has passed by every clock, or the doubt is over.

        `since_ms`: when the wait for it began; 0: the time is a date. A wait that began in this
        term is measured by the monotonic clock, so it is not in doubt.
        """
        if not self._doubt_ms or at_ms <= self._sure_ms or since_ms >= self._start_ms:
            return at_ms
        if self._behind_ms:
            return max(at_ms, min(at_ms + self._behind_ms, self._doubt_ms))
        return self._doubt_ms if at_ms <= self._start_ms else at_ms

    def jump_ms(self) -> int:
        """How far the wall clock has jumped, relative to this time, since the last call.

        0 if by at most a minute. Positive: the wall clock was set forward.
        """
        ahead_ms = self.now_ms() - self._clock.wall_ms()
        jump_ms = self._jump_told_ms - ahead_ms
        if abs(jump_ms) <= JUMP_ALARM_MS:
            return 0
        self._jump_told_ms = ahead_ms
        self.jumps += 1
        return jump_ms

    def settled_away(self) -> bool:
        """Whether the wall clock has differed by the same amount for ten minutes.

        Returns True once every ten minutes. To be called regularly.
        """
        ahead_ms, now_s = self._clock.wall_ms() - self.now_ms(), self._clock.monotonic()
        if abs(ahead_ms) <= JUMP_ALARM_MS:
            self._away = None
        elif self._away is None or abs(ahead_ms - self._away[0]) > JUMP_ALARM_MS:
            self._away = ahead_ms, now_s
        elif now_s - self._away[1] >= SETTLED_S:
            self._away = None
            return True
        return False

    def settled_here(self) -> bool:
        """Whether the wall clock agrees with this time, ten minutes after the term began."""
        lasts_s = self._clock.monotonic() - self._start_s
        agrees = abs(self._clock.wall_ms() - self.now_ms()) <= JUMP_ALARM_MS
        return agrees and lasts_s >= SETTLED_S
