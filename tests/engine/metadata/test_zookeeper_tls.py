"""A real ZooKeeper behind TLS: which certificates are trusted, and warnings without TLS."""

import asyncio
import select
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import InvalidRequest, MetadataUnavailable
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_client import _select_in_thread
from engine.metadata.zookeeper_settings import ZooKeeperSettings, unencrypted_password
from engine.ports.renewing import renew_all
from engine.transport.security import Security
from herdbook.zookeeper_server import ZooKeeperServer, free_port
from tests.engine.metadata.zookeeper_fixture import fresh_chroot
from tests.engine.transport.certificates import Authority
from tests.engine.transport.rotating import Rotating, authorities_in

_TLS = """\
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
secureClientPort={port}
ssl.keyStore.location={keys}
ssl.trustStore.location={trusted}
ssl.clientAuth=need
"""


class SecureServer(ZooKeeperServer):
    """A server with an additional TLS port that requires a client certificate."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.old, self.new = authorities_in(folder)
        self.secure_port = free_port("127.0.0.1")

    @property
    def secure_hosts(self) -> str:
        return f"localhost:{self.secure_port}"

    def _write_settings(self) -> None:
        super()._write_settings()
        signed = self.old.sign("zookeeper")
        keys = self.folder / "keys.pem"
        keys.write_text(signed.private_key.read_text() + signed.certificate.read_text())
        told = _TLS.format(port=self.secure_port, keys=keys, trusted=self.old.path)
        with (self.folder / "zoo.cfg").open("a") as file:
            file.write(told)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    made = SecureServer(tmp_path_factory.mktemp("secure"))
    with made:
        yield made


def told(tls: Security, connect_timeout_ms: int = 20_000) -> ZooKeeperSettings:
    return ZooKeeperSettings(
        user="herder",
        password="s3cret-of-mine",
        tls=tls,
        connect_timeout_ms=connect_timeout_ms,
        reconnect_first_ms=10,
    )


@asynccontextmanager
async def connected(
    server: SecureServer, settings: ZooKeeperSettings
) -> AsyncIterator[ZooKeeperStore]:
    store = await ZooKeeperStore.connect(
        server.secure_hosts, chroot=fresh_chroot(), settings=settings
    )
    try:
        yield store
    finally:
        await store.close()


async def test_a_store_is_kept_over_tls_with_a_certificate_of_ones_own(
    server: SecureServer,
) -> None:
    settings = told(server.old.security("client"))
    async with asyncio.timeout(60), connected(server, settings) as store:
        await store.create("/cow", b"moo" * 10_000)
        changed = asyncio.Event()
        end_watch = store.watch("/cow", changed.set)
        found = await asyncio.gather(*(store.get("/cow") for _ in range(300)))
        assert {each.value for each in found if each is not None} == {b"moo" * 10_000}
        await store.set("/cow", b"", 0)
        await changed.wait()
        end_watch()


@pytest.mark.parametrize("wrong", ["authorities", "certificate"])
async def test_nothing_is_sent_to_a_server_without_a_certificate_of_the_right_authority(
    server: SecureServer, wrong: str
) -> None:
    right = server.old.security("client")
    other = server.new.sign("client")
    tls = (
        replace(right, authorities=server.new.path)
        if wrong == "authorities"
        else Security(b"", other.certificate, other.private_key, server.old.path)
    )
    with pytest.raises(MetadataUnavailable) as refused:
        async with connected(server, told(tls, connect_timeout_ms=1_500)):
            pass
    if wrong == "authorities":
        assert "certificate verify failed" in str(refused.value)


async def test_the_name_in_the_servers_certificate_counts(server: SecureServer) -> None:
    settings = told(server.old.security("client"), connect_timeout_ms=1_500)
    with pytest.raises(MetadataUnavailable, match="certificate"):
        await ZooKeeperStore.connect(
            f"127.0.0.2:{server.secure_port}", chroot=fresh_chroot(), settings=settings
        )


async def test_authorities_that_were_read_again_count_for_the_next_connection(
    server: SecureServer, tmp_path: Path
) -> None:
    files = Rotating(tmp_path, "client")
    files.trust(server.new)
    files.certify(server.new)
    settings = told(files.security())
    waiting = asyncio.create_task(
        ZooKeeperStore.connect(server.secure_hosts, chroot=fresh_chroot(), settings=settings)
    )
    files.trust(server.old, server.new)
    files.certify(server.old)
    renew_all()
    async with asyncio.timeout(60):
        store = await waiting
    assert store.session is not None
    await store.close()


def test_what_was_decrypted_already_is_ready_to_be_read(tmp_path: Path) -> None:
    """One record may hold several answers: after the first nothing more comes off the wire."""
    made = Authority(tmp_path, "barn").security("cow")
    near, far = socket.socketpair()

    def answer() -> ssl.SSLSocket:
        context = made.server_context()
        assert context is not None
        end = context.wrap_socket(far, server_side=True)
        end.sendall(b"two answers")
        return end

    context = made.client_context()
    assert context is not None
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(answer)
        with context.wrap_socket(near, server_hostname="localhost") as end, answering.result():
            assert end.recv(3) == b"two"
            assert _select_in_thread(select.select, [end], [], [], 60) == ([end], [], [])
            assert end.recv(8) == b" answers"
            assert _select_in_thread(select.select, [end], [], [], 0) == ([], [], [])


@pytest.mark.parametrize(
    ("hosts", "user", "tls", "warned"),
    [
        ("zk1:2181,zk2:2181", "herdbook", False, True),
        ("127.0.0.1:2181,10.0.0.7:2181", "herdbook", False, True),
        ("zk1:2181", "herdbook", True, False),
        ("zk1:2181", "", False, False),
        ("127.0.0.1:2181,localhost:2182,[::1]:2183", "herdbook", False, False),
    ],
)
def test_an_unencrypted_password_is_reported(
    hosts: str, user: str, tls: bool, warned: bool
) -> None:
    assert bool(unencrypted_password(hosts, user, tls)) == warned


def test_a_certificate_is_presented_only_to_a_checked_server(tmp_path: Path) -> None:
    signed = Authority(tmp_path, "barn").sign("cow")
    with pytest.raises(InvalidRequest, match="authorities"):
        ZooKeeperSettings(tls=Security(b"", signed.certificate, signed.private_key))
