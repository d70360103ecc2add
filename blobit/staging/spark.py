"""The writers of `format("blobit")`: tasks store objects, one commit gives them their names.

Invariants:
- What all processes need is made where the query is planned, and travels with the writer.
- Only what the messages of tasks name gets names: a task that is tried twice stores twice, and each
  object has one name.
- Whatever comes of a job, what only it held is let go: that of failed tasks is found by its name.
- A batch of a stream has the name of its query and its number, after any restart.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import structs
from pyspark import TaskContext
from pyspark.sql.types import StructType

from blobit.errors import SettingsInvalid
from blobit.staging.naming import give_up, is_done, keyed_job, name_all
from blobit.staging.storing import Staged
from blobit.staging.task import Task, open_bucket, stage
from blobit.staging.wanted import WriteWanted, check_columns
from engine.place import Place, for_tasks
from herd.place import held_herd
from herd.staging.layout import Job
from herd.staging.spark import BatchesWriter, JobWriter

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class BucketWriting:
    """Writes of one bucket; see `herd.staging.spark.Writing`."""

    def __init__(self, place: Place, bucket: str, job: Job, schema: StructType) -> None:
        """Raises `SettingsInvalid` for columns that are no objects, `NoSuchBucket`."""
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
        self._place = place
        self._bucket = bucket
        self.written = self._is_done(job)
        self._tasks_place = for_tasks(place)

    def stage(self, job: Job, task: TaskContext, batches: "Iterator[RecordBatch]") -> Staged:
        """One task's part, in its process."""
        attempt = Task(job, task.taskAttemptId())
        return stage(self._tasks_place, self._bucket, attempt, batches)

    def commit(self, job: Job, parts: Sequence[Staged], *, keyed: bool) -> None:
        """Name what tasks have stored."""
        held = held_herd(self._place)

        async def name() -> None:
            async with open_bucket(held, self._bucket) as core:
                await name_all(core, job, parts, keyed=keyed)

        held.run(name)

    def abort(self, job: Job) -> None:
        """Let go of what tasks have stored, and of what those will that still go on."""
        held = held_herd(self._place)

        async def let_go() -> None:
            async with open_bucket(held, self._bucket) as core:
                await give_up(core, job, job.run)

        held.run(let_go)

    def _is_done(self, job: Job) -> bool:
        held = held_herd(self._place)

        async def look() -> bool:
            async with open_bucket(held, self._bucket) as core:
                return await is_done(core, job)

        return held.run(look)


class BucketWriter(JobWriter):
    """Puts the rows of one DataFrame into a bucket."""

    def __init__(self, place: Place, wanted: WriteWanted, schema: StructType) -> None:
        """Raises what is wrong with the bucket or the schema."""
        run = _random(place)
        job = keyed_job(wanted.bucket, wanted.key) if wanted.key else Job(f"{run} {wanted.bucket}")
        job = structs.replace(job, run=run)
        writing = BucketWriting(place, wanted.bucket, job, schema)
        super().__init__(writing, job, keyed=bool(wanted.key))


class BucketStreamWriter(BatchesWriter):
    """Puts the batches of a stream into a bucket."""

    def __init__(self, place: Place, wanted: WriteWanted, schema: StructType) -> None:
        """Raises what is wrong with the options, the bucket or the schema."""
        if wanted.key:
            raise SettingsInvalid(
                "a stream needs no idempotency_key: its checkpoint names its batches"
            )
        writing = BucketWriting(place, wanted.bucket, Job(_random(place)), schema)
        super().__init__(writing, wanted.bucket)


def _random(place: Place) -> str:
    return f"{held_herd(place).ledgers.rng.getrandbits(128):032x}"
