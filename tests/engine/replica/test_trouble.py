"""Replicas in trouble: failing disks, lost snapshots, failed machines, reads that take too long."""

import asyncio
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import (
    CannotRead,
    HistoryMissing,
    MetadataUnavailable,
    NotLeader,
    OutcomeUnknown,
    ReplicaFailed,
    StateFailed,
)
from engine.ledger.client import LedgerClient
from engine.ledger.writer import LedgerWriter
from engine.log.log import ReplicatedLog
from engine.log.log_list import decode_list
from engine.log.position import START, Position
from engine.ports.system_workers import ThreadWorkers
from engine.replica.contract import Role
from engine.replica.election import Holding
from engine.replica.replica import Replica
from engine.state.contract import Row
from engine.state.memory import MemoryState
from engine.state.storage import Change, Mark
from engine.state.stored import StateSettings, StoredState
from tests.engine.replica.machines import Failing
from tests.engine.replica.yard import LOG_SETTINGS, PATIENCE_MS, SETTINGS, Yard, until, yard
from tests.simulation.state import SimStorage

A = b"a"


def _value(replica: Replica, key: bytes = A) -> bytes | None:
    return replica.stale_read(lambda rows: rows.get(key))[0]


async def test_a_replica_that_waits_says_once_for_what_until_that_is_something_else(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "engine.replica.replica")
    create, tries = LedgerClient.create_ledger, 0

    async def tried(client: LedgerClient, *sizes: Any, **how: Any) -> LedgerWriter:
        nonlocal tries
        tries += 1
        if tries > 4:
            raise MetadataUnavailable("ZooKeeper is away")
        return await create(client, *sizes, **how)

    monkeypatch.setattr(LedgerClient, "create_ledger", tried)
    async with yard(0) as made:
        await made.start("one")
        await until(lambda: tries > 8)
        first, second = caplog.messages
    assert "needs more than the 0 usable bookies" in first and "ZooKeeper is away" in second


async def test_a_state_whose_disk_fails_while_there_is_no_room_ends_the_term() -> None:
    async with yard() as made:
        disk = _Disk()
        state = _on(disk)
        settings = replace(SETTINGS, unwritten_bytes_max=500)
        one = await made.leader("one", state=state, settings=settings, lease_ms=60_000)
        two = await made.start("two")
        await one.propose(b"a=1")
        disk.goes.clear()
        number = 0
        while state.unwritten_bytes <= settings.unwritten_bytes_max:
            await one.propose(b"k%d=%s" % (number, b"v" * 50))
            number += 1
        waiting = asyncio.ensure_future(one.propose(b"x=1"))
        disk.failing = True
        disk.goes.set()
        with pytest.raises((NotLeader, ReplicaFailed)):
            await asyncio.wait_for(waiting, PATIENCE_MS / 1000)
        await two.until_leading(PATIENCE_MS)
        await until(lambda: one.role is Role.FAILED)
        with pytest.raises(StateFailed):
            await one.close()


async def test_a_leader_whose_disk_hangs_is_replaced_though_nothing_fails() -> None:
    async with yard() as made:
        disk = _Disk()
        state = _on(disk)
        settings = replace(SETTINGS, unwritten_bytes_max=500, stall_ms=100)
        one = await made.leader("one", state=state, settings=settings)
        two = await made.start("two")
        with disk.hanging():
            number = 0
            while state.unwritten_bytes <= settings.unwritten_bytes_max:
                await one.propose(b"k%d=%s" % (number, b"v" * 50))
                number += 1
            waiting = asyncio.ensure_future(one.propose(b"x=1"))
            await two.until_leading(PATIENCE_MS)
            with pytest.raises(NotLeader):
                await asyncio.wait_for(waiting, PATIENCE_MS / 1000)
            assert await two.propose(b"x=2") == b"-"
        await one.wait_for(two.position)
        assert one.failure is None and _value(one, b"x") == b"2"


def _led_by(made: Yard, name: str) -> bool:
    found = made.cluster.tree.tree.get("/logs/log/list")
    return found is not None and decode_list(found.value).leader_address == name


async def test_one_whose_disk_hangs_while_it_takes_over_lets_another_lead() -> None:
    async with yard() as made:
        disk = _Disk()
        state = _on(disk)
        settings = replace(SETTINGS, unwritten_bytes_max=500, stall_ms=100)
        one = await made.leader("one")
        two = await made.start("two", state=state, settings=settings)
        await two.wait_for(one.position)
        with disk.hanging():
            for number in range(40):
                await one.propose(b"k%d=%s" % (number, b"v" * 50))
            await until(lambda: state.unwritten_bytes > settings.unwritten_bytes_max)
            await one.close()
            await until(lambda: _led_by(made, "two"))
            assert two.role is Role.FOLLOWER and two.position < one.position
            three = await made.start("three")
            await three.until_leading(PATIENCE_MS)
        await two.wait_for(three.position)


async def test_one_that_cannot_write_its_term_is_not_healthy() -> None:
    async with yard() as made:
        for bookie in made.cluster.bookies:
            bookie.holding = True
        one = await made.start("one", settings=replace(SETTINGS, stall_ms=50))
        await until(lambda: one._leading is not None)
        assert one.role is Role.FOLLOWER
        await until(lambda: not one._healthy())
        assert one._leading is not None, "it is not over"
        with pytest.raises(NotLeader):
            one.propose(b"a=1")


async def test_a_snapshot_that_cannot_be_read_costs_no_state() -> None:
    async with yard() as made:
        one = await made.leader(log_settings=replace(LOG_SETTINGS, roll_entries=10))
        state = _Kept()
        two = await made.start("two", state=state)
        await one.propose(b"a=1")
        await two.wait_for(one.position)
        await two.close()
        at = state.position
        for number in range(40):
            await one.propose(b"k=%d" % number)
        await one.snapshot()
        newest = await one._snapshots.newest()
        assert newest is not None
        for bookie in made.cluster.bookies:
            for entry in bookie.entries.get(newest.ledger_id, {}):
                bookie.damaged.add((newest.ledger_id, entry))
        with pytest.raises(CannotRead):
            await made.start("two again", state=state)
        assert state.position == at and state.get(A) == b"1"


async def test_while_a_snapshot_is_restored_nothing_of_it_is_seen_and_it_is_kept() -> None:
    async with yard() as made:
        one = await made.leader(log_settings=replace(LOG_SETTINGS, roll_entries=100))
        await asyncio.gather(*[one.propose(b"k%d=x" % n) for n in range(300)])
        at = await one.snapshot()
        newest = await one._snapshots.newest()
        assert newest is not None
        state = _Slow()
        starting = asyncio.ensure_future(made.start("two", state=state))
        await state.begun.wait()
        assert [pin.position for pin in (await one.log.list()).pins] == [at]
        await one.propose(b"a=1")
        assert await one.snapshot() > at
        assert newest.ledger_id in await made.client("look").list_ledgers()
        state.goes.set()
        two = await starting
        await two.wait_for(one.position)
        assert _value(two) == b"1" and _value(two, b"k299") == b"x"
        gone = made.client("look again")
        async with asyncio.timeout(PATIENCE_MS / 1000):
            while newest.ledger_id in await gone.list_ledgers():  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_a_read_sees_nothing_of_what_a_failed_machine_left_behind() -> None:
    async with yard() as made:
        one = await made.leader("one", machine=Failing())
        proposed = asyncio.ensure_future(one.propose(b"bad=1"))
        await until(lambda: one._applier.failed)
        with pytest.raises((NotLeader, ReplicaFailed)):
            await one.read(lambda rows: rows.get(b"bad"))
        with pytest.raises((NotLeader, ReplicaFailed)):
            one.stale_read(lambda rows: rows.get(b"bad"))
        with pytest.raises(ReplicaFailed):
            await proposed


async def test_a_read_that_outlasts_the_lease_is_confirmed_by_the_log() -> None:
    async with yard() as made:
        one = await made.leader("one")
        assert one._leading is not None
        holding, looks = one._leading.holding, 0

        def look(rows: object) -> None:
            nonlocal looks
            looks += 1
            assert isinstance(holding, Holding)
            holding._incarnation._lease_end_s = 0.0

        before = one.position
        await one.read(look)
        assert looks == 2 and one.position.entry == before.entry + 1


async def test_waits_that_were_given_up_leave_nothing_behind() -> None:
    async with yard() as made:
        one = await made.leader("one")
        for _ in range(20):
            waits = [
                asyncio.ensure_future(one.wait_for(Position(99, 9))),
                asyncio.ensure_future(one._waiting.for_change()),
            ]
            await asyncio.sleep(0)
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        assert not one._waiting._positions and not one._waiting._changes


async def test_a_foreign_value_beside_the_replicas_keeps_no_duty_from_being_done() -> None:
    async with yard() as made:
        one = await made.leader(settings=replace(SETTINGS, snapshot_entries=10))
        await made.cluster.store.create("/logs/log/replicas/foreign", b"\xc1 not a member")
        await asyncio.gather(*[one.propose(b"a=%d" % n) for n in range(50)])
        newest = None
        async with asyncio.timeout(PATIENCE_MS / 1000):
            while newest is None:
                await asyncio.sleep(0)
                newest = await one._snapshots.newest()
        assert newest.log_entries > 10


@pytest.mark.parametrize("elect", [False, True])
async def test_a_damaged_log_stops_a_replica_with_a_word(elect: bool) -> None:
    async with yard() as made:
        writer = await ReplicatedLog(made.client("writer"), "log", LOG_SETTINGS).lead()
        await writer.append_many([b"\x04part", b"\x07" + bytes(12)])
        await writer.close()
        one = await made.start("one", elect=elect)
        await until(lambda: one.role is Role.FAILED)
        with pytest.raises(ReplicaFailed, match="damaged"):
            await one.until_leading(PATIENCE_MS)


async def test_a_snapshot_older_than_what_was_dropped_is_no_beginning() -> None:
    async with yard() as made:
        one = await made.leader(log_settings=replace(LOG_SETTINGS, roll_entries=10))
        await one.propose(b"a=1")
        at = await one.snapshot()
        for number in range(40):
            await one.propose(b"a=%d" % number)
        await one.log.truncate(one.position)
        assert (await one.log.list()).dropped_through > at
        with pytest.raises(HistoryMissing, match="newest snapshot is of"):
            await made.start("two")


async def test_a_log_is_dropped_only_as_far_as_the_leaders_own_state_is_on_disk() -> None:
    async with yard() as made:
        state = _Lagging()
        one = await made.leader(state=state, log_settings=replace(LOG_SETTINGS, roll_entries=10))
        for number in range(40):
            await one.propose(b"a=%d" % number)
        state.told = Position((await one.log.list()).ledgers[1], 0)
        assert await one.snapshot() > state.told
        assert (await one.log.list()).dropped_through <= state.told


async def test_a_new_leader_claims_the_naming_of_snapshots_before_it_sweeps() -> None:
    async with yard() as made:
        one = await made.leader("one")
        await one.propose(b"a=1")
        await one.snapshot()
        named = await one._snapshots.newest()
        assert named is not None and named.epoch == 1
        await one.close()
        two = await made.leader("two")
        async with asyncio.timeout(PATIENCE_MS / 1000):
            claimed = named
            while claimed.epoch == 1:
                await asyncio.sleep(0)
                claimed = await two._snapshots.newest() or named
        assert claimed.ledger_id == named.ledger_id
        assert named.ledger_id in await made.client("look").list_ledgers()


async def test_a_snapshot_of_an_earlier_position_takes_no_later_ones_place() -> None:
    async with yard() as made:
        one = await made.leader()
        await one.propose(b"a=1")
        early = one._state.snapshot()
        await one.propose(b"a=2")
        later = await one.snapshot()
        ledgers = await made.client("look").list_ledgers()
        record, replaced = await one._snapshots.take(early, one.epoch, 2, 1, _at_once)
        assert record.at == later and replaced == []
        assert await made.client("look again").list_ledgers() == ledgers


async def test_a_leader_is_one_only_when_its_term_is_in_the_log() -> None:
    async with yard() as made:
        for bookie in made.cluster.bookies:
            bookie.holding = True
        one = await made.start("one")
        await until(lambda: all(bookie.held for bookie in made.cluster.bookies))
        assert one.role is Role.FOLLOWER
        with pytest.raises(NotLeader):
            one.propose(b"a=1")
        for bookie in made.cluster.bookies:
            bookie.holding = False
            bookie.release()
        await one.until_leading(PATIENCE_MS)


async def test_what_was_sent_when_the_term_ended_has_an_unknown_outcome() -> None:
    async with yard() as made:
        one = await made.leader("one")
        for bookie in made.cluster.bookies:
            bookie.holding = True
        sent = asyncio.ensure_future(one.propose(b"a=1"))
        await until(lambda: all(bookie.held for bookie in made.cluster.bookies))
        for bookie in made.cluster.bookies:
            bookie.holding = False
        await ReplicatedLog(made.client("usurper"), "log", LOG_SETTINGS).lead()
        with pytest.raises(OutcomeUnknown):
            await sent


async def test_snapshots_are_due_by_bytes_and_by_age_too() -> None:
    for settings in (
        replace(SETTINGS, snapshot_entries=10**9, snapshot_log_bytes=10_000),
        replace(SETTINGS, snapshot_entries=10**9, snapshot_ms=0),
    ):
        async with yard() as made:
            one = await made.leader(settings=settings)
            await one.propose(b"a=" + b"x" * 9_000)
            if settings.snapshot_ms == 0:
                await one.snapshot()
            first = await one._snapshots.newest()
            await one.propose(b"b=" + b"x" * 9_000)
            async with asyncio.timeout(PATIENCE_MS / 1000):
                while (newest := await one._snapshots.newest()) == first:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert newest is not None


async def _at_once() -> None:
    return None


class _Lagging(MemoryState):
    """One whose disk is behind, or so it says."""

    told: Position = START

    async def flush(self) -> Position:
        return self.told


class _Disk(SimStorage):
    """One that waits, and then fails."""

    def __init__(self) -> None:
        super().__init__()
        self.goes = threading.Event()
        self.goes.set()
        self.failing = False

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Take nothing, and go on in the end, whatever becomes of the test."""
        self.goes.clear()
        try:
            yield
        finally:
            self.goes.set()

    def write(self, changes: Iterable[Change], mark: Mark) -> None:
        self.goes.wait()
        if self.failing:
            raise OSError("the disk fails")
        super().write(changes, mark)


def _on(disk: _Disk) -> StoredState:
    workers = ThreadWorkers(asyncio.get_running_loop())
    return StoredState(disk, workers, StateSettings(gather_bytes=100, gather_ms=1))


class _Slow(MemoryState):
    """One whose restoration waits for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.goes = asyncio.Event(), asyncio.Event()

    async def restore(self, rows: Sequence[Row]) -> None:
        self.begun.set()
        await self.goes.wait()
        await super().restore(rows)


class _Kept(MemoryState):
    """A state that is still there after it was closed, as a folder is."""

    async def close(self) -> None:
        return None
