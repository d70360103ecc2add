"""A leader whose memory is wrong because of a bug: the rows are right, and it rebuilds itself."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.applying import Change
from broker.commands import Parent, Spec
from broker.connection import Heartbeat, Hello, WorkerLimits
from broker.leading import checking
from broker.leading.checking import LOOKED_TASKS, Checking
from broker.leading.housekeeping import CHECK_LOOK_S
from broker.leading.term import Term
from broker.scheduling import QueueKey
from broker.scheduling.index import Index
from broker.task import Status
from tests.broker.service.held import HeldBroker, held_broker
from tests.broker.service.yard import FakeWorker, opened, submitted

KEY = QueueKey("default", "a")


def _forget(term: Term, task_id: int) -> None:
    term.scheduler.remove(KEY, task_id)


def _double(term: Term, task_id: int) -> None:
    term.scheduler.push(KEY, task_id, 0)


async def _mended(held: HeldBroker, before: Term) -> None:
    """Wait until another view of the rows is built."""
    async with asyncio.timeout(10):
        while held.broker._term is before:  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0)
    await held.broker.until_serving(10_000)


async def test_a_listener_that_raises_does_not_fail_the_state_machine() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker, "w", places=1)
        ids = await submitted(broker, Spec("a"), Spec("a"))
        [run] = await worker.until_runs(1)
        before = broker.term
        raised: list[Change] = []

        def fail(change: Change) -> None:
            raised.append(change)
            raise KeyError("it is not in its queue")

        broker.machine.listener = fail
        assert [int(answer) for answer in await broker.cancel(ids[1:])] == [1]
        async with asyncio.timeout(10):
            while broker._term is before:  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(0)
        await broker.until_serving(10_000)
        assert len(raised) == 1 and broker.check_memory() == []
        assert broker.get(ids[1]).status is Status.CANCELLED
        running = ((run.id, run.attempt),)
        again = await FakeWorker.connected(broker, "w", places=1, running=running)
        assert again.welcome is not None and again.welcome.keep == running
        await again.finish(run)
        [other] = await submitted(broker, Spec("a"))
        [run] = await again.until_runs(1)
        assert run.id == other


@pytest.mark.parametrize("spoil", [_forget, _double])
async def test_a_queue_that_differs_from_the_rows_is_found_and_repaired(
    spoil: Callable[[Term, int], None],
) -> None:
    async with held_broker() as held:
        broker = held.broker
        ids = await submitted(broker, Spec("a"), Spec("a"))
        await held.settled()
        before = broker.term
        spoil(before, ids[0])
        assert broker.check_memory() != []
        await held.advance(int(CHECK_LOOK_S * 1_000) + 1)
        await _mended(held, before)
        assert broker.check_memory() == []
        worker = await FakeWorker.connected(broker, "w")
        assert {run.id for run in await worker.until_runs(2)} == set(ids)


async def test_a_difference_in_a_single_row_is_found_in_its_turn() -> None:
    async with held_broker() as held:
        broker = held.broker
        specs = [Spec("a") for _ in range(LOOKED_TASKS)]
        ids = await submitted(broker, *specs, *[Spec("b", payload=b"x") for _ in range(3)])
        await held.settled()
        term = broker.term
        # One is missing and another one is there twice: the numbers are right.
        term.scheduler.remove(QueueKey("default", "b"), ids[-2])
        term.scheduler.push(QueueKey("default", "b"), ids[-1], 0)
        checks = Checking(term)
        assert checks.look() == []
        assert len(checks.look()) == 2
        assert checks.look() == []


async def test_one_look_searches_a_bounded_number_of_ids_in_all_queues_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with held_broker() as held:
        ids = await submitted(held.broker, *[Spec(type_) for type_ in "aabbccddddd"])
        await held.settled()
        term = held.broker.term
        index, searched = term.scheduler.index, list[QueueKey]()

        def counted(key: QueueKey) -> list[int]:
            searched.append(key)
            return Index.ids(index, key)

        monkeypatch.setattr(index, "ids", counted)
        monkeypatch.setattr(checking, "LOOKED_IDS_MAX", 4)
        # One is missing and another one is there twice: the numbers are right.
        term.scheduler.remove(QueueKey("default", "c"), ids[4])
        term.scheduler.push(QueueKey("default", "c"), ids[5], 0)
        checks, found = Checking(term), []
        for wanted in ("ab", "c", "ab"):
            searched.clear()
            found.append(len(checks.look()))
            # The queue of type d has too many ids, so it is never searched.
            assert {key.type for key in searched} == set(wanted)
        assert found == [0, 2, 0]


async def test_each_look_compares_the_numbers_of_all_that_wait() -> None:
    async with held_broker() as held:
        broker = held.broker
        ids = await submitted(broker, *[Spec("a") for _ in range(LOOKED_TASKS + 1)])
        await held.settled()
        _forget(broker.term, ids[-1])
        found = Checking(broker.term).look()
        assert len(found) == 1 and found[0].startswith(f"{LOOKED_TASKS} tasks are queued")


async def test_a_callback_that_raises_does_not_stop_the_other_callbacks() -> None:
    async with held_broker() as held:
        broker, before = held.broker, held.broker.term
        held.replica.held = True

        def fail(told: Any) -> None:
            raise KeyError("a defect")

        from broker.commands import Settle

        before.proposing.send(Settle(0), fail)
        submitting = asyncio.create_task(broker.submit([Spec("a")]))
        await held.turns()
        held.replica.release()
        assert await submitting == [1]
        await _mended(held, before)


async def test_a_duty_that_raises_once_runs_again() -> None:
    async with held_broker() as held:
        broker, before = held.broker, held.broker.term
        worker = await FakeWorker.connected(broker, "w")

        def fail() -> None:
            raise KeyError("a defect")

        before.crew.look = fail  # type: ignore[method-assign]
        await held.advance(2_000)
        await _mended(held, before)
        assert not worker.link.open
        await held.advance(60_000)
        assert not list(broker.term.crew)


async def test_what_fails_at_once_again_and_again_leaves_the_event_loop_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with held_broker() as held:
        broker, looks = held.broker, 0

        async def failing(number: int) -> int:
            nonlocal looks
            looks += 1
            if looks > 100:
                await asyncio.Event().wait()
            raise KeyError("a defect")

        monkeypatch.setattr(broker, "_until_news", failing)
        held.replica.lead(0)
        await held.turns(20)
        assert not broker.serving and looks == 1


@pytest.mark.parametrize("commits", [True, False])
async def test_memory_follows_from_the_rows_while_a_large_transaction_ends(
    commits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.transactions.ITEMS_MAX", 2)
    async with held_broker() as held:
        broker = held.broker
        worker = await FakeWorker.connected(broker, "w", places=3)
        number = await broker.begin()
        now_ms = broker.term.time.now_ms()
        specs = [Spec("a"), Spec("a", due_ms=now_ms + 60_000), Spec("a", slot="one")]
        ids = await broker.submit(specs * 2 + [Spec("a")], transaction=number)
        await held.settled()
        assert broker.check_memory() == []
        held.replica.held = True
        ending = broker.commit(number) if commits else broker.rollback(number)
        asked = asyncio.create_task(ending)
        await held.turns()
        parts = 0
        while not asked.done() or broker._term.counts[Status.PREPARED]:  # type: ignore[union-attr]
            held.replica.apply(1)
            assert broker.check_memory() == []
            await held.turns()
            assert broker.check_memory() == []
            parts += 1
        assert parts >= 3 and len(ids) == 7
        await held.settled()
        assert broker.check_memory() == [] and bool(worker.link.open)
        assert (broker.term.scheduler.running > 0) is commits


async def test_what_was_wrong_ends_with_the_term_and_a_follower_builds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with held_broker() as held:
        broker, before = held.broker, held.broker.term
        looks = 0
        until_news = broker._until_news

        async def counted(number: int) -> int:
            nonlocal looks
            looks += 1
            return await until_news(number)

        monkeypatch.setattr(broker, "_until_news", counted)
        # The memory is found wrong in the moment in which another replica takes over.
        held.replica.lead(0)
        before.wrong("a test says so")
        await held.turns(100)
        assert not broker.serving and looks <= 1, "it waits until it leads, and asks nothing else"
        held.replica.lead(2)
        await held.turns(100)
        assert broker.term.number == 2, "it serves again"
        term = broker.term
        before.wrong("a term that is over hears of something too late")
        await held.turns(100)
        assert broker.term is term


async def test_memory_is_rebuilt_only_when_nothing_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.service._RETRY_PAUSE_S", 0.0)
    async with held_broker() as held:
        broker, before = held.broker, held.broker.term
        held.replica.held = True
        submitting = asyncio.create_task(broker.submit([Spec("a"), Spec("a")]))
        await held.turns()
        before.wrong("a test says so")
        await held.turns()
        assert not broker.serving
        held.replica.release()
        assert await submitting == [1, 2]
        await _mended(held, before)
        assert broker.check_memory() == [] and broker.term.scheduler.waiting == 2


async def test_a_task_that_has_a_child_while_its_assignment_is_refused_waits_where_it_did() -> None:
    async with held_broker() as held:
        broker = held.broker
        [task_id] = await submitted(broker, Spec("a"))
        await held.settled()
        held.replica.held = True
        hello = Hello("w", "process", "here", (), WorkerLimits(5))
        first = asyncio.create_task(broker.connect(hello))
        await held.turns()
        second = asyncio.create_task(broker.connect(hello))
        await held.turns()
        child = asyncio.create_task(broker.submit([Spec("c", parents=(Parent(task_id),))]))
        await held.turns()
        held.replica.apply(1)
        await held.turns()
        assert list(broker.term.dispatching.under_way_tasks) == [task_id]
        await held.settled()
        link = await second
        await asyncio.gather(first, child)
        assert broker.check_memory() == [] and link.open
        assert broker.get(task_id).status is Status.RUNNING
        assert [int(answer) for answer in await broker.cancel([task_id])] == [2]


async def test_a_task_that_is_cancelled_and_retried_under_way_is_queued_once() -> None:
    async with held_broker() as held:
        broker = held.broker
        worker = await FakeWorker.connected(broker, "w", places=1)
        [first] = await submitted(broker, Spec("a"))
        [run] = await worker.until_runs(1)
        [task_id] = await submitted(broker, Spec("a"))
        held.replica.held = True
        asked = [
            asyncio.create_task(broker.cancel([task_id])),
            asyncio.create_task(broker.retry([task_id])),
        ]
        await held.turns()
        finishing = asyncio.create_task(worker.finish(run))
        await held.turns()
        await held.settled()
        await asyncio.gather(finishing, *asked)
        assert broker.check_memory() == []
        assert broker.term.scheduler.waiting == 0 and first != task_id
        [again] = await worker.until_runs(1)
        await worker.link.send([Heartbeat(worker.next(), worker.session, 1, worker.taken_total)])
        assert again.id == task_id and worker.link.open
        # A worker that reconnects is welcomed, whether its task is still running or has ended.
        running = ((again.id, again.attempt),)
        back = await FakeWorker.connected(broker, "w", places=1, running=running)
        assert back.welcome is not None and back.welcome.keep == running
        await back.finish(again)
        back = await FakeWorker.connected(broker, "w", places=1)
        assert back.welcome is not None and not back.welcome.keep
        [task_id] = await submitted(broker, Spec("a"))
        assert [run.id for run in await back.until_runs(1)] == [task_id]
