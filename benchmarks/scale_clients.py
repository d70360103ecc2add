"""What idle clients of nodes cost, and how soon clients continue after their node is killed.

Invariants:
- All clients are in one process, which is not a process of the cluster.
- A client is a connection made by `engine.connect`: a metadata session with a watch, and no session
  of ZooKeeper.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from benchmarks.result import Result
from benchmarks.setting import Setting, note
from engine.connecting import Connection, connect
from engine.errors import EngineError
from engine.metadata.bookies import AVAILABLE
from herd.nodes.commands import SpaceCommands

SUBJECT: Final = "scale"
_AT_ONCE: Final = 50
_SETTLED_S: Final = 3.0
_PATIENCE_S: Final = 60.0


async def clients(
    setting: Setting, url: str, process_of: Callable[[int], int], zookeeper: str
) -> list[Result]:
    """Measure the nodes' memory for each idle client, ZooKeeper's sessions, and the longest pause.

    `process_of(port)` is the process that listens at a port.
    """
    count = setting.size(3_000, 60)
    async with connect(url) as client:
        commands = SpaceCommands(client.store, client.clock, client.rng)
        addresses = [
            each.address.removeprefix("tcp:") for each in (await commands.nodes()).values()
        ]
    pids = [process_of(int(each.rpartition(":")[2])) for each in addresses]
    for address in addresses:
        # Do not count what a node loads for its first client.
        async with connect(f"herdbook://{address}") as client:
            await client.store.get("/warm")
    async with AsyncExitStack() as stack:
        before, sessions = sum(map(_resident_bytes, pids)), _sessions(zookeeper)
        opened: list[Connection] = []
        for start in range(0, count, _AT_ONCE):
            some = range(start, min(count, start + _AT_ONCE))
            opened += await asyncio.gather(
                *(_connected(stack, addresses[n % len(addresses)]) for n in some)
            )
        await asyncio.sleep(_SETTLED_S)
        each_kib = (sum(map(_resident_bytes, pids)) - before) / count / 1024
        more = _sessions(zookeeper) - sessions
        note(f"{count:,} clients at {len(addresses)} nodes")
        began_s = time.perf_counter()
        os.kill(pids[0], signal.SIGKILL)
        pauses_s = await asyncio.gather(
            *(_goes_on(one, began_s) for one in opened[:: len(addresses)])
        )
    return [
        Result(SUBJECT, "clients-memory", round(each_kib, 1), "KiB an idle client", 40.0),
        Result(SUBJECT, "clients-zookeeper", more, "more sessions of ZooKeeper", None),
        Result(SUBJECT, "clients-killed-node", round(max(pauses_s), 2), "s", 2.0),
    ]


async def _connected(stack: AsyncExitStack, address: str) -> Connection:
    client = await stack.enter_async_context(connect(f"herdbook://{address}"))
    client.store.watch(AVAILABLE, lambda: None)
    return client


async def _goes_on(client: Connection, began_s: float) -> float:
    """The seconds until a client of the killed node can read again."""
    while True:
        with suppress(EngineError):
            await client.store.children(AVAILABLE)
            return time.perf_counter() - began_s
        assert time.perf_counter() - began_s < _PATIENCE_S
        await asyncio.sleep(0.02)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _sessions(zookeeper: str) -> int:
    """How many connections a ZooKeeper server has, according to its command `srvr`."""
    host, _, port = zookeeper.rpartition(":")
    with socket.create_connection((host, int(port))) as end:
        end.sendall(b"srvr")
        told = b"".join(iter(lambda: end.recv(4_096), b"")).decode()
    return next(
        int(line.split()[1]) for line in told.splitlines() if line.startswith("Connections")
    )
