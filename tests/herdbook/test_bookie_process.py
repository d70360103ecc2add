"""`herdbook bookie` as operators run it: real processes, a real ZooKeeper, real signals."""

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.connecting import Wire, connect
from engine.errors import BookieUnavailable
from engine.ledger.client import LedgerClient
from engine.ledger.settings import ClientSettings
from engine.limits import MIB
from engine.metadata.bookies import Bookies, Registration
from engine.ports.system_latency import DEVICE
from engine.transport.address import parse_host_port
from engine.transport.frames import Kind, encode_greeting, frame_header
from engine.transport.security import Security
from tests.acceptance.machines import until
from tests.engine.metadata.zookeeper_fixture import (
    fresh_chroot,
    paused,
    running_zookeeper,
    shared_zookeeper,
)
from tests.engine.transport.certificates import Authority
from tests.herdbook.bookie_processes import BookieProcess, processes, reached

WIRES: tuple[Wire, ...] = ("framed", "grpc")
SECRET = b"the cows come home at six"
OTHER = b"the cows come home at ten"


class Cluster:
    """Bookie processes of one chroot, one machine each as far as placement knows."""

    def __init__(self, folder: Path, count: int, *more: str) -> None:
        self.zookeeper = f"{shared_zookeeper().hosts}{fresh_chroot()}"
        self.url = f"herdbook://{self.zookeeper}"
        self.addresses: list[str] = []
        self.bookies = [
            BookieProcess(folder / f"{number}.log", *self.arguments(folder, number), *more)
            for number in range(count)
        ]

    def arguments(self, folder: Path, number: int) -> list[str]:
        return [
            *("--data", str(folder / f"bookie-{number}"), "--zookeeper", self.zookeeper),
            *("--listen", "127.0.0.1:0", "--host", f"machine-{number}"),
        ]

    async def start(self) -> None:
        self.addresses = []
        for said in await asyncio.gather(*(bookie.start() for bookie in self.bookies)):
            assert said.startswith("serving "), [bookie.said() for bookie in self.bookies]
            self.addresses.append(said.partition(" at ")[2])


@asynccontextmanager
async def cluster(folder: Path, count: int, *more: str) -> AsyncIterator[Cluster]:
    made = Cluster(folder, count, *more)
    async with processes(*made.bookies):
        await made.start()
        yield made


async def write(client: LedgerClient, count: int) -> int:
    """A closed ledger of so many entries."""
    writer = await client.create_ledger()
    await writer.append_many([b"moo %d" % number for number in range(count)])
    await writer.close()
    return writer.ledger_id


async def read(client: LedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open_ledger(ledger_id)
    return [entry.body async for entry in reader.read(0, reader.last_add_confirmed)]


async def test_a_terminated_bookie_ends_with_0_and_serves_what_it_had_after_its_next_start(
    tmp_path: Path,
) -> None:
    one = ClientSettings(ensemble=1, write_quorum=1, ack_quorum=1)
    async with cluster(tmp_path, 1) as made:
        async with connect(made.url, settings=one) as client:
            ledger_id = await write(client, 1_000)
        assert await made.bookies[0].terminate() == 0
        async with connect(made.url, settings=one) as client:
            assert not await Bookies(client.store).available()
        await made.start()
        async with connect(made.url, settings=one) as client:
            assert len(await read(client, ledger_id)) == 1_000
            (registration,) = (await Bookies(client.store).available()).values()
            assert (registration.boot, registration.host) == (2, "machine-0")
        assert made.bookies[0].complaints() == ""


async def test_processors_are_asked_to_wake_quickly_while_entries_come_and_only_then(
    tmp_path: Path,
) -> None:
    one = ClientSettings(ensemble=1, write_quorum=1, ack_quorum=1)
    asking = ("--cpu-latency-us", "20")
    if not os.access(DEVICE, os.W_OK):
        (refused,) = Cluster(tmp_path, 1, *asking).bookies
        async with processes(refused):
            assert await refused.start() == "" and await refused.ended() == 1
            assert "cannot ask processors to wake quickly" in refused.complaints()
        return
    async with (
        cluster(tmp_path, 1, *asking) as made,
        connect(made.url, settings=one) as client,
    ):
        (bookie,) = made.bookies
        assert not bookie.has_open(DEVICE)
        writer = await client.create_ledger()

        async def asked() -> bool:
            await writer.append(b"moo")
            return bookie.has_open(DEVICE)

        async def at_rest() -> bool:
            return not bookie.has_open(DEVICE)

        await reached(asked)
        await reached(at_rest)
        await reached(asked)
        assert await bookie.terminate() == 0 and bookie.complaints() == ""


@pytest.mark.parametrize("count", [3, 4], ids=["three, no spare", "four, one spare"])
async def test_a_rolling_restart_of_all_bookies_under_load_loses_nothing_and_no_append_fails(
    tmp_path: Path, count: int
) -> None:
    async with cluster(tmp_path, count) as made, connect(made.url) as client:
        writer = await client.create_ledger(3, 3, 2)
        acknowledged: list[int] = []
        over = asyncio.Event()

        async def append() -> None:
            while not over.is_set():
                number = len(acknowledged)
                ids = await writer.append_many([b"moo %d" % (number + i) for i in range(10)])
                acknowledged.extend(ids)

        writing = asyncio.ensure_future(append())

        async def grown_by(count: int) -> None:
            wanted = len(acknowledged) + count

            async def grown() -> bool:
                assert not writing.done(), writing
                return len(acknowledged) >= wanted

            await reached(grown)

        for bookie in made.bookies:
            await grown_by(100)
            assert await bookie.terminate() == 0
            await grown_by(100)
            assert (await bookie.start()).startswith("serving ")
        await grown_by(100)

        async def whole() -> bool:
            assert not writing.done(), writing
            return writer._replication.complete

        await reached(whole)
        over.set()
        await writing
        assert acknowledged == list(range(len(acknowledged)))
        await writer.close()
        found = await read(client, writer.ledger_id)
        assert found == [b"moo %d" % number for number in range(len(acknowledged))]


async def test_a_second_signal_ends_a_bookie_at_once(tmp_path: Path) -> None:
    with running_zookeeper(tmp_path / "zookeeper") as zookeeper:
        bookie = BookieProcess(
            tmp_path / "log",
            *("--data", str(tmp_path / "data"), "--zookeeper", f"{zookeeper.hosts}/prod"),
            *("--listen", "127.0.0.1:0"),
        )
        async with processes(bookie):
            assert (await bookie.start()).startswith("serving ")
            # The registration cannot be taken away: to drain would last until the deadline.
            with paused(zookeeper):
                bookie.signal(signal.SIGTERM)
                assert (await bookie.line()).startswith("draining")
                bookie.signal(signal.SIGTERM)
                assert await bookie.ended() == -signal.SIGTERM
            assert (await bookie.start()).startswith("serving ")


async def test_a_bookie_that_cannot_start_says_why_in_one_line_and_ends_with_1(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, 1) as made:
        elsewhere = f"{shared_zookeeper().hosts}{fresh_chroot()}"
        twin = BookieProcess(tmp_path / "twin.log", *made.bookies[0].arguments)
        open_to_all = ("--data", str(tmp_path / "two"), "--zookeeper", elsewhere)
        naked = BookieProcess(tmp_path / "naked.log", *open_to_all, "--listen", "0.0.0.0:0")
        async with processes(twin, naked):
            assert (await twin.start(), await twin.ended()) == ("", 1)
            assert (
                twin.complaints().startswith("FolderLocked: ")
                and twin.complaints().count("\n") == 1
            )
            assert (await naked.start(), await naked.ended()) == ("", 1)
            assert "--insecure" in naked.complaints() and naked.complaints().count("\n") == 1
        assert await made.bookies[0].terminate() == 0
        data = made.bookies[0].arguments[:2]
        moved = BookieProcess(
            tmp_path / "moved.log", *data, "--zookeeper", elsewhere, "--listen", "127.0.0.1:0"
        )
        async with processes(moved):
            assert (await moved.start(), await moved.ended()) == ("", 1)
            assert (
                moved.complaints().startswith("FolderMismatch: ")
                and moved.complaints().count("\n") == 1
            )


async def test_a_bookie_with_a_secret_file_serves_those_who_know_the_secret_that_it_holds_now(
    tmp_path: Path,
) -> None:
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    (tmp_path / "secret").chmod(0o600)
    one = ClientSettings(ensemble=1, write_quorum=1, ack_quorum=1)
    async with (
        cluster(tmp_path, 1, "--secret-file", str(tmp_path / "secret")) as made,
        connect(made.url, settings=one, security=Security(secret=SECRET)) as client,
    ):
        ledger = await write(client, 10)
        (tmp_path / "secret").write_bytes(OTHER)
        made.bookies[0].signal(signal.SIGHUP)

        async def said() -> bool:
            return "were read again" in made.bookies[0].log.read_text()

        await until("the bookie has read its secret again", said)
        assert len(await read(client, ledger)) == 10
        other = Security(secret=OTHER)
        async with connect(made.url, settings=one, security=other) as client:
            assert len(await read(client, ledger)) == 10


async def test_certificates_and_a_secret_protect_both_wires_of_a_bookie(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "secret").chmod(0o600)
    herd = Authority(tmp_path, "herd")
    cow = herd.sign("cow")
    security = herd.security("calf", secret=SECRET)
    one = ClientSettings(ensemble=1, write_quorum=1, ack_quorum=1)
    more = (
        *("--secret-file", str(tmp_path / "secret"), "--grpc", "127.0.0.1:0"),
        *("--certificate", str(cow.certificate), "--private-key", str(cow.private_key)),
        *("--authorities", str(herd.path)),
    )
    async with cluster(tmp_path, 1, *more) as made:
        for wire in WIRES:
            async with connect(made.url, settings=one, security=security, wire=wire) as client:
                assert len(await read(client, await write(client, 10))) == 10
        async with connect(made.url, settings=one, security=Security(secret=SECRET)) as client:
            (bookie_id,) = await Bookies(client.store).available()
            with pytest.raises(BookieUnavailable):
                await client.transport.connect(bookie_id)


async def test_a_bookie_process_stays_small_whatever_strangers_do(tmp_path: Path) -> None:
    one = ClientSettings(ensemble=1, write_quorum=1, ack_quorum=1)
    async with cluster(tmp_path, 1) as made, connect(made.url, settings=one) as client:
        bookie = made.bookies[0]
        assert len(await read(client, await write(client, 1_000))) == 1_000
        host, port = parse_host_port(made.addresses[0].removeprefix("tcp:"))
        before_bytes = bookie.memory_bytes()
        ends = [await asyncio.open_connection(host, port) for _ in range(900)]
        for position, (_, writer) in enumerate(ends):
            writer.write(hello())
            if position % 9 == 0:
                # Each of these would be 15 MiB, if it were taken in.
                writer.write(frame_header(Kind.APPEND, 1, 1, b"", 15 * MIB) + bytes(MIB))
        assert len(await read(client, await write(client, 1_000))) == 1_000
        assert bookie.memory_bytes() - before_bytes < 400 * MIB
        for _, writer in ends:
            writer.transport.abort()
        assert len(await read(client, await write(client, 1_000))) == 1_000
        assert bookie.complaints() == ""


def hello() -> bytes:
    head = encode_greeting({})
    return frame_header(Kind.HELLO, 0, 0, head) + head


async def test_a_machine_with_two_of_three_replicas_may_be_lost_for_good(tmp_path: Path) -> None:
    """Nothing that was acknowledged is lost, and the ledger is closed without that machine."""
    zookeeper = f"{shared_zookeeper().hosts}{fresh_chroot()}"
    machines = {
        name: BookieProcess(
            tmp_path / f"{name}.log",
            *("--data", str(tmp_path / name / "1"), "--data", str(tmp_path / name / "2")),
            *("--zookeeper", zookeeper, "--listen", "127.0.0.1:0", "--host", name),
        )
        for name in ("a", "b", "c")
    }
    async with processes(*machines.values()):
        await asyncio.gather(*(machine.start() for machine in machines.values()))
        async with connect(f"herdbook://{zookeeper}") as client:
            hosts = {each: one.host for each, one in (await registered(client)).items()}
            await write(client, 1)
            await machines["c"].kill()
            await until("machine c is gone", lambda: _hosts_are(client, {"a", "b"}))
            writer = await client.create_ledger()
            assert writer.metadata.survives == "host"
            await writer.append_many([b"moo %d" % number for number in range(20)])
            ensemble = writer.metadata.fragments[-1].ensemble
            ((lost, _),) = Counter(hosts[each] for each in ensemble).most_common(1)
            await machines["c"].start()
            await machines[lost].kill()
            shutil.rmtree(tmp_path / lost)
            client.abandon_writers("the program has died")
        async with connect(f"herdbook://{zookeeper}") as other:
            assert await read(other, writer.ledger_id) == [b"moo %d" % each for each in range(20)]


async def registered(client: LedgerClient) -> dict[str, Registration]:
    return await Bookies(client.store).available()


async def _hosts_are(client: LedgerClient, wanted: set[str]) -> bool:
    return {found.host for found in (await registered(client)).values()} == wanted
