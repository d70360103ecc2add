"""What many tablespaces cost that nobody uses: a cluster of three nodes, with two and with 2,000.

Many ledgers are measured in `benchmarks.scale_ledgers`, many clients in `benchmarks.scale_clients`,
and a minute without ZooKeeper in `benchmarks.scale_away`.

Invariants:
- Both are measured on the same cluster, in one run: nothing but the number of tablespaces differs.
- The nodes are those of `herdbook dev`, with its settings; what is told apart is a node's process
  and ZooKeeper's.
"""

import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import herdbook
from benchmarks.result import Result
from benchmarks.scale_away import zookeeper_away
from benchmarks.scale_clients import clients
from benchmarks.scale_ledgers import SUBJECT, ledger_short, ledgers_million, space
from benchmarks.setting import Setting, note, run
from blobit import Bucket
from engine.connecting import connect
from herd.errors import OperationalError
from herd.nodes.commands import SpaceCommands
from herdbook.connecting import AsyncCluster, Cluster

NODES: Final = 3
_READY_S: Final = 90.0
_SUSPENDED_S: Final = 900.0
_LOOK_S: Final = 1.0
_PAUSE_S: Final = 0.02
_PACE_S: Final = 0.1
_AT_ONCE: Final = 50
_OBJECT: Final = os.urandom(4096)


class _Idle(NamedTuple):
    """Processor time, in percent of a processor, and memory."""

    node: float
    zookeeper: float
    node_bytes: float


class _Times(NamedTuple):
    """Medians of one caller, milliseconds."""

    insert: float
    put: float
    append: float


def tablespaces(setting: Setting) -> list[Result]:
    """Idle nodes, one caller's writes, creation and resumption beside many tablespaces."""
    count = setting.size(2_000, 20)
    with setting.scratch() as folder, _dev(folder) as (url, pid), herdbook.connect(url) as book:
        _create(book, "first")
        bucket = book.blobs.create_bucket("first")
        _times(book, bucket, setting)
        few_times = _times(book, bucket, setting)
        _until_suspended(url)
        few = _idle(pid, setting)
        created_ms = [_timed(partial(_create, book, f"t{n}")) for n in range(count)]
        note(f"{count:,} tablespaces created, {statistics.median(created_ms):.0f} ms each")
        _until_suspended(url)
        many = _idle(pid, setting)
        chosen = random.Random(1).sample(range(count), min(count, setting.size(200, 5)))
        resumed_ms = sorted(_timed(partial(_ask, book, f"t{n}")) for n in chosen)
        _until_suspended(url)
        _times(book, bucket, setting)
        many_times = _times(book, bucket, setting)
        made = range(setting.size(50, 3))
        buckets_ms = [_timed(partial(book.blobs.create_bucket, f"bucket-{n}")) for n in made]
    p99_ms = resumed_ms[max(0, len(resumed_ms) * 99 // 100 - 1)]
    each_kib = (many.node_bytes - few.node_bytes) / count / 1024
    last = created_ms[-min(count, 200) :]
    return [
        _beside("idle-groups", many.node, few.node, "% of a processor"),
        _beside("idle-groups-zookeeper", many.zookeeper, few.zookeeper, "% of a processor"),
        Result(SUBJECT, "idle-groups-memory", round(each_kib, 1), "KiB a tablespace", 64.0),
        _beside("insert-beside-groups", many_times.insert, few_times.insert, "ms"),
        _beside("put-beside-groups", many_times.put, few_times.put, "ms"),
        _beside("append-beside-groups", many_times.append, few_times.append, "ms"),
        Result(SUBJECT, "create-tablespace", round(statistics.median(last), 1), "ms", 400.0),
        Result(SUBJECT, "create-bucket", round(statistics.median(buckets_ms), 1), "ms", 40.0),
        Result(SUBJECT, "resume-p50", round(statistics.median(resumed_ms), 1), "ms", None),
        Result(SUBJECT, "resume-p99", round(p99_ms, 1), "ms", 200.0),
    ]


def failover(setting: Setting) -> list[Result]:
    """The node that leads most tablespaces is killed, while programs write to some of them."""
    count, written = setting.size(2_000, 12), setting.size(100, 6)
    names = [f"t{n}" for n in range(count)]
    with setting.scratch() as folder, _dev(folder) as (url, pid):
        with herdbook.connect(url) as book:
            for name in names:
                _create(book, name)
        written_s, all_s = run(_failover(url, pid, names, names[:written]))
    return [
        Result(SUBJECT, "failover-groups-written", round(written_s, 2), "s", 6.0),
        Result(SUBJECT, "failover-groups", round(all_s, 2), "s", 30.0),
    ]


def buckets(setting: Setting) -> list[Result]:
    """Buckets with an object each: created and filled, listed, read back by another client."""
    count = setting.size(10_000, 20)
    with setting.scratch() as folder, _dev(folder) as (url, _):
        created, listed_s, read = run(_buckets(url, count))
    return [
        Result(SUBJECT, "buckets-created", round(created), "buckets with an object/s", None),
        Result(SUBJECT, "buckets-listed", round(listed_s, 3), "s for all", None),
        Result(SUBJECT, "buckets-read", round(read), "objects/s", None),
    ]


def clients_of_nodes(setting: Setting) -> list[Result]:
    """Thousands of idle clients of nodes, and then the loss of one of those nodes."""
    with setting.scratch() as folder, _dev(folder) as (url, pid):
        server = url.removeprefix("herdbook://").partition("/")[0]
        return run(clients(setting, url, partial(_listens, pid), server))


def without_zookeeper(setting: Setting) -> list[Result]:
    """Reads, writes, queries, objects and tasks while ZooKeeper is stopped for a minute."""
    with setting.scratch() as folder, _dev(folder) as (url, pid):
        return run(zookeeper_away(setting, url, _below(pid)))


SCENARIOS: Final[dict[str, Callable[[Setting], list[Result]]]] = {
    "tablespaces": tablespaces,
    "failover-groups": failover,
    "buckets": buckets,
    "clients": clients_of_nodes,
    "zookeeper-away": without_zookeeper,
    "ledgers-million": ledgers_million,
    "ledger-short": ledger_short,
    "space": space,
}


class _Writer:
    """Inserts numbers into a tablespace, ten a second, and reads the last one through another
    client. Knows which numbers were acknowledged, and which of those a later read did not find."""

    def __init__(self, book: AsyncCluster, other: AsyncCluster, name: str) -> None:
        self._book = book
        self._other = other
        self.name = name
        self.acknowledged: list[int] = []
        self.begun_s = 0.0
        """When the statement began that was acknowledged last."""
        self.stale: list[int] = []
        self.reads = 0
        self._begun = asyncio.Event()

    async def write(self) -> None:
        """Write until cancelled. A number whose fate is unknown is left, and the next one tried."""
        session = await self._book.herd.session(self.name)
        await session.execute("CREATE TABLE milk (n INT PRIMARY KEY)")
        for number in itertools.count():
            begun_s = time.perf_counter()
            try:
                await session.execute("INSERT INTO milk VALUES (?)", [number])
            except OperationalError:
                await asyncio.sleep(_PAUSE_S)
                continue
            self.acknowledged.append(number)
            self.begun_s = begun_s
            self._begun.set()
            await asyncio.sleep(_PACE_S)

    async def read(self) -> None:
        """Read until cancelled."""
        await self._begun.wait()
        session = await self._other.herd.session(self.name)
        while True:
            last = self.acknowledged[-1]
            try:
                found = await session.execute("SELECT n FROM milk WHERE n = ?", [last])
            except OperationalError:
                await asyncio.sleep(_PAUSE_S)
                continue
            self.reads += 1
            if not list(found.rows):
                self.stale.append(last)
            await asyncio.sleep(_PACE_S)

    async def lost(self) -> set[int]:
        """The numbers that were acknowledged and are not there."""
        session = await self._book.herd.session(self.name)
        there = await session.execute("SELECT n FROM milk")
        return set(self.acknowledged) - {n for (n,) in there.rows}


async def _failover(
    url: str, pid: int, names: list[str], written: list[str]
) -> tuple[float, float]:
    """Seconds until writes succeed again in every tablespace under load, and until every
    tablespace that the killed node led answers a query. Suspended ones have no leader.

    The node is not restarted meanwhile, as if its machine were lost: here, its restart would take
    the processors that belong to the other nodes.
    """
    async with (
        herdbook.connect_async(url) as book,
        herdbook.connect_async(url) as other,
        connect(url) as client,
    ):
        commands = SpaceCommands(client.store, client.clock, client.rng)
        writers = [_Writer(book, other, name) for name in written]
        working = [
            asyncio.create_task(work) for each in writers for work in (each.write(), each.read())
        ]
        while not all(writer.acknowledged for writer in writers):
            assert not any(task.done() for task in working)
            await asyncio.sleep(_LOOK_S)
        leaders = await _leaders(commands)
        address, _ = Counter(leaders.values()).most_common(1)[0]
        led = {name for name, leader in leaders.items() if leader == address}
        note(
            f"kill the leader of {len(led):,} of {len(leaders):,} running tablespaces "
            f"({len(led.intersection(written))} of the {len(written)} under load; "
            f"{len(names):,} exist)"
        )
        node = _listens(pid, int(address.rpartition(":")[2]))
        os.kill(pid, signal.SIGSTOP)
        try:
            written_s, all_s = await _killed(node, book, writers, sorted(led))
        finally:
            os.kill(pid, signal.SIGCONT)
        for task in working:
            task.cancel()
        for ended in await asyncio.gather(*working, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended
        lost = {writer.name: some for writer in writers if (some := await writer.lost())}
        assert not lost, f"acknowledged and lost: {lost}"
        stale = {writer.name: writer.stale for writer in writers if writer.stale}
        assert not stale, f"acknowledged and not read: {stale}"
        note(f"{sum(writer.reads for writer in writers):,} reads, none of them stale")
    return written_s, all_s


async def _killed(
    node: int, book: AsyncCluster, writers: list[_Writer], led: list[str]
) -> tuple[float, float]:
    """Kill a node; seconds until all writers write again, and until all that it led answer."""
    began_s = time.perf_counter()
    os.kill(node, signal.SIGKILL)
    asking = asyncio.create_task(_ask_all(book, led))
    while any(writer.begun_s < began_s for writer in writers):
        assert time.perf_counter() - began_s < _READY_S
        await asyncio.sleep(_PAUSE_S)
    written_s = time.perf_counter() - began_s
    note(f"all writers succeeded again after {written_s:.1f} s")
    await asking
    return written_s, time.perf_counter() - began_s


async def _leaders(commands: SpaceCommands) -> dict[str, str]:
    """The leader's address for each running tablespace."""
    nodes = (await commands.nodes()).values()
    return {
        name: node.address
        for node in nodes
        for name, report in node.replicas.items()
        if report.role == "leader"
    }


async def _ask_all(book: AsyncCluster, names: list[str]) -> None:
    """Wait until each of these answers a query, whoever leads it."""
    slots, end_s = asyncio.Semaphore(_AT_ONCE), time.perf_counter() + _READY_S

    async def ask(name: str) -> None:
        async with slots:
            while True:
                try:
                    session = await book.herd.session(name)
                    await session.execute("SELECT count(*) FROM systables")
                    await session.close()
                    return
                except OperationalError:
                    if time.perf_counter() > end_s:
                        raise

    await asyncio.gather(*map(ask, names))


async def _buckets(url: str, count: int) -> tuple[float, float, float]:
    """Buckets and objects a second, and how long the list of all takes, seconds."""
    names = [f"bucket-{number:05d}" for number in range(count)]
    slots = asyncio.Semaphore(_AT_ONCE)

    async def create(book: AsyncCluster, name: str) -> None:
        async with slots:
            bucket = await book.blobs.create_bucket(name)
            await bucket.put("milk", name.encode())

    async def read(book: AsyncCluster, name: str) -> None:
        async with slots:
            bucket = await book.blobs.bucket(name)
            assert await bucket.get("milk") == name.encode()

    async with herdbook.connect_async(url) as book:
        began_s = time.perf_counter()
        await asyncio.gather(*[create(book, name) for name in names])
        created_s = time.perf_counter() - began_s
    async with herdbook.connect_async(url) as book:
        await read(book, names[0])
        began_s = time.perf_counter()
        assert set(names) <= {info.name for info in await book.blobs.buckets()}
        listed_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        await asyncio.gather(*[read(book, name) for name in names])
        return count / created_s, listed_s, count / (time.perf_counter() - began_s)


def _beside(scenario: str, many: float, few: float, unit: str) -> Result:
    return Result(SUBJECT, scenario, round(many, 2), unit, None, {"few": round(few, 2)})


def _create(book: Cluster, name: str) -> None:
    with book.herd.connect(autocommit=True) as connection:
        connection.cursor().execute(f"CREATE TABLESPACE {name}")


def _ask(book: Cluster, name: str) -> None:
    with book.herd.connect(name, autocommit=True) as connection:
        connection.cursor().execute("SELECT count(*) FROM systables")


def _timed(work: Callable[[], object]) -> float:
    """How long it takes, milliseconds."""
    began_s = time.perf_counter()
    work()
    return (time.perf_counter() - began_s) * 1000


def _times(book: Cluster, bucket: Bucket, setting: Setting) -> _Times:
    """One caller's writes."""
    count = setting.size(500, 30)
    with book.herd.connect("first", autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS cow (id BIGINT PRIMARY KEY AUTO_INCREMENT, n INT)"
        )
        inserts = [
            _timed(lambda: cursor.execute("INSERT INTO cow (n) VALUES (1)")) for _ in range(count)
        ]
    puts = [_timed(partial(bucket.put, f"o{n}", _OBJECT)) for n in range(count // 2)]
    writer = book.ledgers.create_ledger()
    appends = [_timed(lambda: writer.append(b"moo")) for _ in range(count)]
    writer.close()
    return _Times(*map(statistics.median, (inserts, puts, appends)))


def _until_suspended(url: str) -> None:
    """Wait until no tablespace runs but those that always do."""

    async def wait() -> None:
        async with connect(url) as client:
            commands = SpaceCommands(client.store, client.clock, client.rng)
            end_s = time.perf_counter() + _SUSPENDED_S
            while True:
                nodes = (await commands.nodes()).values()
                running = {name for node in nodes for name in node.replicas} - {"system"}
                if not running:
                    return
                assert time.perf_counter() < end_s, f"still running: {sorted(running)[:5]}"
                await asyncio.sleep(_LOOK_S)

    run(wait())


# Processes


@contextmanager
def _dev(folder: Path) -> Iterator[tuple[str, int]]:
    """A cluster of three nodes: its url, and the process that all others descend from."""
    command = [sys.executable, "-m", "herdbook", "dev", "--json", "--data", str(folder / "dev")]
    with (folder / "dev.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"], process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _listens(pid: int, port: int) -> int:
    """The process under this one that listens at a port."""
    sockets = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
            sockets.add(f"socket:[{fields[9]}]")
    for each in _below(pid):
        with suppress(OSError):
            if any(os.readlink(file) in sockets for file in Path(f"/proc/{each}/fd").iterdir()):
                return each
    raise AssertionError(f"nobody listens at port {port}")


def _idle(pid: int, setting: Setting) -> _Idle:
    """What the processes under this one use while nobody asks anything.

    Nodes return memory once a minute, so the memory is read after more than a minute.
    """
    seconds = setting.size(70, 5)
    before = {each: _ticks(each) for each in _below(pid)}
    time.sleep(seconds)
    nodes, zookeeper, resident = 0.0, 0.0, 0
    for each, ticks in before.items():
        with suppress(OSError):
            share = (_ticks(each) - ticks) * 100 / os.sysconf("SC_CLK_TCK") / seconds
            if Path(f"/proc/{each}/comm").read_text().strip() == "java":
                zookeeper += share
            elif each != pid:
                nodes += share
                pages = int(Path(f"/proc/{each}/statm").read_text().split()[1])
                resident += pages * os.sysconf("SC_PAGE_SIZE")
    return _Idle(nodes / NODES, zookeeper, resident / NODES)


def _below(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += _below(int(child))
    return found


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])
