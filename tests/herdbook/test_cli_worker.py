"""`herdbook worker` as a real process, with a broker that this test runs."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import herdbook
from broker.commands import Spec
from broker.service import Broker
from broker.settings import BrokerSettings
from broker.task import Status
from broker.wire.grpc_server import GrpcBrokerServer
from engine.ports.clock import SystemClock
from herdbook.cli.main import app
from herdbook.http_listening import answer_at, listening_at
from tests.broker.service.yard import opened, submitted
from tests.broker.worker.looking import began, gone, until

ROOT = Path(__file__).parents[2]
MODULE = "tests.broker.worker.functions"


@asynccontextmanager
async def brokered() -> AsyncIterator[tuple[Broker, str]]:
    async with opened(BrokerSettings(lease_ms=4_000), clock=SystemClock()) as broker:
        server = await GrpcBrokerServer.start(broker, listen="127.0.0.1:0")
        try:
            yield broker, f"127.0.0.1:{server.port}"
        finally:
            await server.close(0)


@asynccontextmanager
async def worker(
    address: str, *more: str, option: str = "--broker"
) -> AsyncIterator[asyncio.subprocess.Process]:
    command = ("worker", "--tasks", MODULE, option, address, "--processes", "1", *more)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "herdbook", *command),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("worker ") and "in 1 processes" in line and " add," in line, line
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        # A pipe's transport that is only forgotten warns when it is collected.
        await process.communicate()


async def test_a_worker_runs_tasks_and_leaves_on_sigterm_when_they_have_ended(
    tmp_path: Path,
) -> None:
    note = tmp_path / "note"
    async with brokered() as (broker, address), worker(address, "--name", "barn") as process:
        ids = await submitted(broker, *[Spec("add", payload=b'{"left":1,"right":2}')] * 50)
        for task_id in ids:
            assert broker.result_of(await broker.wait(task_id, 20_000)) == b"3"
        assert broker.get(ids[0]).worker_id == "barn"
        [last] = await submitted(
            broker, Spec("until_gone", payload=f'{{"note":"{note}"}}'.encode())
        )
        await began(note)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        assert line.startswith("leaving: tasks that run may take up to 30 s to end; Ctrl-C again")
        note.unlink()
        assert (await broker.wait(last, 20_000)).status is Status.FINISHED
        assert await process.wait() == 0


async def test_a_drain_ends_what_runs_too_long_and_it_waits_again_uncounted(
    tmp_path: Path,
) -> None:
    note = tmp_path / "note"
    payload = f'{{"note":"{note}"}}'.encode()
    async with brokered() as (broker, address):
        async with worker(address, "--drain-ms", "100") as process:
            [task_id] = await submitted(broker, Spec("block", payload=payload))
            child = await began(note)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 3
            await until(lambda: gone(child))
        task = broker.get(task_id)
        assert (task.status, task.attempts_spent) == (Status.WAITING, 0)


async def test_the_children_of_a_worker_that_is_killed_end_with_it(tmp_path: Path) -> None:
    note = tmp_path / "note"
    async with brokered() as (broker, address), worker(address) as process:
        await submitted(broker, Spec("block", payload=f'{{"note":"{note}"}}'.encode()))
        child = await began(note)
        process.kill()
        await until(lambda: gone(child))
        assert await process.wait() == -signal.SIGKILL


async def test_a_worker_that_reaches_no_broker_says_so_and_leaves_when_told() -> None:
    async with worker("127.0.0.1:1", "--name", "barn") as process:
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        assert line.startswith("worker barn is not connected and goes on trying: 127.0.0.1:1: ")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_a_worker_of_a_folder_runs_the_folders_tasks(tmp_path: Path) -> None:
    note, folder = tmp_path / "note", tmp_path / "data"
    async with herdbook.open_async(folder) as book:
        tasks = await book.tasks()
        handle = await tasks.submit("until_gone", {"note": str(note)})
    async with worker(str(folder), option="--url") as process:
        await began(note)
        process.send_signal(signal.SIGTERM)
        note.unlink()
        assert await process.wait() == 0
    async with herdbook.open_async(folder) as book:
        task = await (await book.tasks()).get(handle.id)
        assert task.status is Status.FINISHED


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--tasks", "tests.nowhere", "--broker", "127.0.0.1:1"], 1, "No module named"),
        (["--tasks", "no module", "--broker", "127.0.0.1:1"], 2, "no module's name"),
        (["--tasks", "a,b", "--broker", "127.0.0.1:1"], 2, "--tasks a --tasks b"),
        (["--tasks", "a", "--place", "milk"], 2, "not as name=2"),
        (["--tasks", "a", "--url", "nowhere"], 2, "no folder"),
        (["--tasks", "a", "--broker", "barn"], 2, "not HOST:PORT: 'barn'"),
        ([], 2, "--tasks"),
    ],
)
def test_a_call_that_cannot_work_says_why(words: list[str], status: int, says: str) -> None:
    found = CliRunner().invoke(app, ["worker", *words, "--processes", "1"])
    assert found.exit_code == status
    assert says in " ".join(found.output.replace("│", " ").split())


async def test_an_address_at_which_http_is_spoken_is_named_before_anything_begins() -> None:
    async def page(scope: object, receive: object, send: object) -> None:
        raise AssertionError("nobody asks for a page")

    async with AsyncExitStack() as stack:
        listening = stack.enter_context(listening_at("127.0.0.1:0"))
        await answer_at(stack, page, listening)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        words = ["worker", "--tasks", MODULE, "--broker", address]
        asked = asyncio.get_running_loop().run_in_executor(None, CliRunner().invoke, app, words)
        answer = await asked
    assert answer.exit_code == 2 and answer.stdout == ""
    [line] = answer.stderr.splitlines()
    assert f"{address} speaks HTTP: name the broker's gRPC address" in line
