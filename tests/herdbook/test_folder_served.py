"""Servers of a folder: one whose tasks another process runs, and one that was killed before."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

import herdbook
from broker.connection import (
    Assigned,
    Completion,
    Done,
    Ended,
    Hello,
    Run,
    Welcome,
    WorkerLimits,
)
from broker.errors import UnknownCodePool
from broker.task import Status
from broker.wire.grpc_generated import broker_pb2 as wire
from broker.wire.grpc_port import GrpcWorkerPort
from engine.errors import InvalidRequest
from herdbook.node.opening import FolderOpening
from herdbook.task_api import SERVER_FILE, open_tasks, read_server
from herdbook.task_server import TaskServerSettings, serve_tasks
from herdbook.zookeeper_server import free_port
from tests.broker.wire.test_grpc import Client

TASKS = "/api/v1/tasks"


@asynccontextmanager
async def serving(folder: Path, grpc: str = "") -> AsyncIterator[str]:
    """Where a folder's tasks are served, by this process."""
    ended = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = TaskServerSettings("127.0.0.1:0", grpc=grpc)
    server = asyncio.create_task(serve_tasks(str(folder), settings, url.set_result, ended=ended))
    try:
        server.add_done_callback(lambda _: url.cancel())
        yield await url
    finally:
        ended.set()
        await server


async def test_a_server_serves_tasks_that_another_opener_runs(tmp_path: Path) -> None:
    """Over HTTP and gRPC, to clients and to workers; and runs them when that opener ends."""
    folder, port = tmp_path / "data", free_port("127.0.0.1")
    async with asyncio.timeout(60), herdbook.open_async(folder) as first:
        await first.tasks()
        broker = await first.broker.open()
        await broker.put_code("tools", b"an archive")
        async with serving(folder, f"127.0.0.1:{port}") as url:
            client = Client(port)
            async with httpx.AsyncClient(base_url=url) as http:
                made = await http.post(TASKS, json={"type": "milk"})
                assert (made.status_code, made.json()["id"]) == (201, 1)
                assert await client.submit(type="milk", payload=b"moo") == 2
                seen = await client.task(2, with_payload=True)
                assert (seen.status, seen.payload) == (wire.TASK_STATUS_WAITING, b"moo")
                assert await client.task(99) is None
                await works_through(GrpcWorkerPort((client.address,)))
                seen = await client.task(2, with_result=True, wait_ms=20_000)
                assert (seen.status, seen.result) == (wire.TASK_STATUS_FINISHED, b"2")
                assert broker.get(1).status is Status.FINISHED
                await first.broker.close()
                # Whoever asks next runs them: here that is the server.
                seen = await client.task(1, with_result=True)
                assert seen.result == b"1"
                assert (await http.get(f"{TASKS}/2")).json()["type"] == "milk"
            await client.channel.close(None)


async def works_through(port: GrpcWorkerPort) -> None:
    """A worker that takes two tasks, and fetches code."""
    link = await port.connect(Hello("elsa", "p", "here", ("milk",), WorkerLimits(2)))
    runs: list[Run] = []
    session = 0
    while len(runs) < 2:
        for message in await link.receive():
            if isinstance(message, Welcome):
                session = message.session
            elif isinstance(message, Assigned):
                runs += message.runs
    assert await link.fetch_code("tools") == b"an archive"
    with pytest.raises(UnknownCodePool):
        await link.fetch_code("none")
    ends = [Completion(run.id, run.attempt, Ended.FINISHED, b"%d" % run.id) for run in runs]
    await link.send([Done(1, session, ends)])
    await link.receive()
    await link.close()
    await port.close()


async def test_the_roles_of_a_node_share_one_opening_of_its_folder(tmp_path: Path) -> None:
    opening = FolderOpening(tmp_path / "data", {}, ())
    async with opening.use() as first:
        async with opening.use() as second:
            assert second.book is first.book
        # It stays open until the last one lets go.
        assert (await first.book.broker.open()).serving
    async with opening.use() as third:
        assert third.book is not first.book
        assert (await third.book.broker.open()).serving


async def test_a_killed_servers_file_is_ignored_even_if_its_port_is_in_use(
    tmp_path: Path,
) -> None:
    killed, other = tmp_path / "killed", tmp_path / "other"
    async with herdbook.open_async(killed):
        pass
    async with herdbook.open_async(other):
        pass
    async with serving(other) as url:
        (killed / SERVER_FILE).write_bytes(json.dumps({"url": url, "password": "x"}).encode())
        (killed / SERVER_FILE).with_suffix(".new").write_bytes(b'{"url": "htt')
        assert read_server(killed) is None and read_server(other) is not None
        async with open_tasks(str(killed)) as api:
            assert (await api.ask("POST", "/tasks", {"type": "milk"}))["id"] == 1
        async with serving(killed) as again:
            fact = read_server(killed)
            assert fact is not None and fact.url == again != url
            with pytest.raises(InvalidRequest, match=f"are already served at {again}"):
                async with serving(killed):
                    raise AssertionError
        assert not (killed / SERVER_FILE).exists()
        async with open_tasks(str(other)) as api:
            assert (await api.ask("GET", "/tasks"))["tasks"] == []
