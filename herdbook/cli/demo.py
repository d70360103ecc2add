"""`herdbook demo`: a real folder on three bookies, one of which is killed on the way.

Invariants:
- With `--json` standard output carries nothing but JSON; progress and errors go to the other one.
"""

import json
import sysconfig
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from herdbook.cli.store import refuse_url_as_data, run
from herdbook.demo import demonstrate
from herdbook.demo_report import Report


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
    """Store a folder on three bookies, kill one, read it all back."""
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
