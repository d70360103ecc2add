"""`export`: a table's snapshot, or a tablespace's changes, as partitioned Parquet.

    FOLDER/day=2026-11-22/part-*.parquet               of a table
    FOLDER/export=00000007/_table=cow/part-*.parquet   of changes, a folder an export
    .../_herdbook.json                                 what it is of, and up to where

Invariants:
- An export is seen whole or not at all.
- Exports of changes into one folder follow each other without a gap and without a repeat: where
  the last one ended stands in it, and becomes visible with it.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from engine.place import held_client
from herd.capture.interest import shown
from herd.capture.source import find_range
from herd.capture.survey import parsed
from herd.capture.wanted import EARLIEST
from herd.capture.wanted import Wanted as WantedChanges
from herd.consumers import Consumer
from herd.snapshot.opening import open_snapshot
from herd.snapshot.wanted import Wanted as WantedTable
from herd.store import DEFAULT
from pipeline.errors import FolderTaken, PipelineError
from pipeline.job import Job
from pipeline.publishing import NOTE, Draft, Folders
from pipeline.submitting import submit

KEEP_HOURS: Final = 7 * 24
_HOUR_MS: Final = 3_600_000
_EXPORT: Final = "export="


class ExportNote(msgspec.Struct, frozen=True, kw_only=True):
    """What lies beside exported data. Positions are ledger/entry, and `end` is included."""

    tablespace: str
    tables: tuple[str, ...]
    rows: int
    start: str = ""
    end: str
    checkpoint: int = 0
    format: int = 1


class ExportReport(msgspec.Struct, frozen=True):
    """Where the rows are; `folder` is "" where nothing had changed."""

    folder: str
    rows: int
    start: str
    end: str
    tables: tuple[str, ...]


def export_table(
    job: Job,
    table: str,
    to: str,
    *,
    tablespace: str = DEFAULT,
    columns: Sequence[str] = (),
    where: str = "",
    partition_by: Sequence[str] = (),
    overwrite: bool = False,
) -> ExportReport:
    """Write a table as it is now into a new folder, or in place of one.

    `where` is that of format "herd". Raises `FolderTaken`, what is in `herd.errors` for a table or
    a column that is not there, and what Spark raises.
    """
    folders = Folders(job.spark)
    if folders.exists(to) and not overwrite:
        raise FolderTaken(f"{to} is there: name another folder, or say --overwrite")
    wanted = WantedTable(table, tablespace, columns=tuple(columns), where=where)
    snapshot = open_snapshot(job.place, job.application, wanted)
    record = snapshot.record
    reader = job.spark.read.format("herd").option("tablespace", tablespace)
    reader = reader.option("table", table).option("snapshot", str(record.number))
    for option, value in (("columns", ",".join(columns)), ("where", where)):
        reader = reader.option(option, value) if value else reader
    with folders.draft(to) as draft:
        rows = _write(reader.load(), draft, partition_by)
        end = shown(record.position)
        note = ExportNote(
            tablespace=tablespace,
            tables=(snapshot.table.name,),
            rows=rows,
            end=end,
            checkpoint=record.number,
        )
        draft.publish(msgspec.json.encode(note), replace=overwrite)
    return ExportReport(to, rows, "", end, note.tables)


def export_changes(
    job: Job,
    to: str,
    *,
    tables: Sequence[str] = (),
    tablespace: str = DEFAULT,
    since: str = "",
    partition_by: Sequence[str] = (),
    keep_hours: int = KEEP_HOURS,
) -> ExportReport:
    """Write what was changed since the last export into the folder, as one more folder in it.

    The first export begins at `since`: earliest (unless said), latest or ledger/entry. One table
    is written in its own columns, several or all as JSON. What comes after it is kept for
    `keep_hours`. Raises `PipelineError`, what is in `herd.errors`, and what Spark raises.
    """
    folders = Folders(job.spark)
    number, before = _last_export(folders, to)
    if before is not None and since:
        raise PipelineError(
            f"{to} goes on at {before.end}, where its last export ended: leave --since out, or "
            "name another folder"
        )
    if before is not None and (before.tablespace, before.tables) != (tablespace, tuple(tables)):
        raise PipelineError(
            f"{to} has changes of {', '.join(before.tables) or 'all tables'} of tablespace "
            f"{before.tablespace}: name another folder for others"
        )
    start = before.end if before is not None else since or EARLIEST
    found = find_range(job.place, _wanted(tables, tablespace, start))
    start, end = shown(found.start), shown(found.end)
    if found.start == found.end and before is not None:
        return ExportReport("", 0, start, end, tuple(tables))
    name = f"{to.rstrip('/')}/{_EXPORT}{number + 1:08d}"
    reader = job.spark.read.format("herd-changes").option("tablespace", tablespace)
    for option, value in (*_named(tables).items(), ("start", start), ("end", end)):
        reader = reader.option(option, value)
    with folders.draft(name) as draft:
        rows = _write(reader.load(), draft, partition_by)
        note = ExportNote(
            tablespace=tablespace, tables=tuple(tables), rows=rows, start=start, end=end
        )
        draft.publish(msgspec.json.encode(note))
    _keep(job, tablespace, to, end, keep_hours)
    return ExportReport(name, rows, start, end, tuple(tables))


def _write(frame: DataFrame, draft: Draft, partition_by: Sequence[str]) -> int:
    """Write a frame; how many rows it had."""
    observation = Observation("written")
    counted = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
    counted.write.partitionBy(*partition_by).parquet(draft.hidden)
    rows: int = observation.get["rows"]
    return rows


def _last_export(folders: Folders, to: str) -> tuple[int, ExportNote | None]:
    """The number of the newest export in a folder, 0 for none, and what it says of itself."""
    exports = [name for name in folders.names(to) if name.startswith(_EXPORT)]
    if not exports:
        return 0, None
    newest = max(exports)
    note = folders.read(f"{to.rstrip('/')}/{newest}/{NOTE}")
    try:
        decoded = msgspec.json.decode(note or b"", type=ExportNote)
        return int(newest.removeprefix(_EXPORT)), decoded
    except (msgspec.MsgspecError, ValueError) as error:
        raise PipelineError(
            f"{to}/{newest} does not tell where it ended ({NOTE}: {error}): remove that export, "
            "or name another folder"
        ) from error


def _wanted(tables: Sequence[str], tablespace: str, start: str) -> WantedChanges:
    """What the options of `_named` ask for."""
    several = frozenset(one.lower() for one in tables) if len(tables) > 1 else frozenset[str]()
    table = tables[0] if len(tables) == 1 else ""
    return WantedChanges(table=table, names=several, tablespace=tablespace, start=start)


def _named(tables: Sequence[str]) -> dict[str, str]:
    if not tables:
        return {}
    return {"table": tables[0]} if len(tables) == 1 else {"tables": ",".join(tables)}


def _keep(job: Job, tablespace: str, to: str, end: str, keep_hours: int) -> None:
    """Let the log be kept behind a position, under the name of the folder."""
    name = hashlib.sha256(Folders(job.spark).absolute(to).encode()).hexdigest()[:16]
    held = held_client(job.place)
    consumer = Consumer(held.client, tablespace, f"export-{name}", keep_hours * _HOUR_MS)
    held.run(lambda: consumer.begin(parsed(end)))


def main(arguments: Sequence[str] | None = None) -> None:
    """The job as `spark-submit` runs it, with the options of `herdbook pipeline export`."""
    submit("export", arguments)


if __name__ == "__main__":
    main()
