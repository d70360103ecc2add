"""A table's newest checkpoint and what the log changed since: its rows, without reading them all.

Invariants:
- Pages and changes together are the table at the position that was asked for.
- Whatever stands in the way (no checkpoint, a log cut off, too many changes, pages that cannot be
  read) is answered with None: the rows themselves tell it, too, only slower.
"""

import logging
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

from engine.errors import EngineError
from engine.ledger.client import LedgerClient
from engine.log import ReplicatedLog
from engine.log.log_reader import Batch
from engine.log.position import Position
from engine.ports.workers import Workers
from herd.checkpoint.reading import CheckpointReader
from herd.checkpoint.taking import Checkpointer
from herd.commands import Write
from herd.errors import Error
from herd.reading_log import CommandReader, log_of
from herd.rows import stamp
from herd.schema import Table

if TYPE_CHECKING:
    import pyarrow

Changes = dict[bytes, bytes | None]
CHANGED_SHARE_MAX: Final = 4
"""With more than a fourth of the rows changed, reading all of them is as quick."""
_ENTRIES_MAX: Final = 500_000

_logger = logging.getLogger(__name__)


class CatchingUp:
    """Knows a table's rows from its pages and the log."""

    def __init__(
        self,
        client: LedgerClient,
        tablespace: str,
        checkpointer: Checkpointer,
        reader: CheckpointReader,
        workers: Workers,
    ) -> None:
        self._checkpointer = checkpointer
        self._reader = reader
        self._workers = workers
        self._log = ReplicatedLog(client, log_of(tablespace))

    async def rows(
        self, table: Table, position: Position, bytes_max: int
    ) -> "tuple[Sequence[pyarrow.RecordBatch], Changes] | None":
        """A table's rows as its newest checkpoint has them, and what changed up to a position.

        None, too, if they have more than `bytes_max`.

        Keys of the rows stand without the table's prefix, those of the changes with it.
        """
        try:
            return await self._rows(table, position, bytes_max)
        except (EngineError, Error) as error:
            _logger.info("table %s is read from its rows: %s", table.name, error)
            return None

    async def _rows(
        self, table: Table, position: Position, bytes_max: int
    ) -> "tuple[Sequence[pyarrow.RecordBatch], Changes] | None":
        record = (await self._checkpointer.list.get()).newest
        if record is None or record.position > position:
            return None
        manifest = await self._checkpointer.manifest(record)
        if all(known.id != table.id or known.store != table.store for known in manifest.tables):
            return None
        rows = sum(pages.rows for pages in manifest.pages if pages.table_id == table.id)
        changed = await self._changed(table, record.position, position, rows // CHANGED_SHARE_MAX)
        if changed is None:
            return None
        return await self._reader.table(table, record.number, bytes_max=bytes_max), changed

    async def _changed(
        self, table: Table, after: Position, last: Position, keys_max: int
    ) -> Changes | None:
        """The rows that were written after a position and up to another, as they were then."""
        changed: Changes = {}
        commands, entries = CommandReader(), 0
        async with aclosing(self._log.read(after, last)) as batches:
            async for batch in batches:
                entries += batch.span.entries
                if entries > _ENTRIES_MAX:
                    return None
                await self._workers.run(partial(_take, commands, batch, table.prefix, changed))
                if len(changed) > keys_max:
                    return None
        return changed


def _take(commands: CommandReader, batch: Batch, prefix: bytes, changed: Changes) -> None:
    """In a thread."""
    for position, command in commands.take(batch):
        if type(command) is Write:
            stamped = stamp(position)
            for key, row in command.rows:
                if key.startswith(prefix):
                    changed[key] = None if row is None else stamped + row
