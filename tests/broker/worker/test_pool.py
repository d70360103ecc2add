"""Real child processes: what runs in them, and how they are ended."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.connection import Attempt, Completion, Ended, Run
from broker.errors import BrokerUnavailable, InvalidTask
from broker.worker.pool import Pool, PoolSettings
from tests.broker.worker.looking import alive, began, gone, until

MODULE = "tests.broker.worker.functions"


class Running:
    """A pool, and what it told."""

    def __init__(self, **settings: Any) -> None:
        given: dict[str, Any] = {"modules": (MODULE,), "processes": 1, "places": 8, **settings}
        self.ended: dict[Attempt, Completion] = {}
        self.alive_at_end: list[bool] = []
        self.watched = 0
        self.pool = Pool(PoolSettings(**given), self.done)
        self._next = 0
        self._news = asyncio.Event()

    def done(self, completions: list[Completion]) -> None:
        for each in completions:
            assert (each.id, each.attempt) not in self.ended
            self.ended[each.id, each.attempt] = each
            self.alive_at_end.append(bool(self.watched) and alive(self.watched))
        self._news.set()

    def run(self, kind: str, time_limit_ms: int = 0, **arguments: Any) -> Attempt:
        payload = arguments.pop("payload", None) or msgspec.json.encode(arguments)
        self._next += 1
        run = Run(self._next, 1, "elsa", kind, payload, time_limit_ms)
        self.pool.run([run])
        return run.id, run.attempt

    async def end(self, attempt: Attempt) -> Completion:
        while attempt not in self.ended:
            self._news.clear()
            await self._news.wait()
        return self.ended[attempt]

    async def result(self, kind: str, **arguments: Any) -> Completion:
        return await self.end(self.run(kind, **arguments))


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Running]:
    each = Running(**settings)
    try:
        await each.pool.start()
        yield each
    finally:
        await each.pool.close()


async def test_functions_of_every_kind_give_their_results() -> None:
    async with running() as it:
        assert (await it.result("add", left=2, right=3)).result == b"5"
        assert (await it.result("add_later", left=2, right=3)).result == b"5"
        assert (await it.result("echo", payload=b"\xff\x00")).result == b"\xff\x00"
        attempt = it.run("token")
        assert (await it.end(attempt)).result == msgspec.json.encode(attempt)
        assert not len(it.pool) and it.pool.running == []
        await it.pool.idle()


async def test_what_fails_says_why_and_whether_to_try_again() -> None:
    async with running() as it:
        failed = await it.result("fail", text="the cow is gone")
        assert failed.ended is Ended.FAILED and not failed.no_retry
        assert failed.error.startswith("ValueError: the cow is gone\n")
        assert "functions.py" in failed.error and "running.py" not in failed.error
        later = await it.result("fail_for_now")
        assert (later.ended, later.retry_after_ms) == (Ended.FAILED, 1_500)
        unknown = await it.result("unknown")
        assert unknown.ended is Ended.FAILED and not unknown.no_retry
        assert "no function for the type unknown" in unknown.error
        for kind, arguments, word in (
            ("fail_for_good", {}, "GiveUp: never"),
            ("divide", {"left": 1, "right": 0}, "ZeroDivisionError"),
            ("huge", {}, "store it as an object"),
            ("add", {"left": "two", "right": 3}, "Expected `int`"),
        ):
            ended = await it.result(kind, **arguments)
            assert ended.ended is Ended.FAILED and ended.no_retry and word in ended.error


async def test_plain_functions_that_wait_run_side_by_side() -> None:
    async with running(places=4) as it:
        attempts = [it.run("meet") for _ in range(4)]
        assert [(await it.end(each)).result for each in attempts] == [b"1"] * 4


async def test_a_time_limit_ends_the_process_and_the_others_in_it_go_back_uncounted(
    tmp_path: Path,
) -> None:
    async with running() as it:
        it.watched = it.pool.process_ids[0]
        bystander = it.run("block", note=str(tmp_path / "began"))
        guilty = it.run("block", time_limit_ms=50)
        ended = await it.end(guilty)
        assert ended.ended is Ended.FAILED and "time limit of 50 ms" in ended.error
        assert (await it.end(bystander)).ended is Ended.ENDED_FOR_ANOTHER
        assert it.alive_at_end == [False, False]
        assert (await it.result("add", left=1, right=1)).result == b"2"


async def test_a_cancel_ends_a_plain_functions_process_and_only_the_coroutine_of_another(
    tmp_path: Path,
) -> None:
    async with running() as it:
        process = it.pool.process_ids
        bystander = it.run("wait_for_ever")
        coroutine = it.run("wait_for_ever")
        it.pool.interrupt([coroutine, (99, 1)], "somebody asked")
        ended = await it.end(coroutine)
        assert (ended.ended, ended.error) == (Ended.INTERRUPTED, "somebody asked")
        assert it.pool.process_ids == process and it.pool.running == [bystander]
        plain = it.run("block", note=str(tmp_path / "note"))
        await began(tmp_path / "note")
        it.pool.interrupt([plain], "somebody asked")
        assert (await it.end(plain)).ended is Ended.INTERRUPTED
        assert (await it.end(bystander)).ended is Ended.ENDED_FOR_ANOTHER
        assert not alive(process[0])


async def test_a_coroutine_over_its_time_is_cancelled_and_ended_if_it_resists() -> None:
    async with running(cancel_grace_ms=20) as it:
        process = it.pool.process_ids[0]
        ended = await it.result("wait_for_ever", time_limit_ms=30)
        assert ended.ended is Ended.FAILED and "time limit" in ended.error and alive(process)
        ended = await it.result("resist", time_limit_ms=30)
        assert ended.ended is Ended.FAILED and not alive(process)


async def test_a_process_that_dies_fails_what_ran_in_it_and_another_one_takes_over() -> None:
    async with running() as it:
        beside = it.run("block")
        ended = await it.result("exit_now", status=7)
        assert ended.ended is Ended.FAILED and "exited with status 7" in ended.error
        assert (await it.end(beside)).ended is Ended.FAILED
        assert (await it.result("add", left=1, right=1)).result == b"2"


async def test_a_process_over_its_memory_limit_is_ended() -> None:
    async with running(memory_limit_bytes=200 * 1024 * 1024) as it:
        ended = await it.result("hoard", size_bytes=400 * 1024 * 1024)
        assert ended.ended is Ended.FAILED and "bytes in memory" in ended.error


async def test_what_a_task_started_ends_with_its_process(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    async with running() as it:
        it.run("leave_a_child", note=str(note))
        left = await began(note)
        assert alive(left)
        await it.pool.end_all()
        await until(lambda: gone(left))
        assert [each.ended for each in it.ended.values()] == [Ended.ENDED_FOR_ANOTHER]


async def test_closing_hands_back_what_never_began_and_leaves_no_process() -> None:
    async with running() as it:
        process = it.pool.process_ids[0]
        os.kill(process, 9)
        await until(lambda: not it.pool.process_ids)
        waits = it.run("add", left=1, right=1)
    assert it.ended[waits].ended is Ended.HANDED_BACK
    assert not alive(process) and not it.pool.process_ids


async def test_work_is_spread_over_the_processes() -> None:
    async with running(processes=2, places=8) as it:
        await until(lambda: len(it.pool.process_ids) == 2)
        runs = [Run(number, 1, "elsa", "block", b"{}") for number in range(7)]
        it.pool.run(runs)
        assert sorted(len(seat) for seat in it.pool._seats) == [3, 4]


async def test_code_that_cannot_be_imported_is_an_error_at_the_start() -> None:
    with pytest.raises(InvalidTask, match=r"No module named 'tests.broker.nowhere'") as raised:
        async with running(modules=("tests.broker.nowhere",)):
            raise AssertionError
    # A name that was typed wrong needs no traceback.
    assert "\n" not in str(raised.value) and "importlib" not in str(raised.value)


async def test_code_that_ends_the_process_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("import os\nos._exit(4)\n")
    with pytest.raises(BrokerUnavailable, match="exited with status 4"):
        async with running(modules=("leaves",), path=(str(tmp_path),)):
            raise AssertionError


async def test_what_waits_in_a_process_never_began_however_that_ends(tmp_path: Path) -> None:
    note = tmp_path / "began"
    async with running(places=1) as it:
        begun = it.run("block", note=str(note))
        waits = [it.run("add", left=1, right=1), it.run("add_later", left=1, right=1)]
        child = await began(note)
        assert (await it.end(waits[1])).result == b"2"
        coroutines = [it.run("wait_for_ever"), it.run("wait_for_ever")]
        os.kill(child, 9)
        ends = [(await it.end(each)).ended for each in (begun, waits[0], coroutines[1])]
        assert ends == [Ended.FAILED, Ended.HANDED_BACK, Ended.HANDED_BACK]


async def test_what_has_not_begun_is_given_back_or_cancelled_without_harm_to_others(
    tmp_path: Path,
) -> None:
    note = tmp_path / "note"
    async with running(places=1) as it:
        process = it.pool.process_ids
        begun = [it.run("wait_for_ever"), it.run("block", note=str(note))]
        await began(note)
        kinds = ("block", "wait_for_ever")
        cancelled = [it.run(kind) for kind in kinds]
        it.pool.interrupt([cancelled[1]], "somebody asked")
        assert (await it.end(cancelled[1])).ended is Ended.INTERRUPTED
        back = [it.run(kind) for kind in kinds]
        it.pool.give_back()
        ends = [(await it.end(each)).ended for each in (cancelled[0], *back)]
        assert ends == [Ended.HANDED_BACK] * 3
        assert it.pool.process_ids == process and sorted(it.pool.running) == begun


async def test_a_plain_task_that_is_cancelled_before_it_begins_never_does(tmp_path: Path) -> None:
    note, other = tmp_path / "note", tmp_path / "other"
    async with running(places=1, cancel_grace_ms=30_000) as it:
        first = it.run("until_gone_plain", note=str(note))
        await began(note)
        second = it.run("block", note=str(other))
        it.pool.interrupt([second], "somebody asked")
        # What answers this has read the cancel before.
        await it.result("add_later", left=1, right=1)
        note.unlink()
        assert (await it.end(first)).ended is Ended.FINISHED
        assert (await it.end(second)).ended is Ended.INTERRUPTED
        assert not other.exists()


async def test_the_timer_of_a_time_limit_ends_with_its_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hour_ms = 3_600_000
    timers: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def kept(delay_s: float, *given: Any, **named: Any) -> asyncio.TimerHandle:
        timer = later(delay_s, *given, **named)
        if delay_s * 1000 == hour_ms:
            timers.append(timer)
        return timer

    monkeypatch.setattr(loop, "call_later", kept)
    async with running() as it:
        short = [it.run("add_later", hour_ms, left=1, right=1) for _ in range(20)]
        assert [(await it.end(each)).result for each in short] == [b"2"] * 20
        long = it.run("wait_for_ever", hour_ms)
        await until(lambda: len(timers) == 21)
        assert [each.cancelled() for each in timers] == [True] * 20 + [False]
        await it.pool.end_all()
        assert it.ended[long].ended is Ended.ENDED_FOR_ANOTHER and timers[-1].cancelled()


async def test_who_lets_nobody_else_run_is_to_blame_and_who_never_began_is_not() -> None:
    async with running() as it:
        hog = it.run("hog", time_limit_ms=30)
        waits = it.run("add", time_limit_ms=10, left=1, right=1)
        ended = await it.end(hog)
        assert ended.ended is Ended.FAILED and "time limit of 30 ms" in ended.error
        assert (await it.end(waits)).ended is Ended.HANDED_BACK


async def test_nothing_waits_for_a_process_that_does_not_start(tmp_path: Path) -> None:
    module = tmp_path / "flaky.py"
    text = "from broker.worker import task\n@task\ndef hello() -> str:\n    return 'moo'\n"
    module.write_text(text)
    async with running(modules=("flaky",), path=(str(tmp_path),)) as it:
        assert (await it.result("hello")).result == b'"moo"'
        module.unlink()
        os.kill(it.pool.process_ids[0], 9)
        assert await it.pool.until_other_standing() == 0.0
        assert (await it.result("hello")).ended is Ended.HANDED_BACK
        module.write_text(text)
        assert await it.pool.until_other_standing() == 1.0
        assert (await it.result("hello")).result == b'"moo"'
