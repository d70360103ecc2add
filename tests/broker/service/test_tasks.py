"""The API of users: functions, handles, results, transactions, schedules, limits."""

import random

import pytest

from broker.connection import Completion, Ended
from broker.describing import Options
from broker.errors import (
    BrokerError,
    DuplicateTask,
    InvalidTask,
    NotInState,
    SlotBusy,
    TaskCancelled,
    TaskFailed,
    TaskLost,
    UnknownCodePool,
    UnknownSchedule,
    UnknownTask,
)
from broker.reading import TaskFilter
from broker.service import Broker
from broker.task import Rule, Status
from broker.tasks import AsyncTasks, TaskHandle, Wanted
from broker.worker import Registry, task
from tests.broker.service.clocks import LoopClock
from tests.broker.service.yard import FakeWorker, opened

REGISTRY = Registry()


@task(registry=REGISTRY, attempts_max=3, priority=7, time_limit_ms=500, retention_ms=1_000)
def resize(path: str, width: int = 640) -> dict[str, int]:
    return {path: width}


@task(registry=REGISTRY, at_most_once=True)
def copy(payload: bytes) -> bytes:
    return payload


def _tasks(broker: Broker) -> AsyncTasks:
    return AsyncTasks(broker, LoopClock(), random.Random(1), REGISTRY)


async def _work(broker: Broker, worker: FakeWorker, count: int = 1) -> None:
    """Run functions as a worker does."""
    from broker.worker.registry import encode_result

    for run in await worker.until_runs(count):
        function = REGISTRY.of(run.type)
        assert function is not None
        await worker.finish(run, result=encode_result(function.call(run)))


async def test_a_function_is_submitted_by_name_and_its_result_has_its_type() -> None:
    async with opened() as broker:
        tasks, worker = _tasks(broker), await FakeWorker.connected(broker)
        handle = await tasks.submit(resize, {"path": "elsa.jpg"}, tenant="acme")
        await _work(broker, worker)
        assert await handle.wait() == {"elsa.jpg": 640}
        found = await handle.get()
        assert (found.tenant, found.priority, found.attempts_max) == ("acme", 7, 3)
        assert (found.time_limit_ms, found.retention_ms) == (500, 1_000)
        again = await tasks.submit("copy", b"\x00raw", priority=-1)
        await _work(broker, worker)
        assert await tasks.wait(int(again)) == b"\x00raw"


async def test_types_without_a_function_here_take_json_or_bytes() -> None:
    async with opened() as broker:
        tasks, worker = _tasks(broker), await FakeWorker.connected(broker)
        await tasks.submit("elsewhere", {"a": [1, 2]})
        handle = await tasks.submit("elsewhere")
        first, second = await worker.until_runs(2)
        assert (first.payload, second.payload) == (b'{"a":[1,2]}', b"")
        await worker.finish(second, result=b'{"ok":true}')
        assert await handle.wait() == {"ok": True}


@pytest.mark.parametrize(
    ("what", "arguments", "options"),
    [
        (resize, {}, {}),
        (resize, {"path": 5}, {}),
        (resize, {"path": "a", "height": 5}, {}),
        (print, None, {}),
        ("", None, {}),
        ("a", {"x": object()}, {}),
        ("weigh", "elsa", {}),
        (resize, ["elsa"], {}),
        ("a", None, {"tennant": "acme"}),
        ("a", None, {"priority": "high"}),
        ("a", None, {"tenant": ""}),
        ("a", None, {"slot": "s" * 201}),
        ("a", None, {"timeout_ms": -5_000_000_000_000}),
    ],
)
async def test_a_call_that_is_wrong_is_refused_in_words(
    what: object, arguments: object, options: dict[str, object]
) -> None:
    async with opened() as broker:
        with pytest.raises(InvalidTask) as raised:
            await _tasks(broker).submit(what, arguments, **options)  # type: ignore[arg-type]
        # All that there is to say is said: no other traceback stands above it.
        assert raised.value.__cause__ is None
        assert not broker.term.scheduler.waiting


async def test_slots_and_unique_keys_refuse_a_second_task() -> None:
    async with opened() as broker:
        tasks = _tasks(broker)
        first = await tasks.submit("a", slot="nightly", unique_key="one")
        with pytest.raises(SlotBusy) as caught:
            await tasks.submit("a", slot="nightly")
        assert caught.value.task_id == first.id
        made = await tasks.submit_many([Wanted("a"), Wanted("a", None, _unique("one"))])
        assert isinstance(made[0], TaskHandle) and isinstance(made[1], DuplicateTask)
        await first.cancel()
        await tasks.submit("a", slot="nightly", unique_key="one")


def _unique(key: str) -> Options:
    return Options(unique_key=key)


async def test_each_end_of_a_task_is_an_error_of_its_own() -> None:
    async with opened() as broker:
        tasks, worker = _tasks(broker), await FakeWorker.connected(broker)
        failed = await tasks.submit("a")
        lost = await tasks.submit("a", at_most_once=True)
        runs = await worker.until_runs(2)
        await worker.tell(
            Completion(runs[0].id, 1, Ended.FAILED, error="no such cow"),
            Completion(runs[1].id, 1, Ended.ENDED_FOR_ANOTHER),
        )
        cancelled = await tasks.submit("b", delay_ms=60_000)
        await cancelled.cancel()
        with pytest.raises(TaskFailed, match="no such cow"):
            await failed.wait()
        with pytest.raises(TaskLost):
            await lost.wait()
        with pytest.raises(TaskCancelled):
            await cancelled.wait()
        assert [one.id for one in (await tasks.dead()).tasks] == [failed.id]
        await tasks.retry([failed], by="elsa")
        with pytest.raises(NotInState):
            await tasks.retry([failed])
        with pytest.raises(UnknownTask):
            await tasks.cancel([4711])
        await tasks.delete([cancelled])
        with pytest.raises(UnknownTask):
            await cancelled.wait()


async def test_a_transaction_that_raises_leaves_nothing() -> None:
    async with opened() as broker:
        tasks = _tasks(broker)
        async with tasks.transaction() as together:
            one = await together.submit("a")
            await together.submit("a", slot="s")
            assert (await one.get()).status is Status.PREPARED
        assert (await one.get()).status is Status.WAITING
        with pytest.raises(RuntimeError):
            async with tasks.transaction() as together:
                await together.submit("a", slot="t")
                raise RuntimeError("no")
        with pytest.raises(RuntimeError):
            async with tasks.transaction() as together:
                await broker.rollback(together.id)
                raise RuntimeError("what its author has to hear, though nothing is left to undo")
        await tasks.submit("a", slot="t")
        page = await tasks.list(TaskFilter(type="a"))
        assert len(page.tasks) == 3 and page.above is None


async def test_children_follow_their_parents_rules() -> None:
    async with opened() as broker:
        tasks, worker = _tasks(broker), await FakeWorker.connected(broker)
        parent = await tasks.submit("parent")
        child = await tasks.submit("child", after=[parent.id])
        rescue = await tasks.submit("rescue", after=[(parent.id, Rule.ON_FAILURE)])
        [run] = await worker.until_runs(1)
        await worker.fail(run)
        [run] = await worker.until_runs(1)
        assert run.id == rescue.id
        with pytest.raises(TaskCancelled):
            await child.wait()


async def test_schedules_and_limits_by_name() -> None:
    async with opened() as broker:
        tasks = _tasks(broker)
        await tasks.schedule("nightly", resize, {"path": "a"}, cron="0 2 * * *", zone="Europe/Rome")
        await tasks.schedule("tick", "a", every_ms=1_000, delay_ms=5)
        assert [one.name for one in await tasks.schedules()] == ["nightly", "tick"]
        await tasks.pause_schedule("tick")
        await tasks.resume_schedule("tick")
        await tasks.delete_schedule("nightly")
        with pytest.raises(UnknownSchedule):
            await tasks.pause_schedule("nightly")
        for bad in ({"cron": "x"}, {"cron": "0 0 * * *", "zone": "Rome"}, {}):
            with pytest.raises(BrokerError):
                await tasks.schedule("bad", "a", **bad)  # type: ignore[arg-type]
        await tasks.set_limit("db", 1)
        await tasks.set_tenant("acme", weight=2, reserved=1, maximum=5)
        await tasks.map_tenant("acme", 3, ("db",))
        await tasks.set_rate("type:a", 5.0)
        await tasks.pause("tenant:bad", "unpaid")
        kinds = [kind for kind, _, _ in await broker.settings_of()]
        assert sorted(kinds) == ["mapping", "pause", "rate", "resource", "tenant"]
        await tasks.resume("tenant:bad")
        await tasks.set_limit("db", None)
        await tasks.set_rate("type:a", None)
        assert len(await broker.settings_of()) == 2
        for wrong in (("db", -1), ("", 1)):
            with pytest.raises(BrokerError):
                await tasks.set_limit(*wrong)


async def test_limits_and_pauses_count_from_the_next_assignment() -> None:
    async with opened() as broker:
        tasks, worker = _tasks(broker), await FakeWorker.connected(broker)
        await tasks.map_tenant("acme", 1, ("db",))
        await tasks.set_limit("db", 1)
        await tasks.submit_many([Wanted("a", None, _tenant("acme")) for _ in range(3)])
        [run] = await worker.until_runs(1)
        await worker.beat()
        assert not worker.runs
        [db] = [one for one in await broker.resources() if one.name == "db"]
        assert (db.running, db.limit) == (1, 1)
        [status] = await broker.workers()
        assert (status.linked, status.running, status.places) == (True, 1, 10)
        await tasks.pause("type:a")
        await worker.finish(run)
        await worker.beat()
        assert not worker.runs
        await tasks.resume("type:a")
        await worker.until_runs(1)
        await tasks.set_limit("db", 2)
        await worker.until_runs(1)
        assert not await broker.queues()


def _tenant(name: str) -> Options:
    return Options(tenant=name)


async def test_code_pools_come_whole_to_workers() -> None:
    async with opened() as broker:
        worker = await FakeWorker.connected(broker)
        archive = bytes(range(256)) * 8 * 1_024
        await broker.put_code("mine", archive, ttl_ms=60_000)
        assert await worker.link.fetch_code("mine") == archive
        with pytest.raises(UnknownCodePool):
            await worker.link.fetch_code("theirs")
        assert [pool.name for pool in await broker.code_pools()] == ["mine"]
        await _tasks(broker).submit("a", codepool="mine")
        [run] = await worker.until_runs(1)
        assert run.codepool == "mine"
        with pytest.raises(BrokerError):
            await broker.delete_code("mine")
        await worker.finish(run)
        await broker.delete_code("mine")
        with pytest.raises(UnknownCodePool):
            await _tasks(broker).submit("a", codepool="mine")


async def test_a_chain_runs_in_its_order_and_a_group_side_by_side() -> None:
    async with opened() as broker:
        tasks, worker = _tasks(broker), await FakeWorker.connected(broker)
        chain = await tasks.chain([Wanted("one"), Wanted("two"), Wanted("three")])
        for handle in chain[:2]:
            [run] = await worker.until_runs(1)
            assert run.id == handle.id and not worker.runs
            await worker.finish(run)
        [run] = await worker.until_runs(1)
        await worker.finish(run)
        *members, last = await tasks.group([Wanted("a"), Wanted("b")], Wanted("c"))
        runs = await worker.until_runs(2)
        assert {run.id for run in runs} == {one.id for one in members}
        await worker.fail(runs[0])
        await worker.finish(runs[1])
        with pytest.raises(TaskCancelled):
            await last.wait()
        *_, always = await tasks.group([Wanted("a")], Wanted("c"), Rule.ALWAYS)
        [run] = await worker.until_runs(1)
        await worker.fail(run)
        assert [run.id for run in await worker.until_runs(1)] == [always.id]
