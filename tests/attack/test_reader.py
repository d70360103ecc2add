"""A user who may only read asks a served folder for too much, and other users are not affected."""

import asyncio
import base64
import json
import os
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import httpx
import pytest

from engine import limits
from engine.access.principal import Grant, Right
from herd.settings import HerdSettings
from herd.sql.query_settings import CONNECTIONS
from herd.store import open_folder
from herdbook.access.rows import UserRows
from herdbook.zookeeper_server import free_port
from tests.herdbook.node.commands import Running, running

TIMEOUT_MS: Final = 2_000
ATTACKS: Final = {
    "views that double": "WITH a0 AS (SELECT 1 AS v)"
    + "".join(f", a{n} AS (SELECT x.v FROM a{n - 1} x, a{n - 1} y)" for n in range(1, 31))
    + " SELECT count(*), max(v) FROM a30",
    "texts of 100 MB": "SELECT sum(length(repeat('a', 100000000) || i)) FROM range(100) t(i)",
    "one text of 1 GB": "SELECT length(repeat('a', 1000000000))",
    "a sort of 300 million rows": "SELECT * FROM range(300000000) t(i) ORDER BY hash(i) OFFSET 9",
    "100,000 additions": "SELECT " + "1+" * 100_000 + "1",
    "3,000 brackets": "SELECT CAST(NULL AS INT" + "[]" * 3_000 + ")",
    "a count without end": "SELECT count(*) FROM range(1000000000) a, range(1000000) b",
}
UNSTOPPABLE: Final = "views that double"
"""DuckDB looks for no interrupt while it plans this: only the end of its process ends it."""
USERS: Final = ("ann", "bob", "eve")
_SLOW_NICE: Final = 10
"""The priority of a process whose query has run for a quarter of a second."""


@contextmanager
def served(folder: Path, write: Sequence[str] = ()) -> Iterator[tuple[Running, str]]:
    """A served folder with a table, an administrator and two readers, and its address.

    The users of `write` may write.
    """
    data = str(folder / "data")
    asyncio.run(made(folder / "data", write))
    ports = {
        name: free_port("127.0.0.1") for name in ("http.listen", "broker.listen", "broker.grpc")
    }
    settings = [
        part for name, port in ports.items() for part in ("--set", f"{name}=127.0.0.1:{port}")
    ]
    with running(folder / "errors", "serve", "--data", data, *settings) as node:
        yield node, f"http://127.0.0.1:{ports['http.listen']}/api/v1"


async def made(data: Path, write: Sequence[str]) -> None:
    """A folder with a table of a thousand cows, and users."""
    async with open_folder(data) as herd:
        session = await herd.session()
        await session.execute("CREATE TABLE cow (id INT PRIMARY KEY, name TEXT)")
        await session.execute("INSERT INTO cow SELECT range, 'cow ' || range FROM range(1000)")
        await session.close()
        rows = UserRows(herd, herd.client.clock)
        for user in USERS:
            await rows.add(user, f"known-to-{user}", admin=user == "ann")
            right: Right = "write" if user in write else "read"
            await rows.grant(user, Grant("tablespace", "default", right))


def asker(url: str, user: str, timeout_s: float = 60) -> httpx.Client:
    """A user's client. Close it."""
    return httpx.Client(base_url=url, auth=(user, f"known-to-{user}"), timeout=timeout_s)


@contextmanager
def askers(url: str, *users: str) -> Iterator[list[httpx.Client]]:
    """Clients of users."""
    with ExitStack() as stack:
        yield [stack.enter_context(asker(url, user)) for user in users]


def ask(client: httpx.Client, sql: str, timeout_ms: int = 30_000) -> httpx.Response:
    """One statement."""
    body = {"sql": sql, "timeout_ms": timeout_ms}
    return client.post("/tablespaces/default/query", json=body)


def until_served(url: str) -> None:
    """Wait until the first answer."""
    last_s = time.monotonic() + 60
    with asker(url, "eve") as client:
        while time.monotonic() < last_s:
            with suppress(httpx.TransportError):
                if ask(client, "SELECT 1").status_code == 200:
                    return
    raise AssertionError("it does not serve")


def processes(pid: int) -> list[int]:
    """A process and all processes that it has started."""
    found = [pid]
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            listed = Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii")
            found += [each for child in listed.split() for each in processes(int(child))]
    return found


def held_bytes(pid: int) -> int:
    """The memory of a node, counting each page once."""
    total = 0
    for each in processes(pid):
        with suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * limits.KIB
    return total


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """One that serves."""
    with served(tmp_path_factory.mktemp("node")) as node:
        until_served(node[1])
        yield node
        assert "Traceback" not in node[0].errors(), node[0].errors()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_reader_fills_no_memory_and_stops_nobody(node: tuple[Running, str], name: str) -> None:
    running_node, url = node
    pid = running_node.process.pid
    with ThreadPoolExecutor(6) as threads, askers(url, "eve", *["bob"] * 6) as (eve, *bobs):
        rest_bytes = held_bytes(pid)
        asked = [threads.submit(ask, bob, ATTACKS[name], TIMEOUT_MS) for bob in bobs]
        begun_s, most_bytes = time.monotonic(), 0
        pairs_s: list[float] = []
        while not pairs_s or not all(each.done() for each in asked):
            # Others go on, by key and through the query engine.
            pair_s = time.monotonic()
            by_key = ask(eve, "SELECT name FROM cow WHERE id = 7")
            assert by_key.json()["rows"] == [["cow 7"]], by_key.text
            counted = ask(eve, "SELECT count(*) FROM cow WHERE id % 2 = 1")
            assert counted.json()["rows"] == [[500]], counted.text
            pairs_s.append(time.monotonic() - pair_s)
            most_bytes = max(most_bytes, held_bytes(pid))
        assert time.monotonic() - begun_s < TIMEOUT_MS / 1000 + 10
        assert statistics.mean(pairs_s) < TIMEOUT_MS / 1000 / 4, "they waited behind the attack"
        assert {each.result().status_code for each in asked} <= {200, 408, 413, 503}
        assert most_bytes < rest_bytes + 1.1 * CONNECTIONS * HerdSettings().query_bytes


def begun(url: str, user: str, sql: str) -> HTTPConnection:
    """A connection on which a query was asked for, whose answer nobody reads. Close it."""
    base = httpx.URL(url)
    made = HTTPConnection(base.host, base.port, timeout=60)
    login = base64.b64encode(f"{user}:known-to-{user}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    body = json.dumps({"sql": sql, "timeout_ms": 60_000})
    made.request("POST", f"{base.path}/tablespaces/default/query", body, headers)
    return made


@pytest.mark.parametrize("name", [UNSTOPPABLE, "a count without end"])
def test_the_process_of_a_query_ends_when_its_client_hangs_up(
    node: tuple[Running, str], name: str
) -> None:
    running_node, url = node
    before = working(running_node.process.pid)
    with closing(begun(url, "bob", ATTACKS[name])):
        mine = until_working(running_node.process.pid, 1, before)
    gone_s = time.monotonic()
    while any(Path(f"/proc/{pid}").exists() for pid in mine):
        assert time.monotonic() - gone_s < 5
    with asker(url, "eve") as eve:
        assert ask(eve, "SELECT 1").status_code == 200


@pytest.mark.parametrize("name", [UNSTOPPABLE, "a count without end"])
def test_queries_that_do_not_end_do_not_keep_a_node_from_ending(tmp_path: Path, name: str) -> None:
    with (
        served(tmp_path) as (running_node, url),
        ThreadPoolExecutor(6) as threads,
        askers(url, "eve", *["bob"] * 6) as (eve, *bobs),
    ):
        until_served(url)
        asked = [threads.submit(ask, bob, ATTACKS[name], 60_000) for bob in bobs]
        until_working(running_node.process.pid, CONNECTIONS // 2, frozenset())
        assert ask(eve, "SELECT count(*) FROM cow").json()["rows"] == [[1000]]
        pids = processes(running_node.process.pid)
        assert running_node.end(signal.SIGTERM) == 0
        for each in asked:
            with suppress(httpx.TransportError):
                assert each.result().status_code >= 400
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        assert "Traceback" not in running_node.errors(), running_node.errors()


def working(pid: int) -> frozenset[int]:
    """The processes of a node in which a query has run for a while."""
    found = []
    for each in processes(pid):
        with suppress(ProcessLookupError):
            if os.getpriority(os.PRIO_PROCESS, each) == _SLOW_NICE:
                found.append(each)
    return frozenset(found)


def until_working(pid: int, count: int, before: frozenset[int]) -> frozenset[int]:
    """Wait until so many more processes of a node run a query; which."""
    last_s = time.monotonic() + 60
    while len(found := working(pid) - before) < count:
        assert time.monotonic() < last_s, "no process of its own runs the query"
    return found
