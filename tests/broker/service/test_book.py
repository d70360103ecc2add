"""Tasks of an open folder, with real worker processes."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import herdbook
from broker.describing import Options, Wanted
from broker.errors import (
    BrokerUnavailable,
    InvalidTask,
    NotInState,
    SlotBusy,
    StoreClosed,
    TaskFailed,
    UnknownTask,
    WaitTimedOut,
)
from broker.reading import TaskFilter
from broker.settings import Limit
from broker.sync import Handle, Tasks
from broker.task import Status
from broker.worker import task
from engine.ports.system_loop import background_loop
from tests.broker.worker.looking import began


@task(name="tests.add")
def add(a: int, b: int = 1) -> dict[str, int]:
    """Where it ran, and what came of it."""
    return {"sum": a + b, "process": os.getpid()}


@task(name="tests.lasts")
def lasts(note: str) -> None:
    """Says that it began, and never ends."""
    Path(note).write_text(str(os.getpid()))
    threading.Event().wait()


@task(name="tests.breaks", attempts_max=1)
def breaks() -> None:
    """Fails."""
    raise ValueError("no hay")


def test_an_interrupted_program_leaves_its_tasks_waiting(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with herdbook.open(tmp_path / "data") as book:
        handle = book.tasks.submit(lasts, {"note": str(note)})
        with pytest.raises(KeyboardInterrupt), book.tasks.workers(1):
            background_loop().run(lambda: began(note))
            raise KeyboardInterrupt
        found = handle.get()
        assert (found.status, found.attempts_spent) == (Status.WAITING, 0)


def test_tasks_of_a_folder_run_in_processes_and_outlive_the_program(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        tasks = book.tasks
        handle = tasks.submit(add, {"a": 2})
        with pytest.raises(WaitTimedOut):
            handle.wait(timeout_ms=1)
        with tasks.transaction() as together:
            second = together.submit(add, {"a": 2, "b": 40})
        with pytest.raises(InvalidTask):
            tasks.submit(add, {"a": "two"})
    with herdbook.open(tmp_path) as book:
        tasks = book.tasks
        with tasks.workers(1, places=4):
            found = tasks.wait(handle.id, timeout_ms=20_000)
            assert found["sum"] == 3 and found["process"] != os.getpid()
            assert tasks.wait(second.id, timeout_ms=20_000)["sum"] == 42
            with pytest.raises(TaskFailed, match="no hay"):
                tasks.submit(breaks).wait(timeout_ms=20_000)
        assert [one.type for one in tasks.dead().tasks] == ["tests.breaks"]
        waiting = tasks.submit(add, {"a": 1}, slot="one")
        waiting.cancel()
        assert waiting.get().status is Status.CANCELLED


def test_another_opener_of_the_folder_has_the_same_tasks_and_runs_them_next(
    tmp_path: Path,
) -> None:
    with herdbook.open(tmp_path) as other:
        with herdbook.open(tmp_path) as book:
            first = book.tasks.submit("a", slot="one")
            second = other.tasks.submit("b", {"cow": "elsa"})
            assert (first.id, second.id) == (1, 2)
            with pytest.raises(SlotBusy) as raised:
                other.tasks.submit("a", slot="one")
            assert raised.value.task_id == 1
            with other.tasks.transaction() as together:
                together.submit("c")
            other.tasks.set_limit("db", 3)
            assert [task.type for task in book.tasks.list().tasks] == ["a", "b", "c"]
        assert other.tasks.submit("d").id == 4
        other.tasks.cancel([1])
        with herdbook.open(tmp_path) as book:
            assert book.tasks.get(1).status is Status.CANCELLED


def test_every_call_with_a_loop_is_there_without_one(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        tasks = book.tasks
        made = tasks.submit_many([Wanted("a"), Wanted("a", None, Options(slot="s"))])
        refused = tasks.submit_many([Wanted("a", None, Options(slot="s"))])
        assert [type(one) for one in (*made, *refused)] == [Handle, Handle, SlotBusy]
        first, second = tasks.chain([Wanted("a"), Wanted("b")])
        *_, last = tasks.group([Wanted("a"), Wanted("b")], Wanted("c"))
        blocked = [tasks.get(int(one)).status for one in (first, second, last)]
        assert blocked == [Status.WAITING, Status.BLOCKED, Status.BLOCKED]
        assert len(tasks.list(TaskFilter(type="a")).tasks) == 4
        tasks.schedule("nightly", "a", cron="0 2 * * *", zone="Europe/Rome")
        tasks.pause_schedule("nightly")
        assert [one.paused for one in tasks.schedules()] == [True]
        tasks.resume_schedule("nightly")
        tasks.delete_schedule("nightly")
        assert not tasks.schedules()
        tasks.set_limit("db", 3)
        tasks.set_tenant("acme", weight=2.0)
        tasks.map_tenant("acme", 2, ("db",))
        tasks.set_rate("tenant:acme", 5.0)
        tasks.pause("type:a")
        tasks.resume("type:a")
        assert tasks.set("resource", "db", Limit(4)) and not tasks.set("resource", "db", Limit(4))
        tasks.cancel([first])
        tasks.retry([first], by="elsa")
        first.cancel()
        tasks.delete([first])
        with pytest.raises(UnknownTask):
            first.get()
        with pytest.raises(RuntimeError), tasks.transaction() as together:
            together.submit("a", slot="t")
            raise RuntimeError("no")
        tasks.submit("a", slot="t")


CALLS: tuple[Callable[[Tasks], object], ...] = (
    lambda tasks: tasks.submit("a"),
    lambda tasks: tasks.get(1),
    lambda tasks: tasks.wait(1, 10),
    lambda tasks: tasks.list(),
    lambda tasks: tasks.schedules(),
    lambda tasks: tasks.set_limit("db", 1),
    lambda tasks: tasks.workers(1).__enter__(),
)


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_what_is_asked_of_a_closed_store_says_that_it_is_closed(
    tmp_path: Path, number: int
) -> None:
    with herdbook.open(tmp_path) as book:
        tasks = book.tasks
        tasks.submit("a")
        with herdbook.open(tmp_path) as other:
            guest = other.tasks
            guest.submit("b")
        with pytest.raises(StoreClosed, match=r"the store is closed \(open it again\)"):
            CALLS[number](guest)
    with pytest.raises(StoreClosed, match=r"the store is closed \(open it again\)"):
        CALLS[number](tasks)


def test_what_cannot_be_done_to_a_task_names_its_state(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        handle = book.tasks.submit("a")
        with pytest.raises(NotInState, match="task 1 is waiting and cannot be begun anew"):
            book.tasks.retry([handle])
        with pytest.raises(NotInState, match="task 1 is waiting and cannot be deleted"):
            book.tasks.delete([handle])


@pytest.mark.parametrize("option", ["delay_ms", "timeout_ms"])
@pytest.mark.parametrize("wait_ms", [-1, 1.5, "9"])
def test_a_wait_that_is_none_is_refused(tmp_path: Path, option: str, wait_ms: Any) -> None:
    with herdbook.open(tmp_path) as book:
        with pytest.raises(InvalidTask, match=f"{option} is {wait_ms!r}; it is 0 or more"):
            book.tasks.submit("a", None, **{option: wait_ms})
        assert not book.tasks.list().tasks


def test_an_interval_in_a_time_zone_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        with pytest.raises(InvalidTask, match="no time zone 'Europe/Atlantis'"):
            book.tasks.schedule("tick", "a", every_ms=1_000, zone="Europe/Atlantis")
        assert not book.tasks.schedules()


def test_a_blocking_call_on_the_loops_own_thread_raises_and_does_not_hang(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        tasks = book.tasks

        async def blocking() -> None:
            with pytest.raises(BrokerUnavailable, match="event loop"):
                tasks.submit("a")

        background_loop().run(blocking)
        assert not tasks.list().tasks
