"""Anything that users and workers may do, in any order, on one broker: what must always hold.

Invariants checked after every step:
- What the leader has in memory is what a new leader would build from the rows.
"""

import asyncio
import random

from broker.commands import Refusal, Spec
from broker.connection import Completion, Ended
from broker.leading.term import Term
from broker.scheduling import Scheduler
from broker.service import Broker
from broker.settings import Limit, Pause
from broker.task import Mode, Status
from tests.broker.service.yard import FakeWorker, opened
from tests.simulation.virtual import elapse, virtually


async def _rebuilt(broker: Broker) -> Term:
    """What a leader that begins now would have."""
    term = Term(
        broker.replica,
        broker._clock,
        broker._later,
        lambda: 0,
        broker.settings,
        Scheduler(aging_ms=broker.settings.aging_ms),
        broker._measures,
    )
    await term.build()
    return term


def _waiting(term: Term) -> dict[object, int]:
    return {queue.key: queue.length for queue in term.scheduler.queues()}


def _to_come(term: Term) -> set[tuple[int, object, int]]:
    now_ms = term.time.now_ms()
    moments = term.timers._moments.items()
    return {(kind, key, at) for kind, keys in moments for key, at in keys.items() if at > now_ms}


async def _check(broker: Broker) -> None:
    """Compare as it is; then let all that is under way come to its end, and compare again."""
    assert broker.check_memory() == []
    for _ in range(200):
        await asyncio.sleep(0)
        if broker.term.dispatching.idle:
            break
    await elapse(0.01)
    assert broker.check_memory() == []
    term, fresh = broker.term, await _rebuilt(broker)
    assert _waiting(term) == _waiting(fresh)
    assert term.scheduler.running == fresh.scheduler.running
    for status in Status:
        if not status.final:
            assert term.counts[status] == fresh.counts[status], status
    assert _to_come(term) == _to_come(fresh)
    assert {one.worker_id: one.attempts for one in term.crew} == {
        one.worker_id: one.attempts for one in fresh.crew
    }


class _Driver:
    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.rng = random.Random(seed)
        self.ids: list[int] = []
        self.workers: list[FakeWorker] = []
        self.transactions: list[int] = []

    async def submit(self) -> None:
        rng, now_ms = self.rng, self.broker.term.time.now_ms()
        specs = [
            Spec(
                rng.choice("ab"),
                tenant=rng.choice(("x", "y")),
                priority=rng.choice((0, 0, 5)),
                due_ms=now_ms + rng.choice((0, 0, 0, 400)),
                deadline_ms=rng.choice((0, 0, 0, now_ms + 1_500)),
                attempts_max=rng.choice((0, 1, 3)),
                mode=rng.choice((Mode.AT_LEAST_ONCE, Mode.AT_MOST_ONCE)),
                slot=rng.choice(("", "", "one")),
            )
            for _ in range(rng.randrange(1, 6))
        ]
        transaction = rng.choice([0, 0, *self.transactions])
        answers = await self.broker.submit(specs, transaction=transaction)
        self.ids += [answer for answer in answers if not isinstance(answer, Refusal)]

    async def transact(self) -> None:
        if self.transactions and self.rng.random() < 0.7:
            end = self.rng.choice((self.broker.commit, self.broker.rollback))
            await end(self.transactions.pop())
        else:
            self.transactions.append(await self.broker.begin(ttl_ms=600_000))

    async def intervene(self) -> None:
        if self.ids:
            act = self.rng.choice((self.broker.cancel, self.broker.retry, self.broker.delete))
            await act(self.rng.sample(self.ids, min(3, len(self.ids))))

    async def limit(self) -> None:
        rng = self.rng
        await self.broker.set("type", "a", rng.choice((None, Limit(1), Limit(3))))
        await self.broker.set("pause", "tenant:y", rng.choice((None, None, Pause())))

    async def connect(self) -> None:
        rng = self.rng
        if len(self.workers) >= 3:
            gone = self.workers.pop(rng.randrange(3))
            await (gone.leave() if gone.link.open and rng.random() < 0.5 else gone.link.close())
        name = rng.choice("uvw")
        known = [one for one in self.workers if one.hello.worker_id == name]
        process_id = rng.choice(("first", "second"))
        running = tuple((run.id, run.attempt) for one in known for run in one.runs)
        worker = await FakeWorker.connected(
            self.broker, name, places=rng.randrange(1, 5), process_id=process_id, running=running
        )
        if worker.refused is None:
            worker.runs += [
                run
                for one in known
                for run in one.runs
                if worker.welcome is not None and (run.id, run.attempt) in worker.welcome.keep
            ]
            self.workers = [one for one in self.workers if one not in known]
            self.workers.append(worker)

    async def work(self) -> None:
        for worker in self.workers:
            if not worker.link.open:
                continue
            for message in worker.link.take():
                worker._take(message)
            ended = [
                Completion(run.id, run.attempt, self.rng.choice(list(Ended)), error="so")
                for run in worker.runs[:3]
            ]
            worker.runs = worker.runs[3:]
            if ended:
                await worker.tell(*ended)
            await worker.beat()

    async def wait(self) -> None:
        await elapse(self.rng.choice((0.05, 0.3, 0.3, 1.0, 2.5)))

    async def step(self) -> None:
        acts = (self.submit, self.submit, self.transact, self.intervene, self.limit)
        await self.rng.choice((*acts, self.connect, self.work, self.work, self.work, self.wait))()


def test_memory_is_always_what_a_new_leader_would_build() -> None:
    async def script(seed: int) -> None:
        async with opened() as broker:
            driver = _Driver(broker, seed)
            for _ in range(80):
                await driver.step()
                await _check(broker)

    for seed in range(6):
        virtually(script(seed))
