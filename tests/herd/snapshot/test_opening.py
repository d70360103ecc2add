"""Snapshots of a real folder without Spark: what is wrong, what is pinned, and until when."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from msgspec.structs import replace

import herdbook
from engine.application import Application
from engine.errors import MetadataUnavailable, NotFound
from engine.place import Place, held_client, let_go
from herd.checkpoint.manifest import Checkpoints
from herd.checkpoint.record import CheckpointList
from herd.errors import Error, LeaderUnavailable, StorageFailed
from herd.place import let_go as let_go_of_herd
from herd.snapshot.opening import open_snapshot
from herd.snapshot.parts import plan, read_part
from herd.snapshot.pinning import CheckpointPin
from herd.snapshot.snapshot import Snapshot
from herd.snapshot.wanted import parse_wanted
from herdbook.book import Book


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    """A folder with a table of three rows."""
    with herdbook.open(tmp_path / "data") as opened:
        run(opened, "CREATE TABLE cows (id BIGINT PRIMARY KEY, name TEXT)")
        run(opened, "INSERT INTO cows VALUES (1, 'Elsa'), (2, 'Berta'), (3, NULL)")
        yield opened
        let_go_of_herd(Place(url=opened.url))
        let_go(Place(url=opened.url))


def run(book: Book, statement: str) -> None:
    """One statement."""
    with book.sql(autocommit=True) as connection:
        connection.execute(statement)


def snapshot(book: Book, application: Application | None = None, **options: str) -> Snapshot:
    """What these options open."""
    wanted = parse_wanted({"table": "cows", **options})
    return open_snapshot(Place(url=book.url), application or Application("app"), wanted)


def rows(found: Snapshot) -> list[tuple[object, ...]]:
    """All rows of a snapshot."""
    read = [batch for part in plan(found) for batch in read_part(found, part)]
    return [tuple(row.values()) for batch in read for row in batch.to_pylist()]


def kept(book: Book) -> Checkpoints:
    """The list of checkpoints."""
    held = held_client(Place(url=book.url))
    return held.run(CheckpointList(held.client.store, "default", held.client.time).get)


def test_a_snapshot_stays_as_it_was(book: Book) -> None:
    before = snapshot(book)
    run(book, "DELETE FROM cows WHERE id > 1")
    run(book, "DROP TABLE cows")
    assert rows(before) == [(1, "Elsa"), (2, "Berta"), (3, None)]


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("id >= 2", [2, 3]),
        ("2 > id", [1]),
        ("name = 'Elsa' AND id <> 7", [1]),
        ("name IS NULL", [3]),
        ("name IS NOT NULL AND NOT (id = 1)", [2]),
        ("name LIKE '%er%'", [2]),
        ("id BETWEEN 2 AND 3", [2, 3]),
        ("id NOT IN (1, 3)", [2]),
        ("name <=> 'Berta'", [2]),
    ],
)
def test_rows_are_read_by_conditions(book: Book, where: str, wanted: list[int]) -> None:
    assert [id for (id,) in rows(snapshot(book, where=where, columns="id"))] == wanted


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "nowhere"}, "there is no table nowhere in tablespace default"),
        ({"table": "few"}, "few is a view of tablespace default"),
        ({"tablespace": "nowhere"}, "there is no tablespace nowhere"),
        ({"snapshot": "999"}, "checkpoint 999 of tablespace default is not kept"),
        ({"snapshot": "old"}, "snapshot='old' is none"),
        ({"columns": "id,nix"}, "table cows has no column nix"),
        ({"columns": "id,ID"}, "name each column once"),
        ({"tabel": "cows"}, 'format "herd" has no option tabel'),
        ({"where": "id +"}, "where='id +'"),
        ({"where": "id = 1 OR id = 2"}, "where: id = 1 OR id = 2"),
        ({"where": "id = 'many'"}, "where: column id is compared with"),
        ({"where": "upper(name) = 'ELSA'"}, "is no column"),
        ({"pushdown": "yes"}, "pushdown='yes'"),
    ],
)
def test_what_is_wrong_is_said_and_pins_nothing(
    book: Book, options: dict[str, str], said: str
) -> None:
    run(book, "CREATE VIEW few AS SELECT id FROM cows")
    with pytest.raises(Error) as caught:
        snapshot(book, None, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert kept(book).pins == ()


def test_a_leader_that_does_not_answer_is_a_warning_with_the_age(book: Book) -> None:
    run(book, "CHECKPOINT")
    run(book, "DELETE FROM cows WHERE id = 3")
    gone = LeaderUnavailable("nobody leads")
    with patch("herd.snapshot.pinning._take", side_effect=gone):
        with pytest.warns(UserWarning, match=r"checkpoint \d+, which is \d+ s old: nobody leads"):
            found = snapshot(book)
        assert len(rows(found)) == 3
        with pytest.raises(Error, match="not kept"):
            snapshot(book, snapshot="999")


def test_a_driver_renews_the_pins_that_are_noted_and_drops_them(book: Book, tmp_path: Path) -> None:
    folder = tmp_path / "noted"
    folder.mkdir()
    application = Application("app", str(folder))
    found = snapshot(book, application)
    [pin] = kept(book).pins
    assert pin.name == found.pin and pin.name.startswith("spark:app:")
    [(_, noted)] = application.noted()
    noted.renew()
    [renewed] = kept(book).pins
    assert renewed.name == pin.name and renewed.expires_ms > pin.expires_ms
    noted.drop()
    assert kept(book).pins == ()


def noted_in(folder: Path) -> Application:
    """An application whose driver would renew what is noted there."""
    folder.mkdir()
    return Application("app", str(folder))


def test_frames_of_one_checkpoint_have_one_pin_of_their_application(
    book: Book, tmp_path: Path
) -> None:
    application = noted_in(tmp_path / "noted")
    frames = [snapshot(book, application) for _ in range(3)]
    assert len({frame.record.number for frame in frames}) == 1
    [first] = kept(book).pins
    assert {frame.pin for frame in frames} == {first.name}
    snapshot(book, noted_in(tmp_path / "another"))
    assert len(kept(book).pins) == 2
    run(book, "INSERT INTO cows VALUES (4, 'Olga')")
    snapshot(book, application)
    assert len(kept(book).pins) == 3
    for _, noted in application.noted():
        noted.renew()
    assert len(kept(book).pins) == 3 and first.name in {pin.name for pin in kept(book).pins}
    for _, noted in application.noted():
        noted.drop()
    assert len(kept(book).pins) == 1


def test_a_noted_pin_that_is_lost_is_not_relied_on(book: Book, tmp_path: Path) -> None:
    application = noted_in(tmp_path / "noted")
    found = snapshot(book, application)
    with patch.object(CheckpointPin, "renew", side_effect=MetadataUnavailable("no answer")):
        snapshot(book, application)
    assert len(kept(book).pins) == len(list(application.noted())) == 2
    with patch.object(CheckpointPin, "renew", side_effect=NotFound("kept no more")):
        snapshot(book, application, snapshot=f"{found.record.number}")
    assert len(kept(book).pins) == len(list(application.noted())) == 3


def test_a_checkpoint_that_was_let_go_is_to_be_loaded_again(book: Book) -> None:
    found = snapshot(book)
    CheckpointPin(found.place, "default", found.record.number, found.pin).drop()
    for number in range(4):
        run(book, f"UPDATE cows SET name = 'cow {number}'")
        run(book, "CHECKPOINT")
    with pytest.raises(StorageFailed, match=r"kept no more .*load again"):
        rows(found)


def test_a_fresh_snapshot_takes_a_checkpoint_only_of_what_is_new(book: Book) -> None:
    first, second = snapshot(book), snapshot(book)
    assert first.record == second.record
    run(book, "INSERT INTO cows VALUES (4, 'Olga')")
    third = snapshot(book)
    assert third.record.number > second.record.number
    assert len(rows(second)) == 3 and len(rows(third)) == 4


def test_a_damaged_page_is_an_error_that_names_table_and_page(book: Book) -> None:
    found = snapshot(book)
    [part] = plan(found)
    whole = read_part(found, part)
    with (
        patch("herd.snapshot.parts.page_batch", side_effect=OSError("Truncated compressed")),
        pytest.raises(StorageFailed, match="page 0 of table cows is damaged"),
    ):
        next(whole)
    [piece] = part
    lost = type(piece)(piece.locators, piece.rows + 1, 0)
    with pytest.raises(StorageFailed, match="has 3 of 4 rows"):
        next(read_part(found, (lost,)))
    [locator] = piece.locators
    other = replace(locator, checksum=locator.checksum ^ 1)
    with pytest.raises(StorageFailed, match=r"page 0 of table cows: .*checksum is wrong"):
        next(read_part(found, (type(piece)((other,), piece.rows, 0),)))


def test_a_snapshot_has_what_changed_little_since_its_pages_were_written(book: Book) -> None:
    run(book, f"INSERT INTO cows VALUES {', '.join(f'({id}, NULL)' for id in range(10, 100))}")
    before = snapshot(book)
    run(book, "UPDATE cows SET name = 'Zenzi' WHERE id = 50")
    run(book, "DELETE FROM cows WHERE id = 2")
    run(book, "INSERT INTO cows VALUES (-7, 'Alma')")
    after = snapshot(book)
    [[piece]] = plan(after)
    assert len(piece.locators) == 2 and piece.locators[:1] == plan(before)[0][0].locators
    ids = [1, 3, *range(10, 100)]
    assert [id for id, _ in rows(after)] == [-7, *ids]
    assert (50, "Zenzi") in rows(after) and len(rows(before)) == 93
    for where, wanted in (("name = 'Zenzi'", [50]), ("id < 0", [-7]), ("name = 'Alma'", [-7])):
        assert [id for (id,) in rows(snapshot(book, where=where, columns="id"))] == wanted


def test_the_ledgers_of_a_part_are_opened_once(book: Book) -> None:
    found = snapshot(book)
    [part] = plan(found)
    client = held_client(found.place).client
    with patch.object(client, "open_ledger", wraps=client.open_ledger) as opening:
        batches = list(read_part(found, part * 9))
    assert sum(batch.num_rows for batch in batches) == 27
    opening.assert_called_once()
