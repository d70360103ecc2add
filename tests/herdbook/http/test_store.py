"""Everything of the store but its objects, over HTTP: SQL, ledgers, bookies, repair, rates."""

import asyncio
import json
import threading
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from broker.access import Asking
from engine.metadata.bookies import Bookies, FolderAge
from herd.sql import parsing
from herd.staging.layout import Job
from herd.staging.registry import Label
from herdbook.http.cluster import BookieFacts, DiskFacts, disks_of
from herdbook.http.rates import Sample, Sampler, rates_of
from herdbook.http.tablespaces import RESULT_BYTES_MAX
from tests.herdbook.http.yard import API, Asker, Node


@pytest.fixture(scope="module")
def ask(node: Node) -> Asker:
    """Asks as everybody."""
    return node.open()


def code_of(told: Any) -> str:
    """The word for what went wrong."""
    code: str = told["error"]["code"]
    return code


# SQL


class Endless:
    """A session whose statement ends only by being cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = self.closed = False

    async def execute(self, *_: object) -> None:
        """Go on and on."""
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    async def close(self) -> None:
        """See `Session`."""
        self.closed = True


@pytest.mark.parametrize("text", ["SELECT count(*) FROM cows", "DELETE FROM cows"])
def test_a_statement_whose_client_hangs_up_is_cancelled(
    node: Node, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    app = node.app()

    async def hang_up() -> Endless:
        session = Endless()
        monkeypatch.setattr(node.house.herd, "session", AsyncMock(return_value=session))
        body = json.dumps({"sql": text, "timeout_ms": 300_000}).encode()
        asked = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            if (message := next(asked, None)) is not None:
                return message
            await session.begun.wait()
            return {"type": "http.disconnect"}

        path = f"{API}/tablespaces/alma/query"
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
        scope |= {"headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1)}
        async with asyncio.timeout(10):
            await app(scope, receive, AsyncMock())
        return session

    session = node.loop.run(hang_up)
    assert session.cancelled and session.closed


def test_values_come_as_json_without_loss(ask: Asker) -> None:
    ask.sql(
        "alma",
        "CREATE TABLE kinds (id BIGINT PRIMARY KEY, d DECIMAL(20,3), b BLOB, t TIMESTAMP, "
        "f DOUBLE, x BOOLEAN, n VARCHAR)",
    )
    ask.sql(
        "alma",
        "INSERT INTO kinds VALUES (9007199254740993, 12345678901234567.125, CAST('moo' AS BLOB), "
        "'2026-11-22 10:11:12', 0.5, TRUE, ?)",
        parameters=[None],
    )
    told = ask.sql("alma", "SELECT * FROM kinds")
    assert told["rows"] == [
        [
            "9007199254740993",
            "12345678901234567.125",
            "bW9v",
            "2026-11-22 10:11:12",
            0.5,
            True,
            None,
        ]
    ]
    assert [each["type"] for each in told["columns"]][:3] == ["BIGINT", "DECIMAL(20,3)", "BLOB"]
    assert told["elapsed_ms"] > 0 and told["kind"] == "SELECT"


def test_a_result_is_cut_off_at_its_limit_and_says_so(ask: Asker) -> None:
    many = "SELECT range AS n FROM range(100000)"
    for limit, text in ((10, many), (150, f"{many} -- all"), (5, f"{many} LIMIT 50")):
        told = ask.sql("alma", text, limit=limit)
        assert (told["row_count"], len(told["rows"]), told["truncated"]) == (limit, limit, True)
        assert told["rows"][-1] == [limit - 1]
    assert ask.sql("alma", f"{many} LIMIT 5", limit=5)["truncated"] is False
    wide = "SELECT repeat('x', 1000000) AS w FROM range(100)"
    told = ask.sql("alma", wide)
    assert told["truncated"] and 0 < told["row_count"] <= RESULT_BYTES_MAX // 1_000_000


def test_a_query_that_takes_too_long_is_ended(ask: Asker) -> None:
    slow = "SELECT count(*) FROM range(100000000) a, range(100000) b"
    assert code_of(ask.sql("alma", slow, timeout_ms=50, expect=408)) == "query_late"
    assert ask.sql("alma", "SELECT 1 AS one")["rows"] == [[1]]


def test_changes_are_counted_and_each_statement_stands_alone(ask: Asker) -> None:
    ask.sql("other", "INSERT INTO cows VALUES (1, 'a'), (2, 'b')")
    told = ask.sql("other", "UPDATE cows SET name = 'c'")
    assert (told["row_count"], told["columns"], told["rows"]) == (2, [], [])
    for text in ("BEGIN", "COMMIT", "SET AUTOCOMMIT OFF"):
        assert code_of(ask.sql("other", text, expect=400)) == "not_supported_error"
    assert code_of(ask.sql("other", "INSERT INTO cows VALUES (1, 'x')", expect=409)) == (
        "unique_violation"
    )


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO cows VALUES (7, 'x')",
        "SELECT * FROM cows WHERE id = 1 FOR UPDATE",
        "DROP TABLE cows",
        "TRUNCATE TABLE cows",
        "CHECKPOINT",
        "CREATE TABLESPACE more",
        "SELECT * FROM sysclients",
        "SELECT tablespace_name FROM SysTablespaces",
        "/* SELECT */ DELETE FROM cows",
        "-- SELECT\nUPSERT INTO cows VALUES (7, 'x')",
        "WITH a AS (SELECT 1) INSERT INTO cows SELECT 7, 'x'",
    ],
)
def test_who_may_only_read_may_only_look(node: Node, text: str) -> None:
    assert node.closed("rita").sql("alma", text, expect=403)["error"]["code"] == "access_refused"


def test_who_may_write_may_not_rule_a_tablespace(node: Node) -> None:
    alma = node.closed("alma")
    alma.sql("alma", "UPSERT INTO cows VALUES (7, 'x')")
    assert alma.sql("alma", "EXPLAIN DELETE FROM cows")["kind"] == "EXPLAIN"
    assert alma.sql("alma", "SELECT table_name FROM systables")["row_count"] > 0
    for text in ("DROP TABLESPACE other", "DROP TABLE cows", "TRUNCATE TABLE cows"):
        assert code_of(alma.sql("alma", text, expect=403)) == "access_refused"


def test_who_administers_a_tablespace_reaches_no_other_one_through_it(node: Node) -> None:
    stranger = node.closed("stranger")
    stranger.sql("other", "CREATE TABLE own (id BIGINT PRIMARY KEY)")
    for text in (
        "DROP TABLESPACE alma",
        "ALTER TABLESPACE alma SET replicas = 1",
        "SELECT * FROM sysnodes",
        "SELECT 1 FROM cows UNION SELECT 1 FROM sysstatements",
    ):
        assert code_of(stranger.sql("other", text, expect=403)) == "access_refused"


def test_a_view_shows_nobody_more_than_they_may_see(node: Node) -> None:
    node.open().sql("alma", "CREATE VIEW everyone AS SELECT * FROM systablespaces")
    node.open().sql("alma", "CREATE VIEW others AS SELECT * FROM sysclients")
    kept = node.loop.run(lambda: node.house.herd.session("alma"))
    try:
        rita = node.closed("rita")
        told = rita.sql("alma", "SELECT tablespace_name FROM everyone")
        assert [row[0] for row in told["rows"]] == ["alma"]
        assert rita.sql("alma", "SELECT count(*) FROM others")["rows"] == [[1]]
        assert node.open().sql("alma", "SELECT count(*) FROM others")["rows"] == [[2]]
        refused = rita.sql("alma", "EXPLAIN SELECT * FROM sysclients", expect=403)
        assert code_of(refused) == "access_refused"
    finally:
        node.loop.run(kept.close)


def test_what_is_no_sql_is_refused_with_its_place(ask: Asker) -> None:
    told = ask.sql("alma", "SELECT nam FROM cows", expect=400)["error"]
    assert told["code"] == "no_such_column" and "at character 8" in told["message"]
    assert code_of(ask.sql("alma", "SELEKT 1", expect=400)) == "sql_syntax_error"
    assert code_of(ask.sql("none", "SELECT 1", expect=404)) == "no_such_tablespace"
    for body in ({}, {"sql": 1}, {"sql": "SELECT 1", "limit": 0}, {"sql": "", "more": 1}):
        ask.json("POST", "/tablespaces/alma/query", json=body, expect=400)


def test_what_a_request_says_wrongly_is_no_matter_of_tasks(ask: Asker) -> None:
    wrong: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("GET", "/buckets/alma/objects", {"params": {"perfix": "a"}}),
        ("GET", "/buckets/alma/objects", {"params": {"limit": "many"}}),
        ("GET", "/ledgers/elsa", {}),
        ("POST", "/tablespaces/alma/query", {"json": {"sql": 1}}),
    )
    for method, path, more in wrong:
        told = ask.json(method, path, expect=400, **more)
        assert code_of(told) == "invalid_request", path
    told = ask.json("GET", "/buckets/alma/objects", expect=400, params={"perfix": "a"})
    assert "'perfix'" in told["error"]["message"] and "prefix" in told["error"]["message"]


def test_tables_are_told_with_their_columns(ask: Asker) -> None:
    told = ask.json("GET", "/tablespaces/other/tables")["tables"]
    [cows] = [each for each in told if each["name"] == "cows"]
    assert [(each["name"], each["primary"]) for each in cows["columns"]] == [
        ("id", True),
        ("name", False),
    ]
    assert "alma" in ask.json("GET", "/tablespaces")["tablespaces"]


# The store


def test_the_cluster_at_a_glance(ask: Asker) -> None:
    told = ask.json("GET", "/cluster")
    assert told["bookies"] == {"total": 1, "up": 1, "read_only": 0}
    assert (told["name"], told["under_replicated"], told["warnings"]) == ("yard", 0, [])
    assert 0 < told["disk"]["used_bytes"] < told["disk"]["total_bytes"]
    assert {"alma", "other"} <= set(told["tablespaces"]) & set(told["buckets"])
    [bookie] = ask.json("GET", "/bookies")["bookies"]
    assert bookie["state"] == "writable" and bookie["free_bytes"] > 0
    assert [each["role"] for each in told["nodes"]] == ["bookie"]


def test_ledgers_come_in_pages_and_those_of_others_are_not_deleted(ask: Asker) -> None:
    whole = ask.json("GET", "/ledgers", params={"limit": 1000})
    assert whole["after"] is None and whole["total"] == len(whole["ledgers"])
    paged: list[dict[str, Any]] = []
    after: int | None = -1
    while after is not None:
        page = ask.json("GET", "/ledgers", params={"limit": 2, "after": after})
        paged += page["ledgers"]
        after = page["after"]
    ids = [each["ledger_id"] for each in whole["ledgers"]]
    assert [each["ledger_id"] for each in paged] == ids == sorted(ids)
    owned = next(each for each in paged if each["owner"].startswith("log:"))
    told = ask.json("GET", f"/ledgers/{owned['ledger_id']}")
    assert told["fragments"][0]["first"] == 0 and told["metadata"]["owner"] == owned["owner"]
    refused = ask.json("DELETE", f"/ledgers/{owned['ledger_id']}", expect=409)
    assert code_of(refused) == "owned"
    ask.json("GET", "/ledgers/999999", expect=404)
    ask.json("GET", "/ledgers/elsa", expect=400)


def test_staged_rows_of_a_job_are_deleted_by_force_alone(node: Node, ask: Asker) -> None:
    async def stage() -> int:
        label = Label(tablespace="alma", job=Job("copies"))
        writer = await node.house.ledgers.create_ledger(metadata=label.metadata)
        await writer.close()
        return writer.ledger_id

    path = f"/ledgers/{node.loop.run(stage)}"
    refused = ask.json("DELETE", path, expect=409)
    assert code_of(refused) == "owned" and "herd-staging" in refused["error"]["message"]
    ask.json("DELETE", path, params={"force": "true"})


def test_a_ledger_of_nobodys_is_deleted(node: Node, ask: Asker) -> None:
    async def make() -> int:
        writer = await node.house.ledgers.create_ledger()
        await writer.append(b"moo")
        await writer.close()
        return writer.ledger_id

    ledger_id = node.loop.run(make)
    shown = ask.json("GET", f"/ledgers/{ledger_id}")
    assert (shown["state"], shown["last_entry"], shown["length"]) == ("closed", 0, 3)
    assert ask.json("DELETE", f"/ledgers/{ledger_id}") == {"changed": True}
    ask.json("GET", f"/ledgers/{ledger_id}", expect=404)


def test_repair_is_switched_and_a_scrub_reads_everything(node: Node, ask: Asker) -> None:
    assert ask.json("POST", "/repair/off", json={"reason": "rest"}) == {"changed": True}
    told = ask.json("GET", "/repair")
    assert (told["on"], told["reason"]) == (False, "rest")
    assert any("repair is switched off" in each for each in ask.json("GET", "/cluster")["warnings"])
    assert ask.json("POST", "/repair/on") == {"changed": True}
    assert ask.json("POST", "/repair/scrub", expect=202) == {"changed": True}

    while "scrub" in node.house.chores.running:
        ask.json("GET", "/repair")
    scrub = ask.json("GET", "/repair")["scrub"]
    assert scrub["finished"] and scrub["ledgers"] > 0 and scrub["faults"] == 0
    assert not scrub["running"]


def test_a_bookie_is_told_to_go_and_to_stay(tmp_path: Path) -> None:
    with closing(Node(tmp_path / "store")) as node:
        ask = node.open()
        [bookie] = ask.json("GET", "/bookies")["bookies"]
        path = f"/bookies/{bookie['bookie_id']}/decommission"
        told = ask.json("POST", path)
        assert told["leaving"] and told["left"] > 0
        [shown] = ask.json("GET", "/bookies")["bookies"]
        assert shown["leaving"]
        assert ask.json("POST", path, json={"cancel": True})["leaving"] is False
        assert code_of(ask.json("POST", "/bookies/x/decommission", expect=404)) == "no_such_bookie"


def test_a_bookie_that_is_gone_is_forgotten_and_one_that_serves_is_not(tmp_path: Path) -> None:
    with closing(Node(tmp_path / "store")) as node:
        ask = node.open()
        [bookie] = ask.json("GET", "/bookies")["bookies"]
        path = f"/bookies/{bookie['bookie_id']}"
        assert code_of(ask.json("DELETE", path, expect=409)) == "bookie_needed"
        store = node.house.ledgers.store
        node.loop.run(lambda: Bookies(store).raise_age("gone", FolderAge(1)))
        assert len(ask.json("GET", "/bookies")["bookies"]) == 2
        assert ask.json("DELETE", "/bookies/gone") == {"changed": True}
        [left] = ask.json("GET", "/bookies")["bookies"]
        assert left["bookie_id"] == bookie["bookie_id"] and not left["leaving"]
        assert code_of(ask.json("DELETE", "/bookies/gone", expect=404)) == "no_such_bookie"


def test_buckets_are_made_and_removed(ask: Asker) -> None:
    body = {"name": "fresh", "ttl_ms": 60_000, "compression": "zstd"}
    assert ask.json("POST", "/buckets", json=body, expect=201)["ttl_ms"] == 60_000
    assert code_of(ask.json("POST", "/buckets", json=body, expect=409)) == "bucket_exists"
    for wrong in ({"name": "No Name"}, {"name": "x", "compression": "zip"}, {"name": ""}, {}):
        ask.json("POST", "/buckets", json=wrong, expect=400)
    ask("PUT", f"{API}/buckets/fresh/objects/x", content=b"x")
    assert code_of(ask.json("DELETE", "/buckets/fresh", expect=409)) == "bucket_not_empty"
    ask.json("DELETE", "/buckets/fresh", params={"force": "true"})
    ask.json("DELETE", "/buckets/fresh", expect=404)


def test_the_brokers_routes_are_the_same_application(ask: Asker) -> None:
    task = ask.json("POST", "/tasks", json={"type": "t", "tenant": "alma"}, expect=201)["id"]
    assert ask.json("GET", f"/tasks/{task}")["tenant"] == "alma"
    assert ask.json("POST", f"/tasks/{task}/cancel")["outcome"] == "done"
    view = ask("GET", "/majordodo", params={"view": "tasks"}).json()
    assert view["ok"] and str(task) in str(view)


# Rates


def test_rates_are_what_happened_between_looks(node: Node, ask: Asker) -> None:
    sampler = Sampler(node.house)
    node.house.samples.clear()
    node.loop.run(sampler.look)
    task = ask.json("POST", "/tasks", json={"type": "t", "tenant": "rates"}, expect=201)["id"]
    ask.json("POST", f"/tasks/{task}/cancel")
    node.loop.run(sampler.look)
    told = ask.json("GET", "/rates")
    assert len(told["times"]) == 1
    [appends], [written] = told["appends"].values(), told["bytes"].values()
    assert appends[0] > 0 and written[0] > 0 and told["tasks"]["rates"][0] > 0
    assert set(node.closed("alma").json("GET", "/rates")["tasks"]) <= {"alma"}


def test_a_disk_that_bookies_share_is_counted_once() -> None:
    def bookie(name: str, host: str, total: int, disk: str = "") -> BookieFacts:
        where = (f"{host}:1", "", host, "", total, total // 2, "", disk)
        return BookieFacts(name, "writable", False, 1, *where)

    alike = [bookie(name, name, 100, "boot 1") for name in "abc"]
    assert disks_of(alike) == DiskFacts(100, 50)
    assert disks_of([*alike, bookie("d", "d", 100, "boot 2")]) == DiskFacts(200, 100)
    assert disks_of([*alike, bookie("e", "barn", 60)]) == DiskFacts(None, None)


def test_what_is_not_known_is_a_gap_and_no_nought() -> None:
    samples = [
        Sample(0, 0.0, {"b": 10}, {"b": 100}, {"t": 1}),
        Sample(5_000, 5.0, {}, {}, {"t": 11, "u": 5}),
        Sample(10_000, 10.0, {"b": 20}, {"b": 200}, None),
        Sample(15_000, 15.0, {"b": 5}, {"b": 50}, {"t": 1}),
    ]
    told = rates_of(samples, Asking())
    assert told.times == [5_000, 10_000, 15_000]
    assert told.appends == {"b": [None, None, None]}, "it did not answer, then it began anew"
    assert told.tasks == {"t": [2.0, None, None], "u": [1.0, None, None]}
    assert rates_of(samples, Asking("u", False, ("u",))).tasks == {"u": [1.0, None, None]}


# Errors


def test_every_error_has_one_form(ask: Asker) -> None:
    for method, path, status in (
        ("GET", f"{API}/nothing", 404),
        ("GET", "/nothing", 404),
        ("PATCH", f"{API}/buckets", 405),
        ("GET", f"{API}/ledgers?limit=0", 400),
        ("POST", f"{API}/buckets", 400),
        ("GET", f"{API}/tasks/0", 404),
        ("GET", f"{API}/buckets/none/objects", 404),
    ):
        reply = ask(method, path)
        error = reply.json()["error"]
        assert reply.status_code == status, (path, reply.text)
        assert error["code"] and error["message"] and error["retryable"] is False
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert "GET" in ask("PATCH", f"{API}/buckets").headers["allow"]
    large = ask("POST", f"{API}/buckets", content=b" " * (8 * 1024 * 1024 + 1))
    assert large.status_code == 413
    broken = ask("POST", f"{API}/buckets", content=b"{")
    assert broken.status_code == 400 and "Traceback" not in broken.text


def test_a_long_statement_is_read_once_in_a_workers_thread_and_for_nobody_without_a_right(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[threading.Thread] = []
    parse_tree = parsing.parse_tree

    def counted(text: str) -> Any:
        read.append(threading.current_thread())
        return parse_tree(text)

    monkeypatch.setattr(parsing, "parse_tree", counted)
    text = f"SELECT name FROM cows WHERE id IN ({', '.join(map(str, range(20_000)))})"
    nobody = node.closed("nobody").sql("alma", text, expect=403)
    assert code_of(nobody) == "access_refused" and read == []
    node.closed("rita").sql("alma", text)

    async def loops() -> threading.Thread:
        return threading.current_thread()

    assert len(read) == 1 and read[0] is not node.loop.run(loops)
