"""`python -m engine.bookie check|dump|inspect|rebuild-metadata`: looks inside bookies' folders.

Invariants:
- Nothing is written to a bookie's folder; a folder in use is refused.
- With `--json` standard output carries JSON and nothing else.
- Exit code 0: all is well. 1: something is wrong, and it was listed. 2: the folder cannot be used.
"""

import random
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from engine.access.secret_files import secret_in
from engine.bookie.rebuild import RebuildReport
from engine.bookie.tools_check import CheckReport, Problem, check_folder
from engine.bookie.tools_dump import dump_folder, to_json
from engine.bookie.tools_folder import quiet_folders
from engine.bookie.tools_inspect import inspect_folder
from engine.bookie.tools_rebuild import OpenStore, into_cluster, into_folder, rebuild_folder
from engine.errors import EngineError, InvalidRequest
from engine.folder.naming import refuse_url
from engine.metadata.cluster_url import SCHEME
from engine.metadata.zookeeper_settings import ZooKeeperSettings
from engine.transport.security import Security

_PROBLEMS_SHOWN_MAX = 100

app = typer.Typer(
    rich_markup_mode=None,
    help="Look inside a bookie's folder, or those of a whole store.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A bookie's folder, or a store's.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
OneLedger = Annotated[int | None, typer.Option("--ledger", help="Only this ledger.")]


@app.command()
def check(folder: Folder, json: AsJson = False) -> None:
    """Verify every header, table and entry, and compare the index with the journal."""

    def look() -> bool:
        with quiet_folders([folder]) as found:
            reports = [check_folder(one) for one in found]
        if json:
            _print_json([_report_line(report) for report in reports])
        else:
            for report in reports:
                _show_report(report)
        return all(report.healthy for report in reports)

    _end(look)


@app.command()
def dump(folder: Folder, ledger: OneLedger = None, json: AsJson = False) -> None:
    """List the journal's records in order; with --json one object a line."""

    def look() -> bool:
        intact = True
        with quiet_folders([folder]) as found:
            for one in found:
                for line in dump_folder(one, ledger_id=ledger):
                    intact = intact and line["kind"] != "FLAW"
                    print_line = to_json(line) if json else _plain(line)
                    sys.stdout.write(print_line + "\n")
        return intact

    _end(look)


@app.command()
def inspect(folder: Folder, ledger: OneLedger = None, json: AsJson = False) -> None:
    """Show ledgers with their ranges, fences and facts, and where the space goes."""

    def look() -> bool:
        with quiet_folders([folder]) as found:
            lines = [inspect_folder(one, ledger_id=ledger) for one in found]
        if json:
            _print_json(lines)
        else:
            for line in lines:
                _show_inspection(line)
        return True

    _end(look)


@app.command("rebuild-metadata")
def rebuild_metadata(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Bookies' folders.")],
    into: Annotated[
        str,
        typer.Option(
            "--into",
            metavar="FOLDER|URL",
            help="What to fill: a folder's metadata/, or a cluster, herdbook://host:port/path.",
        ),
    ],
    zookeeper_user: Annotated[
        str, typer.Option(help="Who this is to the cluster's ZooKeeper: a digest's user.")
    ] = "",
    zookeeper_password_file: Annotated[
        Path | None, typer.Option(help="A file with the password of that user.")
    ] = None,
    zookeeper_authorities: Annotated[
        Path | None,
        typer.Option(help="The authorities that sign ZooKeeper's certificates, PEM: use TLS."),
    ] = None,
    zookeeper_certificate: Annotated[
        Path | None, typer.Option(help="The client certificate for ZooKeeper, PEM.")
    ] = None,
    zookeeper_private_key: Annotated[
        Path | None, typer.Option(help="That certificate's key, PEM.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Bring lost ledger metadata back from what the bookies' folders remember.

    A cluster that has lost its ZooKeeper wants the folders of all its bookies, copied to one
    machine; they start again when it is done.
    """

    def look() -> bool:
        rng = random.SystemRandom()
        tls = Security(b"", zookeeper_certificate, zookeeper_private_key, zookeeper_authorities)
        store = _target(into, zookeeper_user, zookeeper_password_file, tls, rng)
        with quiet_folders(folders) as found:
            report = rebuild_folder(found, store, rng)
        if json:
            _print_json(asdict(report))
        else:
            _show_rebuild(report)
        return not report.unfit and not report.lost_logs

    _end(look)


def _target(
    into: str, user: str, password_file: Path | None, tls: Security, rng: random.Random
) -> OpenStore:
    """The way to the store to fill. Raises `InvalidRequest`."""
    if not into.startswith(SCHEME):
        refuse_url(into, f"name a folder, or a cluster as {SCHEME}host:port/path")
        return into_folder(Path(into), rng)
    try:
        password = secret_in(password_file).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"cannot read {password_file}: {error}") from error
    return into_cluster(into, ZooKeeperSettings(user=user, password=password, tls=tls), rng)


def _end(look: Callable[[], bool]) -> None:
    """Run a verb; its exit code says how it went."""
    try:
        well = look()
    except BrokenPipeError:
        raise typer.Exit(0) from None
    except Exception as error:
        # RocksDB's errors are of no class of their own; any other is a fault of this program.
        if not isinstance(error, EngineError | OSError) and type(error) is not Exception:
            raise
        Console(stderr=True).print(f"[red]{type(error).__name__}[/red]: {error}", soft_wrap=True)
        raise typer.Exit(2) from error
    raise typer.Exit(0 if well else 1)


def _print_json(value: object) -> None:
    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")


def _plain(line: dict[str, Any]) -> str:
    return "  ".join(f"{name}={value}" for name, value in line.items())


def _report_line(report: CheckReport) -> dict[str, Any]:
    return {"healthy": report.healthy, **asdict(report)}


def _show_report(report: CheckReport) -> None:
    console = Console()
    verdict = "[green]healthy[/green]" if report.healthy else "[red]not healthy[/red]"
    console.print(
        f"bookie {report.bookie_id}: {verdict}; {report.segments} segments, "
        f"{report.size_bytes:,} bytes, {report.records:,} records, {report.entries:,} entries"
    )
    for note in report.notes:
        console.print(f"  note: {note}")
    if not report.problems:
        return
    table = Table("segment", "offset", "bytes", "ledger", "entries", "what is wrong")
    for problem in report.problems[:_PROBLEMS_SHOWN_MAX]:
        table.add_row(*_problem_cells(problem))
    console.print(table)
    more = len(report.problems) - _PROBLEMS_SHOWN_MAX
    if more > 0:
        console.print(f"  and {more} more; --json lists all")


def _problem_cells(problem: Problem) -> list[str]:
    numbers = (problem.segment, problem.offset, problem.size_bytes, problem.ledger_id)
    entries = f"{problem.first} to {problem.last}" if problem.first >= 0 else ""
    return [*(str(one) if one >= 0 else "" for one in numbers), entries, problem.reason]


def _show_inspection(line: dict[str, Any]) -> None:
    console = Console()
    console.print(
        f"bookie {line['bookie']} of cluster {line['cluster']}, start {line['boot']}: "
        f"{line['free_bytes']:,} of {line['disk_bytes']:,} bytes free"
    )
    segments = Table("segment", "bytes", "live bytes")
    for one in line["segments"]:
        segments.add_row(str(one["segment"]), f"{one['size_bytes']:,}", f"{one['live_bytes']:,}")
    ledgers = Table("ledger", "state", "entries", "ranges", "newest ensemble")
    for one in line["ledgers"]:
        words = [word for word in ("deleted", "closed", "fenced") if one[word]]
        ranges = ", ".join(f"{first} to {last}" for first, last in one["ranges"])
        ensemble = " ".join(one["facts"][-1]["ensemble"]) if one["facts"] else ""
        ledgers.add_row(
            str(one["ledger_id"]), " ".join(words), f"{one['entries']:,}", ranges, ensemble
        )
    console.print(segments)
    console.print(ledgers)


def _show_rebuild(report: RebuildReport) -> None:
    console = Console()
    console.print(
        f"{len(report.restored)} ledgers restored, {len(report.kept)} were there, "
        f"{len(report.deleted)} stay deleted; the next id is over {report.highest_id}"
    )
    for unfit in report.unfit:
        console.print(f"  [red]ledger {unfit.ledger_id} not restored[/red]: {unfit.reason}")
    for name in report.lost_logs:
        console.print(
            f"  [red]log {name} cannot be read[/red]: its ledgers are back, its list is not: nobody"
            " begins it anew, and they stay"
        )


if __name__ == "__main__":
    app(prog_name="python -m engine.bookie")
