"""Checkpoints from time to time, as long as this replica leads.

Invariants:
- A failed checkpoint is tried again at its next time; it never ends the term.
- Checkpoints are taken even if an older one cannot be read.
- Nothing is taken of a tablespace in which nothing changed.
- Staged rows that were forgotten are looked for at the same times.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from engine.errors import CannotRead, EngineError, FormatTooNew, NotFound
from engine.log.position import START
from herd.checkpoint.taking import Checkpointer
from herd.staging.registry import sweep

if TYPE_CHECKING:
    from herd.tablespace import Tablespace

_logger = logging.getLogger(__name__)


async def keep_checkpoints(space: "Tablespace", checkpointer: Checkpointer) -> None:
    """Sweep once a term, take a checkpoint every `checkpoint_ms`; until cancelled."""
    swept_term = 0
    taken = START
    while True:
        await asyncio.sleep(space.settings.checkpoint_ms / 1000)
        term = space.term
        if not term:
            continue
        try:
            if term != swept_term and await _swept(space, checkpointer, term):
                swept_term = term
            await sweep(space.client, space.name)
            if space.replica.position != taken:
                taken = (await checkpointer.take(term)).position
        except (EngineError, OSError) as error:
            # A full disk, too, is one that may have room again.
            _logger.warning("no checkpoint of tablespace %s: %s", space.name, error)


async def _swept(space: "Tablespace", checkpointer: Checkpointer, term: int) -> bool:
    """Sweep; returns whether it succeeded. A lost manifest does not prevent new checkpoints."""
    try:
        await checkpointer.sweep(term)
    except (NotFound, CannotRead, FormatTooNew) as error:
        _logger.warning("old checkpoints of tablespace %s are kept for now: %s", space.name, error)
        return False
    return True
