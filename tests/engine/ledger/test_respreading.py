"""Replicas that had to share a machine part again as soon as another machine has room for one."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from engine.errors import LedgerFenced
from engine.ledger.lookout import Lookout
from engine.ledger.writer import LedgerWriter
from engine.metadata.bookies import Bookies, Registration
from engine.transport.contract import Status
from tests.engine.ledger.scripted import QUICK, Cluster, LoopClock, turns, until
from tests.simulation.virtual import elapse, virtually


def host_of(bookie_id: str) -> str:
    """Bookie "a1" stands on host "a"."""
    return bookie_id[0]


def shared(writer: LedgerWriter) -> int:
    """How many replicas stand on a host that has another one."""
    return 3 - len({host_of(name) for name in writer.metadata.fragments[-1].ensemble})


class Hosts(Cluster):
    """A cluster whose bookies say where they stand."""

    async def come(self, *names: str) -> None:
        """Bookies start, or start again."""
        for name in names:
            bookie = self.transport.bookies.get(name) or await self.add(name)
            if bookie.down:
                bookie.boot += 1
            bookie.down = False
            bookie.append_status = Status.OK
            found = Registration(name, bookie.boot, host=host_of(name))
            await self.registry.register(found)

    async def go(self, host: str) -> None:
        """A machine goes with all its bookies."""
        for bookie in self.bookies:
            if host_of(bookie.bookie_id) == host:
                bookie.down, bookie.append_status = True, Status.UNAVAILABLE
                await self.registry.unregister(bookie.bookie_id)


async def hosts(*names: str) -> Hosts:
    cluster = await Hosts.of(0)
    await cluster.come(*names)
    return cluster


AT_ONCE = replace(QUICK, respread_ms=0)


async def test_a_machine_that_comes_back_takes_its_replica_again() -> None:
    cluster = await hosts("a1", "a2", "b1", "b2", "c1", "c2")
    writer = await cluster.client(AT_ONCE).create_ledger(3, 3, 2)
    for count, host in enumerate("abc"):
        await cluster.go(host)
        assert await writer.append(b"alone") == 2 * count
        await until(lambda: shared(writer) == 1)
        await cluster.come(f"{host}1", f"{host}2")
        await until(lambda: shared(writer) == 0 and writer._replication.complete)
        assert await writer.append(b"together") == 2 * count + 1
    await until(lambda: writer._replication.complete)
    ensemble = writer.metadata.fragments[-1].ensemble
    assert all(5 in cluster.at(ensemble, index).entries[writer.ledger_id] for index in range(3))
    assert await writer.close() == 5
    reader = await cluster.client().open_ledger(writer.ledger_id)
    assert len([entry async for entry in reader.read(0, 5)]) == 6


async def test_all_three_part_one_after_the_other_when_machines_come() -> None:
    cluster = await hosts("a1", "a2", "a3")
    writer = await cluster.client(AT_ONCE).create_ledger(3, 3, 2)
    await writer.append(b"x")
    await cluster.come("b1")
    await until(lambda: shared(writer) == 1 and writer._replication.complete)
    assert await writer.append(b"y") == 1
    await cluster.come("c1")
    await until(lambda: shared(writer) == 0 and writer._replication.complete)
    assert len(writer.metadata.fragments) == 3
    assert await writer.append(b"z") == 2
    await writer.close()


async def test_replicas_rest_where_no_move_spreads_them_better() -> None:
    cluster = await hosts("a1", "a2", "b1")
    writer = await cluster.client(AT_ONCE).create_ledger(3, 3, 2)
    await writer.append(b"x")
    for name in ("a3", "b2", "b3", "a4"):
        await cluster.come(name)
        await elapse(0.1)
    assert len(writer.metadata.fragments) == 1 and shared(writer) == 1
    assert await writer.append(b"y") == 1
    await writer.close()


async def test_a_replica_is_not_moved_while_another_one_is_away() -> None:
    cluster = await hosts("a1", "a2", "b1")
    writer = await cluster.client(AT_ONCE).create_ledger(3, 3, 2)
    await writer.append(b"x")
    await cluster.go("b")
    await writer.append(b"y")
    assert Counter(map(host_of, writer.metadata.fragments[-1].ensemble)) == {"a": 2, "b": 1}
    await cluster.come("c1")
    await until(lambda: shared(writer) == 1 and writer._replication.complete)
    assert Counter(map(host_of, writer.metadata.fragments[-1].ensemble)) == {"a": 2, "c": 1}
    assert await writer.append(b"z") == 2
    await writer.close()


async def test_no_replica_moves_to_a_bookie_that_does_not_answer() -> None:
    cluster = await hosts("a1", "a2", "b1")
    writer = await cluster.client(AT_ONCE).create_ledger(3, 3, 2)
    await writer.append(b"x")
    await cluster.add("c1")
    cluster.transport.bookies["c1"].down = True
    await cluster.registry.register(Registration("c1", 2, host="c"))
    await elapse(0.1)
    assert await writer.append(b"y") == 1
    assert len(writer.metadata.fragments) == 1 and shared(writer) == 1
    await writer.close()


@pytest.mark.parametrize(("lagging", "moved"), [("a1", "a2"), ("a2", "a1")])
async def test_the_replica_that_lags_behind_is_not_the_one_that_moves(
    lagging: str, moved: str
) -> None:
    cluster = await hosts("a1", "a2", "b1")
    writer = await cluster.client(AT_ONCE).create_ledger(3, 3, 2)
    cluster.transport.bookies[lagging].mute = True
    await writer.append(b"x")
    await cluster.come("c1")
    await until(lambda: shared(writer) == 0)
    assert set(writer.metadata.fragments[-1].ensemble) == {"a1", "a2", "b1", "c1"} - {moved}
    await writer.close()


async def test_nothing_moves_where_an_append_needs_every_bookie() -> None:
    cluster = await hosts("a1", "a2", "b1")
    writer = await cluster.client(AT_ONCE).create_ledger(3, 3, 3)
    await writer.append(b"x")
    await cluster.come("c1")
    await elapse(0.1)
    assert await writer.append(b"y") == 1
    assert len(writer.metadata.fragments) == 1
    await writer.close()


async def test_the_replica_on_the_clients_own_machine_stays_there() -> None:
    cluster = await hosts()
    for name, rack in {"a1": "x", "b1": "x", "c1": "x"}.items():
        await cluster.add(name)
        await cluster.registry.register(Registration(name, 1, host=host_of(name), rack=rack))
    near = replace(AT_ONCE, host="a")
    writer = await cluster.client(near).create_ledger(3, 3, 2)
    await writer.append(b"x")
    await cluster.add("d1")
    await cluster.registry.register(Registration("d1", 1, host="d", rack="y"))
    await until(lambda: "d1" in writer.metadata.fragments[-1].ensemble)
    assert "a1" in writer.metadata.fragments[-1].ensemble
    assert await writer.append(b"y") == 1
    await writer.close()


async def test_a_writer_that_is_fenced_while_a_replica_moves_comes_to_rest() -> None:
    cluster = await hosts("a1", "a2", "b1")
    writer = await cluster.client(AT_ONCE).create_ledger(3, 3, 2)
    await writer.append(b"x")
    for bookie in cluster.bookies:
        bookie.append_status = Status.FENCED
    await cluster.come("c1")
    with pytest.raises(LedgerFenced):
        await writer.append(b"y")
    await elapse(0.1)
    assert len(writer.metadata.fragments) <= 2
    await writer.close()


@pytest.mark.real_time  # It acts in the very turn in which the change begins.
async def test_who_looks_after_a_change_that_was_cut_short_looks_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = await hosts("a1", "a2", "b1")
    writer = await cluster.client(AT_ONCE).create_ledger(3, 3, 2)
    await writer.append(b"x")
    looks: list[None] = []
    news = Lookout.news

    def counted(lookout: Lookout) -> None:
        looks.append(None)
        news(lookout)

    await cluster.come("c1")
    while writer._replication.changing is None:
        await turns(1)
    monkeypatch.setattr(Lookout, "news", counted)
    writer._respreading.news()
    writer._replication.stop(LedgerFenced("taken over"))
    await turns(300)
    assert len(looks) < 10
    writer.abandon(LedgerFenced("taken over"))


async def test_a_writer_that_closes_moves_no_replica() -> None:
    cluster = await hosts("a1", "a2", "b1")
    writer = await cluster.client(AT_ONCE).create_ledger(3, 3, 2)
    await writer.append(b"x")
    for bookie in cluster.bookies:
        bookie.holding = True
    last = writer.append(b"y")
    closing = asyncio.ensure_future(writer.close())
    await cluster.come("c1")
    await elapse(0.1)
    for bookie in cluster.bookies:
        bookie.holding = False
        bookie.release()
    assert await last == await closing == 1
    assert len(writer.metadata.fragments) == 1 and not writer.metadata.degraded


async def rested_for_5_s() -> tuple[Hosts, LedgerWriter]:
    """A ledger over three machines, one of them with two disks, and quarantines of five seconds."""
    cluster = await hosts("a1", "b1", "c1", "c2")
    cluster.client_clock = LoopClock()
    client = cluster.client(replace(AT_ONCE, quarantine_ms=5_000))
    return cluster, await client.create_ledger(3, 3, 2)


async def cut_off_for_1_s(cluster: Hosts, writer: LedgerWriter) -> None:
    """Bookie "a1" fails, keeps its registration, and is well again."""
    cut_off = cluster.transport.bookies["a1"]
    cut_off.append_status = Status.UNAVAILABLE
    await writer.append(b"x")
    await elapse(1)
    cut_off.append_status = Status.OK


def test_a_writer_that_goes_on_without_a_replacement_asks_for_none_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[None] = []
    available = Bookies.available

    async def counted(bookies: Bookies) -> dict[str, Registration]:
        asked.append(None)
        return await available(bookies)

    async def script() -> None:
        cluster = await hosts("a1", "b1", "c1")
        cluster.client_clock = LoopClock()
        writer = await cluster.client(replace(QUICK, quarantine_ms=600_000)).create_ledger(3, 3, 2)
        cluster.transport.bookies["c1"].append_status = Status.UNAVAILABLE
        await writer.append(b"x")
        await elapse(10)
        monkeypatch.setattr(Bookies, "available", counted)
        await elapse(300)
        assert not writer._replication.whole and len(asked) < 3
        await writer.close()

    virtually(script())


def test_moves_that_stood_let_nobody_wait_longer() -> None:
    async def script() -> None:
        cluster, writer = await rested_for_5_s()
        for _ in range(6):
            await cluster.go("a")
            await writer.append(b"alone")
            await elapse(1)
            assert shared(writer) == 1
            await cluster.come("a1")
            await elapse(20)
            assert shared(writer) == 0
        await cut_off_for_1_s(cluster, writer)
        await elapse(12)
        assert shared(writer) == 0
        await writer.close()

    virtually(script())


def test_a_machine_that_was_only_cut_off_takes_its_replica_after_its_quarantine() -> None:
    async def script() -> None:
        cluster, writer = await rested_for_5_s()
        await cut_off_for_1_s(cluster, writer)
        assert shared(writer) == 1
        await elapse(1)
        assert shared(writer) == 1
        await elapse(5)
        assert shared(writer) == 0
        await writer.close()

    virtually(script())
