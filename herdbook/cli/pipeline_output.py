"""Reports of `herdbook pipeline`: one JSON object, or tables for people."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import typer

from herdbook.cli.blob_store import size_of
from herdbook.cli.sql_errors import harmless
from herdbook.cli.store import moment_of, plain, print_table

if TYPE_CHECKING:
    from pipeline.export import ExportReport
    from pipeline.findings import Tally
    from pipeline.load import LoadReport
    from pipeline.scrub import ScrubReport
    from pipeline.tasks import TasksReport, Times
    from pipeline.usage import UsageReport

R = TypeVar("R")
_SECOND_MS: Final = 1_000


def write(report: R, as_json: bool, show: Callable[[R], None]) -> None:
    """A report on standard output."""
    if as_json:
        sys.stdout.write(msgspec.json.encode(plain(report)).decode() + "\n")
    else:
        show(report)


def show_usage(report: "UsageReport") -> None:
    """Buckets and prefixes, one a line."""
    ages = [age.name for age in next((row.ages for row in report.rows if row.ages), ())]
    columns = ["place", "objects", "bytes", "oldest", "newest", *(_age_of(name) for name in ages)]
    print_table(
        columns,
        (
            [
                harmless(f"{row.bucket}/{row.prefix}" if row.prefix else row.bucket),
                f"{row.objects:,}",
                size_of(row.bytes),
                _moment(row.oldest_ms),
                _moment(row.newest_ms),
                *(size_of(age.bytes) if age.objects else "" for age in row.ages),
            ]
            for row in report.rows
        ),
    )
    left = report.prefixes - len(report.rows)
    more = f"; {left:,} more lines are not shown" if left else ""
    typer.echo(f"{report.objects:,} objects, {report.bytes:,} bytes{more}")


def show_tasks(report: "TasksReport") -> None:
    """Tenants and types, one a line."""
    states = list(dict.fromkeys(state for row in report.rows for state in row.states))
    columns = ["tenant", "type", "tasks", *states, "dead", "failures", "wait", "run"]
    print_table(
        columns,
        (
            [
                harmless(row.tenant),
                harmless(row.type),
                f"{row.tasks:,}",
                *(f"{row.states[state]:,}" if state in row.states else "" for state in states),
                f"{row.dead:,}" if row.dead else "",
                f"{row.failures:,}" if row.failures else "",
                _times(row.waits),
                _times(row.runs),
            ]
            for row in report.rows
        ),
    )
    if report.position is None:
        typer.echo("no broker ever ran here")
        return
    since = f"since {moment_of(report.since_ms)}" if report.since_ms else "since the first one"
    typer.echo(
        f"{report.tasks:,} tasks of {report.types:,} tenants and types: all that ended {since}, "
        "and those before that are still kept; waits and runs are median / 95 % / longest"
    )


def show_scrub(report: "ScrubReport") -> None:
    """What was read, and what is wrong with it."""
    checked = [("ledgers", report.ledgers)]
    if report.objects is not None:
        checked.insert(0, ("objects", report.objects))
    print_table(
        ("what", "checked", "bytes", "corrupt", "missing", "unreadable"),
        ((what, *_counts(tally)) for what, tally in checked),
    )
    found = [finding for _, tally in checked for finding in tally.findings]
    if found:
        print_table(
            ("of", "what", "where"),
            ((harmless(each.subject), each.kind, harmless(each.where)) for each in found),
        )
    left = sum(t.corrupt + t.missing + t.unreadable for _, t in checked) and report.ledgers.open
    if left:
        typer.echo("what is still being written was read from one replica only")


def show_export(report: "ExportReport") -> None:
    """Where the rows are, and what they are of."""
    if not report.folder:
        typer.echo(f"nothing was changed since {report.start}")
        return
    of = f"changes after {report.start} to {report.end}" if report.start else f"at {report.end}"
    typer.echo(harmless(f"{report.folder}: {report.rows:,} rows, {of}"))


def show_load(report: "LoadReport") -> None:
    """What was loaded."""
    rows = "" if report.rows is None else f"; {report.rows:,} new rows in the table"
    typer.echo(
        harmless(f"{report.objects:,} objects, {report.bytes:,} bytes, as {report.key!r}{rows}")
    )
    if report.repeated:
        typer.echo("nothing was stored: a load of this key was done before", err=True)
        typer.echo("to load again say another --idempotency-key", err=True)
    if report.hidden:
        typer.echo(f"{report.hidden:,} hidden files were left out", err=True)


def _counts(tally: "Tally") -> list[str]:
    numbers = (tally.subjects, tally.bytes, tally.corrupt, tally.missing, tally.unreadable)
    return [f"{number:,}" for number in numbers]


def _age_of(name: str) -> str:
    return name if name == "older" else f"within a {name}"


def _moment(wall_ms: int | None) -> str:
    return "" if wall_ms is None else moment_of(wall_ms)


def _times(times: "Times") -> str:
    if not times.count:
        return ""
    return " / ".join(map(_duration, (times.median_ms, times.p95_ms, times.longest_ms)))


def _duration(duration_ms: int) -> str:
    if duration_ms < _SECOND_MS:
        return f"{duration_ms} ms"
    return f"{duration_ms / _SECOND_MS:,.1f} s"
