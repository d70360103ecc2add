"""What a node knows of all nodes and tablespaces, as of its last look.

Invariants:
- A fact is read again when something was told of it, and all of them from time to time, those of
  suspended tablespaces a few at a time: a watch that was lost costs a while, nothing else.
- What a damaged fact says is passed over, and the others are read.
- Who leads a tablespace is whoever says so of the highest term.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from engine.errors import CannotRead, FormatTooNew
from engine.metadata.contract import MetadataStore
from engine.ports.clock import Clock
from herd.nodes.directory import Directory
from herd.nodes.facts import (
    NODES,
    SETTINGS,
    SPACES,
    NodeFact,
    ReplicaReport,
    SettingsFact,
    SpaceFact,
    decode_node,
    missing_replicas,
)

_AT_ONCE: Final = 64
_SUSPENDED_A_REFRESH: Final = 64
_logger = logging.getLogger(__name__)
Row = tuple[Any, ...]


class Outlook:
    """One node's view. All methods on the event loop; the answers are those of the last look."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        node_id: str,
        refresh_ms: int,
        woken: Callable[[], None],
    ) -> None:
        """`woken` is called when it is time to look; `node_id` is whose view it is."""
        self.node_id = node_id
        self.spaces: dict[str, SpaceFact] = {}
        """Change it by `know`."""
        self.active: dict[str, SpaceFact] = {}
        """Those that do not rest: there may be thousands that do, and a look must not cost more."""
        self.changes = 0
        """How often a fact was found to be another one."""
        self.nodes: dict[str, NodeFact] = {}
        self.settings: SettingsFact | None = None
        """None: the settings could not be read yet."""
        self.unreadable: set[str] = set()
        """Tablespaces whose facts could not be read: damaged, or of a newer program."""
        self._directory = directory
        self._store: MetadataStore = directory.store
        self._clock = clock
        self._refresh_s = refresh_ms / 1000
        self._woken = woken
        self._dirty: set[str] = set()
        self._refreshed = ""
        """The suspended tablespace whose fact was read last from time to time."""
        self._names_dirty = self._settings_dirty = True
        self._read_all_s = -1e9
        self._watches: dict[str, Callable[[], None]] = {}
        self._ends = [
            self._store.watch(SPACES, self._names_changed),
            self._store.watch(NODES, woken),
            self._store.watch(SETTINGS, self._settings_changed),
        ]

    async def look(self) -> None:
        """Read what may have changed. Raises `MetadataUnavailable`."""
        now_s = self._clock.monotonic()
        if self._names_dirty or now_s - self._read_all_s >= self._refresh_s:
            self._names_dirty, self._settings_dirty = False, True
            try:
                await self._look_at_names()
            except BaseException:
                self._names_dirty = True
                raise
            self._read_all_s = now_s
        if self._settings_dirty:
            await self._look_at_settings()
        await self._look_at_spaces()
        await self._look_at_nodes()

    def close(self) -> None:
        """Stop watching."""
        for end in [*self._ends, *self._watches.values()]:
            end()
        self._ends, self._watches = [], {}

    def know(self, name: str, fact: SpaceFact | None) -> None:
        """What the fact of a tablespace is now; None: there is no such tablespace."""
        self.changes += self.spaces.get(name) != fact
        self.spaces.pop(name, None)
        self.active.pop(name, None)
        if fact is not None:
            self.spaces[name] = fact
            if not fact.rests:
                self.active[name] = fact

    # Answers

    def report(self, name: str, node_id: str) -> ReplicaReport | None:
        """What a node that is there says of its replica of a tablespace as it is now."""
        fact, node = self.spaces.get(name), self.nodes.get(node_id)
        report = node.replicas.get(name) if node is not None else None
        return report if fact is not None and report and report.uuid == fact.uuid else None

    def leader_of(self, name: str) -> str:
        """The id of the node that leads a tablespace, as far as is known; "" if none does."""
        best, found = 0, ""
        for node_id in sorted(self.nodes):
            report = self.report(name, node_id)
            if report is not None and report.role == "leader" and report.term > best:
                best, found = report.term, node_id
        return found

    def address_of(self, node_id: str) -> str:
        """Where a node is; "" if it is not there."""
        node = self.nodes.get(node_id)
        return node.address if node is not None else ""

    def loads(self) -> dict[str, int]:
        """How many replicas each node that is there should have."""
        loads = dict.fromkeys(self.nodes, 0)
        for fact in self.spaces.values():
            for node_id in fact.replicas if fact.hosted else ():
                if node_id in loads:
                    loads[node_id] += 1
        return loads

    def making(self, node_id: str) -> int:
        """How many of the replicas that a node should run do not follow or lead yet."""
        reports = (
            self.report(name, node_id)
            for name, fact in self.active.items()
            if fact.runs and node_id in fact.replicas
        )
        return sum(report is None or not report.ready for report in reports)

    def under_replicated(self) -> int:
        """How many tablespaces have fewer replicas that follow or lead than they should."""
        spaces = self.active.items()
        return sum(missing_replicas(name, fact, self.nodes) > 0 for name, fact in spaces)

    # For the system tables

    def space_rows(self) -> Iterator[Row]:
        """Name, uuid, leader's address, its id, who should lead, replicas, how many there should be
        of each tablespace."""
        for name, fact in sorted(self.spaces.items()):
            if not fact.dropped:
                leader = self.leader_of(name)
                yield (
                    name,
                    fact.uuid,
                    self.address_of(leader) or None,
                    leader or None,
                    fact.leader or None,
                    ", ".join(fact.replicas),
                    fact.expected,
                )

    def replica_rows(self) -> Iterator[Row]:
        """Tablespace, node, role, term, ledger and entry of each replica."""
        for name, fact in sorted(self.spaces.items()):
            for node_id in fact.replicas if not fact.dropped else ():
                report = self.report(name, node_id)
                if report is None:
                    away = "starting" if not fact.suspended else "suspended"
                    away = away if node_id in self.nodes else "away"
                    yield name, node_id, away, None, None, None
                else:
                    position = report.position if report.ready else (None, None)
                    yield name, node_id, report.role, report.term or None, *position

    def node_rows(self) -> Iterator[Row]:
        """Id, address, since when, how many replicas, how many that lead, and whether that is any,
        of each node."""
        for node_id, node in sorted(self.nodes.items()):
            leads = sum(self.leader_of(name) == node_id for name in node.replicas)
            replicas = len(node.replicas)
            yield node_id, node.address, node.started_ms, replicas, leads, leads > 0

    # Looking

    async def _look_at_names(self) -> None:
        names = set(await self._directory.names())
        for name in set(self._watches) - names:
            self._watches.pop(name)()
        for name in set(self.spaces) - names:
            self.know(name, None)
        self.unreadable &= names
        for name in sorted(names - set(self._watches)):
            self._watches[name] = self._store.watch(
                f"{SPACES}/{name}", partial(self._space_changed, name)
            )
        self._dirty |= names - self._not_yet_again(names)

    def _not_yet_again(self, names: set[str]) -> set[str]:
        """The suspended ones but for the next few."""
        spaces = self.spaces
        suspended = sorted(name for name in names if (f := spaces.get(name)) and f.suspended)
        later = [name for name in suspended if name > self._refreshed]
        chosen = (later or suspended)[:_SUSPENDED_A_REFRESH]
        if chosen:
            self._refreshed = chosen[-1]
        return set(suspended).difference(chosen)

    async def _look_at_settings(self) -> None:
        self._settings_dirty = False
        try:
            self.settings = await self._directory.settings()
        except (CannotRead, FormatTooNew) as error:
            # The settings that were read before still apply.
            _logger.warning("%s", error)
        except BaseException:
            self._settings_dirty = True
            raise

    async def _look_at_spaces(self) -> None:
        dirty = sorted(self._dirty)
        for start in range(0, len(dirty), _AT_ONCE):
            chunk = dirty[start : start + _AT_ONCE]
            self._dirty.difference_update(chunk)
            try:
                await asyncio.gather(*map(self._look_at_space, chunk))
            except BaseException:
                self._dirty.update(chunk)
                raise

    async def _look_at_space(self, name: str) -> None:
        try:
            fact = await self._directory.get(name)
        except (CannotRead, FormatTooNew) as error:
            if name not in self.unreadable:
                _logger.warning("tablespace %s: %s", name, error)
            self.unreadable.add(name)
            return
        self.unreadable.discard(name)
        self.know(name, fact)

    async def _look_at_nodes(self) -> None:
        ids = await self._store.children(NODES)
        found: dict[str, NodeFact] = {}
        for start in range(0, len(ids), _AT_ONCE):
            chunk = ids[start : start + _AT_ONCE]
            facts = await asyncio.gather(*map(self._node, chunk))
            for node_id, fact in zip(chunk, facts, strict=True):
                if fact is not None:
                    found[node_id] = fact
        self.nodes = found

    async def _node(self, node_id: str) -> NodeFact | None:
        found = await self._store.get(f"{NODES}/{node_id}")
        try:
            return None if found is None else decode_node(found.value)
        except (CannotRead, FormatTooNew) as error:
            _logger.warning("node %s: %s", node_id, error)
            return None

    def _names_changed(self) -> None:
        self._names_dirty = True
        self._woken()

    def _settings_changed(self) -> None:
        self._settings_dirty = True
        self._woken()

    def _space_changed(self, name: str) -> None:
        self._dirty.add(name)
        self._woken()
