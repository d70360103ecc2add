"""What keeps a client from ZooKeeper is said in one line: a library, a name, what answers there."""

import asyncio
import logging
import sys

import pytest

from engine.connecting import connect
from engine.errors import ExtraMissing, MetadataUnavailable, NoZooKeeper
from engine.extras import needing_cluster
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_settings import WAITING_LOG, ZooKeeperSettings
from engine.transport.framed_server import FramedServer
from engine.transport.listening import listen_tcp

HASTY = ZooKeeperSettings(connect_timeout_ms=1_500)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kazoo", "kazoo.client", "kazoo.security"):
        monkeypatch.setitem(sys.modules, name, None)


async def test_without_kazoo_the_extra_is_named(nothing_installed: None) -> None:
    with pytest.raises(ExtraMissing, match=r"kazoo.*pip install herdbook brings it"):
        async with connect("herdbook://127.0.0.1:1/prod"):
            raise AssertionError("connected")


def test_another_missing_module_is_a_fault_of_ours() -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere"), needing_cluster():
        __import__("nowhere")


async def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(MetadataUnavailable, match=r"at nowhere\.invalid:2181: .*resolve"):
        await ZooKeeperStore.connect("nowhere.invalid:2181", settings=HASTY)


async def test_who_waits_for_long_is_told_for_whom_and_in_the_end_what_to_check(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hasty = ZooKeeperSettings(connect_timeout_ms=300, patience_ms=1)
    with pytest.raises(NoZooKeeper, match="refused; check host and port, and whether it runs"):
        await ZooKeeperStore.connect("127.0.0.1:1", settings=hasty)
    said = [record.getMessage() for record in caplog.records if record.name == WAITING_LOG]
    assert said == ["waiting for ZooKeeper at 127.0.0.1:1"]


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n" * 50, b"\0\0\0\0" * 9, b"\0\0\0\x01x", b""]
)
async def test_a_server_that_is_no_zookeeper_costs_no_traceback(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with caplog.at_level(logging.INFO), pytest.raises(MetadataUnavailable) as failure:
        await ZooKeeperStore.connect(f"127.0.0.1:{port}", settings=HASTY)
    server.close()
    assert f"at 127.0.0.1:{port}: " in str(failure.value) and "\n" not in str(failure.value)
    told = [record for record in caplog.records if record.levelno > logging.INFO]
    assert all(record.exc_info is None for record in caplog.records) and len(told) <= 1


async def test_the_port_of_a_bookie_is_told_from_a_zookeepers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = FramedServer(cluster_id="cluster")
    listener = await listen_tcp(
        server.accept_counted,
        "127.0.0.1",
        0,
        sockets_max=10,
        handshake_timeout_ms=1_000,
        backlog=10,
    )
    with pytest.raises(NoZooKeeper, match="what answers there is no ZooKeeper; check host"):
        await ZooKeeperStore.connect(f"127.0.0.1:{listener.port}", settings=HASTY)
    listener.close()
    await server.close()
    told = [record for record in caplog.records if "zookeeper" in record.name]
    assert [record for record in told if record.levelno > logging.INFO] == []
