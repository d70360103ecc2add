"""A bookie server in this process: what it refuses, what it publishes, how it ends."""

import asyncio
import errno
import logging
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.bookie.index_memory import MemoryIndex
from engine.errors import (
    BookieUnavailable,
    FolderDamaged,
    FolderError,
    FolderLocked,
    FolderMismatch,
    FolderRolledBack,
    InvalidRequest,
)
from engine.folder.owner import FolderPorts
from engine.ledger.client import LedgerClient
from engine.ledger.settings import ClientSettings
from engine.metadata.bookies import AVAILABLE, Bookies, Registration
from engine.metadata.contract import MetadataStore
from engine.metadata.memory import MemoryTree
from engine.ports import system_latency
from engine.ports.clock import SystemClock
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers
from engine.server import BookieServer, serve
from engine.server_settings import ServerSettings, with_room_for_files
from engine.transport.dialing import DialingTransport, framed_dial
from engine.transport.security import NO_SECURITY, Security
from herdbook.metrics import PrometheusMetrics
from tests.engine.ports.open_files import is_open

SECRET = Security(secret=b"the cows come home at six")


class Site:
    """A metadata store, and the servers and clients of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = MemoryTree("cluster")
        self.workers = ThreadWorkers(asyncio.get_running_loop())
        rng = random.Random(1)
        self.ports = FolderPorts(
            SystemClock(), rng, self.workers, SystemDisk, lambda path: MemoryIndex()
        )
        self._servers: list[BookieServer] = []
        self._clients: list[tuple[LedgerClient, DialingTransport]] = []

    def folders(self, *names: str) -> list[Path]:
        return [self.folder / name for name in names]

    async def serve(
        self,
        *names: str,
        tree: MemoryTree | None = None,
        security: Security = NO_SECURITY,
        settings: ServerSettings | None = None,
    ) -> BookieServer:
        server = await BookieServer.start(
            self.folders(*names),
            store=(tree or self.tree).session(),
            ports=self.ports,
            settings=settings or ServerSettings(host="here", rack="/row/1"),
            security=security,
        )
        self._servers.append(server)
        return server

    async def registered(self) -> dict[str, Registration]:
        return await Bookies(self.tree.session()).available()

    def client(self, copies: int, security: Security = NO_SECURITY) -> LedgerClient:
        store, clock = self.tree.session(), SystemClock()
        transport = DialingTransport(
            Bookies(store),
            dial=framed_dial(security, clock),
            clock=clock,
            rng=random.Random(2),
        )
        client = LedgerClient(
            store=store,
            transport=transport,
            clock=clock,
            rng=random.Random(3),
            settings=ClientSettings(ensemble=copies, write_quorum=copies, ack_quorum=1),
        )
        self._clients.append((client, transport))
        return client

    async def close(self) -> None:
        for client, transport in self._clients:
            await client.close()
            await transport.close()
        for server in self._servers:
            await server.close()
        await self.workers.close()


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[Site]:
    made = Site(folder)
    try:
        yield made
    finally:
        await made.close()


async def test_each_folder_is_a_bookie_with_the_addresses_and_the_place_of_the_server(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as made:
        settings = ServerSettings(grpc="127.0.0.1:0", host="barn", rack="/row/2")
        server = await made.serve("one", "two", settings=settings)
        found = await made.registered()
        assert sorted(found) == sorted(server.bookies) and len(found) == 2
        for registration in found.values():
            assert registration.address == server.address and server.address.startswith("tcp:127.")
            assert registration.grpc == server.grpc_address != ""
            assert (registration.host, registration.rack) == ("barn", "/row/2")
            assert registration.writable
            assert registration.disk == SystemDisk(tmp_path).space().name


async def test_what_was_written_is_read_after_a_restart_under_the_same_id(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        server = await made.serve("one", "two")
        ids = server.bookies
        client = made.client(2)
        writer = await client.create_ledger()
        assert await writer.append_many([b"moo", b"baa"]) == [0, 1]
        await writer.close()
        await server.drain()
        assert not await made.registered()
        await server.close()
        again = await made.serve("one", "two")
        assert again.bookies == ids
        reader = await client.open_ledger(writer.ledger_id)
        assert [entry.body async for entry in reader.read(0, 1)] == [b"moo", b"baa"]


async def test_a_server_with_a_secret_serves_only_those_who_know_it(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        await made.serve("one", security=SECRET)
        writer = await made.client(1, SECRET).create_ledger()
        assert await writer.append(b"moo") == 0
        (bookie_id,) = await made.registered()
        stranger = made.client(1)
        with pytest.raises(BookieUnavailable, match="secret"):
            await stranger.transport.connect(bookie_id)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "cow.example:3181", "[::]:0"])
async def test_without_proofs_a_server_listens_to_its_own_machine_only(
    listen: str, tmp_path: Path
) -> None:
    async with site(tmp_path) as made:
        for settings in (ServerSettings(listen=listen), ServerSettings(grpc=listen)):
            with pytest.raises(InvalidRequest, match="insecure"):
                await made.serve("one", settings=settings)
        assert not (tmp_path / "one").exists()


async def test_every_address_is_published_as_the_machines_name(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        wide = ServerSettings(listen="0.0.0.0:0", insecure=True)
        with pytest.raises(InvalidRequest, match="host name"):
            await made.serve("one", settings=wide)
        server = await made.serve("one", settings=replace(wide, host="barn.example"))
        assert server.address.startswith("tcp:barn.example:")
        await server.close()
        named = replace(wide, advertise="gate.example:99")
        assert (await made.serve("one", settings=named)).address == "tcp:gate.example:99"


async def test_a_folder_in_use_is_refused_and_nothing_is_left_running(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        await made.serve("one")
        before = await made.registered()
        with pytest.raises(FolderLocked, match="another process"):
            await made.serve("two", "one")
        assert await made.registered() == before
        assert len((await made.serve("two")).bookies) == 1


async def test_a_folder_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        server = await made.serve("one")
        await server.close()
        with pytest.raises(FolderMismatch, match="cluster"):
            await made.serve("two", "one", tree=MemoryTree("other"))
        await made.serve("one")


async def test_a_folder_that_was_put_back_is_refused(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        await (await made.serve("one")).close()
        shutil.copytree(tmp_path / "one", tmp_path / "copy")
        await (await made.serve("one")).close()
        await (await made.serve("one")).close()
        with pytest.raises(FolderRolledBack):
            await made.serve("copy")


async def test_a_copy_beside_its_original_is_refused(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        await (await made.serve("one")).close()
        shutil.copytree(tmp_path / "one", tmp_path / "copy")
        with pytest.raises((FolderMismatch, FolderRolledBack)):
            await made.serve("one", "copy")
        assert not await made.registered()


async def test_a_whole_store_is_not_taken_for_a_bookies_folder(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        (tmp_path / "store" / "bookie-1").mkdir(parents=True)
        (tmp_path / "store" / "lock").touch()
        with pytest.raises(FolderMismatch, match="whole store"):
            await made.serve("store")


async def test_a_damaged_folder_is_left_out_and_named_and_the_others_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path) as made:
        await (await made.serve("one", "two")).close()
        identity = tmp_path / "one" / "identity"
        identity.write_bytes(identity.read_bytes()[:-1])
        assert len((await made.serve("one", "two")).bookies) == 1
        assert str(tmp_path / "one") in caplog.text
    async with site(tmp_path) as made:
        with pytest.raises(FolderDamaged):
            await made.serve("one")


async def test_a_folder_that_cannot_be_written_is_left_out_and_the_others_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class ReadOnlyDisk(SystemDisk):
        """As a disk of which the file system went read-only."""

        def replace(self, name: str, data: bytes) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

    async with site(tmp_path) as made:
        await (await made.serve("one", "two", "three")).close()
        (tmp_path / "file").touch()
        made.ports = replace(
            made.ports,
            make_disk=lambda path: (ReadOnlyDisk if path.name == "two" else SystemDisk)(path),
        )
        server = await made.serve("file/of-another", "one", "two", "three")
        assert len(server.bookies) == 2
        assert sorted(await made.registered()) == sorted(server.bookies)
        for folder, why in (("two", "Read-only"), ("file/of-another", "Not a directory")):
            warned = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
            [line] = [each for each in warned if str(tmp_path / folder) in each]
            assert "does not start" in line and why in line
        await server.close()
        with pytest.raises(OSError, match="Read-only"):
            await made.serve("two")
        with pytest.raises(FolderError, match="cannot be used"):
            await made.serve("file/of-another")


async def test_repair_is_told_by_whoever_repairs_and_not_by_a_bookie_beside_it(
    tmp_path: Path,
) -> None:
    async def told(name: str, repair_elsewhere: bool) -> list[str]:
        metrics = PrometheusMetrics()
        server = await BookieServer.start(
            made.folders(name),
            store=made.tree.session(),
            ports=made.ports,
            settings=ServerSettings(repair_elsewhere=repair_elsewhere),
            metrics=metrics,
        )
        await server.close()
        found = [each.name for each in metrics.registry.collect()]
        assert "herdbook_bookie_writable" in found
        return [each for each in found if each.startswith("herdbook_repair_")]

    async with site(tmp_path) as made:
        assert "herdbook_repair_auditor" in await told("one", False)
        assert await told("two", True) == []


async def test_a_server_goes_on_without_a_failed_disk_and_ends_with_the_last(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as made:
        server = await made.serve("one", "two")
        ended = asyncio.ensure_future(server.failed())
        server.services[0]._fail(OSError("the disk is gone"))
        await asyncio.sleep(0)
        assert server.bookies == [server.services[1].bookie_id] and not ended.done()
        server.services[1]._fail(OSError("this one, too"))
        error = await ended
        assert "the disk is gone" in str(error) and "this one, too" in str(error)


async def test_a_writer_moves_away_from_a_server_that_drains_and_no_append_fails(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as made:
        servers = {
            name: await made.serve(name, settings=ServerSettings(host=name))
            for name in ("one", "two", "three")
        }
        client = made.client(2)
        writer = await client.create_ledger()
        acknowledged: list[int] = []
        over = asyncio.Event()

        async def write() -> None:
            while not over.is_set():
                acknowledged.append(await writer.append(b"moo"))

        writing = asyncio.ensure_future(write())
        for name in ("one", "two", "three"):
            count = len(acknowledged)
            await servers[name].drain()
            await servers[name].close()
            servers[name] = await made.serve(name, settings=ServerSettings(host=name))
            while len(acknowledged) < count + 50:
                assert not writing.done(), writing
                await asyncio.sleep(0)
        over.set()
        await writing
        assert acknowledged == list(range(len(acknowledged)))
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert len([entry async for entry in reader.read(0, acknowledged[-1])]) == len(acknowledged)


async def test_a_server_that_ends_takes_nothing_new_even_while_the_store_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(tmp_path) as made:
        settings = ServerSettings(drain_timeout_ms=200)
        server = await made.serve("one", "two", "three", settings=settings)
        silent = asyncio.Event()
        asked: list[str] = []

        async def never(key: str = "", *_: object, **__: object) -> None:
            asked.append(key)
            await silent.wait()

        for name in ("get", "create", "set", "delete", "children", "sync"):
            monkeypatch.setattr(server.store, name, never)
        async with asyncio.timeout(5):
            await server.drain()
            assert not any(service.writable for service in server.services)
            assert {f"{AVAILABLE}/{name}" for name in server.bookies} <= set(asked)
            await server.close()


async def test_a_server_that_is_closed_without_a_drain_waits_for_its_disks_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(tmp_path) as made:
        server = await made.serve("one", "two", "three")
        leaving = asyncio.Barrier(3)
        for service in server.services:

            async def leave(so_far: Callable[[], Awaitable[None]] = service.leave) -> None:
                await leaving.wait()
                await so_far()

            monkeypatch.setattr(service, "leave", leave)
        async with asyncio.timeout(5):
            await server.close()
        assert await made.registered() == {}


async def test_processors_are_asked_while_journals_grow_and_not_of_a_server_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.touch()
    monkeypatch.setattr(system_latency, "DEVICE", device)
    monkeypatch.setattr(system_latency, "LOOK_MS", 1)
    ended, serving = asyncio.Event(), asyncio.Event()

    async with site(tmp_path) as made:

        async def store() -> MetadataStore:
            return made.tree.session()

        running = asyncio.create_task(
            serve(
                made.folders("one"),
                open_store=store,
                settings=ServerSettings(cpu_latency_us=0),
                started=lambda server: serving.set(),
                ended=ended,
            )
        )
        await serving.wait()
        assert not is_open(device)
        writer = await made.client(1).create_ledger()
        while not is_open(device):
            await writer.append(b"moo")
        await writer.close()
        ended.set()
        await running
        assert not is_open(device)


async def test_both_wires_together_take_at_most_half_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal's next segment needs one, too."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (400, 400))
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    alone = with_room_for_files(ServerSettings())
    assert alone.wire.connections_max == 200
    both = with_room_for_files(ServerSettings(grpc="127.0.0.1:0"))
    assert both.wire.connections_max == both.grpc_wire.connections_max == 100
    async with site(tmp_path) as made:
        settings = replace(both, grpc_wire=replace(both.grpc_wire, connections_max=2))
        server = await made.serve("one", settings=settings)
        host, port = server.grpc_address.rsplit(":", 1)
        ends = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        for reader, _ in ends:
            assert await reader.read(9), "a server greets with its settings"
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b"", "one connection too many"
        for _, end in [*ends, (reader, writer)]:
            end.close()
