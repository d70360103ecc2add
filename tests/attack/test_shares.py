"""One user costs a served folder much, by statements and connections, and others go on."""

import base64
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

import pytest

from engine import limits
from tests.attack.test_reader import ask, asker, held_bytes, served, until_served
from tests.herdbook.node.commands import Running

LONG: Final = "x" * 900_000
MANY: Final = "a" * 200
PATTERN: Final = "%a" * 12 + "b"


def joined(count: int) -> str:
    """The first parameter so many times in one expression that is not nested deeply."""
    parts = ["$1"] * count
    while len(parts) > 1:
        parts = [f"({'||'.join(parts[at : at + 2])})" for at in range(0, len(parts), 2)]
    return parts[0]


STATEMENTS: Final = {
    "a pattern by key": (
        "UPDATE cow SET name = CASE WHEN $1 LIKE $2 THEN 'x' ELSE name END WHERE id = 7",
        [MANY, PATTERN],
    ),
    "a pattern in a list of values": (
        "INSERT INTO cow VALUES (5000, CASE WHEN $1 LIKE $2 THEN 'x' END)",
        [MANY, PATTERN],
    ),
    "one value 3,000 times in a new row": (
        f"INSERT INTO cow VALUES (5001, CASE WHEN {joined(3_000)} = '' THEN 'x' END)",
        [LONG],
    ),
    "one value 1,500 times in a condition": (
        f"UPDATE cow SET name = 'x' WHERE id < 3 AND length({joined(1_500)}) = 3",
        [LONG],
    ),
    "one value 1,500 times in what is answered": (
        f"INSERT INTO cow VALUES (5002, 'x') RETURNING length({joined(1_500)})",
        [LONG],
    ),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """One that serves; bob may write, eve may read."""
    folder = tmp_path_factory.mktemp("node")
    with served(folder, write=("bob",)) as node:
        until_served(node[1])
        yield node


# Statements


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_of_a_writer_keeps_nobody_waiting(node: tuple[Running, str], name: str) -> None:
    running, url = node
    pid, (text, values) = running.process.pid, STATEMENTS[name]
    body = {"sql": text, "parameters": values, "timeout_ms": 5_000}
    with ThreadPoolExecutor(1) as threads, asker(url, "bob") as bob, asker(url, "eve") as eve:
        rest_bytes = most_bytes = held_bytes(pid)
        asked = threads.submit(bob.post, "/tablespaces/default/query", json=body)
        while not asked.done():
            begun_s = time.monotonic()
            assert ask(eve, "SELECT id FROM cow WHERE id = 9").json()["rows"] == [[9]]
            assert time.monotonic() - begun_s < 10
            most_bytes = max(most_bytes, held_bytes(pid))
        assert asked.result().status_code in (200, 408, 413, 504), asked.result().text
        assert most_bytes < rest_bytes + 700 * limits.MIB


# Connections


def sent(url: str, user: str, body: bytes, length: int) -> socket.socket:
    """A connection on which a query was begun, by a body that may be too short. Close it."""
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    login = base64.b64encode(f"{user}:known-to-{user}".encode()).decode()
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.connect((host, int(port)))
    made.settimeout(10)
    made.sendall(
        f"POST /api/v1/tablespaces/default/query HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Authorization: Basic {login}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n".encode()
        + body
    )
    return made


def test_bodies_of_one_user_that_do_not_end_keep_no_other_out(node: tuple[Running, str]) -> None:
    _, url = node
    most = 8 * limits.MIB
    with ExitStack() as stack, asker(url, "eve") as eve:
        for size in [most] * 9 + [30] * 40 + [3] * 40:
            made = sent(url, "bob", b" " * (size - 1), size)
            stack.callback(made.close)
        last_s = time.monotonic() + 2
        while time.monotonic() < last_s:
            assert ask(eve, "SELECT id FROM cow WHERE id = 9").json()["rows"] == [[9]]


def test_replies_that_one_user_does_not_take_fill_no_memory(node: tuple[Running, str]) -> None:
    running, url = node
    pid = running.process.pid
    query = b'{"sql": "SELECT repeat(\'a\', 15000000)"}'
    with ExitStack() as stack, asker(url, "eve") as eve:
        rest_bytes = most_bytes = held_bytes(pid)
        waiting = [sent(url, "bob", query, len(query)) for _ in range(48)]
        for each in waiting:
            stack.callback(each.close)
        # Each has an answer, or the beginning of one.
        heads = [each.recv(12) for each in waiting]
        most_bytes = held_bytes(pid)
        assert b"HTTP/1.1 200" in heads and b"HTTP/1.1 503" in heads
        assert most_bytes < rest_bytes + 360 * limits.MIB, "half of the replies, if all were kept"
        assert ask(eve, "SELECT id FROM cow WHERE id = 9").json()["rows"] == [[9]]
