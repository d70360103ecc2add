"""Appending to a real cluster: the client here, ZooKeeper and bookies in processes of their own.

Invariants:
- Everything runs on this machine, over loopback; each bookie has a folder and a process of its own.
- Every add is durable on two of three bookies before it is acknowledged, as in one process.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.disk_limit import ENTRY_BYTES
from benchmarks.ledger_append import CALLERS_MANY, ENTRY, SUBJECT
from benchmarks.result import Result
from benchmarks.setting import Setting, note
from engine.connecting import Connection, Wire, connect
from engine.errors import InvalidRequest, NoSuchCluster, Unavailable
from engine.ledger.writer import LedgerWriter
from engine.ports.system_latency import CpuLatency
from herdbook.zookeeper_server import ZooKeeperServer

BOOKIES: Final = 3
_CHROOT: Final = "/benchmark"
_READY_S: Final = 30.0
_POLL_S: Final = 0.1
_ASKED: Final = "processors awake"

Caller = Callable[[LedgerWriter], Coroutine[Any, Any, None]]


def many(setting: Setting) -> list[Result]:
    """4,000 callers that each await one append at a time."""
    return _measure(setting, "append-cluster-many", "framed", CALLERS_MANY, setting.size(50, 10))


def one(setting: Setting) -> list[Result]:
    """A single caller."""
    return _measure(setting, "append-cluster-one", "framed", 1, setting.size(10_000, 1_000))


def many_grpc(setting: Setting) -> list[Result]:
    """4,000 callers over the public wire."""
    calls = setting.size(50, 10)
    return _measure(setting, "append-cluster-many-grpc", "grpc", CALLERS_MANY, calls)


def one_grpc(setting: Setting) -> list[Result]:
    """A single caller over the public wire."""
    return _measure(setting, "append-cluster-one-grpc", "grpc", 1, setting.size(5_000, 500))


def failover(setting: Setting) -> list[Result]:
    """The longest time without an acknowledged add while a bookie of the ensemble is killed."""
    seconds = 3.0 if setting.quick else 6.0

    async def work(folder: Path) -> float:
        async with started_cluster(folder, BOOKIES + 1, "framed") as (client, bookies):
            return await _longest_stall_s(client, bookies, seconds)

    with setting.scratch() as folder:
        stall_s = asyncio.run(work(folder))
    return [Result(SUBJECT, "failover", round(1000 * stall_s), "ms", 2_000.0)]


def _measure(setting: Setting, scenario: str, wire: Wire, callers: int, calls: int) -> list[Result]:
    total = callers * calls

    async def caller(writer: LedgerWriter) -> None:
        append = writer.append
        for _ in range(calls):
            await append(ENTRY)

    async def once(client: Connection) -> float:
        writer = await client.create_ledger(3, 3, 2)
        start = time.perf_counter()
        await asyncio.gather(*[caller(writer) for _ in range(callers)])
        taken_s = time.perf_counter() - start
        assert await writer.close() == total - 1
        return total / taken_s

    async def work(folder: Path) -> float:
        async with started_cluster(folder, BOOKIES, wire, keep=callers == 1) as (client, _):
            # The first ledger pays for connections and for code that was never run.
            await once(client)
            return await setting.median(lambda: once(client))

    value, limit = setting.beside_limit(BOOKIES, callers * ENTRY_BYTES, work, _latency())
    asked = _ASKED if _latency() else ""
    return [Result(SUBJECT, scenario, round(value), "adds/s", round(limit), asked=asked)]


async def _longest_stall_s(
    client: Connection, bookies: list["subprocess.Popen[bytes]"], seconds: float
) -> float:
    """Append one entry after the other; kill the first bookie of the ensemble halfway."""
    addresses = {name: one.address for name, one in (await client._bookies.available()).items()}
    writer = await client.create_ledger(3, 3, 2)
    first = addresses[writer.metadata.fragments[-1].ensemble[0]]
    order = sorted(addresses.values(), key=lambda address: int(address.rpartition(":")[2]))
    clock = time.perf_counter
    end_s, kill_s, longest_s = clock() + seconds, clock() + seconds / 2, 0.0
    killed = False
    while clock() < end_s:
        if not killed and clock() > kill_s:
            killed = True
            bookies[order.index(first)].kill()
        began_s = clock()
        await writer.append(ENTRY)
        longest_s = max(longest_s, clock() - began_s)
    await writer.close()
    return longest_s


@asynccontextmanager
async def started_cluster(
    folder: Path, count: int, wire: Wire, *, keep: bool = False
) -> AsyncIterator[tuple[Connection, list["subprocess.Popen[bytes]"]]]:
    """ZooKeeper, so many bookies, and a client of theirs over a wire.

    With `keep` the client keeps to a processor as they do, the next in turn.
    """
    async with started_bookies(folder, count) as (url, bookies):
        with _kept_to(_cpu_of(count) if keep else None):
            async with connect(url, wire=wire) as client:
                yield client, bookies


@asynccontextmanager
async def started_bookies(
    folder: Path, count: int
) -> AsyncIterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """ZooKeeper and so many bookies: the url of their cluster."""
    with (
        ZooKeeperServer(folder / "zookeeper") as zookeeper,
        _bookies(folder, zookeeper.hosts, count) as bookies,
    ):
        url = f"herdbook://{zookeeper.hosts}{_CHROOT}"
        await _ready(url, count)
        yield url, bookies


@contextmanager
def _bookies(folder: Path, hosts: str, count: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Started in the order of their ports, ended by their process ids."""
    ports = sorted(free_ports(2 * count))
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(count):
            command = [
                *(sys.executable, "-m", "herdbook", "bookie"),
                *("--data", str(folder / f"bookie-{number}")),
                *("--zookeeper", f"{hosts}{_CHROOT}"),
                *("--listen", f"127.0.0.1:{ports[number]}"),
                *("--grpc", f"127.0.0.1:{ports[count + number]}"),
                *("--host", f"machine-{number}"),
                *(("--cpu-latency-us", "0") if _latency() else ()),
                *(("--cpus", str(cpu)) if (cpu := _cpu_of(number)) is not None else ()),
            ]
            log = (folder / f"bookie-{number}.log").open("ab")
            with log:
                started.append(subprocess.Popen(command, stdout=log, stderr=log))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def _cpu_of(number: int) -> int | None:
    """Where the process of this number runs, if that can be said.

    As an operator does where bookies and what writes to them share a machine: each has a processor
    of its own, as far as there are enough.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[number % len(cpus)]


@cache
def _latency() -> CpuLatency | None:
    """What bookies may ask of processors here, as an operator allows them to."""
    try:
        return CpuLatency(0)
    except InvalidRequest as error:
        note(f"bookies run without --cpu-latency-us: {error}")
        return None


@contextmanager
def _kept_to(cpu: int | None) -> Iterator[None]:
    """This thread, and those it starts, on one processor."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_ports(count: int) -> list[int]:
    """Ports of this machine at which nobody listens."""
    import socket

    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


async def _ready(url: str, count: int) -> None:
    """Wait until so many bookies are registered."""
    end_s = time.perf_counter() + _READY_S
    while True:
        try:
            async with connect(url) as client:
                if len(await client._bookies.available()) == count:
                    return
        except (NoSuchCluster, Unavailable):
            pass
        assert time.perf_counter() < end_s, f"{count} bookies did not start"
        await asyncio.sleep(_POLL_S)
