"""Reading at a follower: at a stated position, and nothing but reading."""

import pytest

from herd.errors import LeaderUnavailable, ProgrammingError, TransactionEnded
from herd.nodes import Node
from herd.nodes.following import FollowerSession
from herd.sql.session import Session
from tests.herd.nodes.pair import leader_of, nodes, until


async def sessions(found: list[Node]) -> tuple[Session, FollowerSession, Node]:
    """One at the leader, one at a follower that has caught up."""
    leader = await leader_of(found)
    follower = next(node for node in found if node is not leader)
    await until(lambda: follower.hosted("default") is not None)
    await until(lambda: bool((one := follower.hosted("default")) and one.report.ready))
    session = await leader.session()
    await session.execute("CREATE TABLE cow (id INT PRIMARY KEY, milk INT, name TEXT)")
    await session.execute("INSERT INTO cow VALUES (1, 10, 'Elsa'), (2, 20, 'Resi')")
    following = await follower.follower_session()
    await following.space.replica.wait_for(session.space.replica.position)
    return session, following, leader


async def test_a_follower_answers_queries_and_says_of_which_position() -> None:
    async with nodes(2, replicas=2) as found:
        session, following, _ = await sessions(found)
        answer = await following.execute("SELECT sum(milk), count(*) FROM cow")
        assert list(answer.rows) == [(30, 2)]
        first = following.position
        assert first == session.space.replica.position
        by_key = await following.execute("SELECT name FROM cow WHERE id = ?", [2])
        assert list(by_key.rows) == [("Resi",)]
        await session.execute("UPDATE cow SET milk = 11 WHERE id = 1")
        await following.space.replica.wait_for(session.space.replica.position)
        answer = await following.execute("SELECT sum(milk) FROM cow")
        assert list(answer.rows) == [(31,)] and following.position > first
        assert list((await following.execute("SHOW TABLES")).rows) == [("cow",)]


async def test_a_transaction_at_a_follower_reads_one_position() -> None:
    async with nodes(2, replicas=2) as found:
        session, following, _ = await sessions(found)
        await following.execute("BEGIN")
        position = following.position
        await session.execute("UPDATE cow SET milk = 0")
        await session.execute("ALTER TABLE cow ADD COLUMN age INT")
        await following.space.replica.wait_for(session.space.replica.position)
        for text in ("SELECT sum(milk) FROM cow", "SELECT sum(milk) FROM cow WHERE id > 0"):
            assert list((await following.execute(text)).rows) == [(30,)]
        assert list((await following.execute("SELECT milk FROM cow WHERE id = 1")).rows) == [(10,)]
        assert following.position == position
        await following.execute("COMMIT")
        assert list((await following.execute("SELECT sum(milk), max(age) FROM cow")).rows) == [
            (0, None)
        ]
        following.autocommit = False
        await following.execute("SELECT 1")
        assert following.transaction is not None
        with pytest.raises(ProgrammingError, match="transaction is open"):
            await following.begin()
        await following.rollback()


CHANGES = (
    "INSERT INTO cow VALUES (3, 1, 'x')",
    "INSERT INTO cow SELECT id + 9, milk, name FROM cow",
    "UPDATE cow SET milk = 1 WHERE id = 1",
    "UPDATE cow SET milk = 1",
    "DELETE FROM cow WHERE id = 1",
    "SELECT milk FROM cow WHERE id = 1 FOR UPDATE",
    "SELECT milk FROM cow FOR UPDATE",
    "CREATE TABLE calf (id INT PRIMARY KEY)",
    "ALTER TABLE cow ADD COLUMN b INT",
    "CREATE INDEX by_name ON cow (name)",
    "DROP TABLE cow",
    "TRUNCATE cow",
    "CREATE VIEW v AS SELECT 1",
)


async def test_a_follower_changes_nothing_and_names_the_leader() -> None:
    async with nodes(2, replicas=2) as found:
        _, following, leader = await sessions(found)
        position = following.space.replica.position
        for text in CHANGES:
            with pytest.raises(LeaderUnavailable, match=leader.address):
                await following.execute(text)
            await following.execute("BEGIN")
            with pytest.raises(LeaderUnavailable, match=leader.address):
                await following.execute(text)
            await following.execute("ROLLBACK")
        with pytest.raises(LeaderUnavailable):
            await following.execute_many("INSERT INTO cow VALUES (?, ?, ?)", [(9, 9, "")])
        assert following.space.replica.position == position
        assert list((await following.execute("SELECT count(*) FROM cow")).rows) == [(2,)]


async def test_a_follower_that_comes_to_lead_goes_on_reading_for_its_sessions() -> None:
    async with nodes(2, replicas=2) as found:
        session, following, leader = await sessions(found)
        await following.execute("BEGIN")
        await leader.commands.move_leader("default", "n1" if leader.node_id == "n0" else "n0")
        await until(lambda: bool(following.space.term))
        assert list((await following.execute("SELECT sum(milk) FROM cow")).rows) == [(30,)]
        await following.commit()
        assert list((await following.execute("SELECT sum(milk) FROM cow")).rows) == [(30,)]
        with pytest.raises(LeaderUnavailable):
            await session.execute("UPDATE cow SET milk = 1")


async def test_what_is_over_says_so() -> None:
    async with nodes(2, replicas=2) as found:
        _, following, _ = await sessions(found)
        reading = await following.begin()
        reading.rollback()
        with pytest.raises(TransactionEnded):
            await following.execute("SELECT 1 FROM cow")
        await following.rollback()
        await following.close()


async def test_a_node_without_a_replica_has_nothing_to_read() -> None:
    async with nodes(2, replicas=1) as found:
        leader = await leader_of(found)
        other = next(node for node in found if node is not leader)
        with pytest.raises(LeaderUnavailable, match="no replica"):
            await other.follower_session()
