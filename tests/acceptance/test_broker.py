"""Three brokers on a real cluster: their leader and the workers are killed under load.

`HERDBOOK_ACCEPTANCE=full` runs the full size, as `make soak` does.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import engine
from broker.errors import BrokerError
from broker.wire.leader_port import LeaderWorkerPort
from broker.wire.remote import RemoteCalls
from engine.ports.clock import SystemClock
from tests.acceptance.broker_machines import (
    BrokerProcess,
    Ledger,
    WorkerProcess,
    all_ended,
    all_tasks,
)
from tests.acceptance.machines import cluster, until

FULL: Final = os.environ.get("HERDBOOK_ACCEPTANCE") == "full"
TASKS: Final = 50_000 if FULL else 5_000
LEADER_KILLS: Final = 10 if FULL else 3
WORKER_KILLS: Final = 20 if FULL else 5
FAILOVER_S_MAX: Final = 5.0
ENDS_S: Final = 600.0 if FULL else 60.0
WORKERS: Final = 3
BATCH: Final = 50
CHROOT: Final = "/brokers"


class Running(NamedTuple):
    """What the test works with."""

    brokers: list[BrokerProcess]
    workers: list[WorkerProcess]
    calls: RemoteCalls
    leading: LeaderWorkerPort


async def test_leaders_and_workers_are_killed_and_every_task_ends_once(tmp_path: Path) -> None:
    rng = random.Random("brokers")
    ledger = Ledger(tmp_path / "runs")
    async with brokers(tmp_path) as running:
        await until("a broker leads", partial(answers, running.calls))
        filling = asyncio.create_task(ledger.fill(running.calls, TASKS, BATCH, rng))
        misfortunes = ["leader"] * LEADER_KILLS + ["worker"] * WORKER_KILLS
        rng.shuffle(misfortunes)
        failovers_s = []
        for number, whom in enumerate(misfortunes):
            share = (number + 1) / (len(misfortunes) + 1)
            await until(f"{share:.0%} have begun", partial(begun, ledger, share), ENDS_S)
            if whom == "leader":
                failovers_s.append(await leader_killed(running))
            else:
                worker = running.workers[number % WORKERS]
                worker.kill()
                worker.start()
        await filling
        await until("every task has ended", partial(all_ended, running.calls), ENDS_S)
        tasks = await all_tasks(running.calls)
    ends = ledger.judge(tasks)
    runs = ledger.runs()
    print(
        f"{len(tasks)} tasks, {len(ledger.unknown)} of unknown outcome: "
        f"{ {status.name: count for status, count in ends.items()} }, {runs.total()} runs; "
        f"failovers in {', '.join(f'{one:.1f}' for one in failovers_s)} s"
    )
    assert len(ledger.taken) + len(ledger.unknown) == TASKS
    assert max(failovers_s) < FAILOVER_S_MAX, failovers_s


async def leader_killed(running: Running) -> float:
    """Kill who leads until another one answers; how long that took. It comes back then."""
    address = await leader_of(running)
    leader = next(each for each in running.brokers if each.address == address)
    since_s = asyncio.get_running_loop().time()
    leader.kill()
    await until("another broker leads", partial(answers, running.calls))
    took_s = asyncio.get_running_loop().time() - since_s
    leader.start()
    return took_s


async def leader_of(running: Running) -> str:
    """The address of who leads."""
    await until("somebody leads", partial(answers, running.calls))
    return await running.leading.leader()


async def answers(calls: RemoteCalls) -> bool:
    """Whether somebody answers as the leader."""
    try:
        await calls.now_ms()
    except BrokerError:
        return False
    return True


async def begun(ledger: Ledger, share: float) -> bool:
    """Whether so many tasks have begun."""
    return len(ledger.runs()) >= share * TASKS


@asynccontextmanager
async def brokers(folder: Path) -> AsyncIterator[Running]:
    """ZooKeeper, three bookies, three brokers, three workers, and a client of them."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(cluster(folder, CHROOT))
        made = [BrokerProcess(number, folder, url) for number in range(3)]
        workers = [WorkerProcess(number, folder, url) for number in range(WORKERS)]
        for each in (*made, *workers):
            stack.callback(each.kill)
            each.start()
        clock, rng = SystemClock(), random.Random("calls")
        calls = RemoteCalls([each.address for each in made], clock, rng)
        stack.push_async_callback(calls.close)
        client = await stack.enter_async_context(engine.connect(url))
        leading = LeaderWorkerPort(client.store)
        stack.push_async_callback(leading.close)
        yield Running(made, workers, calls, leading)
