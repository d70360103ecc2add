"""What an operator of ledgers does beside clients and repair: restores, and empties bookies.

It works only in runs that are disturbed, on a machine of its own.

Invariants checked:
- A ledger that was restored ends where its backup ends, whatever else looked at it meanwhile.
- An interrupted restore can be continued until it is complete.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from engine.errors import EngineError, KeyExists, Unavailable
from engine.ledger.keys import key_hash, key_of
from engine.ledger.settings import ClientSettings
from engine.repair.decommission import Decommission
from engine.repair.outlook import Workshop
from engine.repair.settings import RepairSettings
from herdbook.archive.manifest import KeptLedger
from herdbook.archive.writing_back import write_back
from tests.simulation.network import SimTransport
from tests.simulation.nodes import BookieNode, ClientNode
from tests.simulation.oracles import LedgerOracle, Oracle, Violation

_FIRST_ID: Final = 1_000_000
_PASSWORD: Final = b"restored"
_RETRY_S: Final = 1.0
_EMPTYING_S: Final = 6.0


class LedgerOperator:
    """One operator."""

    def __init__(
        self,
        node: ClientNode,
        rng: random.Random,
        oracle: Oracle,
        bookies: Sequence[BookieNode],
        repair: RepairSettings | None,
    ) -> None:
        self.stopped = False
        self._node = node
        self._rng = rng
        self._oracle = oracle
        self._bookies = bookies
        self._repairs = repair is not None
        self._workshop = Workshop(
            store=node.store,
            transport=SimTransport(node.world.network, node.name, node.process),
            clock=node.clock,
            rng=node.world.rng("operator's workshop"),
            settings=repair or RepairSettings(),
        )
        self._restored = 0
        self._lives: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        """Work in the operator's process."""
        loop, process = self._node.world.loop, self._node.process
        self._lives = [loop.spawn(process, self._restore_again(), "operator work restores")]
        if self._repairs:
            self._lives.append(loop.spawn(process, self._empty_again(), "operator work empties"))

    @property
    def ended(self) -> bool:
        """Whether all that was begun has come to its end."""
        return all(task.done() for task in self._lives)

    async def _restore_again(self) -> None:
        while not self.stopped:
            await asyncio.sleep(4.0 * self._rng.random())
            await self._restore()

    async def _restore(self) -> None:
        """Restore one ledger, trying again until it is done."""
        kept, ledger, bodies = self._kept()
        loop, disturbances = self._node.world.loop, self._node.world.disturbances
        while True:
            writing = loop.create_task(self._write(kept, bodies), name="operator restore")
            disturbances.perhaps_cancel(writing, rare=True)
            [done], _ = await asyncio.wait([writing])
            if done.cancelled():
                continue
            error = done.exception()
            if error is None:
                break
            if isinstance(error, KeyExists):
                raise Violation(f"the restore of ledger {kept.ledger_id} is refused: {error}")
            if not isinstance(error, Unavailable):
                raise error
            self._node.world.trace.event("not restored", kept.ledger_id, type(error).__name__)
            await asyncio.sleep(_RETRY_S)
        if ledger.closed_last != kept.last:
            raise Violation(
                f"ledger {kept.ledger_id} was restored up to {ledger.closed_last}, and its backup "
                f"ends at {kept.last}"
            )
        ledger.on_acknowledged(range(kept.last + 1))
        ledger.reserved = False
        self._node.world.trace.event("restored", kept.ledger_id, kept.last)

    def _kept(self) -> tuple[KeptLedger, LedgerOracle, list[bytes]]:
        ledger_id = _FIRST_ID + self._restored
        self._restored += 1
        ledger = self._oracle.expected(ledger_id, _PASSWORD)
        bodies = ledger.bodies(self._rng.randint(4, 30), 0)
        kept = KeptLedger(
            ledger_id=ledger_id,
            last=len(bodies) - 1,
            length=sum(map(len, bodies)),
            ensemble=3,
            write_quorum=3,
            ack_quorum=2,
            stripe_entries=16,
            key_hash=key_hash(key_of(_PASSWORD)),
            created_ms=1,
            custom={},
        )
        return kept, ledger, bodies

    async def _write(self, kept: KeptLedger, bodies: list[bytes]) -> bool:
        return await write_back(
            self._workshop, ClientSettings(), len(self._bookies), kept, self._batches(bodies)
        )

    async def _batches(self, bodies: list[bytes]) -> AsyncIterator[list[bytes]]:
        """As a slow disk, or a slow medium of backups, gives them."""
        rng = self._rng
        step = max(1, len(bodies) // rng.randint(1, 4))
        slow_s = rng.choice([0.0, 1.0, 6.0])
        for start in range(0, len(bodies), step):
            yield bodies[start : start + step]
            await asyncio.sleep(slow_s * rng.random())

    async def _empty_again(self) -> None:
        """Begin to empty a bookie, and cancel that later."""
        while not self.stopped:
            await asyncio.sleep(8.0 * self._rng.random())
            ids = [node.bookie_ids[-1] for node in self._bookies if node.bookie_ids]
            if not ids:
                # None of them has begun its first life yet.
                continue
            emptying = Decommission(self._workshop, self._rng.choice(ids))
            await self._tried(emptying.begin())
            await asyncio.sleep(_EMPTYING_S * self._rng.random())
            cancelled = False
            while not cancelled:
                cancelled = await self._tried(emptying.cancel())
                await asyncio.sleep(_RETRY_S)

    async def _tried(self, call: Any) -> bool:
        try:
            await call
        except EngineError as error:
            self._node.world.trace.event("operator", type(error).__name__)
            return False
        return True
