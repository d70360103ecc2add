"""What a scrub finds, and what a broker's history tells, without Spark."""

from pathlib import Path

import pytest

import herdbook
from blobit.snapshot.bucket_snapshot import take_snapshot
from blobit.snapshot.planning import plan
from blobit.snapshot.wanted import Wanted
from broker.service import Broker
from broker.task import EventKind, Status, Task
from engine.application import Application
from engine.place import Place, let_go
from herd.place import let_go as let_herd_go
from pipeline.durations import Durations
from pipeline.findings import NAMED_MAX, Finding, Tally, added
from pipeline.object_checking import check_objects
from pipeline.replica_checking import check_ledgers
from pipeline.task_history import first_wait_ms, plan_replay, read_history, release

BODY = b"elsa gives milk " * 64


def damage(folder: Path, body: bytes) -> int:
    """Change a byte of each copy of a body in a bookie's folder; how many there were."""
    changed = 0
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        at = content.find(body)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + 7)
                file.write(b"\0")
            changed += 1
    return changed


def test_a_damaged_replica_is_told_with_its_bookie(tmp_path: Path) -> None:
    place = Place(url=str(tmp_path))
    with herdbook.open(tmp_path, bookies=3) as book:
        bucket = book.blobs.create_bucket("cows")
        bucket.put("elsa", BODY)
        ledger_id = bucket.stat("elsa").object_id.ledger_id
        assert check_ledgers(place, [ledger_id]).sound
    let_go(place)
    let_herd_go(place)
    assert damage(sorted(tmp_path.glob("bookie-*"))[0], BODY)
    with herdbook.open(tmp_path) as book:
        found = check_ledgers(place, [ledger_id, 10**9])
        assert (found.subjects, found.missing, found.unreadable) == (1, 0, 0)
        assert found.corrupt >= 1 and found.bytes >= 2 * len(BODY)
        assert found.findings[0].subject == f"ledger {ledger_id}"
        let_go(place)


def test_a_ledger_that_somebody_names_and_that_is_not_there_is_missing(tmp_path: Path) -> None:
    place = Place(url=str(tmp_path))
    with herdbook.open(tmp_path):
        found = check_ledgers(place, [7], named=True)
        assert (found.subjects, found.missing, found.sound) == (0, 1, False)
        assert found.findings == [Finding("missing", "ledger 7", "there is no such ledger")]
        assert check_ledgers(place, [7]).sound, "it was deleted after it was listed"
        let_go(place)


def test_an_object_without_an_intact_copy_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    place = Place(url=str(tmp_path))
    with herdbook.open(tmp_path) as book:
        bucket = book.blobs.create_bucket("cows")
        for name, content in (("berta", b"b" * 500), ("elsa", BODY), ("frida", b"f" * 700)):
            bucket.put(name, content)
    let_go(place)
    let_herd_go(place)
    assert damage(tmp_path, BODY)
    with herdbook.open(tmp_path):
        snapshot = take_snapshot(place, Application(), Wanted("cows"))
        shares = plan(snapshot, Wanted("cows"), snapshot.conditions)
        found = added(check_objects(snapshot, share) for share in shares)
        assert (found.subjects, found.bytes, found.sound) == (3, 1_200, False)
        assert [finding.subject for finding in found.findings] == ["'elsa'"]
        let_go(place)
        let_herd_go(place)


def test_a_replay_begins_with_a_snapshot_and_counts_what_was_removed_since(tmp_path: Path) -> None:
    place = Place(url=str(tmp_path))
    with herdbook.open(tmp_path) as book:
        handles = [book.tasks.submit("milk", tenant="acme") for _ in range(3)]
        book.tasks.cancel([int(handles[0])])
        calls = book.tasks._tasks.calls
        assert isinstance(calls, Broker)
        book.tasks.run(calls.replica.snapshot)
        book.tasks.delete([int(handles[0])])
        replay = plan_replay(place)
        assert replay is not None and replay.snapshot is not None
        history = read_history(replay)
        release(replay)
        let_go(place)
    (found,) = history.types
    assert (found.tenant, found.states, found.removed) == (
        "acme",
        {"cancelled": 1, "waiting": 2},
        1,
    )
    assert history.since_ms == replay.snapshot.taken_ms > 0


def test_a_wait_is_counted_from_when_the_task_could_run() -> None:
    task = Task(1, "acme", "milk", Status.RUNNING, created_ms=1_000)
    assert first_wait_ms(task) is None
    task.events = [
        (1_000, EventKind.SUBMITTED, 0, "", ""),
        (5_000, EventKind.RELEASED, 0, "", ""),
        (5_400, EventKind.ASSIGNED, 1, "w", ""),
        (9_000, EventKind.ASSIGNED, 2, "w", ""),
    ]
    assert first_wait_ms(task) == 400


def test_percentiles_are_at_most_five_percent_too_high() -> None:
    durations = Durations()
    for duration_ms in range(1, 1_001):
        durations.add(duration_ms)
    assert 500 <= durations.percentile(0.5) <= 525
    assert durations.percentile(1) == durations.longest_ms == 1_000
    assert durations.mean_ms == 500
    assert Durations().percentile(0.5) == 0


def test_findings_are_counted_in_full_and_named_up_to_a_limit() -> None:
    tally = Tally()
    for number in range(NAMED_MAX + 5):
        tally.note(Finding("missing", "ledger 7", f"entry {number}"))
    total = added([tally, tally])
    assert (total.missing, len(total.findings)) == (2 * (NAMED_MAX + 5), NAMED_MAX)


@pytest.mark.parametrize("kind", ["corrupt", "missing", "unreadable"])
def test_whatever_is_found_is_not_sound(kind: str) -> None:
    tally = Tally()
    assert tally.sound
    tally.note(Finding(kind, "ledger 7", "entry 1"))
    assert not tally.sound
