"""From a submit to its result, through a whole broker and a worker of the test."""

import asyncio

import pytest

from broker.commands import Answer, Refusal, Spec
from broker.connection import Completion, Ended
from broker.errors import (
    AccessDenied,
    BrokerError,
    InvalidTask,
    TooLarge,
    UnknownTask,
    WaitTimedOut,
)
from broker.leading.timers import Kind
from broker.task import Mode, Status
from tests.broker.service.clocks import LoopClock
from tests.broker.service.yard import FakeWorker, opened, submitted
from tests.engine.replica.yard import until
from tests.simulation.virtual import virtually


async def test_a_task_is_submitted_runs_and_its_result_is_there() -> None:
    async with opened() as broker:
        [task_id] = await submitted(broker, Spec("resize", payload=b"elsa.jpg"))
        worker = await FakeWorker.connected(broker)
        [run] = await worker.until_runs(1)
        assert (run.id, run.attempt, run.payload, run.type) == (task_id, 1, b"elsa.jpg", "resize")
        waiting = asyncio.create_task(broker.wait(task_id))
        await asyncio.sleep(0)
        await worker.finish(run, result=b"done")
        task = await waiting
        assert task.status is Status.FINISHED
        assert broker.result_of(task) == broker.result_of(await broker.wait(task_id)) == b"done"
        assert not broker.term.waits._futures


async def test_big_payloads_and_results_come_whole() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        await submitted(broker, Spec("resize", payload=b"p" * 500_000))
        [run] = await worker.until_runs(1)
        assert run.payload == b"p" * 500_000
        await worker.finish(run, result=b"r" * 1_000_000)
        assert broker.result_of(broker.get(run.id)) == b"r" * 1_000_000


async def test_a_result_that_is_too_large_is_a_failure_in_words() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        [task_id] = await submitted(broker, Spec("resize"))
        await worker.finish(*await worker.until_runs(1), result=b"r" * (1024 * 1024 + 1))
        task = broker.get(task_id)
        assert task.status is Status.ERROR
        assert "1048577 bytes" in task.error


async def test_tasks_of_one_turn_share_their_commands() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker, places=500)
        entries = []
        for _ in range(2):
            before = broker.replica.position
            await asyncio.gather(*[submitted(broker, Spec("a")) for _ in range(500)])
            await worker.finish(*await worker.until_runs(500))
            entries.append(broker.replica.position.entry - before.entry)
        # The replica's own entry, which allows newer commands, comes at the beginning.
        assert min(entries) == 3, "a submit, an assignment, a completion"


async def test_a_batch_is_answered_item_by_item_and_may_be_longer_than_a_command() -> None:
    async with opened() as broker:
        answers = await broker.submit([Spec("a", slot="one"), Spec("a", slot="one"), Spec("a")])
        assert [type(answer) for answer in answers] == [int, Refusal, int]
        ids = await submitted(broker, *[Spec("a", payload=b"%d" % n) for n in range(2_500)])
        assert ids == list(range(ids[0], ids[0] + 2_500))
        assert broker.get(ids[2_345]).payload == b"2345"
        with pytest.raises(TooLarge):
            await broker.submit([Spec("a")] * 1_001, atomic=True)
        assert await broker.submit([]) == []


async def test_one_bad_task_is_refused_in_words_and_takes_no_other_with_it() -> None:
    async with opened() as broker:
        good = asyncio.create_task(submitted(broker, Spec("a")))
        with pytest.raises(InvalidTask, match="type"):
            await broker.submit([Spec("")])
        with pytest.raises(InvalidTask):
            await broker.submit([Spec("a", payload=b"x" * (1024 * 1024 + 1))])
        [task_id] = await good
        assert broker.get(task_id).status is Status.WAITING


async def test_no_more_is_assigned_than_there_are_places() -> None:
    async with opened() as broker:
        await submitted(broker, *[Spec("a") for _ in range(10)])
        worker = await FakeWorker.connected(broker, places=3)
        first = await worker.until_runs(3)
        assert not worker.runs
        await worker.finish(first[0])
        await worker.until_runs(1)
        assert not worker.runs
        assert broker.term.counts[Status.RUNNING] == 3


async def test_a_failed_task_is_tried_again_after_its_backoff_and_then_dead() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        [task_id] = await submitted(broker, Spec("a", attempts_max=2))
        [run] = await worker.until_runs(1)
        await worker.fail(run, retry_after_ms=1)
        assert broker.get(task_id).status is Status.DELAYED
        [again] = await worker.until_runs(1)
        assert (again.id, again.attempt) == (task_id, 2)
        await worker.fail(again, error="it broke again")
        task = await broker.wait(task_id)
        assert (task.status, task.dead, task.error) == (Status.ERROR, True, "it broke again")
        assert await broker.retry([task_id], by="elsa") == [Answer.DONE]
        [third] = await worker.until_runs(1)
        assert third.attempt == 3


async def test_a_stale_or_repeated_completion_is_acknowledged_and_changes_nothing() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        [task_id] = await submitted(broker, Spec("a"))
        [run] = await worker.until_runs(1)
        await worker.tell(Completion(run.id, 7, Ended.FINISHED, b"not mine"))
        assert broker.get(task_id).status is Status.RUNNING
        await worker.finish(run, result=b"first")
        await worker.finish(run, result=b"second")
        assert broker.result_of(broker.get(task_id)) == b"first"
        assert broker.term.scheduler.running == 0


async def test_a_cancelled_task_does_not_begin_and_a_running_one_is_interrupted() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker, places=1)
        ids = await submitted(broker, Spec("a"), Spec("a"), Spec("a"))
        [run] = await worker.until_runs(1)
        assert await broker.cancel([ids[1], 999]) == [Answer.DONE, Answer.UNKNOWN]
        assert await broker.cancel([run.id]) == [Answer.ASKED]
        await worker.until(lambda: bool(worker.interrupts))
        assert worker.interrupts[0].attempts == [(run.id, 1)]
        await worker.tell(Completion(run.id, 1, Ended.INTERRUPTED))
        assert broker.get(run.id).status is Status.CANCELLED
        [following] = await worker.until_runs(1)
        assert following.id == ids[2]


async def test_waiting_for_a_task_ends_in_time_and_for_none_at_once() -> None:
    async with opened() as broker:
        [task_id] = await submitted(broker, Spec("a"))
        with pytest.raises(WaitTimedOut):
            await broker.wait(task_id, timeout_ms=1)
        assert len(broker.term.waits) == 0
        with pytest.raises(UnknownTask):
            await broker.wait(4711)
        with pytest.raises(UnknownTask):
            broker.get(-1)


async def test_a_transaction_goes_together_or_not_at_all() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        kept, dropped = await broker.begin("elsa"), await broker.begin()
        [refused] = await broker.submit([Spec("a")], transaction=kept, owner="berta")
        assert isinstance(refused, Refusal)
        with pytest.raises(AccessDenied):
            await broker.commit(kept, "berta")
        ids = await broker.submit([Spec("a"), Spec("a")], transaction=kept)
        await broker.submit([Spec("a", slot="one")], transaction=dropped)
        assert not broker.term.scheduler.waiting
        assert await broker.rollback(dropped) == 1
        assert await broker.commit(kept) == 2
        assert [run.id for run in await worker.until_runs(2)] == ids


async def test_children_begin_when_their_parents_have_ended() -> None:
    from broker.commands import Parent

    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        ids = await submitted(broker, Spec("a"), Spec("b", parents=(Parent(index=0),)), Spec("c"))
        first = await worker.until_runs(2)
        assert {run.type for run in first} == {"a", "c"}
        await worker.finish(*first)
        [child] = await worker.until_runs(1)
        assert child.id == ids[1]


async def test_an_at_most_once_task_of_a_worker_that_left_is_lost() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        once, again = await submitted(
            broker, Spec("a", mode=Mode.AT_MOST_ONCE), Spec("a", attempts_max=0)
        )
        await worker.until_runs(2)
        await worker.leave()
        assert broker.get(once).status is Status.LOST
        assert broker.get(again).status is Status.DELAYED
        assert broker.term.scheduler.running == 0


async def test_what_cannot_be_asked_for_is_refused_in_words_and_changes_nothing() -> None:
    async with opened() as broker:
        position = broker.replica.position
        for call in (
            broker.cancel([-1]),
            broker.cancel([2**64 - 1]),
            broker.cancel([1], by="x" * 201),
            broker.retry([-1]),
            broker.delete([-5]),
            broker.begin(owner="x" * 201),
            broker.commit(-1),
            broker.submit([Spec("a")], transaction=-1),
            broker.delete_schedule(""),
        ):
            with pytest.raises(BrokerError):
                await call
        assert broker.replica.position == position
        with pytest.raises(TooLarge):
            await broker.cancel(range(1_001))


async def test_a_task_that_is_cancelled_on_its_way_to_a_worker_is_interrupted_there() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        [task_id] = await submitted(broker, Spec("a"))
        await until(lambda: bool(broker.term.dispatching.under_way_tasks))
        assert await broker.cancel([task_id]) == [Answer.ASKED]
        [run] = await worker.until_runs(1)
        await worker.until(lambda: bool(worker.interrupts))
        await worker.tell(Completion(run.id, 1, Ended.INTERRUPTED))
        assert broker.get(task_id).status is Status.CANCELLED


def test_a_deadline_that_passes_on_the_way_to_a_worker_interrupts_there() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker)
            now_ms = broker.term.time.now_ms()
            await submitted(broker, Spec("a", deadline_ms=now_ms + 1_000))
            await until(lambda: bool(broker.term.dispatching.under_way_tasks))
            # The look at deadlines comes while the task is neither waiting nor with its worker.
            broker.term.timers.remove(Kind.DEADLINE, 1)
            broker.term._ring(Kind.DEADLINE, [1])
            clock = broker._clock
            assert isinstance(clock, LoopClock)
            clock.ahead_s += 2.0
            [run] = await worker.until_runs(1)
            await worker.until(lambda: bool(worker.interrupts))
            assert worker.interrupts[0].attempts == [(run.id, 1)]

    virtually(script())
