"""Facts of tablespaces are changed by compare-and-set, whatever replies get lost."""

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from engine.errors import MetadataUnavailable
from engine.metadata.memory import FaultyStore, MemoryTree
from engine.ports.clock import SystemClock
from herd.errors import NameTaken, OperationalError, ProgrammingError
from herd.nodes.commands import SpaceCommands
from herd.nodes.directory import Directory
from herd.nodes.facts import NODES, NodeFact, ReplicaReport, SpaceFact, decode_node
from herd.nodes.registration import Registration
from herd.wire.cluster import ClusterHerd

FACT = SpaceFact("u", 1, 3)


def more(fact: SpaceFact) -> SpaceFact:
    return msgspec.structs.replace(fact, expected=fact.expected + 1)


async def test_a_change_whose_reply_was_lost_is_made_once() -> None:
    store = FaultyStore(MemoryTree("c").session())
    directory = Directory(store, random.Random(1))
    store.lose_reply()
    await directory.create("farm", FACT)
    store.lose_reply()
    changed = await directory.change("farm", more)
    assert (changed.expected, changed.epoch) == (4, 1)
    assert await directory.get("farm") == changed


async def test_a_change_whose_request_was_lost_is_made_again() -> None:
    store = FaultyStore(MemoryTree("c").session())
    directory = Directory(store, random.Random(1))
    store.lose_request()
    await directory.create("farm", FACT)
    store.lose_request()
    assert (await directory.change("farm", more)).expected == 4


async def test_who_was_slower_changes_the_newer_fact() -> None:
    tree = MemoryTree("c")
    store = FaultyStore(tree.session())
    slow, quick = Directory(store, random.Random(1)), Directory(tree.session(), random.Random(2))
    await quick.create("farm", FACT)
    store.before_write(lambda: quick.change("farm", more))
    changed = await slow.change("farm", more)
    assert (changed.expected, changed.epoch) == (5, 2)


async def test_a_change_that_changes_nothing_is_not_written() -> None:
    directory = Directory(MemoryTree("c").session(), random.Random(1))
    await directory.create("farm", FACT)
    before = await directory.get("farm")
    assert await directory.change("farm", lambda fact: fact) == before
    assert await directory.get("farm") == before


async def test_names_are_given_once_and_given_back_to_who_dropped_them() -> None:
    directory = Directory(MemoryTree("c").session(), random.Random(1))
    first = await directory.create("farm", FACT)
    with pytest.raises(NameTaken):
        await directory.create("farm", FACT)
    for name in ("", "9", "a/b", "A", "x" * 64):
        with pytest.raises(ProgrammingError, match="name"):
            await directory.create(name, FACT)
    await directory.forget("farm", first.uuid)
    assert await directory.get("farm") is not None, "it was not dropped"
    await directory.change("farm", lambda fact: msgspec.structs.replace(fact, dropped=True))
    with pytest.raises(OperationalError, match="still being removed"):
        await directory.create("farm", FACT)
    with pytest.raises(ProgrammingError, match="no tablespace"):
        await directory.change("farm", more)
    with pytest.raises(ProgrammingError, match="there are farm"):
        await directory.find("farm")
    await directory.forget("farm", "another")
    assert await directory.names() == ["farm"]
    await directory.forget("farm", first.uuid)
    assert await directory.names() == []


@pytest.mark.parametrize("kept", [True, False])
async def test_a_restoration_ends_once_whatever_replies_get_lost(kept: bool) -> None:
    tree = MemoryTree("c")
    store = FaultyStore(tree.session())
    maker, auditor = Directory(store, random.Random(1)), Directory(tree.session(), random.Random(2))
    fact = await maker.create("farm", replace(FACT, dropped=True, restoring=True))
    with pytest.raises(NameTaken, match="being restored"):
        await auditor.create("farm", FACT)
    with pytest.raises(ProgrammingError, match="no tablespace"):
        await auditor.change("farm", more)
    assert await maker.settle("farm", "another", kept=True) is False
    store.lose_request()
    store.lose_reply()
    assert await maker.settle("farm", fact.uuid, kept=kept) is kept
    found = await auditor.get("farm")
    assert found is not None and (found.dropped, found.restoring) == (not kept, False)
    # Whoever comes later hears what was decided.
    assert await auditor.settle("farm", fact.uuid, kept=not kept) is kept
    assert await auditor.get("farm") == found


async def test_whoever_ends_a_restoration_first_decides() -> None:
    tree = MemoryTree("c")
    store = FaultyStore(tree.session())
    slow, quick = Directory(store, random.Random(1)), Directory(tree.session(), random.Random(2))
    fact = await quick.create("farm", replace(FACT, dropped=True, restoring=True))
    store.before_write(lambda: quick.settle("farm", fact.uuid, kept=False))
    assert await slow.settle("farm", fact.uuid, kept=True) is False
    await quick.forget("farm", fact.uuid)
    assert await slow.settle("farm", fact.uuid, kept=True) is False


async def test_a_registration_outlives_lost_replies_and_lost_sessions() -> None:
    tree = MemoryTree("c")
    session = tree.session()
    store = FaultyStore(session)
    registration = Registration(store, "a")
    first, second = NodeFact("a:1", 1), NodeFact("a:1", 1, {"farm": ReplicaReport("u", "leader")})
    await registration.publish(first)
    store.lose_reply()
    await registration.publish(second)
    found = await session.get(f"{NODES}/a")
    assert found is not None and decode_node(found.value) == second
    version = found.version
    await registration.publish(second)
    found = await session.get(f"{NODES}/a")
    assert found is not None and found.version == version, "it was said already"
    other = tree.session()
    await registration.close()
    assert await other.get(f"{NODES}/a") is None
    assert not registration.registered


async def test_a_node_is_found_by_its_name_its_address_and_the_beginning_of_its_id() -> None:
    store = MemoryTree("c").session()
    for number, name in enumerate(("node-1", "node-2", "")):
        registration = Registration(store, f"{number}fa42582fed")
        await registration.publish(NodeFact(f"tcp:a:{number}", 1, host=name))
    commands = SpaceCommands(store, SystemClock(), random.Random(1))
    for named in ("node-2", "tcp:a:1", "1fa4", "1fa42582fed"):
        assert await commands.node(named) == "1fa42582fed"
    with pytest.raises(ProgrammingError, match="no node has 'node-3'") as refused:
        await commands.node("node-3")
    assert "node-1 0fa42582fed at tcp:a:0, " in str(refused.value.hint)
    with pytest.raises(ProgrammingError):
        await commands.node("")


class RacedCommands(SpaceCommands):
    """Somebody else makes the farm just after this one has looked for it."""

    raced = False

    async def default_replicas(self) -> int:
        found = await super().default_replicas()
        if not self.raced:
            self.raced = True
            await self.create("farm")
        return found


async def test_a_tablespace_that_somebody_makes_at_the_same_moment_is_made() -> None:
    store = MemoryTree("c").session()
    await Registration(store, "a").publish(NodeFact("tcp:a:1", 1))
    commands = RacedCommands(store, SystemClock(), random.Random(1))
    nobody: Any = None
    herd = ClusterHerd(nobody, nobody, commands, nobody)
    await herd.make("Farm")
    assert await herd.names() == ["farm"]
    with pytest.raises(NameTaken):
        await commands.create("farm")


async def test_a_registration_replaces_the_one_of_an_earlier_life() -> None:
    tree = MemoryTree("c")
    before, after = tree.session(), tree.session()
    await Registration(before, "a").publish(NodeFact("a:1", 1))
    registration = Registration(after, "a")
    await registration.publish(NodeFact("a:1", 2))
    await before.close()
    found = await after.get(f"{NODES}/a")
    assert found is not None and decode_node(found.value).started_ms == 2


async def test_the_copy_of_a_node_does_not_take_its_place() -> None:
    tree = MemoryTree("c")
    one, two = tree.session(), tree.session()
    await Registration(one, "a").publish(NodeFact("a:1", 1))
    copy = Registration(two, "a")
    with pytest.raises(MetadataUnavailable, match="a:1 has the same id"):
        await copy.publish(NodeFact("b:1", 2))
    await one.close()
    await copy.publish(NodeFact("b:1", 2))
    assert copy.registered
