"""Payloads and results that are too big for the log: kept in a store, named in the task.

Invariants:
- Users see the bytes that they gave, never an id, on every way that has a store.
- Bytes are stored before anything names them.
"""

from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Final, NamedTuple

from broker.errors import PayloadMissing, TooLarge
from broker.ports import PayloadStore
from broker.task import PAYLOAD_BYTES_MAX
from engine.ports.clock import Clock

STORED_BYTES_MAX: Final = 64 * 1024 * 1024


class Kept(NamedTuple):
    """What the log has of some bytes: themselves, or the id under which a store has them."""

    data: bytes
    payload_id: str = ""


async def kept(store: PayloadStore | None, data: bytes) -> Kept:
    """Put bytes into the store if they are too big for the log.

    Raises `TooLarge`, `BrokerUnavailable` if they cannot be stored.
    """
    if len(data) <= PAYLOAD_BYTES_MAX:
        return Kept(data)
    limit = PAYLOAD_BYTES_MAX if store is None else STORED_BYTES_MAX
    if store is None or len(data) > limit:
        raise TooLarge(f"{len(data)} bytes; a payload or a result has at most {limit} here")
    return Kept(b"", await store.put(data))


async def whole(store: PayloadStore | None, data: bytes, payload_id: str) -> bytes:
    """The bytes that were kept. Raises `PayloadMissing`, `BrokerUnavailable`."""
    if not payload_id:
        return data
    if store is None:
        raise PayloadMissing("the bytes lie in a store of payloads that is not known here")
    return await store.get(payload_id)


class MemoryPayloads:
    """A `PayloadStore` in memory, for tests."""

    def __init__(self, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._rng = rng
        self._kept: dict[str, tuple[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def put(self, data: bytes) -> str:
        """See `PayloadStore`."""
        payload_id = f"{self._rng.getrandbits(128):032x}"
        self._kept[payload_id] = (self._clock.wall_ms(), data)
        return payload_id

    async def get(self, payload_id: str) -> bytes:
        """See `PayloadStore`."""
        found = self._kept.get(payload_id)
        if found is None:
            raise PayloadMissing(f"the payload {payload_id} is not there any more")
        return found[1]

    async def older_than(self, age_ms: int) -> AsyncIterator[str]:
        """See `PayloadStore`."""
        before_ms = self._clock.wall_ms() - age_ms
        for payload_id, (put_ms, _) in list(self._kept.items()):
            if put_ms < before_ms:
                yield payload_id

    async def delete(self, payload_ids: Sequence[str]) -> None:
        """See `PayloadStore`."""
        for payload_id in payload_ids:
            self._kept.pop(payload_id, None)
