"""What many ledgers cost: lists and an audit of a million, and ledgers that live for a moment.

Invariants:
- The ledgers of the lists exist only as metadata in ZooKeeper, as 30 bookies would have them.
- The audit is that of the product, with its settings; only looks at bookies find no bookies gone.
"""

import asyncio
import os
import random
import resource
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count as counting
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.ledger_cluster import BOOKIES, started_cluster
from benchmarks.result import Result
from benchmarks.setting import Setting, note, run
from engine.bookie.garbage import GarbageSettings
from engine.bookie.index_rocks import RocksIndex
from engine.bookie.upkeep import UpkeepSettings
from engine.connecting import Connection, connect
from engine.errors import BookieUnavailable
from engine.folder.owner import FolderPorts
from engine.limits import MIB
from engine.metadata.bookies import Bookies, FolderAge, Registration
from engine.metadata.ledgers import LEDGERS, Fragment, Held, LedgerMetadata, Ledgers, State
from engine.metadata.majors import LAYOUT_MAJOR
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_client import Create
from engine.metadata.zookeeper_paths import ancestors
from engine.metadata.zookeeper_settings import ZooKeeperSettings
from engine.ports.clock import SystemClock
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers
from engine.repair.auditor import Auditor
from engine.repair.decommission import Decommission
from engine.repair.outlook import Workshop
from engine.repair.settings import RepairSettings
from engine.server import BookieServer
from engine.server_settings import ServerSettings
from engine.transport.contract import Bookie
from herdbook.zookeeper_server import ZooKeeperServer

SUBJECT: Final = "scale"
_NAMES: Final = tuple(f"{number:016x}" for number in range(30))
_A_TRANSACTION: Final = 500
_HEAP_MIB: Final = 2_048
_PATIENT: Final = ZooKeeperSettings(session_timeout_ms=30_000)
_CALLERS: Final = 50
_ENTRY_BYTES: Final = 1 * MIB
_LEDGER_BYTES: Final = 64 * MIB
_ENOUGH: Final = 1.1
_SPACE_S: Final = 300.0
_LOOK_S: Final = 1.0
_EAGER: Final = RepairSettings(
    surplus_interval_ms=5_000, surplus_quiet_ms=5_000, look_interval_ms=1_000, copy_bytes_a_second=0
)
_OFTEN: Final = UpkeepSettings(
    garbage=GarbageSettings(interval_ms=5_000), minor_interval_ms=5_000, major_interval_ms=15_000
)


def ledgers_million(setting: Setting) -> list[Result]:
    """The first page of a list, the whole list, and an audit, of a million ledgers."""
    total = setting.size(1_000_000, 20_000)
    with (
        setting.scratch() as folder,
        ZooKeeperServer(folder / "zookeeper", heap_mib=_HEAP_MIB) as server,
    ):
        return run(_lists_and_audit(server.hosts, total))


def ledger_short(setting: Setting) -> list[Result]:
    """Ledgers created, written once and closed, 50 at a time, beside two bare writes each."""
    total = setting.size(5_000, 300)

    async def measured(folder: Path) -> tuple[float, float]:
        async with started_cluster(folder, BOOKIES, "framed") as (client, _):
            keys = counting()

            async def short() -> None:
                writer = await client.create_ledger(3, 3, 2)
                await writer.append(b"moo")
                await writer.close()

            async def bare() -> None:
                key = f"/bare/{next(keys)}"
                version = await client.store.create(key, bytes(150))
                await client.store.set(key, bytes(150), version)

            await _rate(short, total // 5)
            rates = [(await _rate(short, total), await _rate(bare, total)) for _ in range(3)]
            return tuple(map(statistics.median, zip(*rates, strict=True)))

    with setting.scratch() as folder:
        rate, limit = run(measured(folder))
    return [Result(SUBJECT, "ledger-short", round(rate), "ledgers/s", round(limit))]


def space(setting: Setting) -> list[Result]:
    """What disks hold after a bookie was decommissioned, by what the metadata assigns to bookies.

    The grace times are seconds here, not hours; nothing else is different from a server's settings.
    The segment that each bookie writes to stays as it is, so there must be some gigabytes.
    """
    ledgers = setting.size(54, 20)

    async def measured(folder: Path) -> tuple[float, float]:
        with ZooKeeperServer(folder / "zookeeper") as zookeeper:
            async with _servers(folder, zookeeper.hosts, 5) as (client, servers):
                return await _give_space_back(client, servers, folder, ledgers)

    with setting.scratch() as folder:
        held, seconds = run(measured(folder))
    return [
        Result(SUBJECT, "space", round(held, 3), "of the bytes that ledgers name", 1.1),
        Result(SUBJECT, "space-seconds", round(seconds, 1), "s", None),
    ]


async def _give_space_back(
    client: Connection, servers: list[BookieServer], folder: Path, ledgers: int
) -> tuple[float, float]:
    """Write, decommission a bookie, and wait for space: the ratio and the seconds."""
    body = os.urandom(_ENTRY_BYTES)
    for _ in range(ledgers):
        writer = await client.create_ledger(3, 3, 2)
        appends = [writer.append(body) for _ in range(_LEDGER_BYTES // _ENTRY_BYTES)]
        await asyncio.gather(*appends)
        await writer.close()
    named = ledgers * 3 * _LEDGER_BYTES
    note(f"disks hold {_disk_bytes(folder) / named:.3f} of {named // MIB:,} MiB")
    began_s = time.perf_counter()
    workshop = Workshop(
        store=client.store,
        transport=client.transport,
        clock=client.clock,
        rng=client.rng,
        settings=_EAGER,
    )
    await Decommission(workshop, servers[0].bookies[0]).run()
    note(f"all replicas moved after {time.perf_counter() - began_s:.0f} s")
    held, seconds = 2 * _ENOUGH, 0.0
    while held > _ENOUGH and seconds < _SPACE_S:
        await asyncio.sleep(_LOOK_S)
        held, seconds = _disk_bytes(folder) / named, time.perf_counter() - began_s
    return held, seconds


def _disk_bytes(folder: Path) -> int:
    """What the folders of all bookies take on the disk."""
    total = 0
    for path in folder.glob("bookie-*/**/*"):
        # Files may go while they are counted.
        with suppress(OSError):
            total += path.stat().st_blocks * 512 if path.is_file() else 0
    return total


@asynccontextmanager
async def _servers(
    folder: Path, hosts: str, count: int
) -> AsyncIterator[tuple[Connection, list[BookieServer]]]:
    """So many servers of a bookie each in this process, and a client of theirs."""
    async with AsyncExitStack() as stack:
        workers = ThreadWorkers(asyncio.get_running_loop())
        stack.push_async_callback(workers.close)
        servers = []
        for number in range(count):
            store = await ZooKeeperStore.connect(hosts, chroot="/space")
            stack.push_async_callback(store.close)
            ports = FolderPorts(
                SystemClock(), random.Random(number), workers, SystemDisk, RocksIndex
            )
            settings = ServerSettings(host=f"machine-{number}", repair=_EAGER, upkeep=_OFTEN)
            server = await BookieServer.start(
                [folder / f"bookie-{number}"], store=store, ports=ports, settings=settings
            )
            stack.push_async_callback(server.close)
            servers.append(server)
        client = await stack.enter_async_context(connect(f"herdbook://{hosts}/space"))
        yield client, servers


async def _rate(work: Callable[[], Awaitable[None]], total: int) -> float:
    """How often a second, by many callers."""

    async def call() -> None:
        for _ in range(total // _CALLERS):
            await work()

    began_s = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(_CALLERS)))
    return total // _CALLERS * _CALLERS / (time.perf_counter() - began_s)


async def _lists_and_audit(hosts: str, total: int) -> list[Result]:
    store = await ZooKeeperStore.connect(hosts, chroot="/million", settings=_PATIENT)
    await _fill(store, total)
    ledgers = Ledgers(store, random.Random(1))
    firsts_ms = []
    for _ in range(20):
        began_s = time.perf_counter()
        page = await store.page(LEDGERS)
        firsts_ms.append(1_000 * (time.perf_counter() - began_s))
        assert page.numbers[:2] == [1, 2]
    began_s = time.perf_counter()
    assert len(await ledgers.ids()) == total
    list_s = time.perf_counter() - began_s
    rate, grown_mib, taken_s = await _audit(store, total)
    await store.close()
    return [
        Result(SUBJECT, "ledgers-first-page", round(statistics.median(firsts_ms), 1), "ms", 50.0),
        Result(SUBJECT, "ledgers-list", round(list_s, 2), "s", 5.0),
        Result(SUBJECT, "ledgers-audit", round(taken_s, 1), "s", None),
        Result(SUBJECT, "ledgers-audit-rate", round(rate), "reads/s", 2_000.0),
        Result(SUBJECT, "ledgers-audit-memory", round(grown_mib), "MiB", 400.0),
    ]


async def _fill(store: ZooKeeperStore, total: int) -> None:
    """Write the metadata of so many closed ledgers, many in one transaction."""
    rng = random.Random(7)
    key_hash = bytes(32)
    began_s = time.perf_counter()

    def value_of(ledger_id: int) -> bytes:
        names = tuple(rng.sample(_NAMES, 3))
        return msgspec.msgpack.encode(
            LedgerMetadata(
                ledger_id,
                ensemble_size=3,
                write_quorum=3,
                ack_quorum=2,
                fragments=(Fragment(0, names),),
                key_hash=key_hash,
                created_ms=1_700_000_000_000,
                token=rng.getrandbits(63),
                state=State.CLOSED,
                last_entry=99,
                length=10_000,
            )
        )

    async def write(first: int) -> None:
        ids = range(first, min(first + _A_TRANSACTION, total + 1))
        steps = [Create(store._layout.places(f"{LEDGERS}/{n}")[-1], value_of(n)) for n in ids]
        for folder in dict.fromkeys(step.path.rpartition("/")[0] for step in steps):
            await store._client.make_folders([*ancestors(folder), folder])
        await store._commit(steps)

    for first in range(1, total + 1, _A_TRANSACTION):
        await write(first)
    note(f"{total:,} ledgers written in {time.perf_counter() - began_s:.0f} s")


async def _audit(store: ZooKeeperStore, total: int) -> tuple[float, float, float]:
    """Reads a second, MiB that the process grew by, and seconds, of one audit."""
    bookies = Bookies(store)
    for name in _NAMES:
        await bookies.raise_age(name, FolderAge(1))
        await bookies.register(Registration(name, 1, host=name, layout=LAYOUT_MAJOR))
    workshop = Workshop(
        store=store, transport=_Nowhere(), clock=SystemClock(), rng=random.Random(3)
    )
    reads = 0
    inner = workshop.ledgers.read

    async def read(ledger_id: int) -> Held:
        nonlocal reads
        reads += 1
        return await inner(ledger_id)

    workshop.ledgers.read = read  # type: ignore[method-assign]
    auditor = Auditor(workshop, "auditor")
    before_kib = most_kib = _resident_kib()
    began_s = time.perf_counter()
    looking = asyncio.ensure_future(auditor.look())
    while not looking.done():
        await asyncio.wait([looking], timeout=0.2)
        most_kib = max(most_kib, _resident_kib())
    await looking
    taken_s = time.perf_counter() - began_s
    assert auditor.surveys == 1 and reads == total
    await auditor.close()
    return reads / taken_s, (most_kib - before_kib) / 1024, taken_s


def _resident_kib() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize() // 1024


class _Nowhere:
    """A transport for an audit, which reads metadata alone."""

    async def connect(self, bookie_id: str) -> Bookie:
        raise BookieUnavailable(f"bookie {bookie_id} is not started")

    async def close(self) -> None:
        """Nothing is open."""
