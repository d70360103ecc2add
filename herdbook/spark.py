"""Spark over a store: a session that is set up well, or the sources for a session of one's own.

    import herdbook.spark
    spark = herdbook.spark.session("./data")
    spark.read.format("herd").option("table", "cows").load().show()

    herdbook.spark.register(spark, "herdbook://zookeeper-1:2181/prod")

The store is found by the rule of `herdbook.finding`: argument, `HERDBOOK_URL`, configuration file.
An executor needs the wheel only; what a cluster asks for are files, which lie at the same paths on
every machine.

Invariants:
- No secret is part of what Spark carries to executors: files are named, never what is in them.
- A folder's tablespaces are run by the application's driver, if by nobody else: workers come and
  go, and Spark ends them as it likes.
- A token by which a user's application reads is renewed by its driver. Processes of its machine
  find the newest one in a file; tasks anywhere are told the newest one as they are planned.
- What an application has pinned is renewed from its driver and dropped when it ends; the pins of a
  driver that dies end by themselves.
"""

import atexit
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from engine import place as places
from engine.application import Application, Renewable
from engine.errors import EngineError, MetadataUnavailable, NotFound
from engine.place import Place, held_client
from herd import place as herds
from herd.errors import Error
from herd.place import HeldHerd, held_herd
from herd.wire.herd import RemoteHerd
from herdbook.causes import cause as cause
from herdbook.finding import (
    FILE_VARIABLE,
    URL_VARIABLE,
    Configuration,
    configuration_file,
    find,
    login_of,
    read_configuration,
)
from herdbook.own_scans import keeps_scans_apart
from herdbook.reading import READ_TOKEN_MS, RENEW_S

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

    from herdbook.book import AsyncBook, Book
    from herdbook.connecting import AsyncCluster, Cluster

    Store = str | PathLike[str] | Book | AsyncBook | Cluster | AsyncCluster

_logger = logging.getLogger(__name__)
_RENEW_S: Final = 60.0
_LOOK_S: Final = 1.0
_PYTHON: Final = "PYSPARK_PYTHON"
PINS_MAX: Final = 500
"""How many positions an application keeps: each is a row in a list that all others change, too."""


_SETTINGS: Final = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_SETTINGS_OF_A_CONTEXT: Final = {
    # Rows go from workers to Spark by way of the system's memory alone: a fifth quicker than TCP.
    "spark.python.unix.domain.socket.enabled": "true",
}


def session(
    store: "Store | None" = None,
    *,
    master: str = "local[*]",
    name: str = "herdbook",
    settings: Mapping[str, str] | None = None,
) -> "SparkSession":
    """A session whose workers run this interpreter, with all formats of a store registered.

    `settings` are Spark's own and count more than those chosen here. Spark needs Java 17 or later.
    Raises as `register` does.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault(_PYTHON, sys.executable)
    chosen = {**_SETTINGS, **_SETTINGS_OF_A_CONTEXT, **(settings or {})}
    if master.startswith("local"):
        chosen = {
            "spark.driver.host": "127.0.0.1",
            "spark.ui.showConsoleProgress": "false",
        } | chosen
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark, store)
    return spark


def register(spark: "SparkSession", store: "Store | None" = None) -> "Registration":
    """Let a session read and write a store: `format("herd")`, "blobit", "herd-changes", "ledger".

    `store` is an open book or cluster, a folder or a url; None takes what the rule finds, and if
    that is nothing each read names one by the option `url`. The option counts more in any case.
    Registered again, the formats mean the new store. Raises `InvalidRequest` for a configuration
    that cannot be read, `FolderError` for a folder that holds no store. What the session says of
    push-down and Arrow stays as it is.
    """
    registration = Registration(spark, place_of(store))
    try:
        _give_formats(spark, registration)
    except BaseException:
        registration.close()
        raise
    _close_with(spark, registration)
    return registration


def _give_formats(spark: "SparkSession", registration: "Registration") -> None:
    for key, value in _SETTINGS.items():
        if spark.conf.get(key, None) is None:
            spark.conf.set(key, value)
    marks = {
        "place": registration.place,
        "application": registration.application,
        "pushdown": keeps_scans_apart(spark),
    }
    # Else Spark asks the session that this thread worked with before.
    activate(spark)
    for source in _sources():
        spark.dataSource.register(type(source.__name__, (source,), marks))


def _close_with(spark: "SparkSession", registration: "Registration") -> None:
    """Let a session's `stop` drop the pins first, while whoever holds the store is still there."""
    stop = spark.stop

    def close_and_stop() -> None:
        registration.close()
        stop()

    setattr(spark, "stop", close_and_stop)  # noqa: B010 (type checkers refuse to assign a method)


def activate(spark: "SparkSession") -> None:
    """Let this thread's writes find a session's formats.

    Spark looks a writer's format up in the session that its thread last worked with, which is none
    in a thread that did not begin it: call this in each other thread that writes.
    """
    java: Any = getattr(spark, "_jvm", None)
    if java is not None:
        java.SparkSession.setActiveSession(spark._jsparkSession)


def place_of(store: "Store | None" = None) -> Place:
    """Where a store is, in a form that other processes understand; without a url if there is none.

    Raises as `register` does.
    """
    if store is not None and not isinstance(store, str | PathLike):
        store = store.url
    needed = bool(os.environ.get(FILE_VARIABLE))
    configuration = read_configuration(configuration_file(os.environ), needed=needed)
    place = _without_url(configuration)
    if store is None and not os.environ.get(URL_VARIABLE) and not configuration.url:
        return place
    named = None if store is None else os.fspath(store)
    return place.at(find(named, os.environ, configuration))


def with_token(place: Place, lifetime_ms: int = 0) -> Place:
    """A place with a read token, where its user has to have one: herd's nodes sign it.

    `lifetime_ms` 0: as long as is usual.

    Raises `herd.errors.OperationalError` where it cannot be had, and as `register` does.
    """
    if not place.needs_token:
        return place
    held = held_herd(place)
    herd = held.herd
    if not isinstance(herd, RemoteHerd):
        return place
    token = held.run(partial(herd.read_token, lifetime_ms))
    return msgspec.structs.replace(place, token=token)


def drop_pins(pins: Iterable[Renewable], application: str) -> None:
    """Drop pins. A store that does not answer is not asked again for each: they end by themselves.

    Each would wait for as long as connecting does.
    """
    silent: set[Place] = set()
    for pin in pins:
        if pin.place in silent:
            continue
        try:
            pin.drop()
        except EngineError as error:
            _logger.warning("pins of %s end late: %s", application, error)
            if isinstance(error, MetadataUnavailable):
                silent.add(pin.place)


class Registration:
    """An application's pins and token, renewed as long as its session lives. Made by `register`."""

    def __init__(self, spark: "SparkSession", place: Place) -> None:
        self._process = os.getpid()
        self._context = _context_of(spark)
        self._asking = place
        # Tasks of this machine find newer ones; others read by what they were told as they began.
        self._token_ms = READ_TOKEN_MS if self._is_local else 0
        self.place = with_token(place, self._token_ms)
        self._token_due_s = time.monotonic() + RENEW_S
        name, folder = uuid4().hex, ""
        if self._context is not None:
            name = self._context.applicationId or name
            # Workers begin with the interpreter that the context has named, not this session.
            if _PYTHON not in os.environ and self._is_local:
                self._context.pythonExec = sys.executable
            folder = tempfile.mkdtemp(prefix="herdbook-spark-")
        self.application = Application(name, folder)
        if folder and self.place.token != place.token:
            file = str(Path(folder, "token"))
            self.place = msgspec.structs.replace(self.place, renewed=file)
        self._ended = threading.Event()
        self._closing = threading.Lock()
        if place.url and not place.is_cluster:
            # Somebody owns the folder as long as workers come and go.
            held_client(place)
        self._run_tablespaces()
        _registered.add(self)
        atexit.register(self.close)
        self._thread = threading.Thread(target=self._run, name="herdbook-spark", daemon=True)
        if folder:
            self._thread.start()

    @property
    def _is_local(self) -> bool:
        return self._context is not None and str(self._context.master).startswith("local")

    def renew(self) -> None:
        """Renew all pins now, and the token if it is time.

        What cannot be renewed now is tried again later. Of more than `PINS_MAX` pins those go for
        which nobody has asked in the longest time.
        """
        noted = list(self.application.noted())
        for place, (path, pin) in enumerate(noted):
            if self._ended.is_set():
                # Whoever ends it waits for this, and a store that is away lets each pin wait.
                return
            try:
                if place < len(noted) - PINS_MAX:
                    path.unlink(missing_ok=True)
                    pin.drop()
                    _logger.warning("frames of %s cannot be read any more: load them again", pin)
                else:
                    pin.renew()
            except NotFound:
                path.unlink(missing_ok=True)
            except EngineError as error:
                _logger.warning("a pin of %s is not renewed: %s", self.application.name, error)
        if self.place.renewed and time.monotonic() >= self._token_due_s:
            self._renew_token()

    def _renew_token(self) -> None:
        try:
            token = with_token(self._asking, self._token_ms).token
        except (Error, EngineError) as error:
            _logger.warning("the token of %s is not renewed: %s", self.application.name, error)
            return
        self._token_due_s = time.monotonic() + RENEW_S
        new = Path(self.application.folder, "token.new")
        new.touch(mode=0o600)
        new.write_text(token)
        new.replace(self.place.renewed)

    def close(self) -> None:
        """Drop all pins. Frames that were loaded before cannot be read any more, in the end.

        In a forked child it does nothing.
        """
        atexit.unregister(self.close)
        if self._process != os.getpid():
            return
        with self._closing:
            if self._ended.is_set():
                return
            self._ended.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        if self.application.folder:
            drop_pins((pin for _, pin in self.application.noted()), self.application.name)
            shutil.rmtree(self.application.folder, ignore_errors=True)
        _registered.discard(self)
        if all(other.place != self.place for other in _registered):
            herds.let_go(self.place)
            places.let_go(self.place)
        if all(other._asking != self._asking for other in _registered):
            herds.let_go(self._asking)

    def _run_tablespaces(self) -> None:
        """Run a folder's tablespaces here, unless there are none, or another process does."""
        if not self.place.url or self.place.is_cluster:
            return
        try:
            held = held_herd(self.place)
            held.run(lambda: _ask(held))
        except (Error, EngineError) as error:
            _logger.warning("tablespaces of %s are not run here: %s", self.place.url, error)

    def _run(self) -> None:
        due_s = time.monotonic() + _RENEW_S
        while not self._ended.wait(_LOOK_S):
            # What tells that a session was stopped without a call into Java.
            if self._context is None or self._context._jsc is None:
                self.close()
                return
            if time.monotonic() >= due_s:
                self.renew()
                # Whoever else has run them may have ended.
                self._run_tablespaces()
                due_s = time.monotonic() + _RENEW_S


_registered: "weakref.WeakSet[Registration]" = weakref.WeakSet()


async def _ask(held: HeldHerd) -> None:
    """Who asks first runs them all."""
    names = await held.herd.names()
    if names:
        session = await held.herd.session(names[0])
        await session.close()


def _sources() -> "tuple[type[DataSource], ...]":
    from blobit.spark import BlobSource
    from engine.spark import LedgerSource
    from herd.capture.spark import ChangesSource
    from herd.spark import HerdSource

    return HerdSource, BlobSource, ChangesSource, LedgerSource


def _context_of(spark: "SparkSession") -> "SparkContext | None":
    """The driver's context; None where the driver is another process, as with Spark Connect."""
    return getattr(spark, "sparkContext", None)


def _without_url(configuration: Configuration) -> Place:
    def absolute(name: str) -> str:
        path = configuration.path(name)
        return "" if path is None else str(path.absolute())

    security, zookeeper = configuration.security, configuration.zookeeper
    user, password_file = login_of(configuration, os.environ)
    return Place(
        user=user,
        password_file="" if password_file is None else str(password_file.absolute()),
        token_file="" if user else absolute(configuration.login.token_file),
        wire=configuration.wire,
        survives=configuration.survives,
        secret_file=absolute(security.secret_file),
        certificate=absolute(security.certificate),
        private_key=absolute(security.private_key),
        authorities=absolute(security.authorities),
        zookeeper_user=zookeeper.user,
        zookeeper_password_file=absolute(zookeeper.password_file),
        zookeeper_authorities=absolute(zookeeper.authorities),
        zookeeper_certificate=absolute(zookeeper.certificate),
        zookeeper_private_key=absolute(zookeeper.private_key),
    )
