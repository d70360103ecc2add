"""`usage`: bytes, objects and ages of buckets, by what their names begin with.

It reads the snapshot of each tablespace's names, never an object.

Invariants:
- An object counts once: under the folder that its name is in, cut at `depth` parts.
- A bucket without objects is there, with nothing in it; what has expired does not count.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from blobit.tables import BucketInfo
from pipeline.job import Job, buckets_of
from pipeline.submitting import submit

LIMIT: Final = 1_000
DAY_MS: Final = 86_400_000
AGES: Final = {"day": 1, "week": 7, "month": 30, "year": 365}
"""Classes of age, by the days that the objects in them are younger than."""
OLDER: Final = "older"
_COLUMNS: Final = ("bucket_id", "name", "length", "created_ms", "expires_ms")


class AgeClass(msgspec.Struct, frozen=True):
    """Objects that are younger than `name` says, and older than the class before."""

    name: str
    objects: int
    bytes: int


class PrefixUsage(msgspec.Struct, frozen=True):
    """What lies in a bucket below a prefix. Times in milliseconds of the wall clock."""

    bucket: str
    prefix: str
    objects: int = 0
    bytes: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    ages: tuple[AgeClass, ...] = ()


class UsageReport(msgspec.Struct, frozen=True):
    """The biggest prefixes, the biggest first, and how many there are in all."""

    at_ms: int
    objects: int
    bytes: int
    prefixes: int
    rows: tuple[PrefixUsage, ...]


def usage(
    job: Job, now_ms: int, *, bucket: str = "", depth: int = 0, limit: int = LIMIT
) -> UsageReport:
    """What a bucket holds, or all of them, by prefixes of at most `depth` parts.

    `now_ms` is the wall clock's, by which ages count. Raises `NoSuchBucket`, and what Spark raises.
    """
    buckets = buckets_of(job.place, bucket)
    names = {info.bucket_id: info.name for info in buckets}
    if not buckets:
        return UsageReport(now_ms, 0, 0, 0, ())
    by_prefix = _by_prefix(_objects(job, buckets, now_ms), now_ms, depth).cache()
    try:
        sums = [F.count("*"), F.sum("objects"), F.sum("bytes")]
        totals = {row[0]: row[1:] for row in by_prefix.groupBy("bucket_id").agg(*sums).collect()}
        biggest = by_prefix.orderBy(F.desc("bytes"), "bucket_id", "prefix").limit(limit)
        counted = [_usage_of(names, row) for row in biggest.collect()]
    finally:
        by_prefix.unpersist()
    empty = [PrefixUsage(info.name, "") for info in buckets if info.bucket_id not in totals]
    return UsageReport(
        at_ms=now_ms,
        objects=sum(objects for _, objects, _ in totals.values()),
        bytes=sum(size_bytes for _, _, size_bytes in totals.values()),
        prefixes=sum(count for count, _, _ in totals.values()) + len(empty),
        rows=tuple([*counted, *empty][:limit]),
    )


def _objects(job: Job, buckets: Sequence[BucketInfo], now_ms: int) -> DataFrame:
    by_space: dict[str, list[int]] = {}
    for info in buckets:
        by_space.setdefault(info.tablespace, []).append(info.bucket_id)
    frames = [
        job.spark.read.format("herd")
        .option("tablespace", tablespace)
        .option("table", "objects")
        .option("columns", ",".join(_COLUMNS))
        .option("where", f"bucket_id IN ({', '.join(map(str, ids))})")
        .load()
        for tablespace, ids in by_space.items()
    ]
    expires = F.col("expires_ms")
    return reduce(DataFrame.unionByName, frames).filter(expires.isNull() | (expires > now_ms))


def _by_prefix(objects: DataFrame, now_ms: int, depth: int) -> DataFrame:
    ages = [column for name, own in _age_classes(now_ms) for column in _class_columns(name, own)]
    return (
        objects.withColumn("prefix", _prefix(depth))
        .groupBy("bucket_id", "prefix")
        .agg(
            F.count("*").alias("objects"),
            F.sum("length").alias("bytes"),
            F.min("created_ms").alias("oldest_ms"),
            F.max("created_ms").alias("newest_ms"),
            *ages,
        )
    )


def _prefix(depth: int) -> Column:
    """The folder that a name is in, cut at so many parts."""
    parts = F.split("name", "/")
    folders = F.least(F.size(parts) - 1, F.lit(depth))
    joined = F.array_join(F.slice(parts, F.lit(1), folders), "/")
    return F.when(folders > 0, F.concat(joined, F.lit("/"))).otherwise(F.lit(""))


def _age_classes(now_ms: int) -> Iterator[tuple[str, Column]]:
    age_ms = F.lit(now_ms) - F.col("created_ms")
    above = F.lit(True)
    for name, days in AGES.items():
        below = age_ms < days * DAY_MS
        yield name, above & below
        above = ~below
    yield OLDER, above


def _class_columns(name: str, own: Column) -> list[Column]:
    return [
        F.count(F.when(own, 1)).alias(f"{name}_objects"),
        F.sum(F.when(own, F.col("length")).otherwise(0)).alias(f"{name}_bytes"),
    ]


def _usage_of(names: Mapping[int, str], row: Row) -> PrefixUsage:
    ages = tuple(
        AgeClass(name, row[f"{name}_objects"], row[f"{name}_bytes"]) for name in (*AGES, OLDER)
    )
    return PrefixUsage(
        bucket=names[row.bucket_id],
        prefix=row.prefix,
        objects=row.objects,
        bytes=row.bytes,
        oldest_ms=row.oldest_ms,
        newest_ms=row.newest_ms,
        ages=ages,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The job as `spark-submit` runs it, with the options of `herdbook pipeline usage`."""
    submit("usage", arguments)


if __name__ == "__main__":
    main()
