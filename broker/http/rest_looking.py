"""`/api/v1`: what the broker is about: counts, slots, resources, workers, queues."""

from typing import Final

import msgspec

from broker.http.desk import Desk
from broker.http.routes import Ask, Route, Told
from broker.http.shapes import Limit
from broker.spec import MaybeName
from broker.task import SessionState
from broker.tenant_calls import resources_seen


class SlotFacts(msgspec.Struct):
    """A slot and the task that holds it."""

    slot: str
    task_id: int


class SlotsQuery(msgspec.Struct):
    """Slots whose names come after `above`."""

    above: MaybeName = ""
    limit: Limit = 1_000


class Slots(msgspec.Struct):
    """Slots that are held, by name."""

    slots: list[SlotFacts]


class ResourceFacts(msgspec.Struct):
    """A resource or a type: how many tasks hold a unit, how many may (null: any number).

    Of a tenant with a quota: of the kind waiting_tasks how many wait, of waiting_bytes their bytes.
    """

    kind: str
    name: str
    running: int
    limit: int | None
    paused: bool


class Resources(msgspec.Struct):
    """Resources and types."""

    resources: list[ResourceFacts]


class WorkerFacts(msgspec.Struct):
    """A worker. `linked`: it can be told something now. `types`: what it runs; none: anything."""

    worker_id: str
    process_id: str
    location: str
    state: str
    since_ms: int
    linked: bool
    running: int
    places: int
    types: tuple[str, ...]


class Workers(msgspec.Struct):
    """Workers, those too that have left a while ago."""

    workers: list[WorkerFacts]


class QueueFacts(msgspec.Struct):
    """Tasks that wait: how many, the first one, and since when that waits."""

    tenant: str
    type: str
    priority: int
    group: int
    resources: tuple[str, ...]
    length: int
    first_id: int
    since_ms: int


class Queues(msgspec.Struct):
    """Queues."""

    queues: list[QueueFacts]


class StatusFacts(msgspec.Struct):
    """What this broker does, and how many tasks are in each state."""

    mode: str
    leader: str
    now_ms: int
    ledger: int
    entry: int
    tasks: dict[str, int]


async def status(desk: Desk, ask: Ask) -> Told:
    """Counts and position."""
    counts = await desk.calls.counts()
    standing = desk.standing()
    tasks = {state.name.lower(): count for state, count in counts.items()}
    return Told(
        StatusFacts(
            standing.mode.lower(),
            standing.leader,
            await desk.calls.now_ms(),
            standing.ledger,
            standing.entry,
            tasks,
        )
    )


async def slots(desk: Desk, ask: Ask) -> Told:
    """Held ones."""
    found = await desk.calls.slots(ask.query.above, ask.query.limit)
    return Told(Slots([SlotFacts(slot, task_id) for slot, task_id in found]))


async def resources(desk: Desk, ask: Ask) -> Told:
    """Limits and their use."""
    seen = await resources_seen(desk.calls, ask.who)
    found = sorted(seen, key=lambda each: (each.kind, each.name))
    return Told(Resources([ResourceFacts(*msgspec.structs.astuple(each)) for each in found]))


async def workers(desk: Desk, ask: Ask) -> Told:
    """All that are known."""
    told = []
    for each in await desk.calls.workers():
        session = each.session
        told.append(
            WorkerFacts(
                session.worker_id,
                session.process_id,
                session.location,
                SessionState(session.state).name.lower(),
                session.since_ms,
                each.linked,
                each.running,
                each.places,
                each.types,
            )
        )
    return Told(Workers(told))


async def queues(desk: Desk, ask: Ask) -> Told:
    """What waits."""
    found = await desk.calls.queues()
    return Told(
        Queues(
            [
                QueueFacts(
                    each.key.tenant,
                    each.key.type,
                    each.key.priority,
                    each.target.group,
                    tuple(each.target.resources),
                    each.length,
                    each.first_id,
                    each.since_ms,
                )
                for each in found
            ]
        )
    )


ROUTES: Final = (
    Route("GET", "/status", "status", "What the broker does.", status, reply=StatusFacts),
    Route(
        "GET",
        "/slots",
        "list_slots",
        "List held slots.",
        slots,
        SlotsQuery,
        reply=Slots,
        admin=True,
    ),
    Route(
        "GET",
        "/resources",
        "list_resources",
        "Resources, limits and their use.",
        resources,
        reply=Resources,
    ),
    Route("GET", "/workers", "list_workers", "List workers.", workers, reply=Workers),
    Route("GET", "/queues", "list_queues", "List queues.", queues, reply=Queues, admin=True),
)
