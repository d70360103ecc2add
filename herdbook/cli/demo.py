"""`herdbook demo`: the life of a mailing platform on a cluster that it starts, with accidents.

Where Java is missing, or with `--embedded`: a folder on three bookies in this process, one of which
is stopped on the way.

Invariants:
- With `--json` standard output carries nothing but JSON; progress and errors go to the other one.
- Exit status 1 if one of its checks does not hold.
"""

import asyncio
import json
import os
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from engine.errors import EngineError
from herdbook.cli.store import refuse_url_as_data, run

if TYPE_CHECKING:
    from herdbook.demo_report import Report
    from herdbook.mailing.report import StoryReport

Source = Annotated[
    Path | None,
    typer.Argument(
        help="A folder, or an mbox. Default: the Python standard library's own sources."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Where to store it, and keep it. Default: a temporary folder."),
]
Embedded = Annotated[
    bool, typer.Option("--embedded", help="In this process, without ZooKeeper and Spark.")
]
Limit = Annotated[
    int | None,
    typer.Option(help="Take at most so many. Default: 4,000; embedded, all.", min=1),
]
Keep = Annotated[
    bool, typer.Option("--keep", help="Keep the cluster up after the report, until Ctrl-C.")
]
_LAST_CHARACTERS: Final = 2_000
_ABOUT: Final = "two or three minutes on two processors; Ctrl-C ends it"
LEFT_OUT: Final = (
    "left out: the cluster of three nodes, tasks of three tenants, the leader's end, Spark's report"
)


def demo(
    folder: Source = None,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    embedded: Embedded = False,
    limit: Limit = None,
    keep: Keep = False,
) -> None:
    """Run a mailing platform's day; two of its nodes are killed.

    Spark loads a folder or an mbox into a bucket, tasks of three tenants send every message, Spark
    reads it all again, and SQL says the same. Without Java: a folder on three bookies, here.
    """
    source = folder if folder is not None else Path(sysconfig.get_paths()["stdlib"])
    if not source.exists():
        raise typer.BadParameter(f"{source} is not there", param_hint="FOLDER")
    if data is not None:
        refuse_url_as_data(data, "the demonstration stores into a folder")
    if keep and embedded:
        raise typer.BadParameter("embedded there is no cluster to keep", param_hint="--keep")
    missing = "" if embedded else _missing()
    if missing:
        typer.echo(f"{missing}: it runs embedded; {LEFT_OUT}", err=True)
    if embedded or missing:
        _embedded(source, data, limit, as_json)
    else:
        _story(source, data, limit, keep, as_json)


def _missing() -> str:
    """What keeps a cluster from being started here; "" if nothing does."""
    from herdbook.node.dev import check_java
    from herdbook.zookeeper_server import ZooKeeperMissing

    try:
        check_java()
    except ZooKeeperMissing as error:
        return str(error)
    return ""


def _story(source: Path, data: Path | None, limit: int | None, keep: bool, as_json: bool) -> None:
    from blobit.errors import BlobError
    from broker.errors import BrokerError
    from engine.ports.system_loop import new_event_loop
    from herd.errors import Error
    from herdbook.mailing.ending import INTERRUPTED
    from herdbook.mailing.story import MESSAGES_MAX, StorySettings, tell

    if data is not None and data.exists() and any(data.iterdir()):
        raise typer.BadParameter(f"{data} is not empty", param_hint="--data")
    with _aside() as (console, log):
        try:
            settings = StorySettings(source.absolute(), data, limit or MESSAGES_MAX, keep)
            with (
                _progress(console) as (step, say, end),
                asyncio.Runner(loop_factory=new_event_loop) as runner,
            ):
                say(_ABOUT)

                def told(report: "StoryReport") -> None:
                    end()
                    _show(report, as_json)

                report = runner.run(tell(settings, step, say, told))
        except (EngineError, BlobError, Error, BrokerError, OSError) as error:
            console.print(log(), markup=False)
            console.print(f"{type(error).__name__}: {error}", markup=False)
            raise typer.Exit(1) from error
        except asyncio.CancelledError:
            raise typer.Exit(INTERRUPTED) from None
        if not report.ok:
            console.print(log(), markup=False)
            raise typer.Exit(1)


def _show(report: "Report | StoryReport", as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        report.show(Console())


@contextmanager
def _aside() -> Iterator[tuple[Console, Callable[[], str]]]:
    """What Spark and its Java say of themselves is put aside; a console, and its last lines."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as log, os.fdopen(os.dup(2), "w") as shown:
        os.dup2(log.fileno(), 2)

        def last() -> str:
            log.seek(0)
            return log.read().decode(errors="replace")[-_LAST_CHARACTERS:]

        try:
            yield Console(file=shown), last
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


@contextmanager
def _progress(
    console: Console,
) -> Iterator[tuple[Callable[[str, int, int], None], Callable[[str], None], Callable[[], None]]]:
    """A bar a step, lines above them, and what ends both; where nobody looks, lines alone."""
    from herdbook.mailing.report import STEPS

    columns = (
        TextColumn("{task.description:>46}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # What a thread of Spark's prints when its Java is gone belongs aside, too.
    seen = console.is_terminal
    say = partial(console.print, soft_wrap=True, highlight=False)
    with Progress(*columns, console=console, redirect_stderr=False, disable=not seen) as progress:
        shown: dict[str, TaskID] = {}

        def step(what: str, done: int, total: int) -> None:
            if what not in shown:
                shown[what] = progress.add_task(STEPS[what], total=None)
                if not seen:
                    say(f"{STEPS[what]} ...")
            progress.update(shown[what], completed=done, total=total or None)

        yield step, say, progress.stop


def _embedded(source: Path, data: Path | None, limit: int | None, as_json: bool) -> None:
    from herdbook.mailing.own_folder import own_folder

    with own_folder() as folder:
        files = source if source.is_dir() else _laid_out(source, folder / "messages", limit)
        kept = data if data is not None else folder / "data"
        report = _demonstrate(files, kept, limit, list_ids=data is not None)
    report.folder = str(source.absolute())
    _show(report, as_json)
    if not report.ok:
        if not report.files:
            typer.echo(f"{source} holds no file that could be stored", err=True)
        raise typer.Exit(1)


def _laid_out(box: Path, folder: Path, limit: int | None) -> Path:
    """The messages of an mbox as files of a folder."""
    from herdbook.mailing.gathering import gather

    try:
        return gather(box, folder, limit or sys.maxsize).folder
    except (EngineError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="FOLDER") from error


def _demonstrate(
    source: Path, data: Path, limit: int | None, *, list_ids: bool = False
) -> "Report":
    from herdbook.demo import demonstrate

    columns = (TextColumn("{task.description:>12}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True)) as progress:
        shown: dict[str, TaskID] = {}

        def step(what: str, done_bytes: int, total_bytes: int) -> None:
            # A bar begins with its first bytes: what fails at once shows none.
            if what not in shown:
                shown[what] = progress.add_task(what, total=None)
            progress.update(shown[what], completed=done_bytes, total=total_bytes)

        work = demonstrate(
            source.absolute(), data.absolute(), step, list_ids=list_ids, files_max=limit
        )
        return run(work)
