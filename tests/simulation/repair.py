"""Repair in the imagined cluster: every bookie's machine runs a node of it, and it is judged.

Invariants:
- Repair runs unchanged, over its bookie's own session and a client's view of the network.
- In peace every ledger whose losses the promise covers comes to full replication: each entry of it
  lies intact on every bookie of its write set, as those bookies themselves say, and none shares a
  machine that need not. A bookie that is being emptied then has no replicas. And no bookie holds
  entries that belong to others, if what it remembers of the ledger agrees with the metadata.
- A run without repair is one more kind of world; a seed decides which.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from engine.errors import EngineError
from engine.metadata.ledgers import LedgerMetadata
from engine.repair.decommission import Decommission
from engine.repair.ledger_repair import extents
from engine.repair.node import RepairNode
from engine.repair.outlook import Workshop
from engine.repair.respreading import move_apart
from engine.repair.scrub import Scrub
from engine.repair.settings import RepairSettings
from engine.repair.surplus import agrees, elsewhere
from engine.transport.contract import ReadRequest, Status
from tests.simulation.network import SimTransport
from tests.simulation.oracles import LedgerOracle, Violation

if TYPE_CHECKING:
    from engine.bookie.service import BookieService
    from tests.simulation.nodes import BookieNode, ClientNode, SimClock

REPAIR_S_MAX: Final = 600.0
_READ_BYTES: Final = 1 << 20


def draw_repair(seed: int) -> RepairSettings | None:
    """How a run repairs, None for not at all; drawn apart, so that nothing else moves."""
    rng = random.Random(f"repair {seed}")
    if rng.random() < 0.5:
        return None
    return RepairSettings(
        lost_bookie_grace_ms=rng.choice([1_500, 4_000, 15_000]),
        open_ledger_grace_ms=rng.choice([500, 3_000, 10_000]),
        doubtful_open_grace_ms=rng.choice([3_000, 10_000]),
        look_interval_ms=rng.choice([1_000, 5_000]),
        audit_interval_ms=rng.choice([5_000, 60_000]),
        scrub_interval_ms=rng.choice([0, 0, 20_000]),
        retry_pause_ms=rng.choice([500, 2_000]),
        retry_pause_ms_max=rng.choice([5_000, 20_000]),
        read_timeout_ms=rng.choice([500, 2_000]),
        append_timeout_ms=rng.choice([500, 2_000]),
        recovery_timeout_ms=rng.choice([1_000, 5_000]),
        metadata_timeout_ms=1_000,
        step_bytes=rng.choice([500, 2_000, 100_000]),
        copy_bytes_a_second=rng.choice([0, 500_000]),
        ledgers_a_page=rng.choice([1, 64]),
        ledgers_at_once=rng.choice([1, 3]),
        quarantine_ms=rng.choice([200, 2_000]),
        surplus_interval_ms=rng.choice([500, 2_000, 8_000]),
        surplus_quiet_ms=rng.choice([0, 500, 3_000]),
    )


async def start_repair(
    node: "BookieNode", service: "BookieService", clock: "SimClock", settings: RepairSettings
) -> None:
    """Let a machine repair beside its bookie. It ends with the machine's process."""
    assert node.store is not None
    repair = RepairNode(
        store=node.store,
        transport=SimTransport(node.world.network, repairer_name(node.name), node.process),
        clock=clock,
        rng=random.Random(f"{node.process.name} repair {service.bookie_id}"),
        settings=settings,
        local_bookies=[service],
    )
    await repair.start()


def repairer_name(node: str) -> str:
    """The name under which a machine's repair stands in the network."""
    return f"{node} repair"


class ReplicationJudge:
    """Waits, in peace, for full replication; then asks the bookies themselves."""

    def __init__(
        self, judge: "ClientNode", bookies: Sequence["BookieNode"], settings: RepairSettings
    ) -> None:
        self._judge = judge
        self._bookies = bookies
        self._workshop = Workshop(
            store=judge.store,
            transport=SimTransport(judge.world.network, judge.name, judge.process),
            clock=judge.clock,
            rng=judge.world.rng("replication judge"),
            settings=settings,
        )

    async def judge(self, ledgers: Sequence[LedgerOracle]) -> None:
        """Every ledger given is closed and covered by the promise: none may lack anything.

        Where there are bookies to spare, one of them is emptied as well.
        """
        serving = [node.service for node in self._bookies if node.service is not None]
        wanted = [
            ledger.metadata
            for ledger in ledgers
            if ledger.metadata is not None and ledger.metadata.ensemble_size <= len(serving)
        ]
        ids = [metadata.ledger_id for metadata in wanted]
        await self._until_whole(ids, serving, None)
        widest = max((metadata.ensemble_size for metadata in wanted), default=len(serving))
        if widest < len(serving) and self._workshop.rng.random() < 0.5:
            leaving = self._workshop.rng.choice(serving).bookie_id
            emptying = Decommission(self._workshop, leaving)
            await emptying.begin()
            self._judge.world.trace.event("emptying", leaving)
            await self._until_whole(ids, serving, emptying)
            await emptying.cancel()

    async def _until_whole(
        self,
        wanted: Sequence[int],
        serving: Sequence["BookieService"],
        emptying: Decommission | None,
    ) -> None:
        loop = self._judge.world.loop
        deadline = loop.now + REPAIR_S_MAX
        scrubbed_s = 0.0
        gone = "" if emptying is None else emptying.bookie_id
        while True:
            if emptying is not None:
                await emptying.look()
            lacking: str | None = "still queued"
            if not await self._queued(wanted):
                lacking = await self._first_lacking(wanted, serving, gone)
                lacking = lacking or await self._first_together(wanted)
                staying = [one for one in serving if one.bookie_id != gone]
                lacking = lacking or await self._first_surplus(wanted, staying)
            if lacking is None:
                self._judge.world.trace.event("replicated", len(wanted))
                return
            if loop.now > deadline:
                raise Violation(f"not repaired in peace: {lacking}: {await self._why()}")
            if loop.now > scrubbed_s + 60.0:
                # What a dead writer's stragglers lacked, nobody knows until all is read.
                scrubbed_s = loop.now
                try:
                    await Scrub(self._workshop).run_for(wanted)
                except EngineError:
                    continue
            await asyncio.sleep(3.0)

    async def _queued(self, wanted: Sequence[int]) -> bool:
        return not set(wanted).isdisjoint(await self._workshop.queue.ids())

    async def _why(self) -> str:
        queue = self._workshop.queue
        held = [await queue.read(ledger_id) for ledger_id in await queue.ids()]
        return str([(one.ledger_id, one.item.text, one.item.blocked) for one in held if one])

    async def _first_lacking(
        self, wanted: Sequence[int], serving: Sequence["BookieService"], gone: str
    ) -> str | None:
        """The first replica that is not whole, or lies on the bookie that is to go, in words."""
        services = {one.bookie_id: one for one in serving if one.bookie_id != gone}
        for ledger_id in wanted:
            metadata = (await self._workshop.ledgers.read(ledger_id)).metadata
            for fragment_at, fragment in enumerate(metadata.fragments):
                last = _end_of(metadata, fragment_at)
                for index, name in enumerate(fragment.ensemble):
                    service = services.get(name)
                    if service is None:
                        return f"ledger {ledger_id}: bookie {name} of its ensemble is no more"
                    entry = await _first_absent(service, metadata, fragment.first, last, index)
                    if entry is not None:
                        return f"ledger {ledger_id}: entry {entry} is not on bookie {name}"
        return None

    async def _first_together(self, wanted: Sequence[int]) -> str | None:
        """The first ledger with replicas that share a machine and need not, in words."""
        workshop = self._workshop
        outlook = await workshop.outlook()
        for ledger_id in wanted:
            metadata = (await workshop.ledgers.read(ledger_id)).metadata
            quorums = workshop.context(metadata).quorums(metadata)
            for fragment, last in extents(metadata):
                move = move_apart(ledger_id, fragment, quorums, outlook, workshop.placement)
                if fragment.first <= last and move is not None:
                    return f"ledger {ledger_id}: replicas of {fragment} share a machine"
        return None

    async def _first_surplus(
        self, wanted: Sequence[int], serving: Sequence["BookieService"]
    ) -> str | None:
        """The first entries on a bookie to which they do not belong, in words."""
        for ledger_id in wanted:
            metadata = (await self._workshop.ledgers.read(ledger_id)).metadata
            if metadata.ensemble_size > metadata.write_quorum or metadata.degraded:
                continue
            for service in serving:
                if not agrees(service.facts_of(ledger_id), metadata):
                    continue
                for ids in elsewhere(metadata, service.bookie_id):
                    if held := await service.held(ledger_id, ids):
                        return f"ledger {ledger_id}: bookie {service.bookie_id} still holds {held}"
        return None


def _end_of(metadata: LedgerMetadata, fragment_at: int) -> int:
    assert metadata.last_entry is not None
    later = metadata.fragments[fragment_at + 1 :]
    return min(metadata.last_entry, later[0].first - 1) if later else metadata.last_entry


async def _first_absent(
    service: "BookieService", metadata: LedgerMetadata, first: int, last: int, index: int
) -> int | None:
    """The first entry that a bookie should hold and does not hold intact, asked in place."""
    entry = first
    while entry <= last:
        stripe_last = min(
            last, entry - entry % metadata.stripe_entries + metadata.stripe_entries - 1
        )
        if index not in metadata.write_set(entry):
            entry = stripe_last + 1
            continue
        request = ReadRequest(metadata.ledger_id, entry, stripe_last, _READ_BYTES)
        reply = await service.read(request)
        if reply.status is not Status.OK or not reply.runs:
            return entry
        for run in reply.runs:
            if run.first != entry or run.first_corrupt() is not None:
                return entry
            entry = run.last + 1
    return None
