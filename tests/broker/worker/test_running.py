"""The threads of a child process: how many there are, however late they come to run."""

import contextlib
import threading
from collections.abc import Callable

import pytest

from broker.connection import Run
from broker.worker import running
from broker.worker.frames import Report
from broker.worker.registry import TaskFunction
from broker.worker.running import Begun, Outbox, Threads

PLACES = 3


def never(run: Run) -> TaskFunction:
    raise AssertionError(f"nothing runs here: {run}")


def until_ended(work: Callable[[], None]) -> None:
    with contextlib.suppress(SystemExit):
        work()


def test_threads_that_are_slow_to_start_are_no_reason_for_more_of_them_than_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []
    looked = threading.Event()

    def start(work: Callable[[], None], name: str) -> None:
        """A thread that the machine has no time for yet; the one that watches runs."""
        started.append(name)
        if name == "watch":
            threading.Thread(target=until_ended, args=(work,)).start()

    class Watched(Threads):
        looks = 3

        def _join_in(self) -> None:
            super()._join_in()
            self.looks -= 1
            if not self.looks:
                looked.set()
                raise SystemExit

    monkeypatch.setattr(running, "start_thread", start)

    def write(report: Report) -> None:
        raise AssertionError(f"nothing ends here: {report}")

    threads = Watched(never, Outbox(write), Begun(bytearray(64)), PLACES)
    threads.start([(Run(number, 1, "elsa", "block", b""), number) for number in range(20)])
    monkeypatch.setattr(threads, "_work", lambda place, idle_s: None)
    threads.serve()
    assert looked.wait(timeout=30)
    assert started.count("work") == PLACES - 1, "and the first one, which serves"
