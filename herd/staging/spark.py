"""The writers of `format("herd")`: batches are staged by tasks and written by one commit.

Invariants:
- What all processes need is made where the query is planned, and travels with the writer.
- Only what the messages of tasks name is written: a task that is tried twice stages twice and is
  written once.
- Whatever comes of a job, all its ledgers go: those of failed tasks are found by the job's name.
- A batch of a stream has the name of its query and its number, after any restart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from engine.place import Place, held_client
from herd.errors import ProgrammingError
from herd.staging.encoding import Encoder
from herd.staging.layout import Job, Mode, Part, WritePlan
from herd.staging.registry import Label, drop_job, give_up
from herd.staging.wanted import WriteWanted
from herd.staging.writing import stage

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass
class StagedMessage(WriterCommitMessage):
    """What a task tells: where its rows are, and for which job they are."""

    part: Part
    job: Job


class _Writing:
    """What both writers know: where to, what, and how a task does its part."""

    def __init__(
        self, place: Place, application: str, wanted: WriteWanted, job: Job, schema: StructType
    ) -> None:
        """Raises `NoSuchTable`, and what `Encoder` raises for a schema that does not fit."""
        # Tasks import this module too, and need nothing of it.
        from herd.place import held_herd
        from herd.staging.committing import describe

        self._place = place
        self._run = _random()
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
        # Found wrong here, a schema costs no task.
        table = self.plan.table
        encoder = Encoder(table, to_arrow_schema(schema, timezone="UTC"), self.plan.moment)
        if wanted.mode is Mode.UPSERT and not encoder.keyed:
            raise ProgrammingError(
                f"rows for {table.name} have no primary key, and an upsert goes by it",
                hint="give its columns, or append",
            )

    def stage(self, job: Job, batches: "Iterator[RecordBatch]") -> StagedMessage:
        """One task's part, in its process."""
        first = next(batches, None)
        if first is None:
            return StagedMessage(Part(None), job)
        encoder = Encoder(self.plan.table, first.schema, self.plan.moment)
        context = TaskContext.get()
        assert context is not None, "a task runs in a context"
        label = Label(
            tablespace=self.plan.tablespace,
            job=job,
            run=self._run,
            application=self.plan.application,
            partition=context.partitionId(),
            attempt=context.attemptNumber(),
        )
        held = held_client(self._place)
        index = stage(held, held.client, label, encoder, _with(first, batches))
        return StagedMessage(Part(index, encoder.numbered, encoder.keyed), job)

    def commit(self, job: Job, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Write what the messages name, and take all that was staged away."""
        from herd.place import held_herd
        from herd.staging.committing import commit

        parts = [one.part for one in messages if isinstance(one, StagedMessage)]
        held = held_herd(self._place)
        held.run(lambda: commit(held.herd, held.ledgers, self.plan, job, parts))
        held.run(lambda: drop_job(held.ledgers, self.plan.tablespace, job))

    def abort(self, job: Job) -> None:
        """Take away what was staged, and what those tasks will stage that still go on."""
        held = held_client(self._place)
        held.run(lambda: give_up(held.client, self.plan.tablespace, job, self._run))


class TableWriter(DataSourceArrowWriter):
    """Writes one DataFrame into a table. It travels to the executors and to who commits."""

    def __init__(
        self, place: Place, application: str, wanted: WriteWanted, schema: StructType
    ) -> None:
        """Raises what is wrong with the options, the table or the schema."""
        unique = f"{application} {_random()}"
        self._job = Job(f"key {wanted.key}" if wanted.key else unique)
        self._writing = _Writing(place, application, wanted, self._job, schema)

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        """Stage the rows of one task."""
        if self._writing.written:
            return StagedMessage(Part(None), self._job)
        return self._writing.stage(self._job, iterator)

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Write all of it."""
        if not self._writing.written:
            self._writing.commit(self._job, messages)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Leave nothing."""
        self._writing.abort(self._job)


class TableStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream into a table, each as a job of its own."""

    def __init__(
        self, place: Place, application: str, wanted: WriteWanted, schema: StructType
    ) -> None:
        """Raises what is wrong with the options, the table or the schema."""
        if wanted.key:
            raise ProgrammingError(
                "a stream needs no idempotency_key", hint="its checkpoint names its batches"
            )
        self._writing = _Writing(place, application, wanted, Job(_random()), schema)
        self._tablespace, self._table = wanted.tablespace, wanted.table

    def write(self, iterator: "Iterator[RecordBatch]") -> WriterCommitMessage:
        """Stage the rows of one task of one batch."""
        context = TaskContext.get()
        assert context is not None, "a task runs in a context"
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise ProgrammingError("this Spark does not tell tasks of their stream's batch")
        return self._writing.stage(self._job(query, int(batch)), iterator)

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        """Write a batch, unless it was written before the stream was restarted."""
        for job in _jobs(messages):
            assert job.sequence == batchId, "a batch's tasks know its number"
            self._writing.commit(job, messages)

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        """Leave nothing of what tasks have told; what failed ones left goes with the next try."""
        for job in _jobs(messages):
            self._writing.abort(job)

    def _job(self, query: str, batch: int) -> Job:
        return Job(f"query {query} {self._tablespace} {self._table}", batch)


def _random() -> str:
    return f"{Random().getrandbits(128):032x}"


def _jobs(messages: "list[WriterCommitMessage | None]") -> set[Job]:
    return {one.job for one in messages if isinstance(one, StagedMessage)}


def _with(first: "RecordBatch", rest: "Iterator[RecordBatch]") -> "Iterator[RecordBatch]":
    yield first
    yield from rest
