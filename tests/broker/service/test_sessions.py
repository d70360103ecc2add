"""Workers that come, fall silent, come back and leave, in virtual time."""

import pytest

from broker.commands import Spec
from broker.connection import (
    Completion,
    Config,
    Ended,
    Heartbeat,
    Hello,
    Leaving,
    Refused,
    WorkerLimits,
)
from broker.errors import SessionLost, UnknownTransaction
from broker.spec import HELD_MAX
from broker.task import Mode, Status
from tests.broker.service.yard import FakeWorker, opened, submitted
from tests.engine.ledger.scripted import turns
from tests.engine.replica.yard import until
from tests.simulation.virtual import elapse, virtually


def test_a_worker_that_falls_silent_loses_its_tasks_after_a_whole_lease() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker)
            once, again = await submitted(
                broker, Spec("a", mode=Mode.AT_MOST_ONCE), Spec("a", attempts_max=0)
            )
            await worker.until_runs(2)
            await elapse(1.0)
            await worker.beat()
            await elapse(1.9)
            assert broker.get(once).status is Status.RUNNING
            await elapse(0.5)
            assert broker.get(once).status is Status.LOST
            assert broker.get(again).status is Status.DELAYED
            with pytest.raises(SessionLost):
                await worker.link.receive()
            assert broker.term.scheduler.running == 0

    virtually(script())


def test_heartbeats_of_a_worker_that_takes_nothing_in_do_not_keep_it_alive() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker)
            [task_id] = await submitted(broker, Spec("a"))
            await worker.until_runs(1)
            for _ in range(12):
                await elapse(0.5)
                if not worker.link.open:
                    break
                beat = Heartbeat(worker.next(), worker.session, 1, taken_total=0)
                await worker.link.send([beat])
            assert broker.get(task_id).status is Status.ERROR

    virtually(script())


async def test_a_worker_that_comes_back_goes_on_with_what_it_runs() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        kept, forgotten = await submitted(broker, Spec("a"), Spec("a", attempts_max=0))
        await worker.until_runs(2)
        await worker.link.close()
        back = await FakeWorker.connected(broker, running=((kept, 1), (4711, 1)))
        assert back.welcome is not None and back.session > worker.session
        assert (back.welcome.keep, back.welcome.drop) == (((kept, 1),), ((4711, 1),))
        [again] = await back.until_runs(1)
        assert (again.id, again.attempt) == (forgotten, 2), "it never came to the worker"
        await back.tell(Completion(kept, 1, Ended.FINISHED, b"done"))
        await back.finish(again)
        assert broker.get(kept).status is Status.FINISHED
        assert broker.term.scheduler.running == 0


def test_a_new_process_of_a_worker_has_nothing_of_the_one_before() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker)
            [task_id] = await submitted(broker, Spec("a"))
            await worker.until_runs(1)
            await worker.link.close()
            await elapse(2.5)
            back = await FakeWorker.connected(broker, process_id="second", running=((task_id, 1),))
            assert back.welcome is not None and not back.welcome.keep
            assert broker.get(task_id).status is Status.ERROR

    virtually(script())


async def test_a_second_process_under_the_name_of_a_living_one_is_refused() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        second = await FakeWorker.connected(broker, process_id="second")
        assert second.refused is not None and "already connected" in second.refused.reason
        await worker.beat()


async def test_what_was_assigned_to_a_worker_that_went_away_never_began() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        [task_id] = await submitted(broker, Spec("a", mode=Mode.AT_MOST_ONCE))
        await until(lambda: broker.term.scheduler.running == 1)
        await worker.link.close()
        other = await FakeWorker.connected(broker, "other")
        [run] = await other.until_runs(1)
        assert (run.id, run.attempt) == (task_id, 2)


def test_a_worker_that_drains_gets_nothing_more_and_finishes_what_it_has() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker)
            [first] = await submitted(broker, Spec("a"))
            [run] = await worker.until_runs(1)
            await worker.link.send([Leaving(worker.next())])
            [second] = await submitted(broker, Spec("a"))
            position = broker.replica.position
            await turns(200)
            # Time stands still for as long as it is assigned and taken back, over and over.
            assert broker.replica.position == position, "nothing is assigned to it"
            await elapse(0.5)
            assert broker.get(second).status is Status.WAITING
            await worker.finish(run)
            await worker.leave()
            assert not worker.runs
            assert broker.get(first).status is Status.FINISHED
            assert broker.get(second).status is Status.WAITING

    virtually(script())


async def test_a_workers_limits_change_while_it_runs() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker, places=1)
        await submitted(broker, *[Spec("a") for _ in range(5)])
        await worker.until_runs(1)
        await worker.link.send([Config(worker.next(), WorkerLimits(4))])
        await worker.until_runs(3)
        await worker.beat()
        assert not worker.runs


def test_deadlines_end_what_waits_and_interrupt_what_runs() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker, places=1)
            now_ms = broker.term.time.now_ms()
            runs, waits = await submitted(
                broker, Spec("a", deadline_ms=now_ms + 500), Spec("a", deadline_ms=now_ms + 1_000)
            )
            [run] = await worker.until_runs(1)
            assert run.id == runs
            await worker.until(lambda: bool(worker.interrupts))
            await elapse(0.6)
            assert broker.get(waits).status is Status.ERROR
            await worker.tell(Completion(runs, 1, Ended.INTERRUPTED))
            assert broker.get(runs).status is Status.ERROR
            assert broker.get(runs).error == broker.get(waits).error == "deadline_expired"
            assert len(broker.term.timers) == 0

    virtually(script())


def test_a_transaction_that_is_forgotten_is_rolled_back_in_time() -> None:
    async def script() -> None:
        async with opened() as broker:
            transaction = await broker.begin(ttl_ms=1_000)
            await broker.submit([Spec("a", slot="one")], transaction=transaction)
            assert await broker.slots() == [("one", 1)]
            await elapse(1.1)
            assert not await broker.slots() and not await broker.transactions()
            with pytest.raises(UnknownTransaction):
                await broker.commit(transaction)

    virtually(script())


def test_a_delayed_task_begins_when_it_is_due_and_not_before() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker)
            due_ms = broker.term.time.now_ms() + 1_500
            await submitted(broker, Spec("a", due_ms=due_ms))
            await worker.until_runs(1)
            assert due_ms <= broker.term.time.now_ms() <= due_ms + 20

    virtually(script())


def test_ended_tasks_are_purged_when_they_were_kept_long_enough() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker)
            ids = await submitted(broker, *[Spec("a", retention_ms=500) for _ in range(5)])
            await worker.finish(*await worker.until_runs(5))
            assert broker.get(ids[0]).status is Status.FINISHED
            await elapse(3.0)
            position = broker.replica.position
            assert broker.read(lambda rows: rows.scan(b"F", b"G")) == []
            await elapse(1.5)
            assert broker.replica.position == position, "an idle broker writes no log"

    virtually(script())


@pytest.mark.parametrize(
    "hello",
    [
        Hello("", "p", "here", (), WorkerLimits(1)),
        Hello("w" * 201, "p", "here", (), WorkerLimits(1)),
        Hello("w", "p" * 201, "here", (), WorkerLimits(1)),
        Hello("w", "p", "here", (), WorkerLimits(1), ((1, 1),) * (HELD_MAX + 1)),
        Hello("w", "p", "here", ("t" * 100,) * 1_000, WorkerLimits(1)),
        Hello("w", "p", "here", (), WorkerLimits(1), version=99),
    ],
)
async def test_a_worker_that_says_too_much_is_refused_for_good(hello: Hello) -> None:
    async with opened() as broker:
        link = await broker.connect(hello)
        [refused] = await link.receive()
        assert isinstance(refused, Refused) and refused.final and refused.reason
        with pytest.raises(SessionLost):
            await link.receive()
        assert not list(broker.term.crew)
