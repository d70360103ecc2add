"""Any sequence of what can happen: no limit is passed, nothing idles that may run, counts end at 0.

The model keeps every task in a list and looks through all of them each time.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.connection import WorkerLimits
from broker.scheduling import Pick, QueueKey, Scheduler
from broker.settings import Limit, Mapping, Pause, Rate, TenantLimits

TENANTS = ("ann", "bob", "cyd")
TYPES = ("mow", "plough")
RESOURCES = ("barn", "well")
WORKERS = ("w1", "w2")


def some_limits(rng: Random) -> WorkerLimits:
    """Any limits of a worker, wide ones as often as narrow ones."""
    wide = rng.random() < 0.5
    return WorkerLimits(
        places=rng.randint(3, 12) if wide else rng.randint(0, 5),
        places_by_type={} if wide else some_of(rng, (*TYPES, "any"), 5),
        groups=rng.choice([(0,), (0,), (1,), (2,), (2, 0), (1, 2)]),
        excluded=rng.choice([(), (), (2,)]),
        resource_limits={} if wide else some_of(rng, RESOURCES, 4),
        share_percent=rng.choice([0, 0, 50]),
    )


def some_of(rng: Random, names: Sequence[str], most: int) -> dict[str, int]:
    """A number for some of the names."""
    return {name: rng.randint(0, most) for name in names if rng.random() < 0.4}


@dataclass
class Model:
    """All that was told to the scheduler."""

    waiting: dict[int, QueueKey] = field(default_factory=dict)
    running: dict[int, Pick] = field(default_factory=dict)
    workers: dict[str, tuple[tuple[str, ...], WorkerLimits]] = field(default_factory=dict)
    limits: dict[tuple[str, str], int] = field(default_factory=dict)
    maximums: dict[str, int] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    mapped: dict[str, Mapping] = field(default_factory=dict)

    def may_run(self, worker_id: str, key: QueueKey) -> bool:
        """Whether one more task of a queue may begin on a worker, rates apart."""
        run_types, limits = self.workers[worker_id]
        row = self.mapped.get(key.tenant, Mapping())
        here = [pick for pick in self.running.values() if pick.worker_id == worker_id]
        everywhere = list(self.running.values())
        if limits.groups and row.group not in limits.groups and 0 not in limits.groups:
            return False
        if row.group in limits.excluded or (run_types and key.type not in run_types):
            return False
        if {f"tenant:{key.tenant}", f"type:{key.type}"} & self.paused:
            return False
        of_tenant = sum(pick.tenant == key.tenant for pick in everywhere)
        of_type = sum(pick.type == key.type for pick in everywhere)
        if of_tenant >= self.maximums.get(key.tenant, 10**6):
            return False
        if of_type >= self.limits.get(("type", key.type), 10**6):
            return False
        used = Counter(name for pick in everywhere for name in pick.resources)
        used_here = Counter(name for pick in here for name in pick.resources)
        for name in row.resources:
            if used[name] >= self.limits.get(("resource", name), 10**6):
                return False
            if used_here[name] >= limits.resource_limits.get(name, 10**6):
                return False
        return len(here) < limits.places and self._has_place(limits, here, key)

    def _has_place(self, limits: WorkerLimits, here: list[Pick], key: QueueKey) -> bool:
        named = limits.places_by_type
        slot = key.type if key.type in named else "any"
        alike = [p for p in here if (p.type if p.type in named else "any") == slot]
        if slot in named and len(alike) >= named[slot]:
            return False
        if not limits.share_percent:
            return True
        places = min(limits.places, named.get(slot, limits.places))
        own = sum((pick.tenant, pick.type) == (key.tenant, key.type) for pick in here)
        return own < max(1, places * limits.share_percent // 100)


class Walk:
    """The scheduler beside the model, and steps that tell both the same."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.scheduler = Scheduler(aging_ms=1_000)
        self.model = Model()
        self.following = 1
        self.now_ms = 0
        self.rated: set[str] = set()

    def step(self) -> None:
        """Something happens."""
        often = [self.push] * 6 + [self.take] * 10 + [self.end] * 6 + [self.cancel] * 2
        seldom = [self.connect, self.disconnect, self.limit, self.share, self.map, self.pause]
        self.rng.choice([*often, *seldom, self.rate])()
        self.agree()

    def push(self) -> None:
        """Tasks wait."""
        rng, count = self.rng, self.rng.randint(1, 6)
        key = QueueKey(rng.choice(TENANTS), rng.choice(TYPES), rng.randint(-1, 2))
        ids = range(self.following, self.following + count)
        self.scheduler.push_many(key, ids, self.now_ms)
        self.model.waiting |= dict.fromkeys(ids, key)
        self.following += count

    def connect(self) -> None:
        """A worker comes, or changes."""
        worker, types = self.rng.choice(WORKERS), self.rng.choice([(), (), ("mow",)])
        limits = some_limits(self.rng)
        self.scheduler.connect(worker, types, limits)
        self.model.workers[worker] = (types, limits)

    def disconnect(self) -> None:
        """A worker is gone."""
        worker = self.rng.choice(WORKERS)
        self.scheduler.disconnect(worker)
        self.model.workers.pop(worker, None)

    def take(self) -> None:
        """A worker asks: each task may run at its turn, and none that may is left while it asks."""
        worker, count = self.rng.choice(WORKERS), self.rng.randint(1, 8)
        self.now_ms += self.rng.randint(0, 500)
        picks = self.scheduler.take(worker, count, self.now_ms)
        model = self.model
        for pick in picks:
            assert model.may_run(worker, model.waiting.pop(pick.id)), pick
            model.running[pick.id] = pick
        if len(picks) < count and worker in model.workers and not self.rated:
            assert not [key for key in model.waiting.values() if model.may_run(worker, key)]

    def end(self) -> None:
        """Running tasks end, or go back to where they were."""
        running = self.model.running
        chosen = [task_id for task_id in running if self.rng.random() < 0.3]
        picks = [running.pop(task_id) for task_id in chosen]
        if self.rng.random() < 0.3:
            self.scheduler.restore(chosen)
            self.model.waiting |= {pick.id: pick.key for pick in picks}
        else:
            assert [self.scheduler.release(task_id) for task_id in chosen] == picks

    def cancel(self) -> None:
        """Waiting tasks are cancelled."""
        waiting = self.model.waiting
        for task_id in [task_id for task_id in waiting if self.rng.random() < 0.2]:
            self.scheduler.remove(waiting.pop(task_id), task_id)

    def limit(self) -> None:
        """A global limit changes."""
        kind, names = self.rng.choice([("type", TYPES), ("resource", RESOURCES)])
        name, limit = self.rng.choice(names), self.rng.choice([None, None, 0, 2, 4])
        self.scheduler.configure(kind, name, None if limit is None else Limit(limit))
        self.model.limits.pop((kind, name), None)
        if limit is not None:
            self.model.limits[kind, name] = limit

    def share(self) -> None:
        """A tenant's share changes."""
        tenant, low = self.rng.choice(TENANTS), self.rng.randint(0, 3)
        most = self.rng.choice([None, low, low + 2])
        weight = self.rng.choice([0.5, 1.0, 3.0])
        self.scheduler.configure("tenant", tenant, TenantLimits(weight, low, most))
        self.model.maximums.pop(tenant, None)
        if most is not None:
            self.model.maximums[tenant] = most

    def map(self) -> None:
        """A tenant's tasks run elsewhere."""
        tenant, names = self.rng.choice(TENANTS), self.rng.choice([(), ("barn",), RESOURCES])
        self.model.mapped[tenant] = Mapping(self.rng.randint(1, 2), names)
        self.scheduler.configure("mapping", tenant, self.model.mapped[tenant])

    def pause(self) -> None:
        """Something is paused, or goes on."""
        name, paused = self.rng.choice(["tenant:ann", "type:mow"]), self.model.paused
        self.scheduler.configure("pause", name, None if name in paused else Pause())
        (paused.discard if name in paused else paused.add)(name)

    def rate(self) -> None:
        """A rate is set, or taken away."""
        name = self.rng.choice(["tenant:bob", "type:mow", "resource:barn"])
        rate = None if name in self.rated else Rate(self.rng.randint(1, 9))
        self.scheduler.configure("rate", name, rate)
        (self.rated.discard if name in self.rated else self.rated.add)(name)

    def agree(self) -> None:
        """What waits and runs is what was told."""
        assert self.scheduler.waiting == len(self.model.waiting)
        assert self.scheduler.running == len(self.model.running)
        for tenant in TENANTS:
            waiting = sum(key.tenant == tenant for key in self.model.waiting.values())
            running = sum(pick.tenant == tenant for pick in self.model.running.values())
            known = self.scheduler.index.tenant(tenant)
            assert (known.waiting, known.gate.used) == (waiting, running)

    def assert_all_returns_to_zero(self) -> None:
        """All counters return to zero."""
        for task_id in self.model.running:
            self.scheduler.release(task_id)
        for task_id, key in self.model.waiting.items():
            self.scheduler.remove(key, task_id)
        assert self.scheduler.waiting == self.scheduler.running == 0
        assert not self.scheduler.index.wanted
        assert list(self.scheduler.queues()) == []
        for gate in self.scheduler.index.gates():
            assert (gate.used, gate.lanes, gate.parked) == (0, 0, {})
        for worker in self.scheduler.workers.values():
            assert (worker.running, worker.use_of_resources()) == (0, {})


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_happens_limits_hold_and_nothing_idles_that_may_run(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(120):
        walk.step()
    walk.assert_all_returns_to_zero()
