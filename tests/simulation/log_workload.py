"""What clients of a log do: lead it, append, roll, truncate, sweep, pin, and follow it.

Invariants:
- Every answer goes to the oracle before anything else is done with it.
- A call may fail with an `EngineError` that fits the moment; any other exception is a defect.
- After `stopped` every client ends what it is doing and begins nothing new.
"""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from engine.errors import (
    CannotRead,
    EngineError,
    OutcomeUnknown,
    Overloaded,
    PositionTruncated,
    Unavailable,
)
from engine.log.log import ReplicatedLog
from engine.log.log_writer import LogWriter
from engine.log.position import START, Position, Span
from engine.log.settings import LogSettings
from tests.simulation.disturbances import CallCancelled, Disturbances
from tests.simulation.log_oracle import LogOracle, WriterOracle
from tests.simulation.nodes import ClientNode

NAME = "simulated"
_OUTSTANDING_MAX = 100


@dataclass(frozen=True, slots=True)
class LogPlan:
    """What one run's clients do, drawn from its seed."""

    settings: LogSettings
    bursts_max: int
    burst_sizes: tuple[int, ...]
    think_s: float
    rest_s: float
    roll_share: float
    truncate_share: float
    sweep_share: float
    pin_share: float
    tails: int


class LogWorkload:
    """The work of all clients of one run."""

    def __init__(self, plan: LogPlan, oracle: LogOracle) -> None:
        self.operations = 0
        self.stopped = False
        self._plan = plan
        self._oracle = oracle
        self._pins = 0

    def start(self, node: ClientNode) -> None:
        """Let a client work, from the beginning of its life."""
        if self.stopped:
            return
        self._spawn(node, self._lead_again_and_again(node, node.world.rng(f"{node.name} leads")))
        for _ in range(self._plan.tails):
            self._spawn(node, self._tail_again_and_again(node, node.world.rng(f"{node.name} tail")))

    def take_over(self, node: ClientNode, rng: random.Random) -> None:
        """Let a client take the log over now, whoever leads it."""
        self._spawn(node, self._lead(node, rng))

    def log(self, node: ClientNode) -> ReplicatedLog:
        """The log as a client sees it."""
        return ReplicatedLog(node.client, NAME, self._plan.settings)

    def _spawn(self, node: ClientNode, work: Any) -> None:
        node.world.loop.spawn(node.process, work, f"{node.name} work")

    # Leading

    async def _lead_again_and_again(self, node: ClientNode, rng: random.Random) -> None:
        while not self.stopped:
            await self._lead(node, rng)
            await asyncio.sleep(self._plan.rest_s * rng.random())

    async def _lead(self, node: ClientNode, rng: random.Random) -> None:
        log, disturbances = self.log(node), node.world.disturbances
        try:
            writer = await disturbances.cancellable(log.lead(), "lead")
        except CallCancelled:
            return
        except (Unavailable, OutcomeUnknown) as error:
            node.world.trace.event("not led", node.name, type(error).__name__)
            return
        oracle = self._oracle.leads(writer.epoch, writer.last)
        node.world.trace.event("leads", node.name, writer.epoch, tuple(writer.last))
        try:
            await self._reign(node, rng, log, _Reign(self, writer, oracle, disturbances))
        except EngineError as error:
            node.world.trace.event("reign over", node.name, type(error).__name__)
            _expected(error)
        writer.abandon(OutcomeUnknown("the reign is over"))

    async def _reign(
        self, node: ClientNode, rng: random.Random, log: ReplicatedLog, reign: "_Reign"
    ) -> None:
        plan, writer, disturbances = self._plan, reign.writer, node.world.disturbances
        for _ in range(rng.randint(1, plan.bursts_max)):
            if self.stopped or writer.failure is not None:
                break
            reign.burst(rng.choice(plan.burst_sizes))
            if reign.newest is not None and (
                rng.random() < 0.4 or reign.outstanding > _OUTSTANDING_MAX
            ):
                await asyncio.wait([reign.newest])
            else:
                await asyncio.sleep(plan.think_s * rng.random())
            if rng.random() < plan.roll_share:
                await _tried(disturbances, writer.roll())
            if rng.random() < plan.truncate_share and reign.durable != START:
                await _tried(disturbances, log.truncate(reign.durable))
            if rng.random() < plan.sweep_share:
                await _tried(disturbances, log.sweep(set(), writer.epoch))
        if rng.random() < 0.3:
            await self._close(disturbances, writer)

    async def _close(self, disturbances: Disturbances, writer: LogWriter) -> None:
        """Close a writer. Who cancelled that calls it again, or goes away."""
        try:
            await disturbances.cancellable(writer.close(), "close")
        except CallCancelled:
            if disturbances.user_rng.random() < 0.5:
                await writer.close()

    # Following

    async def _tail_again_and_again(self, node: ClientNode, rng: random.Random) -> None:
        while not self.stopped:
            await self._tail(node, rng)
            await asyncio.sleep(self._plan.think_s * rng.random())

    async def _tail(self, node: ClientNode, rng: random.Random) -> None:
        log, after, disturbances = self.log(node), START, node.world.disturbances
        pin, until_s = "", 0.0
        try:
            if rng.random() < 0.5:
                after = await log.end() if rng.random() < 0.5 else self._oracle.newest
            if rng.random() < self._plan.pin_share:
                self._pins += 1
                pin = f"pin {self._pins}"
                until_s = await self._pin(node, log, pin, after)
            async with asyncio.timeout(rng.choice([0.5, 2.0, 8.0])):
                await self.follow(log, after, self._oracle.tail(after), until_s)
        except (TimeoutError, CallCancelled):
            pass
        except (Unavailable, CannotRead, PositionTruncated) as error:
            node.world.trace.event("tail failed", node.name, type(error).__name__)
        if pin:
            self._oracle.unpinned(pin)
            await _tried(disturbances, log.unpin(pin))

    async def _pin(self, node: ClientNode, log: ReplicatedLog, pin: str, after: Position) -> float:
        """Set a pin; returns until when it shall hold."""
        # Where wall clocks are right but for what is allowed, some are over while they are used.
        short_ms = 3_000 if self._pins % 2 else 12_000
        lifetime_ms = short_ms if node.world.walls_differ else 60_000
        until_s = node.world.loop.now + lifetime_ms / 1_000
        self._oracle.pinned(pin, until_s)
        await node.world.disturbances.cancellable(log.pin(pin, after, lifetime_ms), "pin")
        return until_s

    async def follow(
        self, log: ReplicatedLog, after: Position, found: list[Position], pinned_until_s: float
    ) -> None:
        """Hand all that a tail is given to the oracle."""
        try:
            async with aclosing(log.tail(after)) as batches:
                async for batch in batches:
                    positions = batch.span.positions()
                    for position, body in zip(positions, batch.bodies, strict=True):
                        self._oracle.on_entry(position, body)
                    found += positions
        except PositionTruncated:
            self._oracle.check_truncated(found[-1] if found else after)
            if asyncio.get_running_loop().time() < pinned_until_s:
                raise AssertionError("a pinned position was truncated") from None
            raise


class _Reign:
    """One leader's appends, and what came of them."""

    def __init__(
        self,
        workload: LogWorkload,
        writer: LogWriter,
        oracle: WriterOracle,
        disturbances: Disturbances,
    ) -> None:
        self._disturbances = disturbances
        self.writer = writer
        self.newest: asyncio.Future[tuple[Span, ...]] | None = None
        self.outstanding = 0
        self.durable = START
        self._workload = workload
        self._oracle = oracle

    def burst(self, count: int) -> None:
        """Append some entries at once."""
        first = self._oracle.appended
        bodies = self._oracle.bodies(count)
        try:
            future = self.writer.append_many(bodies)
        except Overloaded:
            self._oracle.unsend(count)
            return
        except OutcomeUnknown:
            self._oracle.unsend(count)
            raise
        self.newest = future
        self.outstanding += count

        def ended(done: asyncio.Future[tuple[Span, ...]]) -> None:
            self.outstanding -= count
            if done.cancelled():
                self._oracle.on_cancelled(first, count)
                return
            error = done.exception()
            if error is not None:
                _expected(error)
                return
            self._oracle.on_acknowledged(first, count, done.result())
            self.durable = done.result()[-1].last
            self._workload.operations += count

        future.add_done_callback(ended)
        self._disturbances.perhaps_abandon(future)


async def _tried(disturbances: Disturbances, call: Coroutine[Any, Any, object]) -> None:
    """A call that may fail at any time, and be cancelled."""
    try:
        await disturbances.cancellable(call, "change of the log")
    except CallCancelled:
        return
    except EngineError as error:
        _expected(error)


def _expected(error: BaseException) -> None:
    if not isinstance(error, Unavailable | OutcomeUnknown):
        raise error
