"""The broker's failover: three brokers and their bookies in processes, the leader is killed.

Invariants:
- What is measured is what a client and a worker see, who were there before and know nothing of it.
- Every task that was active before is active afterwards: waiting, or running at the same worker.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from typing import Final

from benchmarks.ledger_cluster import free_ports, started_bookies
from benchmarks.result import Result
from benchmarks.setting import Setting, note, run
from broker.commands import Spec
from broker.connection import Assigned, Attempt, Heartbeat, Hello, Welcome, WorkerLimits
from broker.errors import BrokerError
from broker.task import Status
from broker.wire.leader_port import LeaderWorkerPort
from broker.wire.remote import RemoteCalls
from engine.connecting import connect
from engine.ports.clock import SystemClock

SUBJECT: Final = "broker"
BROKERS: Final = 3
RUNNING: Final = 2_000
BATCH: Final = 1_000
LIMIT_MS: Final = 5_000
_PROBES: Final = 100
_RUNS, _WAITS, _PROBE = "runs", "waits", "probe"
_PAUSE_S: Final = 0.02
_BEAT_S: Final = 0.5
_READY_S: Final = 60.0
_RENEWAL_S: Final = 0.5


def failover(setting: Setting) -> list[Result]:
    """From the leader's death to the next submit, and to the next task that begins.

    Beside 100,000 active tasks, 2,000 of which run.
    """
    count = setting.size(100_000, 10_000)
    with setting.scratch() as folder:
        submit_ms, dispatch_ms = run(_failover(folder, count))
    return [
        Result(SUBJECT, "task-failover-submit", submit_ms, "ms", LIMIT_MS),
        Result(SUBJECT, "task-failover-dispatch", dispatch_ms, "ms", LIMIT_MS),
    ]


async def _failover(folder: Path, count: int) -> tuple[float, float]:
    async with AsyncExitStack() as stack:
        url, _ = await stack.enter_async_context(started_bookies(folder, BROKERS))
        brokers = stack.enter_context(_brokers(folder, url))
        client = await stack.enter_async_context(connect(url))
        leading = LeaderWorkerPort(client.store)
        calls = RemoteCalls(list(brokers), SystemClock(), SystemRandom())
        worker = _Worker(leading)
        working = asyncio.create_task(worker.work())
        try:
            await _fill(calls, worker, count)
            address = await leading.leader()
            # Otherwise every kill would hit the same phase of the leader's lease renewal.
            await asyncio.sleep(SystemRandom().random() * _RENEWAL_S)
            started_s = time.perf_counter()
            brokers[address].kill()
            await _submitted(calls)
            submitted_s = time.perf_counter() - started_s
            dispatched_s = await worker.probed() - started_s
            counts = await calls.counts()
            left = counts[Status.WAITING] + counts[Status.RUNNING]
            assert left == count + 1, counts
            note(f"{count:,} active: submit {submitted_s:.2f} s, dispatch {dispatched_s:.2f} s")
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await calls.close()
            await leading.close()
    return round(1000 * submitted_s), round(1000 * dispatched_s)


async def _fill(calls: RemoteCalls, worker: "_Worker", count: int) -> None:
    """Submit what waits and what runs; return when that runs."""
    end_s = time.perf_counter() + _READY_S
    left = count
    while left:
        size = min(BATCH, left)
        type_ = _RUNS if left <= RUNNING else _WAITS
        try:
            await calls.submit([Spec(type_, payload=b"x" * 50) for _ in range(size)])
        except BrokerError:
            assert time.perf_counter() < end_s, "no broker leads"
            continue
        left -= size
    while len(worker.running) < min(RUNNING, count):
        assert time.perf_counter() < end_s, f"{len(worker.running)} tasks run"
        await asyncio.sleep(_PAUSE_S)


async def _submitted(calls: RemoteCalls) -> None:
    """Submit one task, as soon as somebody takes it."""
    while True:
        try:
            await calls.submit([Spec(_PROBE)])
            return
        except BrokerError:
            await asyncio.sleep(_PAUSE_S)


class _Worker:
    """A worker whose tasks never end."""

    def __init__(self, port: LeaderWorkerPort) -> None:
        self.running: list[Attempt] = []
        self._port = port
        self._probed_s = 0.0
        self._probed = asyncio.Event()

    async def probed(self) -> float:
        """When the task came that was submitted after the failover."""
        await self._probed.wait()
        return self._probed_s

    async def work(self) -> None:
        """Live on one link after the other."""
        while True:
            with suppress(BrokerError):
                await self._linked()
            await asyncio.sleep(_PAUSE_S)

    async def _linked(self) -> None:
        limits = WorkerLimits(RUNNING + _PROBES)
        hello = Hello("worker", "one", "here", (_RUNS, _PROBE), limits, tuple(self.running))
        link = await self._port.connect(hello)
        session, taken, sequence = 0, 0, 0

        async def beat() -> None:
            nonlocal sequence
            while True:
                await asyncio.sleep(_BEAT_S)
                sequence += 1
                await link.send([Heartbeat(sequence, session, len(self.running), taken)])

        beating = asyncio.create_task(beat())
        try:
            while True:
                for message in await link.receive():
                    if isinstance(message, Welcome):
                        session = message.session
                    elif isinstance(message, Assigned):
                        taken += len(message.runs)
                        for one in message.runs:
                            self.running.append((one.id, one.attempt))
                            if one.type == _PROBE:
                                self._probed_s = time.perf_counter()
                                self._probed.set()
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            await link.close()


@contextmanager
def _brokers(folder: Path, url: str) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """Brokers by their addresses, ended by their process ids."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for number, port in enumerate(free_ports(BROKERS)):
            address = f"127.0.0.1:{port}"
            command = [
                *(sys.executable, "-m", "herdbook", "task", "serve", "--url", url),
                *("--listen", "127.0.0.1:0", "--grpc", address),
                *("--state", str(folder / f"broker-{number}")),
            ]
            with (folder / f"broker-{number}.log").open("ab") as log:
                started[address] = subprocess.Popen(command, stdout=log, stderr=log)
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.wait()
