"""The writers of `format("herd")`: batches are staged by tasks and written by one commit.

`JobWriter` and `BatchesWriter` are what Spark knows of any writer that does it so; what they write
into is a `Writing`: here tables, in `blobit.staging.spark` buckets.

Invariants:
- What all processes need is made where the query is planned, and travels with the writer.
- Only what the messages of tasks name is written: a task that is tried twice stages twice and is
  written once.
- Whatever comes of a job, all ledgers of its run go: those of failed tasks are found by its name.
- A batch of a stream has the name of its query and its number, after any restart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from engine.place import Place, for_tasks, held_client
from engine.settling import settle
from herd.errors import ProgrammingError
from herd.staging.encoding import Encoder
from herd.staging.layout import Job, Mode, Part, WritePlan
from herd.staging.registry import Label, give_up
from herd.staging.wanted import WriteWanted
from herd.staging.writing import stage

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass
class JobMessage(WriterCommitMessage):
    """What a task tells: what it has staged, and for which job."""

    part: Any
    job: Job


class Writing(Protocol):
    """Where to, and how tasks and the end of a job do their part. It travels with its writer."""

    written: bool
    """Whether the job of a writer that is no stream had been done before."""

    def stage(self, job: Job, task: TaskContext, batches: "Iterator[RecordBatch]") -> Any:
        """One task's part, in its process; what it returns, the commit is given."""
        ...

    def commit(self, job: Job, parts: Sequence[Any], *, keyed: bool) -> None:
        """Write what tasks have staged, once if the job has a key, and keep nothing else."""
        ...

    def abort(self, job: Job) -> None:
        """Take away what was staged, and what those tasks will stage that still go on."""
        ...


class JobWriter(DataSourceArrowWriter):
    """Writes one DataFrame. It travels to the executors and to who commits."""

    def __init__(self, writing: Writing, job: Job, *, keyed: bool) -> None:
        self._writing = writing
        self._job = job
        self._keyed = keyed

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        """Stage the rows of one task."""
        part = None
        if not self._writing.written:
            part = self._writing.stage(self._job, _task(), iterator)
        settle()
        return JobMessage(part, self._job)

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Write all of it."""
        if not self._writing.written:
            self._writing.commit(self._job, _parts(messages, self._job), keyed=self._keyed)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Leave nothing."""
        self._writing.abort(self._job)


class BatchesWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each as a job of its own. `target` is where they go."""

    def __init__(self, writing: Writing, target: str) -> None:
        self._writing = writing
        self._target = target
        # Spark makes another writer for the end of each batch: the run is the tasks'.
        self._run = _random()

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        """Stage the rows of one task of one batch."""
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise ProgrammingError("this Spark does not tell tasks of their stream's batch")
        job = Job(f"query {query} {self._target}", int(batch), self._run)
        part = self._writing.stage(job, task, iterator)
        settle()
        return JobMessage(part, job)

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        """Write a batch, unless it was written before the stream was restarted."""
        for job in _jobs(messages):
            assert job.sequence == batchId, "a batch's tasks know its number"
            self._writing.commit(job, _parts(messages, job), keyed=True)

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        """Leave nothing of the tasks' run, if one of them has told of it."""
        for job in _jobs(messages):
            self._writing.abort(job)


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a task runs in a context"
    return context


def _jobs(messages: "list[WriterCommitMessage | None]") -> set[Job]:
    return {one.job for one in messages if isinstance(one, JobMessage)}


def _parts(messages: "list[WriterCommitMessage | None]", job: Job) -> list[Any]:
    return [one.part for one in messages if isinstance(one, JobMessage) and one.job == job]


class TableWriting:
    """Writes of one table."""

    def __init__(
        self, place: Place, application: str, wanted: WriteWanted, job: Job, schema: StructType
    ) -> None:
        """Raises `NoSuchTable`, and what `Encoder` raises for a schema that does not fit."""
        # Tasks import this module too, and need nothing of it.
        from herd.place import held_herd
        from herd.staging.committing import describe

        self._place = place
        held = held_herd(place)
        definition, self.written = held.run(
            lambda: describe(held.herd, wanted.tablespace, wanted.table, job)
        )
        self.plan = WritePlan(
            tablespace=wanted.tablespace,
            definition=definition,
            mode=wanted.mode,
            moment_ms=held.ledgers.clock.wall_ms(),
            application=application,
        )
        self._tasks_place = for_tasks(place)
        # Found wrong here, a schema costs no task.
        table = self.plan.table
        encoder = Encoder(table, to_arrow_schema(schema, timezone="UTC"), self.plan.moment)
        if wanted.mode is Mode.UPSERT and not encoder.keyed:
            raise ProgrammingError(
                f"rows for {table.name} have no primary key, and an upsert goes by it",
                hint="give its columns, or append",
            )

    def stage(self, job: Job, task: TaskContext, batches: "Iterator[RecordBatch]") -> Part:
        """One task's part, in its process."""
        first = next(batches, None)
        if first is None:
            return Part(None)
        encoder = Encoder(self.plan.table, first.schema, self.plan.moment)
        label = Label(
            tablespace=self.plan.tablespace,
            job=job,
            application=self.plan.application,
            partition=task.partitionId(),
            attempt=task.attemptNumber(),
        )
        held = held_client(self._tasks_place)
        index = stage(held, held.client, label, encoder, _with(first, batches))
        return Part(index, encoder.numbered, encoder.keyed)

    def commit(self, job: Job, parts: Sequence[Part], *, keyed: bool) -> None:
        """Write what tasks have staged: the tablespace remembers each job. Nothing else stays."""
        from herd.place import held_herd
        from herd.staging.committing import commit, tidy_up

        held = held_herd(self._place)
        held.run(lambda: commit(held.herd, held.ledgers, self.plan, job, parts))
        held.run(lambda: tidy_up(held.ledgers, self.plan.tablespace, job))

    def abort(self, job: Job) -> None:
        """Take away what was staged, and what those tasks will stage that still go on."""
        held = held_client(self._place)
        held.run(lambda: give_up(held.client, self.plan.tablespace, job.run))


class TableWriter(JobWriter):
    """Writes one DataFrame into a table."""

    def __init__(
        self, place: Place, application: str, wanted: WriteWanted, schema: StructType
    ) -> None:
        """Raises what is wrong with the options, the table or the schema."""
        run = _random()
        job = Job(f"key {wanted.key}" if wanted.key else f"{application} {run}", run=run)
        writing = TableWriting(place, application, wanted, job, schema)
        super().__init__(writing, job, keyed=bool(wanted.key))


class TableStreamWriter(BatchesWriter):
    """Writes the batches of a stream into a table."""

    def __init__(
        self, place: Place, application: str, wanted: WriteWanted, schema: StructType
    ) -> None:
        """Raises what is wrong with the options, the table or the schema."""
        if wanted.key:
            raise ProgrammingError(
                "a stream needs no idempotency_key", hint="its checkpoint names its batches"
            )
        writing = TableWriting(place, application, wanted, Job(_random()), schema)
        super().__init__(writing, wanted.tablespace)


def _random() -> str:
    return f"{Random().getrandbits(128):032x}"


def _with(first: "RecordBatch", rest: "Iterator[RecordBatch]") -> "Iterator[RecordBatch]":
    yield first
    yield from rest
