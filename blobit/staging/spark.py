"""The writers of `format("blobit")`: tasks store objects, one commit gives them their names.

Invariants:
- What all processes need is made where the query is planned, and travels with the writer.
- Only what the messages of tasks name gets names: a task that is tried twice stores twice, and each
  object has one name.
- Whatever comes of a job, what only it held is let go: that of failed tasks is found by its name.
- A batch of a stream has the name of its query and its number, after any restart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from blobit.errors import SettingsInvalid
from blobit.staging.naming import give_up, is_done, name_all
from blobit.staging.storing import Staged
from blobit.staging.task import Task, open_bucket, stage
from blobit.staging.wanted import WriteWanted, check_columns
from engine.place import Place
from herd.place import held_herd
from herd.staging.layout import Job

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass
class StoredMessage(WriterCommitMessage):
    """What a task tells: what it has stored, and for which job."""

    staged: Staged
    job: Job


class _Writing:
    """What both writers know: where to, and how a task does its part."""

    def __init__(self, place: Place, bucket: str, schema: StructType) -> None:
        """Raises `SettingsInvalid` for columns that are no objects."""
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
        self._place = place
        self._bucket = bucket
        self._run = _random(place)

    def is_done(self, job: Job) -> bool:
        """Whether a job has ended well; also whether there is a bucket at all."""
        held = held_herd(self._place)

        async def look() -> bool:
            async with open_bucket(held, self._bucket) as core:
                return await is_done(core, job)

        return held.run(look)

    def stage(self, job: Job, batches: "Iterator[RecordBatch]") -> StoredMessage:
        """One task's part, in its process."""
        context = TaskContext.get()
        assert context is not None, "a task runs in a context"
        task = Task(job, self._run, context.taskAttemptId())
        return StoredMessage(stage(self._place, self._bucket, task, batches), job)

    def commit(self, job: Job, staged: Sequence[Staged], *, keyed: bool) -> None:
        """Name what tasks have stored."""
        held = held_herd(self._place)

        async def name() -> None:
            async with open_bucket(held, self._bucket) as core:
                await name_all(core, job, staged, keyed=keyed)

        held.run(name)

    def abort(self, job: Job) -> None:
        """Let go of what tasks have stored, and of what those will that still go on."""
        held = held_herd(self._place)

        async def let_go() -> None:
            async with open_bucket(held, self._bucket) as core:
                await give_up(core, job, self._run)

        held.run(let_go)


class BucketWriter(DataSourceArrowWriter):
    """Puts the rows of one DataFrame into a bucket. It travels to executors and to who commits."""

    def __init__(self, place: Place, wanted: WriteWanted, schema: StructType) -> None:
        """Raises what is wrong with the bucket or the schema."""
        self._writing = _Writing(place, wanted.bucket, schema)
        self._keyed = bool(wanted.key)
        name = f"key {wanted.key}" if wanted.key else _random(place)
        self._job = Job(f"{name} {wanted.bucket}")
        self._done = self._writing.is_done(self._job)

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        """Store the objects of one task."""
        if self._done:
            return StoredMessage(Staged(), self._job)
        return self._writing.stage(self._job, iterator)

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Give all of them their names."""
        if not self._done:
            self._writing.commit(self._job, _staged(messages), keyed=self._keyed)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Leave nothing."""
        self._writing.abort(self._job)


class BucketStreamWriter(DataSourceStreamArrowWriter):
    """Puts the batches of a stream into a bucket, each as a job of its own."""

    def __init__(self, place: Place, wanted: WriteWanted, schema: StructType) -> None:
        """Raises what is wrong with the options, the bucket or the schema."""
        if wanted.key:
            raise SettingsInvalid(
                "a stream needs no idempotency_key: its checkpoint names its batches"
            )
        self._writing = _Writing(place, wanted.bucket, schema)
        self._bucket = wanted.bucket
        self._writing.is_done(Job(_random(place)))

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        """Store the objects of one task of one batch."""
        context = TaskContext.get()
        assert context is not None, "a task runs in a context"
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise SettingsInvalid("this Spark does not tell tasks of their stream's batch")
        return self._writing.stage(Job(f"query {query} {self._bucket}", int(batch)), iterator)

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        """Name the objects of a batch, unless that was done before the stream was restarted."""
        for job in _jobs(messages):
            assert job.sequence == batchId, "a batch's tasks know its number"
            self._writing.commit(job, _staged(messages), keyed=True)

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        """Let go of what tasks have told; what failed ones left goes with the next try."""
        for job in _jobs(messages):
            self._writing.abort(job)


def _random(place: Place) -> str:
    return f"{held_herd(place).ledgers.rng.getrandbits(128):032x}"


def _staged(messages: "list[WriterCommitMessage | None]") -> list[Staged]:
    return [one.staged for one in messages if isinstance(one, StoredMessage)]


def _jobs(messages: "list[WriterCommitMessage | None]") -> set[Job]:
    return {one.job for one in messages if isinstance(one, StoredMessage)}
