"""`/api/v1`: roll-outs, for administrators.

Invariants:
- Who changes a roll-out stands in its audit log by the name of the login.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from broker.http.desk import Desk
from broker.http.routes import Ask, Route, Told
from broker.http.shapes import Changed
from broker.rollouts.document import Document
from broker.rollouts.record import ENDED, Rollout
from broker.rollouts.rollouts import AsyncRollouts
from broker.spec import MaybeName, Name

_NAME: Final = {"name": Name}
Why = Annotated[str, Meta(max_length=1_000)]


class RolloutsQuery(msgspec.Struct):
    """Go on above this name."""

    above: MaybeName = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class NodeFacts(msgspec.Struct):
    """A node of a roll-out. `task_id` is that of its step under way, 0: none."""

    node: str
    phase: str
    tries: int
    task_id: int
    due_ms: int
    since_ms: int
    why: str


class RolloutFacts(msgspec.Struct):
    """A roll-out. `counted`: nodes that are not proven healthy."""

    name: str
    state: str
    action: str
    cluster_name: str
    owner: str
    limit: int
    nodes: int
    done: int
    counted: int
    breaker: str
    why: str
    started_ms: int
    progress_ms: int


class WholeRollout(RolloutFacts):
    """A roll-out with its document and its nodes."""

    document: Document
    each: list[NodeFacts]


class Rollouts(msgspec.Struct):
    """Roll-outs by name."""

    rollouts: list[RolloutFacts]


class NoteFacts(msgspec.Struct):
    """A line of the audit log: who did what, to which node."""

    at_ms: int
    by: str
    node: str
    text: str


class Notes(msgspec.Struct):
    """The audit log of a roll-out, in order."""

    notes: list[NoteFacts]


class Started(msgspec.Struct):
    """The name of a roll-out."""

    name: str


class Pausing(msgspec.Struct, forbid_unknown_fields=True):
    """Why; for people."""

    why: Why = ""


class Clearing(msgspec.Struct, forbid_unknown_fields=True):
    """A node that is healthy: it is `done`, or else it waits for its turn again."""

    node: Name
    done: bool = False


def _facts(rollout: Rollout) -> dict[str, Any]:
    document = rollout.document
    return {
        "name": rollout.name,
        "state": rollout.state.name.lower(),
        "action": document.action,
        "cluster_name": document.cluster_name,
        "owner": document.owner,
        "limit": document.limit,
        "nodes": len(rollout.nodes),
        "done": sum(node.phase.name == "DONE" for node in rollout.nodes.values()),
        "counted": 0 if rollout.state in ENDED else rollout.counted,
        "breaker": rollout.breaker.gate.name.lower(),
        "why": rollout.why,
        "started_ms": rollout.started_ms,
        "progress_ms": rollout.progress_ms,
    }


async def start_rollout(desk: Desk, ask: Ask) -> Told:
    """Start one."""
    name = await AsyncRollouts(desk.calls).start(ask.body, ask.who.name)
    return Told(Started(name), 201)


async def list_rollouts(desk: Desk, ask: Ask) -> Told:
    """Those that go on, and those that have ended."""
    found = await AsyncRollouts(desk.calls).list(ask.query.above, ask.query.limit)
    return Told(Rollouts([RolloutFacts(**_facts(each)) for each in found]))


async def show_rollout(desk: Desk, ask: Ask) -> Told:
    """One of them."""
    rollout = await AsyncRollouts(desk.calls).get(ask.path["name"])
    each = [
        NodeFacts(
            name,
            node.phase.name.lower(),
            node.tries,
            node.task,
            node.due_ms,
            node.since_ms,
            node.why,
        )
        for name, node in rollout.nodes.items()
    ]
    return Told(WholeRollout(**_facts(rollout), document=rollout.document, each=each))


async def list_notes(desk: Desk, ask: Ask) -> Told:
    """Who did what."""
    rollouts = AsyncRollouts(desk.calls)
    await rollouts.get(ask.path["name"])
    found = await rollouts.notes(ask.path["name"])
    return Told(Notes([NoteFacts(*msgspec.structs.astuple(each)) for each in found]))


async def pause_rollout(desk: Desk, ask: Ask) -> Told:
    """Stop one for a while."""
    why = ask.body.why if ask.body is not None else ""
    await AsyncRollouts(desk.calls).pause(ask.path["name"], why, ask.who.name)
    return Told(Changed(True))


async def resume_rollout(desk: Desk, ask: Ask) -> Told:
    """Let one go on."""
    await AsyncRollouts(desk.calls).resume(ask.path["name"], ask.who.name)
    return Told(Changed(True))


async def cancel_rollout(desk: Desk, ask: Ask) -> Told:
    """Stop one for good."""
    await AsyncRollouts(desk.calls).cancel(ask.path["name"], ask.who.name)
    return Told(Changed(True))


async def clear_node(desk: Desk, ask: Ask) -> Told:
    """Take an operator's word for a node."""
    said, rollouts = ask.body, AsyncRollouts(desk.calls)
    await rollouts.clear(ask.path["name"], said.node, done=said.done, by=ask.who.name)
    return Told(Changed(True))


async def remove_rollout(desk: Desk, ask: Ask) -> Told:
    """Forget one that has ended."""
    await AsyncRollouts(desk.calls).remove(ask.path["name"])
    return Told(Changed(True))


def _changing(
    what: str, says: str, handler: Callable[[Desk, Ask], Awaitable[Told]], body: Any = None
) -> Route:
    name = "clear_node" if what == "clear" else f"{what}_rollout"
    return Route(
        "POST",
        f"/rollouts/{{name}}/{what}",
        name,
        says,
        handler,
        body=body,
        body_optional=body is Pausing,
        reply=Changed,
        other_statuses=(400, 404, 409),
        admin=True,
        path_kinds=_NAME,
    )


ROUTES: Final = (
    Route(
        "POST",
        "/rollouts",
        "start_rollout",
        "Start a roll-out from its document.",
        start_rollout,
        body=Document,
        reply=Started,
        status=201,
        other_statuses=(400, 409, 413),
        admin=True,
    ),
    Route(
        "GET",
        "/rollouts",
        "list_rollouts",
        "List roll-outs by name.",
        list_rollouts,
        RolloutsQuery,
        reply=Rollouts,
        other_statuses=(400,),
        admin=True,
    ),
    Route(
        "GET",
        "/rollouts/{name}",
        "show_rollout",
        "A roll-out with its nodes.",
        show_rollout,
        reply=WholeRollout,
        other_statuses=(400, 404),
        admin=True,
        path_kinds=_NAME,
    ),
    Route(
        "DELETE",
        "/rollouts/{name}",
        "remove_rollout",
        "Forget a roll-out that has ended.",
        remove_rollout,
        reply=Changed,
        other_statuses=(400, 404, 409),
        admin=True,
        path_kinds=_NAME,
    ),
    Route(
        "GET",
        "/rollouts/{name}/notes",
        "list_notes",
        "The audit log of a roll-out.",
        list_notes,
        reply=Notes,
        other_statuses=(400, 404),
        admin=True,
        path_kinds=_NAME,
    ),
    _changing("pause", "Begin nothing more of a roll-out for now.", pause_rollout, Pausing),
    _changing("resume", "Let a roll-out go on, without nodes that are gone.", resume_rollout),
    _changing("cancel", "Begin nothing more of a roll-out for good.", cancel_rollout),
    _changing("clear", "Say that a node is healthy.", clear_node, Clearing),
)
