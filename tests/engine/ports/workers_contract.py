"""What every `Workers` does, be its threads real or simulated.

A subclass says in `run_with_workers` which loop and which workers a scenario runs with.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from engine.ports.workers import Workers

Scenario = Callable[[Workers], Awaitable[None]]


class WorkersContract:
    """Run over every implementation of `Workers`."""

    def run_with_workers(self, scenario: Scenario) -> None:
        raise NotImplementedError

    def test_every_job_is_done_once_and_in_order(self) -> None:
        async def scenario(workers: Workers) -> None:
            worked: list[int] = []
            told: list[int] = []

            def done(jobs: list[int], result: int | None, error: BaseException | None) -> None:
                assert error is None and result == sum(jobs)
                told.extend(jobs)

            def work(jobs: list[int]) -> int:
                assert jobs
                worked.extend(jobs)
                return sum(jobs)

            batcher = workers.batcher("adder", work, done)
            for job in range(100):
                batcher.put(job)
                if job % 10 == 0:
                    await asyncio.sleep(0)
            await batcher.close()
            assert worked == told == list(range(100))

        self.run_with_workers(scenario)

    def test_what_is_queued_while_a_batch_is_worked_makes_the_next_one(self) -> None:
        async def scenario(workers: Workers) -> None:
            batches: list[list[int]] = []
            first_done = asyncio.Event()

            def done(jobs: list[int], result: None, error: BaseException | None) -> None:
                batches.append(jobs)
                if len(batches) == 1:
                    # The thread is idle now: these two come from one callback.
                    batcher.put(1)
                    batcher.put(2)
                first_done.set()

            batcher = workers.batcher("sleeper", lambda jobs: None, done)
            batcher.put(0)
            await first_done.wait()
            await batcher.close()
            assert [job for batch in batches for job in batch] == [0, 1, 2]
            assert 2 <= len(batches) <= 3

        self.run_with_workers(scenario)

    def test_an_error_reaches_done_and_the_thread_goes_on(self) -> None:
        async def scenario(workers: Workers) -> None:
            failures: list[BaseException | None] = []
            told = asyncio.Event()

            def work(jobs: list[str]) -> str:
                if jobs == ["fail"]:
                    raise OSError("no space")
                return "fine"

            def done(jobs: list[str], result: str | None, error: BaseException | None) -> None:
                assert (result is None) == (error is not None)
                failures.append(error)
                told.set()

            batcher = workers.batcher("failing", work, done)
            batcher.put("fail")
            await told.wait()
            batcher.put("work")
            await batcher.close()
            assert isinstance(failures[0], OSError) and failures[1:] == [None]

        self.run_with_workers(scenario)

    def test_close_waits_for_the_last_done_and_takes_no_more(self) -> None:
        async def scenario(workers: Workers) -> None:
            told: list[int] = []

            def done(jobs: list[int], result: int | None, error: BaseException | None) -> None:
                told.extend(jobs)

            batcher = workers.batcher("closing", len, done)
            batcher.put(1)
            await batcher.close()
            assert told == [1]
            with pytest.raises(AssertionError):
                batcher.put(2)

        self.run_with_workers(scenario)

    def test_an_unused_batcher_closes(self) -> None:
        async def scenario(workers: Workers) -> None:
            batcher = workers.batcher("unused", calls.append, _unreachable)
            await batcher.close()
            assert not calls

        calls: list[object] = []
        self.run_with_workers(scenario)

    def test_done_runs_on_the_event_loop(self) -> None:
        async def scenario(workers: Workers) -> None:
            loops: list[asyncio.AbstractEventLoop] = []

            def done(jobs: list[int], result: None, error: BaseException | None) -> None:
                loops.append(asyncio.get_running_loop())

            batcher = workers.batcher("where", lambda jobs: None, done)
            batcher.put(1)
            await batcher.close()
            assert loops == [asyncio.get_running_loop()]

        self.run_with_workers(scenario)

    def test_run_gives_the_result_or_the_error(self) -> None:
        async def scenario(workers: Workers) -> None:
            assert await workers.run(lambda: 6 * 7) == 42
            with pytest.raises(ZeroDivisionError):
                await workers.run(lambda: 1 // 0)

        self.run_with_workers(scenario)

    def test_many_calls_at_once_all_answer(self) -> None:
        async def scenario(workers: Workers) -> None:
            calls = [workers.run(partial(int, number)) for number in range(50)]
            assert await asyncio.gather(*calls) == list(range(50))

        self.run_with_workers(scenario)


def _unreachable(*arguments: Any) -> None:
    raise AssertionError("nothing was queued")
