"""What a leader tells those who watch it."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from broker.commands import Spec
from broker.leading import measures
from broker.scheduling import Waiting
from broker.service import Broker
from engine.ports.metrics import LATENCY_BOUNDS_S, Counter, Histogram
from engine.state.memory import MemoryState
from tests.broker.service.clocks import LoopClock
from tests.broker.service.yard import CLIENT, LOG, REPLICA, FakeWorker, submitted
from tests.engine.ledger.scripted import Cluster
from tests.simulation.virtual import elapse, virtually


class _Value:
    def __init__(self) -> None:
        self.total = 0.0
        self.values: list[float] = []

    def add(self, amount: float = 1) -> None:
        self.total += amount

    def observe(self, value: float) -> None:
        self.values.append(value)


class _Watched:
    """Metrics that remember."""

    def __init__(self) -> None:
        self.told: dict[str, _Value] = {}
        self.asked: dict[str, Callable[[], float]] = {}

    def counter(self, name: str, says: str, **labels: str) -> Counter:
        return self._value(name, labels)

    def histogram(
        self, name: str, says: str, bounds: Sequence[float] = LATENCY_BOUNDS_S, **labels: str
    ) -> Histogram:
        return self._value(name, labels)

    def gauge(
        self, name: str, says: str, read: Callable[[], float], **labels: str
    ) -> Callable[[], None]:
        key = " ".join((name, *labels.values()))
        self.asked[key] = read
        return lambda: self.asked.pop(key, None) and None

    def _value(self, name: str, labels: dict[str, str]) -> _Value:
        return self.told.setdefault(" ".join((name, *labels.values())), _Value())


def test_a_leader_tells_of_its_tasks_and_workers() -> None:
    async def script() -> None:
        watched, cluster = _Watched(), await Cluster.of(1)
        cluster.client_clock = LoopClock()
        client = cluster.client(CLIENT)
        broker = await Broker.open(
            client, MemoryState(), replica_settings=REPLICA, log_settings=LOG, metrics=watched
        )
        await submitted(broker, *[Spec("a") for _ in range(5)])
        await elapse(2.0)
        prefix = "herdbook_broker_"
        assert watched.asked[f"{prefix}tasks waiting"]() == 5
        assert 1.9 < watched.asked[f"{prefix}oldest_waiting_seconds"]() < 2.1
        worker = await FakeWorker.connected(broker, places=3)
        runs = await worker.until_runs(3)
        assert watched.asked[f"{prefix}tasks running"]() == 3
        assert watched.asked[f"{prefix}workers"]() == 1
        await elapse(0.5)
        await worker.finish(*runs[:2])
        await worker.fail(runs[2])
        await worker.beat()
        await elapse(2.0)
        told = watched.told
        assert told[f"{prefix}completed_total"].total == 3
        assert told[f"{prefix}dispatched_total"].total == 5
        assert told[f"{prefix}dead_letters_total"].total == 1
        assert 1.9 < told[f"{prefix}dispatch_seconds default a"].values[0] < 2.1
        assert 0.4 < told[f"{prefix}run_seconds default a"].values[0] < 0.6
        await elapse(20.0)
        assert told[f"{prefix}leases_expired_total"].total == 1
        await broker.close()
        assert not [name for name in watched.asked if name.startswith(prefix)]

    virtually(script())


async def _opened(watched: _Watched) -> Broker:
    cluster = await Cluster.of(1)
    cluster.client_clock = LoopClock()
    client = cluster.client(CLIENT)
    return await Broker.open(
        client, MemoryState(), replica_settings=REPLICA, log_settings=LOG, metrics=watched
    )


def test_each_tenant_and_type_is_told_of() -> None:
    async def script() -> None:
        watched = _Watched()
        broker = await _opened(watched)
        await submitted(broker, Spec("mow", "green"), Spec("mow", "green"), Spec("plough", "red"))
        await elapse(2.0)
        await submitted(broker, Spec("plough", "green"))
        asked, prefix = watched.asked, "herdbook_broker_"
        await elapse(1.0)
        assert asked[f"{prefix}tenant_waiting green"]() == 3
        assert asked[f"{prefix}tenant_waiting red"]() == 1
        assert asked[f"{prefix}type_waiting plough"]() == 2
        assert 2.9 < asked[f"{prefix}tenant_oldest_waiting_seconds green"]() < 3.1
        assert 2.9 < asked[f"{prefix}type_oldest_waiting_seconds plough"]() < 3.1
        worker = await FakeWorker.connected(broker, places=10)
        await worker.finish(*await worker.until_runs(4))
        await elapse(2.0)
        pairs = {name.partition(" ")[2] for name in watched.told if "run_seconds" in name}
        assert pairs == {"green mow", "red plough", "green plough"}
        assert asked[f"{prefix}tenant_waiting green"]() == 0
        assert asked[f"{prefix}tenant_oldest_waiting_seconds green"]() == 0
        await broker.close()

    virtually(script())


def test_however_many_tenants_there_are_few_have_numbers_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script() -> None:
        watched = _Watched()
        broker = await _opened(watched)
        await submitted(broker, *[Spec("mow", f"tenant{number}") for number in range(20)])
        worker = await FakeWorker.connected(broker, places=20)
        await worker.until_runs(20)
        gauges = [name for name in watched.asked if "tenant_waiting" in name]
        assert len(gauges) == 5
        told = [name for name in watched.told if "dispatch_seconds" in name]
        assert len(told) == 6 and "herdbook_broker_dispatch_seconds other mow" in told
        await broker.close()

    monkeypatch.setattr(measures, "LABELS_MAX", 5)
    virtually(script())


def test_queues_are_counted_once_for_all_that_is_asked_at_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script() -> None:
        watched = _Watched()
        broker = await _opened(watched)
        await submitted(broker, *[Spec("mow", f"tenant{number}") for number in range(20)])
        await elapse(2.0)
        looks = 0
        scheduler = broker.term.scheduler
        queues = scheduler.queues

        def counted() -> Iterator[Waiting]:
            nonlocal looks
            looks += 1
            return queues()

        monkeypatch.setattr(scheduler, "queues", counted)
        waiting = [read for name, read in watched.asked.items() if "waiting" in name]
        for read in waiting:
            read()
        assert looks == 1
        await elapse(2.0)
        before = looks
        for read in waiting:
            read()
        assert looks == before + 1
        await broker.close()

    virtually(script())
