"""The parts of the demonstration on a cluster; `make demo` runs the whole."""

import asyncio
import io
import mailbox
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from broker.reading import TaskFilter
from broker.task import Status
from engine.errors import InvalidRequest
from herdbook.cli.demo import _progress
from herdbook.mailing import story as telling
from herdbook.mailing.ending import SAID
from herdbook.mailing.gathering import TENANTS, gather
from herdbook.mailing.report import STEPS, StoryReport
from herdbook.mailing.spark import TenantLine, tasks_of
from herdbook.mailing.story import StorySettings, _Story, _wanted, tell
from herdbook.mailing.work import look_into


def names_in(folder: Path) -> list[str]:
    """What lies there, as it will be called in the bucket."""
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_files_of_a_folder_get_names_that_say_whose_they_are(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "in").mkdir(parents=True)
    for number in range(12):
        (source / "in" / f"__init__{number} é.py").write_text("moo" * (number + 1))
    found = gather(source, tmp_path / "out", 1_000)
    assert (found.messages, found.size_bytes) == (12, 3 * sum(range(1, 13)))
    names = names_in(tmp_path / "out")
    assert Counter(name.partition("/")[0] for name in names) == {"anna": 6, "bert": 4, "cleo": 2}
    # Spark leaves out what begins with a dot or an underscore.
    assert all(name.rpartition("/")[2][0].isdigit() for name in names)


def test_no_more_messages_are_taken_than_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for number in range(5):
        (tmp_path / "source" / str(number)).write_text("moo")
    assert gather(tmp_path / "source", tmp_path / "out", 3).messages == 3
    assert len(names_in(tmp_path / "out")) == 3


def test_messages_of_an_mbox_are_one_file_each(tmp_path: Path) -> None:
    box = mailbox.mbox(tmp_path / "box")
    for number in range(3):
        message = EmailMessage()
        message["Subject"] = f"Elsa {number}"
        message.set_content("moo")
        box.add(message)
    box.close()
    found = gather(tmp_path / "box", tmp_path / "out", 1_000)
    assert found.messages == 3
    [first] = (tmp_path / "out" / "anna").glob("000000-*")
    assert b"Subject: Elsa 0" in first.read_bytes()


def test_a_message_of_an_mbox_has_the_bytes_that_it_has_there(tmp_path: Path) -> None:
    message = (
        b"Subject: " + b"Elsa and her calves " * 9 + b"\nContent-Type: multipart/mixed\n\nmoo\n"
    )
    (tmp_path / "box").write_bytes(b"From elsa Thu Jan  1 00:00:00 1970\n" + message)
    assert gather(tmp_path / "box", tmp_path / "out", 1).messages == 1
    [file] = (tmp_path / "out" / "anna").iterdir()
    assert file.read_bytes() == message


@pytest.mark.parametrize("source", ["empty", "nothing"])
def test_what_holds_nothing_to_send_is_refused(tmp_path: Path, source: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidRequest, match=source):
        gather(tmp_path / source, tmp_path / "out", 10)


def test_a_message_is_parsed_counted_and_hashed() -> None:
    message = EmailMessage()
    message.set_content("moo moo\n")
    message.add_attachment(b"\0\1", maintype="image", subtype="png", filename="elsa.png")
    found = look_into(bytes(message))
    assert (found.parts, found.size) == (3, len(bytes(message)))
    assert len(found.sha256) == 64 and found.sha256 != look_into(b"").sha256
    assert look_into(bytes(range(256))).parts == 1


def test_each_name_is_in_one_task_of_its_tenant() -> None:
    names = [f"{tenant}/{number:03}" for tenant in TENANTS for number in range(700)]
    wanted: list[Any] = list(_wanted(names))
    assert sorted(name for each in wanted for name in each.arguments["names"]) == names
    for each in wanted:
        assert each.options.tenant == each.arguments["tenant"]
        assert {name.partition("/")[0] for name in each.arguments["names"]} == {each.options.tenant}
    assert 150 < len(wanted) < 250


def story() -> StoryReport:
    """One in which all went well."""
    return StoryReport(
        "farm",
        messages=3,
        size_bytes=30,
        loaded=3,
        tasks=2,
        finished=2,
        killed={"bookie": "node-3", "leader": "node-1"},
        most_running={"anna": 4},
        lines=[TenantLine("anna", 2, 20, 2, 4), TenantLine("bert", 1, 10, 1, 2)],
        sql=[("anna", 2, 20, 2, 4), ("bert", 1, 10, 1, 2)],
        accounts=[("anna", 2, 20), ("bert", 1, 10)],
        took_s={"load": 1.0, "tasks": 1.0},
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loaded", 2),
        ("left", 1),
        ("different", 1),
        ("finished", 1),
        ("messages", 4),
        ("size_bytes", 31),
        ("killed", {"bookie": "node-3"}),
        ("most_running", {"anna": 5}),
        ("lines", []),
        ("sql", []),
        ("accounts", [("anna", 2, 20), ("bert", 1, 11)]),
    ],
)
def test_whatever_does_not_hold_fails_the_whole(name: str, value: object) -> None:
    assert story().ok and story().as_json()["ok"]
    report = story()
    setattr(report, name, value)
    assert not report.ok
    assert list(report.checks().values()).count(False) >= 1


def test_the_tables_for_people_say_what_holds_and_what_does_not() -> None:
    report = story()
    report.finished = 1
    console = Console(record=True, width=100)
    report.show(console)
    text = console.export_text()
    assert "✓ every message was sent" in text and "✗ every task is finished" in text
    assert "4 of 4" in text


def test_a_cluster_that_is_kept_is_up_when_the_report_is_told_until_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mail").write_text("moo")
    seen: list[str] = []

    @contextmanager
    def cluster(folder: Path, data: Path | None) -> Iterator[Any]:
        yield SimpleNamespace(url="herdbook://there/dev", cut_short=lambda: None)
        seen.append("down")

    async def nothing(story: object, sessions: AbstractContextManager[object]) -> None:
        """It went well."""

    def say(line: str) -> None:
        seen.append(line)
        if line.startswith("the cluster stays up"):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(telling, "running", cluster)
    monkeypatch.setattr(telling._Story, "run", nothing)
    settings = StorySettings(tmp_path, keep=True)
    told = partial(tell, settings, lambda *step: None, say, lambda report: seen.append("told"))
    assert asyncio.run(told()).messages == 1
    first, kept, ending, last = seen
    assert (first, ending, last) == ("told", SAID, "down")
    assert "until Ctrl-C: export HERDBOOK_URL=herdbook://there/dev" in kept


def test_what_spark_has_done_is_counted_in_its_tasks() -> None:
    stages = {
        1: SimpleNamespace(numTasks=4, numActiveTasks=0, numCompletedTasks=4),
        2: SimpleNamespace(numTasks=8, numActiveTasks=2, numCompletedTasks=3),
        3: None,
        # Planned, and passed over.
        4: SimpleNamespace(numTasks=9, numActiveTasks=0, numCompletedTasks=0),
    }
    jobs = {7: SimpleNamespace(stageIds=[1, 2]), 8: SimpleNamespace(stageIds=[2, 3, 4]), 9: None}
    tracker = SimpleNamespace(
        getJobIdsForGroup=lambda: list(jobs), getJobInfo=jobs.get, getStageInfo=stages.get
    )
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    assert tasks_of(spark) == (7, 12)


class Inline:
    """Threads that are none."""

    async def run(self, work: Callable[[], Any]) -> Any:
        return work()


def story_of(processes: Any = None, step: Any = lambda *step: None, say: Any = print) -> _Story:
    """One that has not begun."""
    gathered: Any = SimpleNamespace(messages=3)
    workers: Any = Inline()
    return _Story(gathered, StoryReport("farm"), processes, workers, step, say)


async def test_a_bar_of_sparks_tasks_begins_at_none_and_ends_at_all_whatever_was_never_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[tuple[int, int]] = []
    counts = iter([(5, 240), (23, 258)])
    monkeypatch.setattr("herdbook.mailing.spark.tasks_of", lambda spark: next(counts))
    told = story_of(step=lambda what, done, total: steps.append((done, total)))
    assert await told._by_spark("report", object(), lambda: "moo") == "moo"
    assert steps == [(0, 0), (18, 18)]


class Tasks:
    """All there are, as the broker lists them."""

    def __init__(self, *statuses: Status) -> None:
        self.statuses = statuses

    async def list(self, wanted: TaskFilter, above: int, limit: int) -> Any:
        fitting = [each for each in self.statuses if each in wanted.statuses]
        return SimpleNamespace(tasks=fitting, above=None)


def cluster_of(*statuses: Status) -> Any:
    """A cluster with tasks that are so far."""

    async def tasks() -> Tasks:
        return Tasks(*statuses)

    return SimpleNamespace(tasks=tasks)


async def test_two_nodes_are_killed_also_while_a_few_messages_are_sent_between_two_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[str] = []

    async def kill(story: object, cluster: object, whom: str) -> None:
        killed.append(whom)

    async def look(story: object, cluster: object, before: int) -> int:
        return 3

    monkeypatch.setattr(telling, "_LOOK_S", 0)
    monkeypatch.setattr(_Story, "_kill", kill)
    monkeypatch.setattr(_Story, "_look", look)
    await asyncio.wait_for(story_of()._look_on(cluster_of(Status.RUNNING), 3), 10)
    assert killed == ["bookie", "leader"]


async def test_tasks_that_end_in_error_end_the_wait_for_what_they_should_have_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def look(story: object, cluster: object, before: int) -> int:
        return 0

    monkeypatch.setattr(telling, "_LOOK_S", 0)
    monkeypatch.setattr(_Story, "_look", look)
    told = story_of()
    told._report.tasks = 2
    assert not await told._given_up(cluster_of(Status.ERROR, Status.RUNNING))
    ended = cluster_of(Status.ERROR, Status.FINISHED)
    await asyncio.wait_for(told._look_on(ended, 3), 10)


def test_where_nobody_looks_each_step_is_a_line_when_it_begins() -> None:
    out = io.StringIO()
    with _progress(Console(file=out, width=100)) as (step, say, end):
        step("gather", 0, 0)
        step("gather", 1, 1)
        assert out.getvalue().splitlines() == [f"{STEPS['gather']} ..."]
        end()
        say("moo")
    assert out.getvalue().split("\n")[1:2] == ["moo"]
