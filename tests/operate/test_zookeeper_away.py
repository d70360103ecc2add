"""What goes on while ZooKeeper is away: three real nodes, and a ZooKeeper that stands still.

`HERDBOOK_ZOOKEEPER_AWAY_S=60 python -m pytest -q -s tests/operate/test_zookeeper_away.py` is the
full size.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

import herdbook
from herdbook.access.authenticator import STALE_S
from tests.herdbook.node.commands import Running, running
from tests.herdbook.node.test_dev import zookeeper_of

AWAY_S: Final = float(os.environ.get("HERDBOOK_ZOOKEEPER_AWAY_S", "6"))
LEASE_S: Final = 1.5
CALL_S_MAX: Final = 1.0
OVER_HTTP: Final = frozenset({"GET", "query over HTTP"})

Call = Callable[[int], object]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """What `herdbook dev` tells of itself, and the process id of its ZooKeeper."""
    data = str(tmp_path / "data")
    with running(tmp_path / "errors", "dev", "--data", data, "--json") as command:
        facts: dict[str, Any] = json.loads(command.until("url"))
        yield facts, zookeeper_of(data)
        command.end(signal.SIGINT)


@pytest.fixture
def worker(cluster: tuple[dict[str, Any], int], tmp_path: Path) -> Iterator[Running]:
    """A worker that runs tasks of the type `milk`."""
    module = 'from broker.worker import task\n\n\n@task(name="milk")\ndef milk(n):\n    return n\n'
    (tmp_path / "farm_tasks.py").write_text(module)
    path = {"PYTHONPATH": str(tmp_path)}
    words = ("worker", "--url", cluster[0]["url"], "--tasks", "farm_tasks", "--processes", "1")
    with running(tmp_path / "worker", *words, **path) as command:
        yield command
        command.end()


def calls_of(stack: ExitStack, facts: dict[str, Any]) -> dict[str, Call]:
    """A call of each kind, by name; the argument is another number each time."""
    book = stack.enter_context(herdbook.connect(facts["url"]))
    auto = stack.enter_context(book.sql(autocommit=True))
    own = stack.enter_context(book.sql())
    auto.execute("CREATE TABLE cow (id INT PRIMARY KEY, milk INT)")
    for number in range(10):
        auto.execute("INSERT INTO cow VALUES (?, 0)", (number,))
    photos = book.blobs.create_bucket("photos")
    photos.put("elsa", b"brown" * 1000)
    table = book.table("cow")
    console = stack.enter_context(httpx.Client(base_url=facts["console"][0], timeout=30))

    def transaction(number: int) -> None:
        key = (number % 10,)
        own.execute("SELECT milk FROM cow WHERE id = ? FOR UPDATE", key).fetchone()
        own.execute("UPDATE cow SET milk = milk + 1 WHERE id = ?", key)
        own.commit()

    def asked(method: str, path: str, **how: Any) -> Call:
        def ask(number: int) -> None:
            console.request(method, f"/api/v1{path}", **how).raise_for_status()

        return ask

    return {
        "SELECT by key": lambda n: auto.execute("SELECT milk FROM cow WHERE id = 1").fetchone(),
        "query": lambda n: auto.execute("SELECT count(*), sum(milk) FROM cow").fetchone(),
        "INSERT": lambda n: auto.execute("INSERT INTO cow VALUES (?, 0)", (1_000 + n,)),
        "transaction": transaction,
        "row by key": lambda n: table.get(1),
        "scan": lambda n: list(table.scan()),
        "put": lambda n: photos.put(f"calf-{n}", b"white" * 1000),
        "get": lambda n: photos.get("elsa"),
        "list": lambda n: photos.list(),
        "task": lambda n: book.tasks.submit("milk", {"n": n}).wait(timeout_ms=20_000),
        "GET": asked("GET", "/buckets/photos/objects/elsa"),
        "query over HTTP": asked(
            "POST", "/tablespaces/default/query", json={"sql": "SELECT count(*) FROM cow"}
        ),
    }


@contextmanager
def away(pid: int) -> Iterator[None]:
    """ZooKeeper answers nobody."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_reads_and_writes_go_on_and_nothing_acknowledged_is_lost(
    cluster: tuple[dict[str, Any], int], worker: Running
) -> None:
    facts, zookeeper = cluster
    with ExitStack() as stack:
        calls = calls_of(stack, facts)
        for call in calls.values():
            call(0)
        slowest_s, rounds = dict.fromkeys(calls, 0.0), 0
        with away(zookeeper):
            began_s = time.monotonic()
            while time.monotonic() - began_s < AWAY_S:
                rounds += 1
                for name, call in calls.items():
                    if name in OVER_HTTP and time.monotonic() - began_s > STALE_S / 2:
                        # Whether the store has users by now is not known any more.
                        continue
                    before_s = time.monotonic()
                    call(rounds)
                    slowest_s[name] = max(slowest_s[name], time.monotonic() - before_s)
            ready = httpx.get(f"{facts['console'][0]}/health/ready", timeout=30)
        print(
            f"{rounds} rounds in {AWAY_S:g} s:",
            {name: round(s, 3) for name, s in slowest_s.items()},
        )
        assert AWAY_S > 2 * LEASE_S and rounds >= 5
        assert ready.status_code == 200 and ready.json()["degraded"]
        # The suite beside it keeps all processors busy.
        assert max(slowest_s.values()) < 3 * CALL_S_MAX, slowest_s
        book = stack.enter_context(herdbook.connect(facts["url"]))
        cows = {cow["id"]: cow["milk"] for cow in book.table("cow").scan()}
        assert sum(cows.values()) == rounds + 1
        assert cows.keys() == {*range(10), *range(1_000, 1_001 + rounds)}
        photos = book.blobs.bucket("photos")
        assert all(photos.get(f"calf-{n}") == b"white" * 1000 for n in range(rounds + 1))
