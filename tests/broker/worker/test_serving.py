"""A worker put together: what it does when its processes do no longer start."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from broker.commands import Spec
from broker.errors import BrokerUnavailable, InvalidTask
from broker.task import SessionState, Status
from broker.worker import Registry, serving, task
from broker.worker.pool import Pool, PoolSettings
from broker.worker.worker import Worker, WorkerSettings
from engine.ports.clock import SystemClock
from engine.ports.system_loop import new_event_loop
from tests.broker.service.yard import opened, submitted
from tests.broker.worker.looking import began, gone

TEXT = "from broker.worker import task\n@task\ndef hello() -> str:\n    return 'moo'\n"


async def test_a_worker_whose_processes_start_no_more_hands_its_tasks_back_and_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "STANDING_S", 0.1)
    module = tmp_path / "flaky.py"
    module.write_text(TEXT)
    pool_settings = PoolSettings(("flaky",), (str(tmp_path),), processes=1, places=4)

    def break_it(worker: Worker, pool: Pool) -> None:
        module.unlink()
        os.kill(pool.process_ids[0], 9)

    async with opened() as broker:
        [task_id] = await submitted(broker, Spec("hello"))
        with pytest.raises(BrokerUnavailable, match="starts any more"):
            await serving.serve_worker(
                broker,
                WorkerSettings("barn", "p1"),
                pool_settings,
                SystemClock(),
                random.Random(1),
                break_it,
            )
        found = broker.get(task_id)
        assert (found.status, found.attempts_spent) == (Status.WAITING, 0)


async def test_functions_of_this_program_run_in_children_while_the_block_lasts() -> None:
    async with opened() as broker:
        modules = ("tests.broker.worker.functions",)
        working = serving.embedded_workers(
            broker,
            1,
            SystemClock(),
            random.Random(1),
            places=2,
            ahead=30,
            modules=modules,
            registry=Registry(),
        )
        async with working as worker:
            assert worker.limits.places == 32
            ids = await submitted(
                broker, *[Spec("add_later", payload=b'{"left":1,"right":2}')] * 99
            )
            ended = await asyncio.gather(*(broker.wait(each, 20_000) for each in ids))
            assert {each.status for each in ended} == {Status.FINISHED}
        [after] = await submitted(broker, Spec("add"))
        assert broker.get(after).status is Status.WAITING


async def test_a_block_that_is_interrupted_ends_its_tasks_and_they_wait_again_uncounted(
    tmp_path: Path,
) -> None:
    note = tmp_path / "note"
    async with opened() as broker:
        [task_id] = await submitted(broker, Spec("block", payload=f'{{"note":"{note}"}}'.encode()))
        with pytest.raises(asyncio.CancelledError):
            async with serving.embedded_workers(
                broker,
                1,
                SystemClock(),
                random.Random(1),
                modules=("tests.broker.worker.functions",),
                registry=Registry(),
                drain_ms=3_600_000,
            ):
                child = await began(note)
                raise asyncio.CancelledError
        assert gone(child)
        found = broker.get(task_id)
        assert (found.status, found.attempts_spent, found.error) == (Status.WAITING, 0, "")
        assert [each.session.state for each in await broker.workers()] == [SessionState.LEFT]


async def test_a_block_that_fails_lets_its_tasks_end(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with opened() as broker:
        payload = f'{{"note":"{note}"}}'.encode()
        [task_id] = await submitted(broker, Spec("until_gone", payload=payload))
        with pytest.raises(ValueError, match="no hay"):
            async with serving.embedded_workers(
                broker,
                1,
                SystemClock(),
                random.Random(1),
                modules=("tests.broker.worker.functions",),
                registry=Registry(),
            ):
                await began(note)
                asyncio.get_running_loop().call_later(0.05, note.unlink)
                raise ValueError("no hay")
        assert broker.get(task_id).status is Status.FINISHED


def test_functions_that_are_in_no_file_are_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = Registry()

    def typed_in() -> None: ...

    typed_in.__module__ = "__main__"
    task(registry=registry)(typed_in)
    monkeypatch.delattr("__main__.__file__", raising=False)
    with pytest.raises(InvalidTask, match="in no file"):
        serving.code_of(registry)


async def test_workers_without_a_function_take_nothing() -> None:
    async with opened() as broker:
        [task_id] = await submitted(broker, Spec("hello"))
        with pytest.raises(InvalidTask, match="no task function is registered"):
            async with serving.embedded_workers(
                broker, 1, SystemClock(), random.Random(1), registry=Registry()
            ):
                raise AssertionError
        assert (broker.get(task_id).status, await broker.workers()) == (Status.WAITING, [])


def test_no_copy_of_this_process_is_made_for_a_child() -> None:
    """What other libraries let run at a fork must not run: gRPC's threads do not survive one."""
    copies: list[int] = []
    os.register_at_fork(before=lambda: copies.append(os.getpid()))

    async def one_child() -> None:
        modules = ("tests.broker.worker.functions",)
        pool = Pool(PoolSettings(modules, processes=1, places=1), lambda _: None)
        await pool.start()
        await pool.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(one_child())
    assert copies == []
