"""The command `herdbook`.

Invariants:
- With `--json` standard output carries nothing but JSON; progress and errors go to the other one.
- Exit status 0: it worked; 1: it did not, and why is on standard error; 2: the call was wrong.
"""

import json
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from herdbook import cli_backup, cli_blob, cli_bookie, cli_bookies, cli_herd, cli_ledger, cli_repair
from herdbook.cli_sql import sql
from herdbook.cli_store import refuse_url_as_data, run
from herdbook.cli_zookeeper import zookeeper
from herdbook.demo import demonstrate
from herdbook.demo_report import Report

app = typer.Typer(
    rich_markup_mode=None,
    help="A replicated ledger, and what is built on it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(cli_ledger.app, name="ledger")
app.add_typer(cli_blob.app, name="blob")
app.add_typer(cli_repair.app, name="repair")
app.add_typer(cli_bookie.app, name="bookie")
app.add_typer(cli_herd.app, name="herd")
app.command()(zookeeper)
app.command()(sql)
cli_backup.add_to(app)
cli_bookies.add_to(cli_bookie.app)
cli_bookie.app.command("decommission")(cli_repair.decommission)
cli_bookie.app.command("forget")(cli_repair.forget)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"herdbook {version('herdbook')}")
        raise typer.Exit


@app.callback()
def root(
    shown: Annotated[
        bool,
        typer.Option("--version", help="Say which version this is.", callback=_say_version),
    ] = False,
) -> None:
    """A replicated ledger, and what is built on it."""


@app.command()
def demo(
    folder: Annotated[
        Path | None,
        typer.Argument(help="What to store. Default: the Python standard library's own sources."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Where to store it, and keep it. Default: a temporary folder."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Store a real folder on three bookies, kill one of them, and read everything back."""
    source = folder if folder is not None else Path(sysconfig.get_paths()["stdlib"])
    if not source.is_dir():
        raise typer.BadParameter(f"{source} is no folder", param_hint="FOLDER")
    if data is not None:
        refuse_url_as_data(data, "the demonstration stores into a folder")
        report = _demonstrate(source, data, list_ids=True)
    else:
        with tempfile.TemporaryDirectory(prefix="herdbook-demo-") as temporary:
            report = _demonstrate(source, Path(temporary))
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        report.show(Console())
    if not report.ok:
        if not report.files:
            typer.echo(f"{source} holds no file that could be stored", err=True)
        raise typer.Exit(1)


def _demonstrate(source: Path, data: Path, *, list_ids: bool = False) -> Report:
    columns = (TextColumn("{task.description:>12}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True)) as progress:
        tasks = {what: progress.add_task(what, total=None) for what in ("storing", "reading back")}

        def step(what: str, done_bytes: int, total_bytes: int) -> None:
            progress.update(tasks[what], completed=done_bytes, total=total_bytes)

        return run(demonstrate(source.absolute(), data.absolute(), step, list_ids=list_ids))


def main() -> None:
    """The entry point of the command."""
    app()
