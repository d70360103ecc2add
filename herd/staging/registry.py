"""Which ledgers hold staged rows, and their end: each is registered before it exists.

    /herd/staging/TABLESPACE/RUN.LEDGER     when it was made, MessagePack
    /herd/staging/TABLESPACE/RUN!           when this run was given up

A run is one try at a job, or at a stream's batches, which come one after the other. Several may do
the same job at once.

Invariants:
- No ledger of staged rows exists that is not registered: whoever knows the run, or looks at all
  runs of a tablespace, finds it, though the task that made it was killed.
- Nobody takes away what another run has staged.
- A name is deleted after its ledger, never before. A missing ledger may still be created by a write
  that is under way, so its name stays until it is old.
- Of a run that was given up nothing stays: what its tasks had registered goes, and who registers
  afterwards finds that out and takes its ledger away.
- What nobody has written or taken back is deleted when it is `KEPT_MS` old.
"""

from typing import Final

import msgspec

from engine.errors import KeyExists, LedgerClosed, NotFound
from engine.expiry import is_over
from engine.ledger.client import Announce, LedgerClient
from engine.ledger.reader import LedgerReader
from engine.ledger.writer import LedgerWriter
from herd.errors import OperationalError, ProgrammingError
from herd.staging.layout import Job

KEPT_MS: Final = 2 * 24 * 3_600_000
OWNER: Final = b"herd-staging"
_FOLDER: Final = "/herd/staging"


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """Who stages: it stands in the custom metadata of the ledger, for people and tools."""

    tablespace: str
    job: Job
    application: str = ""
    partition: int = 0
    attempt: int = 0

    @property
    def metadata(self) -> dict[str, bytes]:
        """The same as custom metadata."""
        return {
            "owner": OWNER,
            "purpose": b"staging",
            "tablespace": self.tablespace.encode(),
            "job": self.job.name.encode(),
            "application": self.application[:200].encode(),
            "partition": str(self.partition).encode(),
            "attempt": str(self.attempt).encode(),
        }


async def create_staging_ledger(client: LedgerClient, label: Label) -> LedgerWriter:
    """A ledger for staged rows.

    Raises what creating ledgers raises, and `OperationalError` if the run was given up.
    """
    assert label.job.run, "who stages has a run of its own"
    writer = await client.create_ledger(metadata=label.metadata, announce=_register(client, label))
    if await client.store.get(_mark(label.tablespace, label.job.run)):
        writer.abandon(LedgerClosed(f"ledger {writer.ledger_id}: its run was given up"))
        name = f"{label.job.run}.{writer.ledger_id}"
        await _drop(client, label.tablespace, name, writer.ledger_id)
        raise OperationalError("the run that this task is of was given up")
    return writer


async def open_staged(client: LedgerClient, tablespace: str, ledger_id: int) -> LedgerReader:
    """A ledger of rows that were staged for a tablespace.

    Raises `ProgrammingError` for any other ledger: whoever may write a table names what they like,
    and it is read with the leader's rights. Raises what opening raises, too.
    """
    reader = await client.open_ledger(ledger_id, recover=False)
    custom = reader.metadata.custom
    whose = custom.get("tablespace", b"").decode(errors="replace").lower()
    if custom.get("owner") != OWNER or whose != tablespace.lower():
        raise ProgrammingError(
            f"ledger {ledger_id} holds no rows that were staged for {tablespace}",
            hint="rows are written from ledgers that the same tablespace's writers have made",
        )
    return reader


async def give_up(client: LedgerClient, tablespace: str, run: str) -> None:
    """End a run with all its ledgers, also those of tasks that nobody could stop yet.

    Another run of the same job may follow. Raises `MetadataUnavailable`.
    """
    await _create(client, _mark(tablespace, run))
    await drop_run(client, tablespace, run)


async def drop_run(client: LedgerClient, tablespace: str, run: str) -> list[int]:
    """Delete all ledgers of a run; returns them. Raises `MetadataUnavailable`."""
    dropped = []
    for name, ledger_id in await _registered(client, tablespace):
        if name.startswith(f"{run}."):
            await _drop(client, tablespace, name, ledger_id)
            dropped.append(ledger_id)
    return dropped


async def sweep(client: LedgerClient, tablespace: str) -> list[int]:
    """Delete the ledgers that were forgotten; returns them. Raises `MetadataUnavailable`."""
    swept = []
    now_ms = await client.time.earliest_ms()
    for name, ledger_id in await _registered(client, tablespace):
        found = await client.store.get(f"{_FOLDER}/{tablespace}/{name}")
        if found is not None and is_over(_made_ms(found.value) + KEPT_MS, now_ms):
            await _drop(client, tablespace, name, ledger_id)
            # No write is under way for that long.
            await client.store.delete(f"{_FOLDER}/{tablespace}/{name}")
            swept.append(ledger_id)
    for name in await client.store.children(f"{_FOLDER}/{tablespace}"):
        if "!" in name:
            key = f"{_FOLDER}/{tablespace}/{name}"
            found = await client.store.get(key)
            if found is not None and is_over(_made_ms(found.value) + KEPT_MS, now_ms):
                await client.store.delete(key)
    return swept


def _register(client: LedgerClient, label: Label) -> Announce:
    async def announce(ledger_id: int) -> None:
        key = f"{_FOLDER}/{label.tablespace}/{label.job.run}.{ledger_id}"
        await _create(client, key)

    return announce


def _mark(tablespace: str, run: str) -> str:
    return f"{_FOLDER}/{tablespace}/{run}!"


async def _create(client: LedgerClient, key: str) -> None:
    try:
        await client.store.create(key, msgspec.msgpack.encode(client.clock.wall_ms()))
    except KeyExists:
        # A reply got lost, and it was asked for twice: neither ids nor runs are given twice.
        return


async def _drop(client: LedgerClient, tablespace: str, name: str, ledger_id: int) -> None:
    try:
        await client.delete_ledger(ledger_id)
    except NotFound:
        # It was deleted, or will still be created: a later check will show which.
        return
    await client.store.delete(f"{_FOLDER}/{tablespace}/{name}")


async def _registered(client: LedgerClient, tablespace: str) -> list[tuple[str, int]]:
    """All names, and the ledgers that they are of; what is no such name is left alone."""
    found = []
    for name in await client.store.children(f"{_FOLDER}/{tablespace}"):
        ledger_id = name.rpartition(".")[2]
        if ledger_id.isdecimal():
            found.append((name, int(ledger_id)))
    return found


def _made_ms(value: bytes) -> int:
    """When a ledger was registered; what cannot be read is of no age."""
    try:
        return msgspec.msgpack.decode(value, type=int)
    except msgspec.MsgspecError:
        return 0
