"""What drives roll-outs: looks at them, plans, and writes down what it decided before it is done.

It stands on `Calls` alone. Every broker process runs one; those whose broker does not lead find
that nobody answers them and wait. A record is compared and set, so it would do no harm if several
drove at once.

Invariants:
- A step's task begins in the command that writes down that it does, or not at all.
- Nothing that a roll-out's safety rests on is kept here: another coordinator goes on from the rows.
- A slow discovery, or a slow hook, holds nothing up but what waits for it.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from broker.calls import Calls
from broker.errors import (
    BrokerError,
    BrokerUnavailable,
    OutcomeUnknown,
    RolloutChanged,
    SlotBusy,
    UnknownTask,
    WaitTimedOut,
)
from broker.rollout_commands import RolloutChange
from broker.rollouts.alarming import Alarms
from broker.rollouts.discovery import Discovery, discover
from broker.rollouts.facts import End, Facts, Plan, end_of
from broker.rollouts.hearing import BY
from broker.rollouts.pinging import Pings
from broker.rollouts.plan import advance
from broker.rollouts.record import ENDED, Rollout, encode_rollout, load
from broker.rollouts.steps import AGENT, cluster_resource, node_slot
from broker.settings import Limit
from broker.task import SessionState, Status, Task
from engine.ports.metrics import NO_METRICS, Metrics

TICK_S: Final = 0.5
IDLE_S: Final = 1.0
_WAITS_MAX: Final = 64
_TRUSTED: Final = 3
"""A discovery that is older than so many of its intervals is none."""
_CONNECTED: Final = SessionState.CONNECTED
_audit = logging.getLogger("broker.rollouts.audit")
_logger = logging.getLogger(__name__)


class _Discovered:
    """What a roll-out's discovery said last, and the one under way."""

    def __init__(self) -> None:
        self.nodes: tuple[str, ...] | None = None
        self.at_ms = 0
        self.asked_ms = -1
        self.why = ""
        self.asking: asyncio.Task[tuple[str, ...]] | None = None


class Coordinator:
    """Drives the roll-outs of one broker. `discoveries` are plug-ins by name, `static` is known."""

    def __init__(
        self,
        calls: Calls,
        *,
        discoveries: Mapping[str, Discovery] | None = None,
        alarms: Alarms | None = None,
        pings: Pings | None = None,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._calls = calls
        self._discoveries = dict(discoveries or {})
        self._alarms = alarms or Alarms()
        self._pings = pings or Pings()
        self._discovered: dict[str, _Discovered] = {}
        self._running: asyncio.Task[None] | None = None
        self._active = False
        self._counted: dict[str, int] = {}
        self._silent_ms = 0
        self._gauges = [
            metrics.gauge(
                "herdbook_rollouts_active",
                "Roll-outs that have not ended.",
                lambda: float(len(self._counted)),
            ),
            metrics.gauge(
                "herdbook_rollouts_unproven_nodes",
                "Nodes that count against the limits of their roll-outs.",
                lambda: float(sum(self._counted.values())),
            ),
            metrics.gauge(
                "herdbook_rollouts_ping_age_seconds",
                "How long ago the agent answered a ping that has been silent for longest.",
                lambda: self._silent_ms / 1000,
            ),
        ]

    def start(self) -> None:
        """Drive from now on, until `close`."""
        self._running = asyncio.create_task(self._run(), name="roll-outs")

    async def close(self) -> None:
        """Let go: what is under way is another coordinator's."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._forget(set())
        for end in self._gauges:
            end()
        self._gauges.clear()
        await self._alarms.close()

    async def _run(self) -> None:
        while True:
            under_way: set[int] = set()
            try:
                under_way = await self.look()
            except BrokerUnavailable:
                self._forget(set())
            except BrokerError as error:
                _logger.info("roll-outs wait: %s", error)
            except Exception:
                # One defect must not leave all roll-outs without anybody who drives them.
                _logger.exception("roll-outs could not be driven")
            await self._rest(under_way)

    async def _rest(self, under_way: set[int]) -> None:
        """Until a step ends, or it is time to look for other reasons."""
        pause_s = TICK_S if self._active else IDLE_S
        if not under_way:
            await asyncio.sleep(pause_s)
            return
        waits = [asyncio.create_task(self._wait(each)) for each in sorted(under_way)[:_WAITS_MAX]]
        try:
            await asyncio.wait(waits, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _wait(self, task_id: int) -> None:
        try:
            await self._calls.wait(task_id, int(TICK_S * 2_000))
        except WaitTimedOut:
            pass
        except BrokerError:
            await asyncio.sleep(TICK_S)

    # Looking

    async def look(self) -> set[int]:
        """Take every roll-out as far as it goes; the tasks under way. Raises `BrokerError`."""
        calls = self._calls
        held = await calls.held_clusters()
        now_ms = await calls.now_ms()
        agents = await self._agents()
        for alarm in await self._pings.look(calls, agents, now_ms):
            self._alarms.tell(alarm)
        self._silent_ms = max(self._pings.ages_ms(now_ms).values(), default=0)
        under_way: set[int] = set()
        names = {name for _, name in held}
        self._active = bool(names)
        self._forget(names)
        connected = frozenset(node for node, linked in agents.items() if linked)
        limits = await self._limits() if names else {}
        for name in sorted(names):
            with suppress(RolloutChanged, OutcomeUnknown):
                under_way |= await self._drive(name, connected, limits)
        return under_way

    async def _agents(self) -> dict[str, bool]:
        """Agents whose session goes on, and whether each is reached now."""
        return {
            each.session.worker_id.removeprefix(AGENT): each.linked
            for each in await self._calls.workers(AGENT)
            if each.session.state is _CONNECTED
        }

    async def _limits(self) -> dict[str, int]:
        found = await self._calls.settings_of("resource")
        return {name: each.limit for _, name, each in found if isinstance(each, Limit)}

    async def _drive(self, name: str, agents: frozenset[str], limits: dict[str, int]) -> set[int]:
        calls = self._calls
        row = await calls.rollout(name)
        rollout = load(row)
        if rollout.state in ENDED:
            return set()
        before = encode_rollout(rollout)
        await self._uncap(rollout, limits)
        now_ms = await calls.now_ms()
        ends, unbegun = await self._ends(rollout)
        nodes, why = self._discover(rollout, now_ms)
        limit = limits.get(cluster_resource(rollout.document.cluster_name))
        facts = Facts(ends, unbegun, agents, frozenset(), limit, nodes, why)
        plan = advance(rollout, facts, now_ms)
        try:
            await self._put(row.version, rollout, plan, before)
        except SlotBusy:
            # Rare: roll-outs over clusters that share nodes. Who holds them is looked up now.
            facts = Facts(ends, unbegun, agents, await self._busy(rollout), limit, nodes, why)
            rollout = load(row)
            rollout.capped = False
            plan = advance(rollout, facts, now_ms)
            await self._put(row.version, rollout, plan, before)
        self._counted[name] = rollout.counted
        if plan.cancels:
            await calls.cancel(plan.cancels[:1_000], BY)
        return set(rollout.tasks)

    async def _put(self, version: int, rollout: Rollout, plan: Plan, before: bytes) -> None:
        record = encode_rollout(rollout)
        if record != before:
            cluster, ended = rollout.document.cluster_name, rollout.state in ENDED
            change = RolloutChange(
                rollout.name, version, record, cluster, ended, plan.specs, plan.notes
            )
            task_ids = await self._calls.put_rollout(change, BY)
            for node in rollout.nodes.values():
                if node.task < 0:
                    node.task = task_ids[-node.task - 1]
        for note in plan.notes:
            _audit.info("%s: %s %s: %s", rollout.name, note.by, note.node or "-", note.text)
        for alarm in plan.alarms:
            self._alarms.tell(alarm)

    async def _uncap(self, rollout: Rollout, limits: dict[str, int]) -> None:
        """Remove the setting that an older version made of the roll-out's limit.

        If the limit is another one by now, an operator has set it, and it stays. The record forgets
        the setting afterwards, so this is repeated until both have happened.
        """
        if rollout.capped:
            resource = cluster_resource(rollout.document.cluster_name)
            if limits.get(resource) == rollout.document.limit:
                await self._calls.set("resource", resource, None, BY)
                del limits[resource]
            rollout.capped = False

    async def _ends(self, rollout: Rollout) -> tuple[dict[int, End], frozenset[int]]:
        ends: dict[int, End] = {}
        unbegun = set()
        for task_id in rollout.tasks:
            task: Task | None
            try:
                task = await self._calls.task(task_id)
                finished = task.status is Status.FINISHED
                result = await self._calls.result(task) if finished else b""
            except UnknownTask:
                task, result = None, b""
            end = end_of(task, result)
            if end is not None:
                ends[task_id] = end
            elif task is not None and not task.attempt:
                unbegun.add(task_id)
        return ends, frozenset(unbegun)

    async def _busy(self, rollout: Rollout) -> frozenset[str]:
        """Nodes whose slot a step of another roll-out holds."""
        found: set[str] = set()
        own, above = set(rollout.tasks), ""
        slots = {node_slot(name): name for name in rollout.nodes}
        while page := await self._calls.slots(above):
            found |= {slots[slot] for slot, task in page if slot in slots and task not in own}
            above = page[-1][0]
        return frozenset(found)

    # Discovery

    def _discover(self, rollout: Rollout, now_ms: int) -> tuple[tuple[str, ...] | None, str]:
        """The nodes, or why they are not known; asks anew when it is time to."""
        document = rollout.document
        if document.nodes:
            return tuple(document.nodes), ""
        known = self._discovered.setdefault(rollout.name, _Discovered())
        if known.asking is not None and known.asking.done():
            asking, known.asking = known.asking, None
            try:
                known.nodes, known.at_ms, known.why = asking.result(), now_ms, ""
            except BrokerError as error:
                known.why = error.message
        every_ms = document.queue.discover_ms
        if known.asking is None and (known.asked_ms < 0 or now_ms - known.asked_ms >= every_ms):
            known.asked_ms = now_ms
            known.asking = asyncio.create_task(discover(self._discoveries, document.discovery))
        if known.nodes is not None and now_ms - known.at_ms <= _TRUSTED * every_ms:
            return known.nodes, ""
        return None, known.why or ("" if known.nodes is None else "the discovery gives no answer")

    def _forget(self, names: set[str]) -> None:
        self._counted = {name: self._counted.get(name, 0) for name in names}
        for name in [each for each in self._discovered if each not in names]:
            asking = self._discovered.pop(name).asking
            if asking is not None:
                asking.cancel()
