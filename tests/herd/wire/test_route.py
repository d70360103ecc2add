"""Clients of nodes find who leads, follow a leader that moves, and are told when nobody answers."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.access.door import Door
from engine.ports.clock import SystemClock
from engine.transport.listening import listen_tcp
from engine.transport.security import NO_SECURITY, Security
from herd.errors import (
    AccessDenied,
    InterfaceError,
    LeaderUnavailable,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    SessionLost,
    TooManySessions,
)
from herd.nodes.commands import SpaceCommands
from herd.nodes.facts import NodeFact, ReplicaReport, SpaceFact
from herd.nodes.following import FollowerSession
from herd.sql.result import Result
from herd.sql.session import Parameters, Session
from herd.store import AsyncHerd
from herd.table import AsyncTable
from herd.tablespace import Tablespace
from herd.wire.calling import Calling
from herd.wire.cluster import ClusterHerd, FollowerRoute, LeaderRoute
from herd.wire.framed_server import SessionServer
from herd.wire.herd import RemoteHerd
from herd.wire.service import HerdService
from herd.wire.settings import WireSettings
from tests.engine.transport.certificates import Authority
from tests.herd.wire.wiring import embedded

SOON = WireSettings(patience_ms=300, connect_timeout_ms=2_000)
COW = "CREATE TABLE cow (id INT PRIMARY KEY, n INT)"


class NodeOf:
    """A node as its clients see it. It leads what `herd` has as long as `leader` is empty."""

    def __init__(self, herd: AsyncHerd) -> None:
        self.herd = herd
        self.leader = ""
        self.asked = 0

    async def names(self) -> list[str]:
        """The tablespaces."""
        return await self.herd.names()

    async def tablespace(self, name: str) -> Tablespace:
        """The tablespace, if this node leads it."""
        self.asked += 1
        if self.leader:
            raise LeaderUnavailable("another node leads", hint=f"ask {self.leader}")
        return await self.herd.tablespace(name)

    async def session(self, name: str, *, autocommit: bool = True) -> Session:
        """A session, if this node leads."""
        space = await self.tablespace(name)
        return Session(space, self.herd.queries(space), autocommit=autocommit)

    async def follower_session(self, name: str, *, autocommit: bool = True) -> FollowerSession:
        """A session that reads what is here, whoever leads."""
        space = await self.herd.tablespace(name)
        return FollowerSession(space, self.herd.queries(space), autocommit=autocommit)

    async def table(self, table: str, name: str) -> AsyncTable:
        """A table, if this node leads."""
        await self.tablespace(name)
        found = await self.herd.table(table, name)
        assert type(found) is AsyncTable
        return found

    def leader_of(self, name: str) -> str | None:
        """Who leads."""
        return self.leader or None


class Served:
    """A node and where it listens."""

    def __init__(self, node: NodeOf, server: SessionServer, address: str) -> None:
        self.node = node
        self.server = server
        self.address = address


@asynccontextmanager
async def serving(
    herd: AsyncHerd,
    settings: WireSettings = SOON,
    security: Security = NO_SECURITY,
    door: Door | None = None,
) -> AsyncIterator[Served]:
    """A node that listens at a port of its own."""
    node = NodeOf(herd)
    service = HerdService(node, herd.workers, settings)
    server = SessionServer(service, security=security, door=door)
    listener = await listen_tcp(
        server.accept_counted,
        "127.0.0.1",
        0,
        sockets_max=server.sockets_max,
        context=server.context,
        handshake_timeout_ms=1_000,
        backlog=16,
    )
    try:
        yield Served(node, server, f"tcp:127.0.0.1:{listener.port}")
    finally:
        listener.close()
        await server.close()


@asynccontextmanager
async def reaching(
    herd: AsyncHerd,
    leader: list[str],
    settings: WireSettings = SOON,
    security: Security = NO_SECURITY,
) -> AsyncIterator[RemoteHerd]:
    """A client that finds the leader's address in a list of one."""

    async def leader_of(tablespace: str) -> str:
        return leader[0]

    clock, rng = SystemClock(), random.Random(1)
    route = LeaderRoute(leader_of, clock=clock, rng=rng, settings=settings, security=security)
    try:
        yield RemoteHerd(Calling(route, clock, rng, herd.workers, settings))
    finally:
        await route.close()


async def test_a_client_is_sent_on_by_a_node_that_does_not_lead(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd, serving(herd) as one, serving(herd) as two:
        one.node.leader = two.address
        async with reaching(herd, [one.address]) as remote:
            session = await remote.session()
            await session.execute(COW)
            assert (await session.execute("INSERT INTO cow VALUES (1, 1)")).count == 1
            assert (one.node.asked, two.node.asked) == (1, 1)
            table = await remote.table("cow")
            assert await table.get(1) == {"id": 1, "n": 1}


async def test_sessions_and_tables_follow_a_leader_that_moves(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd, serving(herd) as one, serving(herd) as two:
        leader = [one.address]
        async with reaching(herd, leader) as remote:
            session = await remote.session()
            await session.execute(COW)
            table = await remote.table("cow")
            leader[0] = two.address
            one.node.leader = two.address
            await one.server.close()
            assert (await session.execute("SELECT * FROM cow")).count == 0
            assert await table.get(1) is None
            assert two.node.asked > 0


async def test_a_transaction_ends_with_its_server_and_can_be_done_again(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd, serving(herd) as one, serving(herd) as two:
        leader = [one.address]
        async with reaching(herd, leader) as remote:
            session = await remote.session(autocommit=False)
            await session.execute(COW)
            await session.commit()
            await session.execute("INSERT INTO cow VALUES (1, 1)")
            leader[0] = two.address
            await one.server.close()
            with pytest.raises(SessionLost):
                await session.execute("INSERT INTO cow VALUES (2, 2)")
            await session.rollback()
            await session.execute("INSERT INTO cow VALUES (1, 3)")
            await session.commit()
            assert (await session.execute("SELECT id, n FROM cow")).rows[:] == [(1, 3)]


async def test_a_leader_that_stands_still_is_left_as_soon_as_another_one_leads(
    tmp_path: Path,
) -> None:
    settings = WireSettings(doubt_ms=20)
    async with embedded(tmp_path) as herd, serving(herd) as one, serving(herd) as two:
        leader = [one.address]
        async with reaching(herd, leader, settings) as remote:
            session, other = await remote.session(), await remote.session()
            await session.execute(COW)
            await other.execute("BEGIN")
            # As a process that is paused: it takes what is sent, and says nothing.
            for connection in one.server.connections:
                connection._call = lambda frame: None  # type: ignore[method-assign]
            reading = asyncio.ensure_future(session.execute("SELECT count(*) FROM cow"))
            writing = asyncio.ensure_future(other.execute("INSERT INTO cow VALUES (1, 1)"))
            await asyncio.wait([reading], timeout=0.2)
            assert not reading.done() and not writing.done(), "it still leads"
            leader[0] = two.address
            assert (await reading).rows[:] == [(0,)]
            with pytest.raises(SessionLost):
                await writing
            await other.rollback()
            assert (await other.execute("INSERT INTO cow VALUES (1, 1)")).count == 1


class Commands(SpaceCommands):
    """What the metadata store would say."""

    def __init__(self, facts: dict[str, NodeFact]) -> None:
        self.facts = facts

    async def nodes(self) -> dict[str, NodeFact]:
        """The nodes."""
        return self.facts

    async def spaces(self) -> dict[str, SpaceFact]:
        """The tablespaces."""
        return {"default": SpaceFact("", 0)}

    async def space(self, name: str) -> SpaceFact:
        """One of them."""
        found = (await self.spaces()).get(name)
        if found is None:
            raise ProgrammingError(f"there is no tablespace {name}")
        return found


async def test_a_follower_is_read_at_a_stated_position_and_changes_nothing(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd, serving(herd) as one, serving(herd) as two:
        one.node.leader = two.address
        facts = {
            "a": NodeFact(one.address, 0, {"default": ReplicaReport("", "follower")}),
            "b": NodeFact(two.address, 0, {"default": ReplicaReport("", "leader", 1)}),
            "c": NodeFact("tcp:127.0.0.1:1", 0, {"default": ReplicaReport("", "starting")}),
        }
        clock, rng = SystemClock(), random.Random(1)

        async def replica_of(tablespace: str) -> str:
            return await cluster.replica_of(tablespace, rng)

        route = FollowerRoute(replica_of, clock=clock, rng=rng, settings=SOON)
        calling = Calling(route, clock, rng, herd.workers, SOON)
        cluster = ClusterHerd(calling, calling, Commands(facts), herd.client)
        writer = await herd.session()
        await writer.execute(COW)
        await writer.execute("INSERT INTO cow VALUES (1, 5)")
        reader = await cluster.session(follower=True)
        assert (await reader.execute("SELECT n FROM cow WHERE id = 1")).rows[:] == [(5,)]
        first = reader.position
        assert first is not None
        assert (await reader.execute("SELECT sum(n) FROM cow")).rows[:] == [(5,)]
        with pytest.raises(LeaderUnavailable, match="only reads"):
            await reader.execute("UPDATE cow SET n = 6")
        await writer.execute("UPDATE cow SET n = 7")
        await reader.begin()
        assert (await reader.execute("SELECT n FROM cow")).rows[:] == [(7,)]
        assert reader.position is not None and reader.position > first
        await writer.execute("UPDATE cow SET n = 8")
        assert (await reader.execute("SELECT n FROM cow WHERE id = 1")).rows[:] == [(7,)]
        await reader.rollback()
        assert one.server.connections and not two.server.connections
        with pytest.raises(ProgrammingError, match="no tablespace farm"):
            await cluster.session("farm", follower=True)
        await route.close()


async def test_tls_is_spoken_where_certificates_are_given(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "herd")
    node, client = authority.security("node"), authority.security("client")
    async with embedded(tmp_path / "data") as herd, serving(herd, security=node) as one:
        async with reaching(herd, [one.address], security=client) as remote:
            assert (await (await remote.session()).execute("SELECT 1")).count == 1
        unknown = Security(authorities=authority.path)
        for wrong in (unknown, NO_SECURITY):
            async with reaching(herd, [one.address], security=wrong) as remote:
                with pytest.raises((AccessDenied, LeaderUnavailable)):
                    await remote.session()


async def test_a_server_that_is_dead_is_told_of_in_time(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd, serving(herd) as one:
        address = one.address
        await one.server.close()
        async with reaching(herd, [address]) as remote:
            with pytest.raises(LeaderUnavailable) as raised:
                await remote.session()
            assert raised.value.retryable
        async with reaching(herd, ["tcp:127.0.0.1:1"]) as remote:
            with pytest.raises(LeaderUnavailable):
                await remote.table("cow")
        async with reaching(herd, [""]) as remote:
            with pytest.raises(LeaderUnavailable, match="nobody leads"):
                await remote.session()


async def test_who_does_not_know_the_secret_is_not_served(tmp_path: Path) -> None:
    secret = Security(secret=b"x" * 16)
    async with embedded(tmp_path) as herd, serving(herd, security=secret) as one:
        for wrong in (NO_SECURITY, Security(secret=b"y" * 16)):
            async with reaching(herd, [one.address], security=wrong) as remote:
                with pytest.raises(AccessDenied) as raised:
                    await remote.session()
                assert raised.value.hint and not raised.value.retryable
        async with reaching(herd, [one.address], security=secret) as remote:
            assert (await (await remote.session()).execute("SELECT 1")).rows[:] == [(1,)]


async def test_too_many_connections_are_told_so(tmp_path: Path) -> None:
    few = WireSettings(connections_max=1, patience_ms=100)
    async with (
        embedded(tmp_path) as herd,
        serving(herd, few) as one,
        reaching(herd, [one.address]) as remote,
    ):
        await remote.session()
        async with reaching(herd, [one.address]) as another:
            with pytest.raises(TooManySessions):
                await another.session()


async def test_idle_sessions_make_room_and_come_back(tmp_path: Path) -> None:
    few = WireSettings(sessions_max=2, patience_ms=300)
    async with (
        embedded(tmp_path) as herd,
        serving(herd, few) as one,
        reaching(herd, [one.address]) as remote,
    ):
        sessions = [await remote.session() for _ in range(5)]
        assert one.server.service.session_count == 2
        await sessions[0].execute(COW)
        for session in sessions:
            assert (await session.execute("SELECT * FROM cow")).count == 0
        assert one.server.service.session_count == 2
        held = [await remote.session(autocommit=False) for _ in range(2)]
        for session in held:
            await session.execute("SELECT * FROM cow")
        with pytest.raises(TooManySessions) as raised:
            await sessions[0].execute("SELECT * FROM cow")
        assert raised.value.retryable
        await held[0].rollback()
        assert (await sessions[0].execute("SELECT * FROM cow")).count == 0


async def test_a_client_of_a_cluster_writes_a_backup_where_it_is(tmp_path: Path) -> None:
    async with embedded(tmp_path / "store") as herd, serving(herd) as one:

        async def leader_of(tablespace: str) -> str:
            return one.address

        clock, rng = SystemClock(), random.Random(1)
        route = LeaderRoute(leader_of, clock=clock, rng=rng, settings=SOON)
        calling = Calling(route, clock, rng, herd.workers, SOON)
        cluster = ClusterHerd(calling, calling, Commands({}), herd.client)
        session = await cluster.session()
        await session.execute(COW)
        await session.execute("INSERT INTO cow VALUES (1, 5)")
        await cluster.back_up(tmp_path / "cows.herd", "Default")
        await session.execute("DELETE FROM cow")
        with pytest.raises(FileExistsError):
            await cluster.back_up(tmp_path / "cows.herd")
        with pytest.raises(OperationalError, match="no node"):
            await cluster.restore(tmp_path / "cows.herd", "copy")
        await herd.restore(tmp_path / "cows.herd", "copy")
        found = await (await herd.session("copy")).execute("SELECT * FROM cow")
        assert list(found.rows) == [(1, 5)]
        await session.close()
        await route.close()


async def test_a_node_makes_no_tablespaces_for_its_clients(tmp_path: Path) -> None:
    async with (
        embedded(tmp_path) as herd,
        serving(herd) as one,
        reaching(herd, [one.address]) as remote,
    ):
        with pytest.raises(NotSupportedError):
            await remote.make("farm")
        with pytest.raises(NotSupportedError):
            await remote.back_up("backup")


async def test_a_server_of_something_else_is_told_apart(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd:
        silent = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        async with reaching(herd, [f"tcp:127.0.0.1:{port}"]) as remote:
            with pytest.raises((AccessDenied, LeaderUnavailable)):
                await remote.session()
        silent.close()
        async with reaching(herd, ["nonsense"]) as remote:
            with pytest.raises(InterfaceError, match="address"):
                await remote.session()


async def test_a_read_that_began_a_transaction_moves_when_the_leader_ends_during_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    execute = Session.execute

    async def ends(session: Session, text: str, parameters: Parameters = ()) -> Result:
        asked.append(text)
        if len(asked) % 2:
            await session.begin()
            raise LeaderUnavailable("this replica's term is over")
        return await execute(session, text, parameters)

    async with embedded(tmp_path) as herd, serving(herd) as node:
        await (await herd.session()).execute("CREATE TABLE cow (id INT PRIMARY KEY)")
        async with reaching(herd, [node.address]) as remote:
            session = await remote.session(autocommit=False)
            monkeypatch.setattr(Session, "execute", ends)
            assert (await session.execute("SELECT count(*) FROM cow")).rows == [(0,)]
            await session.rollback()
            # What may have changed something is told, and not done again.
            with pytest.raises(LeaderUnavailable, match="term is over"):
                await session.execute("INSERT INTO cow VALUES (1)")
            assert asked == ["SELECT count(*) FROM cow"] * 2 + ["INSERT INTO cow VALUES (1)"]
