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


class Lone:
    """A batcher that may work on the loop, where it worked, and how long its work takes."""

    def __init__(self) -> None:
        self.took_s = 0.0
        self.worked: list[list[int]] = []
        self.here: list[bool] = []
        self._now_s = 0.0
        self._loop_thread = threading.get_ident()
        self._heard = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.workers = ThreadWorkers(loop, seconds=lambda: self._now_s)
        self.batcher = self.workers.batcher("lone", self._work, self._done, lone_ms=1.0)

    def _work(self, jobs: list[int]) -> None:
        self.worked.append(jobs)
        self.here.append(threading.get_ident() == self._loop_thread)
        self._now_s += self.took_s

    def _done(self, jobs: list[int], result: None, error: BaseException | None) -> None:
        self._heard.set()

    async def heard(self) -> None:
        """Wait for the next batch."""
        self._heard.clear()
        await self._heard.wait()

    async def one(self, *jobs: int) -> bool:
        """Put jobs and wait for their batch; whether it was worked on the loop."""
        self._heard.clear()
        for job in jobs or (0,):
            self.batcher.put(job)
        await self._heard.wait()
        return self.here[-1]


async def test_a_job_alone_is_worked_on_the_loop_once_its_like_have_been_quick() -> None:
    lone = Lone()
    found = [await lone.one() for _ in range(40)]
    assert not any(found[:8]) and all(found[8:])
    await lone.batcher.close()


async def test_jobs_that_have_company_are_worked_in_the_thread() -> None:
    lone = Lone()
    while not await lone.one():
        pass
    assert not await lone.one(1, 2, 3)
    # The thread may begin with the first while the others are on their way to it.
    while [job for jobs in lone.worked for job in jobs][-3:] != [1, 2, 3]:
        await lone.heard()
    assert not lone.here[-1]
    assert not await lone.one(4), "company came, and may come again"
    await lone.batcher.close()


async def test_a_slow_disk_sends_the_work_back_to_the_thread() -> None:
    lone = Lone()
    while not await lone.one():
        pass
    lone.took_s = 0.05
    assert await lone.one(), "nobody knew before"
    assert not await lone.one()
    lone.took_s = 0.0001
    found = [await lone.one() for _ in range(200)]
    assert found.index(True) > 20 and all(found[found.index(True) :])
    await lone.batcher.close()


async def told_of_batchers(names: tuple[str, ...]) -> tuple[list[str], dict[str, bool]]:
    """What batchers with one job each did in their last turn, and whether on the loop."""
    workers = ThreadWorkers(asyncio.get_running_loop(), seconds=lambda: 0.0)
    loop_thread, here, told = threading.get_ident(), dict[str, bool](), list[str]()
    left, all_done = [0], asyncio.Event()

    def done(jobs: list[str], result: None, error: BaseException | None) -> None:
        left[0] -= 1
        if not left[0]:
            all_done.set()

    def begin(jobs: list[str]) -> None:
        assert threading.get_ident() == loop_thread
        told.append(f"begin {jobs[0]}")

    def work(jobs: list[str]) -> None:
        here[jobs[0]] = threading.get_ident() == loop_thread
        if here[jobs[0]]:
            told.append(f"work {jobs[0]}")

    batchers = [workers.batcher(name, work, done, lone_ms=1.0, begin=begin) for name in names]
    for _ in range(40):
        left[0] = len(batchers)
        all_done.clear()
        told.clear()
        for name, batcher in zip(names, batchers, strict=True):
            batcher.put(name)
        await all_done.wait()
    for batcher in batchers:
        await batcher.close()
    return told, here


async def test_of_several_batchers_in_one_turn_two_are_worked_on_the_loop_and_begun_before() -> (
    None
):
    told, here = await told_of_batchers(("one", "two", "three"))
    assert told == ["begin one", "begin two", "work one", "work two"]
    assert here == {"one": True, "two": True, "three": False}


async def test_what_is_slow_to_begin_sends_the_work_back_to_the_threads() -> None:
    now_s, loop_thread = [0.0], threading.get_ident()
    workers = ThreadWorkers(asyncio.get_running_loop(), seconds=lambda: now_s[0])
    here, left, all_done = list[bool](), [0], asyncio.Event()

    def done(jobs: list[int], result: None, error: BaseException | None) -> None:
        left[0] -= 1
        if not left[0]:
            all_done.set()

    def begin(jobs: list[int]) -> None:
        now_s[0] += 0.02

    def work(jobs: list[int]) -> None:
        here.append(threading.get_ident() == loop_thread)

    batchers = [workers.batcher("slow", work, done, lone_ms=1.0, begin=begin) for _ in range(2)]
    for turn in range(40):
        left[0] = len(batchers)
        all_done.clear()
        for batcher in batchers:
            batcher.put(turn)
        await all_done.wait()
    assert 0 < sum(here) < 10, "each turn on the loop is followed by many in the threads"
    for batcher in batchers:
        await batcher.close()


async def test_a_batcher_alone_on_the_loop_is_not_begun() -> None:
    assert await told_of_batchers(("one",)) == (["work one"], {"one": True})


async def test_what_waits_on_the_loop_is_worked_before_a_batcher_ends() -> None:
    lone = Lone()
    while not await lone.one():
        pass
    lone.batcher.put(7)
    await lone.batcher.close()
    assert lone.worked[-1] == [7]


async def test_work_on_the_loop_that_fails_is_told_like_any_other() -> None:
    told: list[BaseException | None] = []
    heard = asyncio.Event()

    def work(jobs: list[int]) -> None:
        raise OSError("the disk is gone")

    def done(jobs: list[int], result: None, error: BaseException | None) -> None:
        told.append(error)
        heard.set()

    workers = ThreadWorkers(asyncio.get_running_loop(), seconds=lambda: 0.0)
    batcher = workers.batcher("failing", work, done, lone_ms=1.0)
    for _ in range(20):
        heard.clear()
        batcher.put(0)
        await heard.wait()
    assert [str(error) for error in told] == ["the disk is gone"] * 20
    await batcher.close()


async def test_what_comes_while_the_thread_works_is_never_worked_beside_it() -> None:
    entered, gate, over = threading.Event(), threading.Event(), asyncio.Event()
    worked: list[tuple[list[int], bool]] = []
    loop_thread, heard = threading.get_ident(), asyncio.Event()

    def work(jobs: list[int]) -> None:
        worked.append((jobs, threading.get_ident() == loop_thread))
        if 1 in jobs:
            entered.set()
            gate.wait()

    def done(jobs: list[int], result: None, error: BaseException | None) -> None:
        heard.set()
        if 3 in jobs:
            over.set()

    workers = ThreadWorkers(asyncio.get_running_loop(), seconds=lambda: 0.0)
    batcher = workers.batcher("beside", work, done, lone_ms=1.0)
    while not worked or not worked[-1][1]:
        heard.clear()
        batcher.put(0)
        await heard.wait()
    worked.clear()
    # Two at once go to the thread; what comes alone while it works goes behind them.
    batcher.put(1)
    batcher.put(2)
    await asyncio.sleep(0)
    await asyncio.to_thread(entered.wait)
    batcher.put(3)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gate.set()
    await over.wait()
    assert [job for jobs, _ in worked for job in jobs] == [1, 2, 3]
    assert not any(here for _, here in worked)
    await batcher.close()
