"""Snapshots of a state in ledgers, the newest named by one key.

The key `/logs/NAME/snapshot` holds a `SnapshotRecord`. A snapshot is written whole to a ledger of
its own and named by compare-and-set; the one before is deleted then.

Invariants:
- The key's position never goes back, and its epoch neither.
- Nobody of an older epoch names a snapshot any more once a leader has claimed the key: what its
  sweeper deletes is therefore never named afterwards.
- A ledger that the key names is closed and whole.
- If naming a snapshot got no answer, it may still be named later: its ledger is deleted only after
  a later write of the key has returned, which rules that out, or by a newer epoch's sweeper.
- The key outlives its log, naming nothing, with the epoch of the removal: only with another epoch
  its position begins anew.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import msgspec

from engine.errors import (
    CannotRead,
    Deposed,
    EngineError,
    KeyExists,
    MetadataUnavailable,
    NoSuchLedger,
    VersionConflict,
)
from engine.ledger.client import LedgerClient
from engine.log.log import ReplicatedLog
from engine.log.log_list import LOGS
from engine.log.position import START, Position
from engine.metadata.majors import FIRST_MAJOR, check_major, encode_major
from engine.state.contract import Row, Snapshot
from engine.state.image import ImageHeader, read_image, write_image

FORMAT_MAJOR: Final = 1
PURPOSE: Final = "snapshot"
_ATTEMPTS_MAX: Final = 64


class SnapshotRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the key holds. `ledger_id` 0: there is no snapshot yet."""

    epoch: int
    token: int
    ledger_id: int = 0
    position: tuple[int, int] = (START.ledger, START.entry)
    log_entries: int = 0
    rows: int = 0
    size_bytes: int = 0
    taken_ms: int = 0
    format_major: int = FIRST_MAJOR

    @property
    def at(self) -> Position:
        """The position that the snapshot is of."""
        return Position(*self.position)


_decode = msgspec.msgpack.Decoder(SnapshotRecord).decode


def decode_snapshot(value: bytes, key: str = "a snapshot's key") -> SnapshotRecord:
    """Decode a stored value. Raises `CannotRead`, `FormatTooNew`."""
    try:
        check_major(value, key, FORMAT_MAJOR)
        return _decode(value)
    except msgspec.MsgspecError as error:
        raise CannotRead(f"{key} is damaged: {error}") from error


class Snapshots:
    """The snapshots of one log."""

    def __init__(self, client: LedgerClient, log: ReplicatedLog) -> None:
        self._client = client
        self._store = client.store
        self._log = log
        self._log_name = log.name
        self._key = f"{LOGS}/{log.name}/snapshot"
        self._perhaps_named: dict[int, SnapshotRecord] = {}

    async def newest(self) -> SnapshotRecord | None:
        """The newest snapshot, or None. Raises `MetadataUnavailable`, `FormatTooNew`."""
        record, _ = await self._read()
        return record if record is not None and record.ledger_id else None

    async def claim(self, epoch: int) -> set[int]:
        """Keep older epochs from naming snapshots; the ledgers that are named, to be kept."""

        def change(current: SnapshotRecord | None, token: int) -> SnapshotRecord | None:
            if current is None:
                return SnapshotRecord(epoch, token)
            self._check_epoch(current, epoch)
            if current.epoch == epoch:
                return None
            return msgspec.structs.replace(current, epoch=epoch, token=token)

        record = await self._update(change)
        return {record.ledger_id} if record.ledger_id else set()

    async def forget(self, epoch: int) -> None:
        """Name none any more, after the log was removed in an epoch; nobody older names one again.

        Raises `Deposed` when a newer epoch has claimed the key, `MetadataUnavailable`.
        """

        def change(current: SnapshotRecord | None, token: int) -> SnapshotRecord:
            if current is not None:
                self._check_epoch(current, epoch)
            return SnapshotRecord(epoch, token)

        await self._update(change)

    async def take(
        self,
        snapshot: Snapshot,
        epoch: int,
        log_entries: int,
        level: int,
        pause: Callable[[], Awaitable[None]],
    ) -> tuple[SnapshotRecord, list[SnapshotRecord]]:
        """Write a snapshot to a ledger and name it.

        Returns what the key holds now, and what it held or may have held before and never will
        again: delete the ledgers of those once nobody reads them. `pause` is awaited between
        slices of work. Raises `Deposed` when a newer epoch has claimed the key, what writing a
        ledger raises, and `MetadataUnavailable` (it may be named, now or later).
        """
        writer = await self._client.create_ledger(
            metadata=self._log.custom_metadata(PURPOSE, epoch)
        )
        try:
            header = ImageHeader(self._log_name, snapshot.position, epoch, level)
            footer = await write_image(snapshot, header, writer.append, pause=pause)
            await writer.close()
        except (EngineError, asyncio.CancelledError):
            # Nothing has tried to name it yet.
            await self.delete(writer.ledger_id)
            raise
        wanted = SnapshotRecord(
            epoch=epoch,
            token=0,
            ledger_id=writer.ledger_id,
            position=(snapshot.position.ledger, snapshot.position.entry),
            log_entries=log_entries,
            rows=footer.rows,
            size_bytes=footer.size_bytes,
            taken_ms=self._client.clock.wall_ms(),
        )
        return await self._name(wanted)

    async def read(self, record: SnapshotRecord) -> AsyncGenerator[Sequence[Row], None]:
        """The rows of a snapshot, in pages.

        Raises `NoSuchLedger` when a newer one has replaced it, `CannotRead`.
        """
        reader = await self._client.open_ledger(record.ledger_id, recover=False)
        try:
            if not reader.closed:
                raise CannotRead(f"ledger {record.ledger_id} of a snapshot was never closed")

            async def bodies() -> AsyncIterator[bytes]:
                async for batch in reader.read_batches(0, reader.last_add_confirmed):
                    for entry in batch:
                        yield entry.body

            async for rows in read_image(bodies()):
                yield rows
        finally:
            await reader.close()

    async def _name(self, wanted: SnapshotRecord) -> tuple[SnapshotRecord, list[SnapshotRecord]]:
        perhaps_named = self._perhaps_named
        refused = False

        def change(current: SnapshotRecord | None, token: int) -> SnapshotRecord | None:
            nonlocal refused
            if current is not None and current.ledger_id:
                perhaps_named[current.ledger_id] = current
            if current is not None and (current.epoch > wanted.epoch or current.at >= wanted.at):
                # The write that would have named this one expects an older value, so it must fail.
                refused = current.ledger_id != wanted.ledger_id
                self._check_epoch(current, wanted.epoch)
                return None
            perhaps_named[wanted.ledger_id] = wanted
            return msgspec.structs.replace(wanted, token=token)

        try:
            record = await self._update(change)
        finally:
            if refused:
                perhaps_named.pop(wanted.ledger_id, None)
                await self.delete(wanted.ledger_id)
        if refused:
            return record, []
        replaced = [one for one in perhaps_named.values() if one.ledger_id != record.ledger_id]
        perhaps_named.clear()
        return record, replaced

    def _check_epoch(self, current: SnapshotRecord, epoch: int) -> None:
        if current.epoch > epoch:
            raise Deposed(f"log {self._log_name}: epoch {current.epoch} names snapshots now")

    async def _update(
        self, change: Callable[[SnapshotRecord | None, int], SnapshotRecord | None]
    ) -> SnapshotRecord:
        """Retry compare-and-set until it succeeds or is not needed; returns what the key holds."""
        token = self._client.rng.getrandbits(63)
        for _ in range(_ATTEMPTS_MAX):
            current, version = await self._read()
            if current is not None and current.token == token:
                return current
            wanted = change(current, token)
            if wanted is None:
                assert current is not None
                return current
            try:
                if current is None:
                    await self._store.create(self._key, encode_major(wanted, FORMAT_MAJOR))
                else:
                    await self._store.set(self._key, encode_major(wanted, FORMAT_MAJOR), version)
                return wanted
            except (KeyExists, VersionConflict, MetadataUnavailable):
                continue
        raise MetadataUnavailable(f"log {self._log_name}: its snapshot could not be named")

    async def _read(self) -> tuple[SnapshotRecord | None, int]:
        found = await self._store.get(self._key)
        if found is None:
            return None, -1
        return decode_snapshot(found.value, self._key), found.version

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger that nobody needs; where that fails, a sweeper finds it."""
        with contextlib.suppress(MetadataUnavailable, NoSuchLedger):
            await self._client.delete_ledger(ledger_id)
