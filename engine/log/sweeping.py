"""Finding a log's ledgers that nothing references, and deleting them.

Invariants:
- A ledger goes only if its own metadata name this log as its owner, and nothing can come to
  reference it: its epoch is over, or it was to be listed and a higher id is.
- Nothing is deleted while a backup is being restored into the store: its lists are written last.
"""

import asyncio
from typing import Final, NamedTuple

from engine.errors import CannotRead, FormatTooNew, NoSuchLedger
from engine.ledger.client import LedgerClient
from engine.log.log_list import LogList, LogLists
from engine.metadata.lost_logs import EPOCH, LOG_OWNER, OWNER
from engine.metadata.restoring import restoration_under_way
from engine.transport.contract import PURPOSE

PURPOSE_LOG: Final = "log"
_READ_AT_ONCE: Final = 16


class Marks(NamedTuple):
    """What the custom metadata of a ledger says about its creator."""

    owner: bytes
    purpose: str
    epoch: int


def marks_of(name: str, purpose: str, epoch: int) -> dict[str, bytes]:
    """The custom metadata of a ledger of a log."""
    return {OWNER: _owner(name), PURPOSE: purpose.encode(), EPOCH: b"%d" % epoch}


def garbage(current: LogList, ledger: int, marks: Marks, epoch: int) -> bool:
    """Whether nothing references a ledger of the log, and nothing ever will.

    A leader lists only under its own epoch, and only an id above all that are listed. `epoch` is
    that of the sweeper, under which it learned what is in use: while it looked another one may
    have begun, and made ledgers that are in use, too.
    """
    if ledger in current.ledgers:
        return False
    if marks.epoch < epoch:
        return True
    listed = current.ledgers
    return marks.purpose == PURPOSE_LOG and bool(listed) and ledger < listed[-1]


async def sweep(client: LedgerClient, lists: LogLists, keep: set[int], epoch: int) -> list[int]:
    """Delete garbage that `keep` does not name; see `ReplicatedLog.sweep`."""
    ids = await client.owners.ledgers_of(_owner(lists.name))
    if await restoration_under_way(client.store):
        return []
    candidates = [ledger for ledger in ids if ledger not in keep]
    own: list[tuple[int, Marks]] = []
    for start in range(0, len(candidates), _READ_AT_ONCE):
        chunk = candidates[start : start + _READ_AT_ONCE]
        found = await asyncio.gather(*(read_marks(client, ledger) for ledger in chunk))
        own += [
            (ledger, marks)
            for ledger, marks in zip(chunk, found, strict=True)
            if marks is not None and marks.owner == _owner(lists.name)
        ]
    current = (await lists.read_fresh()).list
    deleted = []
    for ledger, marks in own:
        if garbage(current, ledger, marks, epoch):
            try:
                await client.delete_ledger(ledger)
            except NoSuchLedger:
                continue
            deleted.append(ledger)
    return deleted


async def read_marks(client: LedgerClient, ledger: int) -> Marks | None:
    """The marks of a ledger; None if it is gone, has none or cannot be read."""
    try:
        custom = (await client.ledger_metadata(ledger)).custom
    except (NoSuchLedger, CannotRead, FormatTooNew):
        return None
    epoch = custom.get(EPOCH, b"")
    if not epoch.isdigit():
        return None
    purpose = custom.get(PURPOSE, b"").decode(errors="replace")
    return Marks(custom.get(OWNER, b""), purpose, int(epoch))


def _owner(name: str) -> bytes:
    return LOG_OWNER + name.encode()
