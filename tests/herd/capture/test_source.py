"""A stream's driver and readers over a store, as Spark calls them."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import herd
from engine import place as places
from engine.application import Application
from engine.errors import NotFound, PositionTruncated
from engine.log import START, Position, ReplicatedLog
from engine.place import Place, held_client
from herd.capture import reading, survey
from herd.capture.reading import read_stretch
from herd.capture.source import Changes, ChangesPin, Driver, Range, find_range
from herd.capture.survey import Limit
from herd.capture.wanted import Wanted, check_batch, check_stream, parse_wanted
from herd.connection import Connection
from herd.consumers import Consumer
from herd.errors import Error, InterfaceError, NoSuchTable, NotSupportedError, ProgrammingError
from herd.store import DEFAULT

COWS = Wanted(table="cows")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(url=str(tmp_path))
    yield place
    places.let_go(place)


@pytest.fixture
def connection(place: Place) -> Iterator[Connection]:
    with herd.connect(place.url) as opened:
        opened.execute("CREATE TABLE cows (id BIGINT PRIMARY KEY, name TEXT)")
        opened.commit()
        yield opened


def committed(connection: Connection, *statements: str) -> None:
    for statement in statements:
        connection.execute(statement)
    connection.commit()


def rows_of(changes: Changes, start: Position, end: Position) -> list[dict[str, Any]]:
    """All that executors read of a batch."""
    found = Range(changes, start, end, None)  # type: ignore[arg-type]
    batches = [
        batch
        for stretch in found.stretches()
        for batch in read_stretch(changes.held, changes.tablespace, changes.interest, stretch)
    ]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, changes.schema).to_pylist()
    return rows


def test_batches_of_any_size_tell_together_what_a_whole_one_tells(
    place: Place, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "STRETCH_BYTES", 500)
    monkeypatch.setattr(reading, "BATCH_ROWS", 7)
    rng = random.Random(7)
    model: dict[int, str] = {}
    for turn in range(60):
        ids = rng.sample(range(30), rng.randint(1, 5))
        for number in ids:
            if rng.random() < 0.3:
                connection.execute("DELETE FROM cows WHERE id = ?", (number,))
                model.pop(number, None)
            else:
                connection.execute("UPSERT INTO cows VALUES (?, ?)", (number, f"turn {turn}"))
                model[number] = f"turn {turn}"
        connection.commit()
    found = find_range(place, COWS)
    whole = rows_of(found.changes, found.start, found.end)
    driver = Driver(found.changes, COWS)
    driver.stop_at_end()
    pieces, at, batches = [], driver.begin(), 0
    while (end := driver.latest(at, Limit(rows=rng.randint(1, 20)))) != at:
        pieces += rows_of(found.changes, at, end)
        driver.commit(end)
        at, batches = end, batches + 1
    driver.close()
    assert batches > 10
    assert pieces == whole
    state: dict[int, str] = {}
    for row in whole:
        state.pop(row["id"], None)
        if row["_kind"] == "put":
            state[row["id"]] = row["name"]
    assert state == model


def test_a_batch_is_the_same_however_much_comes_after_it(
    place: Place, connection: Connection
) -> None:
    committed(connection, "INSERT INTO cows VALUES (1, 'elsa')")
    found = find_range(place, COWS)
    committed(connection, "INSERT INTO cows VALUES (2, 'berta')")
    for _ in range(2):
        assert [row["id"] for row in rows_of(found.changes, found.start, found.end)] == [1]
    later = find_range(place, Wanted(table="cows", start="latest"))
    assert later.stretches() == []


def test_what_a_batch_needs_is_kept_for_its_application(
    place: Place, connection: Connection, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    application = Application("app", str(notes))
    found = find_range(place, COWS)
    found.pin.hold(application)
    found.pin.hold(application)
    [(_, noted)] = application.noted()
    noted.renew()
    held = held_client(place)
    pins = held.run(lambda: held.client.store.get("/logs/herd/default/list"))
    assert pins is not None and found.pin.name.encode() in pins.value
    noted.drop()
    pins = held.run(lambda: held.client.store.get("/logs/herd/default/list"))
    assert pins is not None and found.pin.name.encode() not in pins.value


def test_an_application_needs_one_pin_for_all_batches_after_a_position(
    place: Place, connection: Connection, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    application = Application("app", str(notes))
    held = held_client(place)

    def pinned() -> list[str]:
        log = ReplicatedLog(held.client, "herd/default")
        return sorted(pin.name for pin in held.run(log.list).pins)

    earlier = find_range(place, Wanted(table="cows", start="latest"))
    for number in range(3):
        committed(connection, f"INSERT INTO cows VALUES ({number}, 'elsa')")
        find_range(place, Wanted(table="cows", start="latest")).pin.hold(application)
    assert len(pinned()) == 1
    earlier.pin.hold(application)
    assert len(pinned()) == 2
    find_range(place, Wanted(table="cows", start="latest")).pin.hold(application)
    assert len(pinned()) == 2
    for _, noted in application.noted():
        noted.renew()
        noted.drop()
    assert pinned() == []


def test_what_was_cut_off_is_no_pin_of_changes_any_more(
    place: Place, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut_off(consumer: Consumer, after: Position) -> None:
        raise PositionTruncated("the log keeps nothing up to there")

    monkeypatch.setattr(Consumer, "begin", cut_off)
    with pytest.raises(NotFound, match="keeps nothing"):
        ChangesPin(place, DEFAULT, START, "batch").renew()


def test_a_stream_without_a_name_leaves_nothing_pinned_and_one_with_a_name_does(
    place: Place, connection: Connection
) -> None:
    changes = find_range(place, COWS).changes
    held = held_client(place)

    def pinned() -> bytes:
        found = held.run(lambda: held.client.store.get("/logs/herd/default/list"))
        assert found is not None
        return found.value

    unnamed = Driver(changes, COWS)
    unnamed.latest(unnamed.begin())
    assert b"changes:stream-" in pinned()
    unnamed.close()
    assert b"changes:stream-" not in pinned()
    named = Driver(changes, Wanted(table="cows", consumer="etl"))
    named.latest(named.begin())
    named.close()
    assert b"changes:etl" in pinned()


@pytest.mark.parametrize(
    ("wanted", "kind", "message"),
    [
        (Wanted(table="sheep"), NoSuchTable, r"no table sheep in tablespace default .*cows"),
        (Wanted(names=frozenset({"cows", "emu"})), NoSuchTable, r"no table emu"),
        (Wanted(table="cows", before=True), NotSupportedError, r"ALTER TABLE cows SET"),
        (Wanted(before=True), NotSupportedError, r"cows does not log rows as they were"),
        (Wanted(tablespace="zoo"), ProgrammingError, r"there is no tablespace zoo"),
        (Wanted(start="77/0"), InterfaceError, r"77/0 is past the end"),
        (Wanted(end="77/0"), InterfaceError, r"77/0 is past the end"),
    ],
)
def test_what_is_not_there_is_told_when_changes_are_loaded(
    place: Place, connection: Connection, wanted: Wanted, kind: type[Error], message: str
) -> None:
    with pytest.raises(kind, match=message):
        find_range(place, wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tabel": "cows"}, r"no option tabel .* maxRows"),
        ({"table": "cows", "tables": "a,b"}, r"table or tables"),
        ({"start": "yesterday"}, r"'yesterday' is no position"),
        ({"maxrows": "0"}, r"maxRows='0': give a number"),
        ({"maxbytes": "many"}, r"maxBytes='many': give a number"),
        ({"before": "yes"}, r"before='yes': say true or false"),
    ],
)
def test_an_option_that_means_nothing_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(Error, match=message):
        parse_wanted(options)


def test_the_tablespace_that_is_meant_without_a_word_is_the_one_of_sessions() -> None:
    assert parse_wanted({}).tablespace == DEFAULT


def test_options_of_a_stream_are_none_of_a_batch_and_the_other_way_round() -> None:
    with pytest.raises(ProgrammingError, match="maxRows is an option of a stream"):
        check_batch({"maxrows": "5"})
    with pytest.raises(ProgrammingError, match="a stream has no end"):
        check_stream({"end": "latest"})
