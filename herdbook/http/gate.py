"""The only place that decides who sends a request, and whether it is allowed.

The caller is identified by HTTP Basic, by a bearer token, or by the cookie of a session.

Invariants:
- No handler runs without the right that its route declares; the right is checked here.
- A page of another site can do nothing through a browser, whatever cookie or login that has: its
  origin is looked at first, and a session's changes carry a token that only our own page knows.
- A name that we are not served by is refused, so that no other site's name can come to mean us.
- A caller's rights are read again within seconds, so that revoked rights end.
- Few passwords are checked at a time, and few wait for that. Users who recently logged in from the
  same address have their own turns, which unknown users cannot take.
"""

import asyncio
import base64
import binascii
import hmac
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

from starlette.requests import Request

from broker.http.front import from_elsewhere
from broker.http.hosts import Hosts, wrong_host
from engine.access.audit import NO_AUDIT, Audit
from engine.access.guesses import Guesses
from engine.access.port import Authenticator
from engine.access.principal import EVERYBODY, Principal
from engine.access.scram import NOT_PROVED, prepared_name
from engine.access.tokens import KNOWN, Claims, Keys, sign, verify
from engine.errors import AccessRefused, InvalidRequest, TooManyTries
from engine.ports.clock import Clock
from engine.transport.address import is_loopback
from herdbook.access.authenticator import FRESH_S
from herdbook.access.proving import TooManyWait, Turns
from herdbook.http.errors import HttpError
from herdbook.http.routes import Need
from herdbook.http.sessions import COOKIE, KNOWN_COOKIE, Session, Sessions
from herdbook.http.settings import WebSettings
from herdbook.http.transfers import Transfers

TOKEN_HEADER: Final = "X-Herdbook-Token"
_ANSWER_AGE_S: Final = FRESH_S / 2
"""Short enough that users are looked up again before the known answers are old."""
_ANSWERS_MAX: Final = 4_096
_JUDGED_AT_ONCE: Final = 8
_WAITING_MAX: Final = 64
_WAITING_S: Final = 5.0
_BUSY_S: Final = 2
"""Within this time, all passwords that may wait have had their turn."""
_NOTED: Final = "herdbook.noted"
_PERHAPS: Final = (500, 504)
KNOWN_MS: Final = 90 * 24 * 3_600_000
"""How long a browser is recognized after a login."""
_OUR_SITES: Final = ("same-origin", "none")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and the session that they ask in."""

    principal: Principal
    session: Session | None = None


class Gate:
    """Decides. `authenticator` None: an open store, in which everybody may do all.

    `guesses` are those at the passwords of its users, where another door counts them, too. `keys`
    sign what browsers are known by, after a restart, too, where the keys are the same.
    """

    def __init__(
        self,
        authenticator: Authenticator | None,
        settings: WebSettings,
        clock: Clock,
        rng: Random,
        audit: Audit = NO_AUDIT,
        guesses: Guesses | None = None,
        keys: Keys | None = None,
    ) -> None:
        self.authenticator = authenticator
        self.settings = settings
        self.audit = audit
        self.sessions = Sessions(settings, clock, rng)
        self.guesses = guesses or Guesses(clock)
        self.transfers = Transfers(settings, clock)
        self._turns_of_strangers = Turns(_JUDGED_AT_ONCE, _WAITING_MAX, _WAITING_S)
        self._turns_of_known = Turns(_JUDGED_AT_ONCE, _WAITING_MAX, _WAITING_S)
        self._clock = clock
        self._key = rng.randbytes(32)
        own = (rng.randbytes(32),)
        self._keys = keys or (lambda: own)
        self._known: OrderedDict[tuple[bytes, int, str], None] = OrderedDict()
        self._hosts = Hosts(settings.names)
        self._answers: OrderedDict[bytes, tuple[asyncio.Future[Principal], float]] = OrderedDict()

    # Where a request comes from

    def check_host(self, request: Request) -> None:
        """Raise `HttpError` for a host that we are not."""
        headers = request.headers
        if not self._hosts.know(headers):
            self._note(request, wrong_host(headers))
            raise HttpError(
                421,
                "wrong_host",
                wrong_host(headers),
                remedy="name it in the settings of the node's HTTP, or use its address",
            )

    def check_origin(self, request: Request) -> None:
        """Raise `HttpError` for what the page of another site asks."""
        site = request.headers.get("sec-fetch-site", "none")
        if from_elsewhere(request) or site not in _OUR_SITES:
            why = "a page of another site asks through a browser"
            self._note(request, why)
            raise HttpError(403, "other_origin", why)

    def _note(self, request: Request, why: str, who: str = "") -> None:
        """Tell the audit of a request that was refused."""
        # A host that is none has no url.
        where, peer = request.scope["path"], peer_of(request)
        self.audit.note(who, request.method, where, allowed=False, why=why, peer=peer)
        request.scope[_NOTED] = True

    def note_change(self, request: Request, who: str, status: int) -> None:
        """Tell the audit of a change that was let in, by the status that it got.

        What was refused for what it is, and not for who asked, changed nothing and has no line.
        """
        done = status < 400
        if done or status in _PERHAPS:
            why = "" if done else f"it may or may not have been done ({status})"
            peer, where = peer_of(request), request.url.path
            self.audit.note(who, request.method, where, allowed=True, why=why, peer=peer)
        elif status == 403 and _NOTED not in request.scope:
            self._note(request, f"{who} may not do all of that", who)

    # Who asks

    async def caller(self, request: Request) -> Caller:
        """The caller. Raises `HttpError` 401, 429 or 503, `Unavailable` if users are unknown."""
        header = request.headers.get("authorization")
        if header is not None:
            return Caller(await self._by_header(header, peer_of(request), request))
        cookie = request.cookies.get(COOKIE, "")
        session = self.sessions.find(cookie) if cookie else None
        if session is not None:
            try:
                session.principal = await self._now(session)
                return Caller(session.principal, session)
            except AccessRefused:
                self.sessions.end(cookie)
        if self.authenticator is None:
            return Caller(EVERYBODY)
        try:
            anybody = await self.authenticator.anonymous()
        except AccessRefused:
            raise unknown(request) from None
        peer = peer_of(request)
        if not (self.settings.open or is_loopback(peer)):
            # Its last user was removed while it serves: it is not everybody's by that.
            raise unknown(request)
        return Caller(anybody)

    async def login(self, user: str, password: str, peer: str, shown: str = "") -> Principal:
        """A user by password. Raises `AccessRefused`, and as `caller`.

        `shown` is the cookie `KNOWN_COOKIE`, which `known_by` made at an earlier login.
        """
        if self.authenticator is None:
            return EVERYBODY
        if shown and self._is_known_by(shown, user):
            self.guesses.recognize(peer, user)
        ask = partial(self.authenticator.password, user, password)
        return await self._judged(user, peer, lambda: self._proved(user, peer, ask))

    def known_by(self, principal: Principal) -> str:
        """What a browser shows to be recognized: it lets nobody in."""
        expires_ms = self._clock.wall_ms() + KNOWN_MS
        return sign(Claims(KNOWN, principal.name, expires_ms), self._keys()[0])

    def _is_known_by(self, shown: str, user: str) -> bool:
        try:
            known = verify(shown, self._keys(), KNOWN, self._clock.wall_ms())
            return known.user == prepared_name(user)
        except (AccessRefused, InvalidRequest):
            return False

    async def _by_header(self, header: str, peer: str, request: Request) -> Principal:
        if self.authenticator is None:
            return EVERYBODY
        scheme, _, value = header.partition(" ")
        authenticator = self.authenticator
        if scheme.lower() == "basic":
            user, password = _credentials(value)
            show: Callable[[], Awaitable[Principal]] = partial(
                self.login, user, password, peer, request.cookies.get(KNOWN_COOKIE, "")
            )
        elif scheme.lower() == "bearer" and value.strip():
            # Tokens cannot be guessed.
            ask = partial(authenticator.token, value.strip())
            user, show = "", partial(self._judged, "", peer, ask)
        else:
            raise unknown(request)
        # Not kept as it came: what is in memory should let nobody in.
        key = hmac.digest(self._key, header.encode("utf-8", "surrogatepass"), "sha256")
        try:
            principal = await self._lately(key, show)
        except AccessRefused:
            raise unknown(request) from None
        self._came(key, principal, "log in" if user else "log in by token", peer)
        return principal

    def _came(self, key: bytes, principal: Principal, how: str, peer: str) -> None:
        """Note a login when it first comes, not with each request that shows it again."""
        known = (key, principal.made_ms, peer)
        if known not in self._known:
            self.audit.note(principal.name, how, "http", allowed=True, peer=peer)
        self._known[known] = None
        self._known.move_to_end(known)
        while len(self._known) > _ANSWERS_MAX:
            self._known.popitem(last=False)

    async def _proved(
        self, user: str, peer: str, ask: Callable[[], Awaitable[Principal]]
    ) -> Principal:
        """The user with this password; repeated wrong passwords are slowed down."""
        if not user:
            raise AccessRefused(NOT_PROVED)
        # A caller that has to wait takes no turn from others.
        self.guesses.check(peer, user)
        known = self.guesses.knows(peer, user)
        turns = self._turns_of_known if known else self._turns_of_strangers
        async with turns.turn():
            with self.guesses.trying(peer, user):
                return await ask()

    async def _judged(
        self, user: str, peer: str, ask: Callable[[], Awaitable[Principal]]
    ) -> Principal:
        """The rights of a caller; the audit gets a line if the caller is refused or has to wait."""
        try:
            return await ask()
        except TooManyWait as error:
            self.audit.note(user, "log in", "http", allowed=False, why=str(error), peer=peer)
            raise HttpError(
                503,
                "too_many_logins",
                "too many users log in at once",
                remedy=f"try again in {_BUSY_S} s",
                retry_s=_BUSY_S,
            ) from None
        except TooManyTries as error:
            self.audit.note(user, "log in", "http", allowed=False, why=str(error), peer=peer)
            raise HttpError(
                429,
                "too_many_tries",
                "too many wrong logins",
                remedy=f"try again in {error.wait_s} s",
                retry_s=error.wait_s,
            ) from None
        except AccessRefused as error:
            self.audit.note(user, "log in", "http", allowed=False, why=str(error), peer=peer)
            raise

    async def _now(self, session: Session) -> Principal:
        authenticator = self.authenticator
        if authenticator is None or session.ticket:
            return session.principal
        found = await authenticator.principal(session.principal.name)
        if found.made_ms != session.principal.made_ms:
            raise AccessRefused(f"{found.name} is another user now")
        return found

    async def _lately(self, key: bytes, ask: Callable[[], Awaitable[Principal]]) -> Principal:
        """What somebody has proved a moment ago; those who ask at once ask together.

        To look at a password takes milliseconds by design, and clients send it with each request.
        """
        now_s = self._clock.monotonic()
        found = self._answers.get(key)
        if found is None or now_s >= found[1]:
            task = asyncio.ensure_future(ask())
            self._answers[key] = found = (task, now_s + _ANSWER_AGE_S)
            self._answers.move_to_end(key)
            task.add_done_callback(lambda done: self._answered(key, done))
            while len(self._answers) > _ANSWERS_MAX:
                self._answers.popitem(last=False)
        return await asyncio.shield(found[0])

    def _answered(self, key: bytes, done: "asyncio.Future[Principal]") -> None:
        """Nothing but an answer is kept: a failure is for those alone who waited for it."""
        if done.cancelled() or done.exception() is not None:
            kept = self._answers.get(key)
            if kept is not None and kept[0] is done:
                del self._answers[key]

    # Whether they may

    def check_token(self, request: Request, caller: Caller) -> None:
        """Raise `HttpError` for a change in a session that our own page did not ask for."""
        if caller.session is None:
            return
        shown = request.headers.get(TOKEN_HEADER, "")
        if not hmac.compare_digest(shown.encode(), caller.session.csrf.encode()):
            why = f"a change in a session needs the header {TOKEN_HEADER}"
            self._note(request, why, caller.principal.name)
            raise HttpError(
                403,
                "token_missing",
                why,
                remedy="take its value from /api/v1/me",
            )

    def check_need(
        self, request: Request, need: Need, principal: Principal, path: dict[str, Any], body: Any
    ) -> None:
        """Raise `HttpError` 403 for who may not do what a route does."""
        try:
            _check(need, principal, path, body)
        except AccessRefused as error:
            self._note(request, str(error), principal.name)
            raise HttpError(
                403, "access_refused", str(error), remedy="an administrator can grant it"
            ) from None


def _check(need: Need, principal: Principal, path: dict[str, Any], body: Any) -> None:
    if need.public:
        return
    if need.admin:
        principal.check_admin()
    if need.kind is None:
        return
    if not need.of:
        if not principal.admin and not principal.named(need.kind, need.right):
            raise AccessRefused(f"{principal.name} may {need.right} no {need.kind}")
        return
    field = need.of.removeprefix("body.")
    name = str(getattr(body, field) if field != need.of else path[field])
    if need.kind == "tablespace":
        name = name.lower()
    principal.check(need.kind, name, need.right)


def unknown(request: Request) -> HttpError:
    """What who is not known gets. A browser asks its user only where no page of ours does."""
    error = HttpError(
        401,
        "login_needed",
        "user, password or token is missing or wrong",
        remedy="log in at /, or send HTTP Basic authentication or a bearer token",
    )
    # Without TLS browsers tell the mode to their own machine only; the console shows its header.
    error.by_browser = "sec-fetch-mode" in request.headers or TOKEN_HEADER in request.headers
    return error


def peer_of(request: Request) -> str:
    """The address that a request came from."""
    return request.client.host if request.client is not None else ""


def _credentials(value: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return "", ""
    user, _, password = text.partition(":")
    return user, password
