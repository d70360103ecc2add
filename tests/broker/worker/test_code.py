"""Tasks that bring their own code, as archives that the broker keeps."""

import asyncio
import io
import random
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from broker.commands import Spec
from broker.service import Broker
from broker.task import Status, Task
from broker.worker.code import CodeSettings
from broker.worker.pool import Pool, PoolSettings
from broker.worker.serving import serve_worker
from broker.worker.worker import Worker, WorkerSettings
from engine.ports.clock import SystemClock
from tests.broker.service.yard import opened, submitted
from tests.broker.worker.looking import until

POOL = PoolSettings(modules=("tests.broker.worker.functions",), processes=1, places=4)
CODE = """
from broker.worker import task

@task(name="registered")
async def double(number: int) -> int:
    return 2 * number

def version() -> str:
    return {version!r}
"""


def archive(version: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("shipped.py", CODE.format(version=version))
    return packed.getvalue()


@asynccontextmanager
async def working(
    broker: Broker,
    folder: Path,
    keep_ms: int = 600_000,
    code: bool = True,
    processes: int = 4,
) -> AsyncIterator[None]:
    started: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()

    def listen(worker: Worker, _: Pool) -> None:
        started.set_result(worker)

    pools = replace(POOL, processes=processes)
    settings = CodeSettings(folder, pools, keep_ms=keep_ms) if code else None
    worker_settings = WorkerSettings("barn", "p1")
    clock, rng = SystemClock(), random.Random(1)
    life = asyncio.create_task(
        serve_worker(broker, worker_settings, POOL, clock, rng, listen, settings)
    )
    await asyncio.wait((life, started), return_when=asyncio.FIRST_COMPLETED)
    try:
        yield
    finally:
        (await started).drain()
        await life


async def ended(broker: Broker, kind: str, payload: bytes = b"", pool: str = "") -> Task:
    [task_id] = await submitted(broker, Spec(kind, payload=payload, codepool=pool))
    return await broker.wait(task_id, 30_000)


async def test_each_pools_code_runs_in_processes_of_its_own(tmp_path: Path) -> None:
    async with opened() as broker, working(broker, tmp_path):
        await broker.put_code("one", archive("1.0"))
        await broker.put_code("two", archive("2.0"))
        tasks = await asyncio.gather(
            ended(broker, "shipped:version", pool="one"),
            ended(broker, "shipped:version", pool="two"),
            ended(broker, "shipped:double", b'{"number":4}', pool="two"),
            ended(broker, "add", b'{"left":1,"right":2}'),
        )
        results = [broker.result_of(task) for task in tasks]
        assert results == [b'"1.0"', b'"2.0"', b"8", b"3"]


async def test_code_that_cannot_be_had_fails_in_words(tmp_path: Path) -> None:
    async with opened() as broker, working(broker, tmp_path):
        await broker.put_code("broken", b"no archive")
        await broker.put_code("fine", archive("1.0"))
        for kind, pool, word in (
            ("shipped:version", "broken", "no zip archive"),
            ("shipped:nothing", "fine", "cannot be imported"),
            ("nowhere:version", "fine", "cannot be imported"),
            ("shipped:", "fine", "names no function"),
            ("shipped:version", "", "no function for the type"),
        ):
            task = await ended(broker, kind, pool=pool)
            assert task.status is Status.ERROR and word in task.error, task.error


async def test_tasks_of_types_that_it_does_not_know_wait_for_another_worker(
    tmp_path: Path,
) -> None:
    async with opened() as broker, working(broker, tmp_path):
        await broker.put_code("one", archive("1.0"))
        [other] = await submitted(broker, Spec("nobody"))
        assert (await ended(broker, "shipped:version", pool="one")).status is Status.FINISHED
        assert broker.get(other).status is Status.WAITING


async def test_a_pool_that_is_idle_makes_room_for_another_one(tmp_path: Path) -> None:
    async with opened() as broker, working(broker, tmp_path, processes=1):
        for name in ("one", "two"):
            await broker.put_code(name, archive(name))
        for name in ("one", "two", "one"):
            task = await ended(broker, "shipped:version", pool=name)
            assert broker.result_of(task) == f'"{name}"'.encode()
            await until(lambda: len(list(tmp_path.iterdir())) == 1)


async def test_archives_and_processes_go_when_nobody_needs_them(tmp_path: Path) -> None:
    async with opened() as broker, working(broker, tmp_path, keep_ms=50):
        await broker.put_code("one", archive("1.0"))
        for _ in range(2):
            task = await ended(broker, "shipped:version", pool="one")
            assert broker.result_of(task) == b'"1.0"'
            await until(lambda: not list(tmp_path.iterdir()))


async def test_a_worker_that_was_not_told_to_imports_nothing(tmp_path: Path) -> None:
    async with opened() as broker, working(broker, tmp_path, code=False):
        await broker.put_code("one", archive("1.0"))
        task = await ended(broker, "add", b'{"left":1,"right":2}', pool="one")
        assert task.status is Status.ERROR and "imports nothing" in task.error
