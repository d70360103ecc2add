"""Which ledgers hold staged rows, and their end: each is registered before it exists.

    /herd/staging/TABLESPACE/JOB.LEDGER     when it was made, MessagePack

Invariants:
- No ledger of staged rows exists that is not registered: whoever knows the job, or looks at all
  jobs of a tablespace, finds it, though the task that made it was killed.
- A name goes after its ledger, never before.
- What nobody has written or taken back is deleted when it is `KEPT_MS` old.
"""

from typing import Final

import msgspec

from engine.errors import KeyExists, NotFound
from engine.ledger.client import Announce, LedgerClient
from engine.ledger.writer import LedgerWriter
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
    """A ledger for staged rows. Raises what creating ledgers raises."""
    return await client.create_ledger(metadata=label.metadata, announce=_register(client, label))


async def drop_job(client: LedgerClient, tablespace: str, job: Job) -> list[int]:
    """Delete all ledgers of a job; returns them. Raises `MetadataUnavailable`."""
    dropped = []
    for name, ledger_id in await _registered(client, tablespace):
        if name.startswith(f"{job.name}."):
            await _drop(client, tablespace, name, ledger_id)
            dropped.append(ledger_id)
    return dropped


async def sweep(client: LedgerClient, tablespace: str) -> list[int]:
    """Delete the ledgers that were forgotten; returns them. Raises `MetadataUnavailable`."""
    swept = []
    oldest_ms = client.clock.wall_ms() - KEPT_MS
    for name, ledger_id in await _registered(client, tablespace):
        found = await client.store.get(f"{_FOLDER}/{tablespace}/{name}")
        if found is not None and _made_ms(found.value) < oldest_ms:
            await _drop(client, tablespace, name, ledger_id)
            swept.append(ledger_id)
    return swept


def _register(client: LedgerClient, label: Label) -> Announce:
    async def announce(ledger_id: int) -> None:
        key = f"{_FOLDER}/{label.tablespace}/{label.job.name}.{ledger_id}"
        made = msgspec.msgpack.encode(client.clock.wall_ms())
        try:
            await client.store.create(key, made)
        except KeyExists:
            # A reply got lost, and it was asked for twice: ids are never given twice.
            return

    return announce


async def _drop(client: LedgerClient, tablespace: str, name: str, ledger_id: int) -> None:
    try:
        await client.delete_ledger(ledger_id)
    except NotFound:
        # It was never made, or is gone already: only its name is left.
        pass
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
