"""A demonstration that is ended before its time, or was killed."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from herdbook.mailing.ending import INTERRUPTED, SAID, children, ending_by_signals
from herdbook.mailing.own_folder import LOCK_NAME, PREFIX, own_folder, sweep
from herdbook.mailing.processes import Processes


@contextmanager
def waiting_child() -> "Iterator[subprocess.Popen[bytes]]":
    """A process that ends when it is told to."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files lie."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_all_that_a_demonstration_puts_down_lies_in_its_own_folder(temporary: Path) -> None:
    with own_folder() as folder:
        assert Path(tempfile.mkdtemp()).parent == folder == Path(os.environ["TMPDIR"])
    assert list(temporary.iterdir()) == []
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(temporary)


def test_the_folder_of_a_killed_demonstration_goes_when_the_next_one_starts(
    temporary: Path,
) -> None:
    leaving = (
        "import os, herdbook.mailing.own_folder as own\n"
        "with own.own_folder() as folder:\n    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", leaving], check=False)
    [left] = temporary.iterdir()
    with own_folder() as folder:
        assert not left.exists() and list(temporary.iterdir()) == [folder]


def test_no_folder_is_swept_that_somebody_has_or_that_is_none_of_a_demonstration(
    tmp_path: Path,
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / LOCK_NAME).touch()
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    (tmp_path / f"{PREFIX}other").mkdir()
    with ExitStack() as stack:
        held = stack.enter_context(own_folder())
        (tmp_path / f"{PREFIX}held").symlink_to(held)
        sweep(held.parent)
        sweep(tmp_path)
        assert held.exists() and (elsewhere / LOCK_NAME).exists()
        assert (tmp_path / f"{PREFIX}other").exists()


def test_the_first_interrupt_says_so_and_ends_what_a_thread_waits_for(tmp_path: Path) -> None:
    told: list[str] = []

    async def story() -> None:
        with ending_by_signals(tmp_path, told.append) as ending, waiting_child() as java:
            known = children() - {java.pid}
            processes = object.__new__(Processes)
            vars(processes).update(_facts={"url": "there"}, _started=known)
            ending.also.append(processes.cut_short)
            os.kill(os.getpid(), signal.SIGINT)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                assert java.wait() == -signal.SIGKILL
                raise ConnectionRefusedError("what closes the session of Spark finds nobody")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(story())
    assert told == [SAID] and signal.getsignal(signal.SIGINT) is before


def test_what_a_thread_starts_after_the_interrupt_is_ended_too(tmp_path: Path) -> None:
    turns: list[int] = []

    async def story() -> None:
        with ending_by_signals(tmp_path, lambda line: None) as ending:
            again = asyncio.Event()

            def cut_short() -> None:
                turns.append(1)
                if len(turns) > 1:
                    again.set()

            ending.also.append(cut_short)
            os.kill(os.getpid(), signal.SIGINT)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await again.wait()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(story())
    assert len(turns) > 1


def test_the_second_interrupt_leaves_no_process_and_no_folder(temporary: Path) -> None:
    stubborn = (
        "import asyncio, os, signal, subprocess, sys\n"
        "from herdbook.mailing.ending import ending_by_signals\n"
        "from herdbook.mailing.own_folder import own_folder\n"
        "async def story():\n"
        "    with own_folder() as folder, ending_by_signals(folder, print):\n"
        "        child = subprocess.Popen(['cat'], stdin=subprocess.PIPE)\n"
        "        print(child.pid, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        child.wait()\n"
        "asyncio.run(story())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", stubborn], check=False, capture_output=True, text=True
    )
    assert ended.returncode == INTERRUPTED, ended.stderr
    assert not Path(f"/proc/{int(ended.stdout.split()[0])}").exists()
    assert list(temporary.iterdir()) == []
