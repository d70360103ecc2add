"""Leases of workers under leaders that were replaced: judged by what workers really ran, when."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from broker.commands import Answer, Spec
from broker.connection import (
    Acked,
    Attempt,
    Completion,
    Done,
    Ended,
    Heartbeat,
    Hello,
    Run,
    Welcome,
    WorkerLimits,
)
from broker.errors import BrokerUnavailable, NotLeader
from broker.leading.link import LocalLink
from broker.service import Broker
from broker.settings import BrokerSettings, Limit
from broker.task import Mode, Status
from broker.worker.worker import Worker, WorkerSettings
from engine.errors import Deposed, MetadataUnavailable
from engine.errors import NotLeader as EngineNotLeader
from engine.metadata.contract import MetadataStore
from engine.ports.clock import Clock
from engine.replica import ConfirmedReads
from engine.replica.settings import ReplicaSettings
from engine.state.memory import MemoryState
from tests.broker.service.clocks import LoopClock
from tests.broker.service.held import held_broker
from tests.broker.service.yard import CLIENT, LOG, FakeWorker, submitted
from tests.engine.ledger.scripted import Cluster
from tests.simulation.virtual import elapse, virtually

REPLICA = ReplicaSettings(snapshot_entries=0, duties_ms=1_000, level_settle_ms=0, retry_pause_ms=5)
_CALLS = ("get", "set", "create", "delete", "children", "next_id", "sync")


class _Cut:
    """One process's session with the metadata store, which can be cut off by itself."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _CALLS:
            return found

        async def call(*values: Any, **named: Any) -> Any:
            if self.cut:
                raise MetadataUnavailable("cut off")
            return await found(*values, **named)

        return call


class _Ran:
    """What really ran, on all workers: task, attempt, from when until when."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.open: dict[Attempt, float] = {}
        self.spans: list[tuple[int, int, float, float]] = []

    def begin(self, attempt: Attempt) -> None:
        self.open[attempt] = self.clock.monotonic()

    def end(self, attempt: Attempt) -> None:
        self.spans.append((*attempt, self.open.pop(attempt), self.clock.monotonic()))

    def most_at_once(self, *task_ids: int) -> int:
        """How many attempts of these tasks ran at one moment."""
        now_s = self.clock.monotonic()
        spans = [*self.spans, *((*each, began, now_s + 1) for each, began in self.open.items())]
        mine = [(began, end) for id, _, began, end in spans if id in task_ids]
        return max(sum(b <= began < e for b, e in mine) for began, _ in mine)

    def begun(self, task_id: int) -> int:
        """How often a task has begun."""
        return sum(id == task_id for id, *_ in [*self.spans, *self.open])


class _Places:
    """Places of a worker in which attempts run until they are ended."""

    def __init__(self, ran: _Ran) -> None:
        self._ran = ran
        self._runs: list[Run] = []

    @property
    def running(self) -> list[Attempt]:
        return [(run.id, run.attempt) for run in self._runs]

    def __len__(self) -> int:
        return len(self._runs)

    def run(self, runs: list[Run]) -> None:
        self._runs += runs
        for run in runs:
            self._ran.begin((run.id, run.attempt))

    def interrupt(self, attempts: list[Attempt], reason: str) -> None:
        for run in [run for run in self._runs if (run.id, run.attempt) in attempts]:
            self._runs.remove(run)
            self._ran.end((run.id, run.attempt))

    def give_back(self) -> None:
        return

    async def end_all(self) -> None:
        self.interrupt(self.running, "")

    async def idle(self) -> None:
        await asyncio.Event().wait()


class _Port:
    """The way of one worker to one broker, which can be cut."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.cut = False

    async def connect(self, hello: Hello) -> LocalLink:
        if self.cut:
            raise BrokerUnavailable("cut off")
        return await self.broker.connect(hello)


@asynccontextmanager
async def _working(port: _Port, name: str, ran: _Ran) -> AsyncIterator[_Places]:
    """A worker, as it is in the product, over places of the test."""
    settings = WorkerSettings(name, name, limits=WorkerLimits(5))
    worker = Worker(port, settings, (), ran.clock, random.Random(1))
    places = _Places(ran)
    life = asyncio.create_task(worker.run(places))
    try:
        yield places
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


class _Brokers:
    """Brokers on one log, each with a metadata session of its own."""

    def __init__(self) -> None:
        self.brokers: dict[str, Broker] = {}
        self.stores: dict[str, _Cut] = {}

    async def leader(self, *without: Broker) -> Broker:
        async with asyncio.timeout(60):
            while True:
                for broker in self.brokers.values():
                    if broker.serving and broker.replica.may_answer() and broker not in without:
                        return broker
                await elapse(0.05)


@asynccontextmanager
async def _brokers(*leases_ms: int) -> AsyncIterator[tuple[_Brokers, LoopClock]]:
    cluster, made, clock = await Cluster.of(1), _Brokers(), LoopClock()
    cluster.client_clock = clock
    for number, lease_ms in enumerate(leases_ms):
        name = f"broker {number}"
        store = made.stores[name] = _Cut(cluster.tree.session())
        client = cluster.client(replace(CLIENT, lease_ms=300), store=store)
        made.brokers[name] = await Broker.open(
            client,
            MemoryState(),
            settings=BrokerSettings(lease_ms=lease_ms),
            address=name,
            elect=True,
            replica_settings=REPLICA,
            log_settings=LOG,
        )
        if not number:
            await made.leader()
    try:
        yield made, clock
    finally:
        for store in made.stores.values():
            store.cut = False
        for broker in made.brokers.values():
            await broker.close()


@pytest.mark.parametrize("lease_ms", [200, 300, 2_000, 6_000])
def test_no_task_runs_twice_when_a_leader_loses_only_its_metadata_store(lease_ms: int) -> None:
    async def script() -> None:
        async with _brokers(lease_ms, lease_ms, lease_ms) as (made, clock):
            old, ran = await made.leader(), _Ran(clock)
            await old.set("resource", "db", Limit(1))
            limited = Spec("a", attempts_max=0, fixed=True, group=1, resources=("db",))
            async with _working(_Port(old), "one", ran) as first:
                ids = await submitted(
                    old, Spec("a", attempts_max=0), Spec("a", mode=Mode.AT_MOST_ONCE), limited
                )
                await elapse(1.0)
                assert len(first) == 3
                waiting = asyncio.create_task(old.wait(ids[1]))
                made.stores[old.replica.address].cut = True
                new = await made.leader(old)
                async with _working(_Port(new), "two", ran) as second:
                    await elapse(lease_ms / 1000 * 2 + 3)
                    assert len(second) == 2 and not len(first)
                    for task_id in ids:
                        assert ran.most_at_once(task_id) == 1
                    assert ran.begun(ids[1]) == 1 and new.get(ids[1]).status is Status.LOST
                    assert waiting.done() and isinstance(waiting.exception(), NotLeader)
                    assert not old.replica.may_answer()

    virtually(script())


def test_resource_limits_hold_when_a_leader_loses_only_its_metadata_store() -> None:
    """A roll-out's limit, m of n nodes at a time, is enforced as a resource limit, too."""
    limits = {"db": 1, "cluster:stables": 2}

    async def script() -> None:
        async with _brokers(2_000, 2_000, 2_000) as (made, clock):
            old, ran = await made.leader(), _Ran(clock)
            tasks: dict[str, list[int]] = {}
            async with _working(_Port(old), "one", ran) as first:
                for name, limit in limits.items():
                    await old.set("resource", name, Limit(limit))
                    spec = Spec("a", attempts_max=0, fixed=True, group=1, resources=(name,))
                    tasks[name] = await submitted(old, *[spec] * (limit + 1))
                await elapse(1.0)
                assert len(first) == sum(limits.values())
                made.stores[old.replica.address].cut = True
                new = await made.leader(old)
                async with _working(_Port(new), "two", ran) as second:
                    await elapse(10.0)
                    assert not len(first) and len(second) == sum(limits.values())
                    for name, limit in limits.items():
                        assert ran.most_at_once(*tasks[name]) == limit

    virtually(script())


@pytest.mark.parametrize("missed_welcome", [False, True])
def test_the_longer_lease_applies_if_two_leaders_have_different_ones(
    missed_welcome: bool,
) -> None:
    async def script() -> None:
        async with _brokers(20_000, 2_000) as (made, clock):
            old, ran = await made.leader(), _Ran(clock)
            port = _Port(old)
            async with _working(port, "one", ran) as first:
                [task_id] = await submitted(old, Spec("a", attempts_max=0))
                await elapse(0.5)
                assert len(first) == 1
                port.cut = True
                await old.close()
                new = await made.leader(old)
                if missed_welcome:
                    # Its new session is logged, and it never hears of that.
                    hello = Hello("one", "one", "", (), WorkerLimits(5), tuple(first.running))
                    await (await new.connect(hello)).close()
                async with _working(_Port(new), "two", ran) as second:
                    await elapse(25)
                    assert not len(first) and len(second) == 1
                    assert ran.most_at_once(task_id) == 1

    virtually(script())


def test_a_worker_uses_a_shorter_lease_as_soon_as_it_knows_it() -> None:
    async def script() -> None:
        async with _brokers(20_000, 2_000) as (made, clock):
            old, ran = await made.leader(), _Ran(clock)
            port = _Port(old)
            async with _working(port, "one", ran) as first:
                [task_id] = await submitted(old, Spec("a", attempts_max=0))
                await elapse(0.5)
                port.cut = True
                await old.close()
                port.broker = new = await made.leader(old)
                port.cut = False
                member = new.term.crew.get("one")
                assert member is not None
                while member.link is None:
                    await elapse(0.05)
                await elapse(0.5)
                assert len(first) == 1 and ran.begun(task_id) == 1
                port.cut = True
                member.link.end("cut off")
                async with _working(_Port(new), "two", ran) as second:
                    await elapse(4.0)
                    assert len(second) == 1 and not len(first)
                    assert ran.most_at_once(task_id) == 1

    virtually(script())


async def test_a_leader_whose_lease_has_expired_answers_from_memory_only_what_is_confirmed() -> (
    None
):
    async with held_broker() as held:
        broker = held.broker
        [task_id] = await submitted(broker, Spec("a"))
        held.replica.leased = False
        for asked in (broker.queues, broker.counts, broker.resources, broker.ended, broker.now_ms):
            with pytest.raises(NotLeader) as caught:
                await asked()
            assert caught.value.retryable
        for read in (broker.wait(task_id), broker.task(task_id)):
            with pytest.raises(NotLeader):
                await read


async def test_a_submission_that_another_caller_sent_is_never_said_to_have_done_nothing() -> None:
    async with held_broker() as held:
        broker = held.broker
        held.replica.leased, held.replica.deposed = False, True

        async def submit() -> None:
            async with ConfirmedReads():
                await broker.submit([Spec("a")])
                await broker.now_ms()

        # Those of one turn share a command.
        told = await asyncio.gather(submit(), submit(), return_exceptions=True)
        assert held.replica.proposed == 1
        assert [type(each) for each in told] == [Deposed, Deposed]


async def test_a_wait_that_is_over_in_time_looks_again_before_it_says_so() -> None:
    async with held_broker() as held:
        [task_id] = await submitted(held.broker, Spec("a"))

        async def waiting() -> None:
            async with ConfirmedReads():
                await held.broker.wait(task_id, 50)

        task = asyncio.create_task(waiting())
        await held.turns()
        held.replica.leased, held.replica.deposed = False, True
        with pytest.raises(EngineNotLeader):
            await task


async def test_a_leader_whose_lease_has_expired_assigns_what_the_log_takes() -> None:
    async with held_broker(BrokerSettings(lease_ms=2_000)) as held:
        broker = held.broker
        worker = await FakeWorker.connected(broker, places=1)
        ids = await submitted(broker, Spec("a"), Spec("a"))
        [run] = await worker.until_runs(1)
        waiting = asyncio.create_task(broker.wait(ids[0]))
        await held.turns()
        held.replica.leased = False
        ended = Completion(run.id, run.attempt, Ended.FINISHED)
        await worker.link.send([Done(worker.next(), worker.session, [ended])])
        await held.advance(400)
        assert (await waiting).status is Status.FINISHED
        [other] = await worker.until_runs(1)
        assert other.id == ids[1]


async def test_commands_are_accepted_while_the_lease_has_expired() -> None:
    async with held_broker() as held:
        broker = held.broker
        held.replica.leased = False
        [task_id] = await broker.submit([Spec("a")])
        assert isinstance(task_id, int)
        assert await broker.cancel([task_id]) == [Answer.DONE]
        assert await broker.set("resource", "db", Limit(1))


async def test_an_assigned_task_is_sent_only_after_the_log_has_taken_the_assignment() -> None:
    async with held_broker() as held:
        broker = held.broker
        worker = await FakeWorker.connected(broker)
        held.replica.held = True
        submitting = asyncio.create_task(broker.submit([Spec("a", mode=Mode.AT_MOST_ONCE)]))
        await held.turns()
        held.replica.apply(1)
        await held.turns()
        [task_id] = await submitting
        assert isinstance(task_id, int) and task_id in broker.term.dispatching.under_way_tasks
        held.replica.leased = False
        await held.turns()
        assert worker.link.take() == []
        held.replica.release()
        [run] = await worker.until_runs(1)
        assert (run.id, run.attempt) == (task_id, 1)


async def test_a_worker_is_welcomed_if_the_log_accepts_its_session() -> None:
    async with held_broker() as held:
        held.replica.leased = False
        held.replica.held = True
        hello = Hello("w", "first", "here", (), WorkerLimits(5))
        connecting = asyncio.create_task(held.broker.connect(hello))
        await held.turns()
        assert not connecting.done()
        held.replica.release()
        link = await connecting
        assert link.open and [type(message) for message in link.take()] == [Welcome]


async def test_heartbeats_without_the_lease_are_acknowledged_once_a_later_append_is() -> None:
    async with held_broker() as held:
        one = await FakeWorker.connected(held.broker, "one")
        two = await FakeWorker.connected(held.broker, "two")
        held.replica.leased = False
        held.replica.held = True
        before = held.replica.proposed
        await one.link.send([Heartbeat(1, one.session, 0, 0)])
        # These come too late for the append that is under way, and share the next one.
        await one.link.send([Heartbeat(2, one.session, 0, 0)])
        await two.link.send([Heartbeat(1, two.session, 0, 0)])
        await held.turns()
        assert one.link.take() == two.link.take() == [] and held.replica.proposed == before + 1
        held.replica.apply(1)
        await held.turns()
        assert one.link.take() == [Acked(1)] and two.link.take() == []
        assert held.replica.proposed == before + 2
        held.replica.apply(1)
        await held.turns()
        assert one.link.take() == [Acked(2)] and two.link.take() == [Acked(1)]


async def test_a_heartbeat_is_not_acknowledged_if_the_log_refuses_the_append() -> None:
    async with held_broker() as held:
        worker = await FakeWorker.connected(held.broker)
        held.replica.leased = False
        held.replica.held = True
        await worker.link.send([Heartbeat(1, worker.session, 0, 0)])
        [(_, waiter)] = held.replica.waiting
        held.replica.waiting.clear()
        waiter.set_exception(Deposed("another leader has closed the log"))
        await held.turns()
        assert worker.link.take() == []


def test_an_outage_of_the_metadata_store_ends_no_task() -> None:
    async def script() -> None:
        async with _brokers(2_000, 2_000) as (made, clock):
            leader, ran = await made.leader(), _Ran(clock)
            async with _working(_Port(leader), "one", ran) as places:
                [task_id] = await submitted(leader, Spec("a"))
                await elapse(0.5)
                for store in made.stores.values():
                    store.cut = True
                await elapse(10)
                assert not leader.replica.may_answer() and len(places) == 1
                member = leader.term_without_lease.crew.get("one")
                assert member is not None and member.link is not None
                # Its connection breaks, too.
                member.link.end("cut off")
                await elapse(10)
                assert len(places) == 1
                for store in made.stores.values():
                    store.cut = False
                assert await made.leader() is leader
                assert leader.get(task_id).attempt == ran.begun(task_id) == 1

    virtually(script())
