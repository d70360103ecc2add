"""`/api/v1`: transactions of submits, and schedules."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from broker.access import check_transaction
from broker.errors import UnknownSchedule
from broker.http.desk import Desk
from broker.http.routes import Ask, Route, Told
from broker.http.shapes import Changed, ScheduleFacts, ScheduleShape, schedule_facts
from broker.spec import DAY_MS, Name

_NAME: Final = {"name": Name}


class Begun(msgspec.Struct):
    """The number of a transaction."""

    transaction: int


class Begin(msgspec.Struct, forbid_unknown_fields=True):
    """Without `ttl_ms`: the broker's."""

    ttl_ms: Annotated[int, Meta(ge=1, le=DAY_MS)] | None = None


class Ended(msgspec.Struct):
    """How many tasks a transaction had."""

    transaction: int
    tasks: int


class TransactionFacts(msgspec.Struct):
    """An open transaction."""

    transaction: int
    created_ms: int
    expires_ms: int
    tasks: int
    owner: str


class Transactions(msgspec.Struct):
    """Open transactions."""

    transactions: list[TransactionFacts]


class Schedules(msgspec.Struct):
    """Schedules by name."""

    schedules: list[ScheduleFacts]


async def begin(desk: Desk, ask: Ask) -> Told:
    """Open one."""
    ask.who.check_acts()
    ttl_ms = ask.body.ttl_ms if ask.body is not None else None
    return Told(Begun(await desk.calls.begin(ask.who.name, ttl_ms)), 201)


async def commit(desk: Desk, ask: Ask) -> Told:
    """Let its tasks go."""
    number = ask.path["id"]
    await check_transaction(desk.calls, ask.who, number)
    return Told(Ended(number, await desk.calls.commit(number)))


async def rollback(desk: Desk, ask: Ask) -> Told:
    """Forget its tasks."""
    number = ask.path["id"]
    await check_transaction(desk.calls, ask.who, number)
    return Told(Ended(number, await desk.calls.rollback(number)))


async def list_transactions(desk: Desk, ask: Ask) -> Told:
    """Open ones."""
    found = await desk.calls.transactions()
    return Told(
        Transactions(
            [
                TransactionFacts(each.id, each.created_ms, each.expires_ms, each.tasks, each.owner)
                for each in found
            ]
        )
    )


async def list_schedules(desk: Desk, ask: Ask) -> Told:
    """All of them."""
    return Told(Schedules([schedule_facts(each) for each in await desk.calls.schedules()]))


async def show_schedule(desk: Desk, ask: Ask) -> Told:
    """One of them."""
    name = ask.path["name"]
    for each in await desk.calls.schedules():
        if each.name == name:
            return Told(schedule_facts(each))
    raise UnknownSchedule(f"there is no schedule {name}")


async def put_schedule(desk: Desk, ask: Ask) -> Told:
    """Add or replace one."""
    await desk.calls.set_schedule(ask.body.schedule(ask.path["name"], ask.who.name), ask.who.name)
    return await show_schedule(desk, ask)


async def delete_schedule(desk: Desk, ask: Ask) -> Told:
    """Remove one."""
    await desk.calls.delete_schedule(ask.path["name"])
    return Told(Changed(True))


def _pause_schedule(paused: bool) -> Any:
    async def change(desk: Desk, ask: Ask) -> Told:
        await desk.calls.pause_schedule(ask.path["name"], paused=paused, by=ask.who.name)
        return await show_schedule(desk, ask)

    return change


ROUTES: Final = (
    Route(
        "POST",
        "/transactions",
        "begin",
        "Open a transaction of submits.",
        begin,
        body=Begin,
        body_optional=True,
        reply=Begun,
        status=201,
        other_statuses=(400,),
    ),
    Route(
        "GET",
        "/transactions",
        "list_transactions",
        "List open transactions.",
        list_transactions,
        reply=Transactions,
        admin=True,
    ),
    Route(
        "POST",
        "/transactions/{id}/commit",
        "commit",
        "Let all tasks of a transaction go.",
        commit,
        reply=Ended,
        other_statuses=(400, 404),
    ),
    Route(
        "POST",
        "/transactions/{id}/rollback",
        "rollback",
        "Forget a transaction and its tasks.",
        rollback,
        reply=Ended,
        other_statuses=(400, 404),
    ),
    Route(
        "GET",
        "/schedules",
        "list_schedules",
        "List schedules.",
        list_schedules,
        reply=Schedules,
        admin=True,
    ),
    Route(
        "GET",
        "/schedules/{name}",
        "get_schedule",
        "One schedule.",
        show_schedule,
        reply=ScheduleFacts,
        other_statuses=(400, 404),
        admin=True,
        path_kinds=_NAME,
    ),
    Route(
        "PUT",
        "/schedules/{name}",
        "put_schedule",
        "Add or replace a schedule.",
        put_schedule,
        body=ScheduleShape,
        reply=ScheduleFacts,
        other_statuses=(400, 413),
        admin=True,
        path_kinds=_NAME,
    ),
    Route(
        "DELETE",
        "/schedules/{name}",
        "delete_schedule",
        "Remove a schedule.",
        delete_schedule,
        reply=Changed,
        other_statuses=(400, 404),
        admin=True,
        path_kinds=_NAME,
    ),
    Route(
        "POST",
        "/schedules/{name}/pause",
        "pause_schedule",
        "Let a schedule fire no more.",
        _pause_schedule(True),
        reply=ScheduleFacts,
        other_statuses=(400, 404),
        admin=True,
        path_kinds=_NAME,
    ),
    Route(
        "POST",
        "/schedules/{name}/resume",
        "resume_schedule",
        "Let a schedule fire again.",
        _pause_schedule(False),
        reply=ScheduleFacts,
        other_statuses=(400, 404),
        admin=True,
        path_kinds=_NAME,
    ),
)
