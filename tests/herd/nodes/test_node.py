"""Nodes run what the facts say: assignment, death, return, moves, removal, two auditors."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.msgpack import decode

from engine.errors import NotEnoughBookies
from engine.log.log import ReplicatedLog
from engine.log.log_list import HeldList, Leader, emptied, raised_from
from engine.log.log_writer import LogWriter
from engine.metadata.restoring import MARK
from engine.replica.snapshots import SnapshotRecord
from herd.checkpoint.manifest import Checkpoints
from herd.checkpoint.record import CheckpointList
from herd.errors import LeaderUnavailable, NameTaken, OperationalError, ProgrammingError
from herd.nodes.facts import AUDITOR, SPACES
from herd.nodes.hosting import _rank
from herd.reading_log import log_of
from herd.store import TablespaceFact
from tests.herd.nodes.yard import SESSION_S, SETTINGS, Bank, Machine, Yard, in_yard
from tests.herd.spaces import update
from tests.simulation.virtual import elapse

GRACE_S = SETTINGS.grace_ms / 1000


def test_a_new_tablespace_is_run_by_as_many_nodes_as_it_wants_and_led_by_one() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c", "d")
        await yard.commands.create("farm", expected=3)
        leader = await yard.led()
        running = [one.name for one in yard.machines.values() if one.space("farm")]
        await elapse(3.0)
        running = [one.name for one in yard.machines.values() if one.space("farm")]
        assert len(running) == 3 and leader in running
        assert set((await yard.fact()).replicas) == set(running)
        for machine in yard.machines.values():
            told = machine.node.leader_of("farm")
            assert told == (None if machine.name == leader else f"{leader}:1")

    in_yard(script)


def test_who_waits_until_a_node_is_listed_finds_it_among_the_nodes() -> None:
    async def script(yard: Yard) -> None:
        machine = yard.machines["a"] = Machine(yard, "a", SETTINGS)
        assert "a" not in await yard.commands.nodes()
        await machine.run(machine.node.listed())
        assert "a" in await yard.commands.nodes()

    in_yard(script)


def test_the_tablespace_default_is_there_once_a_node_is_listed() -> None:
    async def script(yard: Yard) -> None:
        settings = replace(SETTINGS, makes_default=True)
        await yard.own.store.create(AUDITOR, b"another node is the auditor")
        for name in ("a", "b"):
            machine = yard.machines[name] = Machine(yard, name, settings)
            await machine.run(machine.node.listed())
            assert await machine.run(machine.node.names()) == ["default"]

    in_yard(script)


def test_a_node_serves_though_the_mark_of_a_restore_cannot_be_read() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a")
        await yard.commands.create("farm", expected=1)
        await yard.own.store.create(MARK, b"damaged")
        settings = replace(SETTINGS, makes_default=True)
        machine = yard.machines["b"] = Machine(yard, "b", settings)
        async with asyncio.timeout(10):
            await machine.run(machine.node.listed())
        assert await machine.run(machine.node.names()) == ["farm"]

    in_yard(script)


def test_the_first_tablespace_is_made_and_grows_with_the_nodes() -> None:
    async def script(yard: Yard) -> None:
        await yard.commands.set_default_replicas(2)
        settings = replace(SETTINGS, makes_default=True)
        await yard.add("a", settings=settings)
        await yard.led("default", by="a")
        await yard.add("b", "c", settings=settings)
        await yard.replicas_on("a", "b", name="default")
        assert await yard.machines["c"].run(yard.machines["c"].node.names()) == ["default"]

    in_yard(script)


def test_a_dead_node_is_replaced_after_the_grace_time_and_nothing_is_lost() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c", "d")
        await yard.commands.create("farm", expected=3, nodes=["a", "b", "c"])
        bank = Bank(yard)
        await bank.open()
        working = asyncio.create_task(bank.work())
        await elapse(3.0)
        dead = await yard.led()
        yard.machines[dead].kill()
        killed_s = yard.loop.time()
        await yard.led()
        assert yard.loop.time() - killed_s < 5.0
        rest = {"a", "b", "c", "d"} - {dead}
        await yard.replicas_on(*rest)
        assert yard.loop.time() - killed_s > GRACE_S

        async def settled() -> None:
            while set((await yard.fact()).replicas) != rest:
                await elapse(0.1)

        await asyncio.wait_for(settled(), 30.0)
        done = bank.transfers
        await elapse(2.0)
        assert bank.transfers > done
        bank.ending = True
        await working
        await yard.until(lambda: all(bank.total(name) == 1_000 for name in rest), "all are equal")

    in_yard(script)


def test_a_node_that_comes_back_in_time_goes_on_with_its_replicas() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c", "d")
        await yard.commands.create("farm", expected=3, nodes=["a", "b", "c"])
        leader = await yard.led()
        away = next(name for name in "abc" if name != leader)
        yard.machines[away].kill()
        await elapse(4.0)
        yard.machines[away].start()
        await yard.replicas_on("a", "b", "c")
        await elapse(3 * GRACE_S)
        assert (await yard.fact()).replicas == ("a", "b", "c")
        assert yard.leaders("farm") == [leader]

    in_yard(script)


def test_a_node_that_comes_back_too_late_ends_and_forgets_what_is_others_by_now() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c", "d")
        await yard.commands.create("farm", expected=3, nodes=["a", "b", "c"])
        leader = await yard.led()
        away = next(name for name in "abc" if name != leader)
        machine = yard.machines[away]
        uuid = (await yard.fact()).uuid
        machine.kill()
        machine.states.left = [uuid, "another"]
        rest = {"a", "b", "c", "d"} - {away}
        await yard.replicas_on(*rest)
        await elapse(GRACE_S)
        machine.start()
        await yard.until(lambda: machine.states.wiped == ["another", uuid], "its states are wiped")
        await elapse(GRACE_S)
        assert machine.space("farm") is None
        assert set((await yard.fact()).replicas) == rest

    in_yard(script)


def test_a_leader_moves_by_command_and_clients_hear_one_error_at_most() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c")
        await yard.commands.create("farm", expected=3)
        bank = Bank(yard)
        await bank.open()
        working = asyncio.create_task(bank.work())
        await elapse(3.0)
        for _ in range(3):
            leader = await yard.led()
            wanted = next(name for name in "abc" if name != leader)
            bank.errors.clear()
            asked_s = yard.loop.time()
            await yard.commands.move_leader("farm", wanted)
            await yard.led(by=wanted)
            assert yard.loop.time() - asked_s < 4.0
            done = bank.transfers
            await elapse(1.0)
            assert bank.transfers > done
            assert bank.unknown() == 0
            assert len(bank.errors) <= 1 and all(error.retryable for error in bank.errors)
        bank.ending = True
        await working
        await yard.until(lambda: all(bank.total(name) == 1_000 for name in "abc"))

    in_yard(script)


def test_a_designated_leader_that_was_away_leads_again_when_it_has_caught_up() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c")
        await yard.commands.create("farm", expected=3, leader="b")
        await yard.led(by="b")
        await yard.until(lambda: yard.ready() == {"a", "b", "c"}, "all are ready")
        bank = Bank(yard)
        await bank.open()
        working = asyncio.create_task(bank.work())
        yard.machines["b"].kill()
        killed_s = yard.loop.time()
        await yard.until(lambda: bool(yard.leaders("farm")))
        assert yard.loop.time() - killed_s < 3.0, "nobody waits for who has just fallen silent"
        await elapse(4.0)
        yard.machines["b"].start()
        await yard.led(by="b")
        bank.ending = True
        await working
        await yard.until(lambda: all(bank.total(name) == 1_000 for name in "abc"))

    in_yard(script)


def test_a_leader_gives_way_once_to_a_designated_leader_that_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lead, takeovers = ReplicatedLog.lead, list[str]()

    async def counted(self: ReplicatedLog, leader: Leader | None, *given: Any) -> LogWriter:
        takeovers.append("" if leader is None else leader.address)
        return await lead(self, leader, *given)

    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c")
        await yard.commands.create("farm", expected=3, leader="b")
        await yard.led(by="b")
        await yard.replicas_on("a", "b", "c")
        yard.machines["b"].kill()
        await yard.until(lambda: bool(yard.leaders("farm")))
        [between] = yard.leaders("farm")
        space = yard.machines[between].space("farm")
        assert space is not None and space.replica.predecessors == {f"{between}:1"}
        takeovers.clear()
        # The killed node stays registered for a while.
        await elapse(SESSION_S + 1.0)
        assert not takeovers
        yard.machines["b"].start()
        await yard.led(by="b")
        assert takeovers == ["b:1"]

    monkeypatch.setattr(ReplicatedLog, "lead", counted)
    for seed in range(1, 4):
        in_yard(script, seed)


@pytest.mark.parametrize("designated", ["a", ""])
def test_survivors_share_the_tablespaces_of_a_lost_node_and_try_each_once(
    designated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    takeovers: list[str] = []
    lead = ReplicatedLog.lead

    async def counted(self: ReplicatedLog, *given: Any) -> LogWriter:
        takeovers.append(self.name)
        return await lead(self, *given)

    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c")
        names = [f"farm{number}" for number in range(12)]
        for name in names:
            await yard.commands.create(name, expected=3)
            await yard.commands.move_leader(name, "a")
        for name in names:
            await yard.led(name, by="a")
            await yard.replicas_on("a", "b", "c", name=name)
            await yard.commands.move_leader(name, designated)
        await elapse(2.0)
        monkeypatch.setattr(ReplicatedLog, "lead", counted)
        yard.machines["a"].kill()
        killed_s = yard.loop.time()
        led = [await yard.led(name) for name in names]
        assert yard.loop.time() - killed_s < 3.0 and set(led) == {"b", "c"}
        assert sorted(takeovers) == [f"herd/{name}" for name in sorted(names)]

    in_yard(script)


def _has_arrived(bank: Bank) -> bool:
    return bank.total("b") == 1_000


def test_the_tablespaces_written_last_are_taken_over_before_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    takeovers: list[str] = []
    lead = ReplicatedLog.lead

    async def counted(self: ReplicatedLog, *given: Any) -> LogWriter:
        takeovers.append(self.name.removeprefix("herd/"))
        return await lead(self, *given)

    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        names = [f"farm{number}" for number in range(8)]
        for name in names:
            await yard.commands.create(name, expected=2, leader="a")
            await yard.led(name, by="a")
            await yard.replicas_on("a", "b", name=name)
        written = ["farm3", "farm6", "farm1", "farm7"]
        for name in written:
            bank = Bank(yard, name)
            await bank.open()
            await yard.until(partial(_has_arrived, bank))
        monkeypatch.setattr(ReplicatedLog, "lead", counted)
        yard.machines["a"].kill()
        for name in names:
            await yard.led(name, by="b")
        # Nobody waits yet when the first one begins.
        order = [name for name in takeovers[1:] if name in written]
        assert takeovers[1 : 1 + len(order)] == order
        assert len(order) >= 3
        assert order == [name for name in reversed(written) if name in order]

    monkeypatch.setattr("engine.metadata.liveness._TAKEOVERS", 1)
    in_yard(script)


def test_a_node_sends_nobody_to_a_leader_whose_lease_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lead, begun, may = ReplicatedLog.lead, asyncio.Event(), asyncio.Event()

    async def held(self: ReplicatedLog, *given: Any) -> LogWriter:
        begun.set()
        await may.wait()
        return await lead(self, *given)

    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        await yard.commands.create("farm", expected=2, leader="a")
        await yard.led(by="a")
        await yard.replicas_on("a", "b")
        node = yard.machines["b"].node
        assert node.leader_of("farm") == "a:1"
        monkeypatch.setattr(ReplicatedLog, "lead", held)
        yard.machines["a"].kill()
        assert node.leader_of("farm") == "a:1"
        await yard.until(begun.is_set)
        assert node.leader_of("farm") is None
        may.set()
        await yard.led(by="b")

    in_yard(script)


@pytest.mark.parametrize("designated", [True, False], ids=["designated", "undesignated"])
@pytest.mark.parametrize("wrote", [True, False], ids=["a ledger", "nothing"])
def test_a_first_successor_whose_takeovers_fail_stops_nobody(
    wrote: bool, designated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead, failing, failures = ReplicatedLog.lead, "nobody", 0

    async def failed(
        self: ReplicatedLog, leader: Leader | None, after: HeldList, *given: Any
    ) -> LogWriter:
        nonlocal failures
        if leader is None or leader.address != failing:
            return await lead(self, leader, after, *given)
        failures += 1
        if wrote:
            await (await lead(self, leader, after, *given)).close()
        else:
            await self._lists.update(after, raised_from(after.list.epoch, leader))
        raise NotEnoughBookies("too few bookies answer it")

    async def script(yard: Yard) -> None:
        nonlocal failing, failures
        await yard.add("a", "b", "c")
        await yard.commands.create("farm", expected=3)
        leader = await yard.led()
        await yard.replicas_on("a", "b", "c")
        if designated:
            await yard.commands.move_leader("farm", leader)
        await elapse(2.0)
        uuid = (await yard.fact()).uuid
        order = sorted({"a", "b", "c"} - {leader}, key=lambda node: _rank(uuid, node))
        failing, failures = f"{order[0]}:1", 0
        monkeypatch.setattr(ReplicatedLog, "lead", failed)
        yard.machines[leader].kill()
        killed_s = yard.loop.time()
        await yard.until(lambda: yard.leaders("farm") == [order[1]], "the other one leads")
        assert failures <= 3 and yard.loop.time() - killed_s < 3.0

    for seed in range(1, 6):
        failing = "nobody"
        in_yard(script, seed)
        monkeypatch.undo()


def test_the_order_of_successors_is_even_whoever_led() -> None:
    nodes = [f"{number:012x}" for number in (0x1F3A, 0x9B20C7, 0x55AA00FF11)]
    second = Counter[tuple[str, str]]()
    for number in range(3_000):
        first, then, _ = sorted(nodes, key=partial(_rank, f"{number:032x}"))
        second[first, then] += 1
    assert len(second) == 6 and all(400 < count < 600 for count in second.values()), second


def test_a_designated_leader_that_does_not_take_the_lead_stops_nobody() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        await yard.commands.create("farm", expected=2)
        leader = await yard.led()
        other = "b" if leader == "a" else "a"
        await elapse(3.0)
        space = yard.machines[other].space("farm")
        assert space is not None
        # It follows, and never leads: as one whose way to some bookies is cut.
        space.replica._election._deference_s = 1e6
        space.replica._election.defer = lambda seconds: None  # type: ignore[method-assign]
        await yard.commands.move_leader("farm", other)
        silent_s = 0.0
        for _ in range(600):
            await elapse(0.1)
            silent_s += 0.1 * (not yard.leaders("farm"))
        await yard.led(by=leader)
        assert 0.0 < silent_s < 15.0, silent_s

    in_yard(script)


def test_a_designated_leader_that_lags_behind_is_not_waited_for() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        await yard.commands.create("farm", expected=2)
        bank = Bank(yard)
        await bank.open()
        leader = await yard.led()
        other = "b" if leader == "a" else "a"
        await yard.until(lambda: bank.total(other) == 1_000, "it follows")
        space = yard.machines[other].space("farm")
        assert space is not None
        go_on = asyncio.Event()
        following = space.replica._following
        apply = following._apply

        async def late(batch: Any) -> None:
            await go_on.wait()
            await apply(batch)

        following._apply = late  # type: ignore[method-assign]
        working = asyncio.create_task(bank.work())
        await elapse(1.0)
        await yard.commands.move_leader("farm", other)
        await elapse(20.0)
        assert yard.leaders("farm") == [leader] and not bank.errors
        go_on.set()
        await yard.led(by=other)
        bank.ending = True
        await working

    in_yard(script)


def test_a_transaction_that_is_open_when_its_leader_is_moved_may_end_well() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        await yard.commands.create("farm", expected=2)
        bank = Bank(yard)
        await bank.open()
        leader = await yard.led()
        machine = yard.machines[leader]
        other = "b" if leader == "a" else "a"
        await elapse(4.0)

        async def transact() -> None:
            space = machine.space("farm")
            assert space is not None
            transaction, table = space.begin(), space.catalog.table("account")
            await update(transaction, table, (1, [1, 1_100 - 1_000, "moved"]))
            while space._successor is None:
                await elapse(0.01)
            with pytest.raises(LeaderUnavailable, match=f"ask {other}:1"):
                space.begin()
            await elapse(0.3)
            await transaction.commit()

        task = yard.loop.spawn(machine.process, transact(), "transact")
        await yard.commands.move_leader("farm", other)
        await yard.until(task.done)
        task.result()
        await yard.led(by=other)
        assert bank.total(other) == 1_000

    in_yard(script)


def test_replicas_are_added_removed_and_counted_by_command() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c", "d")
        await yard.commands.create("farm", expected=1, nodes=["a"])
        bank = Bank(yard)
        await bank.open()
        await yard.commands.add_replica("farm", "c:1")
        await yard.replicas_on("a", "c")
        await yard.until(lambda: bank.total("c") == 1_000, "the added replica has caught up")
        await yard.commands.set_expected("farm", 4)
        await yard.replicas_on("a", "b", "c", "d")
        await yard.commands.remove_replica("farm", "a")
        await yard.replicas_on("b", "c", "d")
        assert await yard.led() in "bcd"
        assert (await yard.fact()).expected == 3
        assert len(yard.machines["a"].states.wiped) == 1
        await yard.commands.set_expected("farm", 1)
        await yard.until(lambda: len(yard.leaders("farm")) == 1)
        await yard.until(lambda: sum(bool(m.space("farm")) for m in yard.machines.values()) == 1)
        last = (await yard.fact()).replicas[0]
        assert bank.total(last) == 1_000
        with pytest.raises(ProgrammingError, match="only replica"):
            await yard.commands.remove_replica("farm", last)
        with pytest.raises(ProgrammingError, match="no node has 'x'"):
            await yard.commands.add_replica("farm", "x")

    in_yard(script)


def test_a_dropped_tablespace_leaves_nothing_and_its_name_begins_anew() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        await yard.commands.create("farm", expected=2)
        await yard.commands.create("other", expected=2)
        bank = Bank(yard)
        await bank.open()
        await yard.led("other")
        with pytest.raises(NameTaken):
            await yard.commands.create("farm")
        ledgers = len(await yard.own.list_ledgers())
        await yard.commands.drop("farm")
        with pytest.raises(OperationalError, match="still being removed"):
            await yard.commands.create("farm")
        with pytest.raises(ProgrammingError, match="no tablespace farm"):
            await yard.commands.add_replica("farm", "a")

        async def gone() -> None:
            while await yard.own.store.children(SPACES) != ["other"]:
                await elapse(0.1)

        await asyncio.wait_for(gone(), 30.0)
        assert len(await yard.own.list_ledgers()) < ledgers
        removed = await ReplicatedLog(yard.own, log_of("farm")).list()
        left = msgspec.structs.replace(emptied(removed), token=removed.token)
        assert removed == left, "its epoch, and who led"
        named = await yard.own.store.get("/logs/herd/farm/snapshot")
        assert named is not None
        record = decode(named.value, type=SnapshotRecord)
        assert (record.epoch, record.ledger_id) == (removed.epoch, 0)
        checkpoints = CheckpointList(yard.own.store, "farm", yard.own.time)
        assert await checkpoints.get() == Checkpoints(epoch=removed.epoch)
        assert await yard.own.store.children("/logs/herd/farm/replicas") == []
        assert await yard.commands.leader_of("farm") == ""
        assert all(machine.states.wiped for machine in yard.machines.values())
        await yard.commands.create("farm", expected=2)
        machine = yard.machines[await yard.led()]
        space = machine.space("farm")
        assert space is not None and space.catalog.names == []
        assert space.term > removed.epoch
        await yard.led("other")

    in_yard(script)


def test_two_auditors_at_once_place_what_one_would() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c")
        await yard.until(lambda: any(m.node.auditor.elected for m in yard.machines.values()))
        first = next(m for m in yard.machines.values() if m.node.auditor.elected)
        # The key goes though its holder lives, as when a store forgets a session too early.
        await yard.own.store.delete(AUDITOR)
        for machine in yard.machines.values():
            machine.node.auditor._claim.hold = _always  # type: ignore[method-assign]
        await yard.commands.create("farm", expected=2)
        await yard.until(lambda: len(yard.leaders("farm")) == 1)
        await elapse(5.0)
        fact = await yard.fact()
        assert len(fact.replicas) == 2 and fact.epoch == 1
        assert first.alive

    in_yard(script)


async def _always() -> bool:
    return True


def test_an_auditor_that_dies_is_followed_by_another_one() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c")
        await yard.until(lambda: any(m.node.auditor.elected for m in yard.machines.values()))
        first = next(m for m in yard.machines.values() if m.node.auditor.elected)
        await yard.commands.create("farm", expected=2)
        await yard.until(lambda: len(yard.leaders("farm")) == 1)
        first.kill()
        rest = [name for name in "abc" if name != first.name]
        await yard.replicas_on(*rest)
        assert [name for name in rest if yard.machines[name].node.auditor.elected]

    in_yard(script)


def test_a_pause_of_the_auditor_is_no_absence_of_a_node() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c")
        await yard.commands.create("farm", expected=2, nodes=["a", "b"])
        await yard.led()
        auditor = next(m for m in yard.machines.values() if m.node.auditor.elected)
        away = next(name for name in "ab" if name != auditor.name)
        yard.machines[away].kill()
        await elapse(4.0)
        yard.loop.pause(auditor.process)
        await elapse(10 * GRACE_S)
        yard.loop.resume(auditor.process)
        await elapse(0.5)
        assert (await yard.fact()).replicas == ("a", "b")

    in_yard(script)


def test_a_node_without_the_metadata_store_goes_on_and_registers_again() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        await yard.commands.create("farm", expected=2)
        await yard.led()
        machine = yard.machines["a"]
        machine.store.expire()
        await elapse(2.0)
        nodes = await yard.commands.nodes()
        assert set(nodes) == {"a", "b"}
        assert nodes["a"].replicas["farm"].ready
        yard.faults.lost_before_share = 0.3
        await elapse(10.0)
        yard.faults.lost_before_share = 0.0
        await yard.led()

    in_yard(script)


def test_a_tablespace_of_a_folder_is_left_alone() -> None:
    async def script(yard: Yard) -> None:
        import msgspec

        value = msgspec.msgpack.encode(TablespaceFact("u", 1))
        await yard.own.store.create(f"{SPACES}/own", value)
        await yard.add("a")
        await elapse(3.0)
        assert yard.machines["a"].space("own") is None
        with pytest.raises(ProgrammingError, match="owner of its folder"):
            await yard.commands.add_replica("own", "a")

    in_yard(script)


def test_a_fact_that_cannot_be_read_costs_no_state_and_stops_nobody_else() -> None:
    async def script(yard: Yard) -> None:
        await yard.own.store.create(f"{SPACES}/default", b"what is this")
        settings = replace(SETTINGS, makes_default=True)
        await yard.add("a", settings=settings)
        machine = yard.machines["a"]
        machine.kill()
        machine.states.left = ["a state"]
        machine.start()
        await yard.until(lambda: machine.node.auditor.elected)
        await yard.commands.create("farm", expected=1)
        await yard.led(by="a")
        await elapse(3.0)
        assert machine.node.outlook.unreadable == {"default"} and not machine.states.wiped
        await yard.own.store.delete(f"{SPACES}/default")
        await yard.led("default", by="a")
        await yard.until(lambda: machine.states.wiped == ["a state"])

    in_yard(script)


def test_who_asks_the_wrong_node_is_told_the_right_one() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b", "c")
        await yard.commands.create("farm", expected=2, nodes=["a", "b"])
        leader = await yard.led()
        await elapse(1.0)
        for name in "abc":
            node = yard.machines[name].node
            if name == leader:
                assert (await yard.machines[name].run(node.tablespace("FARM"))).name == "farm"
                continue
            with pytest.raises(LeaderUnavailable, match=f"ask {leader}:1"):
                await yard.machines[name].run(node.tablespace("farm"))
            with pytest.raises(ProgrammingError, match="no tablespace nowhere"):
                await yard.machines[name].run(node.session("nowhere"))

    in_yard(script)


def test_a_node_that_is_closed_leaves_at_once() -> None:
    async def script(yard: Yard) -> None:
        await yard.add("a", "b")
        await yard.commands.create("farm", expected=2)
        leader = await yard.led()
        machine = yard.machines[leader]
        await elapse(1.0)
        await machine.run(machine.node.close())
        machine.alive = False
        closed_s = yard.loop.time()
        await yard.led()
        assert yard.loop.time() - closed_s < 1.0
        assert leader not in await yard.commands.nodes()

    in_yard(script)
