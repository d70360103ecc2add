"""Sessions of browsers: cookies, tokens, origins, hosts, tickets, and those who guess."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice

import httpx
import pytest
from starlette.types import ASGIApp

from engine.access.principal import EVERYBODY, Principal
from engine.access.tokens import KNOWN, Claims, sign
from engine.errors import AccessRefused
from engine.ports.clock import SystemClock
from herdbook.http import create_app
from herdbook.http.gate import TOKEN_HEADER, Gate
from herdbook.http.sessions import COOKIE, KNOWN_COOKIE, Sessions
from herdbook.http.settings import WebSettings
from tests.herdbook.http.yard import API, Asker, Node, Users, users

CHANGE = ("POST", "/repair/on")
ANN = Principal("ann")


class HandClock(SystemClock):
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now_s


def logged_in(node: Node, user: str = "elsa", settings: WebSettings | None = None) -> Asker:
    """A browser with a session."""
    browser = node.closed(settings=settings)
    browser.json("POST", "/login", json={"user": user, "password": f"{user}-moo"})
    return browser


def test_a_login_gives_a_cookie_that_no_script_and_no_other_site_sees(node: Node) -> None:
    asker = node.closed(settings=WebSettings(secure=True))
    asker.host = "https://localhost"
    reply = asker("POST", f"{API}/login", json={"user": "elsa", "password": "elsa-moo"})
    cookie = reply.headers["set-cookie"]
    assert re.match(rf"{COOKIE}=[0-9a-f]{{64}};", cookie)
    for flag in ("HttpOnly", "SameSite=strict", "Secure", "Path=/"):
        assert flag in cookie
    assert reply.json()["user"] == "elsa" and len(reply.json()["csrf"]) == 64
    plain = node.closed()("POST", f"{API}/login", json={"user": "elsa", "password": "elsa-moo"})
    assert "Secure" not in plain.headers["set-cookie"]


def test_a_change_in_a_session_needs_its_token_and_a_look_does_not(node: Node) -> None:
    browser = logged_in(node)
    csrf = browser.json("GET", "/me")["csrf"]
    for shown in (None, "", "x", csrf[:-1]):
        headers = {} if shown is None else {TOKEN_HEADER: shown}
        told = browser.json(*CHANGE, headers=headers, expect=403)
        assert told["error"]["code"] == "token_missing"
    assert browser.json(*CHANGE, headers={TOKEN_HEADER: csrf}) == {"changed": False}
    assert browser.json("GET", "/repair")["on"] is True


def test_who_logs_in_with_each_request_needs_no_token(node: Node) -> None:
    assert node.closed("elsa").json(*CHANGE) == {"changed": False}


def test_a_page_of_another_site_can_do_nothing(node: Node) -> None:
    browser = logged_in(node)
    csrf = {TOKEN_HEADER: browser.json("GET", "/me")["csrf"]}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:8080"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        for asker in (browser, node.open(), node.closed("elsa")):
            told = asker.json(*CHANGE, headers=headers | csrf, expect=403)
            assert told["error"]["code"] == "other_origin", headers
            assert asker("GET", f"{API}/me", headers=headers).status_code == 403
    ours = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert browser.json(*CHANGE, headers=ours | csrf) == {"changed": False}
    assert not any(
        name.startswith("access-control") for name in browser("GET", f"{API}/me").headers
    )


def test_a_host_that_is_not_ours_is_refused_whatever_is_asked(node: Node) -> None:
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "[::1"):
        for path in ("/", "/health/live", f"{API}/me", "/login?once=x", "/metrics"):
            assert node.open()("GET", path, headers={"Host": host}).status_code == 421, (host, path)
    named = node.open(WebSettings(names=("Cows.Example",)))
    for host in ("cows.example", "COWS.example:8443", "cows.example.", "[::1]:80", "10.1.2.3"):
        assert named("GET", "/health/live", headers={"Host": host}).status_code == 200, host


def test_who_logs_out_is_out(node: Node) -> None:
    browser = logged_in(node)
    cookie = browser.cookies[COOKIE]
    headers = {TOKEN_HEADER: browser.json("GET", "/me")["csrf"]}
    assert browser.json("POST", "/logout", headers=headers) == {"changed": True}
    browser.cookies.set(COOKIE, cookie)
    assert browser("GET", f"{API}/me").status_code == 401


def test_a_page_of_ours_is_not_made_to_ask_for_a_password_by_the_browser(node: Node) -> None:
    reply = node.closed()("GET", f"{API}/me", headers={"Sec-Fetch-Mode": "cors"})
    assert reply.status_code == 401 and "Basic" not in reply.headers["www-authenticate"]


def test_a_session_ends_with_its_user(node: Node) -> None:
    node.users.principals["gone"] = Principal("gone", admin=True)
    node.users.passwords["gone"] = "gone-moo"
    browser = logged_in(node, "gone")
    assert browser.json("GET", "/me")["user"] == "gone"
    del node.users.principals["gone"]
    assert browser("GET", f"{API}/me").status_code == 401


def test_a_ticket_logs_in_once(node: Node) -> None:
    settings = WebSettings(once="a-ticket")
    app = node.app(node.users, settings)
    assert "a-ticket" not in repr(settings)
    wrong, first, second = (Asker(node.loop, app) for _ in range(3))
    assert wrong("GET", "/login?once=other").headers["location"] == "/?expired"
    assert wrong("GET", f"{API}/me").status_code == 401
    reply = first("GET", "/login?once=a-ticket")
    assert (reply.status_code, reply.headers["location"]) == (303, "/")
    assert first.json("GET", "/me")["admin"] is True
    assert second("GET", "/login?once=a-ticket").headers["location"] == "/?expired"
    assert second("GET", f"{API}/me").status_code == 401


def test_a_ticket_is_good_for_a_while_only() -> None:
    clock = HandClock()
    sessions = Sessions(WebSettings(once="t", once_ms=1_000), clock, random.Random(1))
    clock.now_s += 1.0
    assert not sessions.redeem("t")


def test_sessions_end_by_age_and_by_idleness_and_are_bounded() -> None:
    clock = HandClock()
    settings = WebSettings(sessions_max=2, session_age_ms=100_000, session_idle_ms=10_000)
    sessions = Sessions(settings, clock, random.Random(1))
    idle, used = sessions.begin(ANN), sessions.begin(ANN)
    for _ in range(10):
        clock.now_s += 9.5
        assert sessions.find(used) is not None
    assert sessions.find(idle) is None
    clock.now_s += 9.5
    assert sessions.find(used) is None, "it was used all the time, and is too old all the same"
    first, second, third = (sessions.begin(ANN) for _ in range(3))
    assert len(sessions) == 2 and sessions.find(first) is None
    assert sessions.find(second) is not None and sessions.find(third) is not None
    sessions.end(second)
    assert sessions.find(second) is None


def test_what_is_kept_of_a_session_lets_nobody_in() -> None:
    sessions = Sessions(WebSettings(), HandClock(), random.Random(1))
    cookie = sessions.begin(ANN)
    found = sessions.find(cookie)
    assert found is not None and cookie not in str(vars(sessions)) and found.csrf not in repr(found)


def test_wrong_logins_are_slowed_down_at_every_door(node: Node) -> None:
    app = node.app(node.users)
    asker = Asker(node.loop, app, peer="10.9.9.9")
    wrong = {"user": "elsa", "password": "wrong"}
    statuses = [asker("POST", f"{API}/login", json=wrong).status_code for _ in range(6)]
    assert statuses == [401] * 5 + [429]
    by_header = Asker(node.loop, app, ("elsa", "elsa-moo"), peer="10.9.9.9")
    reply = by_header("GET", f"{API}/me")
    assert reply.status_code == 429 and int(reply.headers["retry-after"]) >= 1
    assert Asker(node.loop, app, ("elsa", "elsa-moo"))("GET", f"{API}/me").status_code == 200


class Held(Users):
    """Until `go`, checks only elsa's passwords; counts the passwords that it checks."""

    def __init__(self) -> None:
        known = users()
        super().__init__(known.passwords, known.principals, known.tokens)
        self.go = asyncio.Event()
        self.judging = 0
        self.judging_max = 0

    async def password(self, user: str, password: str) -> Principal:
        self.judging += 1
        self.judging_max = max(self.judging, self.judging_max)
        try:
            if user != "elsa":
                await self.go.wait()
            return await super().password(user, password)
        finally:
            self.judging -= 1


async def log_in(app: ASGIApp, user: str, password: str, peer: str) -> httpx.Response:
    """The reply to a login."""
    transport = httpx.ASGITransport(app=app, client=(peer, 1_234))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.post(f"{API}/login", json={"user": user, "password": password})


def log_ins(app: ASGIApp, peers: Sequence[str]) -> list[asyncio.Task[httpx.Response]]:
    """Wrong ones, of another user each, that go on at once."""
    return [
        asyncio.ensure_future(log_in(app, f"stranger-{number}", "wrong", peer))
        for number, peer in enumerate(peers)
    ]


def test_few_of_many_logins_from_one_address_are_checked_at_once(node: Node) -> None:
    known = users()
    app = node.app(known)

    async def ask() -> list[httpx.Response]:
        return await asyncio.gather(*log_ins(app, ["10.9.9.9"] * 400))

    replies = node.loop.run(ask)
    refused = [reply for reply in replies if reply.status_code != 401]
    assert known.asked <= 25 and len(refused) >= 375
    assert {reply.status_code for reply in refused} == {429, 503}
    assert all(int(reply.headers["retry-after"]) > 0 for reply in refused)


def test_a_known_user_does_not_wait_for_unknown_users(node: Node) -> None:
    known = Held()
    app = node.app(known)

    async def ask() -> tuple[int, list[httpx.Response]]:
        assert (await log_in(app, "elsa", "elsa-moo", "10.9.9.9")).status_code == 200
        strangers = log_ins(app, [f"10.9.{number}.1" for number in range(250)])
        # Those that may not wait are answered at once.
        async with asyncio.timeout(60):
            for answered in islice(asyncio.as_completed(strangers), 250 - 8 - 64):
                await answered
        elsa = (await log_in(app, "elsa", "elsa-moo", "10.9.9.9")).status_code
        known.go.set()
        return elsa, await asyncio.gather(*strangers)

    elsa, replies = node.loop.run(ask)
    assert elsa == 200
    statuses = Counter(reply.status_code for reply in replies)
    assert statuses == {401: 8 + 64, 503: 250 - 8 - 64}
    busy = next(reply for reply in replies if reply.status_code == 503)
    assert busy.json()["error"]["code"] == "too_many_logins"
    assert int(busy.headers["retry-after"]) > 0
    assert known.judging_max <= 9


def test_who_logged_in_before_a_restart_is_delayed_by_nobody_at_their_address(node: Node) -> None:
    async def started() -> ASGIApp:
        return create_app(node.house, node.users, keys=lambda: (b"k" * 32,))

    def status(asker: Asker, user: str, password: str) -> int:
        told = {"user": user, "password": password}
        return asker("POST", f"{API}/login", json=told).status_code

    browser = Asker(node.loop, node.loop.run(started), peer="10.9.9.9")
    assert status(browser, "elsa", "elsa-moo") == 200
    restarted = node.loop.run(started)
    browser.app = restarted
    stranger = Asker(node.loop, restarted, peer="10.9.9.9")
    for number in range(25):
        assert status(stranger, f"stranger-{number}", "wrong") == 401
    assert status(stranger, "elsa", "elsa-moo") == 429
    assert status(browser, "rita", "rita-moo") == 429, "the cookie speaks of one user"
    for cookie in ("", "hb1.x.y", _other_known(), browser.cookies[KNOWN_COOKIE][:-1]):
        stranger.cookies.set(KNOWN_COOKIE, cookie)
        assert status(stranger, "elsa", "elsa-moo") == 429
    assert status(browser, "elsa", "wrong") == 401, "it lets nobody in"
    assert status(browser, "elsa", "elsa-moo") == 200


def _other_known() -> str:
    """What another store says of a user of the same name."""
    expires_ms = SystemClock().wall_ms() + 60_000
    return sign(Claims(KNOWN, "elsa", expires_ms), b"o" * 32)


def test_wrong_tries_of_one_name_keep_no_other_user_of_the_address_out(node: Node) -> None:
    clock = HandClock()
    gate = Gate(node.users, WebSettings(), clock, random.Random(1))

    async def ask() -> None:
        for _ in range(60):
            clock.now_s += 60.0
            with pytest.raises(AccessRefused):
                await gate.login("rita", "wrong", "10.9.9.9")
        assert (await gate.login("elsa", "elsa-moo", "10.9.9.9")).name == "elsa"

    node.loop.run(ask)


def test_a_password_without_a_name_is_not_checked(node: Node) -> None:
    known = users()
    app = node.app(known)
    for _ in range(10):
        wrong = {"user": "", "password": "wrong"}
        assert Asker(node.loop, app)("POST", f"{API}/login", json=wrong).status_code == 401
        assert Asker(node.loop, app, ("", "wrong"))("GET", f"{API}/me").status_code == 401
    assert known.asked == 0


def test_logins_of_one_user_end_no_session_of_another_user(node: Node) -> None:
    settings = WebSettings(sessions_max=8, sessions_of_user_max=3)
    app = node.app(node.users, settings)

    def browser(user: str) -> Asker:
        made = Asker(node.loop, app)
        made.json("POST", "/login", json={"user": user, "password": f"{user}-moo"})
        return made

    elsa = browser("elsa")
    others = [browser("rita") for _ in range(20)]
    assert elsa.json("GET", "/me")["user"] == "elsa"
    statuses = [each("GET", f"{API}/me").status_code for each in others]
    assert statuses == [401] * 17 + [200] * 3, "their own oldest ones go first"


@pytest.mark.parametrize("path", ["/", "/index.html"])
def test_the_console_may_run_nothing_but_its_own_files(node: Node, path: str) -> None:
    reply = node.open()("GET", path)
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    etag = {"If-None-Match": reply.headers["etag"]}
    assert node.open()("GET", path, headers=etag).status_code == 304


def test_only_the_consoles_files_are_served(node: Node) -> None:
    asker = node.open()
    for path in ("/../http/app.py", "/%2e%2e/http/app.py", "/__init__.py", "/pages", "/pages/"):
        assert asker("GET", path).status_code == 404, path
    assert isinstance(asker("GET", "/pages/tasks.js"), httpx.Response)
    assert asker("GET", "/pages/tasks.js").headers["content-type"].startswith("text/javascript")


class NobodyLeft(Users):
    """The last user was removed."""

    async def anonymous(self) -> Principal:
        return EVERYBODY


def test_a_store_whose_last_user_went_is_not_open_to_other_machines_by_that(node: Node) -> None:
    nobody = NobodyLeft({}, {})
    stranger = Asker(node.loop, node.app(nobody), peer="203.0.113.9")
    assert stranger("GET", f"{API}/cluster").status_code == 401
    assert Asker(node.loop, node.app(nobody))("GET", f"{API}/cluster").status_code == 200
    wanted = Asker(node.loop, node.app(nobody, WebSettings(open=True)), peer="203.0.113.9")
    assert wanted("GET", f"{API}/cluster").status_code == 200


def test_who_has_not_logged_in_sends_no_large_body(node: Node) -> None:
    told = node.closed()("POST", f"{API}/login", content=b"x" * 4_097)
    assert told.status_code == 413
    assert told.json()["error"]["code"] == "too_large"
