"""One worker on the real machine: its broker, and the signals that end it.

Invariants:
- On the first SIGTERM or SIGINT it drains; on a second one it ends what runs at once. On SIGHUP it
  reads secrets and certificates again.
- A folder's broker runs in the worker's own process, as long as the worker does.
"""

import asyncio
import os
import random
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from broker.connection import WorkerLimits, WorkerPort
from broker.ports import PayloadStore
from broker.worker.code import CodeSettings
from broker.worker.pool import Pool, PoolSettings
from broker.worker.serving import serve_worker
from broker.worker.worker import Worker, WorkerSettings
from engine.extras import needing_cluster
from engine.ports.clock import SystemClock
from engine.ports.switching import SWITCH_INTERVAL_S
from engine.ports.system_signals import renewed_by_signal
from herdbook.finding import (
    FILE_VARIABLE,
    Configuration,
    configuration_file,
    find,
    is_cluster,
    open_store,
    read_configuration,
)
from herdbook.payload_store import OpenedPayloads


@dataclass(frozen=True, slots=True)
class WorkerChoice:
    """What a worker is to be.

    Without `brokers` the store that `url` finds says where they are; with them a `url` says where
    big payloads lie.
    """

    modules: tuple[str, ...]
    limits: WorkerLimits
    processes: int
    url: str | None = None
    brokers: tuple[str, ...] = ()
    name: str = ""
    memory_limit_bytes: int = 0
    drain_ms: int = 30_000
    ahead: int = 0
    """How many of the places are for tasks that wait here for others to end."""
    code_pools: bool = False
    """Whether it takes tasks that bring their own code."""
    agent: str = ""
    """The node whose agent it is: it takes the steps of roll-outs there, and nothing else."""


async def run_worker(
    choice: WorkerChoice,
    started: Callable[[Worker, Pool], None],
    leaving: Callable[[], None] = lambda: None,
) -> bool:
    """Run a worker until a signal drains it; returns whether all that ran could end by itself.

    `started` hears of it when its processes are ready, `leaving` of the first signal. Raises
    `BrokerError`, `EngineError`.
    """
    renewed_by_signal()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    rng = random.SystemRandom()
    host = socket.gethostname()
    settings = WorkerSettings(
        choice.name or f"{host}-{os.getpid()}",
        f"{rng.getrandbits(64):016x}",
        f"{host}, process {os.getpid()}",
        choice.limits,
        drain_ms=choice.drain_ms,
    )
    pool_settings = PoolSettings(
        choice.modules,
        # A program's modules are looked for where it is started, as `python -m` does.
        path=(os.getcwd(),),
        processes=choice.processes,
        places=choice.limits.places - choice.ahead,
        ahead=choice.ahead,
        memory_limit_bytes=choice.memory_limit_bytes,
    )

    def listen(worker: Worker, pool: Pool) -> None:
        _drain_by_signals(worker, leaving)
        started(worker, pool)

    with tempfile.TemporaryDirectory(prefix="herdbook-code-") as folder:
        code = CodeSettings(Path(folder), pool_settings) if choice.code_pools else None
        async with _port(choice) as (port, payloads):
            clock = SystemClock()
            if choice.agent:
                from broker.rollouts.agent import serve_agent

                return await serve_agent(
                    port, choice.agent, settings, pool_settings, clock, rng, listen
                )
            return await serve_worker(
                port, settings, pool_settings, clock, rng, listen, code, payloads
            )


def _drain_by_signals(worker: Worker, leaving: Callable[[], None]) -> None:
    loop, told = asyncio.get_running_loop(), False

    def drain() -> None:
        nonlocal told
        worker.drain()
        if not told:
            told = True
            leaving()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain)


@asynccontextmanager
async def _port(choice: WorkerChoice) -> AsyncIterator[tuple[WorkerPort, PayloadStore | None]]:
    """Where the worker connects, and where big payloads are."""
    configuration = _configuration()
    if choice.brokers:
        with needing_cluster():
            from broker.wire.grpc_port import GrpcWorkerPort

            port = GrpcWorkerPort(choice.brokers, configuration.make_security())
        try:
            if choice.url is None:
                yield port, None
            else:
                async with OpenedPayloads(find(choice.url, os.environ, configuration)) as payloads:
                    yield port, payloads
        finally:
            await port.close()
        return
    url = find(choice.url, os.environ, configuration)
    if not is_cluster(url):
        from herdbook.book import open_async

        async with open_async(Path(url)) as book:
            yield await book.broker.calls(), book.broker.payloads
        return
    async with open_store(url) as client:
        with needing_cluster():
            from broker.wire.leader_port import LeaderWorkerPort

            leader = LeaderWorkerPort(client.store, configuration.make_security())
        try:
            async with OpenedPayloads(url) as payloads:
                yield leader, payloads
        finally:
            await leader.close()


def _configuration() -> Configuration:
    needed = bool(os.environ.get(FILE_VARIABLE))
    return read_configuration(configuration_file(os.environ), needed=needed)
