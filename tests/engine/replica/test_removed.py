"""What a log that was removed leaves, and who still works for it, and the next of its name."""

import msgspec
import pytest

from engine.errors import Deposed, HistoryMissing
from engine.ledger.client import LedgerClient
from engine.log.log import ReplicatedLog
from engine.replica.contract import Role
from engine.replica.replica import Replica
from engine.replica.snapshots import Snapshots
from engine.state.memory import MemoryState
from tests.engine.ledger.scripted import QUICK
from tests.engine.replica.held_replicas import Replicas, reached, with_replicas
from tests.engine.replica.yard import until, yard


class _Kept(MemoryState):
    """A state that is there after it was closed, as one on a disk is."""

    async def close(self) -> None:
        pass


def _value(replica: Replica, key: bytes = b"a") -> bytes | None:
    return replica.stale_read(lambda rows: rows.get(key))[0]


async def _removed(client: LedgerClient) -> int:
    """Remove the log, as whoever drops it; the epoch of that."""

    async def yes() -> bool:
        return True

    log = ReplicatedLog(client, "log")
    epoch = await log.remove(yes)
    await Snapshots(client, log).forget(epoch)
    return epoch


async def test_a_state_of_a_log_that_was_removed_does_not_go_on_with_the_next_one() -> None:
    async with yard() as made:
        one, state = await made.leader(), _Kept()
        two = await made.start("two", state=state)
        await one.propose(b"a=1")
        await two.wait_for(one.position)
        await two.close()
        await one.close()
        await _removed(made.client("removing"))
        with pytest.raises(HistoryMissing, match="was removed"):
            await made.start("two before anybody leads", state=state)
        three = await made.leader("three")
        await three.propose(b"b=2")
        with pytest.raises(HistoryMissing, match="was removed"):
            await made.start("two again", state=state)
        assert _value(three) is None and _value(three, b"b") == b"2"


async def test_who_led_a_log_that_was_removed_ends_and_does_not_lead_the_next_one() -> None:
    async with yard() as made:
        one = await made.leader()
        await one.propose(b"a=1")
        epoch = await _removed(made.client("removing"))
        await until(lambda: one.role is Role.FAILED)
        assert isinstance(one.failure, HistoryMissing)
        two = await made.leader("two")
        assert two.epoch > epoch and _value(two) is None


async def test_a_snapshot_of_a_log_that_was_removed_is_never_named_nor_used_for_the_next() -> None:
    async with yard() as made:
        one = await made.leader()
        await one.propose(b"a=1")
        await one.snapshot()
        old = await one._snapshots.newest()
        assert old is not None
        epoch = await _removed(made.client("removing"))
        assert await one._snapshots.newest() is None
        with pytest.raises(Deposed):
            await one._snapshots._name(old)
        with pytest.raises(Deposed):
            await one._snapshots.forget(epoch - 1)
        two = await made.leader("two")
        await two.propose(b"b=2")
        # As a program that knew nothing of removals might have left it.
        found = await made.cluster.store.get("/logs/log/snapshot")
        value = msgspec.msgpack.encode(msgspec.structs.replace(old, epoch=two.epoch))
        assert found is not None
        await made.cluster.store.set("/logs/log/snapshot", value, found.version)
        three = await made.start("three")
        await three.wait_for(two.position)
        assert (_value(three), _value(three, b"b")) == (None, b"2")


def test_the_leader_of_a_new_log_waits_for_the_lease_of_the_log_before_it() -> None:
    async def script(made: Replicas) -> None:
        one = await made.leader("one", lease_ms=10_000)
        await one.propose(b"a=1")
        made.session("one").hold()
        await _removed(made.cluster.client(QUICK))
        two = await made.start("two")
        assert one.may_answer(), "it has heard of nothing"

        def replaced() -> bool:
            assert not (one.may_answer() and two.may_answer()), "both answer reads"
            return two.may_answer()

        assert await reached(replaced, 20) > 5

    with_replicas(script)
