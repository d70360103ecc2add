"""What a session of Spark is given, and what becomes of it."""

import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import herdbook
import herdbook.spark
from engine.access.tokens import READ, Claims, sign
from engine.folder.lock import FolderLock
from engine.place import Place, for_tasks, held_client
from herd.checkpoint.record import CheckpointList
from herd.snapshot.opening import open_snapshot
from herd.snapshot.pinning import CheckpointPin
from herd.snapshot.wanted import parse_wanted
from herdbook import own_scans
from herdbook.book import Book
from tests.engine.access.known_users import KEY


def test_a_session_runs_this_interpreter_and_pushes_filters(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.sparkContext.pythonExec == sys.executable


def test_what_a_session_says_of_itself_stays(spark: SparkSession, book: Book) -> None:
    pushing, arrow = herdbook.spark._SETTINGS
    spark.conf.set(pushing, "false")
    spark.conf.unset(arrow)
    try:
        herdbook.spark.register(spark, book)
        assert spark.conf.get(pushing) == "false"
        assert spark.conf.get(arrow) == "true"
    finally:
        spark.conf.set(pushing, "true")


def test_a_spark_that_lacks_what_scans_are_kept_apart_by_gets_no_rule(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_scans, "_FIELDS", (*own_scans._FIELDS, ("PythonScan", "nowhere")))
    fresh = spark.newSession()
    assert not own_scans.keeps_scans_apart(fresh)
    methods: Any = fresh._jsparkSession.experimental()
    assert methods.extraOptimizations().isEmpty()
    monkeypatch.undo()
    assert own_scans.keeps_scans_apart(fresh)


def test_a_book_is_named_by_its_folder(book: Book) -> None:
    assert Path(herdbook.spark.place_of(book).url).is_dir()


def pins_of(registration: herdbook.spark.Registration) -> set[str]:
    """The pins of its application."""
    held = held_client(registration.place)
    kept = CheckpointList(held.client.store, "default", held.client.time)
    pins = held.run(kept.get).pins
    return {pin.name for pin in pins if registration.application.name in pin.name}


def test_a_session_that_is_stopped_has_dropped_its_pins(
    spark: SparkSession, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    with book.sql(autocommit=True) as connection:
        connection.execute("CREATE TABLE stopped (id BIGINT PRIMARY KEY)")
    left: list[set[str]] = []
    registration: herdbook.spark.Registration
    with monkeypatch.context() as patched:
        patched.setattr(spark, "stop", lambda: left.append(pins_of(registration)))
        registration = herdbook.spark.register(spark, book)
        try:
            assert spark.read.format("herd").option("table", "stopped").load().count() == 0
            [(_, pin)] = registration.application.noted()
            assert isinstance(pin, CheckpointPin) and pin.name in pins_of(registration)
            spark.stop()
            assert len(left) == 1 and pin.name not in left[0]
        finally:
            registration.close()
    herdbook.spark.register(spark, book)


def registered(place: Place) -> herdbook.spark.Registration:
    """A registration of a session that is not there."""
    context = SimpleNamespace(applicationId="farm", master="local", pythonExec="", _jsc=object())
    session: Any = SimpleNamespace(sparkContext=context)
    return herdbook.spark.Registration(session, place)


def test_a_folder_that_nobody_has_open_is_run_by_the_driver(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with herdbook.open(folder) as opened, opened.sql(autocommit=True) as connection:
        connection.execute("CREATE TABLE cows (id BIGINT PRIMARY KEY)")

    def runs() -> int | None:
        lock = FolderLock.of(folder / "herd" / ".owner")
        try:
            owner = lock.read()
        finally:
            lock.close()
        return None if owner is None else owner.process

    assert runs() is None
    registration = registered(Place(url=str(folder)))
    try:
        assert runs() == os.getpid()
    finally:
        registration.close()
    assert runs() is None


def test_a_folder_without_tablespaces_is_left_without(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with herdbook.open(folder):
        pass
    registered(Place(url=str(folder))).close()
    assert not (folder / "herd").exists()


def test_a_forked_child_leaves_the_pins_to_its_parent(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    registration = registered(herdbook.spark.place_of(book))
    noted = Path(registration.application.folder)
    try:
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: 0)
            registration.close()
        assert noted.is_dir()
    finally:
        registration.close()
    assert not noted.exists()


def test_a_users_token_is_renewed_by_the_driver_for_all_processes(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed: list[str] = []

    def sign_another(place: Place, lifetime_ms: int = 0) -> Place:
        assert not place.token and lifetime_ms == 3_600_000
        signed.append(sign(Claims(READ, "ben", 1_000 + len(signed)), KEY))
        return msgspec.structs.replace(place, token=signed[-1])

    monkeypatch.setattr(herdbook.spark, "with_token", sign_another)
    before = herdbook.spark.place_of(book)
    registration = registered(before)
    try:
        carried = pickle.loads(pickle.dumps(registration.place))
        registration.renew()
        assert len(signed) == 1, "it is good for a while"
        registration._token_due_s = 0.0
        registration.renew()
        registration.renew()
        assert len(signed) == 2 and signed[-1] not in repr(registration.place)
        assert for_tasks(carried).token == signed[-1]
        assert for_tasks(carried.at(None, "another")).token == "another"
    finally:
        registration.close()
    assert not Path(registration.place.renewed).exists()


def test_who_ends_a_session_does_not_wait_for_each_pin_of_a_store_that_is_away(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    registration = registered(herdbook.spark.place_of(book))
    renewed: list[int] = []

    def renew(number: int) -> None:
        renewed.append(number)
        # As if the session were ended while the first pin waits.
        registration._ended.set()

    pins = [SimpleNamespace(renew=lambda number=number: renew(number)) for number in range(3)]
    try:
        with monkeypatch.context() as noted:
            told = [(Path(str(number)), pin) for number, pin in enumerate(pins)]
            noted.setattr(type(registration.application), "noted", lambda _: told)
            registration.renew()
        assert renewed == [0]
    finally:
        registration._ended.clear()
        registration.close()


def test_of_too_many_pins_those_go_that_were_asked_for_longest_ago(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(herdbook.spark, "PINS_MAX", 2)
    registration = registered(herdbook.spark.place_of(book))
    application = registration.application
    try:
        with book.sql(autocommit=True) as connection:
            connection.execute("CREATE TABLE often (id BIGINT PRIMARY KEY)")

            def load(snapshot: str = "fresh") -> int:
                connection.execute("INSERT INTO often SELECT count(*) FROM often")
                wanted = parse_wanted({"table": "often", "snapshot": snapshot})
                return open_snapshot(registration.place, application, wanted).record.number

            numbers = [load() for _ in range(3)]
            for path, pin in application.noted():
                assert isinstance(pin, CheckpointPin)
                os.utime(path, ns=(pin.number, pin.number))
            assert load(f"{numbers[0]}") == numbers[0]
            registration.renew()
            left = [pin.number for _, pin in application.noted() if isinstance(pin, CheckpointPin)]
            assert left == [numbers[2], numbers[0]] and len(pins_of(registration)) == 2
    finally:
        registration.close()


def test_pins_are_renewed_while_a_registration_lasts_and_dropped_with_it(
    spark: SparkSession, book: Book
) -> None:
    with book.sql(autocommit=True) as connection:
        connection.execute("CREATE TABLE pinned (id BIGINT PRIMARY KEY)")
    registration = herdbook.spark.register(spark, book)
    try:
        frame = spark.read.format("herd").option("table", "pinned").load()
        [(_, noted)] = registration.application.noted()
        assert isinstance(noted, CheckpointPin)
        held = held_client(registration.place)
        kept = CheckpointList(held.client.store, "default", held.client.time)

        def expiry_ms() -> list[int]:
            pins = held.run(kept.get).pins
            return [pin.expires_ms for pin in pins if pin.name == noted.name]

        [before_ms] = expiry_ms()
        registration.renew()
        assert expiry_ms() > [before_ms]
        assert frame.count() == 0
        registration.close()
        assert expiry_ms() == []
    finally:
        registration.close()
        herdbook.spark.register(spark, book)


def test_another_session_has_another_store(spark: SparkSession, book: Book, tmp_path: Path) -> None:
    with herdbook.open(tmp_path / "other") as other:
        for store, number in ((book, 1), (other, 2)):
            with store.sql(autocommit=True) as connection:
                connection.execute("CREATE TABLE both (id BIGINT PRIMARY KEY)")
                connection.execute("INSERT INTO both VALUES (?)", (number,))
        second = spark.newSession()
        registration = herdbook.spark.register(second, other)
        try:
            for session, number in ((second, 2), (spark, 1)):
                frame = session.read.format("herd").option("table", "both").load()
                assert [row.id for row in frame.collect()] == [number]
        finally:
            registration.close()
            herdbook.spark.activate(spark)
