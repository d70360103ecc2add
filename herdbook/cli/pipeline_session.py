"""The session of Spark that a job of `herdbook pipeline` runs in: begun, watched, ended.

Invariants:
- Under `spark-submit` the session is the one that was asked for there.
- Progress goes to standard error, and only where a person looks at it.
- An error is one line on standard error that names the cause, wherever in Spark it arose.
"""

import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer

from engine.errors import EngineError
from herdbook.cli.sql_errors import harmless
from herdbook.cli.statuses import status_of
from herdbook.finding import (
    FILE_VARIABLE,
    check_store,
    configuration_file,
    find,
    is_cluster,
    read_configuration,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress

    from pipeline.job import Job

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set where `spark-submit` has begun the driver's Java before this process."""
_LOOK_S: Final = 0.2
_LIBRARIES: Final = frozenset({"pyspark", "py4j", "pyarrow", "duckdb", "sqlglot"})
_RAISED: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*): (.+)$", re.MULTILINE)
_TRACE: Final = "Traceback (most recent call last)"
_SETTINGS: Final = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "16"}


@contextmanager
def needing_spark() -> Iterator[None]:
    """Around imports of a job: ends the command where its libraries are not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _LIBRARIES:
            raise
        extras = "pip install 'herdbook[spark]'"
        typer.echo(f"ExtraMissing: jobs need {library}, which is not installed: {extras}", err=True)
        raise typer.Exit(1) from error


@contextmanager
def job_of(
    url: str | None, what: str, master: str, settings: Mapping[str, str] | None = None
) -> "Iterator[Job]":
    """A job over the store that the rule finds, as long as the block lasts.

    Ends the command if there is none, or on an error of Spark or of the store.
    """
    from pyspark.errors import PySparkException

    from blobit.errors import BlobError
    from herd.errors import Error
    from pipeline.errors import PipelineError

    try:
        store = _found(url)
        with _session(store, master, settings) as job, _watched(job.spark, what):
            yield job
    except (EngineError, BlobError, Error, OSError, PipelineError, PySparkException) as error:
        sys.stdout.flush()
        typer.echo(one_line(error), err=True)
        raise typer.Exit(status_of(error)) from error


def one_line(error: Exception) -> str:
    """The cause of an error, its kind first; of Spark's errors what was raised in Python last.

    >>> one_line(RuntimeError("Failed: Traceback (most recent call last):\\\\n  File \\"x\\"\\\\n"
    ...     "herd.errors.NoSuchTable: there is no table cow\\\\n SQLSTATE: 38000"))
    'NoSuchTable: there is no table cow'
    """
    text = str(error)
    raised = _RAISED.findall(text.replace("\\n", "\n")) if _TRACE in text else []
    kind, told = raised[-1] if raised else (type(error).__name__, text)
    return harmless(f"{kind}: {' '.join(told.split())}")


def _found(url: str | None) -> str:
    needed = bool(os.environ.get(FILE_VARIABLE))
    configuration = read_configuration(configuration_file(os.environ), needed=needed)
    store = find(url, os.environ, configuration)
    if not is_cluster(store):
        from pathlib import Path

        check_store(Path(store))
    return store


@contextmanager
def _session(store: str, master: str, settings: Mapping[str, str] | None) -> "Iterator[Job]":
    from pyspark.sql import SparkSession

    from herdbook.spark import place_of, register, session
    from pipeline.job import Job

    if _SUBMITTED in os.environ:
        spark = SparkSession.builder.getOrCreate()
    else:
        chosen = {**_SETTINGS, **(settings or {})}
        spark = session(store, master=master, name="herdbook pipeline", settings=chosen)
    try:
        # What failed is told in one line, once, at the end.
        spark.sparkContext.setLogLevel("OFF")
        registration = register(spark, store)
        yield Job(spark, place_of(store), registration.application)
    finally:
        spark.stop()


@contextmanager
def _watched(spark: "SparkSession", what: str) -> Iterator[None]:
    """Show the stages' tasks while the block runs."""
    from herdbook.cli.store import progress

    with progress() as bar:
        if not bar.console.is_terminal:
            yield
            return
        ended = threading.Event()
        watching = threading.Thread(target=_watch, args=(spark, bar, what, ended), daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()


def _watch(spark: "SparkSession", bar: "Progress", what: str, ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    shown = bar.add_task(what, total=None)
    while not ended.wait(_LOOK_S):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        active = [stage for stage in stages if stage is not None]
        if active:
            total = sum(stage.numTasks for stage in active)
            done = sum(stage.numCompletedTasks for stage in active)
            bar.update(shown, total=total, completed=done)
