"""Who is let in, and to what: every route that there is, asked by those who may not."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from starlette.types import ASGIApp

from engine.access.audit import LineAudit
from engine.access.principal import ALL, Grant, Principal
from herd.errors import AccessDenied, CommitUnknown
from herdbook.http.app import ROUTES, broker_needs, create_app
from herdbook.http.openapi import merged
from herdbook.http.routes import Need, Route
from herdbook.http.settings import WebSettings
from tests.engine.access.known_users import KeptAudit
from tests.herdbook.http.yard import API, Asker, Node

EXEMPT = {("post", f"{API}/login")}
"""Of the document; beside it: health, the console's files, and metrics where that is set."""
OF_ANYBODY_KNOWN = {
    *("me", "log_in", "log_out", "openapi", "show_rates", "show_cluster"),
    *("list_tablespaces", "list_buckets", "list_use", "list_tasks", "list_dead_letters", "begin"),
    *("status", "list_workers", "list_resources"),
}
"""By their names in the document."""
BODIES: dict[str, Any] = {
    "query": {"sql": "SELECT 1"},
    "create_bucket": {"name": "alma"},
    "log_in": {"user": "x", "password": "y"},
}


def operations() -> Iterator[tuple[str, str, str]]:
    """Method, path and name of all that the document has; of things that belong to alma."""
    for path, by_method in merged()["paths"].items():
        for method, operation in by_method.items():
            filled = path.replace("{bucket}", "alma").replace("{id}", "1")
            filled = filled.replace("/tablespaces/{name}", "/tablespaces/alma")
            while "{" in filled:
                filled = filled[: filled.index("{")] + "alma" + filled[filled.index("}") + 1 :]
            yield method, filled, operation["operationId"]


def refused(asker: Asker, statuses: set[int]) -> set[tuple[str, str]]:
    """The operations whose replies have other statuses."""
    found = set()
    for method, path, name in operations():
        reply = asker(method.upper(), path, json=BODIES.get(name, {}))
        if reply.status_code not in statuses:
            found.add((method, path))
    return found


def test_every_operation_is_refused_without_credentials(node: Node) -> None:
    found = refused(node.closed(), {401})
    assert found == set(), "only what is exempt by name answers, and that wants a right password"
    assert len(list(operations())) > 60


def test_every_operation_is_refused_with_wrong_credentials(node: Node) -> None:
    app = node.app(node.users)
    let_in = set()
    for number, (method, path, name) in enumerate(operations()):
        # Each from an address of its own: whoever goes on guessing from one is only told to wait.
        guesser = Asker(node.loop, app, ("elsa", "wrong"), peer=f"10.0.0.{number}")
        if name != "log_in" and guesser(method.upper(), path).status_code != 401:
            let_in.add((method, path))
    assert let_in == set()


def test_every_operation_is_refused_to_who_has_another_bucket_tablespace_and_tenant(
    node: Node,
) -> None:
    task = node.open().json("POST", "/tasks", json={"type": "sleep", "tenant": "alma"}, expect=201)
    begun = node.closed("alma").json("POST", "/transactions", expect=201)["transaction"]
    ids = {
        "/tasks/1": f"/tasks/{task['id']}",
        "/transactions/1": f"/transactions/{begun}",
    }
    of_alma = {"type": "sleep", "tenant": "alma"}
    bodies = BODIES | {"submit_task": of_alma, "submit_tasks": {"tasks": [of_alma]}}
    bodies |= {f"{what}_tasks": {"ids": [task["id"]]} for what in ("cancel", "retry", "delete")}
    stranger, let_in = node.closed("stranger"), {}
    for method, path, name in operations():
        for one, other in ids.items():
            path = path.replace(one, other)
        reply = stranger(method.upper(), path, json=bodies.get(name, {}))
        if reply.status_code not in {403, 404}:
            let_in[name] = reply
    assert set(let_in) == OF_ANYBODY_KNOWN, "these show what the caller may see, and nothing more"
    del let_in["openapi"]
    assert not [name for name, reply in let_in.items() if "alma" in reply.text]


def test_who_has_no_grant_sees_no_names(node: Node) -> None:
    nobody = node.closed("nobody")
    told = nobody.json("GET", "/cluster")
    assert told["buckets"] == [] and told["tablespaces"] == [] and told["url"] == ""
    assert not any(each["address"] or each["host"] for each in told["nodes"])
    assert nobody.json("GET", "/buckets") == {"buckets": []}
    assert nobody.json("GET", "/rates")["appends"] == {}
    for path in ("/tasks", "/status", "/ledgers", "/bookies"):
        assert nobody.json("GET", path, expect=403)["error"]["code"] == "access_refused"


def test_who_may_only_read_changes_nothing(node: Node) -> None:
    node.closed("alma")("PUT", f"{API}/buckets/alma/objects/rita", content=b"x")
    rita = node.closed("rita")
    assert rita("GET", f"{API}/buckets/alma/objects/rita").content == b"x"
    for method in ("PUT", "DELETE"):
        assert rita(method, f"{API}/buckets/alma/objects/rita").status_code == 403
    assert rita.sql("alma", "SELECT count(*) FROM cows")["row_count"] == 1
    rita.sql("alma", "INSERT INTO cows VALUES (1, 'x')", expect=403)
    rita.sql("alma", "DELETE FROM cows", expect=403)
    rita.json("POST", "/tasks", json={"type": "t", "tenant": "alma"}, expect=403)
    rita.json("GET", "/tasks", params={"tenant": "alma"})


def test_the_systems_own_tablespace_is_for_administrators_even_where_all_are_granted() -> None:
    from engine.access.principal import Grant, Principal
    from herdbook.http.gate import _check

    need = Need("tablespace", "read", "name")
    reader = Principal("r", grants=(Grant("tablespace", "*", "admin"),))
    _check(need, reader, {"name": "alma"}, None)
    with pytest.raises(Exception, match="may not read tablespace system"):
        _check(need, reader, {"name": "SYSTEM"}, None)


def test_a_route_that_does_not_say_what_it_needs_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="need"):
        Route("GET", "/x", "x", "X.", handler=None)  # type: ignore[call-arg, arg-type]
    needs = {(method, path) for method, path, _ in broker_needs()}
    told = {
        (method.upper(), path)
        for path, by_method in merged()["paths"].items()
        for method in by_method
    }
    assert told == {each for each in needs if each[1] != "/majordodo"} | {
        (route.method, API + route.path) for route in ROUTES
    }
    assert all(route.need.public or route.need.text for route in ROUTES)


def test_a_node_of_which_a_role_does_not_serve_is_not_ready_and_says_which(node: Node) -> None:
    lacking = ["herd is silent"]

    async def made() -> ASGIApp:
        return create_app(node.house, lacking=lambda: ", ".join(lacking))

    ask = Asker(node.loop, node.loop.run(made))
    told = ask("GET", "/health/ready")
    assert told.status_code == 503
    assert told.json() == {"ready": False, "degraded": False, "why": "herd is silent"}
    lacking.clear()
    assert ask("GET", "/health/ready").status_code == 200


def test_health_the_login_page_and_the_consoles_files_need_no_login(node: Node) -> None:
    asker = node.closed()
    for path in ("/health/live", "/health/ready", "/healthz", "/", "/index.html", "/api.js"):
        assert asker("GET", path).status_code == 200, path
    assert asker("GET", "/login").status_code == 303
    assert asker("GET", "/metrics").status_code == 401
    shown = node.closed(settings=WebSettings(open_metrics=True))("GET", "/metrics")
    assert shown.status_code == 200 and b"herdbook_client_adds_total" in shown.content
    assert node.closed("elsa")("GET", "/metrics").status_code == 200
    assert node.closed("alma")("GET", "/metrics").status_code == 403


def test_a_bearer_token_is_as_good_as_a_password(node: Node) -> None:
    asker = node.closed()
    right = {"Authorization": f"Bearer {'t' * 32}"}
    assert asker.json("GET", "/me", headers=right)["user"] == "alma"
    for wrong in ("Bearer", "Bearer x", "Digest x", "Basic", "Basic !!", "Basic Zm9v"):
        reply = asker("GET", f"{API}/me", headers={"Authorization": wrong})
        assert reply.status_code == 401, wrong
        assert "Basic" in reply.headers["www-authenticate"]


def test_many_requests_at_once_with_one_password_ask_for_it_once(node: Node) -> None:
    import asyncio

    app, before = node.app(node.users), node.users.asked

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(app=app)
        auth = ("elsa", "elsa-moo")
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", auth=auth
        ) as client:
            replies = await asyncio.gather(*(client.get(f"{API}/me") for _ in range(50)))
        return [reply.status_code for reply in replies]

    assert node.loop.run(ask) == [200] * 50
    assert node.users.asked == before + 1


def test_logins_refusals_and_changes_are_noted_and_no_secret_is(node: Node) -> None:
    lines: list[str] = []
    audit = LineAudit(lines.append, lambda: 0)
    node.closed("alma", audit=audit).json("DELETE", "/ledgers/1", expect=403)
    node.closed("elsa", audit=audit).json("POST", "/repair/on")
    asker = node.closed(audit=audit)
    asker.json("POST", "/login", json={"user": "alma", "password": "wrong-moo"}, expect=401)
    asker.json("POST", "/login", json={"user": "alma", "password": "alma-moo"})
    text = "\n".join(lines)
    assert len(lines) == 6 and "moo" not in text
    assert '"who":"alma","what":"log in","where":"http","allowed":true' in lines[0]
    assert '"who":"alma","what":"DELETE"' in lines[1] and '"allowed":false' in lines[1]
    assert '"who":"elsa","what":"POST","where":"/api/v1/repair/on","allowed":true' in lines[3]


def test_a_login_with_each_request_is_noted_once_and_so_is_what_is_not_let_in(node: Node) -> None:
    audit = KeptAudit()
    app = node.app(node.users, audit=audit)
    alma = Asker(node.loop, app, ("alma", "alma-moo"))
    for _ in range(3):
        assert alma("GET", f"{API}/me").status_code == 200
    elsewhere = {"Origin": "http://evil.example"}
    assert alma("POST", f"{API}/repair/on", headers=elsewhere).status_code == 403
    assert alma("GET", f"{API}/me", headers={"Host": "evil.example"}).status_code == 421
    assert alma("GET", f"{API}/me", headers={"Host": "a[b"}).status_code == 421
    told = [(event.who, event.what, event.where, event.allowed) for event in audit.events]
    assert told == [
        ("alma", "log in", "http", True),
        ("", "POST", f"{API}/repair/on", False),
        ("", "GET", f"{API}/me", False),
        ("", "GET", f"{API}/me", False),
    ]


@pytest.mark.parametrize(
    ("error", "status", "allowed"),
    [
        (CommitUnknown("nobody answers"), 504, True),
        (TimeoutError(), 504, True),
        (RuntimeError("a defect"), 500, True),
        (AccessDenied("alma may not"), 403, False),
    ],
)
def test_a_change_that_may_have_happened_or_is_refused_by_its_handler_is_noted(
    node: Node, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, allowed: bool
) -> None:
    audit = KeptAudit()
    alma = node.closed("alma", audit=audit)
    monkeypatch.setattr(node.house.herd, "session", AsyncMock(side_effect=error))
    alma.sql("alma", "DELETE FROM cows", expect=status)
    *_, event = audit.events
    where = f"{API}/tablespaces/alma/query"
    assert (event.who, event.what, event.where) == ("alma", "POST", where)
    assert event.allowed == allowed and event.why and len(audit.events) == 2


def test_no_grant_lets_a_user_write_by_sql_what_says_what_buckets_hold(node: Node) -> None:
    root = node.open()
    root.json("POST", "/buckets", json={"name": "letters"}, expect=201)
    assert root("PUT", f"{API}/buckets/letters/objects/elsa", content=b"moo").status_code == 201
    grants = [Grant("tablespace", name, "admin") for name in (ALL, "blobs")]
    node.users.principals["mallory"] = Principal("mallory", grants=tuple(grants))
    node.users.passwords["mallory"] = "mallory-moo"
    mallory = node.closed("mallory")
    [[bucket]] = mallory.sql("blobs", "SELECT bucket_id FROM objects WHERE name = 'elsa'")["rows"]
    for text in (
        f"INSERT INTO dying VALUES (1, {bucket}, 1)",
        "UPDATE objects SET object_id = NULL",
        "SELECT * FROM objects FOR UPDATE",
        "DROP TABLE refs",
    ):
        mallory.sql("Blobs", text, expect=403)
    assert root.sql("blobs", "SELECT * FROM dying")["rows"] == []
    assert root("GET", f"{API}/buckets/letters/objects/elsa").content == b"moo"
