"""`scrub`: reads and checks every byte of a bucket, or of ledgers, on all executors.

Of a bucket each object is read whole and its checksum compared, and each replica of each entry of
the bucket's ledgers is read; of ledgers the latter. Nothing is mended or queued: that is for
`herdbook repair scrub`.

Invariants:
- A report without findings means that every byte was read and had its checksum.
- A bucket is checked at one position; its ledgers are kept as long as the session lives.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from blobit.snapshot.bucket_snapshot import BucketSnapshot, take_snapshot
from blobit.snapshot.planning import plan
from blobit.snapshot.wanted import Wanted
from engine.place import for_tasks, held_client
from pipeline.findings import Tally, added
from pipeline.job import Job
from pipeline.object_checking import check_objects
from pipeline.replica_checking import check_ledgers
from pipeline.submitting import submit

T = TypeVar("T")
_TASKS_A_CORE: Final = 4


class ScrubReport(msgspec.Struct, frozen=True):
    """What was checked and found. `objects` is None where ledgers alone were asked for."""

    ledgers: Tally
    objects: Tally | None = None

    @property
    def sound(self) -> bool:
        """Whether every byte was read and nothing was wrong."""
        return self.ledgers.sound and (self.objects is None or self.objects.sound)


def scrub_ledgers(job: Job, ledger_ids: Sequence[int] | None = None) -> ScrubReport:
    """Check ledgers by their ids, or all there are. Raises `MetadataUnavailable`."""
    named = ledger_ids is not None
    if ledger_ids is None:
        held = held_client(job.place)
        ledger_ids = held.run(held.client.list_ledgers)
    check = partial(check_ledgers, for_tasks(job.place), named=named)
    return ScrubReport(_spread(job, ledger_ids, check))


def scrub_bucket(job: Job, bucket: str) -> ScrubReport:
    """Check all objects of a bucket, and all replicas of its ledgers.

    Raises `NoSuchBucket`, and what is in `herd.errors` for names that cannot be read.
    """
    snapshot = take_snapshot(job.place, job.application, Wanted(bucket))
    shares = plan(snapshot, Wanted(bucket), snapshot.conditions)
    place = for_tasks(job.place)
    reached = snapshot.at(place)
    objects = _spread(
        job, shares, lambda some: added(check_objects(reached, share) for share in some)
    )
    ledgers = _spread(job, _ledgers_of(job, snapshot), partial(check_ledgers, place))
    return ScrubReport(ledgers, objects)


def _ledgers_of(job: Job, snapshot: BucketSnapshot) -> list[int]:
    names = snapshot.names
    rows = (
        job.spark.read.format("herd")
        .option("tablespace", names.tablespace)
        .option("table", "ledgers")
        .option("snapshot", str(names.record.number))
        .option("columns", "ledger_id")
        .option("where", f"bucket_id = {snapshot.bucket_id}")
        .load()
        .collect()
    )
    return sorted(row.ledger_id for row in rows)


def _spread(job: Job, items: Sequence[T], check: Callable[[list[T]], Tally]) -> Tally:
    """Check items on the executors, some in a task."""
    context = job.spark.sparkContext
    slices = min(len(items), _TASKS_A_CORE * context.defaultParallelism)
    if not slices:
        return Tally()
    parts = context.parallelize(items, slices).glom()
    return added(parts.map(check).collect())


def main(arguments: Sequence[str] | None = None) -> None:
    """The job as `spark-submit` runs it, with the options of `herdbook pipeline scrub`."""
    submit("scrub", arguments)


if __name__ == "__main__":
    main()
