"""What `GET /majordodo?view=` shows.

Invariants:
- A look reads a bounded number of rows and lets others run between its pages; a reply has a
  bounded size.
- Who may act for one tenant sees the tasks of that one alone.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Any, Final

import msgspec

from broker.access import Asking, seen_task
from broker.errors import InvalidTask, UnknownTask
from broker.http.desk import Desk
from broker.leading.crew import decode_known
from broker.reading import TaskFilter
from broker.task import SessionState, Status, Task, WorkerSession

Query = dict[str, str]
View = Callable[[Desk, Asking, Query], Awaitable[dict[str, Any]]]

PAGES_MAX: Final = 50
MAX_DEFAULT: Final = 100
MAX_MOST: Final = 10_000
REPLY_BYTES_MAX: Final = 16 * 1024 * 1024
"""A list of tasks ends with the one whose data and result pass it."""
_PAGE: Final = 1_000
_NUMBER_DIGITS_MAX: Final = 18

_SHOWN: Final = {
    Status.WAITING: "waiting",
    Status.RUNNING: "running",
    Status.FINISHED: "finished",
    Status.ERROR: "error",
    Status.DELAYED: "delayed",
    Status.BLOCKED: "delayed",
    Status.PREPARED: "prepared",
    Status.CANCELLED: "error",
    Status.LOST: "error",
}
"""The published statuses, in which ours are told."""
_SESSIONS: Final = {
    SessionState.CONNECTED: "CONNECTED",
    SessionState.LOST: "DEAD",
    SessionState.LEFT: "DEAD",
}


async def overview(desk: Desk, who: Asking, query: Query) -> dict[str, Any]:
    """Workers, as `workers`."""
    return await workers(desk, who, query)


async def workers(desk: Desk, who: Asking, query: Query) -> dict[str, Any]:
    """Workers, and whether they are connected."""
    told = []
    for each in await desk.calls.workers():
        session = each.session
        connected = session.state is SessionState.CONNECTED
        told.append(
            {
                "id": session.worker_id,
                "location": session.location,
                "processId": session.process_id,
                "lastConnectionTs": session.since_ms,
                "status": "DISCONNECTED"
                if connected and not each.linked
                else _SESSIONS[session.state],
            }
        )
    return {"workers": told}


async def status(desk: Desk, who: Asking, query: Query) -> dict[str, Any]:
    """The version; counts come with every reply."""
    return {"version": version("herdbook")}


async def resources(desk: Desk, who: Asking, query: Query) -> dict[str, Any]:
    """Resources of all workers, or of one."""
    worker_id = query.get("workerId", "")
    if worker_id:
        return {"resources": await _resources_of(desk, who, worker_id)}
    found = await desk.calls.resources()
    return {
        "resources": [
            {"id": each.name, "runningTasks": each.running, "actualLimit": each.limit or 0}
            for each in found
            if each.kind == "resource"
        ]
    }


async def _resources_of(desk: Desk, who: Asking, worker_id: str) -> list[dict[str, Any]]:
    wanted = TaskFilter(frozenset([Status.RUNNING]), worker_id=worker_id)
    used: Counter[str] = Counter()
    async for task in _found(desk, who, wanted):
        used.update(task.resources)
    limits: dict[str, int] = {}
    for each in await desk.calls.workers():
        if each.session.worker_id == worker_id:
            limits = _limits_of(each.session)
    return [
        {"id": name, "runningTasks": used[name], "actualLimit": limits.get(name, 0)}
        for name in sorted({*used, *limits})
    ]


def _limits_of(session: WorkerSession) -> dict[str, int]:
    try:
        return decode_known(session.limits).limits.resource_limits
    except msgspec.MsgspecError:
        return {}


async def tasksheap(desk: Desk, who: Asking, query: Query) -> dict[str, Any]:
    """Tasks that wait, in the order of their submits."""
    groups = {
        (each.key.tenant, each.key.type, each.key.priority): each.target.group
        for each in await desk.calls.queues()
    }
    told = []
    async for task in _found(desk, who, TaskFilter(frozenset([Status.WAITING]))):
        group = groups.get((task.tenant, task.type, task.priority), task.group)
        told.append({"taskId": task.id, "group": group, "taskType": task.type})
        if len(told) >= MAX_MOST:
            break
    return {"tasksheap": {"tasks": told}}


async def delayedqueue(desk: Desk, who: Asking, query: Query) -> dict[str, Any]:
    """Tasks that are not due yet, and in how long they will be."""
    now_ms = await desk.calls.now_ms()
    told = []
    async for task in _found(desk, who, TaskFilter(frozenset([Status.DELAYED]))):
        told.append({"taskId": task.id, "delay": max(0, task.due_ms - now_ms)})
        if len(told) >= MAX_MOST:
            break
    return {"delayedqueue": {"tasks": told}}


async def slots(desk: Desk, who: Asking, query: Query) -> dict[str, Any]:
    """Held slots, for administrators."""
    who.check_admin()
    return {"slots": {"busySlots": dict(await desk.calls.slots(limit=MAX_MOST))}}


async def transactions(desk: Desk, who: Asking, query: Query) -> dict[str, Any]:
    """Open transactions."""
    told = []
    for each in await desk.calls.transactions():
        if not who.everywhere and each.owner != who.name:
            continue
        told.append(
            {
                "transactionId": each.id,
                "creationTimestamp": each.created_ms,
                "preparedTasks": each.tasks,
                "taskTypes": await _types_in(desk, each.ids()[:MAX_DEFAULT]),
            }
        )
    return {"transactions": {"transactions": told}}


async def _types_in(desk: Desk, task_ids: list[int]) -> list[str]:
    return sorted({(await desk.calls.task(task_id)).type for task_id in task_ids})


async def task(desk: Desk, who: Asking, query: Query) -> dict[str, Any]:
    """One task; nothing of one that there is not."""
    try:
        found = await seen_task(desk.calls, who, _number(query, "taskId", 0))
    except UnknownTask:
        return {"task": {}}
    return {"task": await _told(desk, found)}


async def tasks(desk: Desk, who: Asking, query: Query) -> dict[str, Any]:
    """Tasks that fit."""
    most = min(_number(query, "max", MAX_DEFAULT), MAX_MOST)
    told: list[dict[str, Any]] = []
    size_bytes = 0
    async for each in _found(desk, who, _filter(query, "status"), query.get("userId", "")):
        if len(told) >= most or size_bytes > REPLY_BYTES_MAX:
            break
        told.append(await _told(desk, each))
        size_bytes += len(told[-1]["data"]) + len(told[-1]["result"])
    return {"tasks": told, "count": len(told), "max": most}


async def tasksoverview(desk: Desk, who: Asking, query: Query) -> dict[str, Any]:
    """How many tasks of each type fit."""
    counted: Counter[str] = Counter()
    async for each in _found(desk, who, _filter(query, "filter")):
        counted[each.type] += 1
    return {"tasks": dict(counted), "count": counted.total()}


async def code_pool(desk: Desk, who: Asking, query: Query) -> dict[str, Any]:
    """One code pool, for administrators."""
    who.check_admin()
    pool = await desk.pools.get(query.get("codePoolId", ""))
    if pool is None:
        return {"codePool": {}}
    ttl_ms = pool.expires_ms - pool.created_ms if pool.expires_ms else 0
    told = {"codePoolId": pool.name, "creationTimestamp": pool.created_ms, "ttl": ttl_ms}
    return {"codePool": told}


VIEWS: Final[dict[str, View]] = {
    "overview": overview,
    "status": status,
    "workers": workers,
    "resources": resources,
    "tasksheap": tasksheap,
    "delayedqueue": delayedqueue,
    "slots": slots,
    "transactions": transactions,
    "task": task,
    "tasks": tasks,
    "tasksoverview": tasksoverview,
    "codePool": code_pool,
}


async def _found(
    desk: Desk, who: Asking, wanted: TaskFilter, user: str = ""
) -> AsyncIterator[Task]:
    """Tasks that fit, page by page. Users' names are compared in any case of letters."""
    if not who.sees_all and len(who.seen) <= 1:
        wanted = msgspec.structs.replace(wanted, tenant=who.view)
    above = 0
    for _ in range(PAGES_MAX):
        page = await desk.calls.tasks(wanted, above, _PAGE)
        for each in page.tasks:
            named = not user or each.tenant.casefold() == user.casefold()
            if named and who.sees(each.tenant):
                yield each
        if page.above is None:
            return
        above = page.above
        await asyncio.sleep(0)


def _filter(query: Query, name: str) -> TaskFilter:
    shown = query.get(name, "all") or "all"
    statuses = frozenset(ours for ours, theirs in _SHOWN.items() if theirs == shown)
    if shown != "all" and not statuses:
        raise InvalidTask(f"{name} is all, waiting, delayed, running, error or finished")
    return TaskFilter(
        statuses,
        type=query.get("tasktype", ""),
        worker_id=query.get("workerId", ""),
        slot=query.get("slot", ""),
    )


def _number(query: Query, name: str, default: int) -> int:
    text = query.get(name, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > _NUMBER_DIGITS_MAX:
        raise InvalidTask(f"{name} is a number, not {text[:40]!r}")
    return int(text)


async def _told(desk: Desk, each: Task) -> dict[str, Any]:
    data = await desk.calls.payload(each)
    finished = each.status is Status.FINISHED
    result = (await desk.calls.result(each)).decode(errors="replace") if finished else each.error
    told: dict[str, Any] = {
        "taskId": each.id,
        "userId": each.tenant,
        "deadline": each.deadline_ms,
        "requestedStartTime": each.due_ms,
        "createdTimestamp": each.created_ms,
        "maxattempts": each.attempts_max,
        "attempts": each.attempt,
        "tasktype": each.type,
        "workerId": each.worker_id,
        "result": result,
        "slot": each.slot or None,
        "data": data.decode(errors="replace"),
        "status": _SHOWN[each.status],
        "mode": each.execution,
    }
    if each.codepool:
        told["codePoolId"] = each.codepool
    if each.resources:
        told["resources"] = ",".join(each.resources)
    return told
