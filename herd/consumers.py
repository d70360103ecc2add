"""Who follows a tablespace's changes under a name, so that what it has not dealt with yet is kept.

A consumer needs the log after its position, and the definitions that its tables had then, which
stand in a checkpoint. Both are pinned in its name and move on with it.

Invariants:
- The log's pin is never past the checkpoint's, nor that one past what was dealt with.
- A pin ends by itself: a consumer that never comes back keeps nothing for ever.
- Whoever waits for more keeps what he has pinned, however long nothing comes.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from engine.errors import EngineError, MetadataUnavailable, NotFound
from engine.ledger.client import LedgerClient
from engine.log import START, Position, ReplicatedLog
from herd.checkpoint.blobs import read_blob
from herd.checkpoint.manifest import ManifestRecord, decode_manifest
from herd.checkpoint.record import CheckpointList
from herd.reading_log import Commands, log_of
from herd.schema import Table

_RENEWALS: Final = 8
"""How many times a pin is renewed in the time for which it is asked."""
_logger = logging.getLogger(__name__)


class Consumer:
    """One who follows. Without a name it finds where to begin, and keeps nothing."""

    def __init__(self, client: LedgerClient, tablespace: str, name: str, keep_ms: int) -> None:
        self._client = client
        self._list = CheckpointList(client.store, tablespace, client.time)
        self._log = ReplicatedLog(client, log_of(tablespace))
        self._name = f"changes:{name}" if name else ""
        self._keep_ms = keep_ms
        self._renewed_s = client.clock.monotonic()
        self._pinned = 0
        """The checkpoint that is kept, by its number; 0 while none is."""

    async def begin(self, after: Position) -> tuple[Position, Sequence[Table]]:
        """From where on to read the log, and the tables that there were at that place.

        Raises `PositionTruncated` if the log is not kept from there on, `MetadataUnavailable`.
        """
        while True:
            record = await self._newest_before(after)
            if record is None:
                await self._keep_log(START)
                return START, ()
            try:
                await self._keep_checkpoint(record)
                manifest = decode_manifest(await read_blob(self._client, record.locator))
            except NotFound:
                # A checkpoint went between the look and the pin: the list is another one now.
                if record in (await self._list.get()).kept:
                    raise
                continue
            await self._keep_log(manifest.position)
            return manifest.position, manifest.tables

    @property
    def is_due(self) -> bool:
        """Whether it is time to renew what is kept."""
        return bool(self._name) and self._due_in_s() <= 0

    async def waiting(
        self, batches: AsyncGenerator[Commands, None]
    ) -> AsyncGenerator[Commands, None]:
        """What comes, and nothing whenever it is time to renew what is kept. Close it."""
        if not self._name:
            async for batch in batches:
                yield batch
            return
        coming: asyncio.Task[Commands | None] | None = None
        try:
            while True:
                if coming is None:
                    coming = asyncio.create_task(_next(batches))
                await asyncio.wait((coming,), timeout=max(0.0, self._due_in_s()))
                if not coming.done():
                    yield []
                    continue
                come, coming = coming.result(), None
                if come is None:
                    return
                yield come
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def dealt_with(self, position: Position) -> None:
        """Everything up to a position may go, as far as this consumer is concerned.

        What is kept moves on when it is renewed, not each time.
        """
        if self.is_due:
            await self.move(position)

    async def move(self, position: Position) -> None:
        """The same, at once: what only earlier positions need is kept no longer."""
        if not self._name:
            return
        due, begun_s = self.is_due, self._client.clock.monotonic()
        if due:
            # What fails is tried again when it is time again.
            self._renewed_s = begun_s
        try:
            record = await self._newest_before(position)
            if not due and self._pinned == (0 if record is None else record.number):
                return
            self._renewed_s = begun_s
            if record is not None:
                await self._keep_checkpoint(record)
            await self._keep_log(START if record is None else record.position)
        except MetadataUnavailable as error:
            # What is kept is kept for several renewals: the next one comes soon enough.
            _logger.info("%s: its pins are renewed later: %s", self._name, error)

    async def keep_on(self, reached: Callable[[], Position]) -> None:
        """Renew what is kept whenever it is time to, for ever; `reached` tells what was dealt with.

        Cancel it. Without a name it ends at once.
        """
        while self._name:
            await asyncio.sleep(max(0.0, self._due_in_s()))
            try:
                await self.dealt_with(reached())
            except EngineError as error:
                # Whoever reads what is kept no more hears of it there.
                _logger.warning("%s: its pins are renewed later: %s", self._name, error)

    def _due_in_s(self) -> float:
        passed_s = self._client.clock.monotonic() - self._renewed_s
        return self._keep_ms / _RENEWALS / 1000 - passed_s

    async def forget(self) -> None:
        """Let go of everything that is kept for it."""
        await self._list.unpin(self._name)
        await self._log.unpin(self._name)

    async def _newest_before(self, position: Position) -> ManifestRecord | None:
        kept = (await self._list.get()).kept
        return next((one for one in reversed(kept) if one.position <= position), None)

    async def _keep_checkpoint(self, record: ManifestRecord) -> None:
        if self._name:
            await self._list.pin(self._name, record.number, self._keep_ms)
            self._pinned = record.number

    async def _keep_log(self, position: Position) -> None:
        if self._name:
            await self._log.pin(self._name, position, self._keep_ms)


async def _next(batches: AsyncGenerator[Commands, None]) -> Commands | None:
    return await anext(batches, None)
