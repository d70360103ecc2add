"""Bringing a state to where the log is: from its own position, a snapshot, or the whole history.

Invariants:
- Only confirmed entries are applied, in their order, each once.
- A state is replaced by a snapshot only if that is newer than the state, and only whole.
- Neither a snapshot nor the entries after the state's own position: that is an error, and the state
  is left as it is.
- A state or a snapshot of a log that was removed says nothing of the next one of its name.
"""

import asyncio
import contextlib
import logging
from contextlib import aclosing
from typing import Final

from engine.errors import (
    CannotRead,
    EngineError,
    HistoryMissing,
    NoSuchLedger,
    PositionTruncated,
    ReplicaFailed,
    Unavailable,
)
from engine.log.log import ReplicatedLog
from engine.log.log_list import LogList
from engine.log.log_reader import Batch
from engine.log.position import START, Position
from engine.ports.clock import Clock
from engine.replica.applier import Applier
from engine.replica.settings import ReplicaSettings
from engine.replica.snapshots import SnapshotRecord, Snapshots
from engine.replica.waiting import Waiting
from engine.state.contract import State

_FULL_PAUSE_S: Final = 0.005
_PIN_MS: Final = 60_000
_logger = logging.getLogger(__name__)


class Following:
    """One replica's way to the end of the log."""

    def __init__(
        self,
        *,
        log: ReplicatedLog,
        applier: Applier,
        state: State,
        snapshots: Snapshots,
        waiting: Waiting,
        replica: str,
        settings: ReplicaSettings,
        clock: Clock,
    ) -> None:
        self._log = log
        self._applier = applier
        self._state = state
        self._snapshots = snapshots
        self._waiting = waiting
        self._pin = f"replica {replica}"
        self._pinned = False
        self.restoring = False
        """Whether the state is being replaced, and says nothing."""
        self.replaced = 0
        """How often it was, since the start: what was kept beside it is of another one."""
        self.written_s = clock.monotonic()
        """When a command was applied last, or else the start, by the monotonic clock."""
        self._commands = 0
        self._clock = clock
        self._settings = settings

    async def catch_up(self) -> None:
        """Go on from the state, or restore the newest snapshot, whichever is possible and quicker.

        Raises `HistoryMissing`, `MetadataUnavailable`, `CannotRead`.
        """
        tried = 0
        while True:
            listed = await self._log.list()
            position = self._state.position
            kept = listed.keeps_after(position)
            if kept and position != START:
                return
            # In this order: a snapshot is named before the log is truncated up to it.
            record = await self._snapshots.newest()
            if record is not None and not listed.knows(record.at):
                record = None
            if record is None or record.at <= position:
                if not kept:
                    raise self._missing(listed, record)
                return
            if record.at < listed.dropped_through:
                raise self._missing(listed, record)
            try:
                await self._restore(record)
                return
            except PositionTruncated:
                continue
            except NoSuchLedger as error:
                if record.ledger_id == tried:
                    raise CannotRead(
                        f"log {self._log.name}: the ledger of its newest snapshot, {tried}, is gone"
                    ) from error
                # A newer one has taken its place meanwhile.
                tried = record.ledger_id
            except CannotRead as error:
                if not kept:
                    raise
                _logger.warning("log %s: its snapshot is passed over: %s", self._log.name, error)
                await self._begin_anew()
                return

    async def replay(self, last: Position) -> None:
        """Apply what is between the state and `last`."""
        if self._applier.cursor < last:
            async with aclosing(self._log.read(self._applier.cursor, last)) as batches:
                async for batch in batches:
                    await self._apply(batch)

    async def tail(self) -> None:
        """Apply the log as it grows, for ever; what cannot be read now is tried again.

        Raises `ReplicaFailed` and its kinds, `HistoryMissing`.
        """
        pause_s = self._settings.retry_pause_ms / 1000
        while True:
            try:
                await self.catch_up()
                async with aclosing(self._log.tail(self._applier.cursor)) as batches:
                    async for batch in batches:
                        await self._apply(batch)
                        pause_s = self._settings.retry_pause_ms / 1000
            except (Unavailable, CannotRead, PositionTruncated, NoSuchLedger) as error:
                _logger.info("log %s: %s", self._log.name, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._settings.retry_pause_ms_max / 1000)

    async def until_caught_up(self) -> None:
        """Return when all that is confirmed now is applied. Raises `ReplicaFailed` and its kinds.

        The end is asked for again and again, because it may go back: a bookie that was told that
        an entry is confirmed does not know it any more after a restart. If the leader is gone, too,
        only the next leader's recovery finds the entry.
        """
        while True:
            with contextlib.suppress(Unavailable, CannotRead, TimeoutError):
                end = await self._log.end()
                async with asyncio.timeout(self._settings.retry_pause_ms_max / 1000):
                    await self._waiting.for_position(end, self._applier.cursor)
                await self._unpin()
                return
            await asyncio.sleep(self._settings.retry_pause_ms / 1000)

    def note_written(self) -> None:
        """Note the time if commands were applied. Replicas write entries for themselves, too."""
        if self._commands != self._applier.commands:
            self._commands = self._applier.commands
            self.written_s = self._clock.monotonic()

    async def _apply(self, batch: Batch) -> None:
        while self._state.unwritten_bytes > self._settings.unwritten_bytes_max:
            self._state.check()
            await asyncio.sleep(_FULL_PAUSE_S)
        try:
            self._applier.apply(batch.span, batch.bodies)
        except ReplicaFailed:
            raise
        except EngineError as error:
            raise ReplicaFailed(str(error)) from error
        self.note_written()
        # Only a leader tells it.
        self._applier.hash_due = None
        self._waiting.reached(self._applier.cursor)

    async def _restore(self, record: SnapshotRecord) -> None:
        """Replace the state by a snapshot, which is kept for so long, and the log after it too."""
        await self._log.pin(self._pin, record.at, _PIN_MS)
        renewing = asyncio.create_task(self._renew(record.at))
        try:
            async with aclosing(self._snapshots.read(record)) as pages:
                # What cannot even be begun costs the state nothing.
                rows = await anext(pages, ())
                self._applier.check_rows(rows)
                self.restoring = True
                self.replaced += 1
                await self._state.clear()
                self._applier.load()
                await self._state.restore(rows)
                async for rows in pages:
                    await self._state.restore(rows)
            await self._state.restored(record.at)
            self._applier.load()
            self.restoring = False
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        self._pinned = True
        self._waiting.reached(self._applier.cursor)

    async def _begin_anew(self) -> None:
        """Replay the log from its first entry, which is kept."""
        self.replaced += 1
        await self._state.clear()
        self._applier.load()
        self.restoring = False

    async def _renew(self, position: Position) -> None:
        """Keep the pin alive; without it the snapshot may go, and another one is tried."""
        while True:
            await asyncio.sleep(_PIN_MS / 3000)
            with contextlib.suppress(Unavailable, PositionTruncated):
                await self._log.pin(self._pin, position, _PIN_MS)

    async def _unpin(self) -> None:
        """What was restored is caught up with; a pin that stays a while longer harms nobody."""
        if self._pinned:
            self._pinned = False
            with contextlib.suppress(Unavailable):
                await self._log.unpin(self._pin)

    def _missing(self, listed: LogList, record: SnapshotRecord | None) -> HistoryMissing:
        newest = (
            "there is no snapshot" if record is None else f"the newest snapshot is of {record.at}"
        )
        position = self._state.position
        if not listed.knows(position):
            return HistoryMissing(
                f"the state stands at {tuple(position)} of a log {self._log.name} that was "
                "removed: begin with an empty one"
            )
        return HistoryMissing(
            f"log {self._log.name} keeps entries after {tuple(listed.dropped_through)}, the state "
            f"stands at {tuple(position)}, and {newest}"
        )
