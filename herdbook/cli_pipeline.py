"""`herdbook pipeline`: jobs on Spark over a store's buckets, tables, ledgers and tasks.

Invariants:
- Exit status 0: it worked; 1: it did not, or something is wrong; 2: the call was wrong.
- With `--json` standard output carries one JSON object; progress and errors go to the other one.
"""

from typing import Annotated

import typer

from engine.ports.clock import SystemClock
from herdbook.cli_pipeline_session import job_of
from herdbook.cli_store import Url

app = typer.Typer(
    help="Jobs on Spark: load, export, check and count what a store holds.",
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
Bucket = Annotated[str, typer.Option("--bucket", "-b", help="The bucket's name.")]
Limit = Annotated[int, typer.Option(help="Tell of at most so many rows.", min=1)]
LOCAL = "local[*]"


@app.command(
    "usage",
    epilog="herdbook pipeline usage --data ./data --bucket cows --depth 2",
)
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
    from herdbook.cli_pipeline_output import show_usage, write
    from pipeline import usage as job_module

    now_ms = SystemClock().wall_ms()
    with job_of(url, "usage", master) as job:
        report = job_module.usage(job, now_ms, bucket=bucket, depth=depth, limit=limit)
    write(report, as_json, show_usage)


@app.command(
    "tasks",
    epilog="herdbook pipeline tasks --url herdbook://zookeeper-1:2181/prod --json",
)
def tasks(
    limit: Limit = 1_000,
    url: Url = None,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Count tasks by tenant and type: states, waits, runs, failures.

    From the broker's newest snapshot and the log behind it; no broker is asked.
    """
    from herdbook.cli_pipeline_output import show_tasks, write
    from pipeline import tasks as job_module

    with job_of(url, "tasks", master) as job:
        report = job_module.tasks(job, limit=limit)
    write(report, as_json, show_tasks)


@app.command(
    "scrub",
    epilog="herdbook pipeline scrub --bucket cows   |   herdbook pipeline scrub --ledgers 7,12",
)
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
    """Read every byte, check every checksum, and say what is corrupt, missing or silent.

    Every replica of every entry is read. Nothing is mended: see `herdbook repair scrub`. Exit
    status 1 if anything was found.
    """
    if bool(bucket) == bool(ledgers):
        raise typer.BadParameter("say --bucket or --ledgers, one of the two")
    ids = None if bucket or ledgers == "all" else _ledger_ids(ledgers)
    from herdbook.cli_pipeline_output import show_scrub, write
    from pipeline import scrub as job_module

    with job_of(url, "scrubbing", master) as job:
        if bucket:
            report = job_module.scrub_bucket(job, bucket)
        else:
            report = job_module.scrub_ledgers(job, ids)
    write(report, as_json, show_scrub)
    if not report.sound:
        raise typer.Exit(1)


def _ledger_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise typer.BadParameter(f"{text!r}: say all, or ids with commas between")
    return sorted({int(part) for part in parts})
