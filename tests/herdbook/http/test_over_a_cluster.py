"""The same over a cluster: what HTTP answers does not depend on where its store runs."""

import os
import socket
from collections.abc import Iterator
from time import monotonic
from typing import Any

import httpx
import pytest

from tests.herdbook.http.yard import API
from tests.herdbook.node.commands import running
from tests.herdbook.node.test_serve import Node

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Asks a node of three bookies that is everything, in one process."""
    node = Node(tmp_path_factory.mktemp("cluster"))
    words = ("serve", "--config", str(node.file), "--one-process")
    with running(node.data.parent / "errors", *words) as command:
        command.until("ready")
        with httpx.Client(base_url=f"http://{node.http}", timeout=60) as client:
            asked(client, "POST", "/buckets", json={"name": "alma"})
            yield client
        assert command.end() == 0, command.errors()


def asked(client: httpx.Client, method: str, path: str, **more: Any) -> Any:
    """The JSON of a reply that went well."""
    reply = client.request(method, API + path, **more)
    assert reply.status_code < 300, (path, reply.text)
    return reply.json()


def test_the_glance_shows_every_kind_of_node(client: httpx.Client) -> None:
    assert client.get("/health/ready").json() == {"ready": True, "degraded": False, "why": ""}
    told = asked(client, "GET", "/cluster")
    assert told["bookies"] == {"total": 3, "up": 3, "read_only": 0}
    roles = [each["role"] for each in told["nodes"]]
    assert roles.count("bookie") == 3 and "herd" in roles
    named = [each["host"] for each in told["nodes"] if each["role"] in ("bookie", "herd")]
    assert set(named) == {socket.gethostname()}
    assert told["url"].startswith("herdbook://")
    assert len(asked(client, "GET", "/bookies")["bookies"]) == 3


def test_the_glance_shows_which_tablespaces_lack_replicas(client: httpx.Client) -> None:
    told, end_s = asked(client, "GET", "/cluster"), monotonic() + 30
    while not all(each["ready"] for each in told["replicas"].values()) and monotonic() < end_s:
        told = asked(client, "GET", "/cluster")
    names = told["tablespaces"]
    assert "default" in names
    assert told["replicas"] == {
        name: {"wanted": 3, "ready": 1, "suspended": False} for name in names
    }
    assert told["warnings"] == [f"tablespace {name} has 1 of 3 replicas" for name in names]


def test_sql_objects_and_tasks_are_answered_as_over_a_folder(client: httpx.Client) -> None:
    def sql(text: str, **more: Any) -> Any:
        body = {"sql": text, **more}
        return asked(client, "POST", "/tablespaces/default/query", json=body)

    sql("CREATE TABLE cows (id BIGINT PRIMARY KEY, name VARCHAR)")
    assert (
        sql("INSERT INTO cows VALUES (1, 'elsa'), (9007199254740993, ?)", parameters=["alma"])[
            "row_count"
        ]
        == 2
    )
    told = sql("SELECT * FROM cows ORDER BY id", limit=1)
    assert (told["rows"], told["truncated"]) == ([[1, "elsa"]], True)
    assert sql("SELECT id FROM cows WHERE name = 'alma'")["rows"] == [["9007199254740993"]]
    late = client.post(
        f"{API}/tablespaces/default/query",
        json={
            "sql": "SELECT count(*) FROM range(100000000) a, range(100000) b",
            "timeout_ms": 50,
        },
    )
    assert late.status_code == 408
    wrong = client.post(f"{API}/tablespaces/default/query", json={"sql": "SELECT x FROM cows"})
    assert wrong.status_code == 400 and "at character 8" in wrong.json()["error"]["message"]
    body = os.urandom(9 * MIB)
    put = client.put(f"{API}/buckets/alma/objects/large", content=body)
    assert put.status_code == 201
    ranged = {"Range": f"bytes={8 * MIB}-"}
    got = client.get(f"{API}/buckets/alma/objects/large", headers=ranged)
    assert (got.status_code, got.content) == (206, body[8 * MIB :])
    task = asked(client, "POST", "/tasks", json={"type": "milk", "tenant": "acme"})["id"]
    assert asked(client, "POST", f"/tasks/{task}/cancel")["outcome"] == "done"
    assert asked(client, "GET", "/tasks", params={"tenant": "acme"})["tasks"][0]["id"] == task


def test_a_ledger_has_its_replicas_and_rates_come_from_all_bookies(client: httpx.Client) -> None:
    ledgers = asked(client, "GET", "/ledgers", params={"limit": 1_000})["ledgers"]
    assert ledgers and all(each["bookies_up"] == each["ensemble"] == 3 for each in ledgers)
    rates = asked(client, "GET", "/rates")
    assert rates["interval_ms"] == 5_000 and len(rates["appends"]) == 3
    assert client.get("/metrics").status_code == 200
