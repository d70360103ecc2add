"""The parts of the demonstration on a cluster; `make demo` runs the whole."""

import mailbox
from collections import Counter
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from engine.errors import InvalidRequest
from herdbook.mailing.gathering import TENANTS, gather
from herdbook.mailing.report import StoryReport
from herdbook.mailing.spark import TenantLine
from herdbook.mailing.story import _wanted
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
