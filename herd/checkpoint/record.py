"""The list of a tablespace's checkpoints in the metadata store: who may read which, and how long.

Invariants:
- Every change is a compare-and-set of the whole list, so a pin and a removal cannot cross.
- The newest checkpoint and every pinned one stay; the others go when there are more than `keep`.
- A pin lasts as long as requested, by the requester's clock (`engine/ledger/cluster_time.py`).
- The list never goes back: a newer epoch's, or a higher number, is never replaced by an older one.
- A leader claims the list before it sweeps or takes: one of an older epoch names nothing after
  that, for what it wrote may be swept.
- The list outlives its tablespace, empty, claimed by the epoch in which the log was removed.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from engine.errors import Deposed, InvalidRequest, KeyExists, NotFound, VersionConflict
from engine.expiry import is_over
from engine.ledger.cluster_time import ClusterTime
from engine.metadata.contract import MetadataStore
from herd.checkpoint.manifest import (
    Checkpoints,
    ManifestRecord,
    Pin,
    decode_checkpoints,
    encode_checkpoints,
)

KEEP: Final = 2
_PREFIX: Final = "/herd/tablespaces"


class CheckpointList:
    """The list of one tablespace. Every method raises `MetadataUnavailable`."""

    def __init__(self, store: MetadataStore, tablespace: str, time: ClusterTime) -> None:
        self._store = store
        self._key = f"{_PREFIX}/{tablespace}/checkpoints"
        self._time = time

    async def get(self) -> Checkpoints:
        """The list as it is now; empty before the first checkpoint."""
        found = await self._store.get(self._key)
        return Checkpoints() if found is None else decode_checkpoints(found.value)

    async def claim(self, epoch: int) -> Checkpoints:
        """Keep leaders of older epochs out. Raises `Deposed` if a newer one has done it."""

        def change(held: Checkpoints) -> Checkpoints:
            self._check_epoch(held, epoch)
            return held if held.epoch == epoch else msgspec.structs.replace(held, epoch=epoch)

        return await self._change(change)

    async def forget(self, epoch: int) -> None:
        """Name none any more, after the tablespace's log was removed in an epoch.

        Raises `Deposed` if a newer one has claimed the list.
        """

        def change(held: Checkpoints) -> Checkpoints:
            self._check_epoch(held, epoch)
            return Checkpoints(epoch=epoch)

        await self._change(change)

    async def add(self, record: ManifestRecord, keep: int = KEEP) -> Checkpoints:
        """Name a checkpoint and let go of old ones. Raises `Deposed` if a newer epoch has one."""
        now_ms = await self._time.earliest_ms()

        def change(held: Checkpoints) -> Checkpoints:
            newest = held.newest
            if newest == record:
                return held
            self._check_epoch(held, record.epoch)
            if newest is not None and (newest.epoch, newest.number) >= (
                record.epoch,
                record.number,
            ):
                raise Deposed(f"epoch {newest.epoch} has taken checkpoint {newest.number} already")
            pins = _unexpired(held.pins, now_ms)
            pinned = {pin.number for pin in pins}
            older = held.kept
            kept = [
                one
                for place, one in enumerate(older)
                if one.number in pinned or place >= len(older) - (keep - 1)
            ]
            return msgspec.structs.replace(held, kept=(*kept, record), pins=pins)

        return await self._change(change)

    async def pin(self, name: str, number: int | None, expires_in_ms: int) -> ManifestRecord:
        """Keep a checkpoint (None: the newest) for a while; again to renew.

        Raises `NotFound` if it is not kept.
        """
        if expires_in_ms <= 0:
            raise InvalidRequest(f"a pin lasts for some milliseconds, not {expires_in_ms}")
        chosen: list[ManifestRecord] = []
        now_ms, latest_ms = await self._time.earliest_ms(), await self._time.latest_ms()

        def change(held: Checkpoints) -> Checkpoints:
            chosen.clear()
            for record in reversed(held.kept):
                if number is None or record.number == number:
                    chosen.append(record)
                    break
            else:
                raise NotFound(f"checkpoint {number} is not kept" if number else "no checkpoint")
            expires_ms = latest_ms + expires_in_ms
            others = [pin for pin in _unexpired(held.pins, now_ms) if pin.name != name]
            pins = (*others, Pin(name, chosen[0].number, expires_ms))
            return msgspec.structs.replace(held, pins=pins)

        await self._change(change)
        return chosen[0]

    async def unpin(self, name: str) -> None:
        """Let go of a pin; it may be gone."""

        def change(held: Checkpoints) -> Checkpoints:
            pins = tuple(pin for pin in held.pins if pin.name != name)
            return held if pins == held.pins else msgspec.structs.replace(held, pins=pins)

        await self._change(change)

    def _check_epoch(self, held: Checkpoints, epoch: int) -> None:
        if held.epoch > epoch:
            raise Deposed(f"epoch {held.epoch} has claimed the checkpoints, this is {epoch}")

    async def _change(self, change: Callable[[Checkpoints], Checkpoints]) -> Checkpoints:
        """Change the list by compare-and-set. A lost reply shows as a list that is changed."""
        while True:
            found = await self._store.get(self._key)
            held = Checkpoints() if found is None else decode_checkpoints(found.value)
            wanted = change(held)
            if wanted == held:
                return held
            value = encode_checkpoints(wanted)
            try:
                if found is None:
                    await self._store.create(self._key, value)
                else:
                    await self._store.set(self._key, value, found.version)
                return wanted
            except (KeyExists, VersionConflict):
                continue


def _unexpired(pins: tuple[Pin, ...], now_ms: int) -> tuple[Pin, ...]:
    return tuple(pin for pin in pins if not is_over(pin.expires_ms, now_ms))
