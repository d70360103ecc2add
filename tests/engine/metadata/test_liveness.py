"""The leases of processes, in virtual time: no lease holds once its record was ended."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.errors import CannotRead, FormatTooNew, MetadataUnavailable
from engine.metadata.contract import Versioned
from engine.metadata.liveness import (
    PROCESSES,
    Incarnation,
    Liveness,
    Other,
    decode_record,
    key_of,
)
from engine.metadata.memory import MemoryStore, MemoryTree
from tests.simulation.virtual import elapse, virtually

LEASE_MS = 1_000
DRIFT = 0.1


class _Clock:
    """The loop's time, running at another speed."""

    def __init__(self, speed: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._speed = speed
        self.ahead_s = 0.0
        """By how much the wall clock was set ahead of the monotonic one."""

    def monotonic(self) -> float:
        return self._loop.time() * self._speed

    def wall_ms(self) -> int:
        return int((self.monotonic() + self.ahead_s) * 1000)


class _Store(MemoryStore):
    """A session whose calls fail, hang, or lose their answers, as the test says."""

    away = False
    lose_answers = False
    late_s = 0.0
    hold: "asyncio.Event | None" = None
    hold_answers: "asyncio.Event | None" = None
    """Of reads: what they have found is told later."""
    calls = 0

    async def get(self, key: str) -> Versioned | None:
        self.calls += 1
        self._check()
        found = await super().get(key)
        if self.hold_answers is not None:
            await self.hold_answers.wait()
        return found

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        return await self._write(super().create(key, value, ephemeral=ephemeral))

    async def set(self, key: str, value: bytes, version: int) -> int:
        if self.hold is not None:
            await self.hold.wait()
        return await self._write(super().set(key, value, version))

    async def _write(self, call: Coroutine[Any, Any, int]) -> int:
        self.calls += 1
        if self.away:
            call.close()
            self._check()
        version = await call
        await elapse(self.late_s)
        if self.lose_answers:
            raise MetadataUnavailable("the answer was lost")
        return version

    def _check(self) -> None:
        if self.away:
            raise MetadataUnavailable("away")


class _Process:
    """A process with a lease."""

    def __init__(
        self, tree: MemoryTree, seed: int, speed: float = 1.0, *, lease_ms: int = LEASE_MS
    ) -> None:
        self.tree = tree
        self.store = _Store(tree, seed)
        self.clock = _Clock(speed)
        self.liveness = Liveness(
            store=self.store,
            clock=self.clock,
            rng=random.Random(seed),
            lease_ms=lease_ms,
            clock_drift=DRIFT,
        )
        self.incarnation: Incarnation
        self.over_s: dict[str, float] = {}

    async def begin(self) -> "_Process":
        """Get a lease."""
        self.incarnation = await self.liveness.incarnation()
        return self

    def watch(self, other: "_Process") -> Other:
        """Watch another one's incarnation."""
        name = other.incarnation.process_id
        loop = asyncio.get_running_loop()
        return self.liveness.watch(
            name, other.liveness.lease_ms, lambda: self._note(name, loop.time())
        )

    def _note(self, name: str, now_s: float) -> None:
        self.over_s[name] = now_s

    def stop(self) -> None:
        """Renew no more, as a process that is paused or killed."""
        assert self.liveness._renewing is not None
        self.liveness._renewing.cancel()


Script = Callable[[MemoryTree], Coroutine[Any, Any, None]]


def _virtually(script: Script) -> None:
    virtually(script(MemoryTree("cluster")))


def test_a_process_that_renews_its_lease_keeps_it_and_nobody_ends_it() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = await _Process(tree, 1).begin(), await _Process(tree, 2).begin()
        other = two.watch(one)
        for _ in range(100):
            await elapse(0.3)
            assert one.incarnation.holds() and not other.over
        assert await one.liveness.incarnation() is one.incarnation

    _virtually(script)


@pytest.mark.parametrize("speed", [1.0, 0.91, 1.05])
@pytest.mark.parametrize("apart_s", [0.0, 0.06, 0.12, 0.18])
def test_a_lease_has_ended_by_its_holder_s_clock_before_another_process_ends_it(
    speed: float, apart_s: float
) -> None:
    async def script(tree: MemoryTree) -> None:
        one = await _Process(tree, 1, speed).begin()
        # So long after a renewal the look comes that sees it.
        await elapse(apart_s)
        two = await _Process(tree, 2).begin()
        other = two.watch(one)
        await elapse(3.3)
        one.stop()
        began_s, lapsed_s = asyncio.get_running_loop().time(), 0.0
        while not other.over:
            assert asyncio.get_running_loop().time() - began_s < 2.0
            if one.incarnation.holds():
                lapsed_s = asyncio.get_running_loop().time()
            await elapse(0.01)
        assert two.over_s[one.incarnation.process_id] > lapsed_s
        assert not one.incarnation.holds()

    _virtually(script)


@pytest.mark.parametrize("lease_ms", [LEASE_MS // 4, 4 * LEASE_MS])
def test_the_longer_of_both_leases_is_waited_for(lease_ms: int) -> None:
    async def script(tree: MemoryTree) -> None:
        one = await _Process(tree, 1, lease_ms=lease_ms).begin()
        two = await _Process(tree, 2).begin()
        other = two.watch(one)
        await elapse(5.0)
        one.stop()
        while not other.over:
            assert not other.over
            held = one.incarnation.holds()
            await elapse(0.01)
        assert not held and not one.incarnation.holds()

    _virtually(script)


def test_a_process_whose_record_was_ended_begins_a_new_incarnation() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = await _Process(tree, 1).begin(), await _Process(tree, 2).begin()
        other = two.watch(one)
        one.store.away = True
        await elapse(3.0)
        assert other.over and not one.incarnation.holds()
        assert not one.incarnation.over.is_set(), "it cannot know"
        one.store.away = False
        await elapse(1.0)
        assert one.incarnation.over.is_set() and not one.incarnation.holds()
        again = await one.liveness.incarnation()
        assert again.holds() and again.process_id != one.incarnation.process_id

    _virtually(script)


def test_a_lease_that_ran_out_and_was_ended_by_nobody_goes_on() -> None:
    async def script(tree: MemoryTree) -> None:
        one = await _Process(tree, 1).begin()
        one.store.away = True
        await elapse(5.0)
        assert not one.incarnation.holds()
        one.store.away = False
        await elapse(1.0)
        assert one.incarnation.holds() and not one.incarnation.over.is_set()

    _virtually(script)


def test_a_lease_runs_from_before_its_renewal_was_sent_not_from_the_answer() -> None:
    async def script(tree: MemoryTree) -> None:
        one = await _Process(tree, 1).begin()
        one.store.late_s = 0.45
        # Between two renewals, some time after the answer to the first.
        await elapse(2.0)
        version = one.incarnation._version
        while one.incarnation._version == version:
            await elapse(0.01)
        one.stop()
        left_s = 0.0
        while one.incarnation.holds():
            left_s += 0.01
            await elapse(0.01)
        assert left_s < LEASE_MS / 1000 - 0.4

    _virtually(script)


def test_the_first_lease_runs_from_before_its_record_was_sent() -> None:
    async def script(tree: MemoryTree) -> None:
        one = _Process(tree, 1)
        one.store.late_s = 0.6
        await one.begin()
        one.stop()
        await elapse(LEASE_MS / 1000 - 0.6)
        assert not one.incarnation.holds()

    _virtually(script)


def test_a_process_that_renews_its_lease_in_the_last_moment_keeps_it() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = await _Process(tree, 1).begin(), await _Process(tree, 2).begin()
        other = two.watch(one)
        await elapse(3.0)
        one.stop()
        await elapse(0.8)
        two.store.hold_answers = asyncio.Event()
        await elapse(0.4)
        await one.incarnation.renew()
        # Two has seen no change for a whole lease, and ends the record that it saw.
        two.store.hold_answers.set()
        await elapse(0.1)
        assert one.incarnation.holds() and not other.over
        await one.incarnation.renew()
        assert not one.incarnation.over.is_set()

    _virtually(script)


def test_an_outage_of_the_store_ends_no_process() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = await _Process(tree, 1).begin(), await _Process(tree, 2).begin()
        other = two.watch(one)
        await elapse(2.0)
        one.store.away = two.store.away = True
        await elapse(5.0)
        two.store.away = False
        await elapse(0.7)
        one.store.away = False
        await elapse(2.0)
        assert one.incarnation.holds() and not other.over

    _virtually(script)


def test_a_renewal_that_hangs_in_the_store_prolongs_nothing() -> None:
    async def script(tree: MemoryTree) -> None:
        one = await _Process(tree, 1).begin()
        one.store.hold = asyncio.Event()
        await elapse(1.2)
        assert not one.incarnation.holds()
        one.store.hold.set()
        await elapse(1.0)
        assert one.incarnation.holds()

    _virtually(script)


def test_a_renewal_whose_answer_was_lost_costs_no_incarnation() -> None:
    async def script(tree: MemoryTree) -> None:
        one = await _Process(tree, 1).begin()
        one.store.lose_answers = True
        await elapse(0.3)
        one.store.lose_answers = False
        for _ in range(30):
            await elapse(0.1)
            assert one.incarnation.holds()

    _virtually(script)


def test_a_lease_ends_when_the_wall_clock_is_ahead_of_the_monotonic_clock() -> None:
    async def script(tree: MemoryTree) -> None:
        one = await _Process(tree, 1).begin()
        assert one.incarnation.holds()
        one.clock.ahead_s = 3_600.0
        assert not one.incarnation.holds()
        await elapse(0.5)
        assert one.incarnation.holds(), "the next renewal counts from the new time"

    _virtually(script)


def test_a_process_that_closes_is_over_at_once() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = await _Process(tree, 1).begin(), await _Process(tree, 2).begin()
        other = two.watch(one)
        await elapse(2.0)
        await one.liveness.close()
        assert not one.incarnation.holds()
        await elapse(0.5)
        assert other.over

    _virtually(script)


def test_a_process_that_closes_while_a_renewal_is_under_way_is_over_at_once() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = await _Process(tree, 1).begin(), await _Process(tree, 2).begin()
        other = two.watch(one)
        await elapse(2.0)
        one.store.late_s = 0.2
        calls = one.store.calls
        while one.store.calls == calls:
            await elapse(0.01)
        await one.liveness.close()
        await elapse(0.5)
        assert other.over

    _virtually(script)


def test_a_process_that_closes_is_over_before_that_is_sent() -> None:
    async def script(tree: MemoryTree) -> None:
        one = await _Process(tree, 1).begin()
        one.store.hold = asyncio.Event()
        closing = asyncio.create_task(one.liveness.close())
        await elapse(0.01)
        assert not closing.done() and not one.incarnation.holds()
        one.store.hold.set()
        await closing

    _virtually(script)


@pytest.mark.parametrize("lease_ms", [LEASE_MS, 4 * LEASE_MS])
@pytest.mark.parametrize("swept_s", [None, 0.0, 1.5])
def test_a_record_that_is_missing_is_waited_for_as_long_as_its_lease_may_run(
    lease_ms: int, swept_s: float | None
) -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = await _Process(tree, 1, lease_ms=lease_ms).begin(), _Process(tree, 2)
        one.stop()
        if swept_s is not None:
            # When it begins it looks at all records, and knows no lease of those that go.
            await two.begin()
        await tree.session().delete(key_of(one.incarnation.process_id))
        await elapse(swept_s or 0.0)
        await two.begin()
        other = two.watch(one)
        while one.incarnation.holds():
            assert not other.over
            await elapse(0.01)
        await elapse(1.0)
        assert other.over
        await one.incarnation.renew()
        assert one.incarnation.over.is_set()

    _virtually(script)


def test_a_damaged_record_is_ended_when_its_lease_has_run_out() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = await _Process(tree, 1).begin(), await _Process(tree, 2).begin()
        other = two.watch(one)
        await elapse(2.0)
        key, store = key_of(one.incarnation.process_id), tree.session()
        found = await store.get(key)
        assert found is not None
        await store.set(key, b"\xff", found.version)
        while one.incarnation.holds():
            assert not other.over
            await elapse(0.01)
        await elapse(2.0)
        assert other.over and one.incarnation.over.is_set()
        assert (await one.liveness.incarnation()).holds()

    _virtually(script)


def test_of_two_processes_that_end_a_third_one_both_hear_of_it() -> None:
    async def script(tree: MemoryTree) -> None:
        made = [await _Process(tree, seed).begin() for seed in (1, 2, 3)]
        others = [each.watch(made[0]) for each in made[1:]]
        made[0].stop()
        await elapse(2.5)
        assert [other.over for other in others] == [True, True]
        assert all(each.incarnation.holds() for each in made[1:])

    _virtually(script)


def test_an_idle_process_makes_few_calls_however_much_it_leads() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = await _Process(tree, 1).begin(), await _Process(tree, 2).begin()
        for _ in range(1_000):
            two.watch(one)
        await elapse(5.0)
        one.store.calls = two.store.calls = 0
        await elapse(10.0)
        assert one.store.calls <= 42, "four renewals a lease"
        assert two.store.calls <= 126, "and eight looks"

    _virtually(script)


def test_records_of_processes_that_are_gone_are_removed_in_the_end() -> None:
    async def script(tree: MemoryTree) -> None:
        for seed in range(1, 6):
            gone = await _Process(tree, seed).begin()
            await elapse(0.1)
            gone.stop()
        await elapse(5.0)
        living = await _Process(tree, 9).begin()
        last = await _Process(tree, 10).begin()
        await elapse(70.0)
        left = await tree.session().children(PROCESSES)
        names = [living.incarnation.process_id, last.incarnation.process_id]
        assert left == sorted(names)
        assert living.incarnation.holds() and last.incarnation.holds()

    _virtually(script)


def test_what_could_not_be_written_is_tried_until_it_is() -> None:
    async def script(tree: MemoryTree) -> None:
        one = await _Process(tree, 1).begin()
        tried = 0

        async def work() -> None:
            nonlocal tried
            tried += 1
            if tried < 4:
                raise MetadataUnavailable("away")

        one.liveness.see_to(work)
        await elapse(3.0)
        assert tried == 4 and one.incarnation.holds()

    _virtually(script)


def test_a_damaged_record_keeps_nothing_else_from_being_done() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = await _Process(tree, 1).begin(), await _Process(tree, 2).begin()
        other = two.watch(one)
        one.stop()
        await elapse(5.0)
        assert other.over
        key, session = key_of(one.incarnation.process_id), tree.session()
        found = await session.get(key)
        assert found is not None
        await session.set(key, b"\xff", found.version)
        two.store.hold_answers = asyncio.Event()
        done = asyncio.Event()

        async def work() -> None:
            done.set()

        # Long enough for the record to be looked at before it is removed.
        await elapse(70.0)
        two.liveness.see_to(work)
        two.store.hold_answers.set()
        await elapse(1.0)
        assert done.is_set() and await session.get(key) is not None
        calls = two.store.calls
        await elapse(10.0)
        assert two.store.calls - calls <= 42, "it is not looked at again and again"

    _virtually(script)


def test_a_chore_that_hangs_costs_no_lease() -> None:
    async def script(tree: MemoryTree) -> None:
        one = await _Process(tree, 1).begin()

        async def hang() -> None:
            await asyncio.Event().wait()

        one.liveness.see_to(hang)
        for _ in range(50):
            await elapse(0.1)
            assert one.incarnation.holds()
        await one.liveness.close()

    _virtually(script)


def test_a_log_that_fails_keeps_no_other_one_from_being_renewed() -> None:
    async def script(tree: MemoryTree) -> None:
        one = await _Process(tree, 1).begin()
        heard = 0

        def fail() -> None:
            raise RuntimeError("a defect")

        def hear() -> None:
            nonlocal heard
            heard += 1

        one.incarnation.on_renewal |= {"one": fail, "two": hear}
        await elapse(3.0)
        assert heard >= 10 and one.incarnation.holds()

    _virtually(script)


def test_two_processes_with_the_same_random_numbers_are_two() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = await _Process(tree, 1).begin(), await _Process(tree, 1).begin()
        assert one.incarnation.process_id != two.incarnation.process_id

    _virtually(script)


def test_a_record_that_is_damaged_or_of_a_newer_format_is_an_error() -> None:
    with pytest.raises(CannotRead):
        decode_record(b"\xff\x00")
    with pytest.raises(FormatTooNew):
        decode_record(b"\x82\xa8lease_ms\x01\xacformat_major\x02")
