"""`/api/v1`: submitting tasks, looking at them, ending them, beginning them anew.

Invariants:
- One request is one call of the broker that changes anything, so that it is done or not.
- Who may act for one tenant alone is told of other tenants' tasks as of tasks that there are not.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from broker.access import Asking, check_specs, check_transaction, discreet, own_task, seen_task
from broker.commands import Answer, Refusal
from broker.errors import InvalidTask, NotInState, WaitTimedOut
from broker.http.desk import Desk
from broker.http.routes import Ask, Route, Told
from broker.http.shapes import (
    STATES,
    Limit,
    State,
    TaskFacts,
    TaskShape,
    WholeTask,
    facts_of,
    whole_task,
)
from broker.reading import TaskFilter
from broker.refusing import CANCEL, DELETE, RETRY, refusal_of
from broker.spec import ITEMS_MAX, Id, MaybeName
from broker.task import Status, Task

WAIT_MS_MAX: Final = 60_000


class Submitted(msgspec.Struct):
    """The id of a task that was taken."""

    id: int


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """Tasks to submit. `atomic`: all or none; `transaction`: they go when it is committed."""

    tasks: Annotated[list[TaskShape], Meta(min_length=1, max_length=ITEMS_MAX)]
    atomic: bool = False
    transaction: Id = 0


class ItemError(msgspec.Struct):
    """Why an item was refused."""

    code: str
    message: str
    task_id: int = 0


class Item(msgspec.Struct, omit_defaults=True):
    """What became of a task: its id, what was done, or why nothing was."""

    id: int = 0
    outcome: str = ""
    error: ItemError | None = None


class Items(msgspec.Struct):
    """What became of each, in the order of the request."""

    results: list[Item]


class InTransaction(msgspec.Struct):
    """`transaction`: the task goes when that is committed."""

    transaction: Id = 0


class Listing(msgspec.Struct):
    """Which tasks. `token` goes on where a page ended."""

    status: State | None = None
    tenant: MaybeName = ""
    type: MaybeName = ""
    worker_id: MaybeName = ""
    slot: MaybeName = ""
    dead: bool = False
    token: Id = 0
    limit: Limit = 100


class DeadListing(msgspec.Struct):
    """Which dead letters. `token` goes on where a page ended."""

    tenant: MaybeName = ""
    type: MaybeName = ""
    token: Id = 0
    limit: Limit = 100


class Page(msgspec.Struct):
    """Tasks in the order of their ids. A page may be empty and have a token nevertheless."""

    tasks: list[TaskFacts]
    token: int | None = None


class Waiting(msgspec.Struct):
    """How long to wait for a task's end."""

    timeout_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 30_000


class Ids(msgspec.Struct, forbid_unknown_fields=True):
    """Ids of tasks."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=ITEMS_MAX)]


async def submit(desk: Desk, ask: Ask) -> Told:
    """One task."""
    [answer] = await _submit(desk, ask.who, [ask.body], ask.query.transaction, atomic=False)
    if isinstance(answer, Refusal):
        raise answer.error
    return Told(Submitted(answer), 201)


async def submit_many(desk: Desk, ask: Ask) -> Told:
    """Many tasks."""
    batch: Batch = ask.body
    answers = await _submit(desk, ask.who, batch.tasks, batch.transaction, atomic=batch.atomic)
    return Told(Items([_item(answer) for answer in answers]))


async def _submit(
    desk: Desk, who: Asking, shapes: Sequence[TaskShape], transaction: int, *, atomic: bool
) -> list[int | Refusal]:
    await check_transaction(desk.calls, who, transaction)
    now_ms = await desk.calls.now_ms()
    specs = []
    for number, shape in enumerate(shapes):
        try:
            spec = shape.spec(now_ms, "" if shape.tenant else who.tenant, who.name)
        except InvalidTask as error:
            raise InvalidTask(f"tasks[{number}]: {error.message}") from error
        specs.append(spec)
    await check_specs(desk.calls, who, specs)
    answers = await desk.calls.submit(specs, transaction=transaction, atomic=atomic)
    return await discreet(desk.calls, who, answers)


def _item(answer: int | Refusal) -> Item:
    if isinstance(answer, Refusal):
        return Item(error=ItemError(answer.code, answer.message, answer.task_id))
    return Item(answer)


async def list_tasks(desk: Desk, ask: Ask) -> Told:
    """A page of tasks."""
    query: Listing = ask.query
    statuses = frozenset([STATES[query.status]]) if query.status else frozenset[Status]()
    wanted = TaskFilter(
        statuses,
        _tenant(ask.who, query.tenant),
        query.type,
        query.worker_id,
        query.slot,
        query.dead,
    )
    return await _page(desk, wanted, query.token, query.limit)


async def list_dead(desk: Desk, ask: Ask) -> Told:
    """A page of dead letters."""
    query: DeadListing = ask.query
    wanted = TaskFilter(tenant=_tenant(ask.who, query.tenant), type=query.type, dead=True)
    return await _page(desk, wanted, query.token, query.limit)


def _tenant(who: Asking, asked: str) -> str:
    if asked:
        who.check_seen(asked)
        return asked
    return who.view


async def _page(desk: Desk, wanted: TaskFilter, token: int, limit: int) -> Told:
    page = await desk.calls.tasks(wanted, token, limit)
    return Told(Page([facts_of(task) for task in page.tasks], page.above))


async def _whole(desk: Desk, task: Task) -> WholeTask:
    return whole_task(task, await desk.calls.payload(task), await desk.calls.result(task))


async def show(desk: Desk, ask: Ask) -> Told:
    """One task."""
    return Told(await _whole(desk, await seen_task(desk.calls, ask.who, ask.path["id"])))


async def wait(desk: Desk, ask: Ask) -> Told:
    """One task when it has ended, or as it is when the time is over."""
    task = await seen_task(desk.calls, ask.who, ask.path["id"])
    try:
        task = await desk.calls.wait(task.id, ask.query.timeout_ms)
    except WaitTimedOut:
        return Told(await _whole(desk, await desk.calls.task(task.id)), 202)
    return Told(await _whole(desk, task))


async def payload(desk: Desk, ask: Ask) -> Told:
    """A task's payload as it is."""
    task = await seen_task(desk.calls, ask.who, ask.path["id"])
    return Told(await desk.payload(task), 200, "application/octet-stream")


async def result(desk: Desk, ask: Ask) -> Told:
    """A task's result as it is."""
    task = await seen_task(desk.calls, ask.who, ask.path["id"])
    if task.status is not Status.FINISHED:
        state = task.status.name.lower()
        raise NotInState(f"task {task.id} is {state} and has no result", task_id=task.id)
    return Told(await desk.result(task), 200, "application/octet-stream")


async def _mine(desk: Desk, who: Asking, ids: Sequence[int]) -> None:
    if not who.everywhere:
        for task_id in ids:
            await own_task(desk.calls, who, task_id)


async def _act(desk: Desk, who: Asking, what: str, ids: Sequence[int]) -> list[Any]:
    await _mine(desk, who, ids)
    if what == "cancel":
        return list(await desk.calls.cancel(ids, who.name))
    if what == "retry":
        return await discreet(desk.calls, who, await desk.calls.retry(ids, who.name))
    return list(await desk.calls.delete(ids))


def _one(what: str) -> Any:
    async def act(desk: Desk, ask: Ask) -> Told:
        task_id = ask.path["id"]
        [answer] = await _act(desk, ask.who, what, [task_id])
        error = await refusal_of(desk.calls, task_id, answer, _DONE[what])
        if error is not None:
            raise error
        return Told(_acted(task_id, answer), 202 if answer is Answer.ASKED else 200)

    return act


def _many(what: str) -> Any:
    async def act(desk: Desk, ask: Ask) -> Told:
        ids = ask.body.ids
        items = []
        for task_id, answer in zip(ids, await _act(desk, ask.who, what, ids), strict=True):
            error = await refusal_of(desk.calls, task_id, answer, _DONE[what])
            if error is None:
                items.append(_acted(task_id, answer))
            else:
                items.append(
                    Item(task_id, error=ItemError(error.code, error.message, error.task_id))
                )
        return Told(Items(items))

    return act


def _acted(task_id: int, answer: Answer | Refusal) -> Item:
    assert not isinstance(answer, Refusal)
    return Item(task_id, answer.name.lower())


_DONE: Final = {"cancel": CANCEL, "retry": RETRY, "delete": DELETE}
_PAGE: Final = (400, 403)
_TASK: Final = (400, 404)
_ACT: Final = (400, 404, 409)

ROUTES: Final = (
    Route(
        "POST",
        "/tasks",
        "submit_task",
        "Submit a task.",
        submit,
        InTransaction,
        TaskShape,
        reply=Submitted,
        status=201,
        other_statuses=(400, 403, 404, 409, 413, 422),
    ),
    Route(
        "POST",
        "/tasks/batch",
        "submit_tasks",
        "Submit many tasks at once.",
        submit_many,
        body=Batch,
        reply=Items,
        other_statuses=(400, 403, 413),
    ),
    Route(
        "GET",
        "/tasks",
        "list_tasks",
        "List tasks.",
        list_tasks,
        Listing,
        reply=Page,
        other_statuses=_PAGE,
    ),
    Route(
        "GET",
        "/dead-letters",
        "list_dead_letters",
        "List tasks that failed for good and wait for somebody to look at them.",
        list_dead,
        DeadListing,
        reply=Page,
        other_statuses=_PAGE,
    ),
    Route(
        "POST",
        "/tasks/cancel",
        "cancel_tasks",
        "End tasks.",
        _many("cancel"),
        body=Ids,
        reply=Items,
        other_statuses=(400, 404),
    ),
    Route(
        "POST",
        "/tasks/retry",
        "retry_tasks",
        "Begin ended tasks anew.",
        _many("retry"),
        body=Ids,
        reply=Items,
        other_statuses=(400, 404),
    ),
    Route(
        "POST",
        "/tasks/delete",
        "delete_tasks",
        "Remove ended tasks and their results now.",
        _many("delete"),
        body=Ids,
        reply=Items,
        other_statuses=(400, 404),
    ),
    Route(
        "GET",
        "/tasks/{id}",
        "get_task",
        "One task with payload, result and history.",
        show,
        reply=WholeTask,
        other_statuses=_TASK,
    ),
    Route(
        "DELETE",
        "/tasks/{id}",
        "delete_task",
        "Remove an ended task and its result now.",
        _one("delete"),
        reply=Item,
        other_statuses=_ACT,
    ),
    Route(
        "GET",
        "/tasks/{id}/wait",
        "wait_for_task",
        "One task when it has ended; with 202 as it is when the time is over.",
        wait,
        Waiting,
        reply=WholeTask,
        other_statuses=(202, 400, 404),
    ),
    Route(
        "GET",
        "/tasks/{id}/payload",
        "get_payload",
        "A task's payload, its bytes.",
        payload,
        reply=bytes,
        other_statuses=_TASK,
    ),
    Route(
        "GET",
        "/tasks/{id}/result",
        "get_result",
        "A task's result, its bytes.",
        result,
        reply=bytes,
        other_statuses=_ACT,
    ),
    Route(
        "POST",
        "/tasks/{id}/cancel",
        "cancel_task",
        "End a task: at once, or with 202 its worker is asked to.",
        _one("cancel"),
        reply=Item,
        other_statuses=(202, *_ACT),
    ),
    Route(
        "POST",
        "/tasks/{id}/retry",
        "retry_task",
        "Begin an ended task anew.",
        _one("retry"),
        reply=Item,
        other_statuses=_ACT,
    ),
)
