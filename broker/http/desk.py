"""What HTTP needs of a broker.

Invariants:
- Handlers see these ports and nothing behind them.
- A code pool is known when its last part is durable; until then nobody finds it.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from broker import reading
from broker.calls import Calls
from broker.commands import (
    POOL_PART_BYTES_MAX,
    POOL_PARTS_MAX,
    PoolDelete,
    PoolPut,
    Refusal,
    decode_one,
)
from broker.errors import TooLarge
from broker.payloads import whole
from broker.ports import PayloadStore
from broker.service import Broker
from broker.task import CodePool, Task

POOL_BYTES_MAX: Final = POOL_PART_BYTES_MAX * POOL_PARTS_MAX
LEADER: Final = "LEADER"
FOLLOWER: Final = "FOLLOWER"
RECOVERY: Final = "RECOVERY"
CLOSED: Final = "CLOSED"


class Standing(msgspec.Struct, frozen=True):
    """Where this replica is: what it does, who leads, and how far it has read the log."""

    mode: str
    leader: str = ""
    ledger: int = 0
    entry: int = 0


class Pools(Protocol):
    """Code pools. Raises `BrokerError`."""

    async def create(self, name: str, content: bytes, ttl_ms: int, by: str) -> None:
        """Store code that workers load; `ttl_ms` 0: for ever."""
        ...

    async def get(self, name: str) -> CodePool | None:
        """What is known of a code pool."""
        ...

    async def delete(self, name: str) -> None:
        """Remove a code pool that no task needs."""
        ...


@dataclass(frozen=True, slots=True)
class Desk:
    """A broker, as HTTP sees it."""

    calls: Calls
    pools: Pools
    standing: Callable[[], Standing]
    payloads: PayloadStore | None = None
    """Where payloads and results are that are too big for the log."""

    async def payload(self, task: Task) -> bytes:
        """A task's payload, wherever it is. Raises `PayloadMissing`, `BrokerUnavailable`."""
        if task.payload_object:
            return await whole(self.payloads, b"", task.payload_object)
        return await self.calls.payload(task)

    async def result(self, task: Task) -> bytes:
        """A task's result, wherever it is. Raises `PayloadMissing`, `BrokerUnavailable`."""
        if task.result_object:
            return await whole(self.payloads, b"", task.result_object)
        return await self.calls.result(task)


def desk_of(broker: Broker, payloads: PayloadStore | None = None) -> Desk:
    """The desk of a replica in this process."""

    def standing() -> Standing:
        replica = broker.replica
        position = replica.position
        if broker.serving:
            mode = LEADER
        elif replica.failure is not None:
            mode = CLOSED
        else:
            mode = RECOVERY if replica.term else FOLLOWER
        return Standing(mode, broker.leader, position.ledger, position.entry)

    return Desk(broker, BrokerPools(broker), standing, payloads)


def desk_elsewhere(calls: Calls, payloads: PayloadStore | None = None) -> Desk:
    """The desk of a broker in another process."""
    # Whoever is asked finds the leader, and passes on what that one says.
    return Desk(calls, CalledPools(calls), lambda: Standing(LEADER), payloads)


def desk_for(calls: Calls, payloads: PayloadStore | None = None) -> Desk:
    """The desk of a broker in this process or in another one."""
    if isinstance(calls, Broker):
        return desk_of(calls, payloads)
    return desk_elsewhere(calls, payloads)


class CalledPools:
    """Code pools of a broker in another process."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def create(self, name: str, content: bytes, ttl_ms: int, by: str) -> None:
        """See `Pools`."""
        await self._calls.put_code(name, content, ttl_ms or None, by)

    async def get(self, name: str) -> CodePool | None:
        """See `Pools`."""
        return next((each for each in await self._calls.code_pools() if each.name == name), None)

    async def delete(self, name: str) -> None:
        """See `Pools`."""
        await self._calls.delete_code(name)


class BrokerPools:
    """Code pools of a replica that leads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def create(self, name: str, content: bytes, ttl_ms: int, by: str) -> None:
        """See `Pools`."""
        if len(content) > POOL_BYTES_MAX:
            raise TooLarge(f"a code pool has at most {POOL_BYTES_MAX:,} bytes")
        size = POOL_PART_BYTES_MAX
        parts = [content[at : at + size] for at in range(0, len(content), size)] or [b""]
        digest = hashlib.sha256(content).digest()
        now_ms = await self._broker.now_ms()
        expires_ms = now_ms + ttl_ms if ttl_ms else 0
        for number, part in enumerate(parts):
            put = PoolPut(name, number, len(parts), part, digest, expires_ms, by, now_ms)
            _accepted(await self._broker.ask(put))

    async def get(self, name: str) -> CodePool | None:
        """See `Pools`."""
        return self._broker.read(lambda rows: reading.get_pool(rows, name))

    async def delete(self, name: str) -> None:
        """See `Pools`."""
        _accepted(await self._broker.ask(PoolDelete(name, await self._broker.now_ms())))


def _accepted(answer: bytes) -> None:
    told = decode_one(answer)
    if isinstance(told, Refusal):
        raise told.error
