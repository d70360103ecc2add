"""`/majordodo`: the published interface, its views, actions, parameters and replies.

Replies have status 200 with `ok` false where something is refused, as its clients expect; 401 where
a login is missing, 413 for a body that is too large.

Invariants:
- Every reply to a view that there is, and to every action, has `ok`; all but that of the view
  `status` have the broker's `status`, too.
- Numbers are taken as numbers and as texts, and so are texts.
"""

from typing import Any, Final

import msgspec
from starlette.responses import Response

from broker.access import Asking
from broker.errors import BrokerError, InvalidTask, NotLeader, TooLarge
from broker.http.desk import LEADER, RECOVERY, Desk
from broker.http.front import json_reply
from broker.http.original_actions import ACTIONS
from broker.http.original_views import VIEWS
from broker.task import Status
from engine.uncollected import uncollected

_WAITING: Final = (Status.WAITING, Status.DELAYED, Status.BLOCKED, Status.PREPARED)
_FAILED: Final = (Status.ERROR, Status.CANCELLED, Status.LOST)


async def answer_view(desk: Desk, who: Asking, query: dict[str, str]) -> Response:
    """The reply to a GET. Raises `BrokerError`."""
    name = query.get("view", "overview")
    view = VIEWS.get(name)
    if view is None:
        return json_reply({"ok": "true"})
    told = {"ok": True, **await view(desk, who, query)}
    if name == "status":
        told |= await _short_status(desk)
    else:
        told["status"] = _status(desk, await desk.calls.counts())
    return json_reply(told)


async def answer_action(desk: Desk, who: Asking, body: bytes) -> Response:
    """The reply to a POST. Raises `BrokerError`."""
    try:
        with uncollected(len(body)):
            asked = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidTask(f"the body is no JSON: {error}") from error
    if not isinstance(asked, dict):
        raise InvalidTask("the body is no JSON object")
    action = ACTIONS.get(str(asked.get("action")))
    if action is None:
        raise InvalidTask(f"there is no such action; there are {', '.join(ACTIONS)}")
    told = await action(desk, who, asked)
    told["status"] = await _status_if_known(desk)
    return json_reply(told)


def refusing(desk: Desk, error: BrokerError) -> Response:
    """The reply that says why not, in the published form."""
    text = error.message
    if isinstance(error, NotLeader):
        mode = desk.standing().mode
        word = "recovery_in_progress" if mode == RECOVERY else "broker_not_leader"
        text = f"{word}: {text}" + (f"; {error.leader} leads" if error.leader else "")
    told: dict[str, Any] = {"ok": False, "error": text, "taskId": 0, "result": text}
    told["outcome"] = text
    told["status"] = _status(desk, {})
    return json_reply(told, 413 if isinstance(error, TooLarge) else 200)


async def _status_if_known(desk: Desk) -> dict[str, Any]:
    """What was done is told, though its leader may have gone since: nobody shall do it again."""
    try:
        counts = await desk.calls.counts()
    except BrokerError:
        counts = {}
    return _status(desk, counts)


def _status(desk: Desk, counts: dict[Status, int]) -> dict[str, Any]:
    standing = desk.standing()
    return {
        "clusterMode": standing.mode,
        "currentLedgerId": standing.ledger,
        "currentSequenceNumber": standing.entry,
        "tasks": sum(counts.values()),
        "pendingTasks": sum(counts.get(status, 0) for status in _WAITING),
        "runningTasks": counts.get(Status.RUNNING, 0),
        "waitingTasks": counts.get(Status.WAITING, 0),
        "delayedTasks": counts.get(Status.DELAYED, 0) + counts.get(Status.BLOCKED, 0),
        "errorTasks": sum(counts.get(status, 0) for status in _FAILED),
        "finishedTasks": counts.get(Status.FINISHED, 0),
    }


async def _short_status(desk: Desk) -> dict[str, Any]:
    """What the view `status` has: other spellings, positions as texts."""
    standing = desk.standing()
    counts = await desk.calls.counts() if standing.mode == LEADER else {}
    told = _status(desk, counts)
    return {
        "status": told["clusterMode"],
        "currentLedgerId": str(told["currentLedgerId"]),
        "currentSequenceNumber": str(told["currentSequenceNumber"]),
        "tasks": told["tasks"],
        "pendingtasks": told["pendingTasks"],
        "runningtasks": told["runningTasks"],
        "errortasks": told["errorTasks"],
        "waitingtasks": told["waitingTasks"],
        "finishedtasks": told["finishedTasks"],
    }
