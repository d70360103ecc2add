"""What the clients do: write ledgers, take them over, follow and read them, delete them.

Invariants:
- Every answer goes to an oracle before anything else is done with it.
- A call may fail with an `EngineError` that fits the moment; any other exception is a defect.
- After `stop` every client ends what it is doing and begins nothing new.
"""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from engine.errors import EngineError, NotEnoughBookies, Overloaded, Unavailable
from engine.ledger.reader import LedgerReader
from engine.ledger.writer import LedgerWriter
from tests.simulation.disturbances import CallCancelled
from tests.simulation.nodes import ClientNode
from tests.simulation.oracles import HandleOracle, LedgerOracle, Oracle, Violation

_RECENT_LEDGERS = 6
_OUTSTANDING_MAX = 120
_LEFT_OPEN_MAX = 3
_OPERATIONS_ENOUGH = 2_000
_LEISURE_S = 1.0


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """What one run's clients do, drawn from its seed."""

    quorums: tuple[tuple[int, int, int], ...]
    bursts_max: int
    burst_sizes: tuple[int, ...]
    think_s: float
    deferred_share: float
    close_share: float
    delete_share: float
    write_weight: int
    recover_weight: int
    tail_weight: int
    loops: int


class Workload:
    """The work of all clients of one run."""

    def __init__(self, plan: WorkloadPlan, oracle: Oracle) -> None:
        self.operations = 0
        self.stopped = False
        self.ended: list[asyncio.Task[Any]] = []
        self._plan = plan
        self._oracle = oracle
        self._attempts = 0
        self._left_open: dict[str, int] = {}

    def start(self, node: ClientNode) -> None:
        """Let a client work, from the beginning of its life."""
        if self.stopped:
            return
        for number in range(self._plan.loops):
            rng = node.world.rng(f"{node.name} work")
            task = node.world.loop.spawn(
                node.process, self._work(node, rng), f"{node.name} work {number}"
            )
            self.ended.append(task)

    def take_over(self, node: ClientNode, rng: random.Random) -> None:
        """Let a client recover some recent ledger now, beside its other work."""
        task = node.world.loop.spawn(
            node.process, self._recover(node, rng), f"{node.name} work over"
        )
        self.ended.append(task)

    async def _work(self, node: ClientNode, rng: random.Random) -> None:
        plan = self._plan
        choices = [self._write, self._recover, self._tail]
        weights = [plan.write_weight, plan.recover_weight, plan.tail_weight]
        while not self.stopped:
            act = rng.choices(choices, weights)[0]
            await act(node, rng)
            # Work enough was done: the run only waits for its faults, and need not grow meanwhile.
            pause_s = plan.think_s if self.operations < _OPERATIONS_ENOUGH else _LEISURE_S
            await asyncio.sleep(pause_s * rng.random())

    # Writing

    async def _write(self, node: ClientNode, rng: random.Random) -> None:
        quorums = rng.choice(self._plan.quorums)
        password = rng.choice([b"", b"secret"])
        deferred_sync = rng.random() < self._plan.deferred_share
        creation = node.client.create_ledger(
            *quorums, password=password, deferred_sync=deferred_sync
        )
        try:
            writer = await node.world.disturbances.cancellable(creation, "create")
        except CallCancelled:
            return
        except Unavailable as error:
            node.world.trace.event("create failed", node.name, type(error).__name__)
            pause_s = 1.0 if isinstance(error, NotEnoughBookies) else 0.1
            await asyncio.sleep(pause_s * rng.random())
            return
        ledger = self._oracle.created(writer.ledger_id, password, deferred_sync)
        node.world.trace.event("created", node.name, writer.ledger_id, quorums)
        self.operations += 1
        await self._fill(node, rng, writer, ledger)
        await self._finish(node, rng, writer, ledger)

    async def _fill(
        self, node: ClientNode, rng: random.Random, writer: LedgerWriter, ledger: LedgerOracle
    ) -> None:
        """Append in bursts, many at once, until enough or until the writer is over."""
        handle = HandleOracle(ledger)
        self._attempts += 1
        appending = _Appending(self, node, writer, handle, self._attempts)
        for number in range(rng.randint(1, self._plan.bursts_max)):
            enough = number > 0 and self.operations >= _OPERATIONS_ENOUGH
            if self.stopped or appending.failed or enough:
                return
            appending.burst(rng.choice(self._plan.burst_sizes), many=rng.random() < 0.5)
            waits = rng.random() < 0.4 or appending.outstanding > _OUTSTANDING_MAX
            if waits and appending.newest is not None:
                await asyncio.wait([appending.newest])
            elif rng.random() < 0.5:
                await asyncio.sleep(self._plan.think_s * rng.random())
            if ledger.deferred_sync and rng.random() < 0.3 and not appending.failed:
                await appending.force()
            handle.on_lac(writer.last_add_confirmed)

    async def _finish(
        self, node: ClientNode, rng: random.Random, writer: LedgerWriter, ledger: LedgerOracle
    ) -> None:
        """Close the ledger, or leave it to others; perhaps delete it."""
        may_leave = self._left_open.get(node.process.name, 0) < _LEFT_OPEN_MAX
        if may_leave and rng.random() >= self._plan.close_share:
            self._left_open[node.process.name] = self._left_open.get(node.process.name, 0) + 1
            return
        try:
            last = await self._close(node, writer)
        except CallCancelled:
            return
        except EngineError as error:
            ledger.on_error(error)
            node.world.trace.event("close failed", ledger.ledger_id, type(error).__name__)
            return
        if not ledger.deleted and last != ledger.closed_last:
            raise Violation(f"ledger {ledger.ledger_id}: close() says {last}, not the end")
        self.operations += 1
        if rng.random() < self._plan.delete_share:
            ledger.deleted = True
            deletion = node.client.delete_ledger(ledger.ledger_id)
            try:
                await node.world.disturbances.cancellable(deletion, "delete")
            except CallCancelled:
                return
            except EngineError as error:
                ledger.on_error(error)

    async def _close(self, node: ClientNode, writer: LedgerWriter) -> int:
        """Close a ledger. Who cancelled that may call it again: it says the same end."""
        disturbances = node.world.disturbances
        try:
            return await disturbances.cancellable(writer.close(), "close")
        except CallCancelled:
            if disturbances.user_rng.random() < 0.5:
                raise
            return await writer.close()

    # Reading

    def _choose(self, rng: random.Random) -> LedgerOracle | None:
        known = [one for one in self._oracle.ledgers.values() if not one.reserved]
        ledgers = known[-_RECENT_LEDGERS:]
        return rng.choice(ledgers) if ledgers else None

    async def _recover(self, node: ClientNode, rng: random.Random) -> None:
        """Take a ledger over: fence its writer, close it, read it."""
        ledger = self._choose(rng)
        if ledger is None:
            return
        opening = node.client.open_ledger(ledger.ledger_id, password=ledger.password)
        try:
            reader = await node.world.disturbances.cancellable(opening, "recovery")
            self.operations += 1
            if not reader.closed or reader.last_add_confirmed != ledger.closed_last:
                raise Violation(f"ledger {ledger.ledger_id}: recovery gave an end of its own")
            last = reader.last_add_confirmed
            first = rng.randint(0, max(last, 0)) if rng.random() < 0.5 else 0
            reading = self.read(reader, ledger, first, last)
            await node.world.disturbances.cancellable(reading, "read")
            await reader.close()
        except CallCancelled:
            return
        except EngineError as error:
            ledger.on_error(error)
            node.world.trace.event("recovery failed", ledger.ledger_id, type(error).__name__)

    async def read(self, reader: LedgerReader, ledger: LedgerOracle, first: int, last: int) -> None:
        """Read and check a range that may be read."""
        expected = first
        async for batch in reader.read_batches(first, last):
            for entry in batch:
                ledger.on_entry(entry, expected)
                expected += 1
            self.operations += len(batch)
        if expected != last + 1:
            raise Violation(f"ledger {ledger.ledger_id}: a read to {last} ended at {expected - 1}")

    async def _tail(self, node: ClientNode, rng: random.Random) -> None:
        """Follow a ledger for a while, without touching its writer."""
        ledger = self._choose(rng)
        if ledger is None:
            return
        reader = None
        try:
            async with asyncio.timeout(rng.choice([0.2, 1.0, 5.0])):
                reader = await node.client.open_ledger(
                    ledger.ledger_id, password=ledger.password, recover=False
                )
                self.operations += 1
                await self._follow(reader, ledger, rng)
        except TimeoutError:
            pass
        except EngineError as error:
            ledger.on_error(error)
            node.world.trace.event("tail failed", ledger.ledger_id, type(error).__name__)
        if reader is not None:
            await reader.close()

    async def _follow(self, reader: LedgerReader, ledger: LedgerOracle, rng: random.Random) -> None:
        handle = HandleOracle(ledger)
        handle.on_lac(reader.last_add_confirmed)
        first = expected = rng.randint(0, max(0, reader.last_add_confirmed))
        if rng.random() < 0.2:
            async for entry in reader.read_unconfirmed(first):
                ledger.on_entry(entry, expected)
                expected += 1
                self.operations += 1
            return
        async for entry in reader.tail(first):
            ledger.on_entry(entry, expected)
            handle.on_lac(reader.last_add_confirmed)
            if entry.entry_id > handle.lac:
                raise Violation(f"ledger {ledger.ledger_id}: read {entry.entry_id} past the LAC")
            expected += 1
            self.operations += 1
            if self.stopped:
                return
        if not reader.closed or expected != reader.last_add_confirmed + 1:
            raise Violation(f"ledger {ledger.ledger_id}: a tail ended before the end")


class _Appending:
    """The appends of one writer that are under way."""

    def __init__(
        self,
        workload: Workload,
        node: ClientNode,
        writer: LedgerWriter,
        handle: HandleOracle,
        attempt: int,
    ) -> None:
        self.failed = False
        self.outstanding = 0
        self.newest: asyncio.Future[Any] | None = None
        self._workload = workload
        self._node = node
        self._writer = writer
        self._handle = handle
        self._ledger = handle.ledger
        self._attempt = attempt

    def burst(self, count: int, *, many: bool) -> None:
        """Append some entries at once."""
        first = len(self._ledger.attempts)
        bodies = self._ledger.bodies(count, self._attempt)
        refused = count
        try:
            if many:
                self._expect(asyncio.ensure_future(self._writer.append_many(bodies)), first, count)
                refused = 0
            else:
                for entry_id, body in enumerate(bodies, first):
                    self._expect(asyncio.ensure_future(self._writer.append(body)), entry_id, 1)
                    refused -= 1
        except EngineError as error:
            self._ledger.unsend(refused)
            self._ledger.on_error(error)
            self.failed = self.failed or not isinstance(error, Overloaded)

    async def force(self) -> None:
        """Wait for durability of all that was sent."""
        sent = len(self._ledger.attempts)
        try:
            await self._node.world.disturbances.cancellable(self._writer.force(), "force")
        except CallCancelled:
            return
        except EngineError as error:
            self._ledger.on_error(error)
            self.failed = True
            return
        self._ledger.on_acknowledged(range(self._ledger.acknowledged + 1, sent))

    def _expect(self, future: asyncio.Future[Any], first: int, count: int) -> None:
        self.newest = future
        self.outstanding += count
        future.add_done_callback(lambda done: self._on_done(done, first, count))
        self._node.world.disturbances.perhaps_abandon(future)

    def _on_done(self, future: asyncio.Future[Any], first: int, count: int) -> None:
        self.outstanding -= count
        if future.cancelled():
            self._ledger.unheard.update(range(first, first + count))
            return
        error = future.exception()
        if error is not None:
            self.failed = True
            if not isinstance(error, EngineError):
                raise Violation(f"an append raised {error!r}") from error
            self._ledger.on_error(error)
            self._node.world.trace.event(
                "append failed", self._ledger.ledger_id, type(error).__name__
            )
            return
        result = future.result()
        entry_ids = result if isinstance(result, list) else [result]
        expected = list(range(first, first + count))
        if entry_ids != expected:
            raise Violation(f"appends got the ids {entry_ids}, not {expected}")
        self._workload.operations += count
        if not self._ledger.deferred_sync:
            self._ledger.on_acknowledged(entry_ids)
            self._handle.on_lac(self._writer.last_add_confirmed)
        self._node.world.trace.event("acknowledged", self._ledger.ledger_id, entry_ids[-1])
