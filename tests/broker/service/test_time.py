"""The broker's time, its timers and its leases, by a clock that the test sets."""

from collections.abc import Callable

import pytest

from broker.leading.clock import DOUBT_MS, BrokerTime, Start, judge, suspicious
from broker.leading.leases import Leases
from broker.leading.timers import Key, Kind, Timers
from broker.task import ClockFacts
from tests.broker.service.clocks import HandClock


def test_the_brokers_time_goes_on_from_the_last_that_was_logged() -> None:
    clock = HandClock(wall_ms=5_000)
    behind = BrokerTime(clock, 9_000)
    ahead = BrokerTime(clock, 1_000)
    assert (behind.now_ms(), ahead.now_ms()) == (9_000, 5_000)
    clock.pass_s(1.5)
    assert (behind.now_ms(), ahead.now_ms()) == (10_500, 6_500)


def test_a_wall_clock_that_is_set_moves_nothing_and_is_told_once() -> None:
    clock = HandClock(wall_ms=5_000_000)
    time = BrokerTime(clock, 0)
    clock.wall -= 3_600_000
    assert time.now_ms() == 5_000_000
    assert time.jump_ms() == -3_600_000
    assert time.jump_ms() == 0
    clock.wall += 59_000
    assert time.jump_ms() == 0
    clock.wall += 3_541_000
    assert time.jump_ms() == 3_600_000
    assert time.jumps == 2


def test_a_log_that_is_far_ahead_of_the_new_leaders_clock_is_told() -> None:
    clock = HandClock(wall_ms=5_000_000)
    assert BrokerTime(clock, 5_059_000).jump_ms() == 0
    time = BrokerTime(clock, 15_800_000)
    assert (time.jump_ms(), time.jump_ms()) == (-10_800_000, 0)


HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 20_000 * DAY_MS
NOTHING = ClockFacts()
JUMPED = ClockFacts(jumped_from_ms=NOW_MS - 5_000)


@pytest.mark.parametrize(
    ("logged_ms", "facts", "server_ms", "start"),
    [
        # A log without a time, a short way on, a little back: nobody else is needed.
        (0, NOTHING, None, Start(NOW_MS)),
        (NOW_MS - 599_000, NOTHING, None, Start(NOW_MS)),
        (NOW_MS + 59_000, NOTHING, None, Start(NOW_MS + 59_000)),
        # Far forward by one clock alone, and by two.
        (NOW_MS - DAY_MS, NOTHING, None, Start(NOW_MS, doubtful=True)),
        (NOW_MS - DAY_MS, NOTHING, NOW_MS - 9_000, Start(NOW_MS, confirmed=True)),
        # The server and the log agree that this clock is ahead, or behind.
        (NOW_MS - DAY_MS, NOTHING, NOW_MS - DAY_MS + 5, Start(NOW_MS - DAY_MS + 5)),
        (NOW_MS + DAY_MS, NOTHING, NOW_MS + DAY_MS - 5, Start(NOW_MS + DAY_MS, confirmed=True)),
        (
            NOW_MS + HOUR_MS,
            NOTHING,
            NOW_MS + DAY_MS,
            Start(NOW_MS + DAY_MS, doubtful=True, confirmed=True),
        ),
        # The log is ahead: of this clock, of a server too, after a jump that nobody confirmed.
        (NOW_MS + DAY_MS, NOTHING, None, Start(NOW_MS + DAY_MS)),
        (NOW_MS + DAY_MS, NOTHING, NOW_MS, Start(NOW_MS, back=True, confirmed=True)),
        (NOW_MS + DAY_MS, JUMPED, None, Start(NOW_MS, back=True)),
        (NOW_MS + DAY_MS, ClockFacts(NOW_MS + 61_000), None, Start(NOW_MS + DAY_MS)),
        # A clock that was reset to the beginning of time is never followed.
        (NOW_MS + 401 * DAY_MS, ClockFacts(1), None, Start(NOW_MS + 401 * DAY_MS)),
        # An earlier jump that nobody has confirmed yet.
        (NOW_MS - 5, JUMPED, None, Start(NOW_MS, doubtful=True)),
        (NOW_MS + 5, JUMPED, None, Start(NOW_MS + 5, doubtful=True)),
        (NOW_MS - 5, JUMPED, NOW_MS, Start(NOW_MS, confirmed=True)),
        # Two clocks are ahead and differ: the nearer one counts, and is not confirmed.
        (NOW_MS - 2 * DAY_MS, NOTHING, NOW_MS - DAY_MS, Start(NOW_MS - DAY_MS, doubtful=True)),
    ],
)
def test_a_term_begins_where_most_clocks_agree(
    logged_ms: int, facts: ClockFacts, server_ms: int | None, start: Start
) -> None:
    assert judge(facts, logged_ms, NOW_MS, server_ms) == start


def test_a_clock_that_has_settled_is_followed_forward_and_back() -> None:
    assert judge(NOTHING, NOW_MS - DAY_MS, NOW_MS, None, True) == Start(NOW_MS, confirmed=True)
    back = Start(NOW_MS, back=True, confirmed=True)
    assert judge(NOTHING, NOW_MS + DAY_MS, NOW_MS, None, True) == back
    # Not against the server and the log.
    assert judge(NOTHING, NOW_MS + DAY_MS, NOW_MS, NOW_MS + DAY_MS, True).at_ms == NOW_MS + DAY_MS


def test_another_clock_is_asked_only_where_the_log_is_far_away() -> None:
    assert not suspicious(NOTHING, 0, NOW_MS)
    assert not suspicious(NOTHING, NOW_MS - 60_000, NOW_MS)
    assert not suspicious(NOTHING, NOW_MS + 60_000, NOW_MS)
    assert suspicious(NOTHING, NOW_MS - 60_001, NOW_MS)
    assert suspicious(NOTHING, NOW_MS + 60_001, NOW_MS)
    assert suspicious(JUMPED, NOW_MS, NOW_MS)


def test_only_deadlines_within_a_doubtful_jump_wait_for_a_minute() -> None:
    clock = HandClock(wall_ms=NOW_MS)
    time = BrokerTime(clock, NOW_MS - DAY_MS, Start(NOW_MS, doubtful=True))
    over_ms = NOW_MS + DOUBT_MS
    assert time.ring_ms(NOW_MS - DAY_MS) == NOW_MS - DAY_MS, "it was due before the jump"
    assert time.ring_ms(NOW_MS - DAY_MS + 1) == time.ring_ms(NOW_MS) == over_ms
    assert time.ring_ms(NOW_MS + 1) == NOW_MS + 1
    assert time.doubtful
    clock.pass_s(DOUBT_MS / 1_000)
    assert not time.doubtful


def test_a_leader_whose_clock_is_behind_acts_when_both_say_so_or_after_ten_minutes() -> None:
    clock = HandClock(wall_ms=NOW_MS)
    time = BrokerTime(clock, NOW_MS + 120_000, Start(NOW_MS + 120_000))
    assert time.ring_ms(NOW_MS) == NOW_MS
    assert time.ring_ms(NOW_MS + 1) == NOW_MS + 120_001
    assert time.ring_ms(NOW_MS + 150_000) == NOW_MS + 270_000, "30 s from now, by this clock 150 s"
    far = BrokerTime(clock, NOW_MS + DAY_MS, Start(NOW_MS + DAY_MS))
    over_ms = NOW_MS + DAY_MS + 660_000
    assert far.ring_ms(NOW_MS + 5) == NOW_MS + DAY_MS + 5
    assert far.ring_ms(NOW_MS + DAY_MS // 2) == far.ring_ms(NOW_MS + DAY_MS + 5) == over_ms
    assert far.ring_ms(over_ms + 5) == over_ms + 5
    sure = BrokerTime(clock, NOW_MS + DAY_MS, Start(NOW_MS + DAY_MS, confirmed=True))
    assert sure.ring_ms(NOW_MS + 5) == NOW_MS + 5 and not sure.doubtful


def test_a_wait_that_began_in_this_term_is_measured_by_it_whatever_the_wall_clock_shows() -> None:
    clock = HandClock(wall_ms=NOW_MS)
    began_ms = NOW_MS + 3_600_000
    time = BrokerTime(clock, began_ms, Start(began_ms))
    assert time.ring_ms(began_ms + 50, since_ms=began_ms) == began_ms + 50
    assert time.ring_ms(began_ms + 50, since_ms=began_ms - 1) == began_ms + DOUBT_MS + 600_000
    assert time.ring_ms(began_ms + 50) == began_ms + DOUBT_MS + 600_000, "it is a date"


def test_a_clock_has_settled_after_ten_minutes_in_which_it_did_not_move() -> None:
    clock = HandClock(wall_ms=NOW_MS)
    time = BrokerTime(clock, NOW_MS - 5, Start(NOW_MS))

    def settles_in_s() -> int:
        for second in range(0, 2_000, 10):
            if time.settled_away():
                return second
            clock.pass_s(10.0)
        return -1

    assert settles_in_s() == -1 and time.settled_here()
    clock.wall += DAY_MS
    assert not time.settled_here()
    assert settles_in_s() == 600
    for _ in range(5):
        clock.wall += 61_000
        assert not time.settled_away()
        clock.pass_s(300.0)
    assert settles_in_s() == 300
    clock.wall -= DAY_MS + 5 * 61_000
    assert settles_in_s() == -1


class _Loop:
    """Calls to come, made when the test says so."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.calls: list[_Call] = []

    def later(self, seconds: float, call: Callable[[], None]) -> "_Call":
        self.calls.append(_Call(self.clock.seconds + seconds, call))
        return self.calls[-1]

    def run(self) -> None:
        """Make the calls whose time has come, in order."""
        while due := [call for call in self.calls if call.at_s <= self.clock.seconds]:
            self.calls.remove(due[0])
            if not due[0].cancelled:
                due[0].call()


class _Call:
    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s, self.call, self.cancelled = at_s, call, False

    def cancel(self) -> None:
        self.cancelled = True


class _Timed:
    """Timers, and what they rang."""

    def __init__(self) -> None:
        self.clock = HandClock(wall_ms=0)
        self.loop = _Loop(self.clock)
        self.rung: list[tuple[Kind, list[Key]]] = []
        self.timers = Timers(
            BrokerTime(self.clock, 0), self.loop.later, lambda kind, keys: self._hear(kind, keys)
        )

    def _hear(self, kind: Kind, keys: list[Key]) -> None:
        self.rung.append((kind, keys))

    def until_ms(self, at_ms: int) -> list[tuple[Kind, list[Key]]]:
        """What rings up to a moment."""
        self.rung = []
        self.clock.pass_s(at_ms / 1000 - self.clock.wall / 1000)
        self.loop.run()
        return self.rung


def test_what_is_due_together_rings_together() -> None:
    timed = _Timed()
    for key in (3, 1, 2):
        timed.timers.set(Kind.DUE, key, 100 * key)
    timed.timers.set(Kind.DEADLINE, 1, 250)
    timed.timers.start()
    assert timed.until_ms(99) == []
    assert timed.until_ms(250) == [(Kind.DUE, [1, 2]), (Kind.DEADLINE, [1])]
    assert timed.until_ms(1_000) == [(Kind.DUE, [3])]
    assert len(timed.timers) == 0


def test_a_moment_that_was_moved_or_removed_does_not_ring() -> None:
    timed = _Timed()
    timed.timers.start()
    timed.timers.set(Kind.DUE, 1, 100)
    timed.timers.set(Kind.DUE, 1, 300)
    timed.timers.set(Kind.DUE, 2, 100)
    timed.timers.remove(Kind.DUE, 2)
    timed.timers.remove(Kind.DUE, 2)
    assert timed.until_ms(200) == []
    timed.timers.set(Kind.DUE, 1, 250)
    assert timed.until_ms(260) == [(Kind.DUE, [1])]
    assert timed.until_ms(400) == []


def test_deadlines_of_tasks_that_end_soon_take_no_memory_until_then() -> None:
    timed = _Timed()
    timed.timers.start()
    for key in range(10_000):
        timed.timers.set(Kind.DEADLINE, key, 3_600_000 + key)
        timed.timers.remove(Kind.DEADLINE, key)
    assert len(timed.timers) == 0
    assert len(timed.timers._heap) <= 1_001


def test_many_that_are_due_ring_in_bounded_portions_and_none_after_the_end() -> None:
    timed = _Timed()
    timed.timers.start()
    for key in range(2_500):
        timed.timers.set(Kind.DUE, key, 10)
    assert [len(keys) for _, keys in timed.until_ms(10)] == [1_000, 1_000, 500]
    timed.timers.set(Kind.DUE, 1, 20)
    timed.timers.stop()
    assert timed.until_ms(30) == []


def test_a_worker_that_is_heard_of_keeps_its_lease() -> None:
    clock = HandClock()
    leases = Leases(clock, 1_000)
    leases.grant("one")
    leases.grant("two")
    for _ in range(7):
        clock.pass_s(0.125)
        assert leases.expired() == []
    leases.grant("two")
    clock.pass_s(0.125)
    assert leases.expired() == ["one"]
    assert leases.expired() == []
    leases.end("two")
    clock.pass_s(0.125)
    assert leases.expired() == []


def test_a_look_that_comes_late_blames_no_worker() -> None:
    clock = HandClock()
    leases = Leases(clock, 1_000)
    leases.grant("one")
    clock.pass_s(5.0)
    assert leases.expired() == []
    for _ in range(10):
        clock.pass_s(0.125)
        if leases.expired() == ["one"]:
            break
    else:
        raise AssertionError("a worker that is silent for ever is lost in the end")
