"""What `POST /majordodo` does.

Invariants:
- A call that is refused changed nothing; each task of a batch is refused by itself.
- Every field is read of its own task, never of what is around it.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any, Final

from broker.access import Asking, check_transaction, discreet
from broker.commands import ITEMS_MAX, Refusal, Spec, checked
from broker.errors import (
    BrokerError,
    InvalidTask,
    NotLeader,
    OutcomeUnknown,
    TooLarge,
    UnknownTransaction,
)
from broker.http.desk import Desk
from broker.task import Mode

Fields = dict[str, Any]
Action = Callable[[Desk, Asking, Fields], Awaitable[dict[str, Any]]]

_DIGITS_MAX: Final = 18
_MODES: Final = ("factory", "object")


async def submit_task(desk: Desk, who: Asking, asked: Fields) -> dict[str, Any]:
    """One task: `taskId` 0 with the reason in `result` and `outcome` where it is refused."""
    transaction = _number(asked, "transaction", 0)
    try:
        await check_transaction(desk.calls, who, transaction)
        answers = await desk.calls.submit([_spec(asked, who)], transaction=transaction)
        [answer] = await discreet(desk.calls, who, answers)
    except (NotLeader, OutcomeUnknown):
        raise
    except BrokerError as error:
        return _submitted(error, transaction)
    return _submitted(answer, transaction)


async def submit_tasks(desk: Desk, who: Asking, asked: Fields) -> dict[str, Any]:
    """Many tasks, each answered by itself."""
    items = asked.get("tasks")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidTask("tasks is a list of objects")
    if len(items) > ITEMS_MAX:
        raise TooLarge(f"{len(items)} tasks at once; {ITEMS_MAX} fit")
    # Which are taken together: those of one transaction, in their order.
    specs: dict[int, list[tuple[int, Spec]]] = {}
    told: dict[int, dict[str, Any]] = {}
    for number, item in enumerate(items):
        try:
            transaction = _number({**_outer(asked), **item}, "transaction", 0)
            specs.setdefault(transaction, []).append((number, _spec(item, who)))
        except BrokerError as error:
            told[number] = _submitted(error, 0)
    for transaction, chosen in specs.items():
        await _submit_into(desk, who, transaction, chosen, told)
    results = [told[number] for number in range(len(items))]
    wrong = [each["error"] for each in results if not each["ok"]]
    shown = [
        {name: value for name, value in each.items() if name not in ("ok", "error")}
        for each in results
    ]
    return {"ok": not wrong, "error": wrong[0] if wrong else None, "results": shown}


async def _submit_into(
    desk: Desk,
    who: Asking,
    transaction: int,
    chosen: list[tuple[int, Spec]],
    told: dict[int, dict[str, Any]],
) -> None:
    answers: list[int | Refusal | BrokerError]
    try:
        await check_transaction(desk.calls, who, transaction)
        specs = [spec for _, spec in chosen]
        taken = await desk.calls.submit(specs, transaction=transaction)
        answers = [*await discreet(desk.calls, who, taken)]
    except BrokerError as error:
        if isinstance(error, NotLeader) and not told:
            raise
        answers = [error] * len(chosen)
    for (number, _), answer in zip(chosen, answers, strict=True):
        told[number] = _submitted(answer, transaction)


def _outer(asked: Fields) -> Fields:
    """A transaction may be named once for all."""
    return {"transaction": asked["transaction"]} if "transaction" in asked else {}


def _submitted(answer: int | Refusal | BrokerError, transaction: int) -> dict[str, Any]:
    told: dict[str, Any] = {"ok": True, "error": None, "taskId": 0}
    reason: str | None = None
    if isinstance(answer, int):
        told["taskId"] = answer
    else:
        code = answer.code
        if code == "slot_busy":
            reason = answer.message
        else:
            told["ok"] = False
            reason = told["error"] = _words(code, answer.message, transaction)
    told["result"] = told["outcome"] = reason
    if transaction:
        told["transaction"] = transaction
    return told


def _words(code: str, message: str, transaction: int) -> str:
    unknown = code == UnknownTransaction.code
    return f"no transaction {transaction}: {message}" if unknown else message


async def begin(desk: Desk, who: Asking, asked: Fields) -> dict[str, Any]:
    """Open a transaction."""
    who.check_acts()
    return {"ok": True, "error": None, "transaction": await desk.calls.begin(who.name)}


async def commit(desk: Desk, who: Asking, asked: Fields) -> dict[str, Any]:
    """Let its tasks go."""
    return await _end(desk, who, desk.calls.commit, asked)


async def rollback(desk: Desk, who: Asking, asked: Fields) -> dict[str, Any]:
    """Forget its tasks."""
    return await _end(desk, who, desk.calls.rollback, asked)


async def _end(
    desk: Desk, who: Asking, end: Callable[[int], Awaitable[int]], asked: Fields
) -> dict[str, Any]:
    number = _number(asked, "transaction", 0)
    told: dict[str, Any] = {"ok": True, "error": None, "transaction": number}
    try:
        await check_transaction(desk.calls, who, number)
        await end(number)
    except UnknownTransaction as error:
        told["ok"] = False
        told["error"] = _words(error.code, error.message, number)
    return told


async def create_pool(desk: Desk, who: Asking, asked: Fields) -> dict[str, Any]:
    """Store code that workers load. For administrators."""
    who.check_admin()
    name, ttl_ms = _text(asked, "id"), _number(asked, "ttl", 0)
    if not name:
        raise InvalidTask("id is missing")
    try:
        content = base64.b64decode(_text(asked, "data"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidTask(f"data is no base64: {error}") from error
    await desk.pools.create(name[:200], content, ttl_ms, who.name)
    return {"ok": True, "error": None, "result": None, "outcome": None}


async def delete_pool(desk: Desk, who: Asking, asked: Fields) -> dict[str, Any]:
    """Remove code that no task needs. For administrators."""
    who.check_admin()
    await desk.pools.delete(_text(asked, "id")[:200])
    return {"ok": True, "error": None, "result": None, "outcome": None}


ACTIONS: Final[dict[str, Action]] = {
    "submitTask": submit_task,
    "submitTasks": submit_tasks,
    "beginTransaction": begin,
    "commitTransaction": commit,
    "rollbackTransaction": rollback,
    "createCodePool": create_pool,
    "deleteCodePool": delete_pool,
}


def _spec(asked: Fields, who: Asking) -> Spec:
    """A task in the broker's form. Raises `InvalidTask`, `AccessDenied`."""
    mode = _text(asked, "mode") or "factory"
    if mode not in _MODES:
        raise InvalidTask(f"mode is {' or '.join(_MODES)}, not {mode[:40]!r}")
    tenant = _text(asked, "userid") or who.tenant or "default"
    who.check_tenant(tenant)
    attempts_max = _number(asked, "maxattempts", 1)
    return checked(
        Spec(
            _text(asked, "tasktype"),
            tenant,
            _text(asked, "data").encode("utf-8", "surrogatepass"),
            due_ms=_number(asked, "requestedStartTime", 0),
            deadline_ms=_number(asked, "deadline", 0),
            attempts_max=attempts_max,
            attempts_spent=_number(asked, "attempt", 0),
            # As published: a task of one attempt runs at most once.
            mode=Mode.AT_MOST_ONCE if attempts_max == 1 else Mode.AT_LEAST_ONCE,
            slot=_text(asked, "slot"),
            codepool=_text(asked, "codePoolId"),
            execution=mode,
            submitter=who.name,
        )
    )


def _text(asked: Fields, name: str) -> str:
    value = asked.get(name)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise InvalidTask(f"{name} is a text, not {_kind(value)}")


def _number(asked: Fields, name: str, default: int) -> int:
    value = asked.get(name)
    if value is None or value == "":
        return default
    if isinstance(value, str):
        text = value.strip()
        if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
            return int(text)
        if text == "-1":
            return default
        raise InvalidTask(f"{name} is a number, not {text[:40]!r}")
    if isinstance(value, float) and value.is_integer() and abs(value) < 10**_DIGITS_MAX:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < 10**_DIGITS_MAX:
            return value
        if value == -1:
            return default
        raise InvalidTask(f"{name} is out of range")
    raise InvalidTask(f"{name} is a number, not {_kind(value)}")


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", list: "a list", dict: "an object", float: "a fraction"}
    return kinds.get(type(value), "this")
