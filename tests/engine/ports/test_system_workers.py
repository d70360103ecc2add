"""Real threads as workers: the contract, and what only real ones can get wrong."""

import asyncio
import threading

import pytest

from engine.ports.system_workers import ThreadWorkers
from engine.ports.workers import Workers
from tests.engine.ports.workers_contract import Scenario, WorkersContract


class TestThreadWorkers(WorkersContract):
    def run_with_workers(self, scenario: Scenario) -> None:
        async def run() -> None:
            async with asyncio.timeout(60):
                workers = ThreadWorkers(asyncio.get_running_loop())
                typed: Workers = workers
                await scenario(typed)
                await workers.close()

        asyncio.run(run())


async def test_a_batch_that_gathers_while_another_is_worked_is_one_batch() -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    entered, gate = threading.Event(), threading.Event()
    batches: list[list[int]] = []

    def work(jobs: list[int]) -> None:
        batches.append(jobs)
        entered.set()
        gate.wait()

    batcher = workers.batcher("gated", work, lambda jobs, result, error: None)
    batcher.put(0)
    entered.wait()
    for job in range(1, 1_001):
        batcher.put(job)
    gate.set()
    await batcher.close()
    assert batches == [[0], list(range(1, 1_001))]


async def test_work_runs_beside_the_loop() -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    loop_thread = threading.get_ident()
    assert await workers.run(threading.get_ident) != loop_thread
    await workers.close()


async def test_the_pool_is_bounded_and_later_calls_wait() -> None:
    workers = ThreadWorkers(asyncio.get_running_loop(), pool_threads_max=2)
    gate = threading.Event()
    counted = threading.Semaphore(0)
    threads: set[int] = set()

    def work() -> None:
        threads.add(threading.get_ident())
        counted.release()
        gate.wait()

    calls = [asyncio.ensure_future(workers.run(work)) for _ in range(6)]
    await asyncio.sleep(0)
    counted.acquire()
    counted.acquire()
    assert not counted.acquire(blocking=False)
    gate.set()
    await asyncio.gather(*calls)
    await workers.close()
    assert len(threads) == 2


async def test_a_cancelled_wait_abandons_the_result_only() -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    gate, ended = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait()
        ended.set()

    call = asyncio.ensure_future(workers.run(work))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.set()
    assert await workers.run(lambda: "next") == "next"
    await workers.close()
    assert ended.is_set()


async def test_a_function_that_raises_stop_iteration_does_not_hang_its_caller() -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    empty: list[int] = []
    with pytest.raises(RuntimeError):
        await workers.run(lambda: next(iter(empty)))
    await workers.close()


async def test_a_cancelled_close_still_closes() -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    gate = threading.Event()
    told: list[int] = []

    def work(jobs: list[int]) -> bool:
        return gate.wait()

    def done(jobs: list[int], result: bool | None, error: BaseException | None) -> None:
        told.extend(jobs)

    batcher = workers.batcher("gated", work, done)
    batcher.put(1)
    closing = asyncio.ensure_future(batcher.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    gate.set()
    await batcher.close()
    assert told == [1]


def test_a_closed_loop_harms_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    gate = threading.Event()
    thread: list[threading.Thread] = []

    def work(jobs: list[int]) -> None:
        thread.append(threading.current_thread())
        gate.wait()

    async def scenario() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop())
        batcher = workers.batcher("orphan", work, lambda jobs, result, error: None)
        batcher.put(1)
        closing = asyncio.ensure_future(batcher.close())
        await asyncio.sleep(0)
        closing.cancel()

    asyncio.run(scenario())
    gate.set()
    while not thread:
        pass
    thread[0].join()
    assert raised == []
