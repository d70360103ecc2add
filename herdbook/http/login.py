"""`/api/v1`: logging in and out, and who one is."""

from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from broker.http.front import json_reply
from broker.http.routes import Told
from broker.http.shapes import Changed
from engine.access.principal import Principal
from engine.errors import AccessRefused
from herdbook.http.errors import HttpError
from herdbook.http.gate import KNOWN_MS, Gate, peer_of
from herdbook.http.house import House
from herdbook.http.routes import KNOWN, PUBLIC, Ask, Route
from herdbook.http.sessions import COOKIE, KNOWN_COOKIE

BY_TICKET: Final = Principal("console", admin=True)
_Text = Annotated[str, Meta(max_length=1_000)]


class LoginShape(msgspec.Struct, forbid_unknown_fields=True):
    """A user's name and password."""

    user: _Text
    password: _Text


class GrantFacts(msgspec.Struct):
    """What somebody may: `name` is "*" for all of a kind."""

    kind: str
    name: str
    right: str


class Me(msgspec.Struct):
    """Who asks, and what they may.

    `csrf` is for the header `X-Herdbook-Token` of what changes something; "" where none is needed.
    """

    user: str
    admin: bool
    grants: list[GrantFacts]
    csrf: str
    session: bool


def gate_of(request: Request) -> Gate:
    """The gate that a request came through."""
    gate: Gate = request.scope["herdbook.gate"]
    return gate


async def log_in(house: House, ask: Ask) -> Response:
    """Begin a session."""
    gate, told, peer = gate_of(ask.request), ask.body, peer_of(ask.request)
    try:
        shown = ask.request.cookies.get(KNOWN_COOKIE, "")
        principal = await gate.login(told.user, told.password, peer, shown)
    except AccessRefused:
        error = HttpError(401, "login_refused", "user or password is wrong")
        # Asked for Basic, a browser would put a question of its own before the page's.
        error.by_browser = True
        raise error from None
    cookie = gate.sessions.begin(principal)
    gate.audit.note(principal.name, "log in", "http", allowed=True, peer=peer)
    session = gate.sessions.find(cookie)
    assert session is not None
    reply = json_reply(_me(principal, session.csrf, session=True))
    set_cookie(reply, cookie, gate)
    set_cookie(reply, gate.known_by(principal), gate, KNOWN_COOKIE, KNOWN_MS)
    return reply


async def log_out(house: House, ask: Ask) -> Response:
    """End a session."""
    gate = gate_of(ask.request)
    cookie = ask.request.cookies.get(COOKIE, "")
    there = gate.sessions.find(cookie) is not None
    gate.sessions.end(cookie)
    reply = json_reply(Changed(there))
    reply.delete_cookie(COOKIE, path="/", secure=gate.settings.secure, httponly=True)
    return reply


async def me(house: House, ask: Ask) -> Told:
    """Who asks."""
    caller = await gate_of(ask.request).caller(ask.request)
    session = caller.session
    csrf = "" if session is None else session.csrf
    return Told(_me(caller.principal, csrf, session=session is not None))


def _me(principal: Principal, csrf: str, *, session: bool) -> Me:
    grants = [GrantFacts(each.kind, each.name, each.right) for each in principal.grants]
    return Me(principal.name, principal.admin, grants, csrf, session)


def set_cookie(
    reply: Response, cookie: str, gate: Gate, name: str = COOKIE, age_ms: int = 0
) -> None:
    """Give a browser its session, or another cookie: no script sees it, no other site's page sends
    it."""
    reply.set_cookie(
        name,
        cookie,
        max_age=(age_ms or gate.settings.session_age_ms) // 1000,
        path="/",
        secure=gate.settings.secure,
        httponly=True,
        samesite="strict",
    )


async def once(request: Request) -> Response:
    """The page `/login`: with a ticket it logs in, one time, and goes on to the console."""
    gate = gate_of(request)
    ticket = request.query_params.get("once", "")
    if not ticket:
        return RedirectResponse("/", 303)
    peer = peer_of(request)
    if not gate.sessions.redeem(ticket):
        gate.audit.note("console", "log in once", "http", allowed=False, peer=peer)
        return RedirectResponse("/?" + quote("expired"), 303)
    gate.audit.note("console", "log in once", "http", allowed=True, peer=peer)
    reply = RedirectResponse("/", 303)
    set_cookie(reply, gate.sessions.begin(BY_TICKET, ticket=True), gate)
    return reply


ROUTES: Final = (
    Route(
        "POST",
        "/login",
        "log_in",
        "Begin a session.",
        PUBLIC,
        log_in,
        body=LoginShape,
        reply=Me,
        other_statuses=(400, 401, 403, 429),
    ),
    Route("POST", "/logout", "log_out", "End the session.", KNOWN, log_out, reply=Changed),
    Route("GET", "/me", "me", "Who asks, and what they may.", KNOWN, me, reply=Me),
)
