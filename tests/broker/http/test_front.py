"""What every request goes through: bounds, logins, methods, followers, defects."""

import asyncio
import base64
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from broker.access import Asking
from broker.errors import NotLeader, OutcomeUnknown
from broker.http import Desk, HttpSettings, Logins, create_app, desk_of
from broker.http.desk import FOLLOWER, Standing
from broker.http.front import decoded
from broker.http.relay import FORWARDED, HttpRelay, Passed, Replied
from broker.http.shapes import TaskShape
from tests.broker.http.asking import ACME, ELSA, Client, asked
from tests.broker.service.held import held_broker
from tests.broker.service.yard import opened
from tests.simulation.virtual import elapse, virtually

SMALL = HttpSettings(body_bytes_max=1_000, bodies_bytes_max=1_000)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body"),
        (b"{", "the body"),
        (b"null", "Expected `object`"),
        (b"\xff", "the body"),
        (b"[" * 100_000, "the body"),
        (b'{"type":"t","tenant":5}', "tenant: Expected `str`, got `int`"),
        (b'{"type":"t","priority":"5"}', "priority: Expected `int`, got `str`"),
        (b'{"type":"t","priority":1e300}', "priority"),
        (b'{"type":"t","attempts_max":-1}', "attempts_max"),
        (b'{"type":"t","color":"red"}', "color"),
        (b'{"type":""}', "type: Expected `str` of length >= 1"),
        (b'{"type":"t","payload":"a","arguments":{}}', "once"),
        (b'{"type":"t","payload_base64":"!"}', "no base64"),
        (b'{"type":"t","delay_ms":1,"due_ms":1}', "not both"),
        (b'{"type":"t","parents":[{"rule":"perhaps"}]}', "rule"),
    ],
)
async def test_a_wrong_task_is_one_clear_sentence_and_changes_nothing(
    body: bytes, says: str
) -> None:
    async with asked() as client:
        before = client.broker.replica.position
        told = await client.v1("POST", "/tasks", body, expect=400)
        assert says in told["error"]["message"]
        assert "\n" not in told["error"]["message"] and told["error"]["retryable"] is False
        assert client.broker.replica.position == before


async def test_refusals_have_the_status_that_fits() -> None:
    async with asked() as client:
        await client.v1("POST", "/tasks", {"type": "t", "slot": "s"}, expect=201)
        for more, status, code in (
            ({"slot": "s"}, 409, "slot_busy"),
            ({"due_ms": 9, "deadline_ms": 5}, 422, "deadline_before_start"),
            ({"parents": [{"task_id": 77}]}, 422, "unknown_parent"),
            ({"codepool": "none"}, 422, "unknown_code_pool"),
        ):
            told = await client.v1("POST", "/tasks", {"type": "t", **more}, expect=status)
            assert told["error"]["code"] == code
        big = {"type": "t", "payload": "x" * (1024 * 1024 + 1)}
        assert (await client.v1("POST", "/tasks", big, expect=400))["error"]["code"]
        for path in ("/tasks/x", "/tasks/-1", f"/tasks/{2**70}", "/tasks/" + "9" * 5_000):
            await client.v1("GET", path, expect=400)
        await client.v1("GET", "/tasks/12", expect=404)
        for query in ({"limit": "0"}, {"limit": "ten"}, {"token": "-4"}, {"status": "asleep"}):
            reply = await client.http.get("/api/v1/tasks", params=query)
            assert reply.status_code == 400
        await client.v1("GET", "/nothing", expect=404)
        reply = await client.http.delete("/api/v1/tasks")
        assert reply.status_code == 405
        assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


async def test_a_body_over_its_bound_is_refused_before_it_is_read_whole() -> None:
    async with asked(settings=SMALL) as client:
        read = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal read
            while read < 10_000_000:
                read += 300
                yield b"x" * 300

        reply = await client.http.post("/api/v1/tasks", content=endless())
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "too_large")
        assert read <= 2_000
        told = await client.v1("POST", "/tasks", b"x" * 1_001, expect=413)
        assert "1,000 bytes" in told["error"]["message"]
        told = await client.ask("POST", "/majordodo", b"x" * 1_001, expect=413)
        assert told["ok"] is False
        await client.v1("POST", "/tasks", {"type": "t"}, expect=201)


async def test_bodies_that_are_read_together_are_bounded_together() -> None:
    async with asked(settings=SMALL) as client:
        answers: list[int] = []

        async def slow() -> AsyncIterator[bytes]:
            yield b'{"type":"t","payload":"' + b"x" * 600
            reply = await client.http.post("/api/v1/tasks", content=b" " * 600)
            answers.append(reply.status_code)
            yield b'"}'

        reply = await client.http.post("/api/v1/tasks", content=slow())
        assert (reply.status_code, answers) == (201, [503])


def basic(credentials: str) -> str:
    return "Basic " + base64.b64encode(credentials.encode()).decode()


async def test_wrong_credentials_are_told_to_log_in_and_nothing_else() -> None:
    async with asked(ELSA, ACME) as client:
        wrong = (
            None,
            "Basic !",
            "Basic " + "x" * 5_000,
            "Bearer moo",
            basic("elsa:ox"),
            basic("acme:moo"),
            basic(":"),
        )
        said = set()
        for header in wrong:
            headers = {"Authorization": header} if header else {}
            http = Client(client.app).http
            for method, path in (("GET", "/api/v1/tasks"), ("POST", "/api/v1/tasks")):
                reply = await http.request(method, path, headers=headers)
                assert reply.status_code == 401
                said.add(reply.text)
        assert len(said) == 1
        await client.v1("GET", "/tasks")
        reply = await Client(client.app).http.get("/healthz")
        assert reply.json() == {"mode": "leader", "leader": ""}
        assert "moo" not in repr(ELSA)


def test_a_body_that_does_not_come_is_given_up() -> None:
    async def script() -> None:
        async with asked(settings=HttpSettings(body_timeout_ms=5_000)) as client:

            async def dribble() -> AsyncIterator[bytes]:
                for _ in range(100):
                    yield b" "
                    await elapse(1.0)

            reply = await client.http.post("/api/v1/tasks", content=dribble())
            assert (reply.status_code, reply.json()["error"]["retryable"]) == (408, True)

    virtually(script())


async def test_a_page_of_another_site_cannot_ask_through_a_browser() -> None:
    async with asked() as client:
        for origin, status in (
            ("http://localhost", 201),
            ("http://evil", 403),
            ("null", 403),
        ):
            reply = await client.http.post(
                "/api/v1/tasks", json={"type": "t"}, headers={"Origin": origin}
            )
            assert reply.status_code == status


@pytest.mark.parametrize(
    ("url", "host", "origin", "status"),
    [
        ("https://localhost", "localhost", "https://localhost", 201),
        ("https://localhost", "localhost:443", "https://localhost", 201),
        ("https://localhost", "localhost", "https://LOCALHOST:443", 201),
        ("https://localhost:7364", "localhost:7364", "https://localhost:7364", 201),
        ("https://localhost", "localhost", "http://localhost", 403),
        ("https://localhost:7364", "localhost:7364", "http://localhost:7364", 403),
        ("https://localhost:7364", "localhost:7364", "https://localhost", 403),
        ("https://localhost", "localhost", "https://localhost:80", 403),
        ("https://localhost", "localhost", "//localhost", 403),
        ("https://localhost", "localhost", "ftp://localhost", 403),
        ("https://localhost", "localhost", "localhost", 403),
        ("https://localhost", "localhost", "https://evil", 403),
        ("https://localhost", "localhost", "https://localhost@evil", 403),
        ("http://localhost:80", "localhost", "http://localhost:80", 201),
        ("http://localhost:7364", "localhost:7364", "http://localhost:7364", 201),
        ("http://localhost:7364", "localhost:7364", "http://localhost:7365", 403),
        ("http://[::1]:7364", "[::1]:7364", "http://[::1]:7364", 201),
        ("http://[::1]:7364", "[::1]:7364", "http://[::1]", 403),
        # Behind a proxy that ends TLS.
        ("http://localhost", "localhost", "https://localhost", 201),
        ("http://localhost", "localhost:80", "https://localhost", 403),
    ],
)
async def test_a_page_is_ours_if_scheme_host_and_port_are(
    url: str, host: str, origin: str, status: int
) -> None:
    async with asked() as client:
        headers = {"Host": host, "Origin": origin}
        place = f"{url}/api/v1/tasks"
        reply = await client.http.post(place, json={"type": "t"}, headers=headers)
        assert reply.status_code == status


async def test_a_host_that_is_not_ours_is_refused_whatever_is_asked() -> None:
    async with opened() as broker:
        client = Client(create_app(desk_of(broker), names=("Cows.example", "")))
        for host in ("evil.example:7364", "localhost.evil.example", "127.0.0.1.evil.example", ""):
            # What a page asks whose own name was made to mean this machine.
            same = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
            for method, path in (("POST", "/api/v1/tasks"), ("GET", "/majordodo")):
                reply = await client.http.request(
                    method, path, json={"type": "t"}, headers=same, params={"view": "status"}
                )
                assert (reply.status_code, reply.json()["error"]["code"]) == (421, "wrong_host")
            assert (await client.http.get("/metrics", headers=same)).status_code == 421
        for host in ("cows.example:7364", "COWS.example.", "127.0.0.1:80", "[::1]:80", "localhost"):
            reply = await client.http.get("/api/v1/status", headers={"Host": host})
            assert reply.status_code == 200, host


async def test_metrics_are_prometheus_text_where_there_are_any() -> None:
    async with opened() as broker:
        client = Client(create_app(desk_of(broker), metrics=lambda: b"tasks 1\n"))
        reply = await client.http.get("/metrics")
        assert (reply.status_code, reply.text) == (200, "tasks 1\n")
        without = Client(create_app(desk_of(broker)))
        assert (await without.http.get("/metrics")).status_code == 404


async def test_a_leader_without_a_lease_answers_over_http_what_its_log_confirms() -> None:
    async with held_broker() as held:
        client = Client(create_app(desk_of(held.broker)))
        held.replica.leased = False
        told = await client.v1("POST", "/tasks", {"type": "milk"}, expect=201)
        confirmed = held.replica.confirmed
        found = await client.v1("GET", f"/tasks/{told['id']}")
        assert found["type"] == "milk" and held.replica.confirmed == confirmed + 1
        held.replica.deposed = True
        await client.v1("GET", f"/tasks/{told['id']}", expect=503)


class Known:
    """A doorkeeper that knows who asks by one header."""

    def __init__(self, *users: Asking) -> None:
        self.users = {each.name: each for each in users}

    def asking(self, request: Request) -> Asking | None:
        return self.users.get(request.headers.get("x-user", ""))


NO_GRANT = Asking("eve", admin=False)
READER = Asking("otto", admin=False, readable=("shop",))
WRITER = Asking("ann", admin=False, tenants=("shop",))
ADMIN = Asking("elsa")


@asynccontextmanager
async def known(*users: Asking) -> AsyncIterator[Callable[..., Awaitable[httpx.Response]]]:
    """What asks a broker as one of some users."""
    async with opened() as broker:
        app = create_app(desk_of(broker), Known(*users), metrics=lambda: b"waiting{shop} 7\n")
        client = Client(app, broker)

        async def ask(who: Asking, method: str, path: str, body: object = None) -> httpx.Response:
            return await client.http.request(method, path, headers={"x-user": who.name}, json=body)

        yield ask


async def test_metrics_which_name_all_tenants_are_for_administrators() -> None:
    async with known(NO_GRANT, READER, WRITER, ADMIN) as ask:
        for who in (NO_GRANT, READER, WRITER):
            reply = await ask(who, "GET", "/metrics")
            assert reply.status_code == 403 and "shop" not in reply.text
            assert reply.json()["error"]["code"] == "access_denied"
        assert (await ask(ADMIN, "GET", "/metrics")).text == "waiting{shop} 7\n"


async def test_a_user_without_a_tenant_opens_no_transaction() -> None:
    begin = {"action": "beginTransaction"}
    async with known(NO_GRANT, READER, WRITER, ADMIN) as ask:
        for who in (NO_GRANT, READER):
            assert (await ask(who, "POST", "/api/v1/transactions")).status_code == 403
            assert not (await ask(who, "POST", "/majordodo", begin)).json()["ok"]
        for who in (WRITER, ADMIN):
            assert (await ask(who, "POST", "/api/v1/transactions")).status_code == 201
            assert (await ask(who, "POST", "/majordodo", begin)).json()["ok"]


async def test_one_user_has_only_so_many_open_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.service.TRANSACTIONS_MAX", 52)
    begin = "/api/v1/transactions"
    async with known(WRITER, ADMIN) as ask:
        replies = await asyncio.gather(*(ask(WRITER, "POST", begin) for _ in range(5)))
        told = sorted(reply.status_code for reply in replies)
        assert told == [201, 201, 201, 503, 503], "those on their way count, too"
        assert (await ask(WRITER, "POST", begin)).json()["error"]["code"] == "overloaded"
        assert (await ask(ADMIN, "POST", begin)).status_code == 201, "others have a share"
        begun = next(reply for reply in replies if reply.status_code == 201)
        number = begun.json()["transaction"]
        assert (await ask(WRITER, "POST", f"{begin}/{number}/rollback")).status_code == 200
        assert (await ask(WRITER, "POST", begin)).status_code == 201


class Following:
    """The calls of a broker that does not lead."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        async def refuse(*_: Any, **__: Any) -> Any:
            raise self.error

        return refuse


def follower(error: Exception) -> Desk:
    calls: Any = Following(error)
    return Desk(calls, calls, lambda: Standing(FOLLOWER, "leader:7"))


NOT_HERE = NotLeader("this broker does not lead", leader="leader:7")


async def test_a_follower_without_a_way_to_the_leader_says_who_leads() -> None:
    client = Client(create_app(follower(NOT_HERE)))
    told = await client.v1("POST", "/tasks", {"type": "t"}, expect=503)
    assert (told["error"]["code"], told["error"]["leader"]) == ("not_leader", "leader:7")
    told = await client.act("submitTask", tasktype="t")
    assert told["ok"] is False and "broker_not_leader" in told["error"]
    assert told["status"]["clusterMode"] == "FOLLOWER"
    told = await client.view("status")
    assert (told["ok"], told["status"]) == (True, "FOLLOWER")


async def test_a_follower_passes_requests_on_and_their_replies_back() -> None:
    async with asked(ELSA) as leader:
        transport = httpx.ASGITransport(app=leader.app)
        async with httpx.AsyncClient(transport=transport) as http:
            relay = HttpRelay(lambda: http)
            app = create_app(follower(NOT_HERE), Logins([ELSA]), relay=relay)
            client = Client(app, login=ELSA)
            made = await client.v1("POST", "/tasks", {"type": "t", "payload": "x"}, expect=201)
            assert leader.broker.get(made["id"]).payload == b"x"
            page = await client.v1("GET", "/tasks", limit=1)
            assert [each["id"] for each in page["tasks"]] == [made["id"]]
            await client.v1("GET", "/tasks/77", expect=404)
            assert (await client.act("submitTask", tasktype="t"))["taskId"] == made["id"] + 1


@pytest.mark.parametrize("name", ["50%2541", "a%2Fb", "%C3%BC", "a%20b?above=%2541&limit=1"])
async def test_a_request_is_passed_on_as_it_came(name: str) -> None:
    relay = Scripted(None)
    client = Client(create_app(follower(NOT_HERE), relay=relay))
    await client.http.get(f"http://localhost/api/v1/schedules/{name}")
    assert [passed.target for passed in relay.asked] == [f"/api/v1/schedules/{name}"]


async def test_what_was_done_is_not_done_again_when_the_leader_goes_before_its_reply() -> None:
    relay = Scripted(None)
    async with opened() as broker:

        async def gone() -> Any:
            raise NOT_HERE

        broker.counts = gone  # type: ignore[method-assign]
        client = Client(create_app(desk_of(broker), relay=relay))
        told = await client.act("submitTask", tasktype="t")
        assert (told["ok"], told["taskId"], relay.asked) == (True, 1, [])


async def test_a_call_that_takes_too_long_is_no_body_that_came_late() -> None:
    client = Client(create_app(follower(TimeoutError())))
    told = await client.v1("GET", "/status", expect=500)
    assert told["error"]["code"] == "internal"


class Scripted:
    """A way to a leader that does as it is told."""

    def __init__(self, reply: Replied | Exception | None) -> None:
        self.reply = reply
        self.asked: list[Passed] = []

    async def ask(self, leader: str, request: Passed) -> Replied | None:
        self.asked.append(request)
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


async def test_what_was_passed_on_once_is_not_passed_on_again() -> None:
    relay = Scripted(None)
    client = Client(create_app(follower(NOT_HERE), relay=relay))
    reply = await client.http.get("/api/v1/status", headers={FORWARDED: "1"})
    assert (reply.status_code, relay.asked) == (503, [])
    await client.v1("GET", "/status", expect=503)
    assert len(relay.asked) == 1
    lost = Scripted(OutcomeUnknown("the leader did not answer"))
    client = Client(create_app(follower(NOT_HERE), relay=lost))
    told = await client.v1("POST", "/tasks", {"type": "t"}, expect=504)
    assert told["error"]["code"] == "outcome_unknown"
    told = await client.act("submitTask", tasktype="t")
    assert told["ok"] is False


async def test_a_leader_that_is_not_reached_or_breaks_off_is_told_apart() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise (httpx.ConnectError if request.url.host == "gone" else httpx.ReadError)("no")

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        relay = HttpRelay(lambda: http)
        request = Passed("GET", "/api/v1/status", {"authorization": "x", "cookie": "y"}, b"")
        assert await relay.ask("gone:1", request) is None
        with pytest.raises(OutcomeUnknown):
            await relay.ask("there:1", request)


async def test_a_defect_is_logged_and_shows_nothing_of_the_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = follower(ZeroDivisionError("secret detail"))
    client = Client(create_app(broken))
    with caplog.at_level(logging.ERROR):
        told = await client.v1("GET", "/status", expect=500)
    assert told["error"]["code"] == "internal" and "secret" not in str(told)
    assert "secret detail" in caplog.text
    reply = await client.http.post("/majordodo", content=b'{"action":"beginTransaction"}')
    assert reply.status_code == 500 and "secret" not in reply.text


def test_the_collector_looks_at_most_once_at_a_large_body_that_is_read() -> None:
    looks = [0]

    def look(phase: str, _: dict[str, int]) -> None:
        looks[0] += phase == "start"

    body = b'{"type":"t","arguments":{"a":[' + b"[]," * 100_000 + b"[]]}}"
    gc.callbacks.append(look)
    try:
        kept = decoded(body, TaskShape)
    finally:
        gc.callbacks.remove(look)
    assert len(kept.arguments["a"]) == 100_001 and gc.isenabled()
    assert looks[0] <= 1
