"""What Spark does to write into a table, without Spark: a job, its tasks, its commit."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from msgspec import structs

from herd.staging.committing import commit, describe, tidy_up
from herd.staging.encoding import Encoder
from herd.staging.ingesting import Written
from herd.staging.layout import Job, Mode, Part, WritePlan
from herd.staging.registry import Label, give_up
from herd.staging.writing import stage
from herd.store import AsyncHerd

R = TypeVar("R")
MOMENT_MS = 1_700_000_000_000


class ThisLoop:
    """The loop of a test, for tasks, which run in threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine on the loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()


class Writing:
    """One job of one table."""

    def __init__(self, herd: AsyncHerd, plan: WritePlan, job: Job, *, written: bool) -> None:
        self.plan = plan
        self.job = job
        self.written = written
        self.parts: list[Part] = []
        self._herd = herd
        self._loop = ThisLoop()

    async def stage(self, *batches: pa.RecordBatch) -> Part:
        """One task with some batches."""
        encoder = Encoder(self.plan.table, batches[0].schema, self.plan.moment)
        label = Label(tablespace="default", job=self.job, partition=len(self.parts))
        index = await asyncio.to_thread(
            stage, self._loop, self._herd.client, label, encoder, batches
        )
        part = Part(index, encoder.numbered, encoder.keyed)
        self.parts.append(part)
        return part

    async def commit(self) -> Written:
        """The end of the job: what all its tasks have staged."""
        return await commit(self._herd, self._herd.client, self.plan, self.job, self.parts)

    async def tidy_up(self) -> None:
        """What follows a commit."""
        await tidy_up(self._herd.client, "default", self.job)

    async def give_up(self) -> None:
        """What follows a failure."""
        await give_up(self._herd.client, "default", self.job.run)


async def begun(
    herd: AsyncHerd, table: str, mode: Mode = Mode.APPEND, job: Job | None = None
) -> Writing:
    """A run of a job that has staged nothing yet; unless it is named it is one of its own."""
    run = f"{herd.client.rng.getrandbits(128):032x}"
    named = structs.replace(job or Job(run), run=run)
    definition, written = await describe(herd, "default", table, named)
    plan = WritePlan(tablespace="default", definition=definition, mode=mode, moment_ms=MOMENT_MS)
    return Writing(herd, plan, named, written=written)


async def write(
    herd: AsyncHerd,
    table: str,
    tasks: Sequence[dict[str, Any] | pa.RecordBatch],
    mode: Mode = Mode.APPEND,
    job: Job | None = None,
) -> Written:
    """A whole job; each task has one batch."""
    writing = await begun(herd, table, mode, job)
    for task in tasks:
        await writing.stage(task if isinstance(task, pa.RecordBatch) else pa.record_batch(task))
    return await writing.commit()


async def rows_of(herd: AsyncHerd, query: str) -> list[tuple[Any, ...]]:
    """What a query answers."""
    session = await herd.session()
    try:
        return list((await session.execute(query)).rows)
    finally:
        await session.close()


async def run(herd: AsyncHerd, *statements: str) -> None:
    """Statements, one after the other."""
    for statement in statements:
        await rows_of(herd, statement)
