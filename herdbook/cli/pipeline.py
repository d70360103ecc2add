"""`herdbook pipeline`: jobs on Spark over a store's buckets, tables, ledgers and tasks.

Invariants:
- Exit status 0: it worked; 1: it did not, or something is wrong; 2: the call was wrong.
- With `--json` standard output carries one JSON object; progress and errors go to the other one.
"""

from typing import Annotated

import typer

from engine.ports.clock import SystemClock
from herdbook.cli.pipeline_session import job_of, needing_spark
from herdbook.cli.store import Url

app = typer.Typer(
    help="Jobs on Spark: load, export, check, count what a store holds.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Master = Annotated[
    str,
    typer.Option(help="Where Spark runs, as its own --master. Under spark-submit that one counts."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")]
Tablespace = Annotated[str, typer.Option("--tablespace", "-t", help="Of the table.")]
Exported = Annotated[
    list[str] | None,
    typer.Argument(metavar="TABLE", help="A table. Of changes also several, or none for all."),
]
To = Annotated[str, typer.Option("--to", help="The folder, or its url.")]
Changes = Annotated[
    bool, typer.Option("--changes", help="What changed since the last export into the folder.")
]
Since = Annotated[
    str, typer.Option(help="Where a first export of changes begins: earliest, latest or 12/345.")
]
PartitionBy = Annotated[
    list[str] | None, typer.Option("--partition-by", help="A column. May be said again.")
]
Columns = Annotated[str, typer.Option(help="Of a table: columns with commas between.")]
Where = Annotated[str, typer.Option(help="Of a table: \"day >= '2026-01-01'\".")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Of a table: put it in place of what is there.")
]
Limit = Annotated[int, typer.Option(help="Tell of at most so many rows.", min=1)]
LOCAL = "local[*]"


@app.command("usage")
def usage(
    bucket: Annotated[str, typer.Option("--bucket", "-b", help="One bucket. Default: all.")] = "",
    depth: Annotated[
        int, typer.Option("--depth", "-d", help="Folders are told apart so deep.", min=0)
    ] = 0,
    limit: Limit = 1_000,
    url: Url = None,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Count objects and bytes of buckets by folder, and how old they are; biggest first."""
    from herdbook.cli.pipeline_output import show_usage, write

    with needing_spark():
        from pipeline import usage as job_module

    now_ms = SystemClock().wall_ms()
    with job_of(url, "usage", master) as job:
        report = job_module.usage(job, now_ms, bucket=bucket, depth=depth, limit=limit)
    write(report, as_json, show_usage)


@app.command("tasks")
def tasks(
    limit: Limit = 1_000,
    url: Url = None,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Count tasks by tenant and type: states, waits, runs, failures.

    From the broker's newest snapshot and the log behind it; no broker is asked.
    """
    from herdbook.cli.pipeline_output import show_tasks, write

    with needing_spark():
        from pipeline import tasks as job_module

    with job_of(url, "tasks", master) as job:
        report = job_module.tasks(job, limit=limit)
    write(report, as_json, show_tasks)


@app.command("scrub")
def scrub(
    bucket: Annotated[
        str, typer.Option("--bucket", "-b", help="Its objects, and its ledgers' replicas.")
    ] = "",
    ledgers: Annotated[
        str, typer.Option("--ledgers", help="all, or the ledgers' ids with commas between.")
    ] = "",
    url: Url = None,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Read every byte, check every checksum, and say what is corrupt, missing or unreadable.

    Every replica of every entry is read. Nothing is mended: see `herdbook repair scrub`. Exit
    status 1 if anything was found.
    """
    if bool(bucket) == bool(ledgers):
        raise typer.BadParameter("say --bucket or --ledgers, one of the two")
    ids = None if bucket or ledgers == "all" else _ledger_ids(ledgers)
    from herdbook.cli.pipeline_output import show_scrub, write

    with needing_spark():
        from pipeline import scrub as job_module

    with job_of(url, "scrubbing", master) as job:
        if bucket:
            report = job_module.scrub_bucket(job, bucket)
        else:
            report = job_module.scrub_ledgers(job, ids)
    write(report, as_json, show_scrub)
    if not report.sound:
        raise typer.Exit(1)


@app.command("export")
def export(
    tables: Exported = None,
    to: To = "",
    changes: Changes = False,
    since: Since = "",
    partition_by: PartitionBy = None,
    columns: Columns = "",
    where: Where = "",
    overwrite: Overwrite = False,
    tablespace: Tablespace = "default",
    url: Url = None,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Write a table as it is now, or what was changed, as partitioned Parquet.

    The folder is seen whole or not at all. Exports of changes go on where the last one ended.
    """
    named = tables or []
    if not to:
        raise typer.BadParameter("say where to write", param_hint="--to")
    if not changes and (len(named) != 1 or since):
        raise typer.BadParameter("name one table, or say --changes")
    if changes and (columns or where or overwrite):
        raise typer.BadParameter("--columns, --where and --overwrite are for a table, not changes")
    from herdbook.cli.pipeline_output import show_export, write

    with needing_spark():
        from pipeline import export as job_module

    by = partition_by or []
    with job_of(url, "exporting", master) as job:
        if changes:
            report = job_module.export_changes(
                job, to, tables=named, tablespace=tablespace, since=since, partition_by=by
            )
        else:
            report = job_module.export_table(
                job,
                named[0],
                to,
                tablespace=tablespace,
                columns=[name.strip() for name in columns.split(",") if name.strip()],
                where=where,
                partition_by=by,
                overwrite=overwrite,
            )
    write(report, as_json, show_export)


@app.command("load")
def load(
    source: Annotated[str, typer.Argument(help="A folder or file, or its url, as Spark knows it.")],
    bucket: Annotated[str, typer.Option("--bucket", "-b", help="Where the objects go.")],
    table: Annotated[
        str, typer.Option("--table", help="A row for each object goes there; made if need be.")
    ] = "",
    prefix: Annotated[str, typer.Option("--prefix", help="What all names begin with.")] = "",
    rows: Annotated[
        bool, typer.Option("--rows", help="The source is Parquet: each row is an object.")
    ] = False,
    name_column: Annotated[str, typer.Option(help="Of rows: the column of names.")] = "name",
    content_column: Annotated[
        str,
        typer.Option(help="Of rows: the column of bytes. Default: content, else the row as JSON."),
    ] = "",
    key: Annotated[
        str,
        typer.Option(
            "--idempotency-key",
            help="A load of the same key is not done again. Default: made of what is listed.",
        ),
    ] = "",
    tablespace: Tablespace = "default",
    url: Url = None,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Put files, or rows of Parquet files, into a bucket, and a row for each into a table.

    Run again it loads nothing twice.
    """
    from herdbook.cli.pipeline_output import show_load, write

    with needing_spark():
        from pipeline import load as job_module

    target = job_module.Target(bucket, prefix, table, tablespace, key)
    with job_of(url, "loading", master) as job:
        if rows:
            report = job_module.load_rows(
                job, source, target, name_column=name_column, content_column=content_column
            )
        else:
            report = job_module.load_files(job, source, target)
    write(report, as_json, show_load)


def _ledger_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise typer.BadParameter(f"{text!r}: say all, or ids with commas between")
    return sorted({int(part) for part in parts})
