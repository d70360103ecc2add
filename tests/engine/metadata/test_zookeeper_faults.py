"""The store in ZooKeeper when the wire, the server or the session goes."""

import asyncio
import logging
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import FormatTooNew, InvalidRequest, MetadataUnavailable, Unauthorized
from engine.metadata.contract import MetadataStore
from engine.metadata.ledgers import Fragment, LedgerMetadata, Ledgers
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_client import Link
from engine.metadata.zookeeper_settings import ZooKeeperSettings
from herdbook.zookeeper_server import ZooKeeperServer
from tests.engine.metadata.proxy import Proxy, proxy_to
from tests.engine.metadata.zookeeper_fixture import (
    fresh_chroot,
    paused,
    running_zookeeper,
    shared_zookeeper,
)

SETTINGS = ZooKeeperSettings(session_timeout_ms=10_000, reconnect_first_ms=10)
SHORT = replace(SETTINGS, session_timeout_ms=1_000)
IMPATIENT = replace(SETTINGS, request_timeout_ms=300, connect_timeout_ms=300, close_timeout_ms=10)


@asynccontextmanager
async def connected(
    hosts: str, chroot: str, settings: ZooKeeperSettings = SETTINGS
) -> AsyncIterator[ZooKeeperStore]:
    store = await ZooKeeperStore.connect(hosts, chroot=chroot, settings=settings)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def behind_a_proxy(
    settings: ZooKeeperSettings = SETTINGS,
) -> AsyncIterator[tuple[Proxy, ZooKeeperStore, ZooKeeperStore]]:
    """A proxy, a store behind it, and another one with a wire of its own."""
    hosts, chroot = shared_zookeeper().hosts, fresh_chroot()
    async with (
        proxy_to(hosts) as proxy,
        connected(hosts, chroot) as other,
        connected(proxy.hosts, chroot, settings) as store,
        asyncio.timeout(30),
    ):
        yield proxy, store, other


@asynccontextmanager
async def noticed_loss(store: ZooKeeperStore) -> AsyncIterator[None]:
    """At its end the store has noticed that the connection it had at the start is gone."""
    gone = asyncio.Event()
    tell = store._client._on_link

    def on_link(link: Link) -> None:
        tell(link)
        gone.set()

    store._client._on_link = on_link
    yield
    await gone.wait()
    store._client._on_link = tell


async def absent(store: MetadataStore, key: str) -> None:
    """Return when a key is gone."""
    changed = asyncio.Event()
    end = store.watch(key, changed.set)
    while await store.get(key) is not None:
        await changed.wait()
        changed.clear()
    end()


def a_ledger(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=(Fragment(0, ("a",)),),
        key_hash=b"",
        created_ms=0,
        token=0,
    )


async def test_a_write_whose_reply_was_lost_is_done_and_says_that_it_may_be() -> None:
    async with behind_a_proxy() as (proxy, store, other):
        await store.create("/bull", b"")
        proxy.swallowing = True
        writing = asyncio.ensure_future(store.create("/cow", b"berta"))
        await proxy.swallowed.wait()
        proxy.swallowing = False
        proxy.cut()
        with pytest.raises(MetadataUnavailable):
            await writing
        assert await store.get("/cow") == (b"berta", 0)
        assert await other.get("/cow") == (b"berta", 0)


async def test_a_connection_that_goes_fails_what_was_on_its_way() -> None:
    async with behind_a_proxy() as (proxy, store, _):
        proxy.swallowing = True
        writing = asyncio.ensure_future(store.create("/cow", b""))
        await proxy.swallowed.wait()
        store._client._link_changed(Link.SUSPENDED)
        for _ in range(5):
            await asyncio.sleep(0)
        assert writing.done()
        with pytest.raises(MetadataUnavailable, match="connection"):
            await writing
        proxy.swallowing = False
        proxy.cut()
        assert await store.get("/cow") == (b"", 0)


async def test_a_ledger_whose_creation_lost_its_reply_is_recognised() -> None:
    async with behind_a_proxy() as (proxy, store, other):
        ledgers = Ledgers(store, random.Random(1))
        await store.create("/ledgers/6", b"")
        proxy.swallowing = True
        creating = asyncio.ensure_future(ledgers.create(a_ledger(7)))
        await proxy.swallowed.wait()
        proxy.swallowing = False
        proxy.cut()
        held = await creating
        assert held == await Ledgers(other, random.Random(2)).read(7)


async def test_a_read_whose_reply_was_lost_is_asked_again() -> None:
    async with behind_a_proxy() as (proxy, store, _):
        await store.create("/cow", b"berta")
        proxy.swallowing = True
        reading = asyncio.ensure_future(store.get("/cow"))
        counting = asyncio.ensure_future(store.next_id("/ids/cow"))
        await proxy.swallowed.wait()
        proxy.swallowing = False
        proxy.cut()
        assert await reading == (b"berta", 0)
        assert await counting in (1, 2)
        assert await store.next_id("/ids/cow") == await counting + 1


async def test_calls_wait_for_a_connection_that_comes_back_and_the_session_lives_on() -> None:
    async with behind_a_proxy() as (proxy, store, other):
        losses: list[str] = []
        store.watch_session(lambda: losses.append("lost"))
        await store.create("/bookies/a", b"", ephemeral=True)
        session = store.session
        async with noticed_loss(store):
            proxy.refusing = True
            proxy.cut()
        writing = asyncio.ensure_future(store.create("/cow", b""))
        await other.create("/bull", b"")
        proxy.refusing = False
        assert await writing == 0
        assert store.session == session and losses == []
        assert await other.get("/bookies/a") == (b"", 0)


async def test_a_watch_fires_for_what_changed_while_there_was_no_connection() -> None:
    async with behind_a_proxy() as (proxy, store, other):
        changed, names = asyncio.Event(), asyncio.Event()
        store.watch("/cows/berta", changed.set)
        store.watch("/cows", names.set)
        await changed.wait()
        await names.wait()
        for round_number in range(2):
            async with noticed_loss(store):
                proxy.refusing = True
                proxy.cut()
            changed.clear()
            names.clear()
            if round_number == 0:
                await other.create("/cows/berta", b"calf")
            else:
                await other.delete("/cows/berta")
            assert not changed.is_set()
            proxy.refusing = False
            await changed.wait()
            await names.wait()
        names.clear()
        changed.clear()
        await other.create("/cows/berta", b"again")
        await changed.wait()
        await names.wait()


async def test_a_session_that_expired_is_told_and_the_next_one_makes_its_own_keys() -> None:
    async with behind_a_proxy(SHORT) as (proxy, store, other):
        lost, changed = asyncio.Event(), asyncio.Event()
        store.watch_session(lost.set)
        store.watch("/bookies/a", changed.set)
        await store.create("/bookies/a", b"first", ephemeral=True)
        session = store.session
        proxy.refusing = True
        proxy.cut()
        await absent(other, "/bookies/a")
        assert not lost.is_set()
        changed.clear()
        proxy.refusing = False
        await lost.wait()
        await changed.wait()
        assert await store.create("/bookies/a", b"second", ephemeral=True) == 0
        assert store.session not in (None, session)
        assert await other.get("/bookies/a") == (b"second", 0)


async def test_a_server_that_never_answers_is_unavailable_in_time() -> None:
    async with behind_a_proxy(IMPATIENT) as (proxy, store, _):
        proxy.swallowing = True
        for call in (
            store.get("/cow"),
            store.sync(),
            store.create("/cow", b""),
            store.next_id("/n"),
        ):
            with pytest.raises(MetadataUnavailable, match="in time"):
                await call
        with pytest.raises(MetadataUnavailable, match="no ZooKeeper answered"):
            await ZooKeeperStore.connect(proxy.hosts, settings=IMPATIENT)
        proxy.refusing = True
        with pytest.raises(MetadataUnavailable, match="no ZooKeeper answered"):
            await ZooKeeperStore.connect(proxy.hosts, settings=IMPATIENT)


async def test_what_is_on_its_way_is_bounded_and_the_rest_waits_its_turn() -> None:
    hosts, chroot = shared_zookeeper().hosts, fresh_chroot()
    settings = replace(SETTINGS, requests_in_flight_max=3)
    async with connected(hosts, chroot, settings) as store:
        await store.create("/cows/first", b"")
        calls = [asyncio.ensure_future(store.create(f"/cows/{n}", b"")) for n in range(30)]
        most = 0
        while not all(call.done() for call in calls):
            most = max(most, len(store._client._sent))
            calls[29].cancel()
            await asyncio.sleep(0)
        assert most == 3
        assert len(await store.children("/cows")) == 30


async def test_a_value_that_fits_in_no_packet_is_refused_here_and_costs_no_connection() -> None:
    async with connected(shared_zookeeper().hosts, fresh_chroot()) as store:
        session = store.session
        await store.create("/cow", bytes(2**20 - 1024))
        for size_bytes in (2**20, 2**20 - 256):
            with pytest.raises(InvalidRequest):
                await store.create("/bull", bytes(size_bytes))
            with pytest.raises(InvalidRequest):
                await store.set("/cow", bytes(size_bytes), 0)
        found = await store.get("/cow")
        assert found is not None and len(found.value) == 2**20 - 1024
        assert store.session == session


async def test_only_who_knows_user_and_password_reads_or_writes() -> None:
    hosts, chroot = shared_zookeeper().hosts, fresh_chroot()
    mine = replace(SETTINGS, user="herder", password="s3cret-of-mine")
    async with connected(hosts, chroot, mine) as store:
        await store.create("/cows/berta", b"calf")
        await store.next_id("/ids/ledger")
    for wrong in (SETTINGS, replace(mine, password="other"), replace(mine, user="else")):
        with pytest.raises(Unauthorized):
            await ZooKeeperStore.connect(hosts, chroot=chroot, settings=wrong)
    async with connected(hosts, chroot, mine) as store:
        assert await store.set("/cows/berta", b"cow", 0) == 1
    assert "s3cret" not in repr(mine)


async def test_a_password_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    mine = replace(SETTINGS, user="herder", password="s3cret-of-mine")
    async with connected(shared_zookeeper().hosts, fresh_chroot(), mine) as store:
        await store.create("/cow", b"")
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(("user", "password"), [("a", ""), ("", "b"), ("a:b", "c")])
def test_half_a_digest_is_an_invalid_request(user: str, password: str) -> None:
    with pytest.raises(InvalidRequest):
        ZooKeeperSettings(user=user, password=password)


async def test_clients_that_come_first_at_once_find_one_cluster() -> None:
    hosts, chroot = shared_zookeeper().hosts, f"{fresh_chroot()}/deep/down"
    stores = await asyncio.gather(
        *(ZooKeeperStore.connect(hosts, chroot=chroot, settings=SETTINGS) for _ in range(5))
    )
    assert len({store.cluster_id for store in stores}) == 1
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_layout_of_a_newer_major_is_refused() -> None:
    hosts, chroot = shared_zookeeper().hosts, fresh_chroot()
    async with connected(hosts, chroot) as store:
        newer = b'{"cluster_id":"x","format_major":99}'
        await store._client.set(f"{chroot}/cluster!", newer, 0)
    with pytest.raises(FormatTooNew):
        await ZooKeeperStore.connect(hosts, chroot=chroot, settings=SETTINGS)


async def test_numbers_of_two_clients_grow_with_time_and_lie_in_one_node() -> None:
    hosts, chroot = shared_zookeeper().hosts, fresh_chroot()
    async with connected(hosts, chroot) as first, connected(hosts, chroot) as second:
        given: list[int] = []

        async def take(store: ZooKeeperStore) -> None:
            for _ in range(40):
                before = max(given, default=0)
                number = await store.next_id("/ids/ledger")
                assert number > before
                given.append(number)

        await asyncio.gather(take(first), take(second), take(first))
        assert len(set(given)) == 120
        assert await first._client.children(f"{chroot}/ids+") == ["ledger#"]


async def test_a_lost_connection_is_one_line_of_the_log_however_long_it_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with behind_a_proxy(SHORT) as (proxy, store, other):
        await store.create("/bookies/a", b"", ephemeral=True)
        proxy.refusing = True
        proxy.cut()
        await absent(other, "/bookies/a")
        told = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert [record.levelname for record in told] == ["WARNING"]
        assert "connection to ZooKeeper was lost" in caplog.text
        proxy.refusing = False
        await store.get("/cow")


# Servers of their own


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


async def test_a_server_that_restarts_keeps_everything_even_the_session(
    server: ZooKeeperServer,
) -> None:
    async with connected(server.hosts, "/restarts") as store:
        losses: list[str] = []
        store.watch_session(lambda: losses.append("lost"))
        await store.create("/bookies/a", b"", ephemeral=True)
        await store.create("/cow", b"berta")
        number = await store.next_id("/ids/ledger")
        async with noticed_loss(store):
            await asyncio.to_thread(server.kill)
        writing = asyncio.ensure_future(store.set("/cow", b"alma", 0))
        await asyncio.to_thread(server.start)
        assert await writing == 1
        assert await store.get("/bookies/a") == (b"", 0)
        assert await store.next_id("/ids/ledger") > number
        assert losses == []


async def test_a_paused_server_stops_nothing_for_ever(server: ZooKeeperServer) -> None:
    short = replace(SETTINGS, session_timeout_ms=2_000)
    impatient = replace(short, request_timeout_ms=200)
    async with (
        connected(server.hosts, "/pauses", short) as store,
        connected(server.hosts, "/pauses", impatient) as other,
    ):
        await store.create("/cow", b"berta")
        with paused(server):
            async with noticed_loss(store):
                with pytest.raises(MetadataUnavailable, match="in time"):
                    await other.get("/cow")
            reading = asyncio.ensure_future(store.get("/cow"))
            with pytest.raises(MetadataUnavailable, match="in time"):
                await other.get("/cow")
        assert await reading == (b"berta", 0)


async def test_a_server_that_forgot_everything_is_not_taken_for_the_cluster(
    tmp_path: Path,
) -> None:
    with running_zookeeper(tmp_path) as server:
        async with connected(server.hosts, "/prod", SHORT) as store:
            await store.create("/cow", b"berta")
            await asyncio.to_thread(server.stop)
            shutil.rmtree(tmp_path / "data")
            await asyncio.to_thread(server.start)
            async with connected(server.hosts, "/prod") as another:
                # A server that is behind what a client has seen does not even talk to it.
                for number in range(20):
                    await another.create(f"/cows/{number}", b"")
            with pytest.raises(MetadataUnavailable, match="now holds cluster"):
                await store.get("/cow")
            with pytest.raises(MetadataUnavailable, match="no more use"):
                await store.create("/cow", b"alma")


async def test_a_server_that_accepts_and_says_nothing_costs_a_part_of_the_session_only() -> None:
    """So does one that is starting; the next attempt finds it ready."""
    ends: list[asyncio.StreamWriter] = []
    host, port = shared_zookeeper().hosts.split(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        if len(ends) > 1:
            there = await asyncio.open_connection(host, int(port))
            ends.append(there[1])
            await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    hosts = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    settings = replace(SETTINGS, session_timeout_ms=12_000, connect_timeout_ms=9_000)
    async with connected(hosts, fresh_chroot(), settings) as store:
        assert store.cluster_id and len(ends) > 1
    server.close()
    for end in ends:
        end.close()
