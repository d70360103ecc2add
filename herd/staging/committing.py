"""A job from its beginning to its end, in the process that drives it.

    table, written = await describe(herd, "default", "cow", job)
    ...                                                  # tasks stage rows, each in its process
    written = await commit(spaces, plan, parts)
    await tidy_up(spaces.ledgers, "default", job)        # give_up, if it came to nothing

Invariants:
- What is asked for may be asked for again: the leader answers a job that is written.
- Whatever stops a job for good is told in one error, and leaves the table as it was.
- Once a job is written nothing is told as its failure: who hears of one writes again.
"""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from engine.errors import EngineError
from engine.ledger.client import LedgerClient
from herd.checkpoint.blobs import BlobWriter
from herd.checkpoint.manifest import Locator
from herd.errors import CommitUnknown, Error, OperationalError
from herd.sql.result import Result
from herd.staging.ingesting import Written
from herd.staging.layout import (
    Job,
    Mode,
    Order,
    Part,
    WritePlan,
    digest,
    encode_order,
    locator_text,
)
from herd.staging.registry import Label, create_staging_ledger, drop_run
from herd.translating import translating
from herd.wire.calling import Patience
from herd.wire.settings import WireSettings

if TYPE_CHECKING:
    from herd.sql.session import Session
    from herd.wire.session import RemoteSession

_PATIENCE: Final = WireSettings(patience_ms=120_000, retry_first_ms=50, retry_max_ms=2_000)
"""Another transaction may hold a row for some time, and a leader may be followed by another."""


class Herd(Protocol):
    """Tablespaces, wherever they are led."""

    async def session(self, name: str, *, autocommit: bool = True) -> "Session | RemoteSession":
        """A session for SQL in a tablespace."""
        ...


async def describe(herd: Herd, tablespace: str, table: str, job: Job) -> tuple[bytes, bool]:
    """A table's definition, and whether a job was written already.

    Raises `NoSuchTable`, `ProgrammingError`, `LeaderUnavailable`.
    """
    quoted = table.replace('"', '""')
    text = f'INGEST INTO "{quoted}" AS {job.identity.hex()}'
    [row] = (await _execute(herd, tablespace, text)).rows
    return row[0], row[1]


async def commit(
    herd: Herd, ledgers: LedgerClient, plan: WritePlan, job: Job, parts: Sequence[Part]
) -> Written:
    """Write what tasks have staged, all of it or nothing.

    Raises `IntegrityError`, `DataError`, `ProgrammingError`: nothing was written; `CommitUnknown`
    if nobody could tell in time: write it again as the same job.
    """
    indexes = tuple([part.index for part in parts if part.index is not None])
    if not indexes and plan.mode is not Mode.OVERWRITE:
        return Written(0, False)
    table = plan.table
    order = Order(
        table.id,
        digest(table),
        plan.mode,
        indexes,
        any(part.numbered for part in parts),
        all(part.keyed for part in parts),
        # Streams of an earlier version had their table in their name.
        Job(f"{job.key} {table.name}", job.sequence).identity,
    )
    locator = await _placed(ledgers, Label(tablespace=plan.tablespace, job=job), order)
    text = f"INGEST {locator_text(locator)} AS {job.identity.hex()}"
    [row] = (await _patiently(herd, ledgers, plan.tablespace, text)).rows
    return Written(*row)


async def tidy_up(ledgers: LedgerClient, tablespace: str, job: Job) -> None:
    """Delete what this run of a job has staged; what cannot go now is swept when it is old."""
    try:
        await drop_run(ledgers, tablespace, job.run)
    except EngineError as error:
        warnings.warn(f"the rows are written, and what was staged stays: {error}", stacklevel=2)


async def _placed(ledgers: LedgerClient, label: Label, order: Order) -> Locator:
    """An order, in a ledger of its own."""
    with translating():
        blobs = BlobWriter(await create_staging_ledger(ledgers, label))
        locator = await blobs.write(encode_order(order))
        await blobs.close()
    return locator


async def _patiently(herd: Herd, ledgers: LedgerClient, tablespace: str, text: str) -> Result:
    """Ask until it is known whether it was done, or that it cannot be."""
    patience = Patience(ledgers.clock, ledgers.rng, _PATIENCE)
    while True:
        try:
            return await _execute(herd, tablespace, text)
        except OperationalError as error:
            if not (error.retryable or isinstance(error, CommitUnknown)):
                raise
            await patience.wait(error)


async def _execute(herd: Herd, tablespace: str, text: str) -> Result:
    session = await herd.session(tablespace)
    try:
        return await session.execute(text)
    finally:
        try:
            await session.close()
        except Error:
            # What the statement said is what counts.
            pass
