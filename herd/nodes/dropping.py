"""Removing what a dropped tablespace leaves: its log, its snapshots, its checkpoints, its keys.

Invariants:
- Ledgers go before the keys that name them: a sweep that ends half way is begun again.
- The last ledger of the log is fenced first: a leader that does not know yet that it is over has
  nothing acknowledged any more.
- A ledger goes only if its own metadata name the tablespace as its owner.
"""

import asyncio
import contextlib
from typing import Final

from engine.errors import CannotRead, EngineError, FormatTooNew, NoSuchLedger, NotFound
from engine.ledger.client import LedgerClient
from engine.log.log import ReplicatedLog
from engine.log.log_list import LOGS
from engine.metadata.lost_logs import OWNER
from herd.nodes.facts import SPACES
from herd.reading_log import log_of

_ASKED_AT_ONCE: Final = 16


async def sweep_dropped(client: LedgerClient, name: str) -> int:
    """Remove all that a tablespace left, but its fact; how many ledgers that were.

    Nobody runs a replica of it any more. Raises `MetadataUnavailable`.
    """
    log_name = log_of(name)
    listed = (await ReplicatedLog(client, log_name).list()).ledgers
    if listed:
        # It may be gone already, or too few bookies be there: then nobody can write it either.
        with contextlib.suppress(EngineError):
            reader = await client.open_ledger(listed[-1], recover=True)
            await reader.close()
    swept = await _sweep_ledgers(client, {b"log:" + log_name.encode(), b"herd:" + name.encode()})
    store = client.store
    folder = f"{LOGS}/{log_name}"
    for replica in await store.children(f"{folder}/replicas"):
        await store.delete(f"{folder}/replicas/{replica}")
    for key in ("snapshot", "leader", "list"):
        await store.delete(f"{folder}/{key}")
    await store.delete(f"{SPACES}/{name}/checkpoints")
    return swept


async def _sweep_ledgers(client: LedgerClient, owners: set[bytes]) -> int:
    swept = 0
    ids = await client.list_ledgers()
    for start in range(0, len(ids), _ASKED_AT_ONCE):
        chunk = ids[start : start + _ASKED_AT_ONCE]
        for ledger_id, owner in zip(
            chunk, await asyncio.gather(*(_owner(client, each) for each in chunk)), strict=True
        ):
            if owner in owners:
                with contextlib.suppress(NoSuchLedger):
                    await client.delete_ledger(ledger_id)
                    swept += 1
    return swept


async def _owner(client: LedgerClient, ledger_id: int) -> bytes | None:
    """Whose a ledger is; None for what cannot be told."""
    try:
        return (await client.ledger_metadata(ledger_id)).custom.get(OWNER)
    except (NotFound, CannotRead, FormatTooNew):
        return None
