"""What operators and SQL do to tablespaces of a cluster: facts are changed, nodes follow.

Invariants:
- A command is one compare-and-set of a fact; whoever runs or audits replicas does the rest.
- Nothing is asked of a node that is not there.
"""

import asyncio
import contextlib
import random
import uuid
from collections.abc import Iterable
from typing import Final

import msgspec

from engine.errors import CannotRead, FormatTooNew
from engine.log.log_list import LOGS, decode_list
from engine.metadata.contract import MetadataStore
from engine.ports.clock import Clock
from herd.errors import LeaderUnavailable, OperationalError, ProgrammingError
from herd.nodes.directory import Change, Directory, checked_count
from herd.nodes.facts import NODES, NodeFact, SpaceFact, decode_node
from herd.reading_log import log_of
from herd.translating import translating

_LOOK_S: Final = 0.5


class SpaceCommands:
    """The commands. Each raises `LeaderUnavailable` when the metadata store does not answer."""

    def __init__(self, store: MetadataStore, clock: Clock, rng: random.Random) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self._directory = Directory(store, rng)

    async def spaces(self) -> dict[str, SpaceFact]:
        """All tablespaces that are not being dropped, by name."""
        found = {}
        with translating():
            for name in await self._directory.names():
                fact = await self._directory.get(name)
                if fact is not None and not fact.dropped:
                    found[name] = fact
        return found

    async def nodes(self) -> dict[str, NodeFact]:
        """All nodes that are there, by id."""
        found = {}
        with translating():
            for node_id in await self._store.children(NODES):
                versioned = await self._store.get(f"{NODES}/{node_id}")
                if versioned is not None:
                    found[node_id] = decode_node(versioned.value)
        return found

    async def check_nodes(self) -> None:
        """Raise `OperationalError` if there is no node that could run a tablespace."""
        if not await self.nodes():
            raise OperationalError(
                "there is no node that could run a tablespace", hint="start one: herdbook herd node"
            )

    async def space(self, name: str) -> SpaceFact:
        """The fact of a tablespace. Raises `ProgrammingError` if there is none."""
        with translating():
            return await self._directory.find(name)

    async def create(
        self,
        name: str,
        *,
        expected: int | None = None,
        nodes: Iterable[str] = (),
        leader: str = "",
    ) -> SpaceFact:
        """Create a tablespace. Its first replicas are on `nodes`; the auditor adds others.

        Without `expected`, the number of replicas is the cluster's default, also after that is
        changed, or the number of `nodes` if there are more. Raises `NameTaken`,
        `ProgrammingError`, `OperationalError` (also if there is no node).
        """
        await self.check_nodes()
        first = [await self.node(node) for node in nodes]
        designated = await self.node(leader) if leader else ""
        if designated and designated not in first:
            first.append(designated)
        first = list(dict.fromkeys(first))
        identity = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        default = await self.default_replicas()
        fact = SpaceFact(
            str(identity),
            self._clock.wall_ms(),
            checked_count(max(default if expected is None else expected, len(first))),
            tuple(first),
            designated,
            by_default=expected is None and len(first) <= default,
        )
        with translating():
            return await self._directory.create(name.lower(), fact)

    async def default_replicas(self) -> int:
        """How many replicas a tablespace without a number of its own should have."""
        with translating():
            return (await self._directory.settings()).replicas

    async def set_default_replicas(self, count: int) -> int:
        """Change that number. The auditor adds and removes replicas of those tablespaces."""
        with translating():
            return (await self._directory.set_default_replicas(count)).replicas

    async def set_expected(self, name: str, expected: int | None) -> SpaceFact:
        """Set how many replicas there should be; the auditor adds and removes them.

        None: the cluster's default, also after that is changed.
        """
        default = await self.default_replicas()
        count = default if expected is None else checked_count(expected)

        def change(fact: SpaceFact) -> SpaceFact:
            return msgspec.structs.replace(fact, expected=count, by_default=expected is None)

        return await self._change(name, change)

    async def add_replica(self, name: str, node: str) -> SpaceFact:
        """Have a replica on a node, too; there should be as many as there are then, at least."""
        node_id = await self.node(node)

        def change(fact: SpaceFact) -> SpaceFact:
            if node_id in fact.replicas:
                return fact
            fact = msgspec.structs.replace(fact, replicas=(*fact.replicas, node_id))
            return _counted(fact, max(fact.expected, len(fact.replicas)))

        return await self._change(name, change)

    async def remove_replica(self, name: str, node: str) -> SpaceFact:
        """Have no replica on a node, and as many fewer. The last one stays: `ProgrammingError`."""
        found = await self._of_space(name, node)

        def change(fact: SpaceFact) -> SpaceFact:
            if found not in fact.replicas:
                return fact
            replicas = tuple(each for each in fact.replicas if each != found)
            if not replicas:
                raise ProgrammingError(
                    f"{found} has the only replica of tablespace {name}",
                    hint="add another one first, or drop the tablespace",
                )
            leader = "" if fact.leader == found else fact.leader
            fact = msgspec.structs.replace(fact, replicas=replicas, leader=leader)
            return _counted(fact, min(fact.expected, len(replicas)))

        return await self._change(name, change)

    async def set_replicas(self, name: str, nodes: Iterable[str]) -> SpaceFact:
        """Have replicas on these nodes, and there alone. Raises `ProgrammingError` for none."""
        wanted = tuple(dict.fromkeys([await self.node(node) for node in nodes]))
        if not wanted:
            raise ProgrammingError("a tablespace has at least one replica")

        def change(fact: SpaceFact) -> SpaceFact:
            leader = fact.leader if fact.leader in wanted else ""
            fact = msgspec.structs.replace(fact, replicas=wanted, leader=leader)
            return _counted(fact, len(wanted))

        return await self._change(name, change)

    async def move_leader(self, name: str, node: str) -> SpaceFact:
        """Have a node lead whenever it can; it gets a replica if it has none. "": any may."""
        node_id = await self.node(node) if node else ""

        def change(fact: SpaceFact) -> SpaceFact:
            replicas = fact.replicas
            if node_id and node_id not in replicas:
                replicas = (*replicas, node_id)
            return msgspec.structs.replace(fact, leader=node_id, replicas=replicas)

        return await self._change(name, change)

    async def drop(self, name: str) -> None:
        """End a tablespace; its name is free once everything of it is gone."""
        await self._change(name, lambda fact: msgspec.structs.replace(fact, dropped=True))

    async def leader_of(self, name: str) -> str:
        """The address of who leads, "" if nobody does."""
        with translating():
            found = await self._store.get(f"{LOGS}/{log_of(name.lower())}/list")
            try:
                return "" if found is None else decode_list(found.value).leader_address
            except (CannotRead, FormatTooNew):
                return ""

    async def until_led(self, name: str, timeout_ms: int, node: str = "") -> str:
        """Wait until somebody leads, or that node does; its address.

        Raises `LeaderUnavailable` when the time is over.
        """
        node_id = await self.node(node) if node else ""
        leader, changed = "", asyncio.Event()
        key = f"{LOGS}/{log_of(name.lower())}/list"
        ends = [self._store.watch(each, changed.set) for each in (key, NODES)]
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    changed.clear()
                    leader = await self.leader_of(name)
                    known = (await self.nodes()).get(node_id) if node_id else None
                    if leader and (not node_id or (known and known.address == leader)):
                        return leader
                    # A watch that was lost costs a moment.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_S):
                            await changed.wait()
        except TimeoutError:
            now = f"{leader} does" if leader else "nobody does"
            raise LeaderUnavailable(
                f"{node_id or 'nobody'} does not lead tablespace {name} yet, {now}",
                hint="it goes on: look again later",
            ) from None
        finally:
            for end in ends:
                end()

    async def resume(self, name: str) -> SpaceFact:
        """Have a suspended tablespace run again. Raises `ProgrammingError` if there is none."""
        with translating():
            return await self._directory.resume(name.lower())

    async def node(self, named: str) -> str:
        """The id of the node with an id, the beginning of one, an address, or a name.

        Raises `ProgrammingError` if no node that is there has it, or several have.
        """
        nodes = await self.nodes()
        if named in nodes:
            return named
        found = [key for key, fact in nodes.items() if named and named in (fact.address, fact.host)]
        found = found or [node_id for node_id in nodes if named and node_id.startswith(named)]
        if len(found) == 1:
            return found[0]
        what = "several nodes have" if found else "no node has"
        known = ", ".join(
            " ".join(filter(None, (fact.host, node_id, "at", fact.address)))
            for node_id, fact in nodes.items()
        )
        raise ProgrammingError(f"{what} {named!r}", hint=f"there are {known or 'none'}")

    async def _of_space(self, name: str, named: str) -> str:
        """A node of a tablespace, which may be away."""
        with translating():
            fact = await self._directory.find(name)
        found = [node for node in fact.replicas if node == named]
        found = found or [node for node in fact.replicas if named and node.startswith(named)]
        return found[0] if len(found) == 1 else await self.node(named)

    async def _change(self, name: str, change: Change) -> SpaceFact:
        def checked(fact: SpaceFact) -> SpaceFact:
            if not fact.hosted:
                raise ProgrammingError(f"tablespace {name} is run by the owner of its folder alone")
            return change(fact)

        with translating():
            return await self._directory.change(name.lower(), checked)


def _counted(fact: SpaceFact, expected: int) -> SpaceFact:
    """The fact with a number of replicas, which is the tablespace's own if it has changed."""
    by_default = fact.by_default and expected == fact.expected
    return msgspec.structs.replace(fact, expected=expected, by_default=by_default)
