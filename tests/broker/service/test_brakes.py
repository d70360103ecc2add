"""Workers that do harm without meaning to: what they may not do to the others."""

from broker.commands import Spec
from broker.connection import Acked, Completion, Done, Ended, Heartbeat
from broker.leading.crew import BACKS_MAX
from broker.leading.link import SAID_MAX
from broker.task import Status
from tests.broker.service.yard import FakeWorker, opened, submitted
from tests.simulation.virtual import elapse, virtually


async def _hand_back_all(worker: FakeWorker) -> int:
    """Hand back what has come; how much it was."""
    for message in worker.link.take():
        worker._take(message)
    runs, worker.runs = worker.runs, []
    if runs:
        ends = [Completion(run.id, run.attempt, Ended.HANDED_BACK) for run in runs]
        await worker.link.send([Done(worker.next(), worker.session, ends)])
    return len(runs)


def test_a_worker_that_hands_everything_back_rests_for_a_growing_while() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker)
            [task_id] = await submitted(broker, Spec("a"))
            handed_back = []
            for _ in range(2):
                count = 0
                for _ in range(500):
                    count += await _hand_back_all(worker)
                    await worker.link.send(
                        [Heartbeat(worker.next(), worker.session, 0, worker.taken_total)]
                    )
                    await elapse(0.01)
                handed_back.append(count)
            assert BACKS_MAX < handed_back[0] < 15 and handed_back[1] <= 2
            other = await FakeWorker.connected(broker, "other")
            await other.finish(*await other.until_runs(1))
            assert broker.get(task_id).status is Status.FINISHED

    virtually(script())


def test_a_worker_that_does_something_between_is_not_braked() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker, places=2)
            for _ in range(2 * BACKS_MAX):
                await submitted(broker, Spec("a"), Spec("a"))
                one, two = await worker.until_runs(2)
                await worker.tell(Completion(one.id, one.attempt, Ended.HANDED_BACK))
                [again] = await worker.until_runs(1)
                await worker.finish(two, again)
            assert not any(member.resting for member in broker.term.crew)

    virtually(script())


def test_a_second_process_waits_until_the_lease_of_the_first_is_over() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker)
            [task_id] = await submitted(broker, Spec("a", attempts_max=0))
            await worker.until_runs(1)
            await worker.link.close()
            await elapse(1.0)
            second = await FakeWorker.connected(broker, process_id="second")
            assert second.refused is not None and not second.refused.final
            assert "comes free in 99" in second.refused.reason
            assert broker.get(task_id).status is Status.RUNNING, "it may still run"
            await elapse(1.5)
            third = await FakeWorker.connected(broker, process_id="second")
            [run] = await third.until_runs(1)
            assert (run.id, run.attempt) == (task_id, 2)

    virtually(script())


def test_the_name_of_a_worker_that_said_farewell_is_free_at_once() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker)
            await worker.leave()
            second = await FakeWorker.connected(broker, process_id="second")
            assert second.refused is None

    virtually(script())


def test_a_heartbeat_that_renews_no_lease_is_not_acknowledged() -> None:
    async def script() -> None:
        async with opened() as broker:
            worker = await FakeWorker.connected(broker)
            await submitted(broker, Spec("a"))
            await worker.until_runs(1)
            for _ in range(2):
                beat = Heartbeat(worker.next(), worker.session, 1, taken_total=0)
                await worker.link.send([beat])
            # The first tells of a time when nothing had been sent; the second should know of it.
            assert worker.link.take() == [Acked(1)]
            await worker.beat()

    virtually(script())


async def test_a_link_that_nobody_reads_comes_to_an_end() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        for _ in range(SAID_MAX + 1):
            assert worker.link.open
            await worker.link.send([Heartbeat(worker.next(), worker.session, 0, 0)])
        assert not worker.link.open
        assert [member.link for member in broker.term.crew] == [None]
