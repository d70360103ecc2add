"""Removing what a dropped tablespace leaves: its log, its snapshots, its checkpoints.

Invariants:
- The removal is a term of the log: a leader of an older term names and deletes nothing any more,
  and a removal that is resumed later touches nothing of a newer tablespace with the same name.
- The last ledger of the log is fenced first: a leader that does not know yet that it is over has
  nothing acknowledged any more.
- Keys name nothing any more, then ledgers go: a sweep that ends half way is begun again. The keys
  stay, with the epoch of the removal.
- A ledger goes only if its own metadata name the tablespace as its owner and an older epoch.
"""

import asyncio
import contextlib
from typing import Final

from engine.errors import NoSuchLedger
from engine.ledger.client import LedgerClient
from engine.log.log import ReplicatedLog
from engine.log.sweeping import read_marks
from engine.metadata.lost_logs import LOG_OWNER
from engine.replica.snapshots import Snapshots
from herd.checkpoint.record import CheckpointList
from herd.nodes.directory import Directory
from herd.reading_log import log_of

_READ_AT_ONCE: Final = 16


async def sweep_dropped(client: LedgerClient, name: str, uuid: str) -> int:
    """Remove all that a dropped tablespace left, but its fact; how many ledgers that were.

    Nobody runs a replica of it any more. Raises `Deposed` if the name is another's by now, or
    somebody else removes it, too; `MetadataUnavailable`, `CannotRead`.
    """
    directory = Directory(client.store, client.rng)

    async def still() -> bool:
        await client.store.sync()
        fact = await directory.get(name)
        return fact is not None and fact.dropped and fact.uuid == uuid

    log = ReplicatedLog(client, log_of(name))
    epoch = await log.remove(still)
    await Snapshots(client, log).forget(epoch)
    await CheckpointList(client.store, name, client.time).forget(epoch)
    owners = {LOG_OWNER + log.name.encode(), b"herd:" + name.encode()}
    return await _sweep_ledgers(client, owners, epoch)


async def _sweep_ledgers(client: LedgerClient, owners: set[bytes], epoch: int) -> int:
    swept = 0
    ids = await client.owners.ledgers_of(*owners)
    for start in range(0, len(ids), _READ_AT_ONCE):
        chunk = ids[start : start + _READ_AT_ONCE]
        found = await asyncio.gather(*(read_marks(client, each) for each in chunk))
        for ledger_id, marks in zip(chunk, found, strict=True):
            if marks is not None and marks.owner in owners and marks.epoch < epoch:
                with contextlib.suppress(NoSuchLedger):
                    await client.delete_ledger(ledger_id)
                    swept += 1
    return swept
