"""The leader's key and its lease, in virtual time: no moment has two holders."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.errors import CannotRead, FormatTooNew, MetadataUnavailable
from engine.metadata.contract import MetadataStore, Versioned
from engine.metadata.memory import MemoryStore, MemoryTree
from engine.replica.election import Election, Holding, decode_beat
from tests.engine.metadata.held import HeldSession
from tests.simulation.virtual import elapse, virtually

KEY = "/logs/log/leader"
LEASE_MS = 1_000


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
    """A session whose writes and answers the test may lose."""

    lose_answers = False
    late_s = 0.0
    away = False
    hold: "asyncio.Event | None" = None

    async def get(self, key: str) -> Versioned | None:
        self._check()
        return await super().get(key)

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        return await self._write(super().create(key, value, ephemeral=ephemeral))

    async def set(self, key: str, value: bytes, version: int) -> int:
        if self.hold is not None:
            await self.hold.wait()
        return await self._write(super().set(key, value, version))

    async def _write(self, call: Coroutine[Any, Any, int]) -> int:
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


class _Candidate:
    """One who wants the key."""

    def __init__(
        self,
        tree: MemoryTree,
        name: str,
        seed: int,
        speed: float = 1.0,
        *,
        lease_ms: int = LEASE_MS,
        store: MetadataStore | None = None,
    ) -> None:
        self.name = name
        self.store = _Store(tree, seed)
        self.clock = _Clock(speed)
        self.election = Election(
            store=store or self.store,
            clock=self.clock,
            rng=random.Random(seed),
            key=KEY,
            replica=name,
            address=f"{name}:1",
            lease_ms=lease_ms,
            clock_drift=0.1,
        )
        self.holding: Holding | None = None
        self.keeping: asyncio.Task[None] | None = None
        self.healthy = True

    async def campaign(self, *, first_ever: bool = False) -> float:
        """Be elected and keep the key; returns when that was."""
        self.holding = await self.election.campaign(first_ever=first_ever)
        self.keeping = asyncio.create_task(self.holding.keep(lambda: self.healthy))
        return asyncio.get_running_loop().time()

    def holds(self) -> bool:
        return self.holding is not None and self.holding.holds()

    def stop_beating(self) -> None:
        """As a process does that is paused or killed."""
        assert self.keeping is not None
        self.keeping.cancel()


async def _version(tree: MemoryTree) -> int:
    found = await tree.session().get(KEY)
    return -1 if found is None else found.version


Script = Callable[[MemoryTree], Coroutine[Any, Any, None]]


def _virtually(script: Script) -> None:
    virtually(script(MemoryTree("cluster")))


def test_the_first_leader_ever_waits_for_nobody() -> None:
    async def script(tree: MemoryTree) -> None:
        start_s = asyncio.get_running_loop().time()
        one = _Candidate(tree, "one", 1)
        assert await one.campaign(first_ever=True) - start_s < 0.01
        assert one.holds() and one.election.leader == "one:1"

    _virtually(script)


def test_who_finds_no_key_though_somebody_led_waits_a_lease() -> None:
    async def script(tree: MemoryTree) -> None:
        start_s = asyncio.get_running_loop().time()
        elected_s = await _Candidate(tree, "one", 1).campaign(first_ever=False) - start_s
        assert LEASE_MS / 1000 <= elected_s < 1.5

    _virtually(script)


@pytest.mark.parametrize("speed", [0.95, 1.0, 1.04])
def test_a_silent_holder_lost_its_lease_before_another_takes_the_key(speed: float) -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = _Candidate(tree, "one", 1), _Candidate(tree, "two", 2, speed)
        await one.campaign(first_ever=True)
        campaign = asyncio.create_task(two.campaign())
        await elapse(5)
        assert one.holds() and not campaign.done()
        one.stop_beating()
        silent_s = asyncio.get_running_loop().time()
        while not campaign.done():
            held = one.holds()
            await elapse(0.001)
        assert not held and not one.holds() and two.holds()
        assert await campaign - silent_s < 2 * LEASE_MS / 1000

    _virtually(script)


@pytest.mark.parametrize("removed", [False, True])
def test_a_candidate_with_a_short_lease_waits_for_a_longer_one_to_end(removed: bool) -> None:
    async def script(tree: MemoryTree) -> None:
        one = _Candidate(tree, "one", 1, lease_ms=5 * LEASE_MS)
        two = _Candidate(tree, "two", 2)
        await one.campaign(first_ever=True)
        campaign = asyncio.create_task(two.campaign())
        await elapse(5)
        one.stop_beating()
        if removed:
            await tree.session().delete(KEY)
        silent_s = asyncio.get_running_loop().time()
        while not campaign.done():
            held = one.holds()
            await elapse(0.001)
        assert not held and not one.holds() and two.holds()
        assert await campaign - silent_s >= 3.5 * LEASE_MS / 1000

    _virtually(script)


def test_a_missing_key_is_waited_for_from_the_first_look() -> None:
    async def script(tree: MemoryTree) -> None:
        one, late = _Candidate(tree, "one", 1), _Candidate(tree, "late", 2)
        await one.campaign(first_ever=True)
        await elapse(5)
        one.stop_beating()
        await tree.session().delete(KEY)
        campaign = asyncio.create_task(late.campaign())
        while not campaign.done():
            assert not (one.holds() and late.holds())
            await elapse(0.01)
        assert not one.holds() and late.holds()

    _virtually(script)


def test_a_holder_that_resigns_is_followed_at_once() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = _Candidate(tree, "one", 1), _Candidate(tree, "two", 2)
        await one.campaign(first_ever=True)
        campaign = asyncio.create_task(two.campaign())
        await elapse(3.1)
        one.stop_beating()
        assert one.holding is not None
        await one.holding.resign()
        resigned_s = asyncio.get_running_loop().time()
        assert not one.holds() and two.election.leader == "one:1"
        assert await campaign - resigned_s < 0.05
        assert two.election.leader == "two:1"

    _virtually(script)


def test_a_holder_that_comes_back_finds_its_key_taken() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = _Candidate(tree, "one", 1), _Candidate(tree, "two", 2)
        await one.campaign(first_ever=True)
        await elapse(1.1)
        one.stop_beating()
        await two.campaign()
        assert one.holding is not None
        # Were versions counted anew, this is when one's next beat would fit two's key.
        while await _version(tree) < one.holding._version:
            await elapse(0.01)
        await one.holding._beat_once()
        assert one.holding.lost.is_set()
        assert not one.holds() and two.holds()

    _virtually(script)


def test_a_holder_that_resigns_while_a_beat_is_under_way_is_followed_at_once() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = _Candidate(tree, "one", 1), _Candidate(tree, "two", 2)
        await one.campaign(first_ever=True)
        campaign = asyncio.create_task(two.campaign())
        await elapse(3.1)
        assert one.holding is not None
        # The beat arrives, but `keep` ends before it hears of that.
        one.store.late_s = 0.1
        beating = asyncio.create_task(one.holding._beat_once())
        await elapse(0.05)
        beating.cancel()
        one.stop_beating()
        one.store.late_s = 0.0
        await one.holding.resign()
        resigned_s = asyncio.get_running_loop().time()
        assert await campaign - resigned_s < 0.05

    _virtually(script)


def test_a_late_beat_does_not_take_the_key_from_its_holder() -> None:
    async def script(tree: MemoryTree) -> None:
        slow = HeldSession(tree, 1)
        one, two = _Candidate(tree, "one", 1, store=slow), _Candidate(tree, "two", 2)
        await one.campaign(first_ever=True)
        await elapse(1.1)
        one.stop_beating()
        slow.hold()
        assert one.holding is not None
        await one.holding._beat_once()
        await two.campaign()
        # Were versions counted anew, this is when the beat under way would fit two's key.
        while await _version(tree) < one.holding._version:
            await elapse(0.01)
        slow.let_go()
        await elapse(1.0)
        assert two.holds() and not one.holds()

    _virtually(script)


def test_a_returning_holder_does_not_mistake_a_recreated_key_for_its_own() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = _Candidate(tree, "one", 1), _Candidate(tree, "two", 2)
        await one.campaign(first_ever=True)
        await elapse(1.1)
        one.stop_beating()
        assert one.holding is not None
        await tree.session().delete(KEY)
        await two.campaign()
        # Versions begin anew: this is when one's next beat would fit two's key.
        while await _version(tree) < one.holding._version:
            await elapse(0.01)
        await one.holding._beat_once()
        assert one.holding.lost.is_set() and not one.holds()
        await elapse(1.0)
        assert two.holds()

    _virtually(script)


def test_two_candidates_with_the_same_random_numbers_do_not_confuse_their_keys() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = _Candidate(tree, "one", 7), _Candidate(tree, "two", 7)
        await one.election.campaign(first_ever=True)
        assert await two.election._take() is None, "the token is its own, the replica is not"

    _virtually(script)


def test_a_lease_ends_when_the_wall_clock_is_ahead_of_the_monotonic_clock() -> None:
    async def script(tree: MemoryTree) -> None:
        one = _Candidate(tree, "one", 1)
        await one.campaign(first_ever=True)
        await elapse(1.1)
        assert one.holds()
        # As on a machine that was stopped for ten seconds, and whose wall clock was set then.
        one.clock.ahead_s = 10.0
        assert not one.holds()
        await elapse(0.3)
        assert one.holds(), "it has beaten since, and nobody else had the key"
        one.clock.ahead_s = -10.0
        assert one.holds(), "a clock that is set back says nothing"
        one.stop_beating()
        await elapse(1.01)
        assert not one.holds()

    _virtually(script)


def test_a_take_that_is_noticed_long_afterwards_gives_no_lease_before_its_first_beat() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = _Candidate(tree, "one", 1), _Candidate(tree, "two", 2)
        one.store.lose_answers = True
        campaign = asyncio.create_task(one.election.campaign(first_ever=True))
        await elapse(0.001)
        one.store.away = True
        one.store.lose_answers = False
        await elapse(3 * LEASE_MS / 1000)
        one.store.away = False
        holding = await campaign
        assert not holding.holds(), "its lease runs from when it was sent"
        await holding._beat_once()
        assert holding.holds() and not two.holds()

    _virtually(script)


def test_a_beat_whose_answer_was_lost_does_not_cost_the_key() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = _Candidate(tree, "one", 1), _Candidate(tree, "two", 2)
        await one.campaign(first_ever=True)
        campaign = asyncio.create_task(two.campaign())
        for _ in range(20):
            one.store.lose_answers = not one.store.lose_answers
            await elapse(0.26)
            assert not campaign.done()
        one.store.lose_answers = False
        await elapse(0.6)
        assert one.holds()
        campaign.cancel()

    _virtually(script)


def test_a_take_whose_answer_was_lost_is_noticed() -> None:
    async def script(tree: MemoryTree) -> None:
        one = _Candidate(tree, "one", 1)
        one.store.lose_answers = True
        campaign = asyncio.create_task(one.campaign(first_ever=True))
        await elapse(0.01)
        one.store.lose_answers = False
        start_s = asyncio.get_running_loop().time()
        assert await campaign - start_s < 0.5
        assert one.holds()

    _virtually(script)


def test_a_beat_that_hangs_in_the_store_prolongs_nothing() -> None:
    async def script(tree: MemoryTree) -> None:
        one = _Candidate(tree, "one", 1)
        await one.campaign(first_ever=True)
        await elapse(1.1)
        hold = one.store.hold = asyncio.Event()
        await elapse(1.05)
        assert not one.holds()
        one.store.hold = None
        hold.set()
        assert one.holding is not None
        assert await one.holding.until_holds(LEASE_MS)

    _virtually(script)


def test_a_lease_runs_from_before_the_beat_was_sent_not_from_its_answer() -> None:
    async def script(tree: MemoryTree) -> None:
        one = _Candidate(tree, "one", 1)
        one.store.late_s = 0.4
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        await one.campaign(first_ever=True)
        one.stop_beating()
        await elapse(sent_s + 0.99 - loop.time())
        assert one.holds()
        await elapse(0.02)
        assert not one.holds(), "of the take"
        assert one.holding is not None
        sent_s = loop.time()
        await one.holding._beat_once()
        await elapse(sent_s + 0.99 - loop.time())
        assert one.holds()
        await elapse(0.02)
        assert not one.holds(), "of a beat"

    _virtually(script)


def test_a_read_waits_for_the_next_beat_and_not_for_ever() -> None:
    async def script(tree: MemoryTree) -> None:
        one = _Candidate(tree, "one", 1)
        await one.campaign(first_ever=True)
        one.store.away = True
        await elapse(2)
        assert one.holding is not None
        assert not await one.holding.until_holds(200)
        one.store.away = False
        assert await one.holding.until_holds(LEASE_MS)

    _virtually(script)


def test_of_many_candidates_one_is_elected() -> None:
    async def script(tree: MemoryTree) -> None:
        crowd = [_Candidate(tree, f"c{number}", number) for number in range(8)]
        campaigns = [asyncio.create_task(one.campaign()) for one in crowd]
        await elapse(10)
        assert sum(task.done() for task in campaigns) == 1
        assert sum(one.holds() for one in crowd) == 1
        for task in campaigns:
            task.cancel()

    _virtually(script)


def test_an_unhealthy_holder_lets_the_key_go_and_hears_of_it() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two = _Candidate(tree, "one", 1), _Candidate(tree, "two", 2)
        await one.campaign(first_ever=True)
        one.healthy = False
        await two.campaign()
        assert one.holding is not None
        await one.holding.lost.wait()
        assert two.holds() and not one.holds()

    _virtually(script)


def test_a_key_that_was_removed_is_taken_after_a_lease_and_from_no_living_holder() -> None:
    async def script(tree: MemoryTree) -> None:
        crowd = [_Candidate(tree, f"c{number}", number) for number in range(3)]
        await crowd[0].campaign(first_ever=True)
        campaigns = [asyncio.create_task(one.campaign(first_ever=True)) for one in crowd[1:]]
        await elapse(3)
        await tree.session().delete(KEY)
        for _ in range(15_000):
            assert sum(one.holds() for one in crowd) <= 1
            await elapse(0.001)
        assert sum(task.done() for task in campaigns) == 1
        assert sum(one.holds() for one in crowd) == 1
        for task in campaigns:
            task.cancel()

    _virtually(script)


def test_one_beat_that_fails_in_an_unforeseen_way_costs_nothing() -> None:
    async def script(tree: MemoryTree) -> None:
        one = _Candidate(tree, "one", 1)
        await one.campaign(first_ever=True)
        usual = one.store.set

        async def odd(key: str, value: bytes, version: int) -> int:
            one.store.set = usual  # type: ignore[method-assign]
            raise ValueError("once")

        one.store.set = odd  # type: ignore[method-assign]
        await elapse(3)
        assert one.holds()

    _virtually(script)


def test_a_key_of_a_newer_format_or_damaged_is_an_error() -> None:
    with pytest.raises(CannotRead):
        decode_beat(b"\xff\x00")
    with pytest.raises(FormatTooNew):
        decode_beat(b"\x84\xa7replica\xa1a\xa7address\xa1b\xa5token\x01\xacformat_major\x02")


def test_who_defers_to_others_is_elected_after_them_and_without_them_none_the_less() -> None:
    async def script(tree: MemoryTree) -> None:
        one, two, three = (_Candidate(tree, name, n) for n, name in enumerate(("one", "2", "3"), 1))
        await one.campaign(first_ever=True)
        two.election.defer(2.0)
        campaigns = [asyncio.create_task(each.campaign()) for each in (two, three)]
        await elapse(5.0)
        assert one.holds() and not two.holds() and not three.holds()
        one.stop_beating()
        assert one.holding is not None
        await one.holding.resign()
        resigned_s = asyncio.get_running_loop().time()
        assert await campaigns[1] - resigned_s < 0.1
        await elapse(5.0)
        assert three.holds() and not two.holds()
        three.stop_beating()
        silent_s = asyncio.get_running_loop().time()
        assert 2.0 + LEASE_MS / 2000 <= await campaigns[0] - silent_s < 2.0 + 2 * LEASE_MS / 1000

    _virtually(script)


def test_a_deference_that_is_taken_back_while_nobody_leads_costs_no_more_time() -> None:
    async def script(tree: MemoryTree) -> None:
        one = _Candidate(tree, "one", 1)
        one.election.defer(1_000.0)
        campaign = asyncio.create_task(one.campaign(first_ever=True))
        await elapse(3.0)
        assert not campaign.done()
        one.election.defer(0.0)
        await elapse(0.1)
        assert campaign.done() and one.holds()

    _virtually(script)
