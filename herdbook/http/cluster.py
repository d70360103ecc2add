"""`/api/v1`: the store at a glance, and its bookies.

Invariants:
- What cannot be looked up is a warning, never a number: an operator must not read 0 for unknown.
- A bookie that is known but away is shown.
"""

import asyncio
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.http.routes import Told
from broker.http.shapes import Changed
from engine.errors import EngineError, InvalidRequest
from engine.metadata.bookies import Bookies, Registration
from engine.metadata.repairs import RepairQueue
from engine.transport.address import TCP
from herd.errors import Error
from herdbook.http.errors import HttpError
from herdbook.http.house import House
from herdbook.http.naming import buckets_of, tablespaces_of
from herdbook.http.routes import ADMIN, KNOWN, Ask, Route

if TYPE_CHECKING:
    from engine.repair.outlook import Workshop
    from herd.nodes.facts import NodeFact

_ANSWER_TIMEOUT_S: Final = 2.0
_FULL_PERCENT: Final = 90
_ASKED_AT_ONCE: Final = 64


class BookieFacts(msgspec.Struct):
    """A bookie. `state` is writable, read-only or away; sizes are null while it does not answer.

    Bookies with the same `disk`, if it is known, share its room.
    """

    bookie_id: str
    state: str
    leaving: bool
    boot: int
    address: str
    grpc: str
    host: str
    rack: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    problem: str = ""
    disk: str = ""
    zone: str = ""


class BookieList(msgspec.Struct):
    """Bookies by id."""

    bookies: list[BookieFacts]


class NodeFacts(msgspec.Struct):
    """A process of the store: a bookie, a node of tablespaces or a broker. `host` is what people
    call it, where that is known; `name` is its id."""

    name: str
    role: str
    address: str
    up: bool
    leads: bool = False
    host: str = ""


class BookieCounts(msgspec.Struct):
    """How many bookies there are: known, registered now, and of these without room.

    One that was decommissioned and is gone counts nowhere.
    """

    total: int
    up: int
    read_only: int


class DiskFacts(msgspec.Struct):
    """Bytes on the disks of the bookies that answer; null where one does not say which it has."""

    total_bytes: int | None
    used_bytes: int | None


class ReplicaCounts(msgspec.Struct):
    """How many replicas a tablespace should have, and how many of them follow or lead now.

    None does while it is suspended, because nobody has used it for a while.
    """

    wanted: int
    ready: int
    suspended: bool


class ClusterFacts(msgspec.Struct):
    """The store at a glance. Null means not known; `warnings` say why, and what is wrong.

    `replicas` has the tablespaces that nodes run.
    """

    name: str
    version: str
    url: str
    cluster_id: str
    nodes: list[NodeFacts]
    bookies: BookieCounts
    under_replicated: int | None
    disk: DiskFacts
    tablespaces: list[str]
    replicas: dict[str, ReplicaCounts]
    buckets: list[str]
    warnings: list[str]


async def bookies_now(house: House) -> list[BookieFacts]:
    """All bookies that are known, asked how full they are. Raises `MetadataUnavailable`."""
    bookies = Bookies(house.ledgers.store)
    registered = await bookies.available()
    leaving = set(await bookies.decommissioning())
    names = sorted({*registered, *await bookies.known()})
    facts = [_facts(name, registered.get(name), name in leaving) for name in names]
    await asyncio.gather(*(_ask(house, each) for each in facts if each.state != "away"))
    return facts


def _facts(name: str, found: Registration | None, leaving: bool) -> BookieFacts:
    state = "away" if found is None else "writable" if found.writable else "read-only"
    found = found or Registration(name, 0)
    address = found.address.removeprefix(TCP)
    problem = "not registered" if state == "away" and not leaving else ""
    return BookieFacts(
        name,
        state,
        leaving,
        found.boot,
        address,
        found.grpc,
        found.host,
        found.rack,
        None,
        None,
        problem,
        found.disk,
        found.zone,
    )


async def _ask(house: House, facts: BookieFacts) -> None:
    """Note what a bookie says of its disk, or why it says nothing."""
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            bookie = await house.ledgers.transport.connect(facts.bookie_id)
            info = await bookie.info()
    except TimeoutError:
        facts.problem = f"no answer in {_ANSWER_TIMEOUT_S:.0f} s"
        return
    except EngineError as error:
        facts.problem = str(error)
        return
    facts.total_bytes, facts.free_bytes = info.total_bytes, info.free_bytes
    if info.bookie_id != facts.bookie_id:
        facts.problem = f"bookie {info.bookie_id} answered in its place"
    elif not info.writable:
        facts.problem = (
            f"its disk is full ({info.free_bytes:,} bytes are free): it accepts no new data"
        )


async def list_bookies(house: House, ask: Ask) -> Told:
    """All of them."""
    return Told(BookieList(await bookies_now(house)))


async def show_cluster(house: House, ask: Ask) -> Told:
    """All of it, as far as it can be looked up."""
    warnings: list[str] = []
    facts = await bookies_now(house)
    up = [each for each in facts if each.state != "away"]
    nodes = [
        NodeFacts(each.bookie_id, "bookie", each.address, each.state != "away", host=each.host)
        for each in facts
    ]
    herd_nodes = await _herd_nodes(house, warnings)
    nodes += map(_node_facts, herd_nodes.items())
    nodes += _broker_node(house)
    warnings += [f"bookie {each.bookie_id}: {each.problem}" for each in facts if each.problem]
    warnings += full_disks(up)
    queued = await _under_replicated(house, warnings)
    names = await _looked(tablespaces_of(house, ask.who), warnings)
    told = ClusterFacts(
        name=house.name,
        version=version("herdbook"),
        url=house.url,
        cluster_id=house.ledgers.store.cluster_id,
        nodes=nodes,
        bookies=counts_of(facts),
        under_replicated=queued,
        disk=disks_of(up),
        tablespaces=names,
        replicas=await _replicas(house, names, herd_nodes, warnings),
        buckets=[each.name for each in await _looked(buckets_of(house, ask.who), warnings)],
        warnings=warnings,
    )
    return Told(told if ask.who.admin else _discreet(told))


def counts_of(facts: list[BookieFacts]) -> BookieCounts:
    """Bookies counted: who was told to go, and went, is missed by nobody."""
    up = [each for each in facts if each.state != "away"]
    missed = [each for each in facts if each.state == "away" and not each.leaving]
    read_only = sum(each.state == "read-only" for each in up)
    return BookieCounts(len(up) + len(missed), len(up), read_only)


def full_disks(facts: list[BookieFacts]) -> list[str]:
    """A warning for each bookie whose own disk is nearly full, whatever the others have."""
    warnings = []
    for each in facts:
        if each.total_bytes and each.free_bytes is not None:
            full = (each.total_bytes - each.free_bytes) * 100 // each.total_bytes
            if full >= _FULL_PERCENT:
                warnings.append(f"bookie {each.bookie_id}: its disk is {full} % full")
    return warnings


def disks_of(facts: list[BookieFacts]) -> DiskFacts:
    """The disks that bookies told of, each once; no sum where one does not name its own."""
    disks = {}
    for each in facts:
        if each.total_bytes is not None and each.free_bytes is not None:
            if not each.disk:
                return DiskFacts(None, None)
            disks[each.disk] = each.total_bytes, each.total_bytes - each.free_bytes
    totals = [total for total, _ in disks.values()]
    return DiskFacts(sum(totals), sum(used for _, used in disks.values()))


def _discreet(told: ClusterFacts) -> ClusterFacts:
    """The same without addresses, names of machines and paths, which are for administrators."""
    nodes = [msgspec.structs.replace(each, address="", host="") for each in told.nodes]
    return msgspec.structs.replace(told, url="", nodes=nodes)


async def _looked(looking: Any, warnings: list[str]) -> list[Any]:
    """What a look finds; one that fails is a warning."""
    from blobit.errors import BlobError

    try:
        found: list[Any] = await looking
        return found
    except (Error, BlobError, EngineError) as error:
        warnings.append(str(error))
        return []


async def _under_replicated(house: House, warnings: list[str]) -> int | None:
    queue = RepairQueue(house.ledgers.store)
    try:
        queued = len(await queue.ids())
        disabled = await queue.disabled()
    except EngineError as error:
        warnings.append(f"what waits for repair is not known: {error}")
        return None
    if queued:
        warnings.append(f"{queued:,} ledgers wait for a replica")
    if disabled is not None:
        warnings.append(f"repair is switched off: {disabled or 'by hand'}")
    return queued


async def _herd_nodes(house: House, warnings: list[str]) -> "dict[str, NodeFact]":
    """The nodes that run a cluster's tablespaces, by id; a folder has none."""
    from herd.nodes.facts import NODES, decode_node

    store, told = house.ledgers.store, {}
    try:
        for name in await store.children(NODES):
            found = await store.get(f"{NODES}/{name}")
            if found is not None:
                told[name] = decode_node(found.value)
    except EngineError as error:
        warnings.append(f"the nodes of tablespaces are not known: {error}")
    return told


def _node_facts(named: "tuple[str, NodeFact]") -> NodeFacts:
    name, fact = named
    leads = any(each.role == "leader" for each in fact.replicas.values())
    return NodeFacts(name, "herd", fact.address.removeprefix(TCP), True, leads, fact.host)


async def _replicas(
    house: House, names: list[str], nodes: "dict[str, NodeFact]", warnings: list[str]
) -> dict[str, ReplicaCounts]:
    """The replicas of tablespaces that nodes run. If some are missing, that is a warning."""
    from herd.nodes.facts import SPACES, decode_space, missing_replicas, ready_replicas

    store, values = house.ledgers.store, []
    told: dict[str, ReplicaCounts] = {}
    try:
        for start in range(0, len(names), _ASKED_AT_ONCE):
            some = names[start : start + _ASKED_AT_ONCE]
            values += await asyncio.gather(*(store.get(f"{SPACES}/{name}") for name in some))
        for name, value in zip(names, values, strict=True):
            fact = None if value is None else decode_space(value.value)
            if fact is None or not fact.hosted:
                continue
            ready = ready_replicas(name, fact, nodes)
            told[name] = counts = ReplicaCounts(fact.expected, ready, fact.suspended)
            if missing_replicas(name, fact, nodes):
                warnings.append(f"tablespace {name} has {counts.ready} of {counts.wanted} replicas")
    except EngineError as error:
        warnings.append(f"the replicas of tablespaces are not known: {error}")
    return told


def _broker_node(house: House) -> list[NodeFacts]:
    standing = house.desk.standing()
    if not standing.leader:
        return []
    return [NodeFacts(standing.leader, "broker", standing.leader, True, True)]


async def _known(house: House, ask: Ask) -> str:
    name: str = ask.path["id"]
    if name not in await Bookies(house.ledgers.store).known():
        raise HttpError(404, "no_such_bookie", f"there is no bookie {name}")
    return name


def _workshop(house: House) -> "Workshop":
    from engine.repair.outlook import Workshop

    ledgers = house.ledgers
    return Workshop(
        store=ledgers.store, transport=ledgers.transport, clock=ledgers.clock, rng=ledgers.rng
    )


async def forget_bookie(house: House, ask: Ask) -> Told:
    """Take a bookie that will not come back out of all lists."""
    from engine.repair.forgetting import forget

    name = await _known(house, ask)
    try:
        await forget(_workshop(house), name)
    except InvalidRequest as error:
        raise HttpError(409, "bookie_needed", str(error)) from error
    return Told(Changed(True))


async def decommission(house: House, ask: Ask) -> Told:
    """Empty a bookie that is to go."""
    from engine.repair.decommission import Decommission

    name = await _known(house, ask)
    leaving = Decommission(_workshop(house), name)
    if ask.body is not None and ask.body.cancel:
        await leaving.cancel()
    else:
        await leaving.begin(f"asked for by {ask.who.name}")
    found = await leaving.look()
    return Told(Leaving(name, not (ask.body and ask.body.cancel), found.total, found.left))


class LeaveShape(msgspec.Struct, forbid_unknown_fields=True):
    """With `cancel` the bookie stays after all."""

    cancel: bool = False


class Leaving(msgspec.Struct):
    """A bookie that is being emptied: how many ledgers named it, and how many still do."""

    bookie_id: str
    leaving: bool
    total: int
    left: int


ROUTES: Final = (
    Route(
        "GET",
        "/cluster",
        "show_cluster",
        "The store at a glance.",
        KNOWN,
        show_cluster,
        reply=ClusterFacts,
    ),
    Route(
        "GET",
        "/bookies",
        "list_bookies",
        "List bookies.",
        ADMIN,
        list_bookies,
        reply=BookieList,
    ),
    Route(
        "POST",
        "/bookies/{id}/decommission",
        "decommission_bookie",
        "Empty a bookie that is to go, or let it stay after all.",
        ADMIN,
        decommission,
        body=LeaveShape,
        body_optional=True,
        reply=Leaving,
        other_statuses=(400, 404),
    ),
    Route(
        "DELETE",
        "/bookies/{id}",
        "forget_bookie",
        "Forget a bookie that will not come back, if it is away and no ledger names it.",
        ADMIN,
        forget_bookie,
        reply=Changed,
        other_statuses=(400, 404, 409),
    ),
)
