"""How much of objects on their way over HTTP is in memory: of a large one, and of many at once."""

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from engine.ports.clock import SystemClock
from herdbook.http.errors import HttpError
from herdbook.http.settings import WebSettings
from herdbook.http.transfers import Transfers
from tests.herdbook.http.yard import API, Asker, Node

MIB = 1024 * 1024
BUCKET = f"{API}/buckets/alma/objects"
LARGE_BYTES = 256 * MIB
GROWTH_BYTES_MAX = 128 * MIB
"""So much more memory a server may take for a large object, or for many, than for none."""


def test_no_more_bytes_of_objects_are_read_than_there_is_room_for(node: Node) -> None:
    ask = node.open(WebSettings(incoming_bytes_max=MIB))
    most_bytes, statuses = node.loop.run(lambda: _crowd(ask, 8, MIB // 2))
    assert statuses == [201] * 8, "who finds no room waits for it"
    assert most_bytes <= MIB


async def _crowd(ask: Asker, count: int, length: int) -> tuple[int, list[int]]:
    """So many puts at once, each in pieces; the most bytes that were read of those not answered."""
    reading = most = 0

    async def body() -> object:
        nonlocal reading, most
        for _ in range(8):
            reading += length // 8
            most = max(most, reading)
            yield bytes(length // 8)
            await asyncio.sleep(0)

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=ask.app), base_url="http://localhost"
    ) as client:

        async def one(number: int) -> int:
            nonlocal reading
            told = {"Content-Length": str(length)}
            path, content = f"{BUCKET}/crowd/{number}", body()
            reply = await client.put(path, content=content, headers=told)  # type: ignore[arg-type]
            reading -= length
            return reply.status_code

        statuses = await asyncio.gather(*(one(number) for number in range(count)))
        return most, statuses


async def test_what_a_large_object_needs_no_more_is_room_for_others() -> None:
    transfers = Transfers(WebSettings(incoming_bytes_max=10, transfer_idle_ms=1), SystemClock())
    async with transfers.room(8) as room:
        with pytest.raises(HttpError) as refused:
            async with transfers.room(4):
                pytest.fail("there is no room")
        assert refused.value.status == 503
        room.shrink(6)
        async with transfers.room(4):
            room.shrink(8)
    async with transfers.room(10):
        pass


# Over a socket


SERVER = """
import asyncio, sys
from herdbook.http.serving import HttpServerSettings, serve_http
settings = HttpServerSettings(listen="127.0.0.1:0")
asyncio.run(serve_http(sys.argv[1], settings, started=lambda at: print(at.url, flush=True)))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """The url and the process of a server with a folder of its own, which ends well."""
    (tmp_path / "store").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path / "store")],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def peak_bytes(process: int) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def test_a_large_object_goes_in_and_out_in_flat_memory(server: tuple[str, int]) -> None:
    url, process = server
    path = f"{url}{BUCKET}/large"
    httpx.post(f"{url}{API}/buckets", json={"name": "alma"})
    httpx.put(path, content=b"x" * 5 * MIB)
    before = peak_bytes(process)
    piece = os.urandom(MIB)
    sent, got = hashlib.sha256(), hashlib.sha256()

    def body() -> Iterator[bytes]:
        for _ in range(LARGE_BYTES // MIB):
            sent.update(piece)
            yield piece

    reply = httpx.put(path, content=body(), timeout=60)
    assert (reply.status_code, reply.json()["size"]) == (201, LARGE_BYTES)
    with httpx.stream("GET", path, timeout=60) as coming:
        assert coming.headers["content-length"] == str(LARGE_BYTES)
        for part in coming.iter_raw():
            got.update(part)
    assert got.digest() == sent.digest()
    assert peak_bytes(process) - before < GROWTH_BYTES_MAX
    # Who reads nothing more for a while is waited for, without any more memory.
    with httpx.stream("GET", path, timeout=60) as coming:
        next(coming.iter_raw())
        assert httpx.get(f"{url}/health/live", timeout=10).status_code == 200
    assert peak_bytes(process) - before < GROWTH_BYTES_MAX


def test_a_crowd_of_uploads_that_stand_still_takes_no_more_memory_than_a_few(
    server: tuple[str, int],
) -> None:
    url, process = server
    where = urlsplit(url)
    httpx.post(f"{url}{API}/buckets", json={"name": "alma"})
    httpx.put(f"{url}{BUCKET}/warm", content=b"x" * 5 * MIB)
    before = peak_bytes(process)
    body = bytes(4 * MIB)

    def stand_still(number: int) -> socket.socket:
        made = socket.create_connection((where.hostname, where.port), timeout=0.5)
        head = f"PUT {BUCKET}/still/{number} HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        made.sendall(f"{head}{len(body)}\r\n\r\n".encode())
        with suppress(TimeoutError):
            # Nobody reads it to its end: what is not read waits here.
            made.sendall(body[:-10])
        return made

    with ThreadPoolExecutor(64) as pool:
        made = list(pool.map(stand_still, range(64)))
    assert httpx.get(f"{url}/health/live", timeout=10).status_code == 200
    grown_bytes = peak_bytes(process) - before
    for each in made:
        each.close()
    assert grown_bytes < GROWTH_BYTES_MAX
