"""Servers of a folder: one whose tasks another process runs, and one that was killed before."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from grpc import StatusCode, aio

import herdbook
from broker.commands import Spec
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
from broker.errors import BrokerError, UnknownCodePool
from broker.http import User
from broker.task import Status
from broker.wire.grpc_generated import broker_pb2 as wire
from broker.wire.grpc_port import GrpcWorkerPort
from engine.access.principal import ALL, Grant
from engine.errors import InvalidRequest
from engine.transport.security import Security
from herdbook.access.opening import users_of
from herdbook.node.opening import FolderOpening
from herdbook.task_api import SERVER_FILE, open_tasks, read_server
from herdbook.task_server import TaskServerSettings, serve_tasks
from herdbook.zookeeper_server import free_port
from tests.broker.wire.test_grpc import Client

TASKS = "/api/v1/tasks"
WORD = "the word of everybody"


@asynccontextmanager
async def serving(folder: Path, grpc: str = "", users: tuple[User, ...] = ()) -> AsyncIterator[str]:
    """Where a folder's tasks are served, by this process."""
    ended = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = TaskServerSettings("127.0.0.1:0", grpc=grpc, users=users)
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


async def refused(call: Awaitable[object]) -> str:
    """What who is not let in over gRPC is told."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is StatusCode.UNAUTHENTICATED
    return caught.value.details() or ""


async def test_the_tasks_of_a_folder_with_users_ask_for_a_proof_over_grpc(tmp_path: Path) -> None:
    """The port is one that each process of the machine reaches."""
    folder, port = tmp_path / "data", free_port("127.0.0.1")
    async with herdbook.open_async(folder) as book:
        known = await users_of(book)
        await known.rows.add("ann", WORD, admin=False)
        await known.rows.add("robot", WORD, admin=False)
        await known.rows.grant("robot", Grant("tenant", ALL, "write"))
    async with asyncio.timeout(60), serving(folder, f"127.0.0.1:{port}"):
        client = Client(port)
        assert "token" in await refused(client.submit(type="milk"))
        assert "token" in await refused(client.task(1))
        ask = client.channel.unary_unary("/herdbook.broker.v1.Broker/Ask", None, None)
        assert "token" in await refused(ask(wire.AskRequest(name="settings").SerializeToString()))
        with pytest.raises(BrokerError, match="token"):
            await works_through(GrpcWorkerPort((client.address,)))
        wrong = Security(user="robot", password="not the word")
        with pytest.raises(BrokerError):
            await works_through(GrpcWorkerPort((client.address,), wrong))
        # A user without a grant is let in, and may do nothing.
        ann = GrpcWorkerPort((client.address,), Security(user="ann", password=WORD))
        with pytest.raises(BrokerError):
            await works_through(ann)
        async with herdbook.open_async(folder) as book:
            calls = await book.broker.calls()
            await calls.submit([Spec("milk"), Spec("milk")])
            await calls.put_code("tools", b"an archive")
        robot = GrpcWorkerPort((client.address,), Security(user="robot", password=WORD))
        await works_through(robot)
        await ann.close()
        await client.channel.close(None)


async def test_a_file_of_users_closes_grpc_to_strangers(tmp_path: Path) -> None:
    folder, port = tmp_path / "data", free_port("127.0.0.1")
    folder.mkdir()
    async with serving(folder, f"127.0.0.1:{port}", (User("elsa", WORD, admin=True),)):
        client = Client(port)
        assert "token" in await refused(client.submit(type="milk"))
        await client.channel.close(None)


async def test_a_stranger_is_sent_away_when_the_first_user_comes(tmp_path: Path) -> None:
    folder, port = tmp_path / "data", free_port("127.0.0.1")
    folder.mkdir()
    async with asyncio.timeout(60), serving(folder, f"127.0.0.1:{port}"):
        client = Client(port)
        assert await client.submit(type="milk") == 1
        worker = GrpcWorkerPort((client.address,))
        link = await worker.connect(Hello("elsa", "p", "here", ("milk",), WorkerLimits(2)))
        async with herdbook.open_async(folder) as book:
            await (await users_of(book)).rows.add("ann", WORD, admin=True)
        with pytest.raises(BrokerError):
            while True:
                await link.receive()
        await refused(client.submit(type="milk"))
        await link.close()
        await worker.close()
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
