"""Killed workers: no process that their tasks started runs at the same time as the next attempt."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from broker.connection import Ended
from broker.worker import child_process, pool, watcher
from broker.worker.watcher import VARIABLE, Leftover
from broker.worker.watching import Watch
from tests.broker.worker.looking import alive, began, gone, until
from tests.broker.worker.test_pool import running

SOON_S = 20.0
"""It takes milliseconds; machines of tests are busy."""


def _make_unkillable(monkeypatch: pytest.MonkeyPatch, process: int) -> None:
    kill = watcher._kill

    def too_weak(how: Callable[[int, int], None], number: int) -> bool:
        return number == process or kill(how, number)

    monkeypatch.setattr(watcher, "_kill", too_weak)


def _refuse(process: "subprocess.Popen[bytes]") -> None:
    raise AssertionError(f"the former group of process {process.pid} got a signal")


@asynccontextmanager
async def _worker(folder: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A worker whose tasks run, and the processes that they are."""
    command = (sys.executable, "-m", "tests.broker.worker.lone_worker", str(folder))
    numbers: list[int] = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as worker:  # noqa: ASYNC220 (at once)
        try:
            await until(lambda: (folder / "ready").exists() or worker.poll() is not None)
            files = [folder / name for name in ("leave_children", "held_in_a_call")]
            numbers += [int(number) for file in files for number in file.read_text().split()]
            yield worker, numbers
        finally:
            worker.kill()
            for number in numbers:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)


async def test_when_a_worker_is_killed_everything_that_its_tasks_started_ends(
    tmp_path: Path,
) -> None:
    async with _worker(tmp_path) as (worker, numbers):
        assert len(numbers) == 4 and not any(map(gone, numbers))
        worker.kill()
        async with asyncio.timeout(SOON_S):
            await until(lambda: all(map(gone, numbers)))
            watching = int((tmp_path / "watcher").read_text())
            await until(lambda: gone(watching))


async def test_children_of_a_killed_worker_end_without_its_watcher_too(tmp_path: Path) -> None:
    async with _worker(tmp_path) as (worker, numbers):
        os.kill(int((tmp_path / "watcher").read_text()), signal.SIGKILL)
        worker.kill()
        child, _, _, held = numbers
        async with asyncio.timeout(SOON_S):
            await until(lambda: gone(child) and gone(held))
        assert worker.poll() == -signal.SIGKILL


async def test_a_child_whose_worker_has_already_ended_ends_at_once() -> None:
    command = (sys.executable, "-m", "broker.worker.child", "0", "0", "1")
    child = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE)
    async with asyncio.timeout(SOON_S):
        assert await child.wait() == 0


async def test_a_process_that_a_task_started_in_its_own_session_ends_with_the_child(
    tmp_path: Path,
) -> None:
    note = tmp_path / "numbers"
    async with running() as it:
        it.run("leave_children", note=str(note))
        await until(lambda: note.exists() and note.read_text().endswith("\n"))
        numbers = [int(number) for number in note.read_text().split()]
        assert all(map(alive, numbers))
        await it.pool.end_all()
        # Before the attempt is told to have ended, so before another one can begin.
        assert all(map(gone, numbers))


async def test_an_attempt_has_not_ended_while_a_process_that_it_started_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "numbers"
    async with running(processes=2, places=2) as it:
        attempt = it.run("leave_children", note=str(note))
        await until(lambda: note.exists() and note.read_text().endswith("\n"))
        far = int(note.read_text().split()[2])
        _make_unkillable(monkeypatch, far)
        monkeypatch.setattr(pool, "_SLOW_END_S", 0)
        it.pool.interrupt([attempt], "cancelled")
        assert await it.pool.until_other_standing() == 0.5
        # A slow end delays nothing else: neither new tasks nor other ends.
        assert (await it.result("add", left=2, right=3)).result == b"5"
        other = it.run("block", note=str(tmp_path / "other"))
        await began(tmp_path / "other")
        it.pool.interrupt([other], "cancelled")
        assert (await it.end(other)).ended is Ended.INTERRUPTED
        assert attempt in it.pool.running and not gone(far) and it.pool.has_leftovers
        monkeypatch.undo()
        assert (await it.end(attempt)).ended is Ended.INTERRUPTED
        assert gone(far)


async def test_a_process_that_has_exited_gets_no_signal_and_no_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "numbers"
    async with running(places=1, ahead=2) as it:
        crashed = it.run("leave_children", note=str(note))
        unbegun = it.run("add", left=1, right=2)
        await until(lambda: note.exists() and note.read_text().endswith("\n"))
        child, _, far = map(int, note.read_text().split())
        _make_unkillable(monkeypatch, far)
        monkeypatch.setattr(pool, "_SLOW_END_S", 0.2)
        os.kill(child, signal.SIGKILL)
        await until(lambda: it.pool.has_leftovers)
        with monkeypatch.context() as patched:
            # By now the number of its group may belong to others.
            patched.setattr(child_process, "_kill_group", _refuse)
            it.pool.interrupt([unbegun], "cancelled")
            ending = asyncio.create_task(it.pool.end_all())
            await asyncio.sleep(0)
        late = it.run("add", left=2, right=3)
        async with asyncio.timeout(SOON_S):
            assert (await it.end(unbegun)).ended is Ended.INTERRUPTED
        assert (await it.end(late)).ended is Ended.HANDED_BACK
        assert it.pool.running == [crashed] and not gone(far)
        monkeypatch.undo()
        await ending
        assert (await it.end(crashed)).ended is Ended.FAILED, "its own end is no fault of others"


async def test_a_pool_that_is_closed_does_not_complete_what_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "numbers"
    async with running() as it:
        attempt = it.run("leave_children", note=str(note))
        await until(lambda: note.exists() and note.read_text().endswith("\n"))
        far = int(note.read_text().split()[2])
        _make_unkillable(monkeypatch, far)
        monkeypatch.setattr(pool, "_CLOSE_S", 0)
        it.pool.interrupt([attempt], "cancelled")
        await until(lambda: it.pool.has_leftovers)
        await it.pool.close()
        assert not it.ended and not gone(far)
        os.kill(far, signal.SIGKILL)


async def test_processes_without_a_mark_are_waited_for_by_their_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleeping = (sys.executable, "-c", "import signal; signal.pause()")
    process = await asyncio.create_subprocess_exec(*sleeping, start_new_session=True)
    left = Leftover({process.pid}, b"")
    with monkeypatch.context() as patched:
        patched.setattr(watcher, "_kill", lambda how, number: True)
        for _ in range(5):
            left.end()
            assert not left.gone
    async with asyncio.timeout(SOON_S):
        while not left.gone:
            left.end()
        assert await process.wait() == -signal.SIGKILL


async def test_a_process_that_a_task_leaves_on_purpose_keeps_running(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    async with running() as it:
        attempt = it.run("leave_on_purpose", note=str(note))
        await it.end(attempt)
        left = await began(note)
        it.run("block", note=str(tmp_path / "other"))
        await began(tmp_path / "other")
        await it.pool.end_all()
        try:
            assert not gone(left)
        finally:
            os.kill(left, signal.SIGKILL)


async def test_a_worker_continues_without_its_watcher() -> None:
    async with running() as it:
        process = it.pool.watch._process
        assert process is not None
        process.kill()
        process.wait()
        assert (await it.result("add", left=2, right=3)).result == b"5"
        it.run("block")
        await it.pool.end_all()


async def test_a_watcher_that_falls_behind_ends_nothing_of_a_living_worker() -> None:
    watch = Watch()
    watch.start()
    assert watch._process is not None
    variables, _ = watch.environment()
    task = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import signal; signal.pause()"),
        env={**os.environ, **variables},
        start_new_session=True,
    )
    try:
        os.kill(watch._process.pid, signal.SIGSTOP)
        for _ in range(100_000):
            watch.began(task.pid)
        assert watch._socket is not None, "it is not given up"
        os.kill(watch._process.pid, signal.SIGCONT)
        async with asyncio.timeout(SOON_S):
            await watch.close()
        assert not gone(task.pid)
    finally:
        task.kill()
        await task.wait()


async def test_only_processes_with_the_mark_are_ended() -> None:
    mark = b"0123456789abcdef.1:"
    sleeping = (sys.executable, "-c", "import signal; signal.pause()")
    environment = {**os.environ, VARIABLE: "fedcba9876543210.1:"}
    other = await asyncio.create_subprocess_exec(*sleeping, env=environment)
    mine = await asyncio.create_subprocess_exec(
        *sleeping, env={**environment, VARIABLE: f"outer.1:{mark.decode()}"}
    )
    try:
        async with asyncio.timeout(SOON_S):
            # Its environment shows when the program has been loaded.
            left = Leftover(set(), mark)
            await until(lambda: left.found() == [mine.pid])
            while not left.gone:
                left.end()
            assert await mine.wait() == -signal.SIGKILL
        assert not gone(other.pid)
    finally:
        other.kill()
        await other.wait()
