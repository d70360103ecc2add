"""`load`: files of a folder, or rows of Parquet files, into a bucket; a row for each into a table.

    name VARCHAR PRIMARY KEY, object_id VARCHAR, size BIGINT, etag VARCHAR, state VARCHAR,
    created TIMESTAMPTZ

Each row begins in the state 'new': whoever works through the table sets others.

Invariants:
- A load that is run again, after whatever end, loads nothing twice: its key is made of what the
  source lists, and a row of the table that has its object's version stays as it is.
- Objects get their names when the bytes of all are durable, up to 10,000 at once; rows come after
  the objects that they name.
"""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from blobit.staging.naming import is_done, keyed_job
from blobit.staging.task import open_bucket
from herd.place import HeldHerd, held_herd
from herd.sql.showing import quoted
from herd.store import DEFAULT
from pipeline.errors import SourceInvalid
from pipeline.job import Job, buckets_of
from pipeline.publishing import Folders
from pipeline.submitting import submit

NAME: Final = "name"
CONTENT: Final = "content"
_NEW: Final = "new"
_LISTED: Final = (NAME, "length", "modificationTime")
_HIDDEN: Final = (".", "_")
_COLUMNS: Final = """(name VARCHAR PRIMARY KEY, object_id VARCHAR NOT NULL, size BIGINT NOT NULL,
    etag VARCHAR NOT NULL, state VARCHAR NOT NULL, created TIMESTAMPTZ NOT NULL)"""


class Target(NamedTuple):
    """Where a load goes. All names begin with `prefix`; `table` and `key` may be left out."""

    bucket: str
    prefix: str = ""
    table: str = ""
    tablespace: str = DEFAULT
    key: str = ""


class _Unseen(NamedTuple):
    """Files that Spark does not list: empty ones as rows of its listing, hidden ones counted."""

    empty: list[tuple[str, datetime, int, bytes]]
    hidden: int


class LoadReport(msgspec.Struct, frozen=True):
    """What the source has, under which key it was loaded, and how many rows of a table are new."""

    objects: int
    bytes: int
    key: str
    rows: int | None = None
    hidden: int = 0
    """Files that were left out, since their names begin with a dot or an underscore."""
    repeated: bool = False
    """Whether the key had been loaded before: nothing was stored now."""


def load_files(job: Job, source: str, target: Target) -> LoadReport:
    """Put each file of a folder, and of those in it, into a bucket, under its path in the folder.

    The table is made if it is not there. A file has at most 2 GiB; hidden ones are left out and
    counted. Raises `SourceInvalid`,
    `NoSuchBucket`, what writing raises, and what Spark raises.
    """
    root = _root_of(job, source)
    files = job.spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(source)
    objects = _named_files(files, root, target)
    told = _look_through(objects.select(*_LISTED))
    folders, hidden = Folders(job.spark), 0
    if told.objects != folders.count_files(source):
        unseen = _unseen(folders, source, root)
        hidden = unseen.hidden
        if unseen.empty:
            files = files.unionByName(job.spark.createDataFrame(unseen.empty, files.schema))
            objects = _named_files(files, root, target)
            told = _look_through(objects.select(*_LISTED))
    report = _load(job, objects.select(NAME, CONTENT), told, target)
    return msgspec.structs.replace(report, hidden=hidden)


def load_rows(
    job: Job, source: str, target: Target, *, name_column: str = NAME, content_column: str = ""
) -> LoadReport:
    """Put each row of Parquet files into a bucket as an object, under the name in a column.

    The content is a column, binary or text: the one that is named, else `content` if there is one,
    else the whole row as JSON. Raises as `load_files`.
    """
    _root_of(job, source)
    rows = job.spark.read.parquet(source)
    for column in filter(None, (name_column, content_column)):
        if column not in rows.columns:
            raise SourceInvalid(
                f"{source} has no column {column}: it has {', '.join(rows.columns)}"
            )
    objects = rows.select(
        F.concat(F.lit(target.prefix), F.col(_named(name_column)).cast("string")).alias(NAME),
        _content(rows, content_column).alias(CONTENT),
    )
    length = F.length(CONTENT).cast("bigint").alias("length")
    told = _look_through(objects.select(NAME, length, F.xxhash64(CONTENT)))
    return _load(job, objects, told, target)


def _named_files(files: DataFrame, root: str, target: Target) -> DataFrame:
    """Files with the names that they get: their paths in the folder."""
    inside = F.substring("path", len(root) + 2, 2**31 - 1)
    name = F.when(F.col("path") == root, F.element_at(F.split("path", "/"), -1)).otherwise(inside)
    return files.withColumn(NAME, F.concat(F.lit(target.prefix), name))


def _unseen(folders: Folders, source: str, root: str) -> _Unseen:
    """What Spark passes over when it lists a folder."""
    empty: list[tuple[str, datetime, int, bytes]] = []
    hidden = 0
    for file in folders.files(source):
        if any(part.startswith(_HIDDEN) for part in file.name[len(root) + 1 :].split("/")):
            hidden += 1
        elif not file.length:
            changed = datetime.fromtimestamp(file.changed_ms / 1000, UTC)
            empty.append((file.name, changed, 0, b""))
    return _Unseen(empty, hidden)


def _load(job: Job, objects: DataFrame, told: Row, target: Target) -> LoadReport:
    buckets_of(job.place, target.bucket)
    if target.table:
        held = held_herd(job.place)
        held.run(lambda: _make_table(held, target))
    key = target.key or _key_of(told, target)
    repeated = _was_loaded(job, target.bucket, key)
    if told.objects and not repeated:
        writer = job.writer(objects, "blobit").option("bucket", target.bucket)
        writer.option("idempotency_key", key).save()
    rows = None
    if target.table:
        rows = _fill(job, objects.select(NAME), target) if told.objects else 0
    return LoadReport(told.objects, told.bytes, key, rows, repeated=repeated)


def _was_loaded(job: Job, bucket: str, key: str) -> bool:
    held = held_herd(job.place)

    async def look() -> bool:
        async with open_bucket(held, bucket) as core:
            return await is_done(core, keyed_job(bucket, key))

    return held.run(look)


def _look_through(listed: DataFrame) -> Row:
    """How many objects there are, their bytes, and a hash of all that is listed.

    Raises `SourceInvalid` for two of one name, or one without.
    """
    hashed = F.sum(F.xxhash64(*listed.columns).cast("decimal(38,0)"))
    found = listed.agg(
        F.count(F.lit(1)).alias("objects"),
        F.coalesce(F.sum("length"), F.lit(0)).alias("bytes"),
        F.coalesce(hashed, F.lit(0)).cast("string").alias("hash"),
        F.count(F.when(F.col(NAME).isNull(), 1)).alias("nameless"),
        F.count_distinct(NAME).alias("names"),
    ).first()
    assert found is not None
    if found.nameless:
        raise SourceInvalid(f"{found.nameless} rows have no name: leave them out, or name them")
    if found.names < found.objects:
        twice = listed.groupBy(NAME).count().filter("count > 1").first()
        assert twice is not None
        raise SourceInvalid(f"{twice[NAME]!r} names {twice[1]} rows: an object is one row")
    return found


def _key_of(told: Row, target: Target) -> str:
    text = f"{target.bucket}\0{told.objects}\0{told.bytes}\0{told.hash}"
    return f"load {hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _fill(job: Job, names: DataFrame, target: Target) -> int:
    """Add rows for the objects whose version the table does not have; how many."""
    spark = job.spark
    stored = (
        spark.read.format("blobit")
        .option("bucket", target.bucket)
        .option("prefix", target.prefix)
        .option("content", "false")
        .load()
    )
    known = (
        spark.read.format("herd")
        .option("tablespace", target.tablespace)
        .option("table", target.table)
        .option("columns", "name,etag")
        .load()
    )
    rows = (
        stored.join(names, NAME, "left_semi")
        .join(known, [NAME, "etag"], "left_anti")
        .select(
            NAME,
            F.col("id").alias("object_id"),
            "size",
            "etag",
            F.lit(_NEW).alias("state"),
            "created",
        )
    )
    observation = Observation("added")
    counted = rows.observe(observation, F.count(F.lit(1)).alias("rows"))
    writer = job.writer(counted, "herd")
    writer = writer.option("tablespace", target.tablespace).option("table", target.table)
    writer.option("upsert", "true").save()
    added: int = observation.get["rows"]
    return added


async def _make_table(held: HeldHerd, target: Target) -> None:
    session = await held.herd.session(target.tablespace)
    try:
        await session.execute(f"CREATE TABLE IF NOT EXISTS {quoted(target.table)} {_COLUMNS}")
    finally:
        await session.close()


def _root_of(job: Job, source: str) -> str:
    """A source's full name. Raises `SourceInvalid` if it is not there."""
    folders = Folders(job.spark)
    if not folders.exists(source):
        raise SourceInvalid(f"{source} is not there: name a folder or a file that Spark can read")
    return folders.absolute(source)


def _content(rows: DataFrame, named: str) -> Column:
    column = named or (CONTENT if CONTENT in rows.columns else "")
    if not column:
        return F.to_json(F.struct(*map(_named, rows.columns))).cast("binary")
    found = rows.schema[column].dataType
    if not isinstance(found, BinaryType | StringType):
        raise SourceInvalid(
            f"column {column} is {found.simpleString()}: content is binary or text; leave "
            "--content-column out to store whole rows as JSON"
        )
    return F.col(_named(column)).cast("binary")


def _named(column: str) -> str:
    """A column's name as expressions take it, whatever stands in it."""
    return f"`{column.replace('`', '``')}`"


def main(arguments: Sequence[str] | None = None) -> None:
    """The job as `spark-submit` runs it, with the options of `herdbook pipeline load`."""
    submit("load", arguments)


if __name__ == "__main__":
    main()
