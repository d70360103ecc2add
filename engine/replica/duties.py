"""What a leader sees to beside proposals: snapshots, truncation, sweeping, levels.

Invariants:
- The log is truncated only up to a snapshot that is named, or that another one has overtaken, and
  up to what the leader's own state has on its disk.
- Ledgers are swept only after this epoch has claimed the key that names snapshots.
- A snapshot that was replaced is deleted when no replica has pinned its position any more.
- One snapshot is written at a time. Writing one takes at most a share of the event loop.
- A duty that fails is tried again later; the term goes on.
- While nothing is applied and no replica comes or goes, nothing is read and no timer runs.
"""

import asyncio
import contextlib
import logging

from engine.errors import Deposed, EngineError, ReplicaFailed
from engine.log.log import ReplicatedLog
from engine.log.position import START, Position
from engine.metadata.takeovers import Takeovers
from engine.ports.clock import Clock
from engine.replica.applier import Applier
from engine.replica.entries import encode_level
from engine.replica.leading import Leading
from engine.replica.measures import ReplicaMeasures
from engine.replica.members import Members
from engine.replica.settings import ReplicaSettings
from engine.replica.snapshots import SnapshotRecord, Snapshots
from engine.state.contract import State

_logger = logging.getLogger(__name__)


class Duties:
    """The duties of one term."""

    def __init__(
        self,
        *,
        log: ReplicatedLog,
        leading: Leading,
        applier: Applier,
        state: State,
        snapshots: Snapshots,
        members: Members,
        level: int,
        measures: ReplicaMeasures,
        clock: Clock,
        settings: ReplicaSettings,
        takeovers: Takeovers,
    ) -> None:
        self._log = log
        self._leading = leading
        self._applier = applier
        self._state = state
        self._snapshots = snapshots
        self._members = members
        self._level = level
        self._measures = measures
        self._clock = clock
        self._settings = settings
        self._takeovers = takeovers
        self._retired: dict[int, SnapshotRecord] = {}
        self._one_at_a_time = asyncio.Lock()
        self._slice_began_s = clock.monotonic()
        self._bytes_then = 0
        self._known = 0
        self._known_since_s = 0.0
        self._newest: SnapshotRecord | None = None
        self._newest_known = False
        self._members_changed = True
        self._due = asyncio.Event()

    def applied(self) -> None:
        """Commands were applied: a snapshot may be due."""
        self._due.set()

    async def see_to_them(self) -> None:
        """Until the term ends."""
        unwatch = self._members.watch(self._note_members)
        try:
            await self._see_to_them()
        finally:
            unwatch()

    def _note_members(self) -> None:
        self._members_changed = True
        self._due.set()

    async def _see_to_them(self) -> None:
        swept = False
        told = ""
        while not self._leading.over.is_set():
            self._due.clear()
            wait_s: float | None = self._settings.duties_ms / 1000
            try:
                swept = swept or await self._sweep()
                settled = await self._raise_level()
                if await self._snapshot_due():
                    await self.snapshot()
                await self._drop_retired()
                if settled and swept and not self._retired:
                    wait_s = self._until_old_s()
            except (Deposed, ReplicaFailed) as error:
                self._leading.end(error)
                return
            except Exception as error:
                # Whatever it is, the term has other duties. Once, however often it is tried again.
                if repr(error) != told:
                    told = repr(error)
                    known = isinstance(error, EngineError)
                    _logger.warning("log %s: %s", self._log.name, error, exc_info=not known)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._due.wait()
            await asyncio.sleep(self._settings.duties_ms / 1000)

    async def snapshot(self) -> Position:
        """Write a snapshot of now, name it, and drop what the log need not keep any more."""
        async with self._one_at_a_time:
            bytes_then = self._applier.applied_bytes
            durable = await self._state.flush()
            snapshot = self._state.snapshot()
            try:
                self._slice_began_s = self._clock.monotonic()
                summary = self._applier.summary
                epoch = self._leading.writer.epoch
                record, replaced = await self._snapshots.take(
                    snapshot, epoch, summary.entries, summary.level, self._pause
                )
            finally:
                snapshot.close()
            self._bytes_then = bytes_then
            self._measures.snapshots.add()
            self._retired.update({each.ledger_id: each for each in replaced})
            self._newest, self._newest_known = record, True
            at = record.at
            await self._log.truncate(at if durable == START else min(at, durable))
            await self._drop_retired()
            return at

    async def _drop_retired(self) -> None:
        """Delete snapshots that were replaced, but for those that a replica is restoring."""
        if self._retired:
            pinned = {pin.position for pin in (await self._log.list()).pins}
            for record in list(self._retired.values()):
                if record.at not in pinned:
                    await self._snapshots.delete(record.ledger_id)
                    # Only afterwards: if this is cancelled, the next round does it.
                    self._retired.pop(record.ledger_id, None)

    async def _pause(self) -> None:
        """Leave the loop to the others for as long as keeps this one's share."""
        worked_s = self._clock.monotonic() - self._slice_began_s
        share = self._settings.snapshot_share
        await asyncio.sleep(worked_s * (1 - share) / share)
        self._slice_began_s = self._clock.monotonic()

    async def _snapshot_due(self) -> bool:
        settings = self._settings
        if not settings.snapshot_entries:
            return False
        if not self._newest_known:
            # Only the leader of this epoch names another one.
            self._newest, self._newest_known = await self._snapshots.newest(), True
        newest = self._newest
        entries = self._applier.summary.entries - (newest.log_entries if newest is not None else 0)
        if entries >= settings.snapshot_entries:
            return True
        if self._applier.applied_bytes - self._bytes_then >= settings.snapshot_log_bytes:
            return True
        age_ms = self._clock.wall_ms() - newest.taken_ms if newest is not None else 0
        return entries > 0 and age_ms >= settings.snapshot_ms

    def _until_old_s(self) -> float | None:
        """When the newest snapshot will be too old, if nothing is applied before; None: never."""
        newest = self._newest
        if newest is None or not self._settings.snapshot_entries:
            return None
        if self._applier.summary.entries <= newest.log_entries:
            return None
        age_ms = self._clock.wall_ms() - newest.taken_ms
        return max(self._settings.snapshot_ms - age_ms, 0) / 1000

    async def _sweep(self) -> bool:
        """Delete garbage of older terms; returns whether there was a turn for it."""
        with self._takeovers.spare_turn() as spare:
            if not spare:
                return False
            epoch = self._leading.writer.epoch
            kept = await self._snapshots.claim(epoch)
            await self._log.sweep(kept, epoch)
            return True

    async def _raise_level(self) -> bool:
        """Allow the newest commands that every replica has known for a while.

        Returns whether there is nothing to wait for but other replicas.
        """
        now_s = self._clock.monotonic()
        if self._members_changed:
            self._members_changed = False
            try:
                listed = await self._members.all()
            except BaseException:
                self._members_changed = True
                raise
            known = min([self._level, *(member.level for member in listed)])
            if known != self._known:
                self._known, self._known_since_s = known, now_s
        known = self._known
        settled = now_s - self._known_since_s >= self._settings.level_settle_ms / 1000
        if known > self._applier.summary.level and settled:
            await self._leading.say(encode_level(known))
        return known <= self._applier.summary.level
