"""Tasks of a folder that several processes have open, one of which is killed."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import herdbook
from broker.ports import UserMapping
from broker.settings import BrokerSettings, Target
from broker.task import Status
from tests.broker.worker.looking import began

ROOT = Path(__file__).parents[2]
OWNER = """
import sys, herdbook
with herdbook.open(sys.argv[1]) as book:
    print(book.tasks.submit("add", {"left": 1, "right": 2}).id, flush=True)
    sys.stdin.read()
"""
MODULE = "tests.broker.worker.functions"


def started(*command: str) -> subprocess.Popen[str]:
    """A process that can be talked to."""
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )


async def test_a_folders_tasks_go_on_when_the_process_that_ran_them_is_killed(
    tmp_path: Path,
) -> None:
    folder, note = tmp_path / "data", tmp_path / "note"
    owner = started("-c", OWNER, str(folder))
    assert owner.stdout is not None and owner.stdout.readline() == "1\n"
    worker = started(
        *("-m", "herdbook", "worker", "--tasks", MODULE, "--processes", "1"),
        *("--url", str(folder)),
    )
    try:
        assert worker.stdout is not None and worker.stdout.readline().startswith("worker ")
        async with herdbook.open_async(folder, broker=BrokerSettings(lease_ms=4_000)) as book:
            tasks = await book.tasks()
            # They run in the first process, and are the same here and in the third.
            assert await tasks.wait(1, 20_000) == 3
            running = await tasks.submit("until_gone", {"note": str(note)})
            await began(note)
            owner.kill()
            # Whoever asks next runs them; the worker goes on with what it runs.
            assert (await running.get()).status is Status.RUNNING
            second = await tasks.submit("add", {"left": 20, "right": 22})
            assert await second.wait(20_000) == 42
            note.unlink()
            await running.wait(20_000)
            assert (await running.get()).attempt == 1
            worker.send_signal(signal.SIGTERM)
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, worker.wait) == 0
    finally:
        for process in (owner, worker):
            process.kill()
            process.communicate()


def test_settings_and_a_mapping_reach_the_tasks_of_a_folder(tmp_path: Path) -> None:
    async def targets(mapping: UserMapping | dict[str, Target]) -> list[Target]:
        settings = BrokerSettings(lease_ms=777)
        async with herdbook.open_async(tmp_path, broker=settings, mapping=mapping) as book:
            assert (await book.broker.open()).settings.lease_ms == 777
            tasks = await book.tasks()
            for tenant in ("elsa", "bertha"):
                await tasks.submit("milk", tenant=tenant)
            queues = sorted(await tasks.calls.queues(), key=lambda queue: queue.key.tenant)
            return [queue.target for queue in queues]

    def function(tenant: str, type: str, /) -> Target:
        return Target(3, (tenant, type))

    assert asyncio.run(targets({"elsa": Target(2, ("db",))})) == [Target(), Target(2, ("db",))]
    assert asyncio.run(targets({"elsa": Target(2), "": Target(9)})) == [Target(9), Target(2)]
    found = asyncio.run(targets(function))
    assert found == [Target(3, ("bertha", "milk")), Target(3, ("elsa", "milk"))]
