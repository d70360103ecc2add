"""CREATE, ALTER and DROP TABLESPACE, and what the system tables say of a cluster."""

import pytest

from herd.errors import (
    LeaderUnavailable,
    NameTaken,
    NotSupportedError,
    ProgrammingError,
    SqlSyntaxError,
)
from herd.nodes import Node
from herd.sql.session import Session
from tests.herd.nodes.pair import leader_of, nodes, until


async def rows(session: Session, text: str) -> list[tuple[object, ...]]:
    return list((await session.execute(text)).rows)


async def test_tablespaces_are_made_changed_and_dropped_by_statements() -> None:
    async with nodes(3) as found:
        session = await (await leader_of(found)).session()
        made = await session.execute("CREATE TABLESPACE farm WITH replicas = 2, wait = 10000")
        assert made.kind == "CREATE TABLESPACE"
        with pytest.raises(NameTaken):
            await session.execute("create tablespace FARM")
        await session.execute("CREATE TABLESPACE IF NOT EXISTS farm WITH (replicas = 1)")
        assert await rows(
            session, "SELECT expected_replicas FROM systablespaces WHERE tablespace_name = 'farm'"
        ) == [(2,)]
        await session.execute("ALTER TABLESPACE farm SET replicas = 3")
        await until(lambda: _replicas(found, "farm") == {"n0", "n1", "n2"})
        await session.execute("ALTER TABLESPACE farm LEADER 'n2'")
        await session.execute("ALTER TABLESPACE farm SET leader = n2, wait = 20000")
        assert (await leader_of(found, "farm")).node_id == "n2"
        away = "n0"
        await session.execute(f"ALTER TABLESPACE farm DROP REPLICA '{away}';")
        await until(lambda: _replicas(found, "farm") == {"n1", "n2"})
        await session.execute("ALTER TABLESPACE farm ADD REPLICA n0")
        await until(lambda: _replicas(found, "farm") == {"n0", "n1", "n2"})
        await session.execute("DROP TABLESPACE farm")
        await until(lambda: all("farm" not in node.outlook.spaces for node in found))
        await session.execute("DROP TABLESPACE IF EXISTS farm")
        with pytest.raises(ProgrammingError, match="no tablespace farm"):
            await session.execute("DROP TABLESPACE farm")


def _replicas(found: list[Node], name: str) -> set[str]:
    spaces = [(node.node_id, node.hosted(name)) for node in found]
    return {node_id for node_id, one in spaces if one is not None and one.space is not None}


async def test_a_statement_gives_a_tablespace_a_number_of_its_own_or_that_of_the_cluster() -> None:
    async with nodes(1, replicas=2) as found:
        session = await (await leader_of(found)).session()
        wanted = {
            "CREATE TABLESPACE one": (2, True),
            "CREATE TABLESPACE two WITH replicas = 4": (4, False),
            "CREATE TABLESPACE three WITH replicas = default, nodes = n0": (2, True),
            "CREATE TABLESPACE four WITH nodes = n0": (1, False),
            "ALTER TABLESPACE two SET replicas = DEFAULT": (2, True),
            "ALTER TABLESPACE one SET replicas = 1": (1, False),
        }
        for text, expected in wanted.items():
            await session.execute(text)
            fact = (await found[0].commands.spaces())[text.split()[2]]
            assert (fact.expected, fact.by_default) == expected, text


async def test_the_words_of_the_original_are_understood() -> None:
    async with nodes(2) as found:
        session = await (await leader_of(found)).session()
        await session.execute(
            "CREATE TABLESPACE 'farm','leader:n1','replica:n0,n1','expectedreplicacount:2',"
            "'maxleaderinactivitytime:10000','wait:20000'"
        )
        fact = (await found[0].commands.spaces())["farm"]
        assert (fact.leader, set(fact.replicas), fact.expected) == ("n1", {"n0", "n1"}, 2)
        assert (await leader_of(found, "farm")).node_id == "n1"
        await session.execute("ALTER TABLESPACE 'farm','replica:n0','leader:n0','wait:20000'")
        await until(lambda: _replicas(found, "farm") == {"n0"})
        await session.execute("DROP TABLESPACE 'farm'")


WRONG = (
    ("CREATE TABLESPACE", SqlSyntaxError, 17),
    ("CREATE TABLESPACE farm WITH cows = 3", SqlSyntaxError, 28),
    ("CREATE TABLESPACE farm WITH replicas = many", SqlSyntaxError, 28),
    ("CREATE TABLESPACE farm WITH replicas 3", SqlSyntaxError, 37),
    ("CREATE TABLESPACE farm WITH (replicas = 3", SqlSyntaxError, 41),
    ("CREATE TABLESPACE farm nonsense = 1", SqlSyntaxError, 23),
    ("CREATE TABLESPACE 'farm','leader'", SqlSyntaxError, 25),
    ("CREATE TABLESPACE 'farm','replica:*'", NotSupportedError, 25),
    ("CREATE TABLESPACE 'farm','maxleaderinactivitytime:0'", NotSupportedError, 25),
    ("ALTER TABLESPACE farm ADD n1", SqlSyntaxError, 26),
    ("DROP TABLESPACE a b", SqlSyntaxError, 18),
    ("CREATE TABLESPACE IF EXISTS farm", SqlSyntaxError, 21),
)


async def test_what_is_wrong_is_said_with_its_place() -> None:
    async with nodes(1) as found:
        session = await (await leader_of(found)).session()
        for text, kind, place in WRONG:
            with pytest.raises(kind) as raised:
                await session.execute(text)
            assert raised.value.place == place, raised.value


async def test_tablespaces_are_no_part_of_a_transaction() -> None:
    async with nodes(1) as found:
        session = await (await leader_of(found)).session()
        await session.execute("BEGIN")
        with pytest.raises(ProgrammingError, match="inside a transaction"):
            await session.execute("CREATE TABLESPACE farm")
        await session.execute("ROLLBACK")
        with pytest.raises(ProgrammingError, match="this connection"):
            await session.execute("DROP TABLESPACE default")
        with pytest.raises(ProgrammingError, match="cannot be a tablespace"):
            await session.execute('CREATE TABLESPACE "9 lives" WITH replicas = 1')
        with pytest.raises(ProgrammingError, match="1 to 64"):
            await session.execute("CREATE TABLESPACE farm WITH replicas = 0")
        with pytest.raises(LeaderUnavailable, match="lead"):
            await session.execute("CREATE TABLESPACE farm WITH leader = n0, wait = 1")
            await session.execute("ALTER TABLESPACE farm SET leader = '', wait = 1")


async def test_the_system_tables_tell_of_all_nodes_and_replicas() -> None:
    async with nodes(3, replicas=2) as found:
        leader = await leader_of(found)
        await until(lambda: len(_replicas(found, "default")) == 2)
        session = await leader.session()
        await session.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
        await until(lambda: leader.outlook.leader_of("default") == leader.node_id)
        [space] = await rows(session, "SELECT * FROM systablespaces")
        others = _replicas(found, "default")
        assert space[0] == "default" and space[2:5] == (leader.address, leader.node_id, None)
        assert set(str(space[5]).split(", ")) == others and space[6:] == (2, 1)
        states = await rows(
            session, "SELECT node_id, mode, term > 0 FROM systablespacereplicastate ORDER BY mode"
        )
        follower = next(iter(others - {leader.node_id}))
        await until(lambda: _role(leader, follower) == "follower")
        states = await rows(
            session, "SELECT node_id, mode, term > 0 FROM systablespacereplicastate ORDER BY mode"
        )
        assert states == [(follower, "follower", None), (leader.node_id, "leader", True)]
        listed = await rows(
            session, "SELECT node_id, address, replicas, leads FROM sysnodes ORDER BY node_id"
        )
        assert [row[:2] for row in listed] == [(f"n{n}", f"n{n}:1") for n in range(3)]
        assert {row[0] for row in listed if row[2]} == others
        assert [row[0] for row in listed if row[3]] == [leader.node_id]


def _role(at: Node, node_id: str) -> str | None:
    """What one node knows of another one's replica."""
    report = at.outlook.report("default", node_id)
    return None if report is None else report.role
