"""What every request goes through: the login, bounded reading, errors in one form, the leader.

Invariants:
- A page of another site cannot ask through a browser that has a login here, or needs none.
- Whatever goes wrong is one sentence; no reply shows where in the program it happened.
- A request that a broker cannot answer because another one leads is passed on to that one, once.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from broker import errors
from broker.access import Asking
from broker.errors import BrokerError, NotLeader
from broker.http.bodies import Bodies, BodyLate, HttpSettings
from broker.http.desk import Desk
from broker.http.logins import Doorkeeper
from broker.http.relay import FORWARDED, Passed, Relay
from broker.translating import translating
from broker.waits import Waits
from engine.replica import ConfirmedReads
from engine.uncollected import uncollected

JSON: Final = "application/json"
Work = Callable[[Request, bytes, Asking], Awaitable[Response]]
Refuse = Callable[[BrokerError], Response]

_STATUSES: Final[tuple[tuple[type[BrokerError], int], ...]] = (
    (errors.TooLarge, 413),
    (errors.SlotBusy, 409),
    (errors.DuplicateTask, 409),
    (errors.TransactionFull, 409),
    (errors.TenantFull, 429),
    (errors.SubmitRefused, 422),
    (errors.InvalidTask, 400),
    (errors.InvalidSetting, 400),
    (errors.UnknownTask, 404),
    (errors.UnknownTransaction, 404),
    (errors.UnknownSchedule, 404),
    (errors.UnknownRollout, 404),
    (errors.RolloutChanged, 409),
    (errors.ClusterBusy, 409),
    (errors.PayloadMissing, 404),
    (errors.NotInState, 409),
    (errors.AccessDenied, 403),
    (errors.OutcomeUnknown, 504),
    (errors.DiskFull, 507),
    (errors.BrokerUnavailable, 503),
)
_PORTS: Final = {"http": "80", "https": "443"}
_USER: Final = "herdbook.user"
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Front:
    """What stands before all handlers."""

    desk: Desk
    logins: Doorkeeper
    settings: HttpSettings
    relay: Relay | None = None
    _bodies: Bodies = field(init=False)
    waits: Waits = field(init=False)
    """Long polls."""

    def __post_init__(self) -> None:
        self._bodies = Bodies(self.settings)
        self.waits = Waits(self.settings.waits_max)

    async def serve(self, request: Request, work: Work, refuse: Refuse | None = None) -> Response:
        """Answer a request by `work`, which gets its body and who asks.

        `refuse` says errors in another form than that of `/api/v1`.
        """
        refuse = refuse or refused
        if from_elsewhere(request):
            return refuse(errors.AccessDenied("a page of another site asks through a browser"))
        said = self.logins.asking(request)
        try:
            who = await said if isinstance(said, Awaitable) else said
        except BrokerError as error:
            return refuse(error)
        if who is None:
            return login_needed()
        if isinstance(who, Response):
            return who
        note_user(request.scope, who.name, admin=who.admin)
        body = b""
        try:
            async with self._bodies.of(request, user_of(request.scope)) as body:
                with translating():
                    async with ConfirmedReads():
                        return await work(request, body, who)
        except ClientDisconnect:
            return Response(status_code=400)
        except BodyLate:
            return told_error(408, "body_late", "the body did not come in time", retryable=True)
        except NotLeader as error:
            return await self._pass_on(request, body, error, refuse)
        except BrokerError as error:
            return refuse(error)
        except Exception:
            _logger.exception("%s %s", request.method, request.url.path)
            return told_error(
                500, "internal", "the broker has a defect; its log says which", retryable=False
            )

    async def _pass_on(
        self, request: Request, body: bytes, error: NotLeader, refuse: Refuse
    ) -> Response:
        if self.relay is None or not error.leader or FORWARDED in request.headers:
            return refuse(error)
        passed = Passed(request.method, _target(request), dict(request.headers), body)
        try:
            replied = await self.relay.ask(error.leader, passed)
        except BrokerError as unknown:
            return refuse(unknown)
        if replied is None:
            return refuse(error)
        return Response(replied.body, replied.status, replied.headers)


def _target(request: Request) -> str:
    """Path and query as they came: a name in them may hold what would be read in another way."""
    path: bytes = request.scope.get("raw_path") or quote(request.url.path).encode()
    query: bytes = request.scope["query_string"]
    return (path + (b"?" + query if query else b"")).decode("latin-1")


def note_user(scope: Scope, name: str, *, admin: bool) -> None:
    """Say who asks, once that is known, to those who bound what a user takes.

    Administrators and parts of the cluster are no users here.
    """
    scope[_USER] = "" if admin else name


def user_of(scope: Scope) -> str:
    """The user who asks, as far as that is known."""
    user: str = scope.get(_USER, "")
    return user


def from_elsewhere(request: Request) -> bool:
    """Whether a browser asks for a page that did not come from here.

    It sends along whatever login its user has, and a server on the user's own machine needs none.
    """
    origin = request.headers.get("origin")
    if origin is None:
        return False
    scheme, _, place = origin.partition("://")
    # A proxy in front of a server without TLS may terminate TLS.
    ours = ("https",) if request.scope["scheme"] == "https" else ("http", "https")
    if scheme not in ours:
        return True
    return _with_port(place, scheme) != _with_port(request.headers.get("host", ""), scheme)


def _with_port(place: str, scheme: str) -> tuple[str, str]:
    """A host and its port; without a port, it is the scheme's default port.

    >>> _with_port("Cows.example", "https"), _with_port("[::1]:80", "http")
    (('cows.example', '443'), ('[::1]', '80'))
    """
    host, _, port = place.rpartition(":")
    if not port.isdecimal():
        host, port = place, _PORTS[scheme]
    return host.lower(), port


def decoded(body: bytes, kind: Any) -> Any:
    """JSON as a kind says. Raises `InvalidTask` in one sentence."""
    try:
        with uncollected(len(body)):
            return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise errors.InvalidTask(_sentence("the body", error)) from error


def converted(values: Any, kind: Any, where: str) -> Any:
    """Texts of a path or a query as a kind says. Raises `InvalidTask` in one sentence."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.InvalidTask(_sentence(where, error)) from error


def queried(values: Mapping[str, str], kind: Any) -> Any:
    """A query as a kind says. Raises `InvalidTask`, for what the kind does not name, too."""
    known = [each.encode_name for each in msgspec.structs.fields(kind)]
    for name in values:
        if name not in known:
            text = f"the query: there is no {name[:100]!r}; there are {', '.join(known)}"
            raise errors.InvalidTask(text)
    return converted(dict(values), kind, "the query")


def _sentence(where: str, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"{where} is nested too deeply"
    head, _, place = str(error).partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    return f"{where}: {place}: {head}" if place else f"{where}: {head}"


def json_reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A reply of JSON."""
    return Response(msgspec.json.encode(value), status, headers, JSON)


def status_of(error: BrokerError) -> int:
    """The HTTP status that an error has."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def refused(error: BrokerError) -> Response:
    """What a client gets for an error."""
    return told_error(
        status_of(error),
        error.code,
        error.message,
        retryable=error.retryable,
        remedy=error.remedy,
        task_id=error.task_id,
        leader=error.leader,
    )


def told_error(
    status: int,
    code: str,
    message: str,
    *,
    retryable: bool = False,
    remedy: str = "",
    task_id: int = 0,
    leader: str = "",
) -> Response:
    """An error in the form that all of them have."""
    said: dict[str, Any] = {"code": code, "message": message, "retryable": retryable}
    more = {"remedy": remedy, "task_id": task_id, "leader": leader}
    said.update({name: value for name, value in more.items() if value})
    headers = {"Retry-After": "1"} if status == 503 else None
    return json_reply({"error": said}, status, headers)


def login_needed() -> Response:
    """What who has not logged in gets."""
    reply = told_error(
        401,
        "access_denied",
        "user or password is missing or wrong",
        remedy="send a user and a password by HTTP Basic authentication",
    )
    reply.headers["WWW-Authenticate"] = 'Basic realm="herdbook", charset="UTF-8"'
    return reply
